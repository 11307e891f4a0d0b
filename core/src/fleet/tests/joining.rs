//! Which ranks have entered the process group, and for which ranks the others wait.

use super::*;

const NOBODY: [u32; 0] = [];

/// The node that serves the TCPStore reports which ranks have joined.
fn seen(bench: &mut Bench, job: &str, joined: &[u32], all: bool) {
    let generation = bench.job(job).current.clone().unwrap();
    let (uid, now) = (bench.job(job).uid.clone(), bench.now);
    let agent = bench.agents.get_mut(&generation.members[0].node).unwrap();
    let run = agent.runs.get_mut(&generation.run(&uid)).unwrap();
    (run.joined_ranks, run.all_joined_at) = (joined.to_vec(), all.then_some(now));
    let (session, runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
}

fn joining(bench: &Bench, job: &str) -> Vec<u32> {
    let view = bench.fleet.job_view(&bench.job(job).uid).unwrap();
    view.ranks
        .iter()
        .filter(|rank| rank.joining)
        .map(|rank| rank.rank)
        .collect()
}

#[test]
fn once_some_have_joined_the_others_are_waited_for() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(3, 3, 3));
    assert_eq!(joining(&bench, "digits"), NOBODY, "nobody waits yet");
    seen(&mut bench, "digits", &[0, 2], false);
    assert_eq!(joining(&bench, "digits"), [1]);
    seen(&mut bench, "digits", &[0, 1, 2], true);
    assert_eq!(joining(&bench, "digits"), NOBODY);
    // The TCPStore is asked again after all ranks had joined.
    seen(&mut bench, "digits", &[0], true);
    assert_eq!(joining(&bench, "digits"), NOBODY);
}
