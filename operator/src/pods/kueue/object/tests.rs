use muster_core::{
    id::JobUid,
    spec::{JobDocument, Metadata, SpecDocument},
};

use super::*;

fn job() -> JobRecord {
    let document = JobDocument {
        api_version: API_VERSION.into(),
        kind: spec::KIND.into(),
        metadata: Metadata {
            name: "digits".into(),
            namespace: Some("team-a".into()),
        },
        spec: SpecDocument {
            args: vec!["train.py".into()],
            ..SpecDocument::default()
        },
    };
    let (name, spec) = document.check().unwrap();
    let uid = JobUid::from("0b4e-99-3f2a1");
    JobRecord::submitted(uid, name, spec, String::new(), Timestamp(0))
}

fn asks() -> Asks {
    Asks {
        queue: "gpus".into(),
        count: 3,
        priority: -7,
    }
}

/// As the API server gives it back.
fn object(status: Value) -> Value {
    let pod = json!({
        "metadata": { "name": "digits", "labels": { "a": "1" }, "annotations": {}, "ownerReferences": [] },
        "spec": { "containers": [] },
    });
    let mut object = made(&job(), &asks(), &pod, "v1beta2");
    object["metadata"]["uid"] = json!("w-1");
    object["metadata"]["resourceVersion"] = json!("7");
    object["metadata"]["generation"] = json!(2);
    object["status"] = status;
    object
}

fn seen(status: Value) -> Seen {
    Seen::of(object(status)).unwrap()
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({ "type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": "1970-01-01T00:00:01Z" })
}

fn admitted(more: Value) -> Value {
    let flavors = json!({ "nvidia.com/gpu": "h100", "cpu": "h100", "memory": "plain" });
    let assignment = json!({ "name": "main", "count": 3, "flavors": flavors });
    let mut conditions = vec![
        condition("QuotaReserved", "True", "QuotaReserved"),
        condition("Admitted", "True", "Admitted"),
    ];
    conditions.extend(more.as_array().unwrap().clone());
    json!({ "conditions": conditions, "admission": { "clusterQueue": "all", "podSetAssignments": [assignment] } })
}

#[test]
fn a_workload_asks_for_whole_pods_and_is_the_job_s() {
    let object = object(Value::Null);
    assert_eq!(object["apiVersion"], "kueue.x-k8s.io/v1beta2");
    assert_eq!(object["metadata"]["name"], "musterjob-digits-3f2a1");
    let labels = &object["metadata"]["labels"];
    assert_eq!(
        (&labels[JOB_UID], &labels[OWNER_UID]),
        (&json!("0b4e-99-3f2a1"), &json!("0b4e-99-3f2a1"))
    );
    let template = json!({ "metadata": { "labels": { "a": "1" }, "annotations": {} }, "spec": { "containers": [] } });
    let spec = json!({
        "queueName": "gpus", "priority": -7, "active": true,
        "podSets": [{ "name": "main", "count": 3, "template": template }],
    });
    assert_eq!(object["spec"], spec);
    let read = Seen::of(object).unwrap();
    let expected = Workload {
        queue: "gpus".into(),
        count: 3,
        priority: -7,
        active: true,
        ..Workload::default()
    };
    let own = JobKey::new(&job().name, &job().uid);
    assert_eq!((read.workload, read.key), (expected, own));
}

#[test]
fn an_admission_is_read_with_what_it_says_of_pods() {
    let mut status = admitted(json!([condition("PodsReady", "False", "WaitForStart")]));
    status["reclaimablePods"] = json!([{ "name": "main", "count": 1 }]);
    let update = json!({ "name": "main", "annotations": { "a": "1" } });
    let other = json!({ "name": "others" });
    status["admissionChecks"] =
        json!([{ "name": "c", "state": "Ready", "message": "", "podSetUpdates": [update, other] }]);
    let read = seen(status);
    let expected = Workload {
        reserved: true,
        admitted: true,
        assigned: Some(3),
        reclaimable: 1,
        ready: Some(false),
        ..seen(Value::Null).workload
    };
    assert_eq!(read.workload, expected);
    let placement = Placement {
        flavors: vec!["h100".into(), "plain".into()],
        updates: vec![update],
    };
    assert_eq!(read.placement, placement);
}

#[test]
fn it_tells_what_a_job_waits_for() {
    let said = |reason: &str| Some(Said::new(reason, "m"));
    let waits = |status: Value| seen(status).workload.waits;
    let pending = json!({ "conditions": [condition("QuotaReserved", "False", "WaitingForQuota")] });
    assert_eq!(waits(pending), said("WaitingForQuota"));
    assert_eq!(waits(json!({})), None);
    let mut open = admitted(json!([]));
    open["conditions"][1]["status"] = json!("False");
    assert_eq!(waits(open.clone()), said("Admitted"));
    open["admissionChecks"] = json!([
        { "name": "nodes", "state": "Pending", "message": "0 of 3" }, { "name": "other", "state": "Ready", "message": "" },
    ]);
    assert_eq!(
        waits(open),
        Some(Said::new("AdmissionChecks", "nodes is Pending: 0 of 3"))
    );
    let evicted = seen(admitted(json!([condition("Evicted", "True", "Preempted")]))).workload;
    assert_eq!(evicted.evicted, said("Preempted"));
    // One that was evicted once and is admitted again is not evicted.
    let before = seen(admitted(json!([condition(
        "Evicted",
        "False",
        "QuotaReserved"
    )])))
    .workload;
    assert_eq!(before.evicted, None);
    let finished =
        seen(json!({ "conditions": [condition("Finished", "True", "Failed")] })).workload;
    assert_eq!(finished.finished, said("Failed"));
}

fn patched(seen: &Seen, step: &Step) -> Value {
    let patch = patch(seen, step, Timestamp(5_000_000)).unwrap();
    let metadata = json!({ "uid": "w-1", "resourceVersion": "7" });
    assert_eq!(patch["metadata"], metadata, "written on what was read");
    patch["status"].clone()
}

fn of<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let mut all = status["conditions"].as_array().unwrap().iter();
    all.find(|one| one["type"] == kind).unwrap()
}

#[test]
fn a_release_takes_the_admission_away_and_queues_again() {
    let evicted = seen(admitted(json!([condition("Evicted", "True", "Preempted")])));
    let step = Step::Release {
        why: Said::new("Preempted", "for others"),
        requeued: true,
    };
    let status = patched(&evicted, &step);
    for given_back in ["admission", "reclaimablePods"] {
        assert_eq!(status.get(given_back), Some(&Value::Null), "{given_back}");
    }
    for (kind, holds, reason) in [
        ("QuotaReserved", "False", "Pending"),
        ("Admitted", "False", "NoReservation"),
        ("Requeued", "True", "Preempted"),
        ("Evicted", "True", "Preempted"),
    ] {
        let one = of(&status, kind);
        assert_eq!(
            (&one["status"], &one["reason"]),
            (&json!(holds), &json!(reason)),
            "{kind}"
        );
    }
    assert_eq!(
        of(&status, "QuotaReserved")["lastTransitionTime"],
        "1970-01-01T00:00:05Z"
    );
    assert_eq!(of(&status, "QuotaReserved")["observedGeneration"], 2);
    assert_eq!(
        of(&status, "Evicted")["lastTransitionTime"],
        "1970-01-01T00:00:01Z"
    );
}

#[test]
fn pods_are_ready_and_given_back_and_the_end_is_told() {
    let first = seen(admitted(json!([])));
    let ready = patched(&first, &Step::Ready(true));
    assert_eq!(of(&ready, "PodsReady")["reason"], "Started");
    assert_eq!(ready.get("admission"), None, "it stays");
    let runs = seen(admitted(json!([condition("PodsReady", "True", "Started")])));
    let broken = patched(&runs, &Step::Ready(false));
    assert_eq!(of(&broken, "PodsReady")["reason"], "WaitForRecovery");
    let recovers = seen(admitted(json!([condition(
        "PodsReady",
        "False",
        "WaitForRecovery"
    )])));
    let again = patched(&recovers, &Step::Ready(true));
    assert_eq!(of(&again, "PodsReady")["reason"], "Recovered");
    let reclaimed = patched(&first, &Step::Reclaim(2));
    let expected = json!({ "reclaimablePods": [{ "name": "main", "count": 2 }] });
    assert_eq!(reclaimed, expected);
    let finish = Step::Finish {
        succeeded: true,
        message: "done".into(),
    };
    let done = patched(&first, &finish);
    let finished = of(&done, "Finished");
    assert_eq!(
        (&finished["status"], &finished["reason"]),
        (&json!("True"), &json!("Succeeded"))
    );
    assert_eq!(done["conditions"].as_array().unwrap().len(), 3);
    assert_eq!(patch(&first, &Step::Delete, Timestamp(0)), None);
}
