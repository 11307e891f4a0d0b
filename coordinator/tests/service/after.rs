//! Jobs that wait for other jobs and for a time, as users submit them and read of them.

use muster_core::{exit::Exit, fleet::Policy, time::Timestamp};
use muster_proto::v1;
use serde_json::json;
use tonic::Code;

use crate::{
    agent::{FakeAgent, Order},
    cluster::Cluster,
    kubectl::{Kubectl, condition, job_of_two},
    server::{Server, phase, reference, spec, within},
};

fn after(jobs: &[(&str, Option<&str>)]) -> v1::JobSpec {
    let after = jobs.iter().map(|(job, condition)| v1::After {
        job: (*job).into(),
        condition: condition.map(str::to_owned),
    });
    v1::JobSpec {
        after: after.collect(),
        ..spec(1)
    }
}

async fn asked(
    server: &Server,
    name: &str,
    spec: v1::JobSpec,
    validate_only: bool,
) -> Result<v1::SubmitResponse, tonic::Status> {
    let request = v1::SubmitRequest {
        r#ref: Some(reference(name)),
        spec: Some(spec),
        validate_only,
        ..v1::SubmitRequest::default()
    };
    let answer = Box::pin(within(server.jobs().submit(request))).await;
    answer.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn a_pipeline_goes_on_by_itself_also_through_a_restart() {
    let server = Server::start().await;
    let prepare = server.submit("prepare", spec(1)).await;
    let job = server.submit("train", after(&[("prepare", None)])).await;
    let status = job.status.unwrap();
    assert_eq!(
        (status.reason.as_str(), status.message.as_str()),
        ("Dependency", "waits for job prepare to succeed")
    );
    let waits = status.not_eligible.unwrap();
    assert_eq!(
        waits.jobs,
        [v1::AwaitedJob {
            name: "prepare".into(),
            uid: prepare.uid.clone(),
            condition: "succeeded".into(),
            ..v1::AwaitedJob::default()
        }]
    );
    assert_eq!(waits.since_unix_us, job.created_unix_us);
    assert_eq!(status.waits_for_room, None);
    // The same submission again is the same job, and a difference is named.
    let again = asked(&server, "train", after(&[("prepare", None)]), false).await;
    assert!(again.unwrap().existed);
    let other = asked(
        &server,
        "train",
        after(&[("prepare", Some("ended"))]),
        false,
    )
    .await;
    assert!(other.unwrap_err().message().contains("spec.after differ"));
    let plan = asked(&server, "next", after(&[("train", Some("failed"))]), true).await;
    assert_eq!(
        plan.unwrap().plan.unwrap().held_back,
        "it waits for job train to fail"
    );

    let server = Server::start_in(server.stop().await, Policy::default()).await;
    let known = server.job("train").await;
    assert_eq!(known.spec.unwrap().after.len(), 1);
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    server
        .until_job("prepare", |job| phase(job) == v1::JobPhase::Running)
        .await;
    agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    let train = server
        .until_job("train", |job| phase(job) == v1::JobPhase::Running)
        .await;
    assert_eq!(train.status.unwrap().not_eligible, None);
}

#[tokio::test]
async fn what_can_never_start_fails_and_what_is_unknown_is_refused() {
    let server = Server::start().await;
    server.submit("one", spec(1)).await;
    server.submit("two", after(&[("one", None)])).await;
    let cancel = v1::CancelRequest {
        r#ref: Some(reference("one")),
    };
    within(server.jobs().cancel(cancel)).await.unwrap();
    let job = server
        .until_job("two", |job| phase(job) == v1::JobPhase::Failed)
        .await;
    assert_eq!(job.status.unwrap().reason, "DependencyNeverSatisfied");
    let delete = v1::DeleteRequest {
        r#ref: Some(reference("one")),
    };
    within(server.jobs().delete(delete)).await.unwrap();
    // The history knows it.
    let late = asked(&server, "late", after(&[("one", None)]), false).await;
    assert!(late.is_ok());
    server
        .until_job("late", |job| phase(job) == v1::JobPhase::Failed)
        .await;
    for (after_what, field) in [
        (
            after(&[("one", None), ("nobody", None)]),
            "spec.after[1].job: ",
        ),
        (
            after(&[("one", Some("afterok"))]),
            "spec.after[0].condition: ",
        ),
        (after(&[("late2", None)]), "spec.after[0].job: "),
        (
            v1::JobSpec {
                start_after: Some("tomorrow".into()),
                ..spec(1)
            },
            "spec.startAfter: ",
        ),
    ] {
        let refused = asked(&server, "late2", after_what, false).await;
        let status = refused.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(field), "{}", status.message());
    }
}

#[tokio::test]
async fn a_time_is_waited_for_and_can_be_far_away() {
    let server = Server::start().await;
    let _agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let at = |text: &str| v1::JobSpec {
        start_after: Some(text.into()),
        ..spec(1)
    };
    let far = server.submit("far", at("2999-01-01T00:00:00Z")).await;
    let status = far.status.unwrap();
    assert_eq!(
        (status.reason.as_str(), status.message.as_str()),
        ("BeginTime", "waits until 2999-01-01T00:00:00Z")
    );
    let time = Timestamp::from_rfc3339("2999-01-01T00:00:00Z").unwrap();
    assert_eq!(status.not_eligible.unwrap().start_after_unix_us, time.0);
    // It keeps no room.
    server.submit("past", at("2001-01-01T00:00:00+01:00")).await;
    server
        .until_job("past", |job| phase(job) == v1::JobPhase::Running)
        .await;
}

#[tokio::test]
async fn objects_may_come_in_any_order() {
    let cluster = Cluster::start().await;
    let kubectl = Kubectl::new(cluster.configuration());
    let state = tempfile::tempdir().unwrap();
    let server = Server::start_beside(state, Policy::default(), Some(cluster.jobs())).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let mut second = job_of_two();
    second["after"] = json!([{ "job": "first" }]);
    kubectl.apply("second", second).await.unwrap();
    let refused = kubectl
        .until("second", |object| {
            condition(object, "Accepted")["status"] == "False"
        })
        .await;
    let message = condition(&refused, "Accepted")["message"].to_string();
    assert!(message.contains("spec.after[0].job: job"), "{message}");
    kubectl.apply("first", job_of_two()).await.unwrap();
    kubectl
        .until("second", |object| {
            object["status"]["reason"] == "Dependency"
        })
        .await;
    kubectl
        .until("first", |object| object["status"]["phase"] == "Running")
        .await;
    agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    kubectl
        .until("second", |object| object["status"]["phase"] == "Running")
        .await;
}
