//! Jobs as MusterJob objects: what users of kubectl do, and what they see.

use muster_core::{exit::Exit, fleet::Policy};
use muster_proto::v1;
use serde_json::{Value, json};
use tonic::Code;

use super::{Method, World, real};
use crate::{
    agent::{FakeAgent, Order},
    cluster::Cluster,
    kubectl::{Kubectl, NAMESPACE, code, condition, holding, in_phase, job_of_two as spec},
    server::{Server, phase, within},
};

fn reference(name: &str) -> Option<v1::JobRef> {
    Some(v1::JobRef {
        namespace: NAMESPACE.into(),
        name: name.into(),
    })
}

async fn job(server: &Server, name: &str) -> Result<v1::Job, tonic::Status> {
    let request = v1::GetJobRequest {
        r#ref: reference(name),
    };
    let answer = within(server.jobs().get(request)).await?;
    Ok(answer.into_inner().job.unwrap())
}

async fn start(world: &World) -> Server {
    let state = tempfile::tempdir().unwrap();
    Server::start_beside(state, Policy::default(), Some(world.follows_jobs())).await
}

#[tokio::test]
async fn jobs_are_objects_of_the_api_server_that_is_not_there() {
    Box::pin(suite(World::Fake(Cluster::start().await))).await;
}

#[tokio::test]
async fn jobs_are_objects_of_a_real_api_server() {
    match real::Server::start().await {
        Some(server) => {
            let world = World::Real(server);
            Box::pin(rules(&world)).await;
            Box::pin(suite(world)).await;
        }
        None => eprintln!(
            "!!! no kube-apiserver: that a REAL API server takes MusterJob objects, and refuses bad ones, is NOT SHOWN"
        ),
    }
}

async fn suite(world: World) {
    let kubectl = world.kubectl();
    let server = start(&world).await;
    let agents = [
        FakeAgent::start(&server, "node-a", &[], true).await,
        FakeAgent::start(&server, "node-b", &[], true).await,
    ];
    let uid = Box::pin(a_job_runs(&world, &server)).await;
    Box::pin(it_is_scaled(&world, &server)).await;
    Box::pin(a_bad_spec_is_a_condition(&world)).await;

    // The deletion waits for the workers, and takes the job along.
    kubectl.delete("hello").await;
    kubectl.until_gone("hello").await;
    let gone = job(&server, "hello").await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound, "{gone}");

    // The same name again is another job.
    kubectl.apply("hello", spec()).await.unwrap();
    let again = kubectl.until("hello", in_phase("Running")).await;
    assert_ne!(again["metadata"]["uid"], json!(uid));
    assert_eq!(again["status"]["jobGeneration"], 1);

    let server = Box::pin(it_succeeds(&world, server, agents)).await;
    Box::pin(names_are_taken_once(&world, &server)).await;
}

async fn a_job_runs(world: &World, server: &Server) -> String {
    let kubectl = world.kubectl();
    let applied = kubectl.apply("hello", spec()).await.unwrap();
    let uid = applied["metadata"]["uid"].as_str().unwrap().to_owned();
    let held =
        |object: &Value| in_phase("Running")(object) && object["metadata"]["finalizers"].is_array();
    let object = kubectl.until("hello", held).await;
    assert_eq!(holding(&object), ["Accepted", "Running"], "{object:#}");
    assert_eq!(
        object["metadata"]["finalizers"],
        json!(["muster.dev/coordinated-stop"])
    );
    let status = &object["status"];
    assert_eq!(
        (&status["nodes"], &status["range"], &status["replicas"]),
        (&json!("1/1"), &json!("1-2"), &json!(1)),
        "{status:#}"
    );
    assert_eq!(
        (&status["observedGeneration"], &status["jobGeneration"]),
        (&json!(1), &json!(1))
    );
    let found = job(server, "hello").await.unwrap();
    assert_eq!(found.uid, uid, "the job is the object's");
    assert_eq!(phase(&found), v1::JobPhase::Running);

    // It is changed through its object.
    let request = v1::ScaleRequest {
        r#ref: reference("hello"),
        nodes: 2,
    };
    let refused = within(server.jobs().scale(request)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(
        (refused.message()).contains("kubectl scale mj/hello --replicas=2 -n team-a"),
        "{refused}"
    );

    // The story is told to the object.
    let told = within(async {
        loop {
            let events = world.events_of(NAMESPACE, &uid).await;
            let formed = |event: &Value| event["reason"] == "WorldFormed";
            if events.iter().any(formed) {
                return events;
            }
        }
    })
    .await;
    assert_eq!(told[0]["reason"], "Submitted", "{told:#?}");
    assert_eq!(told[0]["regarding"]["kind"], "MusterJob");
    uid
}

async fn it_is_scaled(world: &World, server: &Server) {
    let kubectl = world.kubectl();
    let before = kubectl.get("hello").await.unwrap();
    kubectl.scale("hello", 2).await.unwrap();
    let grown = |object: &Value| object["status"]["nodes"] == "2/2";
    let object = kubectl.until("hello", grown).await;
    assert_eq!(object["status"]["observedGeneration"], 2);
    assert_eq!(object["status"]["replicas"], 2);
    assert_eq!(condition(&object, "Degraded")["status"], "False");
    let path = Kubectl::path("/hello/scale");
    let scale = kubectl.ask(Method::GET, &path, None).await.unwrap();
    assert_eq!(
        (&scale["spec"]["replicas"], &scale["status"]["replicas"]),
        (&json!(2), &json!(2)),
        "{scale}"
    );
    assert!(scale["status"]["selector"].is_string(), "{scale}");
    let status = job(server, "hello").await.unwrap().status.unwrap();
    assert_eq!(status.replicas, 2);

    // What the coordinator relies on: a status is written on the version that was read, and a patch
    // of one part does not touch the other.
    let stale = json!({
        "metadata": { "resourceVersion": before["metadata"]["resourceVersion"] },
        "status": { "phase": "Failed" },
    });
    let refused = kubectl.patch("hello", "/status", stale).await.unwrap_err();
    assert_eq!(code(&refused), 409, "{refused}");
    let spec_in_status = json!({ "spec": { "replicas": 1 } });
    let same = (kubectl.patch("hello", "/status", spec_in_status).await).unwrap();
    assert_eq!(same["spec"]["replicas"], 2);
    let status_in_spec = json!({ "status": { "phase": "Failed" } });
    let same = kubectl.patch("hello", "", status_in_spec).await.unwrap();
    assert_eq!(same["status"]["phase"], "Running");
    assert_eq!(same["metadata"]["generation"], 2);
}

/// No rule of the definition sees that a job may not set RANK.
async fn a_bad_spec_is_a_condition(world: &World) {
    let kubectl = world.kubectl();
    let mut bad = spec();
    bad["env"] = json!([{ "name": "RANK", "value": "7" }]);
    let created = kubectl.apply("bad", bad).await.unwrap();
    let object = kubectl.until("bad", in_phase("Rejected")).await;
    let accepted = condition(&object, "Accepted");
    assert_eq!(
        (&accepted["status"], &accepted["reason"]),
        (&json!("False"), &json!("InvalidSpec")),
        "{object:#}"
    );
    assert_eq!(
        accepted["message"],
        "spec.env[0].name: RANK is set by Muster for every rank and cannot be set by a job"
    );
    let uid = created["metadata"]["uid"].as_str().unwrap();
    let told = within(async {
        loop {
            let mut events = world.events_of(NAMESPACE, uid).await;
            if let Some(event) = events.pop() {
                return event;
            }
        }
    })
    .await;
    assert_eq!(
        (&told["reason"], &told["type"], &told["note"]),
        (
            &json!("InvalidSpec"),
            &json!("Warning"),
            &accepted["message"]
        )
    );

    // Whoever mends it need not delete it. Both nodes are taken, so it waits.
    let mend = json!({ "spec": { "env": null } });
    kubectl.patch("bad", "", mend).await.unwrap();
    let waits = |object: &Value| object["status"]["reason"] == "NodesOccupied";
    let object = kubectl.until("bad", waits).await;
    assert_eq!(holding(&object), ["Accepted", "BelowMinimum"]);
    assert_eq!(object["status"]["phase"], "Pending");
    // Nothing of it runs, so nothing holds it.
    assert!(object["metadata"]["finalizers"].is_null(), "{object:#}");
    kubectl.delete("bad").await;
    kubectl.until_gone("bad").await;
}

async fn it_succeeds(world: &World, server: Server, agents: [FakeAgent; 2]) -> Server {
    let kubectl = world.kubectl();
    for agent in &agents {
        agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    }
    let released = |object: &Value| {
        in_phase("Succeeded")(object) && object["metadata"]["finalizers"].is_null()
    };
    let done = kubectl.until("hello", released).await;
    assert_eq!(holding(&done), ["Accepted", "Complete"]);
    assert!(done["status"]["completionTime"].is_string());

    // A coordinator that starts anew, even without its store, does not run it again.
    let _state = server.stop().await;
    let server = start(world).await;
    let agent = FakeAgent::start(&server, "node-c", &[], true).await;
    kubectl.apply("next", spec()).await.unwrap();
    kubectl.until("next", in_phase("Running")).await;
    let same = kubectl.get("hello").await.unwrap();
    assert_eq!(same["status"], done["status"]);
    let gone = job(&server, "hello").await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
    kubectl.delete("hello").await;
    kubectl.until_gone("hello").await;
    kubectl.delete("next").await;
    kubectl.until_gone("next").await;
    drop(agent);
    server
}

async fn names_are_taken_once(world: &World, server: &Server) {
    let kubectl = world.kubectl();
    let request = v1::SubmitRequest {
        r#ref: reference("taken"),
        spec: Some(crate::server::spec(1)),
        ..v1::SubmitRequest::default()
    };
    within(server.jobs().submit(request)).await.unwrap();
    kubectl.apply("taken", spec()).await.unwrap();
    let object = kubectl.until("taken", in_phase("Rejected")).await;
    assert_eq!(object["status"]["reason"], "NameTaken");
    let message = object["status"]["message"].as_str().unwrap();
    assert!(message.contains("muster delete job taken"), "{message}");
    // The user's job goes, and the object's comes.
    let cancel = v1::CancelRequest {
        r#ref: reference("taken"),
    };
    within(server.jobs().cancel(cancel)).await.unwrap();
    let delete = || v1::DeleteRequest {
        r#ref: reference("taken"),
    };
    within(async { while server.jobs().delete(delete()).await.is_err() {} }).await;
    let object = kubectl.until("taken", in_phase("Pending")).await;
    assert!(holding(&object).contains(&"Accepted"), "{object:#}");
}

/// What the definition itself refuses, with its sentences.
async fn rules(world: &World) {
    let kubectl = world.kubectl();
    let with = |field: &str, value: Value| {
        let mut spec = spec();
        spec[field] = value;
        spec
    };
    for (spec, says) in [
        (
            with("minReplicas", json!(3)),
            "minReplicas must not be more than maxReplicas",
        ),
        (
            with("replicas", json!(3)),
            "must not be more than maxReplicas",
        ),
        (
            with("replicas", json!(0)),
            "should be greater than or equal to 1",
        ),
        (
            with("maxReplicas", json!(5_000)),
            "should be less than or equal to 4096",
        ),
        (with("args", json!([])), "names no script; give args"),
        (
            json!({ "workingDir": "/", "command": ["python"], "framework": "torch" }),
            "names no script; give args",
        ),
        (
            with("workingDir", json!("here")),
            "must be an absolute path",
        ),
        (
            with("stopGracePeriod", json!("soon")),
            "is not a period; write for example 500ms",
        ),
        (
            with("activeDeadlineSeconds", json!(0)),
            "should be greater than or equal to 1",
        ),
        (
            with("rules", json!([{ "when": "exit", "then": "fail" }])),
            "codes must be given with when: exit",
        ),
        (
            with("rules", json!([{ "when": "success", "then": "restart" }])),
            "then must be succeed or ignore with when: success",
        ),
        (
            with("rules", json!([{ "when": "failure" }])),
            "spec.rules[0].then: Required value",
        ),
        (
            with("progress", json!("some")),
            "supported values: \"synchronous\", \"independent\"",
        ),
        (
            with("env", json!([{ "value": "x" }])),
            "spec.env[0].name: Required value",
        ),
        (
            with("env", json!([{ "name": "A" }, { "name": "A" }])),
            "Duplicate value",
        ),
        (
            with("env", json!([{ "name": "7A" }])),
            "is not the name of an environment variable",
        ),
        (
            with(
                "env",
                json!([{ "name": "A", "value": "x", "valueFrom": { "file": "/f" } }]),
            ),
            "give one of them",
        ),
    ] {
        let refused = kubectl.apply("refused", spec.clone()).await;
        let why = refused.expect_err(&format!("{spec}"));
        assert_eq!(code(&why), 422, "{why}");
        assert!(why.to_string().contains(says), "{says:?}: {why}");
    }
    for name in ["2fast", "a.b", &"a".repeat(53)] {
        let why = kubectl.apply(name, spec()).await.unwrap_err();
        assert!(
            why.to_string()
                .contains("metadata.name must have at most 52"),
            "{why}"
        );
    }

    // Before it is accepted, all of it may change; after that, the number of nodes alone.
    kubectl.apply("edited", spec()).await.unwrap();
    let other = |script: &str| json!({ "spec": { "args": [script] } });
    kubectl.patch("edited", "", other("b.py")).await.unwrap();
    let accepted = json!({ "status": { "range": "1-2", "minReplicas": 1, "maxReplicas": 2, "conditions": [condition_now()] } });
    kubectl.patch("edited", "/status", accepted).await.unwrap();
    for (patch, says) in [
        (
            other("c.py"),
            "spec.args: Forbidden: args cannot change in an accepted job",
        ),
        (
            json!({ "spec": { "priority": 1 } }),
            "priority cannot change in an accepted job",
        ),
        (
            json!({ "spec": { "maxReplicas": null } }),
            "maxReplicas cannot change",
        ),
    ] {
        let why = kubectl.patch("edited", "", patch).await.unwrap_err();
        assert!(why.to_string().contains(says), "{says:?}: {why}");
    }
    kubectl.scale("edited", 2).await.unwrap();
    let why = kubectl.scale("edited", 3).await.unwrap_err();
    let says = "must be in the range of the accepted job, which is 1-2";
    let also = "must not be more than maxReplicas";
    assert!(
        why.to_string().contains(says) || why.to_string().contains(also),
        "{why}"
    );
    kubectl.delete("edited").await;

    // A range that follows from the defaults is known from the status.
    let mut fixed = spec();
    fixed["minReplicas"] = Value::Null;
    fixed["maxReplicas"] = Value::Null;
    let fixed: Value = {
        let mut fields = fixed.as_object().unwrap().clone();
        fields.retain(|_, value| !value.is_null());
        fields.into()
    };
    kubectl.apply("fixed", fixed).await.unwrap();
    let accepted = json!({ "status": { "range": "1", "minReplicas": 1, "maxReplicas": 1, "conditions": [condition_now()] } });
    kubectl.patch("fixed", "/status", accepted).await.unwrap();
    let why = kubectl.scale("fixed", 3).await.unwrap_err();
    let says = "must be in the range of the accepted job, which is 1";
    assert!(why.to_string().contains(says), "{why}");
    kubectl.delete("fixed").await;
}

fn condition_now() -> Value {
    json!({
        "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "lastTransitionTime": "2026-11-23T10:00:00Z", "observedGeneration": 1,
    })
}
