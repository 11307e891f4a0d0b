//! MusterJob objects while something fails: the API server, the coordinator, a right. What works is
//! asked in `semantics::objects`.

use muster_core::{exit::Exit, fleet::Policy};
use muster_proto::v1;
use serde_json::{Value, json};

use crate::{
    agent::{FakeAgent, Order},
    cluster::{Cluster, Fault, State},
    kubectl::{Kubectl, NAMESPACE, condition, holding, in_phase, job_of_two},
    server::{Server, phase, within},
};

async fn beside(cluster: &Cluster) -> Server {
    let state = tempfile::tempdir().unwrap();
    Server::start_beside(state, Policy::default(), Some(cluster.jobs())).await
}

fn reference(name: &str) -> Option<v1::JobRef> {
    Some(v1::JobRef {
        namespace: NAMESPACE.into(),
        name: name.into(),
    })
}

async fn job(server: &Server, name: &str) -> Option<v1::Job> {
    let request = v1::GetJobRequest {
        r#ref: reference(name),
    };
    let answer = within(server.jobs().get(request)).await;
    answer.ok().map(|answer| answer.into_inner().job.unwrap())
}

async fn until_job(server: &Server, name: &str, wanted: impl Fn(Option<&v1::Job>) -> bool) {
    within(async { while !wanted(job(server, name).await.as_ref()) {} }).await;
}

fn is(wanted: v1::JobPhase) -> impl Fn(Option<&v1::Job>) -> bool {
    move |job| job.is_some_and(|job| phase(job) == wanted)
}

#[tokio::test]
async fn jobs_go_on_without_the_api_server_and_their_objects_hear_of_it_later() {
    let cluster = Cluster::start().await;
    let kubectl = Kubectl::new(cluster.configuration());
    let server = beside(&cluster).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    kubectl.apply("hello", job_of_two()).await.unwrap();
    kubectl.until("hello", in_phase("Running")).await;
    cluster.change(|state| state.down = true);
    agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    until_job(&server, "hello", is(v1::JobPhase::Succeeded)).await;
    cluster.change(|state| state.down = false);
    let object = kubectl.until("hello", in_phase("Succeeded")).await;
    assert_eq!(holding(&object), ["Accepted", "Complete"]);
}

#[tokio::test]
async fn a_server_that_fails_writes_is_asked_again() {
    for fault in [Fault::Busy, Fault::Away, Fault::Cut, Fault::Nonsense] {
        let cluster = Cluster::start().await;
        let kubectl = Kubectl::new(cluster.configuration());
        let server = beside(&cluster).await;
        let _agent = FakeAgent::start(&server, "node-a", &[], true).await;
        cluster.until(|state| state.watches == 1).await;
        kubectl.apply("hello", job_of_two()).await.unwrap();
        // The watch that is open goes on.
        cluster.change(|state| state.faults.insert("musterjobs", fault));
        until_job(&server, "hello", is(v1::JobPhase::Running)).await;
        if matches!(fault, Fault::Busy | Fault::Away) {
            let asked = cluster.change(|state| state.asked["musterjobs"]);
            let again = |state: &State| state.asked["musterjobs"] > asked + 2;
            cluster.until(again).await;
        }
        cluster.change(|state| state.faults.clear());
        let object = kubectl.until("hello", in_phase("Running")).await;
        assert_eq!(holding(&object), ["Accepted", "Running"], "{fault:?}");
    }
}

#[tokio::test]
async fn a_missing_right_stops_no_job() {
    for right in [
        "patch musterjobs/status",
        "patch musterjobs",
        "create events",
    ] {
        let cluster = Cluster::start().await;
        let kubectl = Kubectl::new(cluster.configuration());
        cluster.change(|state| state.forbidden.insert(right));
        let server = beside(&cluster).await;
        let _agent = FakeAgent::start(&server, "node-a", &[], true).await;
        kubectl.apply("hello", job_of_two()).await.unwrap();
        until_job(&server, "hello", is(v1::JobPhase::Running)).await;
        if right != "patch musterjobs/status" {
            kubectl.until("hello", in_phase("Running")).await;
        }
        cluster.change(|state| state.forbidden.clear());
        let whole = |object: &Value| {
            in_phase("Running")(object) && object["metadata"]["finalizers"].is_array()
        };
        kubectl.until("hello", whole).await;
    }
}

/// It is not held, because nothing of it runs. So its object can go while nobody looks.
#[tokio::test]
async fn a_waiting_job_whose_object_went_unseen_goes_too() {
    let cluster = Cluster::start().await;
    let kubectl = Kubectl::new(cluster.configuration());
    let server = beside(&cluster).await;
    kubectl.apply("waits", job_of_two()).await.unwrap();
    kubectl.apply("stays", job_of_two()).await.unwrap();
    kubectl.until("waits", in_phase("Pending")).await;
    kubectl.until("stays", in_phase("Pending")).await;
    let state = server.stop().await;
    kubectl.delete("waits").await;
    kubectl.until_gone("waits").await;
    let server = Server::start_beside(state, Policy::default(), Some(cluster.jobs())).await;
    until_job(&server, "waits", |job| job.is_none()).await;
    assert!(job(&server, "stays").await.is_some());
}

#[tokio::test]
async fn a_coordinator_that_starts_again_finds_its_jobs_by_their_objects() {
    let cluster = Cluster::start().await;
    let kubectl = Kubectl::new(cluster.configuration());
    let server = beside(&cluster).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    kubectl.apply("hello", job_of_two()).await.unwrap();
    kubectl.until("hello", in_phase("Running")).await;
    let before = job(&server, "hello").await.unwrap();
    drop(agent);
    let state = server.stop().await;
    // While nobody looks, it is scaled, and another one comes.
    kubectl.apply("other", job_of_two()).await.unwrap();
    kubectl.scale("hello", 2).await.unwrap();
    let server = Server::start_beside(state, Policy::default(), Some(cluster.jobs())).await;
    until_job(&server, "hello", |job| {
        job.is_some_and(|job| job.status.as_ref().unwrap().replicas == 2)
    })
    .await;
    let after = job(&server, "hello").await.unwrap();
    assert_eq!(after.uid, before.uid);
    until_job(&server, "other", |job| job.is_some()).await;
}

/// A coordinator without the job lets the object go: nothing of it runs that is known.
#[tokio::test]
async fn an_object_whose_job_is_lost_can_be_deleted() {
    let cluster = Cluster::start().await;
    let kubectl = Kubectl::new(cluster.configuration());
    let server = beside(&cluster).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    kubectl.apply("hello", job_of_two()).await.unwrap();
    let held = |object: &Value| object["metadata"]["finalizers"].is_array();
    kubectl.until("hello", held).await;
    drop(agent);
    drop(server.stop().await);
    kubectl.delete("hello").await;
    let object = kubectl.get("hello").await.unwrap();
    assert!(object["metadata"]["deletionTimestamp"].is_string());
    let _server = beside(&cluster).await;
    kubectl.until_gone("hello").await;
}

/// An edit that no rule has refused, as with an older definition.
#[tokio::test]
async fn a_change_that_cannot_be_made_is_said_and_the_job_goes_on() {
    let cluster = Cluster::start().await;
    let kubectl = Kubectl::new(cluster.configuration());
    let server = beside(&cluster).await;
    let _agent = FakeAgent::start(&server, "node-a", &[], true).await;
    kubectl.apply("hello", job_of_two()).await.unwrap();
    kubectl.until("hello", in_phase("Running")).await;
    let refused = |reason: &'static str| {
        move |object: &Value| condition(object, "Accepted")["reason"] == reason
    };
    let edit = |spec: Value| kubectl.patch("hello", "", json!({ "spec": spec }));
    edit(json!({ "args": ["other.py"] })).await.unwrap();
    let object = kubectl.until("hello", refused("FixedFields")).await;
    assert_eq!(holding(&object), ["Running"], "{object:#}");
    let message = condition(&object, "Accepted")["message"].as_str().unwrap();
    assert!(message.starts_with("spec.args cannot change"), "{message}");
    edit(json!({ "args": ["train.py"], "replicas": 9 }))
        .await
        .unwrap();
    let object = kubectl.until("hello", refused("OutOfRange")).await;
    assert_eq!(object["status"]["nodes"], "1/1");
    edit(json!({ "replicas": 1 })).await.unwrap();
    kubectl.until("hello", refused("Accepted")).await;
    let status = job(&server, "hello").await.unwrap().status.unwrap();
    assert_eq!(status.generation, 1, "nothing was stopped");
}

#[tokio::test]
async fn a_server_that_has_forgotten_is_listed_anew() {
    let cluster = Cluster::start().await;
    let kubectl = Kubectl::new(cluster.configuration());
    let server = beside(&cluster).await;
    cluster.until(|state| state.watches == 1).await;
    for (round, gone_as_status) in [(1, false), (2, true)] {
        let name = format!("job-{round}");
        cluster.change(|state| {
            state.gone_as_status = gone_as_status;
            state.forget();
        });
        kubectl.apply(&name, job_of_two()).await.unwrap();
        until_job(&server, &name, |job| job.is_some()).await;
    }
    kubectl.delete("job-1").await;
    until_job(&server, "job-1", |job| job.is_none()).await;
}
