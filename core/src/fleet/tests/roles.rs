//! Jobs whose nodes run different things.

use super::{agent::PORT, *};
use crate::{
    run::{Assignment, Endpoint, Start, Target},
    spec::{RoleDocument, RuleDocument},
};

/// A chief, workers of which one is enough, and a parameter server.
fn document(workers: i64) -> SpecDocument {
    let role = |name: &str, replicas| RoleDocument {
        name: name.into(),
        replicas: Some(replicas),
        args: vec![format!("{name}.py")],
        ..RoleDocument::default()
    };
    SpecDocument {
        framework: Some("tensorflow".into()),
        roles: vec![
            role("chief", 1),
            RoleDocument {
                min_replicas: Some(1),
                max_replicas: Some(workers + 1),
                ..role("worker", workers)
            },
            role("ps", 1),
        ],
        scale_up_cooldown: Some("0s".into()),
        ..SpecDocument::default()
    }
}

/// What a node is told to run now.
fn told(bench: &Bench, node: &str) -> (Assignment, Start) {
    let told = &bench.agents[&node.into()].told;
    let running = told.iter().find_map(|wanted| match &wanted.target {
        Target::Running(assignment, start) => Some((*assignment.clone(), start.clone())),
        _ => None,
    });
    running.unwrap()
}

fn role_of(bench: &Bench, node: &str) -> String {
    let (assignment, _) = told(bench, node);
    let place = assignment.layout.place(assignment.node_rank).unwrap();
    assert_eq!(assignment.args, [format!("{}.py", place.share.name)]);
    format!("{}-{}", place.share.name, place.index)
}

#[test]
fn each_node_runs_what_its_role_says_and_knows_the_others() {
    let mut bench = Bench::new(&["a", "b", "c", "d"]);
    bench.submit("digits", document(2));
    assert_eq!(bench.job("digits").phase, Phase::Running);
    let roles = ["a", "b", "c", "d"].map(|node| role_of(&bench, node));
    assert_eq!(roles, ["chief-0", "worker-0", "worker-1", "ps-0"]);
    let (assignment, start) = told(&bench, "c");
    assert_eq!((assignment.first_rank, assignment.world_size), (2, 4));
    let peer = Endpoint {
        host: "127.0.0.1".into(),
        port: PORT,
    };
    assert_eq!(start.peers, vec![peer; 4]);
}

#[test]
fn nothing_starts_before_every_member_has_told_its_port() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.agents.get_mut(&"b".into()).unwrap().keeps_port = true;
    bench.submit("digits", document(1));
    let job = bench.job("digits");
    assert!(!job.current.as_ref().unwrap().started);
    let b = bench.agents.get_mut(&"b".into()).unwrap();
    b.keeps_port = false;
    b.runs.values_mut().for_each(|run| run.port = Some(PORT));
    let (session, runs) = (b.session.unwrap(), b.runs.values().cloned().collect());
    bench.input(Input::Runs { session, runs });
    bench.obey();
    assert!(bench.job("digits").current.as_ref().unwrap().started);
}

#[test]
fn a_lost_chief_is_replaced_and_the_others_keep_their_roles() {
    let mut bench = Bench::new(&["a", "b", "c", "d"]);
    bench.submit("digits", document(1));
    assert_eq!(bench.members("digits"), ["a", "b", "c"]);
    bench.cut("a");
    bench.pass(30 * SECOND);
    assert_eq!(bench.members("digits"), ["d", "b", "c"]);
    assert_eq!(role_of(&bench, "b"), "worker-0");
}

#[test]
fn only_the_elastic_role_grows_and_shrinks() {
    let mut bench = Bench::new(&["a", "b", "c", "d", "e"]);
    bench.submit("digits", document(1));
    let scaled = |nodes| Request::Scale {
        name: JobName {
            namespace: "default".into(),
            name: "digits".into(),
        },
        nodes,
    };
    bench.request(scaled(4));
    bench.pass(SECOND);
    let roles = ["a", "b", "d", "c"].map(|node| role_of(&bench, node));
    assert_eq!(roles, ["chief-0", "worker-0", "worker-1", "ps-0"]);
    let refused = bench.request(scaled(5));
    assert!(matches!(refused, Answer::Refused(_)), "{refused:?}");
    bench.request(scaled(3));
    bench.pass(SECOND);
    assert_eq!(bench.members("digits"), ["a", "b", "c"]);
}

#[test]
fn a_job_is_over_when_only_its_services_still_run() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(1));
    bench.rank_exits("digits", 0, Exit::Code(0), None);
    bench.pass(SECOND);
    assert_eq!(
        bench.job("digits").phase,
        Phase::Running,
        "a worker still runs"
    );
    bench.rank_exits("digits", 1, Exit::Code(0), None);
    bench.pass(10 * SECOND);
    let job = bench.job("digits");
    assert_eq!(job.phase, Phase::Succeeded, "{}", job.message);
    assert!(
        job.unproven_generations().next().is_none(),
        "the service was stopped"
    );
}

#[test]
fn a_service_that_fails_breaks_the_generation() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(1));
    bench.rank_exits("digits", 2, Exit::Code(1), None);
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!((job.phase, job.last_generation.0), (Phase::Running, 2));
    let incident = job.incidents.last().unwrap();
    assert_eq!(
        (incident.cause, incident.charged),
        (Cause::WorkerFailed, Charged::Job)
    );
}

fn ruled(rules: &[&str]) -> SpecDocument {
    let read = |rule: &&str| RuleDocument::read(rule).unwrap();
    SpecDocument {
        rules: rules.iter().map(read).collect(),
        ..document(2)
    }
}

fn end(bench: &Bench) -> (Phase, String) {
    let job = bench.job("digits");
    (job.phase, job.message.clone())
}

#[test]
fn a_rule_may_mean_the_failures_of_one_role() {
    let mut bench = Bench::new(&["a", "b", "c", "d"]);
    let rules = [
        "exit codes 1-127 in role ps: fail",
        "failure in role worker: restart, at most 1",
        "failure: fail",
    ];
    bench.submit("digits", ruled(&rules));
    bench.rank_exits("digits", 1, Exit::Code(7), None);
    bench.pass(400 * SECOND);
    assert_eq!(
        bench.job("digits").phase,
        Phase::Running,
        "{:?}",
        end(&bench)
    );
    bench.rank_exits("digits", 3, Exit::Code(7), None);
    bench.pass(400 * SECOND);
    let (phase, message) = end(&bench);
    assert_eq!(phase, Phase::Failed);
    assert!(
        message.ends_with("rule 1 (exit codes 1-127 in role ps: fail)"),
        "{message}"
    );
}

#[test]
fn the_loss_of_one_role_may_end_the_job() {
    for (cut, phase) in [("a", Phase::Failed), ("b", Phase::Running)] {
        let mut bench = Bench::new(&["a", "b", "c", "d", "e"]);
        bench.submit("digits", ruled(&["nodeLost in role chief: fail"]));
        assert_eq!(role_of(&bench, "a"), "chief-0");
        bench.cut(cut);
        bench.pass(60 * SECOND);
        assert_eq!(end(&bench).0, phase, "{cut}: {:?}", end(&bench));
    }
}

#[test]
fn the_success_of_a_role_may_be_the_jobs() {
    // Ranks: chief 0, worker 1 and 2, ps 3.
    for (rule, ends, won) in [
        ("success of first in role worker: succeed", &[2][..], false),
        ("success of first in role worker: succeed", &[1], true),
        ("success of first: succeed", &[1, 2], false),
        ("success of any in role chief: succeed", &[1, 2], false),
        ("success of any in role worker: succeed", &[2], true),
        ("success of all in role worker: succeed", &[2], false),
        ("success of all in role worker: succeed", &[1, 2], true),
    ] {
        let mut bench = Bench::new(&["a", "b", "c", "d"]);
        bench.submit("digits", ruled(&[rule]));
        for rank in ends {
            bench.rank_exits("digits", *rank, Exit::Code(0), None);
        }
        bench.pass(90 * SECOND);
        let expected = if won {
            Phase::Succeeded
        } else {
            Phase::Running
        };
        assert_eq!(
            end(&bench).0,
            expected,
            "{rule} {ends:?}: {:?}",
            end(&bench)
        );
    }
}
