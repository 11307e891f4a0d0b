//! Processes that are started again while the others of their generation go on.

use super::{agent::told, *};
use crate::{
    fleet::account,
    health::{Finding, Health, Remedy, Severity, Subject, TERMINATION_NOTICE},
    spec::{RoleDocument, RuleDocument},
};

/// A chief, two workers and a parameter server.
fn document() -> SpecDocument {
    let role = |name: &str, replicas| RoleDocument {
        name: name.into(),
        replicas: Some(replicas),
        args: vec![format!("{name}.py")],
        ..RoleDocument::default()
    };
    SpecDocument {
        framework: Some("tensorflow".into()),
        roles: vec![role("chief", 1), role("worker", 2), role("ps", 1)],
        placement: Some("spread".into()),
        ..SpecDocument::default()
    }
}

fn bench() -> Bench {
    let mut bench = Bench::new(&["a", "b", "c", "d"]);
    bench.submit("digits", document());
    assert_eq!(bench.members("digits"), ["a", "b", "c", "d"]);
    bench
}

impl Bench {
    /// This rank fails, and the rest of its group lives, as with a runner that can start it again.
    fn rank_alone_exits(&mut self, rank: u32, exit: Exit, error: Option<&str>) {
        self.now = self.now + MS;
        let (uid, generation) = {
            let job = self.job("digits");
            (job.uid.clone(), job.current.clone().unwrap())
        };
        let node = generation.node_of(rank).unwrap().clone();
        let now = self.now;
        let agent = self.agents.get_mut(&node).unwrap();
        let run = agent.runs.get_mut(&generation.run(&uid)).unwrap();
        let report = run.ranks.iter_mut().find(|r| r.rank == rank).unwrap();
        (report.exit, report.exited_at) = (Some(exit), Some(now));
        report.first_error = error.map(str::to_owned);
        let (session, runs) = (
            agent.session.unwrap(),
            agent.runs.values().cloned().collect(),
        );
        self.input(Input::Runs { session, runs });
        self.obey();
    }

    fn rank(&self, rank: u32) -> RankReport {
        let job = self.job("digits");
        let generation = job.current.clone().unwrap();
        let agent = &self.agents[generation.node_of(rank).unwrap()];
        let run = &agent.runs[&generation.run(&job.uid)];
        let mut ranks = run.ranks.iter();
        ranks.find(|report| report.rank == rank).unwrap().clone()
    }
}

const MS: Duration = Duration::from_millis(1);
const KILLED: Exit = Exit::Signal(9);

#[test]
fn a_killed_worker_beside_parameter_servers_is_started_again_alone() {
    let mut bench = bench();
    bench.rank_alone_exits(1, KILLED, None);
    let rank = bench.rank(1);
    assert_eq!((rank.attempt, rank.exit), (2, None));
    let job = bench.job("digits");
    assert_eq!(job.current.as_ref().unwrap().number, Generation(1));
    assert_eq!((job.phase, job.restarts.len()), (Phase::Running, 1));
    assert_eq!(job.restart_count, 1);
    let incident = job.incidents.last().unwrap();
    assert_eq!(incident.cause, Cause::WorkerKilled);
    assert_eq!(incident.restarted_ranks, [1]);
    assert_eq!(incident.from, incident.to);
    assert!(incident.total().is_some(), "{incident:?}");
    let others: Vec<u32> = [0, 2, 3].map(|rank| bench.rank(rank).attempt).into();
    assert_eq!(others, [1, 1, 1]);
    // The other nodes get no new orders.
    assert!(told(&bench, "a").1.attempts.is_empty());
}

#[test]
fn each_failure_is_charged_once_also_by_a_coordinator_that_was_started_anew() {
    let mut bench = bench();
    bench.agents.get_mut(&"b".into()).unwrap().frozen = true;
    bench.rank_alone_exits(1, KILLED, None);
    assert_eq!(bench.job("digits").restarts.len(), 1);
    bench.restart_coordinator();
    for node in ["a", "b", "c", "d"] {
        bench.connect(node);
    }
    bench.pass(30 * SECOND);
    let job = bench.job("digits");
    assert_eq!((job.restarts.len(), job.incidents.len()), (1, 2));
    assert_eq!(job.current.as_ref().unwrap().number, Generation(1));
    bench.agents.get_mut(&"b".into()).unwrap().frozen = false;
    bench.pass(SECOND);
    assert_eq!(bench.rank(1).attempt, 2);
}

#[test]
fn the_next_failure_waits_and_a_spent_budget_ends_the_job() {
    let mut bench = bench();
    bench.rank_alone_exits(1, Exit::Code(1), Some("ValueError: no"));
    bench.pass(SECOND);
    bench.rank_alone_exits(1, Exit::Code(1), Some("ValueError: no"));
    bench.pass(100 * MS);
    assert_eq!(bench.rank(1).exit, Some(Exit::Code(1)), "it waits");
    bench.pass(2 * SECOND);
    assert_eq!(bench.rank(1).attempt, 3);
    bench.rank_alone_exits(1, Exit::Code(1), Some("ValueError: no"));
    bench.pass(10 * SECOND);
    assert_eq!(bench.rank(1).attempt, 4);
    assert_eq!(bench.job("digits").restarts.len(), 3);
    bench.rank_alone_exits(1, Exit::Code(1), Some("ValueError: no"));
    bench.pass(10 * SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Failed, Reason::RestartBudgetSpent),
        "{}",
        job.message
    );
}

#[test]
fn a_failure_elsewhere_ends_the_whole_generation() {
    for rank in [0, 3] {
        let mut bench = bench();
        bench.rank_alone_exits(rank, KILLED, None);
        bench.pass(SECOND);
        let job = bench.job("digits");
        assert_eq!(job.last_generation, Generation(2), "rank {rank}");
        assert!(job.incidents.last().unwrap().restarted_ranks.is_empty());
    }
}

#[test]
fn a_worker_that_only_lost_its_peers_is_not_started_again_alone() {
    let mut bench = bench();
    let lost = "gloo/transport/tcp/pair.cc:534] Connection closed by peer";
    bench.rank_alone_exits(1, Exit::Code(1), Some(lost));
    bench.pass(20 * SECOND);
    assert_eq!(bench.job("digits").last_generation, Generation(2));
}

#[test]
fn two_workers_that_fail_together_are_one_incident() {
    let mut bench = bench();
    bench.rank_alone_exits(1, Exit::Code(3), None);
    bench.rank_alone_exits(2, Exit::Code(3), None);
    bench.pass(SECOND);
    assert_eq!([1, 2].map(|rank| bench.rank(rank).attempt), [2, 2]);
    let job = bench.job("digits");
    assert_eq!((job.restarts.len(), job.incidents.len()), (1, 2));
    assert_eq!(job.incidents[1].restarted_ranks, [1, 2]);
}

#[test]
fn a_runner_of_an_earlier_version_ends_the_group_and_the_world_is_formed_anew() {
    let mut bench = bench();
    bench.rank_exits("digits", 1, KILLED, None);
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").last_generation, Generation(2));
}

#[test]
fn a_group_that_dies_with_an_answered_failure_is_broken() {
    let mut bench = bench();
    bench.agents.get_mut(&"b".into()).unwrap().frozen = true;
    bench.rank_alone_exits(1, KILLED, None);
    // Its runner is killed before it hears of the restart.
    bench.agents.get_mut(&"b".into()).unwrap().frozen = false;
    let uid = bench.job("digits").uid.clone();
    let agent = bench.agents.get_mut(&"b".into()).unwrap();
    for run in agent.runs.values_mut() {
        (run.phase, run.dead_at) = (RunPhase::Dead, Some(bench.now));
    }
    let (session, runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!((job.uid.clone(), job.last_generation), (uid, Generation(2)));
}

/// A pod is told to end while one of its ranks waits for its next start.
#[test]
fn nobody_pays_again_for_an_answered_failure_on_a_node_that_leaves() {
    let mut bench = bench();
    bench.agents.get_mut(&"b".into()).unwrap().frozen = true;
    bench.rank_alone_exits(1, Exit::Signal(11), None);
    bench.pass(100 * MS);
    assert_eq!(bench.job("digits").restarts.len(), 1, "answered");
    bench.agents.get_mut(&"b".into()).unwrap().frozen = false;
    let finding = Finding {
        check: TERMINATION_NOTICE.into(),
        subject: Subject::Node,
        severity: Severity::Drain,
        remedy: Remedy::GpuReset,
        reason: "its pod is being deleted".into(),
        since_unix_us: 0,
        runs: Vec::new(),
    };
    let report = NodeReport {
        address: "127.0.0.1".into(),
        slots: 1,
        health: Health {
            findings: vec![finding],
        },
        ..NodeReport::default()
    };
    let session = bench.agents[&"b".into()].session.unwrap();
    bench.input(Input::Report { session, report });
    let agent = bench.agents.get_mut(&"b".into()).unwrap();
    for run in agent.runs.values_mut() {
        (run.phase, run.dead_at) = (RunPhase::Dead, Some(bench.now));
        run.torchrun_exit = Some(Exit::Code(1));
    }
    let (session, runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
    bench.pass(SECOND);
    let job = bench.job("digits");
    let incident = job.incidents.last().unwrap();
    assert_eq!(
        (incident.cause, incident.charged),
        (Cause::NodeLeaving, Charged::Nobody),
        "{}",
        incident.message
    );
    assert_eq!(job.restarts.len(), 1, "the rank's own failure alone");
}

#[test]
fn a_rule_that_fails_the_job_comes_first() {
    let mut bench = Bench::new(&["a", "b", "c", "d"]);
    let rule = RuleDocument {
        when: "exit".into(),
        role: Some("worker".into()),
        codes: Some("3".into()),
        then: "fail".into(),
        ..RuleDocument::default()
    };
    bench.submit(
        "digits",
        SpecDocument {
            rules: vec![rule],
            ..document()
        },
    );
    bench.rank_alone_exits(1, Exit::Code(4), None);
    bench.pass(SECOND);
    assert_eq!(bench.rank(1).attempt, 2);
    bench.rank_alone_exits(1, Exit::Code(3), None);
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Failed, Reason::FailedByRule)
    );
}

#[test]
fn a_lost_node_ends_the_whole_generation() {
    let mut bench = Bench::new(&["a", "b", "c", "d", "e"]);
    bench.submit("digits", document());
    bench.cut("b");
    bench.pass(30 * SECOND);
    assert_eq!(bench.job("digits").last_generation, Generation(2));
}

#[test]
fn a_silence_that_began_before_explains_the_failure_and_ends_the_generation() {
    let mut bench = Bench::new(&["a", "b", "c", "d", "e"]);
    bench.submit("digits", document());
    bench.agents.get_mut(&"c".into()).unwrap().frozen = true;
    bench.pass(4 * SECOND);
    bench.rank_alone_exits(1, KILLED, None);
    bench.pass(20 * SECOND);
    let job = bench.job("digits");
    assert_eq!(job.last_generation, Generation(2));
    assert_eq!(job.incidents.last().unwrap().cause, Cause::NodeLost);
}

#[test]
fn on_a_shared_node_only_the_failed_member_is_started_again() {
    let mut bench = Bench::new(&["a"]);
    let report = NodeReport {
        address: "127.0.0.1".into(),
        slots: 4,
        ..NodeReport::default()
    };
    let session = bench.agents[&"a".into()].session.unwrap();
    bench.input(Input::Report { session, report });
    bench.submit(
        "digits",
        SpecDocument {
            placement: None,
            ..document()
        },
    );
    bench.rank_alone_exits(2, KILLED, None);
    let attempts = [0, 1, 2, 3].map(|rank| bench.rank(rank).attempt);
    assert_eq!(attempts, [1, 1, 2, 1]);
    let job = bench.job("digits");
    let culprit = job.incidents.last().unwrap().culprit.clone();
    assert_eq!(culprit.as_deref(), Some("rank 2 (worker-1) on a"));
}

#[test]
fn steps_of_the_others_do_not_spare_a_worker_the_back_off() {
    let mut bench = bench();
    let failure = Exit::Code(1);
    for step in 1..=2 {
        bench.step("digits", step * 10);
        bench.rank_alone_exits(1, failure, Some("OSError: address in use"));
        bench.pass(100 * MS);
    }
    assert_eq!(bench.rank(1).exit, Some(failure), "it waits");
    bench.pass(2 * SECOND);
    assert_eq!(bench.rank(1).attempt, 3);
    // After a minute it has run, and its next failure is a first one.
    bench.pass(70 * SECOND);
    bench.rank_alone_exits(1, failure, None);
    bench.pass(100 * MS);
    assert_eq!(bench.rank(1).attempt, 4);
}

#[test]
fn the_receipt_of_the_generation_is_filled_in_after_a_rank_has_failed() {
    let mut bench = bench();
    bench.rank_alone_exits(1, KILLED, None);
    bench.pass(SECOND);
    bench.step("digits", 1);
    let job = bench.job("digits");
    assert!(
        job.incidents[0].first_step_at.is_some(),
        "{:?}",
        job.incidents[0]
    );
    // What the restart cost is nobody's lost time.
    let lost = account::lost(job, bench.now);
    assert_eq!(lost.keys().collect::<Vec<_>>(), [&Cause::FirstStart]);
}

#[test]
fn a_worker_that_fails_at_once_again_and_again_may_not_be_able_to_start() {
    let mut bench = bench();
    bench.pass(130 * SECOND);
    for _ in 0..2 {
        bench.rank_alone_exits(1, Exit::Code(1), Some("ImportError: no"));
        bench.pass(3 * SECOND);
    }
    assert!(bench.job("digits").crash_loop.is_some());
    let said = bench
        .events
        .iter()
        .find(|event| event.reason == "WorkerFailed")
        .unwrap();
    let incident = &bench.job("digits").incidents[1];
    assert_eq!(said.message, incident.message);
    assert!(
        said.message.ends_with("; rank 1 alone is started again"),
        "{said:?}"
    );
}

#[test]
fn a_member_that_only_dials_anew_is_no_collateral() {
    let mut bench = bench();
    bench.rank_alone_exits(1, Exit::Code(1), Some("ValueError: torn record"));
    let agent = bench.agents.get_mut(&"b".into()).unwrap();
    let session = agent.session.take().unwrap();
    bench.input(Input::Disconnected { session });
    bench.pass(SECOND);
    let incident = bench.job("digits").incidents.last().unwrap();
    assert_eq!(incident.restarted_ranks, [1]);
    assert_eq!(incident.collateral, [""; 0]);
}
