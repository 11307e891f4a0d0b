//! Who has entered the process group, and for whom the others wait.

use super::*;

#[test]
fn an_agent_that_does_not_know_what_was_started_on_its_boot_is_another() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(1, 1, 1));
    bench.pass(SECOND);
    assert_eq!(bench.members("digits"), ["a"]);
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    let (runs, epoch) = (std::mem::take(&mut agent.runs), std::mem::take(&mut agent.epoch));
    bench.connect("a");
    let said = bench.events.last().unwrap();
    assert!(
        said.reason == "SessionRefused" && said.message.contains("does not know of generation 1 of default/digits"),
        "{said:?}"
    );
    assert!(said.message.contains("node epoch 1") && bench.agents[&"a".into()].runs.is_empty(), "{}", said.message);

    // The one that was told comes back, and nothing has happened.
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    (agent.runs, agent.epoch) = (runs, epoch);
    bench.connect("a");
    let job = bench.job("digits");
    assert_eq!((job.phase, job.last_generation.0), (Phase::Running, 1), "{}", job.message);

    // After a new boot nothing of it is left, whatever the disk says.
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    agent.runs.clear();
    (agent.epoch, agent.boot) = (NodeEpoch(0), 1);
    bench.cut("a");
    bench.connect("a");
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").last_generation.0, 2);
}

const NOBODY: [u32; 0] = [];

/// The node that serves the store says who has joined.
fn seen(bench: &mut Bench, job: &str, joined: &[u32], all: bool) {
    let generation = bench.job(job).current.clone().unwrap();
    let (uid, now) = (bench.job(job).uid.clone(), bench.now);
    let agent = bench.agents.get_mut(&generation.members[0].node).unwrap();
    let run = agent.runs.get_mut(&generation.run(&uid)).unwrap();
    (run.joined_ranks, run.all_joined_at) = (joined.to_vec(), all.then_some(now));
    let (session, runs) = (agent.session.unwrap(), agent.runs.values().cloned().collect());
    bench.input(Input::Runs { session, runs });
}

fn joining(bench: &Bench, job: &str) -> Vec<u32> {
    let view = bench.fleet.job_view(&bench.job(job).uid).unwrap();
    view.ranks.iter().filter(|rank| rank.joining).map(|rank| rank.rank).collect()
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
    // A store that is asked again after all had been there.
    seen(&mut bench, "digits", &[0], true);
    assert_eq!(joining(&bench, "digits"), NOBODY);
}
