//! Generations of which no rank says why it failed: all of them speak of others.

use super::*;
use crate::spec::{RestartPolicyDocument, RoleDocument, RuleDocument};

const OWN: Option<&str> = Some("ValueError: labels out of range in shard 7");
const WAITED: Option<&str> = Some(
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete",
);

fn at_most(restarts: i64, spec: SpecDocument) -> SpecDocument {
    SpecDocument {
        restart_policy: Some(RestartPolicyDocument {
            max_restarts: Some(restarts),
            window: None,
            max_same_failures: None,
        }),
        ..spec
    }
}

/// The cause, who pays, and the culprit of the newest break.
fn verdict(bench: &Bench) -> (Cause, Charged, Option<String>) {
    let incident = bench.job("digits").incidents.last().unwrap();
    (incident.cause, incident.charged, incident.culprit.clone())
}

fn message(bench: &Bench) -> &str {
    &bench.job("digits").incidents.last().unwrap().message
}

impl Bench {
    /// A rank of the current generation ends, and the others on its node go on.
    fn rank_exits_first(&mut self, rank: u32, exit: Exit, error: Option<&str>) {
        let generation = self.job("digits").current.clone().unwrap();
        let node = self.rank_ends("digits", &generation, rank, exit, error);
        let agent = self.agents.get_mut(&node).unwrap();
        let run = agent.runs.values_mut().next_back().unwrap();
        (run.phase, run.torchrun_exit, run.dead_at) = (RunPhase::Stopping, None, None);
        let (session, runs) = (
            agent.session.unwrap(),
            agent.runs.values().cloned().collect(),
        );
        self.input(Input::Runs { session, runs });
        self.obey();
    }
}

#[test]
fn a_rank_that_left_its_group_first_may_say_its_own_error() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", at_most(0, document(2, 3, 3)));
    bench.rank_exits("digits", 0, Exit::Code(1), PEER);
    bench.rank_exits("digits", 2, Exit::Code(1), PEER);
    bench.pass(8 * SECOND);
    assert_eq!(
        bench.job("digits").last_generation.0,
        1,
        "rank 1 cleans up and is about to end"
    );
    bench.rank_exits("digits", 1, Exit::Code(1), OWN);
    bench.pass(SECOND);
    assert_eq!(
        verdict(&bench),
        (
            Cause::WorkerFailed,
            Charged::Job,
            Some("rank 1 on b".into())
        )
    );
    assert_eq!(bench.job("digits").phase, Phase::Failed, "no restart");
}

#[test]
fn on_one_node_too_and_if_no_rank_says_anything_the_job_pays() {
    let two_ranks = || SpecDocument {
        proc_per_node: Some(2),
        ..document(1, 1, 1)
    };
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", at_most(1, two_ranks()));
    bench.rank_exits_first(0, Exit::Code(1), PEER);
    bench.pass(5 * SECOND);
    bench.rank_exits_first(1, Exit::Code(1), OWN);
    bench.pass(SECOND);
    assert_eq!(verdict(&bench).2.as_deref(), Some("rank 1 on a"));
    // The other one hangs, and is killed with the generation.
    bench.rank_exits_first(0, Exit::Code(1), PEER);
    bench.pass(11 * SECOND);
    assert_eq!(verdict(&bench), (Cause::PeersLost, Charged::Job, None));
    let told = "ranks of one node lost each other, and none says why; first rank 0 on a: ";
    assert!(message(&bench).starts_with(told), "{}", message(&bench));
    assert_eq!(bench.job("digits").phase, Phase::Failed);
}

#[test]
fn nobody_is_awaited_longer_than_a_clean_up_takes() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.rank_exits("digits", 0, Exit::Code(1), PEER);
    bench.pass(9 * SECOND);
    assert_eq!(bench.job("digits").last_generation.0, 1);
    bench.pass(2 * SECOND);
    assert_eq!(bench.job("digits").last_generation.0, 2);
    assert_eq!(verdict(&bench), (Cause::PeersLost, Charged::Nobody, None));
}

/// The runner's own words come first: its end was not the first, and it has an error of its own.
#[test]
fn an_error_of_its_own_is_not_lost_with_a_rank_that_was_told_to_end() {
    let mut bench = Bench::new(&["a"]);
    let spec = SpecDocument {
        proc_per_node: Some(2),
        ..document(1, 1, 1)
    };
    bench.submit("digits", spec);
    bench.rank_exits_first(0, Exit::Code(1), PEER);
    bench.pass(Duration::from_millis(20));
    bench.rank_exits_first(1, Exit::Signal(15), OWN);
    bench.pass(SECOND);
    assert_eq!(
        verdict(&bench),
        (
            Cause::WorkerFailed,
            Charged::Job,
            Some("rank 1 on a".into())
        )
    );
}

#[test]
fn a_rank_that_ended_with_0_is_why_others_lost_it() {
    for zero_is_seen_first in [true, false] {
        let mut bench = Bench::new(&["a", "b"]);
        bench.submit("digits", at_most(0, document(2, 2, 2)));
        if zero_is_seen_first {
            bench.rank_exits("digits", 0, Exit::Code(0), None);
        }
        bench.rank_exits("digits", 1, Exit::Code(1), PEER);
        bench.pass(SECOND);
        if !zero_is_seen_first {
            assert_eq!(bench.job("digits").phase, Phase::Running, "rank 0 runs");
            bench.rank_exits("digits", 0, Exit::Code(0), None);
            bench.pass(SECOND);
        }
        assert_eq!(
            verdict(&bench),
            (Cause::EndedEarly, Charged::Job, Some("rank 0 on a".into()))
        );
        let told =
            "rank 0 on a had ended with exit code 0 while others trained; then rank 1 on b: ";
        assert!(message(&bench).starts_with(told), "{}", message(&bench));
        assert_eq!(bench.job("digits").phase, Phase::Failed);
        let marks = &bench.stored_nodes[&"a".into()].marks;
        assert_eq!(marks.len(), 0, "its node has nothing to do with it");
    }
}

#[test]
fn a_rank_that_ends_with_0_long_after_is_no_cause() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.rank_exits("digits", 1, Exit::Code(1), PEER);
    bench.pass(4 * SECOND);
    bench.rank_exits("digits", 0, Exit::Code(0), None);
    bench.pass(SECOND);
    assert_eq!(verdict(&bench), (Cause::PeersLost, Charged::Nobody, None));
}

#[test]
fn an_own_error_explains_more_than_a_rank_that_ended_with_0() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(3, 3, 3));
    bench.rank_exits("digits", 0, Exit::Code(0), None);
    bench.rank_exits("digits", 1, Exit::Code(1), PEER);
    bench.rank_exits("digits", 2, Exit::Code(1), OWN);
    bench.pass(SECOND);
    assert_eq!(verdict(&bench).2.as_deref(), Some("rank 2 on c"));
}

#[test]
fn a_rank_of_another_role_may_end_first() {
    let role = |name: &str| RoleDocument {
        name: name.into(),
        replicas: Some(2),
        args: vec![format!("{name}.py")],
        ..RoleDocument::default()
    };
    let mut bench = Bench::new(&["a", "b", "c", "d"]);
    let spec = SpecDocument {
        roles: vec![role("trainer"), role("reader")],
        ..SpecDocument::default()
    };
    bench.submit("digits", spec);
    bench.rank_exits("digits", 3, Exit::Code(0), None);
    bench.rank_exits("digits", 0, Exit::Code(1), PEER);
    bench.rank_exits("digits", 1, Exit::Code(1), PEER);
    bench.rank_exits("digits", 2, Exit::Code(1), PEER);
    bench.pass(SECOND);
    assert_eq!(verdict(&bench), (Cause::PeersLost, Charged::Nobody, None));
}

#[test]
fn the_rank_for_which_others_gave_up_waiting_is_named_and_its_node_gets_no_mark() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(3, 3, 3));
    bench.rank_exits("digits", 0, Exit::Code(1), WAITED);
    bench.rank_exits("digits", 2, Exit::Code(1), WAITED);
    bench.pass(11 * SECOND);
    assert_eq!(
        verdict(&bench),
        (
            Cause::CollectiveTimeout,
            Charged::Job,
            Some("rank 1 on b".into())
        )
    );
    let told = "others gave up waiting for rank 1 on b; first rank 0 on a: RuntimeError: ";
    assert!(message(&bench).starts_with(told), "{}", message(&bench));
    for node in ["a", "b", "c"] {
        assert_eq!(bench.stored_nodes[&node.into()].marks.len(), 0, "{node}");
    }
}

#[test]
fn the_ranks_that_an_error_names_are_believed() {
    let barrier =
        Some("RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 4000 ms");
    let mut bench = Bench::new(&["a", "b", "c", "d"]);
    bench.submit("digits", document(4, 4, 4));
    bench.rank_exits("digits", 0, Exit::Code(1), barrier);
    bench.rank_exits("digits", 3, Exit::Code(1), WAITED);
    // It had waited, too, and only for rank 2.
    bench.rank_exits("digits", 1, Exit::Code(1), PEER);
    bench.pass(11 * SECOND);
    assert_eq!(verdict(&bench).2.as_deref(), Some("rank 2 on c"));
}

#[test]
fn if_all_gave_up_nobody_is_named_and_the_job_pays() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.rank_exits("digits", 0, Exit::Code(1), WAITED);
    bench.rank_exits("digits", 1, Exit::Code(1), WAITED);
    bench.pass(SECOND);
    assert_eq!(
        verdict(&bench),
        (Cause::CollectiveTimeout, Charged::Job, None)
    );
}

#[test]
fn the_jobs_rules_see_the_exit_of_the_rank_that_failed_for_want_of_another() {
    let rule = RuleDocument {
        when: "exit".into(),
        codes: Some("1-127".into()),
        then: "fail".into(),
        ..RuleDocument::default()
    };
    for (zero, error) in [(true, PEER), (false, WAITED)] {
        let mut bench = Bench::new(&["a", "b"]);
        let spec = SpecDocument {
            rules: vec![rule.clone()],
            ..document(2, 2, 2)
        };
        bench.submit("digits", spec);
        if zero {
            bench.rank_exits("digits", 0, Exit::Code(0), None);
        }
        bench.rank_exits("digits", 1, Exit::Code(1), error);
        bench.pass(11 * SECOND);
        let job = bench.job("digits");
        assert_eq!(
            (job.phase, job.reason),
            (Phase::Failed, Reason::FailedByRule)
        );
    }
}

/// What looks like the network each time may be the script, and steps between breaks prove nothing.
#[test]
fn a_job_that_gets_on_between_breaks_pays_in_the_end() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", at_most(1, document(2, 2, 2)));
    let mut charged = Vec::new();
    for step in 1..=12 {
        bench.step("digits", step);
        bench.rank_exits("digits", 0, Exit::Code(1), PEER);
        bench.rank_exits("digits", 1, Exit::Code(1), PEER);
        bench.pass(2 * SECOND);
        charged.push(verdict(&bench).1);
    }
    assert_eq!(charged[..10], [Charged::Nobody; 10]);
    assert_eq!(charged[10..], [Charged::Job; 2]);
    assert_eq!(bench.job("digits").phase, Phase::Failed);
    // Outside the window all is forgotten.
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    for step in 1..=12 {
        bench.step("digits", step);
        bench.rank_exits("digits", 0, Exit::Code(1), PEER);
        bench.rank_exits("digits", 1, Exit::Code(1), PEER);
        bench.pass(2 * SECOND);
        assert_eq!(verdict(&bench).1, Charged::Nobody, "break {step}");
        bench.now = bench.now + Duration::from_secs(400);
        bench.pass(SECOND);
    }
}
