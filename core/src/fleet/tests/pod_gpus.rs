//! The GPUs of worker pods: who holds what, by the word of the hosts' agents, and what follows.

use std::sync::Arc;

use super::{
    worker_pods::{pod, tell, with_pods},
    *,
};
use crate::{
    fleet::{
        PodNews, Standing,
        pod_plan::{Host, PodState},
        worker_pod::{PodStage, WorkerPod},
    },
    health::{Finding, Health, Remedy, Severity, Subject},
    node_report::{
        Gpu,
        holders::{Holder, Holders},
    },
};

fn holder(gpu: &str, pod: &str) -> Holder {
    let (namespace, pod) = pod.split_once('/').unwrap_or(("default", pod));
    Holder {
        gpu: gpu.into(),
        namespace: namespace.into(),
        pod: pod.into(),
    }
}

fn found(check: &str, gpu: &str, severity: Severity) -> Finding {
    Finding {
        check: check.into(),
        subject: Subject::Gpu(gpu.into()),
        severity,
        remedy: Remedy::GpuReset,
        reason: "as it says".into(),
        since_unix_us: 0,
        runs: Vec::new(),
    }
}

/// A host with `count` GPUs, `HOST-0` and so on.
fn host(name: &str, count: u32, holders: Holders, findings: Vec<Finding>) -> NodeReport {
    let gpu = |index: u32| Gpu {
        uuid: format!("{name}-{index}"),
        index,
        ..Gpu::default()
    };
    NodeReport {
        address: "127.0.0.1".into(),
        slots: 1,
        gpus: (0..count).map(gpu).collect(),
        holders,
        health: Health { findings },
        ..NodeReport::default()
    }
}

fn reports(bench: &mut Bench, node: &str, report: NodeReport) {
    let session = bench.agents[&node.into()].session.unwrap();
    bench.input(Input::Report { session, report });
    bench.obey();
}

/// The host h2 has two GPUs. The pod p2 of the job one holds h2-0, and h2-1 is a stranger's.
fn h2(findings: Vec<Finding>) -> NodeReport {
    let holders = vec![holder("h2-0", "p2"), holder("h2-1", "team-b/notebook-0")];
    host("h2", 2, Holders::Known(holders), findings)
}

fn two_pods(min: u32) -> Bench {
    let mut bench = Bench::new(&["h1", "h2"]);
    with_pods(&mut bench, (min, 2), &["p1", "p2"]);
    reports(&mut bench, "h2", h2(Vec::new()));
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("one").len(), 2);
    bench
}

#[test]
fn a_job_goes_on_without_the_pod_whose_gpu_fails() {
    let mut bench = two_pods(1);
    let sick = h2(vec![found("xid:48", "h2-0", Severity::FailNow)]);
    reports(&mut bench, "h2", sick);
    bench.pass(SECOND);
    assert_eq!(bench.members("one"), ["p1.default.pod"]);
    let job = bench.job("one");
    let last = job.incidents.last().unwrap();
    assert_eq!(
        (last.cause, last.charged),
        (Cause::NodeUnhealthy, Charged::Node)
    );
    let why = "p2.default.pod is unhealthy: xid:48: as it says (h2-0 on h2)";
    assert_eq!(last.message, why);
    assert_eq!(job.restarts.len(), 0);
    // It is the word of the host's own agent, and not that of a pod.
    let marks = &bench.stored_nodes[&"h2".into()].marks;
    assert_eq!((marks.len(), marks[0].standing), (1, Standing::Node));
    // Nothing new is placed there, and new pods are kept from the host.
    let view = |node: &str| bench.fleet.node_view(&node.into()).unwrap();
    let why = view("p2.default.pod").no_new_work.unwrap();
    assert!(why.contains("unhealthy GPU: xid:48"), "{why}");
    assert_eq!(
        PodState::of(Some(&view("p2.default.pod"))),
        PodState::Unhealthy
    );
    assert_eq!(
        PodState::of(Some(&view("p1.default.pod"))),
        PodState::Healthy
    );
    assert_eq!(Host::of(&view("h2")), Host::NoNewPods);
    assert_eq!(Host::of(&view("h1")), Host::Fit);
}

#[test]
fn a_sick_gpu_of_a_neighbour_disturbs_nobody() {
    for severity in [Severity::FailNow, Severity::Drain] {
        let mut bench = two_pods(1);
        let before = bench.job("one").current.clone();
        reports(
            &mut bench,
            "h2",
            h2(vec![found("xid:48", "h2-1", severity)]),
        );
        bench.pass(60 * SECOND);
        assert_eq!(bench.job("one").current, before);
        let view = bench.fleet.node_view(&"h2".into()).unwrap();
        // The stranger holds it, so that no new pod can get it.
        assert_eq!(Host::of(&view), Host::Fit);
    }
}

#[test]
fn a_job_moves_when_there_is_another_pod() {
    let mut bench = two_pods(2);
    let sick = h2(vec![found("row-remap-pending", "h2-0", Severity::Drain)]);
    reports(&mut bench, "h2", sick);
    bench.pass(60 * SECOND);
    let members = ["p1.default.pod", "p2.default.pod"];
    assert_eq!(bench.members("one"), members, "there is no room elsewhere");
    bench.connect("h3");
    tell(&mut bench, pod("p3", &"u1".into(), "h3"));
    bench.connect("p3.default.pod");
    bench.pass(10 * SECOND);
    assert_eq!(bench.members("one"), ["p1.default.pod", "p3.default.pod"]);
    let last = bench.job("one").incidents.last().unwrap();
    assert_eq!(last.cause, Cause::NodeUnhealthy);
    assert!(last.message.contains("h2-0 on h2"), "{}", last.message);
}

/// A generation that trains hears of a fault also if its host's agent comes later than the finding.
#[test]
fn a_host_that_connects_tells_of_its_pods() {
    let mut bench = Bench::new(&["h1"]);
    with_pods(&mut bench, (1, 2), &["p1", "p2"]);
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("one").len(), 2);
    bench.connect("h2");
    assert_eq!(
        bench.members("one").len(),
        2,
        "nothing is known, and nothing guessed"
    );
    let sick = h2(vec![found("xid:48", "h2-0", Severity::FailNow)]);
    reports(&mut bench, "h2", sick);
    bench.pass(SECOND);
    assert_eq!(bench.members("one"), ["p1.default.pod"]);
}

#[test]
fn what_a_pod_holds_is_shown_with_its_job_and_its_node() {
    let mut bench = two_pods(1);
    let view = bench.fleet.job_view(&"u1".into()).unwrap();
    let places: Vec<_> = view
        .members
        .iter()
        .map(|member| (member.host.clone().unwrap(), member.gpus.clone()))
        .collect();
    let none: Vec<String> = Vec::new();
    assert_eq!(
        places,
        [("h1".into(), none), ("h2".into(), vec!["h2-0".into()])]
    );
    let note = found("xid:31", "h2-0", Severity::Note);
    reports(&mut bench, "h2", h2(vec![note.clone()]));
    let node = bench.fleet.node_view(&"p2.default.pod".into()).unwrap();
    let place = node.place.unwrap();
    assert_eq!((place.host, place.findings), ("h2".into(), vec![note]));
    let gpus: Vec<String> = place.gpus.into_iter().map(|gpu| gpu.uuid).collect();
    assert_eq!(gpus, ["h2-0"]);
}

#[test]
fn an_xid_is_told_to_the_job_that_holds_the_gpu() {
    let mut bench = two_pods(1);
    let before = bench.job("one").current.clone();
    let xids = |gpus: &[&str]| {
        let note = |gpu: &&str| found("xid:31", gpu, Severity::Note);
        h2(gpus.iter().map(note).collect())
    };
    let told = |bench: &Bench| -> Vec<(String, Option<NodeName>)> {
        let of_job = bench.events.iter().filter(|event| event.reason == "Xid");
        assert!(
            of_job
                .clone()
                .all(|event| event.job.as_ref().unwrap().0 == "u1".into())
        );
        of_job
            .map(|event| (event.message.clone(), event.node.clone()))
            .collect()
    };
    reports(&mut bench, "h2", xids(&["h2-1"]));
    assert_eq!(told(&bench), [], "it is the neighbour's");
    reports(&mut bench, "h2", xids(&["h2-1", "h2-0"]));
    reports(&mut bench, "h2", xids(&["h2-0"]));
    let message = "p2.default.pod: xid:31: as it says (h2-0 on h2)".to_owned();
    assert_eq!(told(&bench), [(message, Some("h2".into()))]);
    assert_eq!(bench.job("one").current, before);
}

/// Before Kubernetes 1.34 a kubelet names pods that are over.
#[test]
fn a_pod_that_is_over_holds_nothing() {
    let mut bench = Bench::new(&["h2"]);
    let uid = with_pods(&mut bench, (1, 1), &[]);
    reports(&mut bench, "h2", h2(Vec::new()));
    submit_gpus(&mut bench, 1);
    assert_eq!(bench.job("gpus").reason, Reason::BelowMinimum);
    let ended = WorkerPod {
        stage: PodStage::Ended,
        ..pod("p2", &uid, "h2")
    };
    tell(&mut bench, ended);
    bench.pass(SECOND);
    let job = bench.job("gpus");
    assert_eq!(job.current.as_ref().unwrap().members[0].gpus, ["h2-0"]);
}

/// A job that needs so many GPUs of one node.
fn submit_gpus(bench: &mut Bench, gpus: i64) {
    let spec = SpecDocument {
        gpus_per_node: Some(gpus),
        ..document(1, 1, 1)
    };
    bench.submit("gpus", spec);
}

#[test]
fn a_gpu_that_a_pod_holds_is_not_free() {
    let mut bench = Bench::new(&["h1"]);
    let held = |pods: &[(&str, &str)]| {
        let holders = pods.iter().map(|(gpu, pod)| holder(gpu, pod)).collect();
        host("h1", 4, Holders::Known(holders), Vec::new())
    };
    let most = [
        ("h1-0", "notebook-0"),
        ("h1-1", "notebook-0"),
        ("h1-2", "team-b/secret-1"),
    ];
    reports(&mut bench, "h1", held(&most));
    submit_gpus(&mut bench, 2);
    let message = bench.job("gpus").message.clone();
    let why = "h1 1 of 2 GPUs free; 3 held by pods: default/notebook-0, 1 of other namespaces";
    assert!(message.ends_with(why), "{message}");
    let unknown = host("h1", 4, Holders::Unknown, Vec::new());
    reports(&mut bench, "h1", unknown);
    bench.pass(SECOND);
    let message = bench.job("gpus").message.clone();
    let why = "h1 0 of 2 GPUs free; its kubelet does not say which pods hold GPUs";
    assert!(message.ends_with(why), "{message}");
    reports(&mut bench, "h1", held(&most[..2]));
    bench.pass(SECOND);
    let job = bench.job("gpus");
    assert_eq!(
        job.current.as_ref().unwrap().members[0].gpus,
        ["h1-2", "h1-3"]
    );
}

#[test]
fn a_node_whose_agent_only_looks_at_it_gets_no_work() {
    let mut bench = Bench::new(&["h1"]);
    let senses = |senses_only| NodeReport {
        senses_only,
        ..host("h1", 4, Holders::NotAsked, Vec::new())
    };
    reports(&mut bench, "h1", senses(true));
    submit_gpus(&mut bench, 1);
    let message = bench.job("gpus").message.clone();
    assert!(
        message.ends_with("h1 takes no work: its agent only looks at it"),
        "{message}"
    );
    // It is fit all the same, and worker pods may go there.
    assert_eq!(
        Host::of(&bench.fleet.node_view(&"h1".into()).unwrap()),
        Host::Fit
    );
    reports(&mut bench, "h1", senses(false));
    bench.pass(SECOND);
    assert_eq!(bench.members("gpus"), ["h1"]);
}

#[test]
fn a_pod_that_was_read_late_is_joined_then() {
    let mut bench = Bench::new(&["h1", "h2"]);
    let uid = with_pods(&mut bench, (1, 2), &["p1"]);
    let sick = h2(vec![found("xid:48", "h2-0", Severity::FailNow)]);
    reports(&mut bench, "h2", sick);
    bench.connect("p2.default.pod");
    let known = pod("p2", &uid, "h2");
    bench.input(Input::Pods(PodNews::Applied(known.node(), Arc::new(known))));
    bench.obey();
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("one"), ["p1.default.pod"]);
}
