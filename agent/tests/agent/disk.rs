//! A state disk that is slow or accepts no more writes: the session and the workers live on,
//! nothing new is obeyed, and the node says what is wrong.

use std::{
    fs::{self, File},
    os::fd::AsRawFd,
    path::PathBuf,
};

use muster_core::run::RunPhase;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, mknodat},
    process::{Pid, Signal, kill_process},
};

use crate::rig::{
    Coordinator, Node, Session,
    node::{run, running},
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

/// The file into which the agent writes its ledger before it renames it.
fn draft(node: &Node) -> PathBuf {
    node.path("state").join(".ledger.json.tmp")
}

/// Makes the next write of the ledger wait until this is dropped: opening a pipe for writing waits
/// for a reader.
struct SlowDisk {
    path: PathBuf,
    pipe: File,
}

impl SlowDisk {
    fn new(node: &Node) -> Self {
        let path = draft(node);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // This opens neither end of the pipe, but keeps a reference to it.
        let pipe = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
        Self {
            path,
            pipe: pipe.into(),
        }
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // The next attempt to write makes an ordinary file.
        fs::remove_file(&self.path).unwrap();
        let end = rustix::fs::open(
            format!("/proc/self/fd/{}", self.pipe.as_raw_fd()),
            OFlags::RDONLY | OFlags::NONBLOCK,
            Mode::empty(),
        );
        drop(end.unwrap());
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
    let slow = SlowDisk::new(&node);
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
    // The directory keeps the agent from writing this file.
    fs::create_dir(draft(&node)).unwrap();
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
    fs::remove_dir(draft(&node)).unwrap();
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
    fs::create_dir(draft(&node)).unwrap();
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
