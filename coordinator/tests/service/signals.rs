//! Signals to ranks: through the agents of their nodes, once, and noted on the job.

use muster_proto::v1;
use tonic::Code;

use crate::{
    agent::FakeAgent,
    server::{Server, phase, reference, spec},
};

fn request(signal: &str) -> v1::SignalRequest {
    v1::SignalRequest {
        r#ref: Some(reference("one")),
        signal: signal.into(),
        ..v1::SignalRequest::default()
    }
}

async fn refused(server: &Server, request: v1::SignalRequest) -> (Code, String) {
    let status = server.jobs().signal(request).await.unwrap_err();
    (status.code(), status.message().to_owned())
}

/// Rank, node and error of each.
fn told(answer: &v1::SignalResponse) -> Vec<(u32, &str, &str)> {
    let of = |told: &'_ v1::SignalledRank| told.rank;
    assert!(answer.ranks.is_sorted_by_key(of));
    { answer.ranks.iter() }
        .map(|told| (told.rank, told.node.as_str(), told.error.as_str()))
        .collect()
}

#[tokio::test]
async fn a_signal_goes_to_the_nodes_of_the_ranks_and_becomes_an_event() {
    let server = Server::start().await;
    let _a = FakeAgent::start(&server, "node-a", &[], true).await;
    let b = FakeAgent::start(&server, "node-b", &[], true).await;
    server.submit("one", spec(2)).await;
    server
        .until_job("one", |job| {
            let status = job.status.as_ref().unwrap();
            phase(job) == v1::JobPhase::Running && status.nodes_running == 2
        })
        .await;
    let send = async |request| server.jobs().signal(request).await.unwrap().into_inner();

    let all = send(request("usr1")).await;
    assert_eq!(all.generation, 1);
    assert_eq!(told(&all), [(0, "node-a", ""), (1, "node-b", "")]);
    let one = send(v1::SignalRequest {
        rank: Some(1),
        ..request("SIGUSR1")
    })
    .await;
    assert_eq!(told(&one), [(1, "node-b", "")]);
    // The agents of this test send no SIGPIPE.
    let none = send(v1::SignalRequest {
        node: "node-a".into(),
        ..request("13")
    })
    .await;
    assert_eq!(told(&none), [(0, "node-a", "rank 0 has ended")]);

    for (request, code, message) in [
        (
            request("USR3"),
            Code::InvalidArgument,
            "signal: is \"USR3\", must be a signal, as USR1 or SIGUSR1, or its number from 1 to 64",
        ),
        (
            v1::SignalRequest {
                rank: Some(2),
                ..request("USR1")
            },
            Code::InvalidArgument,
            "rank: is 2, generation 1 has ranks 0 to 1",
        ),
        (
            v1::SignalRequest {
                node: "node-c".into(),
                ..request("USR1")
            },
            Code::InvalidArgument,
            "node: is node-c, which has no rank of generation 1",
        ),
        (
            v1::SignalRequest {
                node: "node-a".into(),
                rank: Some(1),
                ..request("USR1")
            },
            Code::InvalidArgument,
            "node: does not have that rank",
        ),
        (
            v1::SignalRequest {
                r#ref: Some(reference("two")),
                ..request("USR1")
            },
            Code::NotFound,
            "job default/two not found",
        ),
    ] {
        assert_eq!(refused(&server, request).await, (code, message.into()));
    }

    drop(b);
    server
        .until_node("node-b", |node| node.state() != v1::NodeState::Ready)
        .await;
    let away = send(v1::SignalRequest {
        rank: Some(1),
        ..request("USR2")
    })
    .await;
    assert_eq!(told(&away), [(1, "node-b", "node-b is not connected")]);

    let about = v1::ListEventsRequest {
        job: "one".into(),
        ..v1::ListEventsRequest::default()
    };
    let events = server
        .events()
        .list(about)
        .await
        .unwrap()
        .into_inner()
        .events;
    let notes: Vec<&str> = events
        .iter()
        .filter(|event| event.reason == "Signalled")
        .map(|event| event.message.as_str())
        .collect();
    assert_eq!(
        notes,
        [
            "SIGUSR1 was sent to ranks 0, 1 of generation 1",
            "SIGUSR1 was sent to rank 1 of generation 1",
        ]
    );
}

#[tokio::test]
async fn a_job_without_ranks_gets_no_signal() {
    let server = Server::start().await;
    server.submit("one", spec(1)).await;
    let (code, message) = refused(&server, request("USR1")).await;
    assert_eq!(code, Code::FailedPrecondition);
    assert_eq!(message, "job default/one is Pending: no rank of it runs");
}
