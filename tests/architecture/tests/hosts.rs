//! The agent reaches its runners' processes through `host::RunnerHost` alone, so that a runner in
//! another container is a second implementation and no search through the agent.

use muster_architecture::{Source, expect_none, sources};

/// The two implementations: the agent's own machine, and another container of its pod.
const HOST: [&str; 1] = ["agent/src/host/"];
/// What the runner's crate offers for finding and ending its processes, and for looking at the
/// files that workers see.
const PROCESSES: [&str; 13] = [
    "alive",
    "connect",
    "connect_rank",
    "find",
    "held",
    "kept",
    "leftovers",
    "memory",
    "modified",
    "run",
    "saved",
    "start",
    "started",
];

/// The names in each `use muster_runner::...;` of a file.
fn of_the_runner(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.production().iter().map(|(_, line)| *line).collect();
    let text = lines.join("\n");
    let names = |part: &str| {
        let end = part.find([';', '(']).unwrap_or(part.len());
        part[..end]
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    text.split("muster_runner::")
        .skip(1)
        .flat_map(names)
        .collect()
}

#[test]
fn runners_are_reached_through_their_host() {
    let mut wrong = Vec::new();
    let mut in_host = 0;
    for source in sources() {
        if !source.path.starts_with("agent/src/") {
            continue;
        }
        let mut found: Vec<String> = of_the_runner(&source)
            .into_iter()
            .filter(|name| PROCESSES.contains(&name.as_str()))
            .collect();
        // The senses count whatever lives on the node, the preflight looks at itself, `leave`, a command of its own
        // beside the agent, only looks at what its unit holds.
        let rooms = ["agent/src/probe", "agent/src/preflight", "agent/src/leave"];
        let looks_around = rooms.iter().any(|room| source.path.starts_with(room));
        for (at, line) in source.production() {
            // The machine's users are asked for before there is a host that is one of them.
            let asks = source.path == "agent/src/accounts.rs";
            let starts = line.contains("process::Command") && !asks;
            let reads = line.contains("/proc/{") && !looks_around;
            if starts || reads || line.contains(".kill_all(") {
                found.push(format!("line {at}: {}", line.trim()));
            }
        }
        if HOST.iter().any(|room| source.path.starts_with(room)) {
            in_host += found.len();
        } else {
            wrong.extend(found.iter().map(|what| format!("{}: {what}", source.path)));
        }
    }
    assert!(
        in_host >= 6,
        "the host has moved: {in_host} uses in {HOST:?}"
    );
    expect_none(
        &wrong,
        "ask the RunnerHost: what it does for this machine stands in agent/src/host/local.rs",
    );
}
