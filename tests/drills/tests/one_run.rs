//! `muster run --local`: a cluster for one run. Nothing of it is left, whether the job ends or somebody interrupts it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
};

use muster_drills::{processes_of, program, programs, python};

const SCRIPT: &str = "\
import os, signal, sys
print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)
if sys.argv[1:] == ['stay']:
    signal.pause()
sys.exit(7 if sys.argv[1:] == ['fail'] else 0)
";

/// The command in a folder of its own, where its cluster lies, too.
fn run(folder: &Path, arguments: &[&str]) -> Command {
    fs::write(folder.join("train.py"), SCRIPT).unwrap();
    let mut command = Command::new(program("muster"));
    command
        .args(["run", "--local", "--python", &python()])
        .args(arguments)
        .current_dir(folder)
        .env("TMPDIR", folder)
        .env("MUSTER_BIN_DIR", programs())
        .env_remove("MUSTER_SERVER")
        .env("MUSTER_CONFIG", folder.join("config.yaml"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn expect_nothing_left(folder: &Path) {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name());
    let clusters: Vec<_> = files
        .filter(|name| name.to_string_lossy().starts_with("muster-run-"))
        .collect();
    assert!(clusters.is_empty(), "{clusters:?}");
    let processes = processes_of(folder);
    assert!(processes.is_empty(), "{processes:?}");
}

#[test]
fn the_cluster_ends_with_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["--nproc-per-node", "2", "train.py"])
        .output()
        .unwrap();
    let (out, said) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(0), "{out}{said}");
    for line in ["[rank 0] rank 0 of 2", "[rank 1] rank 1 of 2"] {
        assert!(out.contains(line), "{out}{said}");
    }
    expect_nothing_left(folder.path());

    let failed = run(folder.path(), &["--max-restarts", "0", "train.py", "fail"])
        .output()
        .unwrap();
    assert_eq!(
        failed.status.code(),
        Some(3),
        "{}",
        String::from_utf8_lossy(&failed.stderr)
    );
    expect_nothing_left(folder.path());
}

#[test]
fn an_interrupt_ends_the_workers_and_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = run(folder.path(), &["train.py", "stay"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap() == "[rank 0] rank 0 of 1"),
        "it starts"
    );
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    expect_nothing_left(folder.path());
}
