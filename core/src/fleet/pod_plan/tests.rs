use super::*;
use crate::{
    fleet::{job::tests, members::Member, worker_pod::PodWait},
    id::Generation,
};

const SECOND: u64 = 1_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * SECOND)
}

fn job(replicas: u32) -> JobRecord {
    let mut job = tests::record();
    job.spec.template = Some("{}".into());
    (job.spec.min_replicas, job.replicas) = (2, replicas);
    job
}

fn pod(name: &str) -> WorkerPod {
    WorkerPod {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-of-{name}"),
        job: "uid".into(),
        created: at(0),
        host: Some("h1".into()),
        avoids: Default::default(),
        stage: PodStage::Running,
        deleting: false,
        waits: None,
    }
}

fn unschedulable(name: &str) -> WorkerPod {
    WorkerPod {
        host: None,
        stage: PodStage::Waiting,
        waits: Some(PodWait {
            reason: "Unschedulable".into(),
            message: "no GPUs".into(),
        }),
        ..pod(name)
    }
}

/// The job trains on these pods.
fn training(mut job: JobRecord, pods: &[&str]) -> JobRecord {
    let member = |pod: &&str| Member {
        node: super::super::worker_pod::node_of("default", pod),
        boot_id: String::new(),
        gpus: Vec::new(),
        addresses: Vec::new(),
        seats: Vec::new(),
    };
    let mut generation = tests::generation(1);
    generation.members = pods.iter().map(member).collect::<Vec<_>>().into();
    job.last_generation = Generation(1);
    job.current = Some(generation);
    job
}

fn planned(job: &JobRecord, pods: &[WorkerPod], seconds: u64) -> PodPlan {
    planned_since(job, pods, None, seconds)
}

/// The same, if pods are missing since this time.
fn planned_since(
    job: &JobRecord,
    pods: &[WorkerPod],
    since: Option<Timestamp>,
    seconds: u64,
) -> PodPlan {
    plan(
        job,
        pods,
        |host| match host.as_str() {
            "bad" => Host::NoNewWork,
            "barred" => Host::NoNewPods,
            "silent" => Host::Silent,
            "strange" => Host::Unknown,
            _ => Host::Fit,
        },
        |node| match node.as_str() {
            lost if lost.starts_with("lost") => PodState::Lost,
            many if many.starts_with("many") => PodState::LostWithMany,
            sick if sick.starts_with("sick") => PodState::Unhealthy,
            _ => PodState::Healthy,
        },
        since,
        at(seconds),
    )
}

fn deleted(plan: &PodPlan) -> Vec<&str> {
    plan.delete
        .iter()
        .map(|unneeded| unneeded.pod.as_str())
        .collect()
}

#[test]
fn a_job_gets_the_pods_that_it_lacks() {
    assert_eq!(planned(&job(3), &[], 1).create, 3);
    let strangers = [
        WorkerPod {
            job: "other".into(),
            ..pod("x")
        },
        WorkerPod {
            namespace: "team-b".into(),
            ..pod("y")
        },
    ];
    assert_eq!(
        planned(&job(3), &strangers, 1).create,
        3,
        "they are not its own"
    );
    let going = WorkerPod {
        deleting: true,
        ..pod("a")
    };
    assert_eq!(planned(&job(3), &[going, pod("b")], 1).create, 2);
    let ended = WorkerPod {
        stage: PodStage::Ended,
        ..pod("a")
    };
    let plan = planned(&job(2), &[ended, pod("b")], 1);
    assert_eq!((plan.create, deleted(&plan)), (1, vec!["a"]));
    assert!(plan.delete[0].backs_off, "the next one may end alike");
    assert_eq!(
        planned(&job(2), &[pod("a"), unschedulable("b")], 1),
        PodPlan {
            look_at: Some(Timestamp(0) + GANG_TIMEOUT),
            ..PodPlan::default()
        }
    );
    let on_hosts = JobRecord {
        spec: tests::record().spec,
        ..job(3)
    };
    assert_eq!(planned(&on_hosts, &[], 1), PodPlan::default());
}

#[test]
fn a_smaller_job_keeps_the_pods_that_train() {
    let pods = [
        pod("a"),
        WorkerPod {
            created: at(5),
            ..pod("b")
        },
        WorkerPod {
            created: at(9),
            ..unschedulable("c")
        },
        WorkerPod {
            created: at(7),
            ..pod("d")
        },
    ];
    let trains = training(job(2), &["b"]);
    assert_eq!(deleted(&planned(&trains, &pods, 10)), ["c", "d"]);
    // All of them hold workers: the next generation must be smaller first.
    let trains = training(job(1), &["a", "b", "d"]);
    assert_eq!(deleted(&planned(&trains, &pods, 10)), ["c"]);
}

#[test]
fn a_pod_without_workers_leaves_a_bad_host_and_is_made_anew() {
    let bad = WorkerPod {
        host: Some("bad".into()),
        ..pod("a")
    };
    let pods = [bad, pod("b")];
    let plan = planned(&job(2), &pods, 1);
    assert_eq!((plan.create, deleted(&plan)), (1, vec!["a"]));
    let trains = training(job(2), &["a", "b"]);
    assert_eq!(planned(&trains, &pods, 1), PodPlan::default());
}

#[test]
fn a_job_that_cannot_begin_gives_its_pods_back() {
    let job = job(3);
    let pods = [pod("a"), unschedulable("b"), unschedulable("c")];
    let early = planned(&job, &pods, 299);
    assert_eq!((early.gives_back, early.look_at), (None, Some(at(300))));
    let late = planned(&job, &pods, 300);
    let all = (late.gives_back, late.create);
    assert_eq!(all, (Some(GivesBack::Hosts), 0));
    assert_eq!(deleted(&late), ["a", "b", "c"]);
    // A slow image is no shortage, and with its minimum a job goes on.
    let pulling = waiting("b", "ContainerCreating");
    let quiet = WorkerPod {
        stage: PodStage::Waiting,
        ..pod("b")
    };
    for pods in [
        vec![pod("a"), pulling.clone(), pulling],
        vec![pod("a"), quiet.clone(), quiet],
        vec![pod("a"), pod("b"), unschedulable("c")],
    ] {
        assert_eq!(planned(&job, &pods, 900).gives_back, None, "{pods:?}");
    }
    let trains = training(job, &["a"]);
    assert_eq!(planned(&trains, &pods, 900).gives_back, None);
}

/// A pod on a host that the cluster says this of.
fn waiting(name: &str, reason: &str) -> WorkerPod {
    WorkerPod {
        host: Some("h1".into()),
        waits: Some(PodWait {
            reason: reason.into(),
            message: String::new(),
        }),
        ..unschedulable(name)
    }
}

/// Two jobs that each have a half of what the quota of their namespace allows would wait for each other
/// for ever: of the pods that it refuses there is nothing to see.
#[test]
fn a_job_whose_pods_are_refused_gives_back_those_that_it_has() {
    let job = job(3);
    let first = planned(&job, &[pod("a")], 10);
    assert!(first.is_missing);
    assert_eq!((first.create, first.look_at), (2, Some(at(310))));
    let since = Some(at(10));
    let early = planned_since(&job, &[pod("a")], since, 309);
    assert_eq!((early.create, early.look_at), (2, Some(at(310))));
    let late = planned_since(&job, &[pod("a")], since, 310);
    assert_eq!((late.create, late.gives_back), (0, Some(GivesBack::Hosts)));
    assert_eq!(deleted(&late), ["a"]);
    // The last that is left of a job that has trained for long keeps its host while others are made.
    let left = planned_since(&job, &[pod("a")], Some(at(9_000)), 9_001);
    assert_eq!((left.create, left.gives_back), (2, None));
    // A job that has its minimum waits for the rest without limit.
    let plan = planned(&job, &[pod("a"), pod("b")], 900);
    assert_eq!((plan.create, plan.gives_back), (1, None));
    // A job that has nothing has nothing to give back.
    let plan = planned_since(&job, &[], since, 900);
    assert_eq!((plan.create, plan.gives_back), (3, None));
}

#[test]
fn pods_that_cannot_begin_give_their_hosts_back() {
    for reason in [
        "ErrImagePull",
        "ImagePullBackOff",
        "CreateContainerConfigError",
    ] {
        let pods = [pod("a"), waiting("b", reason)];
        let late = planned(&job(2), &pods, 300);
        assert_eq!(late.gives_back, Some(GivesBack::Hosts), "{reason}");
        assert_eq!(deleted(&late), ["a", "b"]);
    }
}

/// They hold no host, and count against the quota of their namespace.
#[test]
fn pods_of_which_none_has_a_host_are_given_back() {
    let pods = [unschedulable("a"), unschedulable("b")];
    let late = planned(&job(2), &pods, 300);
    assert_eq!(late.gives_back, Some(GivesBack::Quota));
    assert_eq!(deleted(&late), ["a", "b"]);
}

#[test]
fn a_suspended_job_holds_no_pods_once_its_workers_are_dead() {
    let suspended = JobRecord {
        suspended: true,
        ..job(2)
    };
    let pods = [pod("a"), pod("b")];
    assert_eq!(deleted(&planned(&suspended, &pods, 1)), ["a", "b"]);
    let stopping = training(suspended, &["a"]);
    assert_eq!(deleted(&planned(&stopping, &pods, 1)), ["b"]);
}

#[test]
fn the_pods_of_a_job_that_is_over_end_by_themselves_or_are_deleted() {
    let mut done = job(2);
    let succeeded = crate::fleet::job::Phase::Succeeded;
    crate::fleet::job::tests::end(&mut done, succeeded, "", at(100));
    let ended = WorkerPod {
        stage: PodStage::Ended,
        ..pod("a")
    };
    let pods = [ended, pod("b"), unschedulable("c")];
    let until = at(100) + done.spec.stop_grace_period + END;
    let plan = planned(&done, &pods, 101);
    assert_eq!((deleted(&plan), plan.look_at), (vec!["c"], Some(until)));
    let plan = plan_at(&done, &pods, until);
    assert_eq!(deleted(&plan), ["b", "c"], "the logs of a stay");
}

fn plan_at(job: &JobRecord, pods: &[WorkerPod], now: Timestamp) -> PodPlan {
    plan(job, pods, |_| Host::Fit, |_| PodState::Healthy, None, now)
}

#[test]
fn people_are_told_what_most_pods_wait_for() {
    let pulling = WorkerPod {
        waits: Some(PodWait {
            reason: "ErrImagePull".into(),
            message: String::new(),
        }),
        ..pod("a")
    };
    assert_eq!(waits(&[pod("x")]), None);
    assert_eq!(
        waits(std::slice::from_ref(&pulling)).unwrap().1,
        "pod a waits: ErrImagePull"
    );
    let pods = [pulling, unschedulable("b"), unschedulable("c")];
    assert_eq!(
        waits(&pods).unwrap().1,
        "pod b and 1 more waits: Unschedulable: no GPUs"
    );
}

/// A machine without power says nothing, and its pod stays in the cluster as it was.
#[test]
fn for_a_pod_whose_agent_is_lost_another_is_made_and_it_is_kept() {
    let trains = training(job(2), &["lost-1", "b"]);
    let pods = [pod("lost-1"), pod("b")];
    let plan = planned(&trains, &pods, 10);
    assert_eq!((plan.create, deleted(&plan).len()), (1, 0));
    // It is back, and the other one has its place.
    let trains = training(job(2), &["b", "c"]);
    let pods = [pod("a"), pod("b"), pod("c")];
    assert_eq!(deleted(&planned(&trains, &pods, 10)), ["a"]);
}

#[test]
fn pods_that_are_lost_with_many_others_are_not_replaced() {
    let trains = training(job(3), &["many-1", "many-2", "many-3"]);
    let pods = ["many-1", "many-2", "many-3"].map(pod);
    assert_eq!(planned(&trains, &pods, 10), PodPlan::default());
    // Of those that come back nothing is in excess.
    let pods = ["a", "many-2", "many-3"].map(pod);
    let trains = training(job(3), &["a", "many-2", "many-3"]);
    assert_eq!(planned(&trains, &pods, 10), PodPlan::default());
    // One was made in place of a pod that was lost shortly before the others, and no member goes for it.
    let with_new = ["a", "b", "many-3", "new"].map(pod);
    let trains = training(job(3), &["a", "b"]);
    assert_eq!(planned(&trains, &with_new, 10), PodPlan::default());
    // It lacks one for another reason.
    let trains = training(job(3), &["a", "many-2", "many-3"]);
    let plan = planned(&trains, &pods[..2], 10);
    assert_eq!((plan.create, deleted(&plan).len()), (1, 0));
}

/// The cluster takes a machine without power for fit for up to a minute, and gives it pods. They would
/// wait there for as long as it has no power.
#[test]
fn a_pod_that_cannot_begin_on_a_silent_host_is_made_anew() {
    let trains = training(job(2), &["a"]);
    let on_silent = |stage| WorkerPod {
        host: Some("silent".into()),
        stage,
        ..pod("b")
    };
    let plan = planned(&trains, &[pod("a"), on_silent(PodStage::Waiting)], 10);
    assert_eq!((plan.create, deleted(&plan)), (1, vec!["b"]));
    assert!(plan.delete[0].backs_off, "the next one may get it too");
    // What has begun may go on there: a kubelet that is only cut off says nothing either.
    let runs = planned(&trains, &[pod("a"), on_silent(PodStage::Running)], 10);
    assert_eq!(runs, PodPlan::default());
    let member = training(job(2), &["a", "b"]);
    let plan = planned(&member, &[pod("a"), on_silent(PodStage::Waiting)], 10);
    assert_eq!(plan, PodPlan::default(), "a worker may live in it");
}

/// In place of a pod with an unhealthy GPU another one is made. While workers live in it, it stays, so
/// that the job can move to the other one first.
#[test]
fn a_pod_with_an_unhealthy_gpu_is_replaced() {
    let trains = training(job(2), &["sick-1", "b"]);
    let pods = [pod("sick-1"), pod("b")];
    let plan = planned(&trains, &pods, 10);
    assert_eq!((plan.create, deleted(&plan).len()), (1, 0));
    let moved = training(job(2), &["b", "c"]);
    let pods = [pod("sick-1"), pod("b"), pod("c")];
    let plan = planned(&moved, &pods, 10);
    assert_eq!((plan.create, deleted(&plan)), (0, vec!["sick-1"]));
    assert!(plan.delete[0].backs_off, "the next one may get it too");
}

#[test]
fn pods_stay_on_a_host_with_an_unhealthy_gpu_of_others() {
    let on = |name: &str| WorkerPod {
        host: Some("barred".into()),
        ..pod(name)
    };
    let pods = [on("a"), on("b")];
    assert_eq!(planned(&job(2), &pods, 10), PodPlan::default());
    // One that waits, and was kept from the only host that is fit by now, is made anew.
    let kept_from = |host: &str| WorkerPod {
        avoids: [host.into()].into(),
        ..unschedulable("c")
    };
    assert_eq!(
        deleted(&planned(&job(1), &[kept_from("barred")], 10)),
        [""; 0]
    );
    assert_eq!(deleted(&planned(&job(1), &[kept_from("h")], 10)), ["c"]);
}

/// Which hosts are bad is known when a pod is made. A job that already trains would wait for ever for
/// a pod that may not go to the only host with room.
#[test]
fn a_pod_that_must_not_go_to_a_host_that_is_fit_again_is_made_anew() {
    let job = training(job(2), &["a"]);
    let waiting = |host: &str| WorkerPod {
        avoids: [host.into()].into(),
        ..unschedulable("b")
    };
    let plan = planned(&job, &[pod("a"), waiting("h2")], 1);
    assert_eq!((plan.create, deleted(&plan)), (1, vec!["b"]));
    assert!(plan.delete[0].backs_off, "hosts may come and go often");
    for host in ["bad", "strange"] {
        let plan = planned(&job, &[pod("a"), waiting(host)], 1);
        assert_eq!((plan.create, deleted(&plan)), (0, vec![]), "{host}");
    }
    let not_refused = WorkerPod {
        waits: None,
        ..waiting("h2")
    };
    assert_eq!(
        deleted(&planned(&job, &[pod("a"), not_refused], 1)),
        [""; 0]
    );
}

/// No generation is opened on a host that gets no work, so the smaller one needs other pods. On hosts a job
/// takes any that are free; nobody makes a pod that is not asked for.
#[test]
fn a_job_that_shall_be_smaller_gets_pods_in_place_of_those_on_bad_hosts() {
    let on_bad = |name: &str| WorkerPod {
        host: Some("bad".into()),
        ..pod(name)
    };
    let trains = training(job(2), &["a", "b", "c"]);
    let pods = [on_bad("a"), on_bad("b"), pod("c")];
    let plan = planned(&trains, &pods, 1);
    assert_eq!((plan.create, deleted(&plan)), (1, vec![]));
    let with_new = [on_bad("a"), on_bad("b"), pod("c"), pod("d")];
    assert_eq!(planned(&trains, &with_new, 1), PodPlan::default());
    // It has shrunk onto the good ones, and the others go.
    let smaller = training(job(2), &["c", "d"]);
    let plan = planned(&smaller, &with_new, 1);
    assert_eq!((plan.create, deleted(&plan)), (0, vec!["a", "b"]));
    // With enough good hosts nothing is made.
    let pods = [on_bad("a"), pod("b"), pod("c")];
    assert_eq!(planned(&trains, &pods, 1), PodPlan::default());
}

/// It would go on with one node for ever otherwise: the one there is no place for a new generation.
#[test]
fn a_job_that_is_too_small_gets_a_pod_for_each_on_a_host_that_it_should_leave() {
    let on_bad = WorkerPod {
        host: Some("bad".into()),
        ..pod("a")
    };
    let small = training(job(2), &["a"]);
    let plan = planned(&small, &[on_bad.clone(), pod("b")], 1);
    assert_eq!((plan.create, deleted(&plan)), (1, vec![]));
    let plan = planned(&small, &[on_bad.clone(), pod("b"), pod("c")], 1);
    assert_eq!(plan, PodPlan::default(), "it stays until the job has grown");
    // A job that is complete does not leave for that. What runs, runs.
    let whole = training(job(2), &["a", "b"]);
    assert_eq!(planned(&whole, &[on_bad, pod("b")], 1), PodPlan::default());
}
