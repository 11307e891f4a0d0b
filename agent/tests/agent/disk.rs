//! A state disk that is slow or accepts no more writes: the session and the workers live on,
//! nothing new is obeyed, and the node says what is wrong.

use std::{fs, path::PathBuf};

use muster_core::run::RunPhase;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    rig::{
        Coordinator, Node, Session,
        node::{run, running},
    },
    slow_disk::SlowDisk,
};

/// With a heartbeat every 50 ms, an agent that waits for its disk cannot send this many.
const BEATS: u64 = 40;

/// A node with a worker of job-a, and that worker's pid.
async fn node_at_work() -> (Coordinator, Node, Session, u32) {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    let first = run("job-a", 1);
    session
        .until("a worker", |s| {
            s.run(&first).is_some_and(|r| {
                r.ranks
                    .first()
                    .is_some_and(|rank| rank.first_step.is_some())
            })
        })
        .await;
    let pid = session.run(&first).unwrap().ranks[0].pid;
    (coordinator, node, session, pid)
}

/// A disk on which no new ledger can take the place of the old one: a directory is there, to which no
/// file can be renamed.
struct FullDisk(PathBuf);

impl FullDisk {
    fn new(node: &Node) -> Self {
        let path = node.path("state/ledger.json");
        fs::rename(&path, node.path("state/ledger.aside")).unwrap();
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).unwrap();
    }
}

fn has_finding(session: &Session, check: &str) -> bool {
    session
        .findings
        .iter()
        .any(|finding| finding.check == check)
}

async fn beats_on(session: &mut Session) {
    let seen = session.heartbeats;
    session
        .until("more heartbeats", |session| {
            session.heartbeats >= seen + BEATS
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_disk_holds_up_what_follows_from_it_and_nothing_else() {
    let (_coordinator, node, mut session, pid) = node_at_work().await;
    let slow = SlowDisk::of(node.pid());
    session
        .desire(vec![node.running("job-a", 1), node.running("job-b", 1)])
        .await;
    beats_on(&mut session).await;
    session
        .until("the slow disk is a finding", |session| {
            has_finding(session, "state-disk-slow")
        })
        .await;
    assert!(
        session.run(&run("job-b", 1)).is_none(),
        "it is told before it is on disk"
    );
    assert!(
        !node.path("state/runs/job-b-g1").exists(),
        "it is obeyed before it is on disk"
    );
    // Other news is reported at once.
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    let dead = run("job-a", 1);
    session
        .until("the worker's death is told", |s| {
            s.run(&dead)
                .is_some_and(|r| r.ranks.iter().any(|rank| rank.exit.is_some()))
        })
        .await;
    assert!(!node.path("state/runs/job-b-g1").exists());
    drop(slow);
    session
        .until_phase(&run("job-b", 1), RunPhase::Running)
        .await;
    let ledger = fs::read_to_string(node.path("state/ledger.json")).unwrap();
    assert!(ledger.contains("job-b"), "{ledger}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_takes_nothing_ends_neither_the_session_nor_the_workers() {
    let (_coordinator, node, mut session, pid) = node_at_work().await;
    let full = FullDisk::new(&node);
    session
        .desire(vec![
            node.running("job-a", 1),
            running(node.assignment("job-b", 1)),
        ])
        .await;
    session
        .until("it is a finding", |session| {
            has_finding(session, "state-disk-unwritable")
        })
        .await;
    beats_on(&mut session).await;
    assert!(crate::rig::alive(pid));
    assert_eq!(session.phase(&run("job-a", 1)), Some(&RunPhase::Running));
    assert!(session.run(&run("job-b", 1)).is_none() && !node.path("state/runs/job-b-g1").exists());
    drop(full);
    session
        .until_phase(&run("job-b", 1), RunPhase::Running)
        .await;
    session
        .until("the finding is gone", |session| {
            !has_finding(session, "state-disk-unwritable")
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_takes_no_word_of_the_agent_s_log_ends_neither_the_session_nor_the_workers() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    // Writes to this log fail for want of space.
    std::os::unix::fs::symlink("/dev/full", node.path("agent.log")).unwrap();
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    session
        .until_phase(&run("job-a", 1), RunPhase::Running)
        .await;
    // The thread that writes the ledger now logs something.
    let _full = FullDisk::new(&node);
    session
        .desire(vec![
            node.running("job-a", 1),
            running(node.assignment("job-b", 1)),
        ])
        .await;
    session
        .until("it is a finding", |session| {
            has_finding(session, "state-disk-unwritable")
        })
        .await;
    beats_on(&mut session).await;
    assert_eq!(session.phase(&run("job-a", 1)), Some(&RunPhase::Running));
}
