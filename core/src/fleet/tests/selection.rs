//! Jobs that choose their nodes, and what a plan says of a job.

use super::*;
use crate::{
    fleet::{
        plan::{Outcome, Plan, Wait},
        shortage::Shortage,
    },
    node_report::{
        Gpu,
        taint::{Taint, UNSCHEDULABLE},
    },
    spec::Toleration,
};

/// Nodes with one label `pool` and so many GPUs.
pub(super) fn fleet(nodes: &[(&str, &str, u32)]) -> Bench {
    let names: Vec<&str> = nodes.iter().map(|(name, ..)| *name).collect();
    let mut bench = Bench::new(&names);
    for (name, pool, gpus) in nodes {
        reports(&mut bench, name, pool, *gpus);
    }
    bench
}

fn reports(bench: &mut Bench, name: &str, pool: &str, gpus: u32) {
    let gpu = |index: u32| Gpu {
        uuid: format!("{name}-{index}"),
        index,
        ..Gpu::default()
    };
    let report = NodeReport {
        address: "127.0.0.1".into(),
        slots: 4,
        labels: [("pool".to_owned(), pool.to_owned())].into(),
        gpus: (0..gpus).map(gpu).collect(),
        ..NodeReport::default()
    };
    let session = bench.agents[&name.into()].session.unwrap();
    bench.input(Input::Report { session, report });
    bench.obey();
}

fn of_pool(pool: &str, nodes: i64) -> SpecDocument {
    SpecDocument {
        node_selector: [("pool".to_owned(), pool.to_owned())].into(),
        ..document(nodes, nodes, nodes)
    }
}

fn ask(bench: &mut Bench, spec: SpecDocument) -> Answer {
    let (name, spec) = JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: "planned".into(),
            namespace: None,
        },
        spec,
    }
    .check()
    .unwrap();
    bench.request(Request::Submit {
        name,
        spec,
        uid: "u-planned".into(),
        request_id: String::new(),
        validate_only: true,
    })
}

pub(super) fn plan(bench: &mut Bench, spec: SpecDocument) -> Plan {
    let answer = ask(bench, spec);
    match answer {
        Answer::Planned { plan, .. } => *plan,
        other => panic!("{other:?}"),
    }
}

fn starts_on(plan: &Plan) -> Vec<&str> {
    match &plan.outcome {
        Outcome::Starts(shares) => shares.iter().map(|share| share.node.as_str()).collect(),
        Outcome::Waits(wait) => panic!("{wait:?}"),
    }
}

pub(super) fn wait(plan: Plan) -> Wait {
    match plan.outcome {
        Outcome::Waits(wait) => wait,
        Outcome::Starts(shares) => panic!("{shares:?}"),
    }
}

#[test]
fn a_job_gets_the_nodes_that_it_selects() {
    let mut bench = fleet(&[("a", "x", 0), ("b", "y", 0), ("c", "x", 0), ("d", "y", 0)]);
    bench.submit("digits", of_pool("y", 2));
    assert_eq!(bench.members("digits"), ["b", "d"]);
    bench.submit(
        "named",
        SpecDocument {
            node_list: vec!["a".into(), "c".into(), "d".into()],
            exclude_nodes: vec!["c".into()],
            ..document(2, 2, 2)
        },
    );
    let mut named = bench.members("named");
    named.sort_unstable();
    assert_eq!(named, ["a", "d"]);
}

#[test]
fn a_label_that_changes_moves_no_job() {
    let mut bench = fleet(&[("a", "x", 0), ("b", "y", 0)]);
    let elastic = SpecDocument {
        max_replicas: Some(2),
        replicas: Some(2),
        min_replicas: Some(1),
        ..of_pool("x", 1)
    };
    bench.submit("digits", elastic);
    assert_eq!(bench.members("digits"), ["a"]);
    reports(&mut bench, "a", "y", 0);
    bench.pass(120 * SECOND);
    assert_eq!(bench.job("digits").last_generation.0, 1);
    // It still grows, and keeps the node that it has.
    reports(&mut bench, "b", "x", 0);
    bench.pass(120 * SECOND);
    assert_eq!(bench.members("digits"), ["a", "b"]);
    let job = bench.job("digits");
    assert_eq!((job.last_generation.0, job.phase), (2, Phase::Running));
    bench.rank_exits("digits", 0, Exit::Code(1), None);
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("digits"), ["a", "b"]);
    bench.cut("b");
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("digits"), ["a"]);
}

fn tainted(bench: &mut Bench, name: &str, gpus: u32, taint: &str) {
    reports(bench, name, "x", gpus);
    let session = bench.agents[&name.into()].session.unwrap();
    let report = NodeReport {
        taints: vec![Taint::read(taint).unwrap()],
        ..(*bench.fleet.nodes[&name.into()].report).clone()
    };
    bench.input(Input::Report { session, report });
    bench.obey();
}

fn tolerating(toleration: &str) -> SpecDocument {
    SpecDocument {
        tolerations: vec![Toleration::read(toleration)],
        ..document(1, 1, 1)
    }
}

#[test]
fn a_taint_keeps_away_who_does_not_tolerate_it() {
    let mut bench = fleet(&[("a", "x", 0), ("b", "x", 0), ("c", "x", 0)]);
    tainted(&mut bench, "a", 0, "dedicated=team-a:NoSchedule");
    tainted(&mut bench, "b", 0, "old:PreferNoSchedule");
    // One that would rather have no jobs comes last.
    bench.submit("digits", document(1, 1, 1));
    assert_eq!(bench.members("digits"), ["c"]);
    bench.submit("others", document(1, 1, 1));
    assert_eq!(bench.members("others"), ["c"]);
    let wait = wait(plan(&mut bench, document(3, 3, 3)));
    let said: Vec<&str> = wait.excluded.iter().map(|one| one.2.as_str()).collect();
    assert_eq!(
        said,
        ["has taint dedicated=team-a:NoSchedule, which the job does not tolerate"]
    );
    bench.submit("tolerates", tolerating("dedicated=team-a"));
    bench.submit(
        "team",
        SpecDocument {
            node_list: vec!["a".into()],
            ..tolerating("dedicated")
        },
    );
    assert_eq!(bench.members("team"), ["a"]);
    // A taint that comes later moves nobody.
    tainted(&mut bench, "c", 0, "dedicated=team-b:NoExecute");
    bench.rank_exits("digits", 0, Exit::Code(1), None);
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("digits"), ["c"]);
    bench.submit("last", document(1, 1, 1));
    assert_eq!(bench.members("last"), ["b"]);
}

#[test]
fn nodes_that_are_tainted_for_their_gpus_are_for_jobs_with_gpus() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 0)]);
    tainted(&mut bench, "a", 2, "nvidia.com/gpu=present:NoSchedule");
    let cpus = SpecDocument {
        gpus_per_node: Some(0),
        ..document(2, 2, 2)
    };
    assert_eq!(wait(plan(&mut bench, cpus)).excluded[0].0, "a".into());
    let gpus = SpecDocument {
        gpus_per_node: Some(2),
        ..document(1, 1, 1)
    };
    assert_eq!(starts_on(&plan(&mut bench, gpus)), ["a"]);
}

/// The search that begins with the nodes that have fewest free GPUs does not end at one that would rather have no job.
#[test]
fn a_node_that_would_rather_have_no_job_is_not_taken_for_its_few_gpus() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 4)]);
    tainted(&mut bench, "a", 2, "old:PreferNoSchedule");
    let gpus = |gpus| SpecDocument {
        gpus_per_node: Some(gpus),
        ..document(1, 1, 1)
    };
    bench.submit("digits", gpus(2));
    assert_eq!(bench.members("digits"), ["b"]);
    bench.submit("all", gpus(4));
    bench.submit("more", gpus(2));
    bench.submit("last", gpus(2));
    let nodes = ["more", "last"].map(|job| bench.members(job).concat());
    assert_eq!(nodes, ["b", "a"]);
}

/// A torch job that does not say how many GPUs it takes does not count those that it may not have.
#[test]
fn gpus_of_tainted_nodes_are_none_that_a_job_takes_by_default() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 0)]);
    tainted(&mut bench, "a", 2, "dedicated=team-a:NoSchedule");
    let open = SpecDocument {
        gpus_per_node: None,
        ..document(1, 1, 1)
    };
    bench.submit("digits", open);
    assert_eq!(bench.members("digits"), ["b"]);
    let two = SpecDocument {
        gpus_per_node: Some(2),
        ..document(1, 1, 1)
    };
    let wait = wait(plan(&mut bench, two));
    assert_eq!(wait.excluded[0].1, Shortage::NodesTainted);
}

#[test]
fn a_job_that_names_cordons_may_have_cordoned_nodes() {
    let mut bench = fleet(&[("a", "x", 0)]);
    bench.request(Request::Cordon {
        node: "a".into(),
        reason: "fan".into(),
    });
    assert!(matches!(
        plan(&mut bench, document(1, 1, 1)).outcome,
        Outcome::Waits(_)
    ));
    let all = plan(&mut bench, tolerating(""));
    assert!(
        matches!(all.outcome, Outcome::Waits(_)),
        "everything is no cordon"
    );
    bench.submit("check", tolerating(UNSCHEDULABLE));
    assert_eq!(bench.members("check"), ["a"]);
}

#[test]
fn preferred_nodes_come_after_those_that_the_job_has() {
    let mut bench = fleet(&[("a", "x", 0), ("b", "y", 0), ("c", "y", 0)]);
    let affinity = serde_json::json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 5, "preference": {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["y"]}]}}]}});
    let spec = SpecDocument {
        affinity: serde_json::from_value(affinity).unwrap(),
        ..document(1, 1, 1)
    };
    bench.submit("digits", spec.clone());
    assert_eq!(bench.members("digits"), ["b"]);
    // It is not the preferred one any more, and has the job.
    reports(&mut bench, "b", "x", 0);
    bench.rank_exits("digits", 0, Exit::Code(1), None);
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("digits"), ["b"]);
    assert_eq!(starts_on(&plan(&mut bench, spec)), ["c"]);
}

#[test]
fn a_job_that_selects_too_few_nodes_says_so() {
    let mut bench = fleet(&[("a", "x", 0), ("b", "y", 0), ("c", "y", 0)]);
    bench.submit("digits", of_pool("x", 2));
    let message = &bench.job("digits").message;
    assert!(
        message.contains("1 of at least 2 nodes available: b has pool=y, not x"),
        "{message}"
    );
    let wait = wait(plan(&mut bench, of_pool("x", 2)));
    assert_eq!(wait.shortage, Shortage::SelectorMatchesTooFew);
    assert!(!wait.passes);
}

#[test]
fn a_plan_is_what_would_happen_and_changes_nothing() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 2), ("c", "y", 2)]);
    let with_gpus = |nodes: i64, gpus: i64| SpecDocument {
        gpus_per_node: Some(gpus),
        ..of_pool("x", nodes)
    };
    let before = (bench.events.len(), bench.fleet.jobs.clone());
    assert_eq!(starts_on(&plan(&mut bench, with_gpus(2, 2))), ["a", "b"]);
    assert_eq!((bench.events.len(), bench.fleet.jobs.clone()), before);
    let suspended = SpecDocument {
        suspend: Some(true),
        ..with_gpus(2, 2)
    };
    let held = plan(&mut bench, suspended);
    assert_eq!(
        held.held_back,
        Some(crate::fleet::held_back::HeldBack::Suspended)
    );
    // Three nodes have two GPUs, and none has four.
    let too_few = SpecDocument {
        proc_per_node: Some(4),
        ..of_pool("x", 1)
    };
    assert_eq!(plan(&mut bench, too_few).default_gpus, Some(0));
    bench.submit("digits", with_gpus(2, 2));
    assert_eq!(bench.members("digits"), ["a", "b"], "as planned");

    // They are taken now, and what is taken comes back.
    let taken = wait(plan(&mut bench, with_gpus(2, 1)));
    assert_eq!((taken.need, taken.have, taken.passes), (2, 0, true));
    assert_eq!(taken.shortage, Shortage::TooFewGpus);
    let said: Vec<(&str, &str)> = taken
        .excluded
        .iter()
        .map(|(node, _, message)| (node.as_str(), message.as_str()))
        .collect();
    assert_eq!(
        said,
        [
            ("a", "0 of 1 GPUs free"),
            ("b", "0 of 1 GPUs free"),
            ("c", "has pool=y, not x")
        ],
        "first those that the job selects"
    );
    // No end of another job makes a node larger.
    assert!(!wait(plan(&mut bench, with_gpus(2, 3))).passes);

    // A job that does not say how many it takes.
    let open = SpecDocument {
        proc_per_node: Some(2),
        ..of_pool("y", 1)
    };
    let open = plan(&mut bench, open);
    assert_eq!(open.default_gpus, Some(2));
    assert_eq!(starts_on(&open), ["c"]);
}

#[test]
fn a_job_of_one_pool_moves_as_a_whole() {
    let mut bench = fleet(&[("a", "x", 0), ("b", "y", 0), ("c", "x", 0), ("d", "y", 0)]);
    let spec = SpecDocument {
        required_topology: Some("pool".into()),
        ..document(2, 2, 2)
    };
    bench.submit("digits", spec.clone());
    assert_eq!(bench.members("digits"), ["a", "c"]);
    bench.cut("c");
    bench.pass(120 * SECOND);
    assert_eq!(bench.members("digits"), ["b", "d"]);
    // Three nodes are left, and no pool has three.
    let three = SpecDocument {
        required_topology: Some("pool".into()),
        ..document(3, 3, 3)
    };
    let wait = wait(plan(&mut bench, three));
    assert_eq!(wait.shortage, Shortage::TopologyTooSmall);
    assert!(!wait.passes);
}

#[test]
fn a_caller_may_ask_so_often_and_others_still_may() {
    let mut bench = fleet(&[("n1", "a", 0)]);
    let often = |bench: &mut Bench| {
        let mut asked = 0;
        loop {
            match ask(bench, of_pool("a", 1)) {
                Answer::Planned { .. } => asked += 1,
                Answer::Refused(refusal) => return (asked, refusal.to_string()),
                other => panic!("{other:?}"),
            }
        }
    };
    let said = |caller: &str| {
        format!(
            "{caller} has asked 200 times at once what would become of a job, and may ask 5 times in a second; try again in 200ms"
        )
    };
    assert_eq!(often(&mut bench), (200, said("root")));
    bench.actor = Actor::User { name: "ada".into() };
    assert_eq!(often(&mut bench), (200, said("ada")));
    bench.pass(SECOND);
    assert_eq!(often(&mut bench).0, 5);
    // Who submits is not kept from it.
    assert!(matches!(
        bench.submit("digits", of_pool("a", 1)),
        Answer::Job { .. }
    ));
}
