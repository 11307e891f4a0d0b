//! Workers with a fence (`fenceAfter`), and coordinators that speak another version.

use std::time::Duration;

use muster_core::run::{Assignment, RunPhase};
use tonic::Status;

use crate::rig::{
    Coordinator, Node, alive,
    node::{run, running},
};

/// Long enough for a loaded machine to answer a heartbeat.
const FENCE: Duration = Duration::from_secs(4);
/// Heartbeats come every 50 ms, so this many take longer than a fence.
const MORE_THAN_A_FENCE: u64 = 100;

#[tokio::test(flavor = "multi_thread")]
async fn workers_live_by_answered_heartbeats() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    let id = run("job-a", 1);
    let fenced = Assignment {
        fence_after: Some(FENCE),
        stop_grace: Duration::from_secs(1),
        ..node.assignment("job-a", 1)
    };
    session.desire(vec![running(fenced)]).await;
    session
        .until("a worker", |s| {
            s.run(&id).is_some_and(|r| {
                r.ranks
                    .first()
                    .is_some_and(|rank| rank.first_step.is_some())
            })
        })
        .await;
    let worker = session.run(&id).unwrap().ranks[0].pid;
    let seen = session.heartbeats;
    session
        .until("more than a fence", |s| {
            s.heartbeats >= seen + MORE_THAN_A_FENCE
        })
        .await;
    assert!(alive(worker) && session.phase(&id) == Some(&RunPhase::Running));

    // The coordinator still takes everything and answers nothing.
    session.answers = false;
    session.until_phase(&id, RunPhase::Dead).await;
    assert!(session.run(&id).unwrap().fenced && !alive(worker));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_common_version_the_agent_says_what_to_do_and_waits() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.start(&coordinator.url());
    let session = coordinator.accept().await;
    assert_eq!(
        (session.hello.protocol, session.hello.protocol_oldest),
        (5, 4)
    );
    let why = "the agent speaks protocol 4 to 5, this coordinator 6 to 7: upgrade the agent";
    session.refuse(Status::unimplemented(why)).await;
    // The agent comes again. A coordinator that was upgraded meanwhile welcomes it.
    coordinator.welcome(1, 1).await.settle().await;
    assert!(node.log().contains(why), "{}", node.log());
}
