//! Wrong requests: each gets its exact code and text, and changes nothing.

use std::{future::Future, pin::Pin};

use muster_proto::v1::{self, job_service_client::JobServiceClient};
use tonic::{Code, Response, Status};

use crate::server::{Server, reference, spec};

/// The code and text of a refused call. Panics if the call is accepted.
fn refusal<T>(
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Pin<Box<impl Future<Output = (Code, String)>>> {
    let call = Box::pin(call);
    Box::pin(async move {
        match call.await {
            Ok(_) => panic!("must be refused"),
            Err(status) => (status.code(), status.message().to_owned()),
        }
    })
}

fn named(name: &str) -> Option<v1::JobRef> {
    Some(reference(name))
}

/// Makes a change of the spec into a change of the request.
macro_rules! with {
    ($change:expr) => {{
        fn change(request: &mut v1::SubmitRequest) {
            let change: fn(&mut v1::JobSpec) = $change;
            change(request.spec.as_mut().unwrap());
        }
        change
    }};
}

#[tokio::test]
async fn a_wrong_submission_names_every_wrong_field() {
    let server = Server::start().await;
    type Change = fn(&mut v1::SubmitRequest);
    let cases: [(Change, &str); 24] = [
        (|r| r.r#ref = None, "metadata.name: must not be empty"),
        (
            |r| {
                r.r#ref = Some(v1::JobRef {
                    namespace: "A".into(),
                    name: "x".into(),
                })
            },
            "metadata.namespace: \"A\" has 'A': only lower-case letters, digits and '-' are allowed",
        ),
        (
            |r| r.r#ref = named("9lives"),
            "metadata.name: \"9lives\" must start with a letter",
        ),
        (
            |r| r.r#ref = named("x-"),
            "metadata.name: \"x-\" must not end with '-'",
        ),
        (
            |r| r.r#ref = named(&"x".repeat(64)),
            "metadata.name: is 64 characters long, at most 63 are allowed",
        ),
        (
            |r| r.spec = None,
            "spec.args: names no script: give for example [train.py, --epochs, \"10\"] or [-m, package.module]",
        ),
        (
            with!(|s| s.replicas = Some(0)),
            "spec.replicas: is 0, must be between 1 and 4096",
        ),
        (
            with!(|s| s.min_replicas = Some(9)),
            "spec.minReplicas: is 9, must not be more than maxReplicas, which is 2",
        ),
        (
            with!(|s| s.replicas = Some(5)),
            "spec.replicas: is 5, must not be more than maxReplicas, which is 2",
        ),
        (
            with!(|s| s.proc_per_node = Some(257)),
            "spec.procPerNode: is 257, must be between 1 and 256",
        ),
        (
            with!(|s| s.gpus_per_node = Some(-1)),
            "spec.gpusPerNode: is -1, must be between 0 and 256",
        ),
        (
            with!(|s| s.command = vec![String::new()]),
            "spec.command[0]: must not be empty",
        ),
        (
            with!(|s| s.args = vec!["a\0b.py".into()]),
            "spec.args[0]: has a NUL byte",
        ),
        (
            with!(|s| s.args = vec!["x".repeat(70_000)]),
            "spec.args[0]: is 70000 bytes long, at most 65536 are allowed; spec.args: command and args are 70000 bytes long in all, at most 65536 are allowed",
        ),
        (
            with!(|s| s.env = vec![v1::EnvVar {
                file: String::new(),
                name: "A B".into(),
                value: String::new()
            }]),
            "spec.env[0].name: \"A B\" is not the name of an environment variable (letters, digits and '_', not starting with a digit)",
        ),
        (
            with!(|s| s.env = vec![v1::EnvVar {
                file: String::new(),
                name: "MASTER_ADDR".into(),
                value: String::new()
            }]),
            "spec.env[0].name: MASTER_ADDR is set by Muster for every rank and cannot be set by a job",
        ),
        (
            with!(|s| s.env = vec![
                v1::EnvVar {
                    file: String::new(),
                    name: "A".into(),
                    value: String::new()
                };
                2
            ]),
            "spec.env[1].name: A is set already by spec.env[0]",
        ),
        (
            with!(|s| s.working_dir = Some("here".into())),
            "spec.workingDir: is \"here\", must be an absolute path: it is opened on the nodes",
        ),
        (
            with!(|s| s.priority = Some(i64::MIN)),
            "spec.priority: is -9223372036854775808, must be between -1000000 and 1000000",
        ),
        (
            with!(|s| s.restart_policy = Some(v1::RestartPolicy {
                max_restarts: None,
                window: Some("soon".into()),
                max_same_failures: None,
            })),
            "spec.restartPolicy.window: \"soon\" is not a period; write for example 500ms, 10s, 1m30s or 2h",
        ),
        (
            with!(|s| s.stop_grace_period = Some("16m".into())),
            "spec.stopGracePeriod: is 16m, must be between 0s and 15m",
        ),
        (
            with!(|s| s.progress = Some("fast".into())),
            "spec.progress: is \"fast\", must be one of synchronous, independent",
        ),
        (
            with!(|s| s.launch = Some("warp".into())),
            "spec.launch: is \"warp\", must be one of cold, parked, fork, direct, exec, auto",
        ),
        (
            |r| r.request_id = "a b".into(),
            "request_id: must be at most 128 printable ASCII characters",
        ),
    ];
    for (change, expected) in cases {
        let mut request = v1::SubmitRequest {
            r#ref: named("one"),
            spec: Some(spec(2)),
            ..v1::SubmitRequest::default()
        };
        change(&mut request);
        let (code, message) = refusal(server.jobs().submit(request)).await;
        assert_eq!((code, message.as_str()), (Code::InvalidArgument, expected));
    }
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
    assert!(
        server
            .events()
            .list(v1::ListEventsRequest::default())
            .await
            .unwrap()
            .into_inner()
            .events
            .is_empty()
    );
}

#[tokio::test]
async fn a_wrong_request_is_refused_in_the_same_words_everywhere() {
    let server = Server::start().await;
    server.submit("one", spec(2)).await;
    let (jobs, nodes, events) = (|| server.jobs(), || server.nodes(), || server.events());
    let bad_name = "\"One\" has 'O': only lower-case letters, digits and '-' are allowed";
    let at_ref = format!("ref.name: {bad_name}");

    let cases = [
        (
            refusal(jobs().get(v1::GetJobRequest { r#ref: None })).await,
            Code::InvalidArgument,
            "ref.name: must not be empty",
        ),
        (
            refusal(jobs().get(v1::GetJobRequest {
                r#ref: named("One"),
            }))
            .await,
            Code::InvalidArgument,
            at_ref.as_str(),
        ),
        (
            refusal(jobs().get(v1::GetJobRequest {
                r#ref: named("two"),
            }))
            .await,
            Code::NotFound,
            "job default/two not found",
        ),
        (
            refusal(jobs().scale(v1::ScaleRequest {
                r#ref: named("One"),
                nodes: 1,
            }))
            .await,
            Code::InvalidArgument,
            at_ref.as_str(),
        ),
        (
            refusal(jobs().scale(v1::ScaleRequest {
                r#ref: named("two"),
                nodes: 1,
            }))
            .await,
            Code::NotFound,
            "job default/two not found",
        ),
        (
            refusal(jobs().scale(v1::ScaleRequest {
                r#ref: named("one"),
                nodes: 0,
            }))
            .await,
            Code::InvalidArgument,
            "nodes: is 0, must be between the job's minReplicas 1 and maxReplicas 2",
        ),
        (
            refusal(jobs().cancel(v1::CancelRequest {
                r#ref: named("two"),
            }))
            .await,
            Code::NotFound,
            "job default/two not found",
        ),
        (
            refusal(jobs().delete(v1::DeleteRequest {
                r#ref: named("two"),
            }))
            .await,
            Code::NotFound,
            "job default/two not found",
        ),
        (
            refusal(jobs().delete(v1::DeleteRequest {
                r#ref: named("one"),
            }))
            .await,
            Code::FailedPrecondition,
            "job default/one is Pending; cancel it first (muster cancel one)",
        ),
        (
            refusal(jobs().environment(v1::EnvironmentRequest {
                r#ref: named("two"),
            }))
            .await,
            Code::NotFound,
            "job default/two not found",
        ),
        (
            refusal(jobs().explain(v1::ExplainRequest {
                r#ref: named("two"),
            }))
            .await,
            Code::NotFound,
            "job default/two not found",
        ),
        (
            refusal(jobs().list(v1::ListJobsRequest {
                namespace: "a.b".into(),
                ..Default::default()
            }))
            .await,
            Code::InvalidArgument,
            "namespace: \"a.b\" has '.': only lower-case letters, digits and '-' are allowed",
        ),
        (
            refusal(jobs().list(v1::ListJobsRequest {
                page_token: "x".into(),
                ..Default::default()
            }))
            .await,
            Code::InvalidArgument,
            "page_token: is not one that this server gave; start again without",
        ),
        (
            refusal(jobs().watch(v1::WatchJobsRequest {
                namespace: String::new(),
                name: "One".into(),
            }))
            .await,
            Code::InvalidArgument,
            &format!("name: {bad_name}"),
        ),
        (
            refusal(jobs().watch(v1::WatchJobsRequest {
                namespace: String::new(),
                name: "two".into(),
            }))
            .await,
            Code::NotFound,
            "job default/two not found",
        ),
        (
            refusal(jobs().wait(v1::WaitRequest {
                r#ref: named("one"),
                wait_for: 0,
                timeout_ms: 1,
            }))
            .await,
            Code::InvalidArgument,
            "wait_for: is 0, must be WAIT_FOR_RUNNING, _COMPLETE or _DELETED",
        ),
        (
            refusal(jobs().wait(v1::WaitRequest {
                r#ref: named("one"),
                wait_for: 77,
                timeout_ms: 1,
            }))
            .await,
            Code::InvalidArgument,
            "wait_for: is 77, must be WAIT_FOR_RUNNING, _COMPLETE or _DELETED",
        ),
        (
            refusal(jobs().wait(v1::WaitRequest {
                r#ref: named("one"),
                wait_for: 1,
                timeout_ms: u64::MAX,
            }))
            .await,
            Code::InvalidArgument,
            "timeout_ms: is longer than 30 days",
        ),
        (
            refusal(jobs().logs(v1::LogsRequest {
                r#ref: named("two"),
                ..Default::default()
            }))
            .await,
            Code::NotFound,
            "job default/two not found",
        ),
        (
            refusal(jobs().logs(v1::LogsRequest {
                r#ref: named("one"),
                previous: true,
                ..Default::default()
            }))
            .await,
            Code::NotFound,
            "job default/one has no previous generation",
        ),
        (
            refusal(jobs().logs(v1::LogsRequest {
                r#ref: named("one"),
                generation: 3,
                ..Default::default()
            }))
            .await,
            Code::NotFound,
            "generation 3 of job default/one is not known; none is",
        ),
        (
            refusal(jobs().logs(v1::LogsRequest {
                r#ref: named("one"),
                generation: 3,
                previous: true,
                ..Default::default()
            }))
            .await,
            Code::InvalidArgument,
            "previous: cannot be asked for together with a generation",
        ),
        (
            refusal(nodes().get(v1::GetNodeRequest {
                name: String::new(),
            }))
            .await,
            Code::InvalidArgument,
            "name: must not be empty",
        ),
        (
            refusal(nodes().get(v1::GetNodeRequest { name: "a".into() })).await,
            Code::NotFound,
            "node a not found",
        ),
        (
            refusal(nodes().watch(v1::WatchNodesRequest { name: "a".into() })).await,
            Code::NotFound,
            "node a not found",
        ),
        (
            refusal(nodes().list(v1::ListNodesRequest {
                page_token: "..".into(),
                ..Default::default()
            }))
            .await,
            Code::InvalidArgument,
            "page_token: is not one that this server gave; start again without",
        ),
        (
            refusal(nodes().list(v1::ListNodesRequest {
                page_token: "a".into(),
                search: Some(v1::NodeSearch::default()),
                ..Default::default()
            }))
            .await,
            Code::InvalidArgument,
            "page_token: must be empty with a search, which has skip",
        ),
        (
            refusal(nodes().cordon(v1::CordonRequest {
                name: "a".into(),
                ..Default::default()
            }))
            .await,
            Code::NotFound,
            "node a not found",
        ),
        (
            refusal(nodes().cordon(v1::CordonRequest {
                name: "a".into(),
                reason: "x".repeat(600),
                by: String::new(),
            }))
            .await,
            Code::InvalidArgument,
            "reason: is 600 bytes long, at most 512 are allowed",
        ),
        (
            refusal(nodes().uncordon(v1::UncordonRequest { name: "a".into() })).await,
            Code::NotFound,
            "node a not found",
        ),
        (
            refusal(nodes().delete(v1::DeleteNodeRequest { name: "a".into() })).await,
            Code::NotFound,
            "node a not found",
        ),
        (
            refusal(events().list(v1::ListEventsRequest {
                page_token: "x".into(),
                ..Default::default()
            }))
            .await,
            Code::InvalidArgument,
            "page_token: is not one that this server gave; start again without",
        ),
        (
            refusal(events().watch(v1::WatchEventsRequest {
                job: "One".into(),
                ..Default::default()
            }))
            .await,
            Code::InvalidArgument,
            &format!("job: {bad_name}"),
        ),
        (
            refusal(events().list(v1::ListEventsRequest {
                node: "-".into(),
                ..Default::default()
            }))
            .await,
            Code::InvalidArgument,
            "node: \"-\" must start with a letter",
        ),
    ];
    for ((code, message), expected_code, expected) in &cases {
        assert_eq!((code, message.as_str()), (expected_code, *expected));
    }
}

#[tokio::test]
async fn a_message_beyond_the_limit_is_refused_and_the_connection_lives() {
    let server = Server::start().await;
    let huge = v1::JobSpec {
        args: vec!["x".repeat(5 << 20)],
        ..spec(1)
    };
    let request = v1::SubmitRequest {
        r#ref: named("one"),
        spec: Some(huge),
        ..v1::SubmitRequest::default()
    };
    // A client that keeps no limits.
    let mut client = JobServiceClient::new(server.clients.channel());
    let (code, message) = refusal(client.submit(request)).await;
    assert_eq!(code, Code::OutOfRange, "{message}");
    server.submit("one", spec(1)).await;
}
