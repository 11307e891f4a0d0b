use muster_core::{
    fleet::{
        Actor,
        job::{GenerationRecord, Member, Reason},
    },
    id::JobUid,
};

use super::{plan as plan_at, *};
use crate::rules::{queue::Said, tests};

/// An object whose job wants two nodes, of one to four.
fn object() -> JobObject {
    JobObject {
        name: JobName {
            namespace: "team-a".into(),
            name: "digits".into(),
        },
        uid: JobUid::from("u1"),
        template: None,
        spec: Ok(SpecDocument {
            replicas: Some(2),
            min_replicas: Some(1),
            max_replicas: Some(4),
            args: vec!["train.py".into()],
            ..SpecDocument::default()
        }),
        suspend: false,
        deleting: false,
        held: false,
        over: None,
        ttl: None,
        asks: Asked::default(),
        queue: None,
    }
}

fn with(object: &JobObject, change: impl FnOnce(&mut SpecDocument)) -> JobObject {
    let mut changed = object.clone();
    change(changed.spec.as_mut().unwrap());
    changed
}

fn plan(object: Option<&JobObject>, job: Option<&JobRecord>) -> Plan {
    plan_at(object, job, &Admission::Free, Timestamp(0))
}

/// The job as the fleet accepted it from this object.
fn job_of(object: &JobObject) -> JobRecord {
    let Some(Step::Submit(spec)) = plan(Some(object), None).step else {
        panic!("{:?}", plan(Some(object), None))
    };
    JobRecord {
        uid: object.uid.clone(),
        name: object.name.clone(),
        owner: Some(Actor::Object),
        replicas: spec.replicas,
        spec: *spec,
        ..tests::record()
    }
}

fn training(mut job: JobRecord) -> JobRecord {
    job.current = Some(GenerationRecord {
        members: vec![Member {
            node: "a".into(),
            boot_id: String::new(),
            gpus: Vec::new(),
            addresses: Vec::new(),
            seats: Vec::new(),
        }]
        .into(),
        ..tests::generation(1)
    });
    job
}

fn cancelled(mut job: JobRecord) -> JobRecord {
    tests::ends(&mut job, Phase::Cancelled, Reason::Cancelled);
    job
}

fn over(mut job: JobRecord) -> JobRecord {
    job.retiring = Vec::new();
    job.finished = Some(Timestamp(0));
    job
}

/// What happens until nothing is left to do.
fn step(object: Option<&JobObject>, job: Option<&JobRecord>) -> Option<Step> {
    plan(object, job).step
}

#[test]
fn an_object_is_submitted_once_and_held_while_workers_may_live() {
    let object = object();
    let job = job_of(&object);
    assert_eq!(plan(Some(&object), Some(&job)), Plan::NOTHING, "it waits");
    let job = training(job);
    assert_eq!(step(Some(&object), Some(&job)), Some(Step::Hold));
    let held = JobObject {
        held: true,
        ..object
    };
    assert_eq!(plan(Some(&held), Some(&job)), Plan::NOTHING);
    let job = over(cancelled(job));
    assert_eq!(step(Some(&held), Some(&job)), Some(Step::Release));
}

#[test]
fn a_deletion_stops_the_workers_before_it_lets_the_object_go() {
    let object = JobObject {
        held: true,
        deleting: true,
        ..object()
    };
    let job = training(job_of(&JobObject {
        held: false,
        deleting: false,
        ..object.clone()
    }));
    assert_eq!(step(Some(&object), Some(&job)), Some(Step::Cancel));
    let stopping = cancelled(job);
    assert_eq!(step(Some(&object), Some(&stopping)), None, "it is stopping");
    let mut silent = stopping.clone();
    silent.finished = Some(Timestamp(0));
    assert_eq!(
        step(Some(&object), Some(&silent)),
        None,
        "a node that cannot be asked may still have workers"
    );
    assert_eq!(step(Some(&object), Some(&over(silent))), Some(Step::Forget));
    assert_eq!(step(Some(&object), None), Some(Step::Release));
}

#[test]
fn a_job_without_its_object_is_ended_and_one_of_a_user_is_left_alone() {
    let object = object();
    let job = training(job_of(&object));
    assert_eq!(step(None, Some(&job)), Some(Step::Cancel));
    let stopping = cancelled(job);
    assert_eq!(step(None, Some(&stopping)), None);
    assert_eq!(step(None, Some(&over(stopping))), Some(Step::Forget));
    let users = training(tests::record());
    assert_eq!(plan(None, Some(&users)), Plan::NOTHING);
}

#[test]
fn an_object_made_anew_waits_for_the_end_of_the_one_before() {
    let old = training(job_of(&object()));
    let new = JobObject {
        uid: JobUid::from("u2"),
        ..object()
    };
    let Plan {
        step, objection, ..
    } = plan(Some(&new), Some(&old));
    assert_eq!(step, Some(Step::Cancel));
    let objection = objection.unwrap();
    assert_eq!(
        (objection.reason(), objection.to_string().as_str()),
        (
            "PredecessorStopping",
            "an earlier job team-a/digits is still being stopped"
        )
    );
    assert!(objection.passes());
    let old = over(cancelled(old));
    assert_eq!(plan(Some(&new), Some(&old)).step, Some(Step::Forget));
    assert!(matches!(plan(Some(&new), None).step, Some(Step::Submit(_))));
}

#[test]
fn a_name_that_a_user_has_taken_is_said_and_nothing_is_touched() {
    let object = object();
    let users = JobRecord {
        owner: Some(Actor::Local { uid: 0 }),
        uid: JobUid::from("other"),
        ..training(job_of(&object))
    };
    let Plan {
        step, objection, ..
    } = plan(Some(&object), Some(&users));
    assert_eq!(
        (step, objection.as_ref().unwrap().reason()),
        (None, "NameTaken")
    );
    assert!(!objection.unwrap().passes());
    let deleting = JobObject {
        deleting: true,
        held: true,
        ..object
    };
    assert_eq!(
        plan(Some(&deleting), Some(&users)),
        Plan::step(Step::Release)
    );
}

#[test]
fn a_grace_that_was_left_out_stays_what_it_was_at_the_submission() {
    let unsaid = with(&object(), |spec| spec.stop_grace_period = None);
    let mut job = job_of(&unsaid);
    assert_eq!(plan(Some(&unsaid), Some(&job)).objection, None);
    job.spec.stop_grace_period = Duration::from_secs(10);
    assert_eq!(plan(Some(&unsaid), Some(&job)).objection, None);
    // A job that was submitted with another one said it.
    job.spec.stop_grace_period = Duration::from_secs(20);
    assert_eq!(
        plan(Some(&unsaid), Some(&job)).objection,
        Some(Objection::FixedFields(vec!["spec.stopGracePeriod"]))
    );
}

#[test]
fn a_job_that_was_accepted_with_a_launcher_can_still_be_scaled_and_held_back() {
    let mut job = job_of(&object());
    let words: Vec<String> = ["-m", "torch.distributed.run", "train.py"]
        .map(String::from)
        .into();
    job.spec.args = words.clone();
    let object = with(&object(), |spec| spec.args = words);
    assert_eq!(plan(Some(&object), Some(&job)), Plan::NOTHING);
    let scaled = with(&object, |spec| spec.replicas = Some(4));
    assert_eq!(step(Some(&scaled), Some(&job)), Some(Step::Scale(4)));
    let suspended = JobObject {
        suspend: true,
        ..object.clone()
    };
    assert_eq!(
        step(Some(&suspended), Some(&job)),
        Some(Step::Suspend(true))
    );
    // A new one is refused.
    let refused = plan(Some(&object), None).objection.unwrap();
    assert_eq!(refused.reason(), "InvalidSpec");
}

#[test]
fn only_the_number_of_nodes_can_change() {
    let object = object();
    let job = job_of(&object);
    let scaled = |nodes| with(&object, |spec| spec.replicas = Some(nodes));
    assert_eq!(step(Some(&scaled(4)), Some(&job)), Some(Step::Scale(4)));
    let plan_of = |object: &JobObject| plan(Some(object), Some(&job));
    let refused = |object: &JobObject| plan_of(object).objection.unwrap();
    assert_eq!(
        refused(&scaled(5)).to_string(),
        "spec.replicas: is 5, must be between the job's minReplicas 1 and maxReplicas 4"
    );
    assert_eq!(plan_of(&scaled(5)).step, None, "it keeps the size it has");
    let other = with(&scaled(3), |spec| {
        spec.args = vec!["other.py".into()];
        spec.priority = Some(7);
    });
    assert_eq!(
        refused(&other),
        Objection::FixedFields(vec!["spec.args", "spec.priority"])
    );
    assert_eq!(plan_of(&other).step, None);
    let wrong = with(&object, |spec| spec.working_dir = Some("here".into()));
    assert_eq!(refused(&wrong).reason(), "InvalidSpec");
    // A job that is over keeps its number.
    let mut done = job.clone();
    tests::end(&mut done, Phase::Succeeded, "", Timestamp(0));
    assert_eq!(plan(Some(&scaled(4)), Some(&done)), Plan::NOTHING);
}

/// The bounds that are left out follow from `replicas`, but not from a later one.
#[test]
fn a_job_without_bounds_keeps_those_of_its_submission() {
    let fixed = with(&object(), |spec| {
        (spec.min_replicas, spec.max_replicas) = (None, None);
    });
    let job = job_of(&fixed);
    let scaled = with(&fixed, |spec| spec.replicas = Some(3));
    assert_eq!(
        plan(Some(&scaled), Some(&job)).objection,
        Some(Objection::OutOfRange {
            wanted: 3,
            min: 2,
            max: 2
        })
    );
    let unsaid = with(&fixed, |spec| spec.replicas = None);
    assert_eq!(plan(Some(&unsaid), Some(&job)), Plan::NOTHING);
}

#[test]
fn a_job_that_was_over_does_not_begin_again() {
    let known = JobObject {
        over: Some(Timestamp(0)),
        ..object()
    };
    assert_eq!(plan(Some(&known), None), Plan::NOTHING);
    let bad = JobObject {
        spec: Err("spec.replicas: is a text".into()),
        ..object()
    };
    let Plan {
        step, objection, ..
    } = plan(Some(&bad), None);
    assert_eq!((step, objection.unwrap().reason()), (None, "InvalidSpec"));
}

const SECOND: u64 = 1_000_000;

#[test]
fn the_limits_of_an_accepted_job_change_with_its_object() {
    let object = object();
    let job = training(job_of(&object));
    let limited = with(&object, |spec| {
        spec.active_deadline_seconds = Some(60);
        spec.ttl_seconds_after_finished = Some(10);
    });
    let held = JobObject {
        held: true,
        ..limited.clone()
    };
    let life = Lifetime {
        active_deadline_seconds: Some(60),
        ttl_seconds_after_finished: Some(10),
        ..Lifetime::default()
    };
    assert_eq!(step(Some(&held), Some(&job)), Some(Step::Limit(life)));
    let mut told = job.clone();
    told.spec.lifetime = life;
    assert_eq!(plan(Some(&held), Some(&told)), Plan::NOTHING);
    // They may go again, and a job that ends keeps those that it has.
    let unlimited = JobObject {
        held: true,
        ..object.clone()
    };
    let none = Step::Limit(Lifetime::default());
    assert_eq!(step(Some(&unlimited), Some(&told)), Some(none));
    assert_eq!(
        plan(Some(&unlimited), Some(&cancelled(told))),
        Plan::NOTHING
    );
    // A wrong limit is an objection, and nothing is done.
    let wrong = with(&held, |spec| spec.active_deadline_seconds = Some(0));
    let Plan {
        step, objection, ..
    } = plan(Some(&wrong), Some(&job));
    assert_eq!((step, objection.unwrap().reason()), (None, "InvalidSpec"));
    // So is a rule that changes.
    let ruled = with(&held, |spec| {
        spec.rules = vec![muster_core::spec::RuleDocument::read("failure: fail").unwrap()];
    });
    let objection = plan(Some(&ruled), Some(&job)).objection.unwrap();
    assert_eq!(objection, Objection::FixedFields(vec!["spec.rules"]));
}

#[test]
fn an_object_goes_some_time_after_its_job_has_ended() {
    let running = JobObject {
        ttl: Some(Duration::from_secs(10)),
        ..object()
    };
    let mut done = job_of(&running);
    tests::end(&mut done, Phase::Succeeded, "", Timestamp(5 * SECOND));
    // Its status says nothing of the end yet, and somebody may wait for that.
    let unsaid = plan_at(
        Some(&running),
        Some(&done),
        &Admission::Free,
        Timestamp(15 * SECOND),
    );
    assert_eq!(unsaid, Plan::NOTHING);
    let object = JobObject {
        over: Some(Timestamp(5 * SECOND)),
        ..running
    };
    let at = |seconds| {
        plan_at(
            Some(&object),
            Some(&done),
            &Admission::Free,
            Timestamp(seconds * SECOND),
        )
    };
    assert_eq!(
        (at(14).step, at(14).again),
        (None, Some(Timestamp(15 * SECOND)))
    );
    assert_eq!(at(15).step, Some(Step::Delete));
    let held = JobObject {
        held: true,
        ..object.clone()
    };
    let plan = plan_at(
        Some(&held),
        Some(&done),
        &Admission::Free,
        Timestamp(15 * SECOND),
    );
    assert_eq!(plan.step, Some(Step::Release), "first things first");
    assert_eq!(plan.again, None, "a moment that is past is not waited for");
    // The fleet has lost the job, and the status knows when it ended.
    let lost = JobObject {
        over: Some(Timestamp(5 * SECOND)),
        ..object
    };
    let at = |seconds| {
        plan_at(
            Some(&lost),
            None,
            &Admission::Free,
            Timestamp(seconds * SECOND),
        )
        .step
    };
    assert_eq!((at(14), at(15)), (None, Some(Step::Delete)));
}

#[test]
fn an_object_that_is_suspended_holds_its_job_back() {
    let object = object();
    let job = job_of(&object);
    let suspended = JobObject {
        suspend: true,
        ..object.clone()
    };
    assert_eq!(
        step(Some(&suspended), Some(&job)),
        Some(Step::Suspend(true))
    );
    let held_back = JobRecord {
        suspended: true,
        ..job
    };
    assert_eq!(step(Some(&suspended), Some(&held_back)), None);
    assert_eq!(
        step(Some(&object), Some(&held_back)),
        Some(Step::Suspend(false))
    );
}

#[test]
fn its_dependents_are_wanted_before_the_job_is_there_and_follow_it() {
    let mut object = object();
    let budget = |min_available| vec![Dependent::DisruptionBudget { min_available }];
    object.asks.budget = true;
    assert_eq!(object.dependents(None, &Admission::Free), budget(1));
    let all_or_none = with(&object, |spec| {
        (spec.min_replicas, spec.max_replicas) = (None, None);
    });
    assert_eq!(all_or_none.dependents(None, &Admission::Free), budget(2));
    let mut job = job_of(&object);
    // What was accepted counts.
    let edited = with(&object, |spec| spec.min_replicas = Some(2));
    assert_eq!(edited.dependents(Some(&job), &Admission::Free), budget(1));
    object.suspend = true;
    assert_eq!(object.dependents(Some(&job), &Admission::Free), []);
    object.suspend = false;
    tests::end(&mut job, Phase::Succeeded, "", Timestamp(0));
    assert_eq!(object.dependents(Some(&job), &Admission::Free), []);
    object.over = Some(Timestamp(1));
    assert_eq!(object.dependents(None, &Admission::Free), []);
}

/// A queue holds a job back as `suspend` does, and lets it have so many nodes.
#[test]
fn a_queue_holds_a_job_back_and_bounds_it() {
    let object = object();
    let job = training(job_of(&object));
    let step = |job: &JobRecord, admission: &Admission| {
        plan_at(Some(&object), Some(job), admission, Timestamp(0)).step
    };
    let waits = Admission::Waits(Said::new("Preempted", "for others"));
    assert_eq!(step(&job, &waits), Some(Step::Suspend(true)));
    let held = JobObject {
        held: true,
        asks: Asked {
            budget: true,
            policy: false,
            group: None,
        },
        ..object.clone()
    };
    let after = |job: &JobRecord, admission: &Admission| {
        plan_at(Some(&held), Some(job), admission, Timestamp(0)).step
    };
    // While nobody knows, all stays as it is, and nothing grows.
    assert_eq!(after(&job, &Admission::Unknown), None);
    let grown = with(&held, |spec| spec.replicas = Some(3));
    let of_grown = |admission| plan_at(Some(&grown), Some(&job), &admission, Timestamp(0)).step;
    assert_eq!(of_grown(Admission::Unknown), None);
    assert_eq!(of_grown(Admission::Admitted(2)), None);
    assert_eq!(of_grown(Admission::Admitted(3)), Some(Step::Scale(3)));
    assert_eq!(after(&job, &Admission::Admitted(1)), Some(Step::Scale(1)));
    let mut stopped = job.clone();
    (stopped.suspended, stopped.current) = (true, None);
    assert_eq!(step(&stopped, &Admission::Unknown), None);
    assert_eq!(step(&stopped, &waits), None);
    let admitted = Admission::Admitted(2);
    assert_eq!(step(&stopped, &admitted), Some(Step::Suspend(false)));
    let fewer = Admission::Admitted(1);
    assert_eq!(step(&stopped, &fewer), Some(Step::Scale(1)));
    // A budget is for a job that has nodes, or is about to get them.
    assert_eq!(held.dependents(None, &Admission::Unknown), []);
    assert_eq!(held.dependents(Some(&stopped), &waits), []);
    assert_eq!(held.dependents(Some(&stopped), &admitted).len(), 1);
    assert_eq!(held.dependents(Some(&job), &Admission::Unknown).len(), 1);
    // Its own word counts too.
    let suspended = JobObject {
        suspend: true,
        ..object.clone()
    };
    let step = plan_at(Some(&suspended), Some(&stopped), &admitted, Timestamp(0)).step;
    assert_eq!(step, None);
}
