use super::*;
use crate::{
    fleet::{
        job::tests::record,
        pod_plan::GivesBack,
        worker_pod::{PodStage, node_of},
    },
    id::Generation,
};

const SECOND: u64 = 1_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * SECOND)
}

fn job(replicas: u32) -> JobRecord {
    let mut job = record();
    job.spec.template = Some("{}".into());
    (job.spec.min_replicas, job.replicas) = (1, replicas);
    job
}

fn pod(name: &str) -> Arc<WorkerPod> {
    Arc::new(WorkerPod {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-of-{name}"),
        job: "uid".into(),
        created: at(0),
        host: None,
        avoids: BTreeSet::new(),
        stage: PodStage::Waiting,
        deleting: false,
        waits: None,
    })
}

fn node(name: &str) -> NodeName {
    node_of("default", name)
}

fn steps(work: &mut PodWork, job: &JobRecord, seconds: u64) -> NextWork {
    told(work, job, seconds, &BTreeSet::new())
}

/// The same, if the fleet knows of these.
fn told(work: &mut PodWork, job: &JobRecord, seconds: u64, known: &BTreeSet<String>) -> NextWork {
    work.next(
        job,
        known,
        |_| Host::Fit,
        |_| PodState::Healthy,
        at(seconds),
        500,
    )
}

/// The same, if the fleet knows of all that are to go.
fn obeyed(work: &mut PodWork, job: &JobRecord, seconds: u64) -> NextWork {
    let asked = steps(work, job, seconds);
    assert_eq!(asked.delete, [], "the fleet must know first");
    told(work, job, seconds, &asked.tell.unwrap_or_default())
}

/// Asks for one pod, which is then under way.
fn begun(work: &mut PodWork, random: u64) -> String {
    work.begin_create("digits", random)
}

#[test]
fn what_is_under_way_or_made_counts_before_the_watch_tells_it() {
    let (mut work, job) = (PodWork::default(), job(2));
    assert_eq!(steps(&mut work, &job, 0).create, 2);
    let (a, b) = (begun(&mut work, 1), begun(&mut work, 2));
    assert_ne!(a, b);
    assert_eq!(steps(&mut work, &job, 0).create, 0);
    work.create_answered(&a, Created::Yes, at(1));
    assert_eq!(steps(&mut work, &job, 1).create, 0);
    work.watch_applied(node(&a), pod(&a), at(1));
    work.create_answered(&b, Created::No, at(1));
    assert_eq!(steps(&mut work, &job, 1).create, 1, "one was refused");
    // A list may be older than the pod.
    let b = begun(&mut work, 3);
    work.create_answered(&b, Created::Yes, at(1));
    work.watch_listed(PodsByNode::from([(node(&a), pod(&a))]), at(0));
    assert_eq!(steps(&mut work, &job, 1).create, 0);
    // A pod of which the watch never tells was none.
    assert_eq!(steps(&mut work, &job, 62).create, 1);
}

#[test]
fn if_nobody_knows_whether_a_pod_was_made_the_same_one_is_asked_for_again() {
    let (mut work, job) = (PodWork::default(), job(1));
    let name = begun(&mut work, 1);
    work.create_answered(&name, Created::Unknown, at(4));
    assert_eq!(steps(&mut work, &job, 4).create, 1);
    assert_eq!(begun(&mut work, 2), name);
    work.create_answered(&name, Created::Exists, at(5));
    assert_eq!(steps(&mut work, &job, 5).create, 0);
    work.watch_applied(node(&name), pod(&name), at(1));
    assert_eq!(steps(&mut work, &job, 5).create, 0);
    // It was somebody else's from the beginning.
    work.watch_deleted(&node(&name), &pod(&name));
    let taken = begun(&mut work, 3);
    work.create_answered(&taken, Created::Exists, at(6));
    assert_ne!(begun(&mut work, 4), taken);
}

/// Its quota is released when it has no pods, so they must not count for ever.
#[test]
fn a_pod_that_may_have_been_made_counts_for_a_minute_if_the_job_needs_it_no_more() {
    let (mut work, one, mut none) = (PodWork::default(), job(1), job(1));
    none.suspended = true;
    let name = begun(&mut work, 1);
    work.create_answered(&name, Created::Unknown, at(4));
    // It is asked for again, and refused. The first request may still be carried out.
    assert_eq!(steps(&mut work, &one, 10).create, 1);
    assert_eq!(begun(&mut work, 2), name);
    work.create_answered(&name, Created::No, at(11));
    let waits = steps(&mut work, &none, 12);
    assert_eq!((waits.create, waits.look_at), (0, Some(at(64))));
    assert_eq!(work.count(), 1);
    steps(&mut work, &none, 64);
    assert_eq!(work.count(), 0);
}

#[test]
fn a_pod_that_was_gone_before_its_answer_came_does_not_count() {
    let (mut work, job) = (PodWork::default(), job(1));
    let name = begun(&mut work, 1);
    work.watch_applied(node(&name), pod(&name), at(1));
    work.watch_deleted(&node(&name), &pod(&name));
    work.create_answered(&name, Created::Yes, at(1));
    assert_eq!(steps(&mut work, &job, 1).create, 1);
}

#[test]
fn a_pod_that_was_deleted_is_going_at_once_and_is_deleted_once() {
    let (mut work, job) = (PodWork::default(), job(1));
    let known = ["a", "b"].map(|name| (node(name), pod(name)));
    work.watch_listed(PodsByNode::from(known), at(0));
    let surplus = obeyed(&mut work, &job, 1).delete;
    assert_eq!(surplus.len(), 1);
    work.begin_delete(&surplus[0], at(1));
    assert_eq!(obeyed(&mut work, &job, 1).delete, []);
    // The watch is late.
    work.watch_applied(node(&surplus[0].pod), pod(&surplus[0].pod), at(1));
    work.delete_answered(&surplus[0].uid, Deleted::Yes);
    assert!(work.watched().any(|pod| pod.deleting));
    // Now the job wants two again. The one that goes does not count.
    let wants = JobRecord { replicas: 2, ..job };
    let next = obeyed(&mut work, &wants, 2);
    let going: BTreeSet<String> = [surplus[0].uid.clone()].into();
    assert_eq!(
        told(&mut work, &wants, 2, &going).tell,
        None,
        "it is going still"
    );
    assert_eq!((next.create, next.delete), (1, Vec::new()));
}

#[test]
fn a_deletion_that_failed_is_tried_again() {
    let (mut work, job) = (PodWork::default(), job(1));
    work.watch_listed(
        PodsByNode::from(["a", "b"].map(|name| (node(name), pod(name)))),
        at(0),
    );
    let surplus = obeyed(&mut work, &job, 1).delete;
    work.begin_delete(&surplus[0], at(1));
    // A list that comes meanwhile changes nothing about that.
    work.watch_listed(
        PodsByNode::from(["a", "b"].map(|name| (node(name), pod(name)))),
        at(0),
    );
    assert_eq!(obeyed(&mut work, &job, 1).delete, []);
    work.delete_answered(&surplus[0].uid, Deleted::No);
    assert_eq!(obeyed(&mut work, &job, 2).delete, surplus);
    work.begin_delete(&surplus[0], at(2));
    work.delete_answered(&surplus[0].uid, Deleted::Missing);
    assert_eq!(work.pods().count(), 1);
}

#[test]
fn each_time_that_the_job_backs_off_it_pauses_longer() {
    let (mut work, job) = (PodWork::default(), job(1));
    let ended = WorkerPod {
        stage: PodStage::Ended,
        ..(*pod("a")).clone()
    };
    for (pause, now) in [(1, 0), (2, 100), (4, 200)] {
        work.watch_listed(
            PodsByNode::from([(node("a"), Arc::new(ended.clone()))]),
            at(0),
        );
        let gone = obeyed(&mut work, &job, now).delete;
        work.begin_delete(&gone[0], at(now));
        work.watch_deleted(&node("a"), &ended);
        let next = obeyed(&mut work, &job, now);
        assert_eq!((next.create, next.look_at), (0, Some(at(now + pause))));
        assert!(!next.is_complete, "it still lacks one");
        assert_eq!(obeyed(&mut work, &job, now + pause).create, 1);
    }
    let trains = |generation| JobRecord {
        current: Some(crate::fleet::job::tests::generation(generation)),
        last_generation: Generation(generation),
        ..job.clone()
    };
    steps(&mut work, &trains(1), 300);
    assert_eq!(work.pauses.back_offs(), 0);
    let gone = Unneeded {
        pod: "a".into(),
        uid: "a".into(),
        why: "has ended",
        backs_off: true,
    };
    work.begin_delete(&gone, at(300));
    steps(&mut work, &trains(1), 301);
    assert_eq!(work.pauses.back_offs(), 1, "this generation trained before");
    steps(&mut work, &trains(2), 302);
    assert_eq!(work.pauses.back_offs(), 0);
}

#[test]
fn pods_that_end_together_cost_one_pause() {
    let (mut work, job) = (PodWork::default(), job(3));
    let ended = |name| {
        let ended = WorkerPod {
            stage: PodStage::Ended,
            ..(*pod(name)).clone()
        };
        (node(name), Arc::new(ended))
    };
    work.watch_listed(PodsByNode::from(["a", "b", "c"].map(ended)), at(0));
    let gone = obeyed(&mut work, &job, 1).delete;
    assert_eq!(gone.len(), 3);
    gone.iter().for_each(|pod| work.begin_delete(pod, at(1)));
    assert_eq!(
        (work.pauses.back_offs(), work.pauses_until()),
        (1, Some(at(2)))
    );
}

#[test]
fn a_job_that_backs_off_still_pauses_when_it_gives_its_pods_back() {
    let mut work = PodWork::default();
    let ended = Unneeded {
        pod: "a".into(),
        uid: "a".into(),
        why: "has ended",
        backs_off: true,
    };
    work.begin_delete(&ended, at(1));
    assert!(work.pauses.give_back(GivesBack::Hosts, at(1), 0));
    assert_eq!(work.pauses_until(), Some(at(31)));
    assert!(
        !work.pauses.give_back(GivesBack::Hosts, at(2), 0),
        "this pause has begun"
    );
}

#[test]
fn a_pod_that_is_needed_again_before_it_was_deleted_stays() {
    let (mut work, one) = (PodWork::default(), job(1));
    work.watch_listed(
        PodsByNode::from(["a", "b"].map(|name| (node(name), pod(name)))),
        at(0),
    );
    let asked = steps(&mut work, &one, 1).tell.unwrap();
    let next = told(&mut work, &job(2), 1, &asked);
    assert_eq!((next.tell, next.delete), (Some(BTreeSet::new()), vec![]));
}

/// The request may still arrive, when the fleet would have begun a generation in the pod again.
#[test]
fn a_deletion_without_an_answer_is_not_taken_back() {
    let (mut work, one) = (PodWork::default(), job(1));
    work.watch_listed(
        PodsByNode::from(["a", "b"].map(|name| (node(name), pod(name)))),
        at(0),
    );
    let surplus = obeyed(&mut work, &one, 1).delete;
    work.begin_delete(&surplus[0], at(1));
    work.delete_answered(&surplus[0].uid, Deleted::Unknown);
    let going: BTreeSet<String> = [surplus[0].uid.clone()].into();
    let next = told(&mut work, &job(2), 5, &going);
    assert_eq!((next.tell, next.delete.len(), next.create), (None, 1, 1));
    assert_eq!(next.delete[0].uid, surplus[0].uid);
}

#[test]
fn the_age_of_pods_does_not_depend_on_the_clock_of_the_api_server() {
    let (mut work, mut gang) = (PodWork::default(), job(2));
    gang.spec.min_replicas = 2;
    let bound = WorkerPod {
        host: Some("h1".into()),
        created: at(90_000),
        ..(*pod("a")).clone()
    };
    let known = [(node("a"), Arc::new(bound)), (node("b"), pod("b"))];
    work.watch_listed(PodsByNode::from(known), at(10));
    assert!(!steps(&mut work, &gang, 309).gives_back);
    assert!(steps(&mut work, &gang, 310).gives_back);
}

/// Two jobs of one namespace, whose quota has room for two pods. Each job needs two to begin, and gets
/// one of them first.
#[test]
fn two_jobs_under_a_quota_do_not_block_each_other_for_ever() {
    const QUOTA: usize = 2;
    let mut gang = job(2);
    gang.spec.min_replicas = 2;
    let mut works = [PodWork::default(), PodWork::default()];
    let mut known: [BTreeSet<String>; 2] = Default::default();
    let mut made = 0;
    for second in 0..1_200 {
        // Their pauses are of different length.
        for (own, random) in [(0, 500), (1, 999)] {
            let used: usize = works.iter().map(PodWork::count).sum();
            let (work, known) = (&mut works[own], &mut known[own]);
            let healthy = |_: &NodeName| PodState::Healthy;
            let now = at(second);
            let next = work.next(&gang, known, |_| Host::Fit, healthy, now, random);
            *known = next.tell.unwrap_or_else(|| known.clone());
            for unneeded in next.delete {
                work.begin_delete(&unneeded, now);
                work.watch_deleted(&node(&unneeded.pod), &pod(&unneeded.pod));
            }
            if next.create == 0 {
                continue;
            }
            made += 1;
            let name = begun(work, made);
            if used == QUOTA {
                work.create_answered(&name, Created::No, now);
                continue;
            }
            let runs = WorkerPod {
                host: Some("h1".into()),
                stage: PodStage::Running,
                ..(*pod(&name)).clone()
            };
            work.watch_applied(node(&name), Arc::new(runs), now);
        }
        let have = works.each_ref().map(PodWork::count);
        assert!(second > 0 || have == [1, 1], "{have:?}");
        if have.contains(&2) {
            return;
        }
    }
    panic!("each still has one pod after 20 minutes");
}

#[test]
fn names_of_pods_are_names_of_objects() {
    let name = pod_name(&"x".repeat(80), 7);
    assert_eq!(name.len(), NAME_MAX + 6);
    assert!(pod_name("a-", 7).starts_with("a-") && !pod_name("a-", 7).contains("--"));
}
