//! torchrun behind another program is one world of the job's ranks; torchrun in a script is noticed.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use muster_drills::{Cluster, python, until};
use serde_json::{Value, json};

/// Meets the others, and prints what it knows of its world. With `go on` it makes steps until it is ended.
const MEETS: &str = r#"
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print("world", int(one.item()), "of", os.environ["WORLD_SIZE"], "nice", os.nice(0), flush=True)
step = 0
while sys.argv[1:] == ["go on"]:
    step += 1
    print("step", step, flush=True)
    time.sleep(0.5)
dist.destroy_process_group()
"#;

/// As an entry point in an image does.
const ENTRY: &str = r#"#!/bin/sh
exec python3 -m torch.distributed.run --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nproc-per-node=2 "$@"
"#;

fn submit(cluster: &Cluster, document: &Value, flags: &[&str]) {
    let file = cluster.path("job.json");
    fs::write(&file, document.to_string()).unwrap();
    let file = file.to_str().unwrap();
    cluster.muster([&["submit", "-f", file], flags].concat());
}

fn wrapped(script: &Path) -> Value {
    let container = json!({
        "name": "pytorch",
        "image": "torch:2",
        "command": ["tini", "--", "nice", "-n", "3"],
        "args": ["python3", "-m", "torch.distributed.run", "--nproc_per_node=1", script],
    });
    let pods = json!({"replicas": 2, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}});
    json!({
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "wrapped"},
        "spec": {"pytorchReplicaSpecs": {"Worker": pods}},
    })
}

#[test]
fn a_program_around_torchrun_stands_around_each_rank_of_one_world() {
    let (cluster, python) = (Cluster::up(2), python());
    let script = cluster.path("meets.py");
    fs::write(&script, MEETS).unwrap();
    let site = cluster.path("site.yaml");
    fs::write(
        &site,
        format!("images: {{'torch:*': {{python: {python}}}}}\n"),
    )
    .unwrap();
    submit(
        &cluster,
        &wrapped(&script),
        &["--site", site.to_str().unwrap()],
    );
    let waited = cluster.try_muster(["wait", "wrapped", "--for=complete", "--timeout", "280s"]);
    let explain = cluster.try_muster(["explain", "wrapped"]);
    let told = String::from_utf8_lossy(&explain.stdout).into_owned();
    assert!(waited.status.success(), "{told}");
    for rank in ["0", "1"] {
        let log = cluster.muster(["logs", "wrapped", "--rank", rank]);
        let line = log.lines().find(|line| line.contains("world 2 of 2 nice "));
        let nice: i64 = line.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert!(nice >= 3, "{log}");
    }
    assert!(!told.contains("NestedWorld"), "{told}");
}

#[test]
fn a_script_that_starts_torchrun_is_told_of() {
    let cluster = Cluster::up(2);
    let (script, entry) = (cluster.path("meets.py"), cluster.path("entry.sh"));
    fs::write(&script, MEETS).unwrap();
    fs::write(&entry, ENTRY).unwrap();
    fs::set_permissions(&entry, fs::Permissions::from_mode(0o755)).unwrap();
    let python = python();
    let folder = Path::new(&python).parent().unwrap();
    let spec = json!({
        "replicas": 2,
        "procPerNode": 1,
        "placement": "spread",
        "launch": "direct",
        "command": [entry],
        "args": [script, "go on"],
        // The agent finds torch there, too.
        "env": [{"name": "PATH", "value": format!("{}:/usr/bin:/bin", folder.display())}],
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": "nested"}, "spec": spec});
    submit(&cluster, &document, &[]);
    let events = || cluster.muster(["events", "nested"]);
    let told = |reason: &str| until(|| events().contains(reason).then_some(()));
    assert!(told("NestedWorld").is_some(), "{}", events());
    let described = cluster.muster(["describe", "job", "nested"]);
    assert!(
        described.contains("has started a world of its own, of 2"),
        "{described}"
    );
    assert!(
        events().contains("has started ranks of its own with torchrun"),
        "{}",
        events()
    );
    // The steps come from worlds that have never met at the TCPStore.
    assert!(told("WorldNotFormed").is_some(), "{}", events());
    let explain = cluster.muster(["explain", "nested"]);
    assert!(
        explain.contains("none of its 2 ranks has joined the TCPStore"),
        "{explain}"
    );
    assert_eq!(
        events().matches("NestedWorld").count(),
        1,
        "once in its life"
    );
    cluster.muster(["cancel", "nested", "--wait"]);
}
