//! The life of a job from submit to delete, and the effects of a retry.

use muster_core::{exit::Exit, fleet::Policy};
use muster_proto::v1;
use tonic::Code;

use crate::{
    agent::{FakeAgent, Order},
    server::{Server, phase, reference, spec, within},
};

fn submission(name: &str, request_id: &str, spec: v1::JobSpec) -> v1::SubmitRequest {
    v1::SubmitRequest {
        r#ref: Some(reference(name)),
        spec: Some(spec),
        request_id: request_id.into(),
        validate_only: false,
    }
}

#[tokio::test]
async fn a_job_lives_from_submit_to_delete() {
    let server = Server::start().await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let submitted = server.submit("digits", spec(1)).await;
    assert_eq!(
        submitted.r#ref,
        Some(v1::JobRef {
            namespace: "default".into(),
            name: "digits".into()
        })
    );
    let running = server
        .until_job("digits", |job| phase(job) == v1::JobPhase::Running)
        .await;
    let status = running.status.unwrap();
    assert_eq!(
        (
            status.generation,
            status.world_size,
            status.nodes,
            status.replicas
        ),
        (1, 1, 1, 1)
    );
    assert_eq!(status.members[0].node, "node-a");
    assert_eq!(status.store_address, "127.0.0.1:1");

    let request = v1::EnvironmentRequest {
        r#ref: Some(reference("digits")),
    };
    let environment = server
        .jobs()
        .environment(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (
            environment.generation,
            environment.nodes,
            environment.transport.as_str()
        ),
        (1, 1, "socket")
    );
    let gloo = environment
        .variables
        .iter()
        .find(|variable| variable.name == "GLOO_SOCKET_IFNAME")
        .unwrap();
    assert_eq!(
        (gloo.value.as_deref(), gloo.from.as_str(), gloo.nodes.len()),
        (Some("lo"), "node", 0)
    );

    agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    server
        .until_job("digits", |job| phase(job) == v1::JobPhase::Succeeded)
        .await;

    let explained = server
        .jobs()
        .explain(v1::ExplainRequest {
            r#ref: Some(reference("digits")),
        })
        .await
        .unwrap()
        .into_inner();
    let reasons: Vec<&str> = explained
        .timeline
        .iter()
        .map(|event| event.reason.as_str())
        .collect();
    assert_eq!(reasons.first(), Some(&"Submitted"));
    assert_eq!(reasons.last(), Some(&"Succeeded"));
    assert_eq!(explained.incidents[0].cause, "FirstStart");
    assert_eq!(
        explained
            .lost
            .iter()
            .map(|lost| (lost.cause.as_str(), lost.incidents))
            .collect::<Vec<_>>(),
        [("FirstStart", 1)]
    );

    server
        .jobs()
        .delete(v1::DeleteRequest {
            r#ref: Some(reference("digits")),
        })
        .await
        .unwrap();
    let gone = server
        .jobs()
        .get(v1::GetJobRequest {
            r#ref: Some(reference("digits")),
        })
        .await
        .unwrap_err();
    assert_eq!(
        (gone.code(), gone.message()),
        (Code::NotFound, "job default/digits not found")
    );
}

#[tokio::test]
async fn a_job_that_refuses_a_mixture_waits_and_says_who_differs() {
    let server = Server::start().await;
    let _old = FakeAgent::with_gpu(&server, "node-a", "11.8").await;
    let _new = FakeAgent::with_gpu(&server, "node-b", "12.4").await;
    let refusing = v1::JobSpec {
        min_replicas: Some(2),
        gpus_per_node: Some(1),
        node_mix: Some("refuse".into()),
        ..spec(2)
    };
    server.submit("digits", refusing).await;
    let message = "1 of at least 2 nodes available: node-a does not go with the others (CUDA 11, not CUDA 12)";
    server
        .until_job("digits", |job| {
            job.status
                .as_ref()
                .is_some_and(|status| status.message == message)
        })
        .await;
    let _like_it = FakeAgent::with_gpu(&server, "node-c", "12.8").await;
    let running = server
        .until_job("digits", |job| phase(job) == v1::JobPhase::Running)
        .await
        .status
        .unwrap();
    assert_eq!(
        running
            .members
            .iter()
            .map(|member| member.node.as_str())
            .collect::<Vec<_>>(),
        ["node-b", "node-c"]
    );
    assert_eq!(running.generation, 1, "none was opened for the mixture");
}

#[tokio::test]
async fn a_repeated_submission_is_the_same_job() {
    let server = Server::start().await;
    let mut jobs = server.jobs();
    let first = jobs
        .submit(submission("one", "key-1", spec(2)))
        .await
        .unwrap()
        .into_inner();
    assert!(!first.existed);
    for request_id in ["key-1", "", "key-2"] {
        let again = jobs
            .submit(submission("one", request_id, spec(2)))
            .await
            .unwrap()
            .into_inner();
        assert!(again.existed, "request id {request_id:?}");
        assert_eq!(again.job.unwrap().uid, first.job.as_ref().unwrap().uid);
    }
    let mut other = spec(2);
    other.args = vec!["other.py".into()];
    other.priority = Some(7);
    for request_id in ["key-1", "key-9"] {
        let refused = jobs
            .submit(submission("one", request_id, other.clone()))
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists);
        assert_eq!(
            refused.message(),
            "job default/one exists already with other content: spec.args, spec.priority differ; delete it first or use another name"
        );
    }
    let refused = jobs
        .submit(submission("two", "key-1", spec(2)))
        .await
        .unwrap_err();
    assert!(
        refused.message().contains("metadata.name differ"),
        "{}",
        refused.message()
    );
    let all = jobs
        .list(v1::ListJobsRequest::default())
        .await
        .unwrap()
        .into_inner()
        .jobs;
    assert_eq!(all.len(), 1);
}

#[tokio::test]
async fn validate_only_stores_nothing() {
    let server = Server::start().await;
    let request = v1::SubmitRequest {
        validate_only: true,
        ..submission("one", "", spec(2))
    };
    let shown = server
        .jobs()
        .submit(request)
        .await
        .unwrap()
        .into_inner()
        .job
        .unwrap();
    assert_eq!(
        shown.spec.unwrap().restart_policy.unwrap().max_restarts,
        Some(3),
        "defaults are spelt out"
    );
    assert!(
        server
            .jobs()
            .list(v1::ListJobsRequest::default())
            .await
            .unwrap()
            .into_inner()
            .jobs
            .is_empty()
    );
}

#[tokio::test]
async fn lists_come_in_pages_and_by_namespace() {
    let server = Server::start().await;
    for (namespace, name) in [
        ("b", "one"),
        ("a", "two"),
        ("a", "one"),
        ("b", "two"),
        ("a", "three"),
    ] {
        let reference = v1::JobRef {
            namespace: namespace.into(),
            name: name.into(),
        };
        let request = v1::SubmitRequest {
            r#ref: Some(reference),
            spec: Some(spec(1)),
            ..v1::SubmitRequest::default()
        };
        server.jobs().submit(request).await.unwrap();
    }
    for (namespace, expected) in [
        ("", vec!["a/one", "a/three", "a/two", "b/one", "b/two"]),
        ("a", vec!["a/one", "a/three", "a/two"]),
        ("c", vec![]),
    ] {
        let (mut names, mut token) = (Vec::new(), String::new());
        loop {
            let request = v1::ListJobsRequest {
                namespace: namespace.into(),
                page_size: 2,
                page_token: token,
            };
            let page = server.jobs().list(request).await.unwrap().into_inner();
            assert!(page.jobs.len() <= 2);
            names.extend(
                page.jobs
                    .into_iter()
                    .map(|job| job.r#ref.unwrap())
                    .map(|r| format!("{}/{}", r.namespace, r.name)),
            );
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(names, expected);
    }
}

#[tokio::test]
async fn a_watch_shows_what_is_then_what_changes_then_what_is_gone() {
    let server = Server::start().await;
    let first = server.submit("one", spec(1)).await;
    let mut watch = server
        .jobs()
        .watch(v1::WatchJobsRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut next = async || within(watch.message()).await.unwrap().unwrap();
    assert_eq!(next().await.job.unwrap().uid, first.uid);
    server
        .jobs()
        .cancel(v1::CancelRequest {
            r#ref: Some(reference("one")),
        })
        .await
        .unwrap();
    let cancelled = loop {
        let job = next().await.job.unwrap();
        if phase(&job) == v1::JobPhase::Cancelled {
            break job;
        }
    };
    assert_eq!(cancelled.uid, first.uid);
    server
        .jobs()
        .delete(v1::DeleteRequest {
            r#ref: Some(reference("one")),
        })
        .await
        .unwrap();
    let last = next().await;
    assert!(last.deleted);
    assert_eq!(last.job.unwrap().uid, first.uid);
}

#[tokio::test]
async fn a_restart_keeps_jobs_and_events_and_raises_the_term() {
    let server = Server::start().await;
    let job = server.submit("one", spec(2)).await;
    let events = server
        .events()
        .list(v1::ListEventsRequest::default())
        .await
        .unwrap()
        .into_inner()
        .events;
    let state = server.stop().await;

    let server = Server::start_in(state, Policy::default()).await;
    assert_eq!(server.job("one").await.uid, job.uid);
    let after = server
        .events()
        .list(v1::ListEventsRequest::default())
        .await
        .unwrap()
        .into_inner()
        .events;
    assert_eq!(after[..events.len()], events);
    let agent = crate::agent::RawSession::open(
        &server,
        crate::agent::say(v1::agent_message::Message::Hello(crate::agent::hello(
            "node-a",
        ))),
    );
    match agent.await.unwrap().next().await.unwrap() {
        v1::coordinator_message::Message::Welcome(welcome) => assert_eq!(welcome.term, 2),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn scaling_is_bounded_by_the_job() {
    let server = Server::start().await;
    server.submit("one", spec(3)).await;
    let scale = |nodes| v1::ScaleRequest {
        r#ref: Some(reference("one")),
        nodes,
    };
    let job = server
        .jobs()
        .scale(scale(2))
        .await
        .unwrap()
        .into_inner()
        .job
        .unwrap();
    assert_eq!(job.status.unwrap().replicas, 2);
    let refused = server.jobs().scale(scale(4)).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::InvalidArgument,
            "nodes: is 4, must be between the job's minReplicas 1 and maxReplicas 3"
        )
    );
}

#[tokio::test]
async fn events_are_listed_and_followed() {
    let server = Server::start().await;
    server.submit("one", spec(1)).await;
    server.submit("two", spec(1)).await;
    let about_one = v1::ListEventsRequest {
        job: "one".into(),
        ..v1::ListEventsRequest::default()
    };
    let listed = server
        .events()
        .list(about_one)
        .await
        .unwrap()
        .into_inner()
        .events;
    assert!(!listed.is_empty() && listed.iter().all(|event| event.job == "one"));

    let after = server
        .events()
        .list(v1::ListEventsRequest::default())
        .await
        .unwrap()
        .into_inner()
        .events
        .last()
        .unwrap()
        .sequence;
    let request = v1::WatchEventsRequest {
        after,
        ..v1::WatchEventsRequest::default()
    };
    let mut watch = server.events().watch(request).await.unwrap().into_inner();
    server.submit("three", spec(1)).await;
    let event = within(watch.message())
        .await
        .unwrap()
        .unwrap()
        .event
        .unwrap();
    assert_eq!(
        (event.job.as_str(), event.reason.as_str()),
        ("three", "Submitted")
    );
    assert!(event.sequence > after);
}
