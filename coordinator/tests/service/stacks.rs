//! Where ranks are: through the agents of their nodes, with what the nodes that answer say.

use muster_proto::v1;
use tonic::Code;

use crate::{
    agent::FakeAgent,
    server::{Server, phase, reference, spec},
};

fn request() -> v1::StacksRequest {
    v1::StacksRequest {
        r#ref: Some(reference("one")),
        ..v1::StacksRequest::default()
    }
}

#[tokio::test]
async fn ranks_of_all_nodes_are_grouped_and_a_node_that_is_away_is_one_line() {
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
    let ask = async |request| server.jobs().stacks(request).await.unwrap().into_inner();
    let all = ask(request()).await;
    assert_eq!(all.generation, 1);
    let nodes: Vec<(u32, &str)> = { all.ranks.iter() }
        .map(|rank| (rank.rank, rank.node.as_str()))
        .collect();
    assert_eq!(nodes, [(0, "node-a"), (1, "node-b")]);
    let groups: Vec<(&[u32], &str)> = { all.groups.iter() }
        .map(|group| (group.ranks.as_slice(), group.sentence.as_str()))
        .collect();
    let expected: [(&[u32], &str); 2] = [
        (&[0], "all_reduce at train.py:80"),
        (&[1], "load at train.py:81"),
    ];
    assert_eq!(groups, expected);
    assert_eq!(all.groups[1].frames[0].function, "load");
    let [wait] = &all.waits[..] else {
        panic!("{:?}", all.waits)
    };
    assert_eq!((wait.sequence, wait.waiting.as_slice()), (9, &[0][..]));
    assert_eq!((wait.behind.as_slice(), wait.completed), (&[1][..], 8));
    let one = ask(v1::StacksRequest {
        rank: Some(1),
        ..request()
    })
    .await;
    assert_eq!(one.ranks.len(), 1);
    assert_eq!(one.ranks[0].threads[0].frames[0].line, 81);

    for (request, code) in [
        (
            v1::StacksRequest {
                rank: Some(2),
                ..request()
            },
            Code::InvalidArgument,
        ),
        (
            v1::StacksRequest {
                node: "node-c".into(),
                ..request()
            },
            Code::InvalidArgument,
        ),
        (
            v1::StacksRequest {
                r#ref: Some(reference("two")),
                ..request()
            },
            Code::NotFound,
        ),
    ] {
        let status = server.jobs().stacks(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
    }

    drop(b);
    server
        .until_node("node-b", |node| node.state() != v1::NodeState::Ready)
        .await;
    let half = ask(request()).await;
    assert_eq!(half.ranks[0].error, "");
    assert_eq!(half.ranks[1].error, "node-b is not connected");
    assert_eq!(half.groups[1].sentence, "node-b is not connected");
}

#[tokio::test]
async fn a_job_without_ranks_has_no_stacks() {
    let server = Server::start().await;
    server.submit("one", spec(1)).await;
    let status = server.jobs().stacks(request()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let message = "job default/one is Pending: no rank of it runs";
    assert_eq!(status.message(), message);
}
