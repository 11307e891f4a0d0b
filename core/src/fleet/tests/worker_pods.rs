//! Jobs whose workers are in pods of their own.

use std::{collections::BTreeSet, sync::Arc};

use super::*;
use crate::{
    fleet::{
        PodNews,
        pod_plan::PodState,
        worker_pod::{PodStage, PodWait, WorkerPod},
    },
    health::{Finding, Health, Remedy, Severity, Subject, TERMINATION_NOTICE},
    run::LAST_WORDS_MAX,
    spec::JobSpec,
};

/// The pod of a job in the namespace default.
pub(in crate::fleet) fn pod(name: &str, job: &JobUid, host: &str) -> WorkerPod {
    WorkerPod {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-of-{name}"),
        job: job.clone(),
        created: Timestamp(0),
        host: Some(host.into()),
        avoids: Default::default(),
        stage: PodStage::Running,
        deleting: false,
        waits: None,
    }
}

/// The pod of the job u1 on h2 goes, in this stage.
fn goes(bench: &mut Bench, name: &str, stage: PodStage) {
    let last = WorkerPod {
        stage,
        ..pod(name, &JobUid::from("u1"), "h2")
    };
    bench.input(Input::Pods(PodNews::Deleted(last.node(), Arc::new(last))));
    bench.obey();
}

pub(super) fn tell(bench: &mut Bench, pod: WorkerPod) {
    bench.input(Input::Pods(PodNews::Applied(pod.node(), Arc::new(pod))));
    bench.obey();
}

/// What the agent of a pod says when the pod is deleted.
fn told_to_end() -> Finding {
    Finding {
        check: TERMINATION_NOTICE.into(),
        subject: Subject::Node,
        severity: Severity::Drain,
        remedy: Remedy::None,
        reason: "the pod is being deleted or evicted".into(),
        since_unix_us: 0,
        runs: Vec::new(),
    }
}

/// A job with a template, and its pods on the hosts h1, h2 and so on.
pub(super) fn with_pods(bench: &mut Bench, (min, replicas): (u32, u32), pods: &[&str]) -> JobUid {
    bench.input(Input::Pods(PodNews::Listed(BTreeMap::new())));
    let (name, checked) = requests::submission("one");
    let spec = JobSpec {
        template: Some("{}".into()),
        replicas,
        min_replicas: min,
        max_replicas: replicas,
        ..checked
    };
    let uid = JobUid::from("u1");
    bench.request(Request::Submit {
        name,
        spec,
        uid: uid.clone(),
        request_id: String::new(),
        validate_only: false,
    });
    for (i, name) in pods.iter().enumerate() {
        tell(bench, pod(name, &uid, &format!("h{}", i + 1)));
        bench.connect(&format!("{name}.default.pod"));
    }
    uid
}

#[test]
fn a_job_with_a_template_gets_its_own_pods_and_nobody_else_does() {
    let mut bench = Bench::new(&["h1", "h2"]);
    let uid = with_pods(&mut bench, (2, 2), &["p1"]);
    bench.submit("two", document(1, 2, 2));
    assert_eq!(bench.members("two"), ["h1", "h2"]);
    assert_eq!(bench.job("one").reason, Reason::BelowMinimum);
    // Whoever has a namespace can make a pod with any label, but only there.
    let forged = WorkerPod {
        namespace: "team-b".into(),
        ..pod("p2", &uid, "h2")
    };
    tell(&mut bench, forged);
    bench.connect("p2.team-b.pod");
    assert_eq!(bench.job("one").reason, Reason::BelowMinimum);
    // An agent may come before the coordinator has heard of its pod.
    bench.connect("p3.default.pod");
    assert_eq!(bench.job("one").reason, Reason::BelowMinimum);
    tell(&mut bench, pod("p3", &uid, "h2"));
    assert_eq!(bench.members("one"), ["p1.default.pod", "p3.default.pod"]);
}

/// The API server was away, another coordinator took over, and no agent reaches it yet.
#[test]
fn pods_that_are_silent_with_all_others_are_waited_for() {
    let mut bench = Bench::new(&["h1", "h2", "h3"]);
    with_pods(&mut bench, (1, 3), &["p1", "p2", "p3"]);
    bench.pass(60 * SECOND);
    let all = [
        "h1",
        "h2",
        "h3",
        "p1.default.pod",
        "p2.default.pod",
        "p3.default.pod",
    ];
    let state = |bench: &Bench, pod: &str| {
        let view = bench.fleet.node_view(&pod.into()).unwrap();
        PodState::of(Some(&view))
    };
    // One host that loses its power is replaced.
    ["h3", "p3.default.pod"]
        .iter()
        .for_each(|node| bench.cut(node));
    bench.pass(30 * SECOND);
    assert_eq!(state(&bench, all[5]), PodState::Lost);
    ["h3", "p3.default.pod"]
        .iter()
        .for_each(|node| bench.connect(node));
    bench.pass(120 * SECOND);
    all.iter().for_each(|node| bench.cut(node));
    bench.pass(30 * SECOND);
    for pod in &all[3..] {
        assert_eq!(state(&bench, pod), PodState::LostWithMany);
    }
    // One is back. Two silent hosts would put no brake on, but they find the leader some time later.
    bench.connect("p1.default.pod");
    assert_eq!(state(&bench, "p1.default.pod"), PodState::Healthy);
    bench.pass(41 * SECOND);
    assert_eq!(state(&bench, "p2.default.pod"), PodState::LostWithMany);
    bench.pass(20 * SECOND);
    assert_eq!(state(&bench, "p2.default.pod"), PodState::Lost);
    // A leader that starts anew knows only that they were not heard, and listens.
    bench.restart_coordinator();
    assert_eq!(state(&bench, "p2.default.pod"), PodState::LostWithMany);
    bench.pass(11 * SECOND);
    assert_eq!(state(&bench, "p2.default.pod"), PodState::Lost);
}

#[test]
fn a_pod_whose_containers_have_ended_proves_its_workers_dead() {
    let mut bench = Bench::new(&["h1", "h2", "h3"]);
    with_pods(&mut bench, (1, 3), &["p1", "p2", "p3"]);
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("one").len(), 3);
    bench.cut("p2.default.pod");
    goes(&mut bench, "p2", PodStage::Ended);
    bench.pass(SECOND);
    // Nobody waited until its silence was long enough, and nobody is to blame.
    assert_eq!(bench.members("one"), ["p1.default.pod", "p3.default.pod"]);
    assert!(!bench.stored_nodes.contains_key(&"p2.default.pod".into()));
    assert!(bench.stored_nodes[&"h2".into()].marks.is_empty());
    let last = bench.job("one").incidents.last().unwrap().cause;
    assert_eq!(last, Cause::NodeDeleted);
}

/// Somebody has deleted the pod by force, or its Node object. Nobody has seen its workers end.
#[test]
fn a_pod_that_is_gone_proves_nothing_before_its_agent_is_lost() {
    let mut bench = Bench::new(&[]);
    with_pods(&mut bench, (1, 1), &["p1"]);
    let before = bench.job("one").current.clone();
    goes(&mut bench, "p1", PodStage::Running);
    bench.pass(10 * SECOND);
    assert_eq!(bench.job("one").current, before, "its agent is heard");
    bench.cut("p1.default.pod");
    assert!(bench.stored_nodes.contains_key(&"p1.default.pod".into()));
    bench.pass(10 * SECOND);
    assert!(!bench.stored_nodes.contains_key(&"p1.default.pod".into()));
}

#[test]
fn a_pod_that_still_speaks_is_not_gone_even_if_the_cluster_says_that_it_has_ended() {
    let mut bench = Bench::new(&[]);
    let uid = with_pods(&mut bench, (1, 1), &["p1"]);
    let before = bench.job("one").current.clone();
    let ended = WorkerPod {
        stage: PodStage::Ended,
        ..pod("p1", &uid, "h1")
    };
    tell(&mut bench, ended);
    bench.pass(SECOND);
    assert_eq!(bench.job("one").current, before);
    bench.cut("p1.default.pod");
    assert!(!bench.stored_nodes.contains_key(&"p1.default.pod".into()));
}

#[test]
fn pods_that_went_while_the_coordinator_was_away_are_struck_off_when_they_are_lost() {
    let mut bench = Bench::new(&["h1"]);
    let uid = with_pods(&mut bench, (1, 2), &["p1", "p2"]);
    bench.pass(60 * SECOND);
    bench.restart_coordinator();
    bench.connect("p1.default.pod");
    let left = pod("p1", &uid, "h1");
    let all = BTreeMap::from([(left.node(), Arc::new(left))]);
    bench.input(Input::Pods(PodNews::Listed(all)));
    bench.obey();
    assert!(bench.stored_nodes.contains_key(&"p2.default.pod".into()));
    bench.pass(60 * SECOND);
    assert!(!bench.stored_nodes.contains_key(&"p2.default.pod".into()));
    assert_eq!(bench.members("one"), ["p1.default.pod"]);
}

/// Whoever may make pods in a namespace can speak as one.
#[test]
fn a_pod_speaks_of_its_own_job_only() {
    let mut bench = Bench::new(&["h1"]);
    bench.submit("two", document(1, 1, 1));
    let victim = bench.job("two").clone();
    with_pods(&mut bench, (2, 2), &["p1"]);
    let lie = RunReport::preparing(
        RunId {
            job: victim.uid.clone(),
            generation: Generation(9),
        },
        Term(1),
    );
    let agent = bench.agents.get_mut(&"p1.default.pod".into()).unwrap();
    agent.runs.insert(lie.run.clone(), lie);
    bench.connect("p1.default.pod");
    assert!(bench.fleet.halted.is_empty(), "its lie halts nothing");
    assert_eq!(bench.job("two").current, victim.current);
}

/// Somebody else says on the host's object that the machine will be taken away.
#[test]
fn a_job_leaves_the_pod_of_a_host_that_is_leaving() {
    let mut bench = Bench::new(&["h1", "h2"]);
    with_pods(&mut bench, (1, 2), &["p1", "p2"]);
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("one").len(), 2);
    let object = crate::node_object::NodeObject {
        leaving: Some("spot".into()),
        ..crate::node_object::NodeObject::default()
    };
    let news = ObjectNews::Applied("h2".into(), Arc::new(object));
    bench.input(Input::Objects(news));
    bench.obey();
    bench.pass(SECOND);
    assert_eq!(bench.members("one"), ["p1.default.pod"]);
}

#[test]
fn what_happens_in_a_pod_speaks_of_its_host() {
    let mut bench = Bench::new(&["h1", "h2"]);
    with_pods(&mut bench, (1, 2), &["p1", "p2"]);
    bench.pass(60 * SECOND);
    bench.cut("p2.default.pod");
    bench.pass(20 * SECOND);
    let marks = |bench: &Bench, node: &str| bench.stored_nodes[&node.into()].marks.len();
    assert_eq!(
        (marks(&bench, "h2"), marks(&bench, "p2.default.pod")),
        (1, 0)
    );
    assert_eq!(marks(&bench, "h1"), 0);
}

#[test]
fn a_pod_on_a_cordoned_host_gets_no_new_work() {
    let mut bench = Bench::new(&["h1", "h2"]);
    let (node, reason) = ("h1".into(), "bad".into());
    bench.request(Request::Cordon { node, reason });
    with_pods(&mut bench, (1, 2), &["p1", "p2"]);
    assert_eq!(bench.members("one"), ["p2.default.pod"]);
}

#[test]
fn a_pod_that_is_being_deleted_gets_no_new_work() {
    let mut bench = Bench::new(&[]);
    let uid = with_pods(&mut bench, (2, 2), &["p1"]);
    let going = WorkerPod {
        deleting: true,
        ..pod("p1", &uid, "h1")
    };
    tell(&mut bench, going);
    tell(&mut bench, pod("p2", &uid, "h2"));
    bench.connect("p2.default.pod");
    assert_eq!(bench.job("one").reason, Reason::BelowMinimum);
    assert!(bench.job("one").message.contains("being deleted"));
}

#[test]
fn a_pod_may_end_when_its_job_is_over_and_its_workers_are_gone() {
    let mut bench = Bench::new(&["h1"]);
    with_pods(&mut bench, (1, 1), &["p1"]);
    assert_eq!(last_words(&bench, "p1.default.pod"), None);
    cancel(&mut bench, "one");
    bench.pass(SECOND);
    assert!(bench.job("one").phase.is_over());
    let said = last_words(&bench, "p1.default.pod").expect("it may end");
    assert_eq!(said, "job default/one ended: cancelled by a user");
}

/// Who looks at the pod learns whose words were the last, although the pod itself has succeeded.
#[test]
fn a_pod_ends_with_the_culprits_words() {
    let mut bench = Bench::new(&["h1", "h2"]);
    with_pods(&mut bench, (2, 2), &["p1", "p2"]);
    for error in ["one", "two", "three", "four"] {
        bench.pass(300 * SECOND);
        let error = format!("ValueError: {error} {}", "x".repeat(900));
        bench.rank_exits("one", 1, Exit::Code(3), Some(&error));
        bench.pass(2 * SECOND);
    }
    let job = bench.job("one");
    assert_eq!(job.phase, Phase::Failed, "{}", job.message);
    let said = last_words(&bench, "p1.default.pod").expect("it may end");
    assert_eq!(last_words(&bench, "p2.default.pod"), Some(said.clone()));
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].starts_with("job default/one has failed: "),
        "{said}"
    );
    let newest = lines[1];
    assert!(
        newest.contains("WorkerFailed: rank 1 on p2.default.pod"),
        "{said}"
    );
    assert!(newest.contains("ValueError: four"), "{said}");
    assert!(said.len() <= LAST_WORDS_MAX, "{} bytes", said.len());
}

fn last_words(bench: &Bench, pod: &str) -> Option<String> {
    let node = bench.fleet.nodes.get(&pod.into())?;
    node.published.as_ref()?.retire.clone()
}

/// The coordinator's shell deletes a pod only when this has been taken, so no worker begins there
/// meanwhile.
#[test]
fn nothing_new_is_placed_on_a_pod_that_is_about_to_be_deleted() {
    let mut bench = Bench::new(&[]);
    let uid = with_pods(&mut bench, (1, 1), &["p1"]);
    assert_eq!(bench.members("one"), ["p1.default.pod"]);
    tell(&mut bench, pod("p2", &uid, "h2"));
    bench.connect("p2.default.pod");
    let unneeded = |bench: &mut Bench, pods: &[&str]| {
        let pods: BTreeSet<String> = pods.iter().map(|pod| format!("uid-of-{pod}")).collect();
        let news = PodNews::Unneeded(JobUid::from("u1"), pods.clone());
        bench.input(Input::Pods(news));
        bench.obey();
        assert_eq!(
            bench.fleet.job_view(&"u1".into()).unwrap().pods_unneeded,
            pods
        );
    };
    unneeded(&mut bench, &["p2"]);
    bench.cut("p1.default.pod");
    goes(&mut bench, "p1", PodStage::Ended);
    bench.pass(SECOND);
    assert_eq!(bench.job("one").reason, Reason::BelowMinimum);
    assert!(bench.job("one").message.contains("does not need"));
    unneeded(&mut bench, &[]);
    assert_eq!(bench.members("one"), ["p2.default.pod"]);
}

#[test]
fn a_pod_of_which_the_watch_has_not_told_yet_is_not_gone() {
    let mut bench = Bench::new(&[]);
    with_pods(&mut bench, (1, 1), &[]);
    bench.connect("p1.default.pod");
    bench.cut("p1.default.pod");
    bench.pass(60 * SECOND);
    assert!(bench.stored_nodes.contains_key(&"p1.default.pod".into()));
    tell(&mut bench, pod("p1", &"u1".into(), "h1"));
    bench.connect("p1.default.pod");
    assert_eq!(bench.members("one"), ["p1.default.pod"]);
}

/// All ranks end with their pod, so a job that stayed would be charged for that.
#[test]
fn a_job_leaves_a_pod_that_goes_even_if_it_cannot_do_without() {
    let mut bench = Bench::new(&["h1", "h2", "h3"]);
    let uid = with_pods(&mut bench, (2, 2), &["p1", "p2"]);
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("one").len(), 2);
    let report = NodeReport {
        health: Health {
            findings: vec![told_to_end()],
        },
        slots: 1,
        ..NodeReport::default()
    };
    let session = bench.agents[&"p2.default.pod".into()].session.unwrap();
    bench.input(Input::Report { session, report });
    bench.pass(SECOND);
    let job = bench.job("one");
    assert_eq!(job.incidents.last().unwrap().cause, Cause::NodeLeaving);
    assert_eq!(job.restarts.len(), 0, "nobody is charged");
    assert_eq!(job.reason, Reason::BelowMinimum);
    goes(&mut bench, "p2", PodStage::Ended);
    tell(&mut bench, pod("p3", &uid, "h3"));
    bench.connect("p3.default.pod");
    bench.pass(SECOND);
    assert_eq!(bench.members("one"), ["p1.default.pod", "p3.default.pod"]);
}

#[test]
fn a_job_that_begins_waits_a_moment_for_pods_that_come() {
    for comes in [true, false] {
        let mut bench = Bench::new(&["h1", "h2"]);
        let uid = with_pods(&mut bench, (1, 2), &[]);
        for (name, host) in [("p1", "h1"), ("p2", "h2")] {
            tell(&mut bench, pod(name, &uid, host));
        }
        bench.connect("p1.default.pod");
        bench.pass(5 * SECOND);
        assert!(
            bench.job("one").current.is_none(),
            "the other pod has a host"
        );
        assert!(bench.job("one").message.contains("1 of its 2 pods"));
        if comes {
            bench.connect("p2.default.pod");
        }
        bench.pass(6 * SECOND);
        let members = bench.members("one").len();
        assert_eq!(
            (members, bench.job("one").last_generation.0),
            (1 + usize::from(comes), 1)
        );
    }
}

/// A pod without a host may wait for minutes.
#[test]
fn a_job_begins_without_pods_that_have_no_host() {
    let mut bench = Bench::new(&["h1"]);
    let uid = with_pods(&mut bench, (1, 2), &[]);
    let homeless = WorkerPod {
        host: None,
        stage: PodStage::Waiting,
        ..pod("p2", &uid, "h2")
    };
    tell(&mut bench, homeless);
    tell(&mut bench, pod("p1", &uid, "h1"));
    bench.connect("p1.default.pod");
    assert_eq!(bench.members("one"), ["p1.default.pod"]);
}

#[test]
fn what_pods_wait_for_is_told_first() {
    let mut bench = Bench::new(&["h1"]);
    let uid = with_pods(&mut bench, (2, 2), &["p1"]);
    let waits = PodWait {
        reason: "ErrImagePull".into(),
        message: "no such tag".into(),
    };
    let pulls = WorkerPod {
        waits: Some(waits),
        stage: PodStage::Waiting,
        ..pod("p2", &uid, "h2")
    };
    tell(&mut bench, pulls);
    let message = bench.job("one").message.clone();
    let told = message.starts_with("pod p2 waits: ErrImagePull: no such tag; 1 of at least 2");
    assert!(told, "{message}");
}

/// Whoever fills a namespace makes the coordinator forget pods there, and proves nobody dead by it.
#[test]
fn a_pod_that_a_crowded_namespace_hides_is_not_gone() {
    let mut bench = Bench::new(&["h1", "h2"]);
    let uid = with_pods(&mut bench, (2, 2), &["p1", "p2"]);
    let hidden: NodeName = "p2.default.pod".into();
    let is_there = |bench: &Bench| bench.fleet.node_view(&hidden).is_some();
    let kept = pod("p1", &uid, "h1");
    let in_part = |namespace: &str| {
        let all = [(kept.node(), Arc::new(kept.clone()))].into();
        Input::Pods(PodNews::ListedInPart(all, [namespace.to_owned()].into()))
    };
    bench.input(in_part("default"));
    assert_eq!(bench.members("one").len(), 2, "the job goes on");
    bench.cut(hidden.as_str());
    bench.pass(60 * SECOND);
    assert!(is_there(&bench), "it is silent, and may live");
    // What the cluster says of this very pod still counts.
    let last = pod("p2", &uid, "h2");
    bench.input(Input::Pods(PodNews::Deleted(last.node(), Arc::new(last))));
    bench.pass(SECOND);
    assert!(!is_there(&bench));

    // In another namespace it is missing, and so it is gone.
    let mut bench = Bench::new(&["h1", "h2"]);
    with_pods(&mut bench, (2, 2), &["p1", "p2"]);
    bench.input(in_part("team-b"));
    bench.cut(hidden.as_str());
    bench.pass(60 * SECOND);
    assert!(!is_there(&bench));
}
