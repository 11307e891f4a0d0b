//! What an agent refuses, and what it says then.

use std::{fs, path::Path};

use muster_core::run::{Assignment, RunPhase};

use crate::rig::{
    Coordinator, Node, Session,
    node::{ready, run, running},
};

type Change = fn(&mut Assignment);

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_start_here_says_why() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    let at = node.path("");
    let at = at.to_str().unwrap().trim_end_matches('/');
    let cases: [(Change, String); 7] = [
        (
            |a| a.args = vec!["gone.py".into()],
            format!("script {at}/gone.py not found on n1"),
        ),
        (
            |a| a.command = vec!["/opt/no/python3".into()],
            "/opt/no/python3 not found on n1".into(),
        ),
        (
            |a| a.command = vec!["python3.99".into()],
            format!("python3.99 not found in PATH ({at}/bin:/usr/bin:/bin) on n1"),
        ),
        (
            |a| a.working_dir = Some("/no/such".into()),
            "working directory /no/such not found on n1".into(),
        ),
        (
            |a| a.args = vec!["-c".into(), "pass".into()],
            "torchrun cannot run `python -c`; put the code into a script".into(),
        ),
        (
            |a| drop(a.env_files.insert("TOKEN".into(), "/no/token".into())),
            "env TOKEN: /no/token: No such file or directory".into(),
        ),
        (
            |a| a.step_pattern = Some("(".into()),
            "the agent of n1 cannot start the runner: ".into(),
        ),
    ];
    for (i, (change, why)) in cases.into_iter().enumerate() {
        let job = format!("job-{i}");
        let mut assignment = node.assignment(&job, 1);
        change(&mut assignment);
        session.desire(vec![running(assignment)]).await;
        session
            .until("refused", |s| {
                matches!(s.phase(&run(&job, 1)), Some(RunPhase::Refused(_)))
            })
            .await;
        let Some(RunPhase::Refused(reason)) = session.phase(&run(&job, 1)) else {
            unreachable!()
        };
        assert!(reason.starts_with(&why), "{reason:?} is not {why:?}");
    }
}

/// Whoever asks: such an agent may be root.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_only_looks_starts_nothing() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    let flags = ["--senses-only", "--pod-resources=/no/kubelet.sock"];
    node.flags = flags.map(str::to_owned).into();
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    let report = session.hello.report.clone().unwrap();
    assert_eq!((report.senses_only, report.slots), (true, 0));
    let known = report.gpu_holders.map(|holders| holders.known);
    assert_eq!(known, Some(false), "nothing is guessed");
    let assignment = node.assignment("job-a", 1);
    session.desire(vec![running(assignment)]).await;
    let why = |session: &Session| match session.phase(&run("job-a", 1)) {
        Some(RunPhase::Refused(why)) => Some(why.clone()),
        _ => None,
    };
    session.until("refused", |s| why(s).is_some()).await;
    let why = why(&session).unwrap();
    assert!(why.contains("only looks at its node"), "{why}");
    let started = fs::read_dir(node.path("out")).unwrap().count();
    assert_eq!(started, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_at_the_start_itself_is_refused_by_the_runner() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    let id = run("job-a", 1);
    let python = node.path("bin/python3");
    let assignment = Assignment {
        command: vec![python.to_str().unwrap().into()],
        ..node.assignment("job-a", 1)
    };
    session.desire(vec![ready(assignment.clone())]).await;
    session.until_phase(&id, RunPhase::Ready).await;
    fs::remove_file(&python).unwrap();
    session.desire(vec![running(assignment)]).await;
    session
        .until("an end", |s| s.phase(&id).is_some_and(RunPhase::is_over))
        .await;
    let Some(RunPhase::Refused(reason)) = session.phase(&id) else {
        panic!("{:?}", session.phase(&id))
    };
    assert!(
        reason.starts_with(&format!("start {python:?} in ")),
        "{reason}"
    );
    assert!(
        reason.ends_with("No such file or directory (os error 2)"),
        "{reason}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_that_fails_before_any_rank_has_the_last_word() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    let broken = "#!/bin/sh\n[ \"$1\" = -c ] && echo 2.15.0 && exit\necho \"ImportError: libcudart.so: cannot open\" >&2\nexit 1\n";
    fs::write(node.path("bin/python3"), broken).unwrap();
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    session.desire(vec![node.running("job-a", 1)]).await;
    let id = run("job-a", 1);
    session.until_phase(&id, RunPhase::Dead).await;
    let report = session.run(&id).unwrap();
    assert_eq!(report.torchrun_exit, Some(muster_core::exit::Exit::Code(1)));
    assert_eq!(
        report.torchrun_error.as_deref(),
        Some("ImportError: libcudart.so: cannot open")
    );
}

/// The last line that the agent logs as an error.
fn error(said: &str) -> String {
    let line = said
        .lines()
        .rfind(|line| line.contains("ERROR"))
        .unwrap_or(said);
    line.split_once("muster_agent: ")
        .map_or(line, |(_, text)| text)
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_on_one_directory() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.start(&coordinator.url());
    coordinator.accept().await;
    let (code, said) = node.fail(&coordinator.url());
    let holder = format!("the agent of node n1, process {} holds it", node.pid());
    let own = "stop that agent or give this one a --state-dir of its own";
    let text = format!(
        "state directory {}: {holder}; {own}",
        node.path("state").display()
    );
    assert_eq!((code, error(&said)), (1, text));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_cannot_be_trusted() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(3, 4).await;
    session.settle().await;
    session.desire(vec![node.ready("job-a", 1)]).await;
    session.until_phase(&run("job-a", 1), RunPhase::Ready).await;
    node.kill_agent();
    let path = node.path("state/ledger.json");
    let good = fs::read(&path).unwrap();
    let fail = |node: &Node| {
        let (code, said) = node.fail("http://127.0.0.1:1");
        assert_eq!(code, 1);
        error(&said)
    };
    let shown = |path: &Path| path.display().to_string();
    let anew = "or make sure that no worker runs on this node and move the whole state directory away to start anew";

    fs::write(&path, &good[..good.len() / 2]).unwrap();
    assert_eq!(
        fail(&node),
        format!(
            "{}: it is cut off, or was written by something else: its end is no checksum; restore the file from a backup, {anew}",
            shown(&path)
        )
    );
    let mut flipped = good.clone();
    let at = flipped.len() / 2;
    flipped[at] ^= 1;
    fs::write(&path, &flipped).unwrap();
    let text = format!(
        "{}: its checksum does not match; restore the file from a backup, {anew}",
        shown(&path)
    );
    assert_eq!(fail(&node), text);
    fs::remove_file(&path).unwrap();
    let text = format!(
        "{}: is missing although runs lie beside it; restore it from a backup, {anew}",
        shown(&path)
    );
    assert_eq!(fail(&node), text);
    fs::write(&path, &good).unwrap();
    node.name = "n2".into();
    let text = format!(
        "{}: belongs to node n1, this agent is n2; give it its own --state-dir, or --node-name n1",
        shown(&path)
    );
    assert_eq!(fail(&node), text);
    assert_eq!(
        fs::read(&path).unwrap(),
        good,
        "a ledger is never replaced by an empty one"
    );
    node.name = "n1".into();
    node.start(&coordinator.url());
    let session = coordinator.accept().await;
    assert_eq!((session.hello.term_seen, session.hello.epoch_seen), (3, 4));
    assert_eq!(session.runs.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_flags_end_it_with_status_2() {
    let node = Node::new("Node_1");
    let (code, said) = node.fail("http://127.0.0.1:1");
    let text = "muster-agent: --node-name: \"Node_1\" has 'N': only lower-case letters, digits and '-' are allowed\n\
                See muster-agent --help.\n";
    assert_eq!((code, said.as_str()), (2, text));
    let node = Node::new("n1");
    let (code, said) = node.fail("http://10.0.0.1:7070");
    assert_eq!(code, 2);
    assert!(said.contains("beyond loopback"), "{said}");
}
