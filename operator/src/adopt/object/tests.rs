//! Foreign objects, and what was made for them, as they are read; and what is done about both together.

use muster_foreign::MANAGER;

use super::*;

fn kind() -> Adoptable {
    adopt::adoptable("pytorchjobs").unwrap()
}

fn seen(change: impl FnOnce(&mut Value)) -> Seen {
    let container =
        json!({ "name": "pytorch", "image": "train:1", "command": ["python", "train.py"] });
    let template =
        json!({ "metadata": { "creationTimestamp": null }, "spec": { "containers": [container] } });
    let mut object = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": { "name": "digits", "namespace": "team-a", "uid": "u", "generation": 3, "resourceVersion": "9",
            "creationTimestamp": "2026-11-25T00:00:00Z" },
        "spec": {
            "runPolicy": { "managedBy": MANAGER, "ttlSecondsAfterFinished": 60 },
            "pytorchReplicaSpecs": { "Worker": { "replicas": 2, "template": template } },
        },
    });
    change(&mut object);
    Seen::of(
        kind(),
        Raw::of(serde_json::from_value(object).unwrap()).unwrap(),
    )
}

#[test]
fn an_object_is_a_job_with_the_labels_of_its_kind() {
    let seen = seen(|_| {});
    assert_eq!(
        (&seen.object.claim, seen.object.generation),
        (&Claim::Ours, 3)
    );
    let wanted = seen.object.job.unwrap();
    assert_eq!(wanted.spec.replicas, Some(2));
    assert_eq!(wanted.spec.ttl_seconds_after_finished, Some(60));
    let template: Value = serde_json::from_str(&wanted.template.unwrap()).unwrap();
    assert_eq!(
        template["metadata"],
        json!({ "labels": { "training.kubeflow.org/job-name": "digits", "training.kubeflow.org/operator-name": "pytorchjob-controller" } }),
        "and a time that is null is none"
    );
}

#[test]
fn what_is_wrong_with_an_object_names_its_fields() {
    let seen = seen(|object| object["spec"]["colour"] = json!("red"));
    let why = seen.object.job.unwrap_err();
    assert!(why.starts_with("spec.colour: unknown field"), "{why}");
}

/// A definition may have no schema of its template.
#[test]
fn labels_of_any_form_are_refused_or_read() {
    let job = |labels: Value| {
        let template = "/spec/pytorchReplicaSpecs/Worker/template/metadata";
        let seen = seen(|object| *object.pointer_mut(template).unwrap() = labels);
        seen.object.job
    };
    for odd in [json!("x"), json!(7), json!([])] {
        let why = job(json!({ "labels": odd })).unwrap_err();
        assert!(why.contains("metadata.labels"), "{why}");
        job(odd).unwrap_err();
    }
    job(json!({ "labels": null })).unwrap();
    job(json!({ "labels": { "a": "b" } })).unwrap();
}

#[test]
fn an_object_of_another_operator_is_hardly_kept() {
    let others = seen(|object| object["spec"]["runPolicy"]["managedBy"] = Value::Null);
    assert_eq!(others.object.claim, Claim::Others);
    assert_eq!(others.object.job, Err(NOT_OURS.to_owned()));
}

#[test]
fn somebody_else_who_wrote_the_status_is_known() {
    let by = |manager: &str, part: Value| {
        seen(|object| {
            object["status"] = json!({ "conditions": [] });
            object["metadata"]["managedFields"] =
                json!([{ "manager": manager, "operation": "Update", "subresource": part }]);
        })
        .object
        .written_by
    };
    let status = || json!("status");
    assert_eq!(
        by("training-operator", status()),
        Some("training-operator".into())
    );
    assert_eq!(by(MANAGER_OF_FIELDS, status()), None);
    assert_eq!(by("kubectl", Value::Null), None);
    // A definition without a status of its own.
    let whole = |managers: &[&str]| {
        let fields = json!({ "f:spec": {}, "f:status": { "f:phase": {} } });
        let each = managers.iter().map(
            |manager| json!({ "manager": manager, "operation": "Update", "fieldsV1": fields }),
        );
        let each: Vec<Value> = each.collect();
        let whole = seen(|object| {
            object["status"] = json!({ "conditions": [] });
            object["metadata"]["managedFields"] = json!(each);
        });
        whole.object.written_by
    };
    let operator = Some("trainingjob-operator".to_owned());
    assert_eq!(whole(&["trainingjob-operator"]), operator);
    for export in ["kubectl", "kubectl-client-side-apply", "kubectl-create"] {
        assert_eq!(whole(&[export]), None, "an export, applied anew");
        assert_eq!(whole(&[export, "trainingjob-operator"]), operator);
    }
    assert_eq!(whole(&["kubectlish"]), Some("kubectlish".into()));
}

#[test]
fn an_end_has_its_time() {
    let at = |status: Value| over(&kind(), &status).map(|at| at.0 / 1_000_000);
    let end = |status: &str| {
        json!([{ "type": "Running", "status": "False" },
        { "type": "Succeeded", "status": status, "lastTransitionTime": "1970-01-01T00:00:07Z" }])
    };
    assert_eq!(at(json!({ "conditions": end("True") })), Some(7));
    let status = json!({ "conditions": end("True"), "completionTime": "1970-01-01T00:00:09Z" });
    assert_eq!(at(status), Some(9));
    assert_eq!(at(json!({ "conditions": end("False") })), None);
    assert_eq!(at(Value::Null), None);
    let words = adopt::adoptable("aitrainingjobs").unwrap();
    let timeout = json!({ "conditions": [{ "type": "Timeout", "status": "True" }], "endTime": "1970-01-01T00:00:05Z" });
    assert_eq!(over(&words, &timeout), Some(Timestamp(5_000_000)));
    assert_eq!(at(timeout), None, "it is no word of this kind");
}

fn train_job(change: impl FnOnce(&mut Value)) -> Seen {
    let mut object = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": { "name": "digits", "namespace": "team-a", "uid": "u", "generation": 5, "resourceVersion": "9",
            "labels": { LABEL: "true" } },
        "spec": {
            "managedBy": "kueue.x-k8s.io/multikueue", "runtimeRef": { "name": "torch" },
            "trainer": { "command": ["torchrun", "train.py"] },
        },
    });
    change(&mut object);
    let raw = Raw::of(serde_json::from_value(object).unwrap()).unwrap();
    Seen::of(adopt::adoptable("trainjobs").unwrap(), raw)
}

fn patches(pool: &str) -> Value {
    let pod = json!({ "spec": { "nodeSelector": { "pool": pool } } });
    let node = json!({ "name": "node", "template": { "spec": { "template": pod } } });
    let spec = json!({ "template": { "spec": { "replicatedJobs": [node] } } });
    json!([{ "manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": spec }])
}

/// One that began with these patches.
fn made_with(patches: Value, suspend: bool) -> Made {
    let spec = SpecDocument {
        replicas: Some(2),
        suspend: Some(suspend),
        args: vec!["train.py".into()],
        working_dir: Some("/".into()),
        ..SpecDocument::default()
    };
    Made {
        bytes: 0,
        name: JobName {
            namespace: "team-a".into(),
            name: "digits".into(),
        },
        uid: JobUid::from("m".to_owned()),
        version: "8".into(),
        owner_kind: None,
        patches: runtime::patches(&json!({ "runtimePatches": patches })),
        child: Child {
            owner: Some("u".into()),
            made_from: Some(1),
            deleting: false,
            job: Ok(Wanted {
                spec,
                template: None,
            }),
            rejected: None,
        },
        ended: None,
    }
}

fn plan_of(seen: &Seen, made: &Made) -> (Option<bool>, Option<String>) {
    let beside = seen.beside(made).unwrap();
    let plan = adoption::plan(Some(&beside), Some(&made.child), Timestamp(0));
    let suspends = plan.step.map(|step| match step {
        adoption::Step::Update(change) => change.suspend,
        other => panic!("{other:?}"),
    });
    (suspends, plan.objection.map(|why| why.to_string()))
}

/// Kueue suspends with one patch, and empties its own with a second one. A list, or a slow watch, shows
/// both at once.
#[test]
fn an_eviction_is_seen_also_when_the_patches_went_with_it() {
    let began = made_with(patches("spot"), false);
    let emptied = json!([{ "manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": {} }]);
    for left in [json!([]), emptied, patches("spot")] {
        let evicted = train_job(|object| {
            object["spec"]["suspend"] = json!(true);
            object["spec"]["runtimePatches"] = left.clone();
        });
        assert_eq!(plan_of(&evicted, &began), (Some(true), None), "{left}");
    }
}

#[test]
fn a_job_admitted_to_other_nodes_runs_and_says_that_it_keeps_its_own() {
    let held = made_with(patches("spot"), true);
    let admitted = train_job(|object| {
        object["spec"]["suspend"] = json!(false);
        object["spec"]["runtimePatches"] = patches("other");
    });
    let (suspends, objection) = plan_of(&admitted, &held);
    assert_eq!(suspends, Some(false));
    let why = objection.unwrap();
    assert!(why.contains(runtime::PATCHED), "{why}");
}

#[test]
fn a_begun_job_whose_label_is_gone_says_that_it_is_not_ours() {
    let began = made_with(patches("spot"), false);
    let gone = train_job(|object| {
        object["metadata"]["labels"] = json!({});
        object["spec"]["runtimePatches"] = patches("spot");
    });
    let (suspends, objection) = plan_of(&gone, &began);
    let why = objection.unwrap();
    assert!(suspends.is_none() && why.ends_with(NOT_OURS), "{why}");
}

/// A coordinator of another version may read the same spec in other words.
#[test]
fn a_status_that_is_written_with_the_object_makes_no_other_version() {
    let kind = adopt::adoptable("aitrainingjobs").unwrap();
    let seen = |generation: i64, image: &str| {
        let object = json!({
            "apiVersion": "kongming.cce.baiudbce.com/v1", "kind": "AITrainingJob",
            "metadata": { "name": "digits", "namespace": "team-a", "uid": "u", "generation": generation,
                "labels": { LABEL: "true" } },
            "spec": { "image": image, "replicas": 1 }, "status": { "phase": generation },
        });
        Seen::of(
            kind,
            Raw::of(serde_json::from_value(object).unwrap()).unwrap(),
        )
    };
    let first = seen(1, "a").object;
    assert_eq!(seen(7, "a").object.generation, first.generation);
    assert_ne!(seen(1, "b").object.generation, first.generation);
    let made = super::super::made::object(&kind, &first, &Wanted::default());
    let made = Made::of(
        serde_json::from_value({
            let mut made = made;
            made["metadata"]["uid"] = json!("m");
            made
        })
        .unwrap(),
    );
    assert_eq!(made.unwrap().child.made_from, Some(first.generation));
}
