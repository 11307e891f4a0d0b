//! How a run is started is decided in `core::node::launch` alone (decision 121). The agent carries it out.

use muster_architecture::{expect_none, sources};

const DECIDES: &str = "core/src/node/launch.rs";

/// The choices of which a start consists.
const CHOICES: [&str; 10] = [
    "torchrun::launch(",
    "lane::of(",
    "lane::brings_store(",
    ".without_launcher()",
    "Meeting::",
    "peers::told(",
    "mpi::part(",
    "torchrun::rank_command(",
    "torchrun::own_arguments(",
    "torchrun::lacks(",
];

#[test]
fn the_agent_chooses_nothing_of_a_start() {
    let (mut wrong, mut decided) = (Vec::new(), [false; CHOICES.len()]);
    for source in sources() {
        let is_agent = source.path.starts_with("agent/src/");
        let decides = source.path == DECIDES;
        if !is_agent && !decides {
            continue;
        }
        for (at, line) in source.production() {
            for (choice, word) in CHOICES.iter().enumerate() {
                match line.contains(word) {
                    true if decides => decided[choice] = true,
                    true => wrong.push(format!("{}:{at}: {}", source.path, line.trim())),
                    false => {}
                }
            }
        }
    }
    for (word, _) in { CHOICES.iter().zip(decided) }.filter(|(_, decided)| !decided) {
        wrong.push(format!("{DECIDES} does not choose by {word} any more"));
    }
    expect_none(
        &wrong,
        "decide it in core::node::launch, and let the agent carry the value out",
    );
}

/// What the supervisor holds about a run is one value, so that nothing of it is forgotten at its end.
#[test]
fn the_supervisor_has_one_collection_of_runs() {
    let by_run = ["BTreeMap<RunId,", "BTreeSet<RunId>", "HashMap<RunId,"];
    let mut found = Vec::new();
    for source in sources() {
        let folder = source.path.starts_with("agent/src/supervisor/");
        if !folder && source.path != "agent/src/supervisor.rs" {
            continue;
        }
        let lines = source.production().into_iter();
        let is_one = |line: &&str| {
            let field = line.starts_with("    ") && !line.starts_with("     ");
            field && line.ends_with(',') && by_run.iter().any(|map| line.contains(map))
        };
        let fields = lines.filter(|(_, line)| is_one(line));
        found.extend(fields.map(|(_, line)| line.trim().to_owned()));
    }
    assert_eq!(
        found,
        ["held: BTreeMap<RunId, HeldRun>,"],
        "what is held about a run belongs into HeldRun"
    );
}
