//! What is told of a job that has too few nodes.

use super::{
    worker_pods::{pod, tell, with_pods},
    *,
};
use crate::fleet::{
    PodNews,
    shortage::Shortage,
    worker_pod::{PodStage, PodWait, WorkerPod},
};

/// What the job lacks, as the status of its object has it; else its reason.
fn word(bench: &Bench, uid: &JobUid) -> String {
    let view = bench.fleet.job_view(uid).unwrap();
    let reason = format!("{:?}", view.record.reason);
    view.shortage
        .map_or(reason, |shortage| shortage.to_string())
}

/// The reasons of the warnings that were told of it.
fn told(bench: &Bench) -> Vec<&str> {
    let warnings = bench.events.iter().filter(|event| event.warning);
    warnings.map(|event| event.reason.as_ref()).collect()
}

fn refused(bench: &mut Bench, uid: &JobUid, why: Option<&str>) {
    let why = why.map(str::to_owned);
    bench.input(Input::Pods(PodNews::Refused(uid.clone(), why)));
}

fn waits(name: &str, uid: &JobUid, reason: &str, message: &str) -> WorkerPod {
    WorkerPod {
        stage: PodStage::Waiting,
        waits: Some(PodWait {
            reason: reason.into(),
            message: message.into(),
        }),
        ..pod(name, uid, "h2")
    }
}

#[test]
fn the_cause_is_the_reason_and_is_told_when_it_becomes_known_and_when_it_changes() {
    let mut bench = Bench::new(&["h1"]);
    let uid = with_pods(&mut bench, (2, 2), &[]);
    assert_eq!(told(&bench), ["BelowMinimum"]);
    let quota = "exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2";
    refused(&mut bench, &uid, Some(quota));
    assert_eq!(word(&bench, &uid), "QuotaExceeded");
    assert_eq!(told(&bench), ["BelowMinimum", "QuotaExceeded"]);
    let event = bench.events.last().unwrap();
    assert!(event.message.contains(quota), "{}", event.message);
    // The same again, with other numbers, is no news.
    refused(&mut bench, &uid, Some("exceeded quota: few, used: pods=1"));
    assert_eq!(told(&bench).len(), 2);
    refused(&mut bench, &uid, None);
    tell(&mut bench, waits("p1", &uid, "ContainerCreating", ""));
    assert_eq!(word(&bench, &uid), "PodsStarting");
    assert_eq!(told(&bench).len(), 2, "that is so at every start");
    tell(&mut bench, waits("p1", &uid, "ErrImagePull", "no such tag"));
    tell(
        &mut bench,
        waits("p1", &uid, "ImagePullBackOff", "no such tag"),
    );
    assert_eq!(word(&bench, &uid), "ImagePull");
    assert_eq!(told(&bench)[2..], ["ImagePull"]);
    let scheduler = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.";
    tell(&mut bench, waits("p1", &uid, "Unschedulable", scheduler));
    assert_eq!(told(&bench)[3..], ["TooFewGpus"]);
    assert_eq!(word(&bench, &uid), "TooFewGpus");
}

#[test]
fn a_job_without_a_template_names_what_holds_for_most_nodes() {
    let mut bench = Bench::new(&["n1"]);
    bench.submit("one", document(2, 2, 2));
    let job = bench.job("one").uid.clone();
    assert_eq!(word(&bench, &job), Shortage::NoNodes.to_string());
    bench.connect("n2");
    bench.pass(60 * SECOND);
    assert_eq!(word(&bench, &job), "Running");
}

#[test]
fn a_job_that_trains_with_fewer_says_which_node_is_cordoned() {
    let mut bench = Bench::new(&["h1", "h2", "h3"]);
    bench.submit("one", document(2, 3, 3));
    let job = bench.job("one").uid.clone();
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("one").len(), 3);
    let (node, reason) = ("h3".into(), "three jobs failed there".into());
    bench.request(Request::Cordon { node, reason });
    bench.cut("h3");
    bench.pass(30 * SECOND);
    bench.connect("h3");
    bench.pass(30 * SECOND);
    assert_eq!(bench.members("one"), ["h1", "h2"]);
    let message = bench.job("one").message.clone();
    assert!(
        message.contains("2 of 3 wanted nodes; h3 is cordoned by ")
            && message.contains(": three jobs failed there"),
        "{message}"
    );
    assert_eq!(word(&bench, &job), "NodesCordoned");
    let so_often = told(&bench);
    let so_often = so_often.iter().filter(|reason| **reason == "NodesCordoned");
    assert_eq!(so_often.count(), 1);
}
