//! A job that grows is stopped only when the joining nodes are ready.

use super::*;
use crate::fleet::prewarm::PREWARM_MAX;

/// A job trains on two nodes. A third node has come, and its imports take long.
fn growing(launch: Option<&str>) -> Bench {
    let mut bench = Bench::new(&["b", "c"]);
    bench.submit(
        "digits",
        SpecDocument {
            launch: launch.map(str::to_owned),
            ..document(2, 3, 3)
        },
    );
    bench.agents.entry("a".into()).or_default().imports = true;
    bench.connect("a");
    bench.pass(6 * SECOND);
    bench
}

fn says(bench: &mut Bench, node: &str) {
    let agent = bench.agents.get_mut(&node.into()).unwrap();
    let (session, launchers) = (
        agent.session.unwrap(),
        agent.launchers().expect("something new"),
    );
    bench.input(Input::Launchers { session, launchers });
    bench.obey();
}

fn asked(bench: &Bench, node: &str) -> usize {
    bench.agents[&node.into()].asked.len()
}

#[test]
fn nobody_is_stopped_before_who_joins_is_ready() {
    let mut bench = growing(None);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0, job.reason),
        (Phase::Running, 1, Reason::Prewarming),
        "{}",
        job.message
    );
    assert!(
        job.message.contains("a gets ready to join"),
        "{}",
        job.message
    );
    assert_eq!(asked(&bench, "a"), 1);
    bench.agents.get_mut(&"a".into()).unwrap().imports = false;
    says(&mut bench, "a");
    assert_eq!(
        (
            bench.members("digits"),
            bench.job("digits").last_generation.0
        ),
        (vec!["b", "c", "a"], 2)
    );
    assert_eq!(bench.job("digits").reason, Reason::Running);
    assert_eq!(
        asked(&bench, "a"),
        0,
        "it is a member and is told of its generation"
    );
}

#[test]
fn a_node_that_cannot_start_it_stops_nobody() {
    let mut bench = growing(None);
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    (agent.imports, agent.refuses) = (false, Some("no such file: train.py".into()));
    says(&mut bench, "a");
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0, job.restart_count),
        (Phase::Running, 1, 0),
        "{}",
        job.message
    );
    let event = bench
        .events
        .iter()
        .find(|event| event.reason == "CannotJoin")
        .expect("it is said");
    assert_eq!(
        event.message,
        "a cannot join default/digits: no such file: train.py"
    );
    assert_eq!(asked(&bench, "a"), 0, "it is left alone");
    bench.agents.get_mut(&"a".into()).unwrap().refuses = None;
    bench.pass(61 * SECOND);
    assert_eq!(
        bench.members("digits"),
        ["b", "c", "a"],
        "a minute later it is asked again"
    );
}

#[test]
fn one_that_never_answers_is_waited_for_a_minute() {
    let mut bench = growing(None);
    bench.pass(PREWARM_MAX - 2 * SECOND);
    assert_eq!(bench.job("digits").last_generation.0, 1);
    bench.pass(3 * SECOND);
    assert_eq!(bench.members("digits"), ["b", "c", "a"]);
}

#[test]
fn who_comes_later_does_not_put_it_off() {
    let mut bench = Bench::new(&["b", "c"]);
    bench.submit("digits", document(2, 6, 6));
    for node in ["a", "d", "e", "f"] {
        bench.agents.entry(node.into()).or_default().imports = true;
        bench.connect(node);
        bench.pass(20 * SECOND);
    }
    assert_eq!(
        bench.job("digits").last_generation.0,
        2,
        "a minute and five seconds of cool-down after the first"
    );
}

#[test]
fn of_two_jobs_that_want_one_place_the_second_waits_for_the_first() {
    let mut bench = Bench::new(&["b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    bench.connect("d");
    bench.connect("e");
    bench.submit("other", document(2, 3, 3));
    bench.agents.entry("a".into()).or_default().imports = true;
    bench.connect("a");
    bench.pass(10 * SECOND);
    assert_eq!(
        (bench.members("digits"), bench.members("other")),
        (vec!["b", "c"], vec!["d", "e"])
    );
    assert_eq!(asked(&bench, "a"), 1, "by the first");
    bench.agents.get_mut(&"a".into()).unwrap().imports = false;
    says(&mut bench, "a");
    bench.pass(10 * SECOND);
    assert_eq!(
        (bench.members("digits"), bench.members("other")),
        (vec!["b", "c", "a"], vec!["d", "e"])
    );
    assert_eq!(
        bench.job("other").reason,
        Reason::BelowReplicas,
        "nobody is awaited for it"
    );
}

#[test]
fn where_nothing_can_be_ready_nobody_waits() {
    let bench = growing(Some("cold"));
    assert_eq!(bench.members("digits"), ["b", "c", "a"]);
}

#[test]
fn who_is_not_wanted_any_more_is_told() {
    let mut bench = growing(None);
    assert_eq!(asked(&bench, "a"), 1);
    let name = bench.job("digits").name.clone();
    bench.request(Request::Scale { name, nodes: 2 });
    assert_eq!(asked(&bench, "a"), 0);
    assert_eq!(bench.job("digits").last_generation.0, 1);
}

#[test]
fn a_break_waits_for_nobody() {
    let mut bench = growing(None);
    bench.rank_exits("digits", 1, Exit::Signal(9), None);
    bench.pass(SECOND);
    assert_eq!(
        (
            bench.members("digits"),
            bench.job("digits").last_generation.0
        ),
        (vec!["b", "c", "a"], 2)
    );
}

#[test]
fn an_agent_that_comes_anew_is_asked_anew() {
    let mut bench = growing(None);
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    (agent.imports, agent.incarnation) = (false, 0);
    let session = agent.session.take().unwrap();
    bench.input(Input::Disconnected { session });
    assert_eq!(
        bench.job("digits").reason,
        Reason::BelowReplicas,
        "nobody waits for one that is away"
    );
    bench.connect("a");
    bench.pass(SECOND);
    assert_eq!(bench.members("digits"), ["b", "c", "a"]);
}
