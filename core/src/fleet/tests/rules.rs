//! A job's own rules about ends.

use super::*;
use crate::spec::{RestartPolicyDocument, RuleDocument};

fn ruled(nodes: i64, rules: &[&str]) -> SpecDocument {
    let read = |rule: &&str| RuleDocument::read(rule).unwrap();
    SpecDocument {
        rules: rules.iter().map(read).collect(),
        restart_policy: Some(RestartPolicyDocument {
            max_restarts: Some(2),
            window: None,
            max_same_failures: None,
        }),
        ..document(nodes, nodes, nodes)
    }
}

fn told(bench: &Bench, job: &str) -> (Phase, Reason, String) {
    let job = bench.job(job);
    (job.phase, job.reason, job.message.clone())
}

fn fails(bench: &mut Bench, job: &str, exit: Exit) {
    bench.rank_exits(job, 0, exit, None);
    bench.pass(400 * SECOND);
}

#[test]
fn a_final_code_ends_the_job_at_once_and_says_by_which_rule() {
    let mut bench = Bench::new(&["a"]);
    let rules = ["exit codes 130: restart", "exit codes 1-127: fail"];
    bench.submit("one", ruled(1, &rules));
    fails(&mut bench, "one", Exit::Signal(2));
    assert_eq!(
        bench.job("one").phase,
        Phase::Running,
        "130 is 128 + SIGINT"
    );
    assert_eq!(
        bench.job("one").restarts.len(),
        1,
        "charged to restartPolicy"
    );
    fails(&mut bench, "one", Exit::Code(3));
    assert_eq!(
        told(&bench, "one"),
        (
            Phase::Failed,
            Reason::FailedByRule,
            "rank 0 on a ended with exit code 3; rule 2 (exit codes 1-127: fail)".into()
        )
    );
    let rules: Vec<_> = (bench.job("one").incidents.iter())
        .filter_map(|incident| incident.rule.as_deref())
        .collect();
    assert_eq!(
        rules,
        [
            "rule 1 (exit codes 130: restart)",
            "rule 2 (exit codes 1-127: fail)"
        ]
    );
}

#[test]
fn a_rule_has_a_budget_of_its_own_that_a_restarted_coordinator_knows() {
    let mut bench = Bench::new(&["a"]);
    let rules = ["signal SIGUSR1: restart, at most 3"];
    bench.submit("one", ruled(1, &rules));
    for _ in 0..3 {
        fails(&mut bench, "one", Exit::Signal(10));
    }
    let job = bench.job("one");
    assert_eq!((job.phase, job.restarts.len()), (Phase::Running, 0));
    assert_eq!(job.rule_restarts[&0].count, 3);
    bench.restart_coordinator();
    bench.connect("a");
    bench.pass(20 * SECOND);
    // What no rule matches is charged as ever.
    fails(&mut bench, "one", Exit::Code(1));
    assert_eq!(bench.job("one").restarts.len(), 1);
    fails(&mut bench, "one", Exit::Signal(10));
    let (phase, reason, message) = told(&bench, "one");
    assert_eq!((phase, reason), (Phase::Failed, Reason::RestartBudgetSpent));
    let spent = "rank 0 on a ended with signal 10 (SIGUSR1); rule 1 (signal SIGUSR1: restart, at most 3) allows no more restarts";
    assert!(message.starts_with(spent), "{message}");
}

#[test]
fn restarts_of_a_rule_wait_longer_each_time_and_tell_of_a_job_that_cannot_start() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("one", ruled(1, &["failure: restart, at most 9 in 24h"]));
    let mut waits = Vec::new();
    for _ in 0..4 {
        bench.pass(10 * SECOND);
        bench.rank_exits("one", 0, Exit::Code(1), None);
        bench.pass(SECOND / 2);
        let job = bench.job("one");
        waits.push(
            job.not_before
                .map_or(0, |at| at.since(bench.now).as_secs() + 1),
        );
    }
    assert_eq!(waits, [0, 1, 2, 4]);
    let told = bench.events.iter().filter(|e| e.reason == "CrashLoop");
    assert_eq!(told.count(), 1);
    assert_eq!(bench.job("one").rule_restarts[&0].at.len(), 4);
}

#[test]
fn only_the_culprit_is_asked_about_and_node_faults_spend_nothing() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    let rules = ["exit codes 1-127: fail", "failure: restart, at most 1"];
    bench.submit("one", ruled(2, &rules));
    // Rank 0 fell because of rank 1, which was killed.
    let generation = bench.job("one").current.clone().unwrap();
    bench.rank_of_exits("one", &generation, 0, Exit::Code(1), PEER);
    bench.rank_of_exits("one", &generation, 1, Exit::Signal(9), None);
    bench.pass(400 * SECOND);
    assert_eq!(bench.job("one").phase, Phase::Running);
    assert_eq!(bench.job("one").rule_restarts[&1].count, 1);
    // A lost node is no failure of the job.
    bench.cut("a");
    bench.pass(30 * SECOND);
    let job = bench.job("one");
    assert_eq!(
        (job.phase, job.rule_restarts[&1].count),
        (Phase::Running, 1)
    );
    assert_eq!(bench.members("one"), ["b", "c"]);
}

#[test]
fn the_loss_of_a_node_ends_a_job_that_asks_for_it() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", ruled(1, &["nodeLost: fail"]));
    let node = bench.members("one")[0].to_owned();
    bench.cut(&node);
    bench.pass(30 * SECOND);
    let (phase, reason, message) = told(&bench, "one");
    assert_eq!((phase, reason), (Phase::Failed, Reason::FailedByRule));
    assert!(message.ends_with("; rule 1 (nodeLost: fail)"), "{message}");
}

#[test]
fn an_exit_may_mean_success() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", ruled(2, &["exit codes 42: succeed"]));
    bench.rank_exits("one", 1, Exit::Code(42), None);
    bench.pass(SECOND);
    assert_eq!(
        told(&bench, "one"),
        (
            Phase::Succeeded,
            Reason::Completed,
            "rank 1 on b ended with exit code 42; rule 1 (exit codes 42: succeed)".into()
        )
    );
    assert_eq!(
        bench.job("one").incidents.last().unwrap().charged,
        Charged::Nobody
    );
}

#[test]
fn one_success_is_the_job_s_and_the_others_have_a_moment_to_end() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", ruled(2, &["success of any: succeed"]));
    bench.pass(SECOND);
    bench.rank_exits("one", 1, Exit::Code(0), None);
    bench.pass(20 * SECOND);
    assert_eq!(
        told(&bench, "one"),
        (
            Phase::Running,
            Reason::Running,
            "all ranks on b ended with exit code 0, and the other members end; rule 1 (success of any: succeed)".into()
        )
    );
    // Neither a suspension nor a failure of the rest changes that, nor a new coordinator.
    bench.restart_coordinator();
    bench.connect("a");
    bench.connect("b");
    bench.pass(9 * SECOND);
    assert_eq!(bench.job("one").phase, Phase::Running);
    bench.pass(2 * SECOND);
    assert_eq!(
        told(&bench, "one"),
        (
            Phase::Succeeded,
            Reason::Completed,
            "all ranks on b ended with exit code 0; rule 1 (success of any: succeed)".into()
        )
    );
}

#[test]
fn the_rest_may_fail_once_one_has_won_and_then_nobody_waits() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", ruled(2, &["success of first: succeed"]));
    let generation = bench.job("one").current.clone().unwrap();
    bench.rank_of_exits("one", &generation, 1, Exit::Code(0), None);
    bench.pass(SECOND);
    assert_eq!(
        bench.job("one").current.as_ref().unwrap().won,
        None,
        "it is not the first"
    );
    bench.rank_of_exits("one", &generation, 0, Exit::Code(0), None);
    bench.pass(SECOND);
    assert_eq!(bench.job("one").phase, Phase::Succeeded);

    bench.submit("two", ruled(2, &["success of first: succeed"]));
    bench.pass(SECOND);
    let generation = bench.job("two").current.clone().unwrap();
    bench.rank_of_exits("two", &generation, 0, Exit::Code(0), None);
    bench.rank_of_exits("two", &generation, 1, Exit::Code(1), PEER);
    bench.pass(SECOND);
    assert_eq!(bench.job("two").phase, Phase::Succeeded);
    assert!(bench.job("two").restarts.is_empty());
}

#[test]
fn a_success_after_a_failure_does_not_count() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", ruled(2, &["success of any: succeed"]));
    bench.pass(SECOND);
    let generation = bench.job("one").current.clone().unwrap();
    let uid = bench.job("one").uid.clone();
    // The failure is heard after the success, and was before it.
    let failed_at = bench.now;
    bench.now = bench.now + SECOND;
    for (node, at, exit) in [
        ("a", bench.now, Exit::Code(0)),
        ("b", failed_at, Exit::Code(7)),
    ] {
        let agent = bench.agents.get_mut(&node.into()).unwrap();
        let run = agent.runs.get_mut(&generation.run(&uid)).unwrap();
        (run.ranks[0].exit, run.ranks[0].exited_at) = (Some(exit), Some(at));
        (run.phase, run.torchrun_exit, run.dead_at) = (RunPhase::Dead, Some(exit), Some(at));
    }
    let runs = |bench: &Bench, node: &str| {
        let agent = &bench.agents[&node.into()];
        let runs = agent.runs.values().cloned().collect();
        Input::Runs {
            session: agent.session.unwrap(),
            runs,
        }
    };
    let both = [runs(&bench, "a"), runs(&bench, "b")];
    bench.fleet.turn_all(bench.now, both);
    bench.pass(SECOND);
    let job = bench.job("one");
    assert_eq!((job.phase, job.restarts.len()), (Phase::Running, 1));
    assert_eq!(job.current.as_ref().unwrap().number, Generation(2));
}

#[test]
fn a_deadline_may_be_a_success() {
    let mut bench = Bench::new(&["a"]);
    bench.submit(
        "one",
        SpecDocument {
            active_deadline_seconds: Some(60),
            ..ruled(1, &["deadline: succeed"])
        },
    );
    bench.pass(61 * SECOND);
    assert_eq!(
        told(&bench, "one"),
        (
            Phase::Succeeded,
            Reason::Completed,
            "it has had the 1m of its activeDeadlineSeconds; rule 1 (deadline: succeed)".into()
        )
    );
}
