//! Jobs whose workers stop by themselves, and agents of other versions.

use super::*;
use crate::fleet::capacity;

fn slots_free(bench: &Bench, node: &str) -> u32 {
    let fleet = &bench.fleet;
    capacity::slots_free(&fleet.nodes[&node.into()], &fleet.jobs)
}

/// The workers stop after 10 s of silence, and are gone 5 s later. The coordinator knows that after
/// 1.02 x 15 s + 10 s = 25.3 s.
fn fenced(nodes: i64) -> SpecDocument {
    SpecDocument {
        fence_after: Some("10s".into()),
        stop_grace_period: Some("5s".into()),
        progress: Some("independent".into()),
        ..document(nodes, nodes, nodes)
    }
}

fn falls_silent(bench: &mut Bench, node: &str) {
    let agent = bench.agents.get_mut(&node.into()).unwrap();
    (agent.frozen, agent.session) = (true, None);
}

/// The agent is back. Its runner has stopped the workers meanwhile.
fn comes_back_fenced(bench: &mut Bench, node: &str) {
    let now = bench.now;
    let agent = bench.agents.get_mut(&node.into()).unwrap();
    agent.frozen = false;
    for run in agent.runs.values_mut().filter(|run| !run.phase.is_over()) {
        (run.phase, run.fenced, run.dead_at, run.torchrun_exit) =
            (RunPhase::Dead, true, Some(now), Some(Exit::Signal(15)));
        run.ranks
            .iter_mut()
            .for_each(|rank| (rank.exit, rank.exited_at) = (Some(Exit::Signal(9)), Some(now)));
    }
    bench.connect(node);
}

pub(super) fn connect_with(bench: &mut Bench, node: &str, speaks: Speaks) -> Vec<Effect> {
    bench.next += 1;
    let session = SessionId(bench.next);
    bench.agents.entry(node.into()).or_default().session = Some(session);
    let hello = Hello {
        node: node.into(),
        boot_id: "boot-0".into(),
        uptime: None,
        incarnation: bench.next,
        speaks,
        term_seen: Term(0),
        epoch_seen: NodeEpoch(0),
        jobs_seen: BTreeMap::new(),
        report: NodeReport {
            address: "127.0.0.1".into(),
            slots: 1,
            ..NodeReport::default()
        },
        runs: Vec::new(),
    };
    let effects = bench.input(Input::Connected { session, hello });
    bench.obey();
    effects
}

#[test]
fn a_lost_nodes_workers_are_replaced_once_they_must_have_stopped() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", fenced(1));
    assert_eq!(bench.members("digits"), ["a"]);
    falls_silent(&mut bench, "a");
    bench.pass(25 * SECOND);
    let job = bench.job("digits");
    assert_eq!(bench.members("digits"), ["b"]);
    assert!(!job.current.as_ref().unwrap().started);
    let waits = "waiting until the workers on a must have stopped by themselves (fenceAfter 10s)";
    assert_eq!((job.reason, job.message.as_str()), (Reason::Fencing, waits));
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert!(job.current.as_ref().unwrap().started, "{}", job.message);
    assert!(job.retiring[0].dead.is_empty(), "no timer proves a death");
    assert_eq!(slots_free(&bench, "a"), 0, "nor gives a slot back");
    comes_back_fenced(&mut bench, "a");
    assert!(bench.job("digits").retiring.is_empty(), "its own word does");
    assert_eq!(slots_free(&bench, "a"), 1);
}

#[test]
fn without_a_fence_only_a_proof_helps() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit(
        "digits",
        SpecDocument {
            fence_after: None,
            ..fenced(1)
        },
    );
    falls_silent(&mut bench, "a");
    bench.pass(60 * SECOND);
    let job = bench.job("digits");
    assert!(!job.current.as_ref().unwrap().started);
    assert_eq!(job.reason, Reason::Unreachable);
}

#[test]
fn a_restarted_coordinator_counts_from_its_own_start() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", fenced(1));
    falls_silent(&mut bench, "a");
    bench.pass(20 * SECOND);
    bench.restart_coordinator();
    bench.connect("b");
    bench.pass(25 * SECOND);
    assert!(
        !bench.job("digits").current.as_ref().unwrap().started,
        "its predecessor may have heard the node until now"
    );
    bench.pass(SECOND);
    assert!(bench.job("digits").current.as_ref().unwrap().started);
}

#[test]
fn a_member_that_stopped_by_itself_is_nobodys_fault() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", fenced(1));
    falls_silent(&mut bench, "a");
    bench.pass(20 * SECOND);
    assert_eq!(
        bench.job("digits").last_generation.0,
        1,
        "there is no better place"
    );
    comes_back_fenced(&mut bench, "a");
    bench.pass(SECOND);
    let job = bench.job("digits");
    let incident = job.incidents.last().unwrap();
    assert_eq!(
        (incident.cause, incident.charged, &incident.node),
        (Cause::Fenced, Charged::Nobody, &None),
        "{}",
        incident.message
    );
    assert_eq!(
        (job.restarts.len(), job.current.as_ref().unwrap().started),
        (0, true)
    );
    assert!(bench.fleet.node_views()[0].record.marks.is_empty());
}

#[test]
fn a_silent_member_is_not_waited_for_once_it_must_have_stopped() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", fenced(1));
    falls_silent(&mut bench, "a");
    bench.pass(26 * SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Pending, Reason::BelowMinimum),
        "it cannot go on where it was"
    );
    assert_eq!(job.incidents.last().unwrap().cause, Cause::Fenced);
    // The agent was told to run, and never heard it. Now it must not start any more.
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    (agent.frozen, agent.runs) = (false, BTreeMap::new());
    bench.connect("a");
    bench.pass(SECOND);
    assert_eq!(
        (
            bench.job("digits").last_generation.0,
            bench.job("digits").phase
        ),
        (2, Phase::Running)
    );
}

#[test]
fn an_agent_without_a_common_version_is_told_what_to_do() {
    let mut bench = Bench::new(&[]);
    let effects = connect_with(
        &mut bench,
        "a",
        Speaks {
            oldest: 8,
            newest: 9,
        },
    );
    let said =
        "the agent speaks protocol 8 to 9, this coordinator 4 to 5: upgrade the coordinator first";
    assert!(
        matches!(&effects[..], [Effect::Refuse { why, .. }] if why.starts_with(said)),
        "{effects:?}"
    );
    assert_eq!(bench.fleet.node_views().len(), 0);
}
