//! Jobs whose ranks run in an image, with a stand-in for podman: it notes how it is called, and starts the container's
//! program as a process of this machine with an environment of its own, as a container has that shares all namespaces
//! but the files.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use muster_drills::{Cluster, kill, pids, processes_of, program, until};
use rustix::process::Signal;
use serde_json::Value;

const STAND_IN: &str = r#"#!/bin/sh
echo "$*" >> RECORD
case "$1" in
--version) echo podman version 4.3.1 ;;
run)
    while [ "$1" != -- ]; do
        case "$1" in --entrypoint=*) program=${1#*=} ;; esac
        shift
    done
    case "$2" in no/such:*)
        echo "Error: reading manifest 1 in no/such: manifest unknown" >&2
        exit 125 ;;
    esac
    shift 2
    env -i PATH="$PATH" HOME="$HOME" IN_IMAGE=stand-in setsid "$program" "$@" < /dev/null > /dev/null 2>&1 &
    ;;
esac
"#;

/// The variables with which an agent finds the stand-in in this folder.
fn variables(bin: &Path) -> [(&'static str, String); 2] {
    let path = std::env::var("PATH").unwrap();
    [
        ("PATH", format!("{}:{path}", bin.display())),
        ("MUSTER_CONTAINERS", "podman".to_owned()),
    ]
}

/// Starts the agent of this node, which finds the stand-in, too.
fn start_agent(cluster: &Cluster, bin: &Path, node: &str) {
    let started = Command::new(program("muster"))
        .args(["local", "start-agent", node])
        .envs(variables(bin))
        .env("MUSTER_LOCAL_DIR", &cluster.dir)
        .env("MUSTER_CONFIG", cluster.path("config.yaml"))
        .status();
    assert!(started.unwrap().success());
}

/// A cluster whose agents find the stand-in, and the file in which it notes its calls.
fn cluster(nodes: usize) -> (Cluster, tempfile::TempDir) {
    let bin = tempfile::tempdir().unwrap();
    let program = bin.path().join("podman");
    let record = bin.path().join("record");
    fs::write(
        &program,
        STAND_IN.replace("RECORD", record.to_str().unwrap()),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let variables = variables(bin.path());
    let env: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    (Cluster::up_with(nodes, &[], &env), bin)
}

/// The calls of the stand-in that begin so.
fn calls(bin: &Path, command: &str) -> Vec<String> {
    let record = fs::read_to_string(bin.join("record")).unwrap_or_default();
    let lines = record.lines().filter(|line| line.starts_with(command));
    lines.map(str::to_owned).collect()
}

fn is_in_image(pid: u64) -> bool {
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let environ = String::from_utf8_lossy(&environ).into_owned();
    environ.split('\0').any(|one| one == "IN_IMAGE=stand-in")
}

/// The first processes of containers.
fn containers(cluster: &Cluster) -> Vec<u32> {
    let all = processes_of(&cluster.dir).into_iter();
    let first = all.filter(|(_, line)| line.contains("muster-runner pod --dir"));
    first.map(|(pid, _)| pid).collect()
}

fn all_are_in_the_image(status: &Value) {
    let ranks = pids(status);
    assert_eq!(ranks.len(), 2);
    assert!(ranks.iter().all(|pid| is_in_image(*pid)), "{ranks:?}");
}

#[test]
fn a_job_trains_and_heals_in_its_image_and_leaves_nothing() {
    let (cluster, bin) = cluster(2);
    let node = cluster.json(["get", "node", "node-1"]);
    assert_eq!(node["status"]["containerRuntime"], "podman 4.3.1");
    let flags = ["--image", "quay.io/me/train:1"];
    let script = ["--steps", "1000000", "--delay-ms", "20"];
    cluster.train_with("digits", "2", &flags, &script);
    let first = cluster.trains("digits", 1, 2);
    all_are_in_the_image(&first);
    let runs = calls(bin.path(), "run");
    assert_eq!(runs.len(), 2, "one container on each node: {runs:?}");
    for run in &runs {
        assert!(run.contains(" --pid=host ") && run.contains(" -- quay.io/me/train:1 pod --dir "));
    }

    // A killed rank, in the same containers.
    kill(pids(&first)[0], Signal::KILL);
    let second = cluster.trains("digits", 2, 2);
    all_are_in_the_image(&second);
    assert_eq!(calls(bin.path(), "run").len(), 2);

    // A rank dies while an agent is away. The next agent finds the container.
    let agent = cluster.node_of(&second, 1);
    cluster.muster(["local", "kill-agent", &agent]);
    kill(pids(&second)[1], Signal::KILL);
    start_agent(&cluster, bin.path(), &agent);
    let third = cluster.trains("digits", 3, 2);
    all_are_in_the_image(&third);
    assert_eq!(calls(bin.path(), "run").len(), 2);

    // A container that dies by itself: what is in it is judged for itself, and the next generation gets another.
    let before = containers(&cluster);
    assert_eq!(before.len(), 2, "{before:?}");
    kill(u64::from(before[0]), Signal::KILL);
    kill(pids(&third)[0], Signal::KILL);
    let fourth = cluster.trains("digits", 4, 2);
    all_are_in_the_image(&fourth);
    assert_eq!(calls(bin.path(), "run").len(), 3);

    cluster.muster(["cancel", "digits", "--wait"]);
    let gone = until(|| containers(&cluster).is_empty().then_some(()));
    assert!(gone.is_some(), "{:?}", processes_of(&cluster.dir));
    let dirs = |node: &str| cluster.dir.join(format!("nodes/{node}/state/containers"));
    let empty = |dir: &Path| fs::read_dir(dir).is_ok_and(|mut names| names.next().is_none());
    let removed = until(|| {
        ["node-1", "node-2"]
            .iter()
            .all(|node| empty(&dirs(node)))
            .then_some(())
    });
    assert!(removed.is_some(), "the containers' directories are removed");
    assert!(calls(bin.path(), "rm --force").len() >= 3);

    // What runs when the cluster is taken down ends with it.
    cluster.train_with("last", "2", &flags, &script);
    cluster.trains("last", 1, 2);
    assert_eq!(containers(&cluster).len(), 2);
}

#[test]
fn an_image_that_is_not_there_fails_the_job_with_the_runtimes_own_words() {
    let (cluster, bin) = cluster(1);
    cluster.train_with("digits", "1", &["--image", "no/such:1"], &[]);
    let status = cluster.wait("digits", "failed", |status| status["phase"] == "Failed");
    let why = status.to_string();
    let words = "image no/such:1 cannot be run on node-1: podman: Error: reading manifest 1 in no/such: manifest unknown";
    assert!(why.contains(words), "{status:#}");
    // The coordinator takes two starts that fail alike for the job's fault.
    assert_eq!(calls(bin.path(), "run").len(), 2);
    // Podman runs no image files, so that no node will do.
    let plan = ["--image", "/shared/train.sif"];
    cluster.train_with("file", "1", &plan, &[]);
    let pending = cluster.wait("file", "told why it waits", |status| {
        status.to_string().contains("runs no image files")
    });
    assert_eq!(pending["phase"], "Pending", "{pending:#}");
    cluster.muster(["cancel", "file", "--wait"]);
}
