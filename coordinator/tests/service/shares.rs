//! Fair shares: who has used what, and the order of the jobs that wait, as a client asks for them.

use std::time::Duration;

use muster_core::fleet::Policy;
use muster_proto::v1;

use crate::{
    agent::FakeAgent,
    server::{Server, phase, spec, within},
};

async fn submit(server: &Server, namespace: &str, name: &str) -> v1::Job {
    let named = v1::JobRef {
        namespace: namespace.into(),
        name: name.into(),
    };
    let request = v1::SubmitRequest {
        r#ref: Some(named),
        spec: Some(v1::JobSpec {
            gpus_per_node: Some(1),
            ..spec(1)
        }),
        ..v1::SubmitRequest::default()
    };
    let answer = within(server.jobs().submit(request)).await.unwrap();
    answer.into_inner().job.unwrap()
}

async fn ask(server: &Server) -> v1::ListQueuesResponse {
    let request = v1::ListQueuesRequest {
        order: true,
        shares: true,
        ..v1::ListQueuesRequest::default()
    };
    within(server.queues().list(request))
        .await
        .unwrap()
        .into_inner()
}

fn order(answer: &v1::ListQueuesResponse) -> Vec<&str> {
    answer.order.iter().map(|job| job.name.as_str()).collect()
}

#[tokio::test]
async fn who_has_used_less_comes_first_and_a_new_coordinator_knows_who_that_is() {
    let policy = Policy {
        fair_share_half_life: Some(Duration::from_secs(7 * 24 * 3_600)),
        ..Policy::default()
    };
    let server = Server::start_with(policy.clone()).await;
    let agent = FakeAgent::with_gpu(&server, "node-a", "13.2").await;
    submit(&server, "busy", "uses").await;
    let holds = |answer: &v1::GetNodeResponse| {
        let node = answer.node.as_ref().unwrap();
        !node.runs.is_empty()
    };
    let request = || v1::GetNodeRequest {
        name: "node-a".into(),
    };
    within(async {
        while !holds(&server.nodes().get(request()).await.unwrap().into_inner()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let waits = submit(&server, "busy", "second").await;
    assert_eq!(phase(&waits), v1::JobPhase::Pending);
    submit(&server, "idle", "third").await;
    assert_eq!(order(&ask(&server).await), ["second", "third"], "by age");
    drop(agent);
    let state = server.stop().await;

    let server = Server::start_in(state, policy).await;
    let answer = ask(&server).await;
    assert_eq!(order(&answer), ["third", "second"]);
    let shares = answer.fair_share.unwrap().shares;
    let told: Vec<(&str, bool, u32)> = shares
        .iter()
        .map(|share| (share.namespace.as_str(), share.user.is_some(), share.place))
        .collect();
    assert_eq!(
        told,
        [
            ("busy", false, 2),
            ("busy", true, 2),
            ("idle", false, 1),
            ("idle", true, 1),
        ]
    );
}

#[tokio::test]
async fn without_them_jobs_go_by_age_and_nobody_is_told_of_shares() {
    let server = Server::start().await;
    submit(&server, "busy", "first").await;
    submit(&server, "idle", "second").await;
    let answer = ask(&server).await;
    assert_eq!(order(&answer), ["first", "second"]);
    assert_eq!(answer.fair_share, None);
}
