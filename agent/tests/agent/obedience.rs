//! The agent obeys only higher stamps, and nothing twice.

use std::time::Duration;

use muster_core::run::{Assignment, RunPhase};
use muster_runner::RunnerIdentity;
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{
    Coordinator, Node, Session, alive,
    node::{run, running, stopped},
};

async fn node_in_session(term: u64, epoch: u64) -> (Coordinator, Node, Session) {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.start(&coordinator.url());
    let session = coordinator.welcome(term, epoch).await;
    (coordinator, node, session)
}

async fn worker(session: &mut Session, generation: u64) -> u32 {
    let id = run("job-a", generation);
    session
        .until("a worker", |s| {
            s.run(&id).is_some_and(|r| {
                r.ranks
                    .first()
                    .is_some_and(|rank| rank.first_step.is_some())
            })
        })
        .await;
    session.run(&id).unwrap().ranks[0].pid
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_coordinator_is_refused_and_nothing_of_it_is_done() {
    let (mut coordinator, mut node, mut session) = node_in_session(5, 9).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    let pid = worker(&mut session, 1).await;
    session
        .desire_as(4, 9, vec![stopped("job-a", 1, Duration::ZERO)])
        .await;
    session.until_ended().await;
    let mut session = coordinator.accept().await;
    assert_eq!((session.hello.term_seen, session.hello.epoch_seen), (5, 9));
    session.welcome(4, 10).await;
    session
        .desire(vec![stopped("job-a", 1, Duration::ZERO)])
        .await;
    session.until_ended().await;
    // A restart changes nothing, because the stamp is on disk.
    node.kill_agent();
    node.start(&coordinator.url());
    // Sessions of the previous agent may still be in the queue.
    let mut session = loop {
        let session = coordinator.accept().await;
        if session.hello.term_seen == 5 && session.hello.incarnation != 0 {
            break session;
        }
    };
    session.welcome(5, 8).await;
    session.until_ended().await;
    assert!(alive(pid));
    let log = node.log();
    assert!(
        log.contains("term 4 is older than 5, which this node has obeyed"),
        "{log}"
    );
    assert!(
        log.contains("node epoch 8 is older than 9, which this node has obeyed"),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_again_is_nothing_new() {
    let (mut coordinator, node, mut session) = node_in_session(1, 1).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    let pid = worker(&mut session, 1).await;
    for _ in 0..3 {
        session.desire(vec![node.ready("job-a", 1)]).await;
        session.desire(vec![node.running("job-a", 1)]).await;
    }
    session.desire(Vec::new()).await;
    session.settle().await;
    drop(session);
    let mut session = coordinator.welcome(1, 2).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    session.settle().await;
    let report = session.run(&run("job-a", 1)).unwrap();
    assert_eq!(
        (&report.phase, report.ranks[0].pid),
        (&RunPhase::Running, pid)
    );
    assert_eq!(node.log().matches("starting run=").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_number_with_other_content_is_an_alarm() {
    let (_coordinator, node, mut session) = node_in_session(1, 1).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    let pid = worker(&mut session, 1).await;
    let other = Assignment {
        args: vec!["other.py".into()],
        ..node.assignment("job-a", 1)
    };
    session.desire(vec![running(other)]).await;
    session.settle().await;
    assert!(alive(pid));
    assert_eq!(session.run(&run("job-a", 1)).unwrap().ranks[0].pid, pid);
    let log = node.log();
    let alarm = log
        .lines()
        .find(|line| line.contains("generation 1 comes with other content than before"));
    assert!(
        alarm.is_some_and(|line| line.contains("ERROR") && line.contains("job-a-g1")),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_generation_starts_when_the_older_is_dead() {
    let (_coordinator, node, mut session) = node_in_session(1, 1).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    let first = worker(&mut session, 1).await;
    session.desire(vec![node.running("job-a", 2)]).await;
    let second = worker(&mut session, 2).await;
    assert!(!alive(first) && alive(second));
    assert_eq!(session.phase(&run("job-a", 1)), Some(&RunPhase::Dead));
    session.desire(vec![node.running("job-a", 1)]).await;
    session.settle().await;
    assert!(alive(second));
    assert!(
        node.log()
            .contains("generation 1 is older than 2, which this node has obeyed")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_grace_overtakes_a_longer_one() {
    let (_coordinator, node, mut session) = node_in_session(1, 1).await;
    // The worker ignores TERM, so only the kill ends it.
    node.script(
        "train.py",
        "trap '' TERM\necho step 1\nexec sleep 1000000\n",
    );
    session.desire(vec![node.running("job-a", 1)]).await;
    let pid = worker(&mut session, 1).await;
    session
        .desire(vec![stopped("job-a", 1, Duration::from_secs(3_600))])
        .await;
    session
        .until_phase(&run("job-a", 1), RunPhase::Stopping)
        .await;
    session.settle().await;
    assert!(alive(pid));
    session
        .desire(vec![stopped("job-a", 1, Duration::ZERO)])
        .await;
    session.until_phase(&run("job-a", 1), RunPhase::Dead).await;
    assert!(!alive(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_be_dead_before_it_was_heard_of() {
    let (mut coordinator, mut node, mut session) = node_in_session(1, 1).await;
    session
        .desire(vec![stopped("job-a", 3, Duration::ZERO)])
        .await;
    session.until_phase(&run("job-a", 3), RunPhase::Dead).await;
    node.kill_agent();
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 2).await;
    session.desire(vec![node.running("job-a", 3)]).await;
    let over = |s: &Session| s.phase(&run("job-a", 3)).is_some_and(RunPhase::is_over);
    session.until("refused", over).await;
    assert!(!node.run_dir(&run("job-a", 3)).exists());
}

/// A runner that is stopped, or spins, or waits for a disk, looks the same: it answers nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_does_not_obey_is_killed_and_its_group_is_proven_dead() {
    let (mut coordinator, mut node, mut session) = node_in_session(1, 1).await;
    // What it starts leaves its session and its environment.
    node.script(
        "train.py",
        "env -i setsid sleep 1000000 &\necho $! > \"$OUT/stray\"\necho step 1\nexec sleep 1000000\n",
    );
    session.desire(vec![node.running("job-a", 1)]).await;
    let pid = worker(&mut session, 1).await;
    let id = run("job-a", 1);
    let runner = RunnerIdentity::read(&node.run_dir(&id)).unwrap().unwrap();
    kill_process(Pid::from_raw(runner.pid).unwrap(), Signal::STOP).unwrap();
    // The next agent never hears the runner.
    node.kill_agent();
    session.until_ended().await;
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 2).await;
    session
        .desire(vec![stopped("job-a", 1, Duration::ZERO)])
        .await;
    session.until_phase(&id, RunPhase::Dead).await;
    let disobedience = session.run(&id).unwrap().disobedience.clone();
    let disobedience = disobedience.expect("it is told");
    assert!(!disobedience.answered && disobedience.grace.is_zero());
    assert!(!alive(pid) && !alive(runner.pid as u32));
    let stray = std::fs::read_to_string(node.path("out/stray")).unwrap();
    assert!(!alive(stray.trim().parse().unwrap()));
}
