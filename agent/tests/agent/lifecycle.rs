//! A run from accepted to acknowledged, with everything that may die on the way.

use std::{fs, time::Duration};

use muster_core::{exit::Exit, run::RunPhase};

use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{
    Coordinator, Node, alive,
    node::{gone, ready, run, running, stopped},
    wait_gone,
};

/// A node with one training run, its session, and the worker's pid.
async fn training(job: &str) -> (Coordinator, Node, crate::rig::Session, u32) {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    session.desire(vec![node.ready(job, 1)]).await;
    session.until_phase(&run(job, 1), RunPhase::Ready).await;
    session.desire(vec![node.running(job, 1)]).await;
    session
        .until("its first step", |s| {
            s.run(&run(job, 1))
                .is_some_and(|r| r.ranks.len() == 1 && r.ranks[0].first_step == Some(1))
        })
        .await;
    let worker = session.run(&run(job, 1)).unwrap().ranks[0].pid;
    (coordinator, node, session, worker)
}

/// The pid of that run's runner.
fn runner(node: &Node) -> u32 {
    let text = fs::read(node.run_dir(&run("job-a", 1)).join("runner.json")).unwrap();
    let identity: serde_json::Value = serde_json::from_slice(&text).unwrap();
    identity["pid"].as_u64().unwrap() as u32
}

#[tokio::test(flavor = "multi_thread")]
async fn from_nothing_to_gone() {
    let (_coordinator, node, mut session, worker) = training("job-a").await;
    assert_eq!(session.hello.node, "n1");
    // If a container has a boot id of its own, the kernel's uptime is not the age of that boot.
    assert_eq!(
        session.hello.uptime_us > 0,
        muster_runner::procfs::boot_id_is_kernels()
    );
    let report = session.hello.report.clone().unwrap();
    assert_eq!(
        (
            report.labels["rack"].as_str(),
            report.slots,
            report.address.as_str()
        ),
        ("r7", 4, "127.0.0.1")
    );
    let ready: serde_json::Value =
        serde_json::from_slice(&fs::read(node.path("ready.json")).unwrap()).unwrap();
    assert_eq!(
        ready,
        serde_json::json!({ "node": "n1", "pid": node.pid() })
    );

    let id = run("job-a", 1);
    let live = session.run(&id).unwrap();
    assert_eq!(live.phase, RunPhase::Running);
    assert!(live.store.is_some() && live.launched_at.is_some() && alive(worker));
    assert_eq!(
        fs::read_to_string(node.path("out/worker-0"))
            .unwrap()
            .trim(),
        worker.to_string()
    );
    let environment = fs::read_to_string(node.path("out/environment-0")).unwrap();
    assert!(
        environment.contains("NODE_ZONE=eu-1a\n") && environment.contains("NODE_RACK=r7\n"),
        "{environment:?}"
    );
    assert!(
        environment.contains("MUSTER_GENERATION=1\n") && !environment.contains("PET_NNODES"),
        "{environment:?}"
    );

    session
        .desire(vec![stopped("job-a", 1, Duration::from_secs(10))])
        .await;
    session.until_phase(&id, RunPhase::Dead).await;
    let dead = session.run(&id).unwrap();
    assert!(dead.dead_at.is_some());
    assert_eq!(dead.ranks[0].exit, Some(Exit::Signal(15)));
    assert!(!alive(worker), "dead is proven");
    let runner = runner(&node);
    assert!(alive(runner), "its store may still be needed");
    session.desire(vec![gone("job-a", 1, false)]).await;
    session.until("gone", |s| s.runs.is_empty()).await;
    wait_gone(runner);
    assert!(
        node.run_dir(&id).join("logs/rank-0.log").exists(),
        "logs stay"
    );
    session.desire(vec![gone("job-a", 1, true)]).await;
    session
        .until("removed", |_| !node.run_dir(&id).exists())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_comes_back_to_the_same_workers() {
    let (mut coordinator, mut node, session, worker) = training("job-a").await;
    let id = run("job-a", 1);
    let before = session.run(&id).unwrap().clone();
    node.kill_agent();
    assert!(alive(worker));
    node.start(&coordinator.url());
    let mut session = coordinator.accept().await;
    assert_eq!((session.hello.term_seen, session.hello.epoch_seen), (1, 1));
    let after = session
        .run(&id)
        .expect("the hello has the whole inventory")
        .clone();
    assert_eq!(
        (after.phase, after.ranks[0].pid, after.term),
        (RunPhase::Running, worker, before.term)
    );
    assert_eq!(after.store, before.store);
    session.welcome(1, 2).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    session.settle().await;
    assert_eq!(session.run(&id).unwrap().ranks[0].pid, worker);
    session
        .desire(vec![stopped("job-a", 1, Duration::ZERO)])
        .await;
    session.until_phase(&id, RunPhase::Dead).await;
    assert!(!alive(worker));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_agent_leaves_its_workers() {
    let (mut coordinator, mut node, _session, worker) = training("job-a").await;
    assert_eq!(node.terminate_agent().code(), Some(0));
    assert!(
        !node.log().contains("did not end in time"),
        "{}",
        node.log()
    );
    assert!(alive(worker));
    node.start(&coordinator.url());
    let session = coordinator.accept().await;
    assert_eq!(session.run(&run("job-a", 1)).unwrap().ranks[0].pid, worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_while_no_agent_was_there_is_told() {
    let (mut coordinator, mut node, _session, worker) = training("job-a").await;
    let id = run("job-a", 1);
    node.kill_agent();
    kill_process(Pid::from_raw(worker as i32).unwrap(), Signal::SEGV).unwrap();
    wait_gone(worker);
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 2).await;
    session.until_phase(&id, RunPhase::Dead).await;
    let dead_at = session.run(&id).unwrap().dead_at;
    assert_eq!(
        session.run(&id).unwrap().ranks[0].exit,
        Some(Exit::Signal(11))
    );
    assert!(dead_at.is_some());
    // Restart the agent again. Now the runner is gone as well, and only its record is left.
    node.kill_agent();
    node.start(&coordinator.url());
    let session = coordinator.accept().await;
    assert_eq!(
        session.run(&id).unwrap().ranks[0].exit,
        Some(Exit::Signal(11))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_runner_takes_its_workers_along_and_is_reported_dead() {
    let (mut coordinator, mut node, mut session, worker) = training("job-a").await;
    let id = run("job-a", 1);
    kill_process(Pid::from_raw(runner(&node) as i32).unwrap(), Signal::KILL).unwrap();
    session.until_phase(&id, RunPhase::Dead).await;
    assert!(!alive(worker), "dead is proven");
    node.kill_agent();
    node.start(&coordinator.url());
    let session = coordinator.accept().await;
    let report = session.run(&id).unwrap();
    assert_eq!(
        (&report.phase, report.dead_at.is_some()),
        (&RunPhase::Dead, true)
    );
    assert!(!node.run_dir(&id).join("outcome.json").exists());
    assert!(node.run_dir(&id).join("lost.json").exists());
}

/// Garbage in a run's directory loses only its own content, never a living worker.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_records_kill_nobody() {
    let (mut coordinator, mut node, _session, worker) = training("job-a").await;
    let id = run("job-a", 1);
    let runner = runner(&node);
    node.kill_agent();
    for name in ["hold.json", "exits.jsonl", "accepted.json"] {
        fs::write(node.run_dir(&id).join(name), "\0garbage").unwrap();
    }
    node.start(&coordinator.url());
    let mut session = coordinator.accept().await;
    assert_eq!(
        (session.phase(&id), session.run(&id).unwrap().ranks[0].pid),
        (Some(&RunPhase::Running), worker)
    );
    session.welcome(1, 2).await;
    session.settle().await;
    assert!(alive(worker));
    kill_process(Pid::from_raw(runner as i32).unwrap(), Signal::KILL).unwrap();
    session.until_phase(&id, RunPhase::Dead).await;
    assert!(!alive(worker));
    let damage = format!(
        "{}: damaged at byte 8: it is cut off",
        node.run_dir(&id).join("hold.json").display()
    );
    assert!(node.log().contains(&damage), "{}", node.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_between_hold_and_start_goes_on_where_it_was() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    let id = run("job-a", 1);
    session.desire(vec![node.ready("job-a", 1)]).await;
    session.until_phase(&id, RunPhase::Ready).await;
    let store = session.run(&id).unwrap().store.clone();
    node.kill_agent();
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 2).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    session
        .until("running", |s| {
            s.run(&id).is_some_and(|r| r.ranks.len() == 1)
        })
        .await;
    assert_eq!(session.run(&id).unwrap().store, store, "the same runner");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_coordinator_may_go_and_come() {
    let (mut coordinator, node, mut session, worker) = training("job-a").await;
    let addr = coordinator.stop();
    session.until_ended().await;
    drop(session);
    assert!(alive(worker));
    let mut coordinator = Coordinator::start_at(addr).await;
    let mut session = coordinator.welcome(2, 2).await;
    assert_eq!(session.run(&run("job-a", 1)).unwrap().ranks[0].pid, worker);
    session.settle().await;
    // When only the stream ends, the agent comes back with the same stamps.
    drop(session);
    let session = coordinator.accept().await;
    assert_eq!((session.hello.term_seen, session.hello.epoch_seen), (2, 2));
    assert_eq!(session.run(&run("job-a", 1)).unwrap().ranks[0].pid, worker);
    drop(node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_manager_hears_that_it_is_ready_and_lives() {
    let coordinator = Coordinator::start().await;
    let node = Node::new("n1");
    let socket = node.path("notify");
    let manager = tokio::net::UnixDatagram::bind(&socket).unwrap();
    let mut command = node.command(&coordinator.url());
    command.env("NOTIFY_SOCKET", &socket);
    command.env("WATCHDOG_USEC", "300000");
    let mut agent = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    for expected in ["READY=1", "WATCHDOG=1", "WATCHDOG=1"] {
        let mut message = [0; 64];
        let told = tokio::time::timeout(Duration::from_secs(60), manager.recv(&mut message));
        let length = told.await.expect("told in time").unwrap();
        assert_eq!(String::from_utf8_lossy(&message[..length]).trim(), expected);
    }
    agent.kill().unwrap();
    agent.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_in_a_file_reaches_the_ranks_and_no_record() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    let token = node.path("token");
    fs::write(&token, "s3cret-of-ann\n").unwrap();
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    let mut assignment = node.assignment("job-a", 1);
    let file = token.to_str().unwrap().to_owned();
    assignment.env_files.insert("TOKEN".into(), file);
    session.desire(vec![ready(assignment.clone())]).await;
    session.until_phase(&run("job-a", 1), RunPhase::Ready).await;
    session.desire(vec![running(assignment)]).await;
    let environment = node.path("out/environment-0");
    session
        .until("its first step", |s| {
            s.run(&run("job-a", 1))
                .is_some_and(|r| r.ranks.iter().any(|rank| rank.first_step == Some(1)))
        })
        .await;
    let environment = fs::read_to_string(environment).unwrap();
    assert!(
        environment
            .lines()
            .any(|line| line == "TOKEN=s3cret-of-ann"),
        "{environment}"
    );
    let mut folders = vec![node.path("state")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(path),
                kind if kind.is_file() => {
                    let content = fs::read(&path).unwrap();
                    let held = content.windows(13).any(|part| part == b"s3cret-of-ann");
                    assert!(!held, "{} has the value", path.display());
                }
                _ => {}
            }
        }
    }
}
