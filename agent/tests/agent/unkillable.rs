//! Workers that do not die when they are killed. No test can make such a worker, so this test plays
//! the runner's end of its socket.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
};

use muster_core::{
    health::{Finding, Remedy, Severity, Subject},
    run::RunPhase,
};
use muster_runner::{
    socket,
    wire::{Command, Reply, Request, Status},
};

use crate::rig::{Coordinator, Node, Session, node::run};

fn unkillable(session: &Session) -> Option<&Finding> {
    session
        .findings
        .iter()
        .find(|finding| finding.check == "worker-unkillable")
}

/// The status that a runner reports.
fn status_of(mut runner: UnixStream) -> Status {
    let mut request = serde_json::to_vec(&Request::new(1, Command::Subscribe)).unwrap();
    request.push(b'\n');
    runner.write_all(&request).unwrap();
    let lines = BufReader::new(runner).lines();
    let mut replies = lines.map(|line| serde_json::from_str::<Reply>(&line.unwrap()).unwrap());
    *replies
        .find_map(|reply| reply.status)
        .expect("a runner says how it is")
}

fn say(agent: &mut UnixStream, status: Status) {
    let reply = Reply {
        status: Some(Box::new(status)),
        ok: None,
        ..Reply::ok(1)
    };
    let mut line = serde_json::to_vec(&reply).unwrap();
    line.push(b'\n');
    agent.write_all(&line).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_outlives_its_death_is_told_with_its_run() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    let id = run("job-a", 1);
    session.desire(vec![node.running("job-a", 1)]).await;
    session.until_phase(&id, RunPhase::Running).await;
    node.kill_agent();
    session.until_ended().await;

    let dir = node.run_dir(&id);
    let known = status_of(muster_runner::connect(&dir).unwrap());
    fs::remove_file(dir.join(socket::CONTROL)).unwrap();
    // It is made under a short path, because a socket's address holds 108 bytes.
    let here = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(here.path().join("s")).unwrap();
    fs::rename(here.path().join("s"), dir.join(socket::CONTROL)).unwrap();
    node.start(&coordinator.url());
    let (mut agent, _) = listener.accept().unwrap();
    say(
        &mut agent,
        Status {
            stuck: vec![4711, 4712],
            ..known.clone()
        },
    );
    let mut session = coordinator.welcome(1, 1).await;
    session
        .until("a node that tells of it", |s| unkillable(s).is_some())
        .await;
    let found = unkillable(&session).unwrap();
    assert_eq!(
        (found.severity, found.remedy, &found.subject),
        (Severity::Drain, Remedy::NodeReboot, &Subject::Node)
    );
    assert_eq!(
        found.reason,
        "processes 4711, 4712 of job-a-g1 cannot be killed: alive a minute after SIGKILL"
    );
    assert_eq!(found.runs, std::slice::from_ref(&id));
    say(&mut agent, known);
    session
        .until("a node that tells no more of it", |s| {
            unkillable(s).is_none()
        })
        .await;
}
