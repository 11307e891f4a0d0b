//! A launcher for a job that is about to come.

use muster_core::{
    run::{Assignment, LauncherState, RunPhase},
    spec::Launch,
};

use muster_runner::procfs;

use crate::rig::{
    Coordinator, Node, Session,
    node::{ready, run, stopped},
};

/// The job's assignment on this node in its next generation.
fn coming(node: &Node, job: &str, launch: Launch, script: &str) -> Assignment {
    let python = std::env::var("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON must name a Python with torch");
    Assignment {
        command: vec![python],
        args: vec![script.into()],
        launch,
        ..node.assignment(job, 2)
    }
}

async fn node() -> (Coordinator, Node, Session) {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.script(
        "train.py",
        "import time, curses\nprint('step 1', flush=True)\ntime.sleep(1000000)",
    );
    node.start(&coordinator.url());
    let session = coordinator.welcome(1, 1).await;
    (coordinator, node, session)
}

fn state(session: &Session, job: &str) -> Option<LauncherState> {
    session
        .launchers
        .iter()
        .find(|launcher| launcher.job.as_str() == job)
        .map(|launcher| launcher.state.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_ready_before_the_job_comes_and_is_used() {
    let (mut coordinator, mut node, mut session) = node().await;
    let next = coming(&node, "job-a", Launch::Fork, "train.py");
    session.prewarm(vec![next.clone()]).await;
    session
        .until("ready for job-a", |session| {
            state(session, "job-a") == Some(LauncherState::Ready)
        })
        .await;
    let launcher = procfs::all().unwrap().into_iter().find(|stat| {
        let line = std::fs::read(format!("/proc/{}/cmdline", stat.pid)).unwrap_or_default();
        let mark = format!("{}/job-a-launcher-", node.path("state/runs").display());
        String::from_utf8_lossy(&line).contains(&mark)
            && std::fs::read_to_string(format!("/proc/{}/maps", stat.pid))
                .is_ok_and(|maps| maps.contains("/_curses."))
    });
    assert!(
        launcher.is_some(),
        "ready is said once what the script imports is there"
    );
    assert!(session.runs.is_empty(), "nothing of the job is here");

    session.desire(vec![ready(next)]).await;
    let second = run("job-a", 2);
    session.until_phase(&second, RunPhase::Ready).await;
    let why = &session.run(&second).unwrap().lane.reason;
    assert!(why.ends_with("its launcher was ready"), "{why}");
    session
        .desire(vec![stopped("job-a", 2, std::time::Duration::ZERO)])
        .await;
    session.until_phase(&second, RunPhase::Dead).await;

    // A restarted agent knows of no job until it is asked again.
    session
        .prewarm(vec![coming(&node, "job-b", Launch::Fork, "train.py")])
        .await;
    session
        .until("ready for job-b", |session| {
            state(session, "job-b") == Some(LauncherState::Ready)
        })
        .await;
    node.kill_agent();
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 2).await;
    session.settle().await;
    assert_eq!(state(&session, "job-b"), None);
    session
        .prewarm(vec![coming(&node, "job-b", Launch::Fork, "train.py")])
        .await;
    session
        .until("ready for job-b again", |session| {
            state(session, "job-b") == Some(LauncherState::Ready)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_start_here_is_refused_and_one_without_a_launcher_is_not_waited_for() {
    let (_coordinator, node, mut session) = node().await;
    let jobs = [
        ("job-a", Launch::Fork, "missing.py"),
        ("job-b", Launch::Cold, "train.py"),
    ];
    session
        .prewarm(
            jobs.map(|(job, launch, script)| coming(&node, job, launch, script))
                .to_vec(),
        )
        .await;
    session
        .until("both answered", |session| session.launchers.len() == 2)
        .await;
    let missing = format!(
        "script {} not found on n1",
        node.path("missing.py").display()
    );
    assert_eq!(
        state(&session, "job-a"),
        Some(LauncherState::Refused(missing))
    );
    assert_eq!(
        state(&session, "job-b"),
        Some(LauncherState::Without("asked for".into()))
    );
}
