//! Jobs that wait for other jobs, and for a time.

use super::*;
use crate::{
    fleet::{held_back::HeldBack, plan::Plan},
    spec::AfterDocument,
};

/// A job of one node after these.
fn after(all: &[&str]) -> SpecDocument {
    SpecDocument {
        after: all.iter().map(|one| AfterDocument::read(one)).collect(),
        ..document(1, 1, 1)
    }
}

fn succeeds(bench: &mut Bench, job: &str) {
    bench.rank_exits(job, 0, Exit::Code(0), None);
    assert_eq!(bench.job(job).phase, Phase::Succeeded);
}

fn fails(bench: &mut Bench, job: &str) {
    let at = bench.job(job).uid.clone();
    bench
        .fleet
        .jobs
        .get_mut(&at)
        .unwrap()
        .spec
        .restart_policy
        .max_restarts = 0;
    bench.pass(10 * SECOND);
    bench.rank_exits(job, 0, Exit::Code(1), Some("ValueError: x"));
    bench.pass(SECOND);
    assert_eq!(bench.job(job).phase, Phase::Failed);
}

fn told(bench: &Bench, job: &str) -> (Phase, Reason) {
    let job = bench.job(job);
    (job.phase, job.reason)
}

fn delete(bench: &mut Bench, name: &str) {
    let name = bench.job(name).name.clone();
    assert_eq!(bench.request(Request::Delete { name }), Answer::Done);
}

#[test]
fn a_job_starts_in_the_turn_in_which_what_it_waits_for_has_ended() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("prepare", document(1, 1, 1));
    bench.submit("train", after(&["prepare"]));
    bench.pass(60 * SECOND);
    let job = bench.job("train");
    assert_eq!(
        (job.phase, job.reason, job.message.as_str()),
        (
            Phase::Pending,
            Reason::Dependency,
            "waits for job prepare to succeed"
        )
    );
    assert!(job.last_generation == Generation(0) && !job.waits_for_nodes());
    succeeds(&mut bench, "prepare");
    let job = bench.job("train");
    assert_eq!(job.last_generation, Generation(1));
    assert_eq!(job.eligible, Some(bench.now));
    let eligible = bench.events.iter().filter(|one| one.reason == "Eligible");
    assert_eq!(eligible.count(), 1);
}

#[test]
fn a_job_that_waits_for_another_takes_no_room_from_anybody() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("first", document(1, 1, 1));
    let first = SpecDocument {
        priority: Some(9),
        replicas: Some(2),
        min_replicas: Some(2),
        max_replicas: Some(2),
        ..after(&["first"])
    };
    bench.submit("urgent", first);
    bench.pass(bench.fleet.policy.reserve_after + SECOND);
    bench.submit("small", document(1, 1, 1));
    assert_eq!(bench.members("small"), ["b"]);
    // From now on it waits for room, and comes first.
    succeeds(&mut bench, "first");
    assert_eq!(
        told(&bench, "urgent"),
        (Phase::Pending, Reason::BelowMinimum)
    );
    bench.submit("other", document(1, 1, 1));
    assert!(bench.job("other").current.is_none());
}

#[test]
fn a_job_fails_when_what_it_waits_for_can_never_be_and_so_do_those_that_wait_for_it() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("prepare", document(1, 1, 1));
    // Longer than the passes of one turn.
    let chain = ["c1", "c2", "c3", "c4", "c5", "c6"];
    let mut before = "prepare".to_owned();
    for job in chain {
        bench.submit(job, after(&[&before]));
        before = job.into();
    }
    bench.submit("clean-up", after(&["c6:failed"]));
    bench.submit("report", after(&["prepare:ended", "c1:ended"]));
    fails(&mut bench, "prepare");
    for job in chain {
        assert_eq!(
            told(&bench, job),
            (Phase::Failed, Reason::DependencyNeverSatisfied),
            "{job}"
        );
    }
    assert_eq!(
        bench.job("c1").message,
        "it waits for job prepare to succeed, and that has failed; submit prepare again, and then this job"
    );
    assert!(bench.job("clean-up").is_eligible());
    assert!(bench.job("report").is_eligible());
    let left = bench.stored_history.values();
    assert_eq!(left.filter(|one| one.phase == Phase::Failed).count(), 7);
}

#[test]
fn a_cancelled_job_has_neither_succeeded_nor_failed() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("one", document(1, 1, 1));
    bench.submit("two", after(&["one:failed"]));
    bench.submit("three", after(&["one:ended"]));
    cancel(&mut bench, "one");
    assert_eq!(
        told(&bench, "two"),
        (Phase::Failed, Reason::DependencyNeverSatisfied)
    );
    assert_eq!(bench.members("three"), ["a"]);
}

#[test]
fn the_job_that_had_the_name_at_the_submission_counts() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", document(1, 1, 1));
    bench.submit(
        "held",
        SpecDocument {
            suspend: Some(true),
            ..after(&["one"])
        },
    );
    succeeds(&mut bench, "one");
    delete(&mut bench, "one");
    bench.submit("one", document(1, 1, 1));
    assert!(bench.job("held").is_eligible(), "the first one succeeded");
    // The second one is another.
    bench.submit("two", after(&["one"]));
    assert_eq!(told(&bench, "two").1, Reason::Dependency);
}

#[test]
fn the_history_says_how_a_deleted_job_ended_and_an_unknown_one_is_refused() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("one", document(1, 1, 1));
    fails(&mut bench, "one");
    delete(&mut bench, "one");
    bench.restart_coordinator();
    bench.connect("a");
    bench.pass(30 * SECOND);
    bench.submit("two", after(&["one"]));
    assert_eq!(
        told(&bench, "two"),
        (Phase::Failed, Reason::DependencyNeverSatisfied)
    );
    bench.submit("three", after(&["one:failed"]));
    assert_eq!(bench.members("three"), ["a"]);
    let refused = bench.submit("four", after(&["one:ended", "nobody"]));
    let why = "job default/nobody not found, and it is not in the history of jobs that are over; submit it first (muster get \
               jobs, muster history)";
    assert_eq!(
        refused,
        Answer::Refused(Refusal::Invalid {
            field: "spec.after[1].job".into(),
            message: why.into()
        })
    );
    let refused = bench.submit("other/five", after(&["two"]));
    assert!(
        matches!(&refused, Answer::Refused(Refusal::Invalid { .. })),
        "another namespace's job is none: {refused:?}"
    );
    // Objects of a pipeline that is applied again come in any order.
    bench.actor = Actor::Object;
    let refused = bench.submit("six", after(&["one:failed"]));
    let Answer::Refused(Refusal::Invalid { message, .. }) = refused else {
        panic!("it would take the end of the last time: {refused:?}");
    };
    assert!(
        message.starts_with("job default/one not found; "),
        "{message}"
    );
    bench.submit("one", document(1, 1, 1));
    let answer = bench.submit("six", after(&["one:failed"]));
    assert!(!matches!(answer, Answer::Refused(_)), "{answer:?}");
}

#[test]
fn a_coordinator_that_restarts_knows_what_is_waited_for() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", document(1, 1, 1));
    bench.submit("two", after(&["one"]));
    bench.submit("three", after(&["two"]));
    bench.restart_coordinator();
    ["a", "b"].iter().for_each(|node| bench.connect(node));
    bench.pass(30 * SECOND);
    assert_eq!(told(&bench, "two"), (Phase::Pending, Reason::Dependency));
    // It says it again in the same words, and nobody is told anew.
    let eligible = |bench: &Bench| {
        let told = bench.events.iter();
        told.filter(|one| one.reason == "Eligible").count()
    };
    assert_eq!(eligible(&bench), 0);
    succeeds(&mut bench, "one");
    assert_eq!(bench.members("two").len(), 1);
    assert_eq!(eligible(&bench), 1);
    bench.restart_coordinator();
    ["a", "b"].iter().for_each(|node| bench.connect(node));
    bench.pass(30 * SECOND);
    assert_eq!(told(&bench, "two").0, Phase::Running);
    assert_eq!(eligible(&bench), 1);
}

#[test]
fn a_job_starts_at_its_time_and_its_deadlines_count_from_then() {
    let mut bench = Bench::new(&["a"]);
    let at = bench.now + 3600 * SECOND;
    let spec = SpecDocument {
        start_after: Some(at.rfc3339()),
        active_deadline_seconds: Some(60),
        start_deadline_seconds: Some(10),
        ..document(1, 1, 1)
    };
    bench.submit("one", spec);
    assert_eq!(
        bench.job("one").message,
        format!("waits until {}", at.rfc3339_seconds())
    );
    assert_eq!(bench.job("one").active_deadline(), None);
    bench.now = at - SECOND;
    bench.pass(SECOND / 2);
    assert_eq!(told(&bench, "one"), (Phase::Pending, Reason::BeginTime));
    bench.pass(SECOND / 2);
    assert_eq!(bench.job("one").last_generation, Generation(1));
    assert_eq!(bench.job("one").active_deadline(), Some(at + 60 * SECOND));
    bench.pass(61 * SECOND);
    assert_eq!(
        told(&bench, "one"),
        (Phase::Failed, Reason::DeadlineExceeded)
    );
}

#[test]
fn a_waiting_job_can_be_suspended_resumed_and_cancelled() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", document(1, 1, 1));
    for job in ["two", "three"] {
        bench.submit(job, after(&["one"]));
    }
    let suspend = |bench: &mut Bench, suspended| {
        let name = bench.job("two").name.clone();
        bench.request(Request::Suspend { name, suspended });
    };
    suspend(&mut bench, true);
    assert_eq!(told(&bench, "two"), (Phase::Pending, Reason::Suspended));
    suspend(&mut bench, false);
    assert_eq!(told(&bench, "two"), (Phase::Pending, Reason::Dependency));
    suspend(&mut bench, true);
    cancel(&mut bench, "three");
    assert_eq!(told(&bench, "three").0, Phase::Cancelled);
    succeeds(&mut bench, "one");
    bench.pass(SECOND);
    assert_eq!(told(&bench, "two"), (Phase::Pending, Reason::Suspended));
    suspend(&mut bench, false);
    assert_eq!(bench.members("two").len(), 1);
}

#[test]
fn a_suspended_job_fails_too_when_it_could_never_start() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("one", document(1, 1, 1));
    bench.submit(
        "two",
        SpecDocument {
            suspend: Some(true),
            ..after(&["one"])
        },
    );
    cancel(&mut bench, "one");
    assert_eq!(
        told(&bench, "two"),
        (Phase::Failed, Reason::DependencyNeverSatisfied)
    );
}

#[test]
fn a_plan_says_what_the_job_would_wait_for() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", document(1, 1, 1));
    let plan = |bench: &mut Bench, spec: SpecDocument| -> Plan {
        let document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata {
                name: "new".into(),
                namespace: None,
            },
            spec,
        };
        let (name, spec) = document.check().unwrap();
        let asked = Request::Submit {
            name,
            spec,
            uid: "new".into(),
            request_id: String::new(),
            validate_only: true,
        };
        match bench.request(asked) {
            Answer::Planned { plan, .. } => *plan,
            other => panic!("{other:?}"),
        }
    };
    let said = |plan: &Plan| plan.held_back.as_ref().map(ToString::to_string);
    let waits = plan(&mut bench, after(&["one"]));
    assert!(matches!(waits.held_back, Some(HeldBack::Waits(_))));
    assert_eq!(
        said(&waits).as_deref(),
        Some("it waits for job one to succeed")
    );
    cancel(&mut bench, "one");
    assert_eq!(plan(&mut bench, after(&["one:ended"])).held_back, None);
    assert_eq!(
        said(&plan(&mut bench, after(&["one"]))).as_deref(),
        Some("it waits for job one to succeed, and that was cancelled: it would fail at once")
    );
}
