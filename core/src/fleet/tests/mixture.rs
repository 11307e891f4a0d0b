//! Nodes that do not go together. They are taken with a warning or not at all, as the job asks.

use super::*;
use crate::{
    node_report::{Gpu, gpu::Driver},
    spec::RoleDocument,
};

/// The node reports one GPU, with a driver for this CUDA version.
fn reports(bench: &mut Bench, node: &str, cuda: &str) {
    let gpu = Gpu {
        uuid: format!("{node}-0"),
        model: "H100".into(),
        ..Gpu::default()
    };
    let report = NodeReport {
        address: "127.0.0.1".into(),
        slots: 1,
        gpus: vec![gpu],
        driver: Some(Driver {
            cuda: cuda.into(),
            ..Driver::default()
        }),
        ..NodeReport::default()
    };
    let session = bench.agents[&node.into()].session.unwrap();
    bench.input(Input::Report { session, report });
    bench.obey();
}

fn mixed() -> Bench {
    let mut bench = Bench::new(&["a", "b", "c"]);
    [("a", "13.0"), ("b", "12.8"), ("c", "12.4")]
        .into_iter()
        .for_each(|(node, cuda)| reports(&mut bench, node, cuda));
    bench
}

fn spec(min: i64, mix: &str) -> SpecDocument {
    SpecDocument {
        gpus_per_node: Some(1),
        node_mix: Some(mix.into()),
        ..document(min, 3, 3)
    }
}

fn nodes(bench: &Bench) -> Vec<String> {
    bench
        .job("digits")
        .current
        .iter()
        .flat_map(|g| g.members.iter())
        .map(|member| member.node.to_string())
        .collect()
}

#[test]
fn a_mixture_is_taken_with_a_warning() {
    let mut bench = mixed();
    bench.submit("digits", spec(2, "warn"));
    assert_eq!(nodes(&bench), ["a", "b", "c"]);
    assert!(
        bench.events.iter().any(|event| event.reason == "MixedNodes"
            && event.message.contains("CUDA 12 on b and 1 more"))
    );
}

#[test]
fn a_job_that_refuses_it_takes_the_nodes_that_go_together() {
    let mut bench = mixed();
    bench.submit("digits", spec(2, "refuse"));
    assert_eq!(nodes(&bench), ["b", "c"]);
    assert!(
        !bench
            .events
            .iter()
            .any(|event| event.reason == "MixedNodes")
    );
    reports(&mut bench, "a", "12.8");
    bench.pass(60 * SECOND);
    assert_eq!(
        nodes(&bench),
        ["b", "c", "a"],
        "the third has come to be like them"
    );
}

#[test]
fn where_they_are_too_few_it_waits_and_says_what_differs() {
    let mut bench = mixed();
    bench.submit("digits", spec(3, "refuse"));
    let job = bench.job("digits");
    assert_eq!((job.phase, job.last_generation.0), (Phase::Pending, 0));
    let message =
        "2 of at least 3 nodes available: a does not go with the others (CUDA 13, not CUDA 12)";
    assert_eq!(
        (job.reason, job.message.as_str()),
        (Reason::BelowMinimum, message)
    );
}

#[test]
fn members_of_a_role_without_gpus_are_no_mixture() {
    let role = |name: &str, gpus| RoleDocument {
        name: name.into(),
        gpus_per_node: Some(gpus),
        args: vec![format!("{name}.py")],
        ..RoleDocument::default()
    };
    // Of equal kinds, the newer CUDA.
    for (mix, chief_and_ps) in [("warn", ["a", "b"]), ("refuse", ["b", "a"])] {
        let mut bench = Bench::new(&["a", "b"]);
        reports(&mut bench, "a", "12.4");
        reports(&mut bench, "b", "13.0");
        let document = SpecDocument {
            framework: Some("tensorflow".into()),
            node_mix: Some(mix.into()),
            placement: Some("spread".into()),
            roles: vec![role("chief", 1), role("ps", 0)],
            ..SpecDocument::default()
        };
        bench.submit("digits", document);
        assert_eq!(nodes(&bench), chief_and_ps, "{mix}");
        assert_eq!(bench.job("digits").phase, Phase::Running, "{mix}");
        let mixed = |event: &&Event| event.reason == "MixedNodes";
        assert_eq!(bench.events.iter().find(mixed), None, "{mix}");
    }
}
