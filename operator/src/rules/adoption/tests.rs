//! What is done about a PyTorchJob, state by state.

use super::*;

const NOW: Timestamp = Timestamp(1_000_000_000);

fn wanted(replicas: i64) -> Wanted {
    Wanted {
        spec: SpecDocument {
            replicas: Some(replicas),
            min_replicas: Some(1),
            max_replicas: Some(4),
            args: vec!["train.py".into()],
            working_dir: Some("/".into()),
            ..SpecDocument::default()
        },
        template: Some("{}".into()),
    }
}

fn object(job: Wanted) -> Adopted {
    Adopted {
        name: JobName {
            namespace: "team-a".into(),
            name: "digits".into(),
        },
        uid: "u-1".into(),
        claim: Claim::Ours,
        generation: 1,
        deleting: false,
        suspend: Some(job.is_suspended()),
        job: Ok(job),
        over: None,
        written_by: None,
    }
}

fn child(job: Wanted) -> Child {
    Child {
        owner: Some("u-1".into()),
        made_from: Some(1),
        deleting: false,
        job: Ok(job),
        rejected: None,
    }
}

fn changed(change: impl FnOnce(&mut SpecDocument)) -> Wanted {
    let mut job = wanted(2);
    change(&mut job.spec);
    job
}

#[test]
fn a_label_or_a_manager_names_us() {
    let ours = [
        (None, Some(MANAGER)),
        (Some("true"), None),
        (Some("true"), Some("")),
        (Some("true"), Some(LEFT_ALONE)),
        (Some("false"), Some(MANAGER)),
    ];
    for (label, manager) in ours {
        assert_eq!(claim(label, manager), Claim::Ours, "{label:?} {manager:?}");
    }
    for (label, manager) in [
        (None, None),
        (Some("false"), None),
        (Some("yes"), None),
        (None, Some(LEFT_ALONE)),
    ] {
        assert_eq!(claim(label, manager), Claim::Others, "{label:?}");
    }
    let operator = "kubeflow.org/training-operator";
    assert_eq!(
        claim(Some("true"), Some(operator)),
        Claim::Both(operator.into())
    );
}

#[test]
fn an_object_gets_its_job_and_shows_it() {
    let object = object(wanted(2));
    let first = plan(Some(&object), None, NOW);
    assert_eq!(first.step, Some(Step::Create(Box::new(wanted(2)))));
    assert_eq!(first.shows, Shows::Created);
    let then = plan(Some(&object), Some(&child(wanted(2))), NOW);
    assert_eq!((then.step, then.objection), (None, None));
    assert_eq!(then.shows, Shows::Job);
}

#[test]
fn nothing_is_done_about_what_is_not_for_us() {
    let mut other = object(wanted(2));
    other.claim = Claim::Others;
    assert_eq!(plan(Some(&other), None, NOW), Plan::NOTHING);
    other.claim = Claim::Both("kubeflow.org/training-operator".into());
    let both = plan(Some(&other), None, NOW);
    assert_eq!((both.step, both.shows), (None, Shows::AsItIs));
    assert_eq!(both.objection.unwrap().reason(), "TwoManagers");
    let mut begun = object(wanted(2));
    begun.written_by = Some("training-operator".into());
    let begun = plan(Some(&begun), None, NOW);
    assert_eq!((begun.step, begun.shows), (None, Shows::AsItIs));
    assert_eq!(begun.objection.unwrap().reason(), "OtherOperator");
}

/// The claim is what begins it. A label that is taken away later stops nothing.
#[test]
fn an_object_that_has_its_job_stays_ours() {
    let mut object = object(changed(|spec| spec.suspend = Some(true)));
    object.claim = Claim::Others;
    let plan = plan(Some(&object), Some(&child(wanted(2))), NOW);
    assert!(matches!(plan.step, Some(Step::Update(_))), "{plan:?}");
}

#[test]
fn a_suspended_object_has_no_job_before_it_is_resumed_first() {
    let held = object(changed(|spec| spec.suspend = Some(true)));
    let before = plan(Some(&held), None, NOW);
    assert_eq!((before.step, before.shows), (None, Shows::Suspended));
    // After its start it keeps its job, which is suspended.
    let later = plan(Some(&held), Some(&child(wanted(2))), NOW);
    let Some(Step::Update(change)) = later.step else {
        panic!("{later:?}");
    };
    assert!(change.suspend);
    let same = child(changed(|spec| spec.suspend = Some(true)));
    assert_eq!(plan(Some(&held), Some(&same), NOW).step, None);
}

#[test]
fn numbers_and_deadlines_are_kept_in_step() {
    let mut object = object(changed(|spec| {
        spec.replicas = Some(3);
        spec.active_deadline_seconds = Some(60);
    }));
    object.generation = 2;
    let plan_of = |object: &Adopted| plan(Some(object), Some(&child(wanted(2))), NOW);
    let expected = Change {
        replicas: Some(3),
        suspend: false,
        active_deadline_seconds: Some(60),
    };
    assert_eq!(plan_of(&object).step, Some(Step::Update(expected)));
    object.job = Ok(wanted(9));
    let out = plan_of(&object);
    assert_eq!((out.step, out.shows), (None, Shows::Job));
    assert_eq!(
        out.objection,
        Some(Objection::OutOfRange {
            wanted: 9,
            min: 1,
            max: 4
        })
    );
    // A job of a fixed size stays so.
    let fixed = |nodes: i64| Wanted {
        spec: SpecDocument {
            min_replicas: None,
            max_replicas: None,
            ..wanted(nodes).spec
        },
        ..wanted(nodes)
    };
    object.job = Ok(fixed(3));
    let out = plan(Some(&object), Some(&child(fixed(2))), NOW);
    assert!(matches!(
        out.objection,
        Some(Objection::OutOfRange { min: 2, max: 2, .. })
    ));
}

#[test]
fn what_cannot_change_is_told() {
    let mut object = object(changed(|spec| {
        spec.priority = Some(7);
        spec.args = vec!["other.py".into()];
    }));
    object.generation = 2;
    let differs = plan(Some(&object), Some(&child(wanted(2))), NOW);
    assert_eq!(differs.step, None);
    assert_eq!(
        differs.objection,
        Some(Objection::FixedFields(vec!["spec.args", "spec.priority"]))
    );
    object.job = Ok(Wanted {
        template: Some(r#"{"spec":1}"#.into()),
        ..wanted(2)
    });
    let differs = plan(Some(&object), Some(&child(wanted(2))), NOW);
    let fields = Objection::FixedFields(vec!["spec.template"]);
    assert_eq!(differs.objection, Some(fields));
    object.job = Err("spec.x: unknown field".into());
    let differs = plan(Some(&object), Some(&child(wanted(2))), NOW);
    assert_eq!(differs.shows, Shows::Job);
    assert_eq!(
        differs.objection.unwrap().to_string(),
        "the change is refused, and the job goes on as it was: spec.x: unknown field"
    );
}

/// A queue that takes its quota back waits for nothing else, and one that gives it pays from then on.
#[test]
fn what_holds_a_job_back_is_obeyed_whatever_else_is_refused() {
    let other = |suspend: bool| {
        object(changed(|spec| {
            spec.args = vec!["other.py".into()];
            spec.suspend = Some(suspend);
        }))
    };
    let unread = |suspend: bool| Adopted {
        job: Err("spec.x: unknown field".into()),
        ..other(suspend)
    };
    let many = |suspend: bool| Adopted {
        job: Ok(Wanted {
            spec: SpecDocument {
                suspend: Some(suspend),
                ..wanted(9).spec
            },
            ..wanted(9)
        }),
        ..other(suspend)
    };
    for suspend in [true, false] {
        let has = child(changed(|spec| spec.suspend = Some(!suspend)));
        for (object, reason) in [
            (other(suspend), "ChangeRefused"),
            (unread(suspend), "ChangeRefused"),
            (many(suspend), "OutOfRange"),
        ] {
            let object = Adopted {
                generation: 2,
                ..object
            };
            let plan = plan(Some(&object), Some(&has), NOW);
            let only = Change {
                suspend,
                ..Change::of(&wanted(2).spec)
            };
            assert_eq!(plan.step, Some(Step::Update(only)), "{object:?}");
            assert_eq!(plan.objection.unwrap().reason(), reason);
        }
    }
    let unknown = Adopted {
        suspend: None,
        ..unread(true)
    };
    assert_eq!(
        plan(Some(&unknown), Some(&child(wanted(2))), NOW).step,
        None
    );
}

/// A coordinator of another version may read the same object in other words.
#[test]
fn an_object_that_nobody_changed_differs_in_nothing() {
    let object = object(changed(|spec| spec.priority = Some(7)));
    let plan = plan(Some(&object), Some(&child(wanted(2))), NOW);
    assert_eq!((plan.step, plan.objection), (None, None));
}

#[test]
fn what_would_mean_something_else_fails() {
    let mut bad = object(wanted(2));
    bad.job = Err("spec.pytorchReplicaSpecs: is no mapping".into());
    let refused = plan(Some(&bad), None, NOW);
    assert_eq!((refused.step, refused.shows), (None, Shows::Failed));
    assert_eq!(refused.objection.unwrap().reason(), "FailedValidation");
    let rejected = |is_final| Child {
        rejected: Some(Rejected {
            message: "spec.template: is too long".into(),
            is_final,
        }),
        ..child(wanted(2))
    };
    let good = object(wanted(2));
    let never = plan(Some(&good), Some(&rejected(true)), NOW);
    assert_eq!(never.shows, Shows::Failed);
    let later = plan(Some(&good), Some(&rejected(false)), NOW);
    assert_eq!(later.shows, Shows::Created);
    assert_eq!(later.objection.unwrap().reason(), "NotYet");
}

#[test]
fn the_job_goes_with_its_object() {
    let own = child(wanted(2));
    let delete = Some(Step::DeleteChild);
    assert_eq!(plan(None, Some(&own), NOW).step, delete);
    let mut going = object(wanted(2));
    going.deleting = true;
    assert_eq!(plan(Some(&going), Some(&own), NOW).step, delete);
    assert_eq!(plan(Some(&going), None, NOW), Plan::NOTHING);
    // The same name again is another object, which waits for the end of the first.
    let mut again = object(wanted(2));
    again.uid = "u-2".into();
    let other = plan(Some(&again), Some(&own), NOW);
    assert_eq!((other.step, other.shows), (delete, Shows::Created));
    let stopping = Child {
        deleting: true,
        ..child(wanted(2))
    };
    let waits = plan(Some(&again), Some(&stopping), NOW);
    assert_eq!((waits.step, waits.shows), (None, Shows::Created));
    assert_eq!(plan(None, Some(&stopping), NOW), Plan::NOTHING);
}

#[test]
fn a_job_that_is_over_stays_over_and_goes_after_its_time() {
    let mut over = object(changed(|spec| {
        spec.ttl_seconds_after_finished = Some(60);
    }));
    over.over = Some(NOW);
    for child in [None, Some(&child(wanted(2)))] {
        let waits = plan(Some(&over), child, NOW);
        let due = NOW + Duration::from_secs(60);
        assert_eq!((waits.step, waits.again), (None, Some(due)));
        let goes = plan(Some(&over), child, due);
        assert_eq!(goes.step, Some(Step::DeleteObject));
    }
    over.job = Ok(wanted(2));
    assert_eq!(plan(Some(&over), None, NOW), Plan::NOTHING, "not again");
    // The object goes after its time, and not its job before it.
    let object = object(changed(|spec| {
        spec.ttl_seconds_after_finished = Some(60);
    }));
    let Some(Step::Create(made)) = plan(Some(&object), None, NOW).step else {
        panic!("no job");
    };
    assert_eq!(made.spec.ttl_seconds_after_finished, None);
}
