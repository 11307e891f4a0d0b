//! Logs through the agents: in order, with credit, across re-formations, and with a notice when
//! they are missing.

use muster_core::{
    exit::Exit,
    id::{Generation, JobUid, Term},
    run::{RunId, RunPhase, RunReport},
    time::Timestamp,
};
use muster_proto::{
    convert::session::runs_to_wire,
    v1::{self, agent_message::Message as FromAgent, coordinator_message::Message as ToAgent},
};
use tonic::{Code, Streaming};

use crate::{
    agent::{FakeAgent, Order, RawSession, hello, say},
    server::{Server, phase, reference, spec, within},
};

fn lines(node: &str, from: usize, to: usize) -> Vec<String> {
    (from..to)
        .map(|i| format!("2026-01-01T00:00:00.{i:09}Z stdout F {node} line {i}"))
        .collect()
}

fn request(name: &str) -> v1::LogsRequest {
    v1::LogsRequest {
        r#ref: Some(reference(name)),
        ..v1::LogsRequest::default()
    }
}

async fn read(server: &Server, request: v1::LogsRequest) -> Vec<v1::LogsResponse> {
    let mut stream = server.jobs().logs(request).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(response) = within(stream.message()).await.unwrap() {
        all.push(response);
    }
    all
}

fn lines_of(responses: &[v1::LogsResponse], rank: u32) -> Vec<String> {
    responses
        .iter()
        .filter(|r| r.rank == rank)
        .flat_map(|r| r.lines.clone())
        .collect()
}

fn notices(responses: &[v1::LogsResponse]) -> Vec<&str> {
    responses
        .iter()
        .map(|r| r.notice.as_str())
        .filter(|notice| !notice.is_empty())
        .collect()
}

async fn running(server: &Server, name: &str, nodes: u32) -> v1::Job {
    server
        .until_job(name, |job| {
            let status = job.status.as_ref().unwrap();
            phase(job) == v1::JobPhase::Running
                && status.nodes == nodes
                && status.nodes_running == nodes
        })
        .await
}

/// The next response with lines or a notice.
async fn next(stream: &mut Streaming<v1::LogsResponse>) -> v1::LogsResponse {
    loop {
        let response = within(stream.message())
            .await
            .unwrap()
            .expect("the stream goes on");
        if !response.lines.is_empty() || !response.notice.is_empty() {
            return response;
        }
    }
}

#[tokio::test]
async fn ranks_come_one_after_the_other_and_end() {
    let server = Server::start().await;
    let _a = FakeAgent::start(&server, "node-a", &lines("a", 0, 100), true).await;
    let _b = FakeAgent::start(&server, "node-b", &lines("b", 0, 3), true).await;
    server.submit("one", spec(2)).await;
    running(&server, "one", 2).await;

    let all = read(&server, request("one")).await;
    assert_eq!(
        lines_of(&all, 0),
        lines("a", 0, 100),
        "far more chunks than there is credit for at once"
    );
    assert_eq!(lines_of(&all, 1), lines("b", 0, 3));
    assert!(all.iter().is_sorted_by_key(|response| response.rank));
    assert!(all.iter().all(|response| response.generation == 1));
    assert_eq!(
        (all[0].node.as_str(), all.last().unwrap().node.as_str()),
        ("node-a", "node-b")
    );

    let tail = read(
        &server,
        v1::LogsRequest {
            rank: Some(0),
            tail: Some(2),
            ..request("one")
        },
    )
    .await;
    assert_eq!(lines_of(&tail, 0), lines("a", 98, 100));

    let refused = server
        .jobs()
        .logs(v1::LogsRequest {
            rank: Some(9),
            ..request("one")
        })
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::InvalidArgument,
            "rank: is 9, generation 1 has ranks 0 to 1"
        )
    );
}

#[tokio::test]
async fn an_agent_that_ignores_its_credit_cannot_fill_the_coordinator() {
    let server = Server::start().await;
    let _a = FakeAgent::start(&server, "node-a", &lines("a", 0, 5_000), false).await;
    server.submit("one", spec(1)).await;
    running(&server, "one", 1).await;
    let mut stream = server
        .jobs()
        .logs(request("one"))
        .await
        .unwrap()
        .into_inner();
    // Read nothing until the coordinator has had time to be flooded: a heartbeat has made its round
    // trip since.
    server
        .until_node("node-a", |node| node.state() == v1::NodeState::Ready)
        .await;
    let mut all = Vec::new();
    while let Some(response) = within(stream.message()).await.unwrap() {
        all.push(response);
    }
    assert_eq!(
        notices(&all),
        ["the log of rank 0 is cut off here: node-a serves too many log readers"]
    );
    let got = lines_of(&all, 0);
    assert_eq!(
        got,
        lines("a", 0, got.len()),
        "what came is whole and in order"
    );
    assert!(got.len() < 5_000);
}

#[tokio::test]
async fn following_goes_on_over_a_reformation_until_the_job_is_over() {
    let server = Server::start().await;
    let a = FakeAgent::start(&server, "node-a", &lines("a", 0, 2), true).await;
    server.submit("one", spec(2)).await;
    running(&server, "one", 1).await;
    let mut stream = server
        .jobs()
        .logs(v1::LogsRequest {
            follow: true,
            ..request("one")
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(next(&mut stream).await.lines, lines("a", 0, 1));
    assert_eq!(next(&mut stream).await.lines, lines("a", 1, 2));
    a.orders.send(Order::Write(lines("a", 2, 3))).await.unwrap();
    assert_eq!(next(&mut stream).await.lines, lines("a", 2, 3));

    let b = FakeAgent::start(&server, "node-b", &lines("b", 0, 1), true).await;
    let grown = running(&server, "one", 2).await;
    let generation = grown.status.unwrap().generation;
    let mut seen = Vec::new();
    while !seen.iter().any(|r: &v1::LogsResponse| r.node == "node-b") {
        seen.push(next(&mut stream).await);
    }
    assert!(
        seen.iter()
            .all(|response| response.generation == generation && generation > 1)
    );

    a.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    b.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    within(async { while stream.message().await.unwrap().is_some() {} }).await;
    server
        .until_job("one", |job| phase(job) == v1::JobPhase::Succeeded)
        .await;

    let previous = read(
        &server,
        v1::LogsRequest {
            previous: true,
            ..request("one")
        },
    )
    .await;
    assert_eq!(lines_of(&previous, 0), lines("a", 0, 3));
    assert!(
        previous
            .iter()
            .all(|response| response.generation < generation)
    );
}

/// A generation that fails at once may be over before a client that follows its job has looked.
#[tokio::test]
async fn generations_that_are_over_already_are_followed_too_if_asked_for() {
    let server = Server::start().await;
    let a = FakeAgent::start(&server, "node-a", &lines("a", 0, 2), true).await;
    server.submit("one", spec(1)).await;
    running(&server, "one", 1).await;
    a.orders.send(Order::Exit(Exit::Code(1))).await.unwrap();
    server
        .until_job("one", |job| {
            job.status.as_ref().unwrap().generation == 2 && phase(job) == v1::JobPhase::Running
        })
        .await;

    let request = v1::LogsRequest {
        follow: true,
        since_generation: 1,
        ..request("one")
    };
    let mut stream = server
        .jobs()
        .logs(request.clone())
        .await
        .unwrap()
        .into_inner();
    let mut seen = Vec::new();
    while seen.len() < 4 {
        seen.push(next(&mut stream).await);
    }
    for generation in [1, 2] {
        let of: Vec<_> = seen
            .iter()
            .filter(|response| response.generation == generation)
            .cloned()
            .collect();
        assert_eq!(
            lines_of(&of, 0),
            lines("a", 0, 2),
            "generation {generation}"
        );
    }
    let refused = server
        .jobs()
        .logs(v1::LogsRequest {
            follow: false,
            ..request
        })
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

/// The agent reads until its run is over. It cannot know that of a run that it has not heard of.
/// The coordinator knows it once the run is proven dead.
#[tokio::test]
async fn a_follow_ends_when_its_run_is_proven_dead_whatever_the_agent_knows() {
    let server = Server::start().await;
    let mut agent = RawSession::open(&server, say(FromAgent::Hello(hello("node-a"))))
        .await
        .unwrap();
    assert!(matches!(agent.next().await.unwrap(), ToAgent::Welcome(_)));
    server.submit("one", spec(1)).await;
    server
        .until_job("one", |job| job.status.as_ref().unwrap().generation == 1)
        .await;
    let mut stream = server
        .jobs()
        .logs(v1::LogsRequest {
            follow: true,
            ..request("one")
        })
        .await
        .unwrap()
        .into_inner();
    let read = agent.log_read().await;
    assert!(read.follow);

    server
        .jobs()
        .cancel(v1::CancelRequest {
            r#ref: Some(reference("one")),
        })
        .await
        .unwrap();
    let run = RunId {
        job: JobUid::from(read.job_uid),
        generation: Generation(1),
    };
    let dead = RunReport {
        phase: RunPhase::Dead,
        ..RunReport::preparing(run, Term(1))
    };
    agent
        .up
        .send(say(FromAgent::Runs(runs_to_wire(
            &[dead],
            None,
            Timestamp(0),
        ))))
        .await
        .unwrap();
    let last = agent.log_read().await;
    assert!(
        !last.follow && last.id != read.id,
        "once more, for what was written until then"
    );
    let error = "rank-0.log is not on this node".to_owned();
    agent
        .up
        .send(say(FromAgent::Log(v1::LogChunk {
            id: last.id,
            end: true,
            error,
            ..v1::LogChunk::default()
        })))
        .await
        .unwrap();
    let mut said = Vec::new();
    while let Some(response) = within(stream.message()).await.unwrap() {
        said.push((response.lines, response.notice));
    }
    assert_eq!(
        said,
        [(Vec::new(), String::new())],
        "its end; it was never started, so nobody misses its log"
    );
}

#[tokio::test]
async fn a_node_that_is_away_is_said_and_its_log_goes_on_when_it_is_back() {
    let server = Server::start().await;
    let a = FakeAgent::start(&server, "node-a", &lines("a", 0, 3), true).await;
    server.submit("one", spec(1)).await;
    running(&server, "one", 1).await;
    let mut stream = server
        .jobs()
        .logs(v1::LogsRequest {
            follow: true,
            ..request("one")
        })
        .await
        .unwrap()
        .into_inner();
    for i in 0..3 {
        assert_eq!(next(&mut stream).await.lines, lines("a", i, i + 1));
    }
    drop(a);
    assert_eq!(
        next(&mut stream).await.notice,
        "node-a is not connected: the log of rank 0 is cut off here; it goes on when the node is back"
    );
    let once = read(&server, request("one")).await;
    assert_eq!(
        notices(&once),
        ["node-a is not connected: the log of rank 0 is missing"]
    );

    // The node is back with two more lines, and only those are sent.
    let _a = FakeAgent::again(&server, "node-a", &lines("a", 0, 5)).await;
    let mut got = Vec::new();
    while got.len() < 2 {
        got.extend(next(&mut stream).await.lines);
    }
    assert_eq!(got, lines("a", 3, 5));
}

/// A client that has lost its coordinator tells how far it had come.
#[tokio::test]
async fn a_follow_goes_on_at_the_positions_that_its_client_gives() {
    let server = Server::start().await;
    let _a = FakeAgent::start(&server, "node-a", &lines("a", 0, 5), true).await;
    let _b = FakeAgent::start(&server, "node-b", &lines("b", 0, 5), true).await;
    server
        .submit(
            "one",
            v1::JobSpec {
                min_replicas: Some(2),
                ..spec(2)
            },
        )
        .await;
    running(&server, "one", 2).await;
    let follow = v1::LogsRequest {
        follow: true,
        since_generation: 1,
        ..request("one")
    };
    let mut stream = server
        .jobs()
        .logs(follow.clone())
        .await
        .unwrap()
        .into_inner();
    let mut at = 0;
    while at < 2 {
        let response = next(&mut stream).await;
        at = if response.rank == 0 { response.at } else { at };
    }
    drop(stream);
    let position = |rank, at, ended| v1::LogPosition {
        generation: 1,
        rank,
        at,
        ended,
        ..v1::LogPosition::default()
    };
    let follow = v1::LogsRequest {
        positions: vec![position(0, at, false), position(1, 5, true)],
        ..follow
    };
    let mut stream = server.jobs().logs(follow).await.unwrap().into_inner();
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(next(&mut stream).await);
    }
    assert_eq!(lines_of(&seen, 0), lines("a", 2, 5));
}

#[tokio::test]
async fn what_was_overwritten_before_it_was_read_is_said() {
    let server = Server::start().await;
    let mut agent = RawSession::open(&server, say(FromAgent::Hello(hello("node-a"))))
        .await
        .unwrap();
    server.submit("one", spec(1)).await;
    server
        .until_job("one", |job| job.status.as_ref().unwrap().generation == 1)
        .await;
    let mut stream = server
        .jobs()
        .logs(v1::LogsRequest {
            follow: true,
            ..request("one")
        })
        .await
        .unwrap()
        .into_inner();
    let read = agent.log_read().await;
    for (at, lost) in [(100, 0), (900, 700)] {
        let chunk = v1::LogChunk {
            id: read.id,
            lines: lines("a", 0, 1),
            at,
            lost,
            ..v1::LogChunk::default()
        };
        agent.up.send(say(FromAgent::Log(chunk))).await.unwrap();
    }
    assert_eq!(next(&mut stream).await.notice, "");
    let gap = next(&mut stream).await;
    assert_eq!((gap.at, gap.lines.len()), (900, 1));
    let missing = "rank 0 of generation 1 on node-a: 700 bytes of the log are missing here: a node keeps a log's newest part";
    assert_eq!(gap.notice, missing);
}

#[tokio::test]
async fn a_launcher_s_log_and_the_logs_of_one_node_can_be_asked_for() {
    let server = Server::start().await;
    let _a = FakeAgent::start(&server, "node-a", &lines("a", 0, 1), true).await;
    let _b = FakeAgent::start(&server, "node-b", &lines("b", 0, 1), true).await;
    server
        .submit(
            "one",
            v1::JobSpec {
                min_replicas: Some(2),
                ..spec(2)
            },
        )
        .await;
    running(&server, "one", 2).await;
    let nodes = |responses: &[v1::LogsResponse]| {
        let with_lines = responses
            .iter()
            .filter(|response| !response.lines.is_empty());
        with_lines
            .map(|response| response.node.clone())
            .collect::<Vec<_>>()
    };
    let launcher = v1::LogsRequest {
        launcher: true,
        ..request("one")
    };
    assert_eq!(
        nodes(&read(&server, launcher.clone()).await),
        ["node-a", "node-b"]
    );
    assert_eq!(
        nodes(
            &read(
                &server,
                v1::LogsRequest {
                    node: "node-b".into(),
                    ..launcher.clone()
                }
            )
            .await
        ),
        ["node-b"]
    );
    assert_eq!(
        nodes(
            &read(
                &server,
                v1::LogsRequest {
                    node: "node-b".into(),
                    ..request("one")
                }
            )
            .await
        ),
        ["node-b"]
    );
    let refusals = [
        (
            v1::LogsRequest {
                rank: Some(0),
                ..launcher
            },
            "rank: cannot be asked for together with the launcher's log",
        ),
        (
            v1::LogsRequest {
                node: "node-c".into(),
                ..request("one")
            },
            "node: is node-c, generation 1 is on node-a, node-b",
        ),
        (
            v1::LogsRequest {
                node: "node-b".into(),
                rank: Some(0),
                ..request("one")
            },
            "node: does not have that rank in generation 1",
        ),
    ];
    for (request, why) in refusals {
        let refused = server.jobs().logs(request).await.unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::InvalidArgument, why)
        );
    }
}

#[tokio::test]
async fn following_a_job_that_has_not_started_waits_for_it() {
    let server = Server::start().await;
    server.submit("one", spec(1)).await;
    let refused = server.jobs().logs(request("one")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused
            .message()
            .starts_with("job default/one has not started: "),
        "{}",
        refused.message()
    );
    let mut stream = server
        .jobs()
        .logs(v1::LogsRequest {
            follow: true,
            ..request("one")
        })
        .await
        .unwrap()
        .into_inner();
    let _a = FakeAgent::start(&server, "node-a", &lines("a", 0, 1), true).await;
    assert_eq!(next(&mut stream).await.lines, lines("a", 0, 1));
}
