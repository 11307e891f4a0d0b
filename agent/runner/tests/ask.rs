//! `muster-runner ask`: a short program of a user is heard within bounds, and nothing of it is left.
#![allow(clippy::unwrap_used)]

mod rig;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use muster_runner::place::{self, OUTPUT_MAX, Output, Program};
use muster_runner::procfs;
use rig::{Living, RUNNER, until_written};

fn shell(dir: &Path, script: &str, timeout_ms: u64) -> Program {
    let env = BTreeMap::from([
        ("PATH".to_owned(), std::env::var("PATH").unwrap()),
        ("DIR".to_owned(), dir.to_str().unwrap().to_owned()),
    ]);
    Program {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env,
        dir: dir.into(),
        timeout_ms,
    }
}

fn ask(script: &str, timeout_ms: u64) -> Result<Output, String> {
    let dir = tempfile::tempdir().unwrap();
    place::ask(RUNNER.as_ref(), &shell(dir.path(), script, timeout_ms))
}

/// A process that leaves everything that it is known by: its parent, its session and its
/// environment. It holds its standard output open.
const STRAY: &str = r#"env -i setsid /bin/sh -c 'echo $$ > "$0"; exec sleep 100000' "$DIR/stray" &
until [ -s "$DIR/stray" ]; do sleep 0.01; done"#;

fn stray_of(dir: &Path) -> Living {
    Living::of(until_written(&dir.join("stray")).trim().parse().unwrap())
}

#[test]
fn both_streams_are_heard_and_the_beginning_of_long_ones_is_kept() {
    let output = ask("echo one; echo two >&2; exit 4", 60_000).unwrap();
    let expected = Output {
        stdout: "one\n".into(),
        stderr: "two\n".into(),
        code: Some(4),
    };
    assert_eq!(output, expected);
    let long = ask(
        "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2",
        60_000,
    )
    .unwrap();
    assert_eq!(
        (long.stdout.len(), long.stderr.len(), long.code),
        (OUTPUT_MAX, OUTPUT_MAX, Some(0))
    );
    assert_eq!(ask("kill -9 $$", 60_000).unwrap().code, None);
}

#[test]
fn what_prints_without_end_hangs_or_is_missing_is_told() {
    assert_eq!(
        ask("exec yes", 60_000).unwrap_err(),
        "/bin/sh printed more than 16 MiB and did not end"
    );
    assert_eq!(
        ask("exec sleep 100000", 50).unwrap_err(),
        "/bin/sh did not answer within 0 s"
    );
    let gone = Program {
        program: "/no/such".into(),
        ..shell(Path::new("/"), "", 1_000)
    };
    let gone = place::ask(RUNNER.as_ref(), &gone).unwrap_err();
    assert!(
        gone.starts_with("/no/such cannot be started: No such file"),
        "{gone}"
    );
}

#[test]
fn what_a_program_leaves_is_dead_when_the_answer_comes() {
    for script in [
        format!("{STRAY}\necho 2.15.0"),
        format!("{STRAY}\nexec sleep 100000"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let _ = place::ask(RUNNER.as_ref(), &shell(dir.path(), &script, 3_000));
        let stray = fs::read_to_string(dir.path().join("stray")).unwrap();
        assert!(!rig::lives(stray.trim().parse().unwrap()), "{script}");
    }
}

/// `muster-runner ask` with a program that does not end, and what that has left.
fn asking(dir: &Path) -> (Child, Living) {
    let mut child = Command::new(RUNNER)
        .arg(place::ASK)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let program = shell(dir, &format!("{STRAY}\nexec sleep 100000"), 600_000);
    let input = child.stdin.as_mut().unwrap();
    input.write_all(&program.request()).unwrap();
    let stray = stray_of(dir);
    (child, stray)
}

#[test]
fn everything_ends_when_nobody_waits_for_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, stray) = asking(dir.path());
    drop(child.stdin.take());
    stray.gone();
    assert!(child.wait().unwrap().success());
}

#[test]
fn each_of_the_two_processes_above_ends_everything_when_the_other_is_killed() {
    for upper in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut child, stray) = asking(dir.path());
        let all = procfs::all().unwrap();
        let below = all.iter().find(|stat| stat.ppid == child.id() as i32);
        let below = Living::of(below.unwrap().pid);
        match upper {
            true => child.kill().unwrap(),
            false => below.kill(),
        }
        stray.gone();
        below.gone();
        let mut said = String::new();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_to_string(&mut said).unwrap();
        child.wait().unwrap();
        let program = shell(dir.path(), "", 0);
        let answer = program.answer(said.as_bytes()).unwrap_err();
        assert!(!answer.is_empty());
    }
}

/// An agent raises its own limit, and tells its runners what it was before.
#[test]
fn a_user_s_program_has_the_limit_with_which_the_agent_was_started() {
    let dir = tempfile::tempdir().unwrap();
    let program = shell(dir.path(), "ulimit -Sn", 60_000);
    let said = |told: Option<&str>| {
        let mut runner = Command::new(RUNNER);
        runner.arg("ask").env_clear();
        runner.envs(told.map(|limit| ("MUSTER_OPEN_FILES", limit)));
        runner.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = runner.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(&program.request()).unwrap();
        let mut heard = Vec::new();
        let mut output = child.stdout.take().unwrap();
        output.read_to_end(&mut heard).unwrap();
        child.wait().unwrap();
        program.answer(&heard).unwrap().stdout.trim().to_owned()
    };
    let own = said(None);
    assert_eq!(said(Some("333")), "333");
    assert_eq!(said(Some("no number")), own);

    // This process is an agent now. It may have been started with as many as it may.
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    muster_runner::open_files::raise();
    let now = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    assert_eq!(now.current, before.maximum);
    let answer = place::ask(RUNNER.as_ref(), &program).unwrap();
    assert_eq!(answer.stdout.trim(), own, "as it was before");
}
