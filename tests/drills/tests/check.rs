//! `muster check nodes` with real torch: well nodes, one that computes wrongly, one that reaches nobody, one that hangs.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use muster_drills::{Cluster, kill, programs, python, scripts, until};
use rustix::process::Signal;
use serde_json::{Value, json};

/// An interpreter that is bad in these ways on these nodes.
fn shim(cluster: &Cluster, name: &str, ways: &[(&str, &str)]) -> String {
    let mut text = fs::read_to_string(scripts().join("check_shim.sh")).unwrap();
    text = text.replace("@PYTHON@", &python());
    for (way, node) in ways {
        text = text.replace(&format!("@{way}@"), node);
    }
    let path = cluster.path(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The exit code, and the document.
fn check(cluster: &Cluster, python: &str, flags: &[&str]) -> (Option<i32>, Value) {
    let line = ["check", "nodes", "-o", "json", "--python", python];
    let output = cluster.try_muster([&line[..], flags].concat());
    let said = serde_json::from_slice(&output.stdout);
    let said = said.unwrap_or_else(|_| panic!("no document: {output:?}"));
    (output.status.code(), said)
}

/// `Bad node-2`, and for networks `Bad node-1+node-2`, but those that are good.
fn told(document: &Value) -> Vec<String> {
    let verdicts = document["verdicts"].as_array().unwrap();
    let mut told: Vec<String> = verdicts
        .iter()
        .filter(|one| one["verdict"] != "Good")
        .map(|one| {
            let nodes = one["nodes"].as_array().unwrap().iter();
            let nodes: Vec<&str> = nodes.map(|node| node.as_str().unwrap()).collect();
            format!("{} {}", one["verdict"].as_str().unwrap(), nodes.join("+"))
        })
        .collect();
    told.sort_unstable();
    told
}

fn reason(document: &Value, node: &str) -> String {
    let verdicts = document["verdicts"].as_array().unwrap();
    let of = |one: &&Value| one["nodes"] == json!([node]);
    let one = verdicts.iter().find(of).unwrap();
    one["reason"].as_str().unwrap().to_owned()
}

fn has_no_jobs(cluster: &Cluster) {
    let jobs = cluster.json(["get", "jobs"]);
    assert_eq!(jobs["items"], json!([]), "each job of a check is deleted");
}

#[test]
fn bad_nodes_are_told_and_cordoned() {
    let cluster = Cluster::up(3);
    let (code, well) = check(&cluster, &python(), &["--all"]);
    assert_eq!((code, told(&well)), (Some(0), vec![]), "{well:#}");
    assert_eq!(well["well"], true);
    for one in well["verdicts"].as_array().unwrap() {
        assert!(one["matmulSeconds"].as_f64() > Some(0.0), "{one}");
        assert!(one["bytesPerSecond"].as_u64() > Some(0), "{one}");
    }
    has_no_jobs(&cluster);

    // With two partners it fails, so it is the node, and not the network to one of them.
    let cut = shim(&cluster, "cut", &[("CUT", "node-3")]);
    let (code, found) = check(&cluster, &cut, &["node-[1-3]", "--timeout", "60s"]);
    assert_eq!(
        (code, told(&found)),
        (Some(8), vec!["Bad node-3".to_owned()]),
        "{found:#}"
    );
    let why = reason(&found, "node-3");
    assert!(
        why.contains("2 different partners (node-1, node-2)"),
        "{why}"
    );
    assert!(why.contains("its link is down"), "{why}");
    has_no_jobs(&cluster);

    // With one partner only, nobody knows.
    let (code, found) = check(&cluster, &cut, &["node-1", "node-3", "--timeout", "60s"]);
    let pair = [
        "Bad node-1+node-3",
        "NotChecked node-1",
        "NotChecked node-3",
    ];
    assert_eq!(
        (code, &told(&found)[..]),
        (Some(8), &pair.map(str::to_owned)[..]),
        "{found:#}"
    );

    let corrupts = shim(&cluster, "corrupts", &[("CORRUPTS", "node-2")]);
    let (code, found) = check(&cluster, &corrupts, &["--all", "--cordon"]);
    assert_eq!(
        (code, told(&found)),
        (Some(8), vec!["Bad node-2".to_owned()]),
        "{found:#}"
    );
    let why = reason(&found, "node-2");
    assert!(
        why.starts_with("its matmul gives a wrong result: rank "),
        "{why}"
    );
    assert!(why.ends_with(" has 1 of 262144 numbers wrong"), "{why}");
    let node = cluster.json(["get", "node", "node-2"]);
    assert_eq!(
        node["spec"]["cordon"]["reason"],
        format!("muster check nodes: {why}")
    );

    // A cordoned node is checked if it is named, and left out otherwise.
    let (code, found) = check(&cluster, &corrupts, &["--all"]);
    assert_eq!(
        (code, told(&found)),
        (Some(0), vec!["NotChecked node-2".to_owned()]),
        "{found:#}"
    );
    let why = reason(&found, "node-2");
    assert!(why.ends_with("name it, or add --cordoned"), "{why}");
    let (code, found) = check(&cluster, &corrupts, &["--all", "--cordoned"]);
    assert_eq!(
        (code, told(&found)),
        (Some(8), vec!["Bad node-2".to_owned()]),
        "{found:#}"
    );
    let (code, found) = check(&cluster, &python(), &["node-1", "node-2"]);
    assert_eq!((code, told(&found)), (Some(0), vec![]), "{found:#}");
    has_no_jobs(&cluster);
}

#[test]
fn a_node_that_hangs_is_bad_a_busy_one_is_left_alone_and_an_interrupt_leaves_nothing() {
    let cluster = Cluster::up(3);
    let hangs = shim(&cluster, "hangs", &[("HANGS", "node-1")]);
    let (code, found) = check(&cluster, &hangs, &["--all", "--timeout", "40s"]);
    assert_eq!(
        (code, told(&found)),
        (Some(8), vec!["Bad node-1".to_owned()]),
        "{found:#}"
    );
    has_no_jobs(&cluster);

    // Ctrl-C while all hang.
    let mut waits = Command::new(programs().join("muster"));
    waits
        .args(["check", "nodes", "node-1", "--python", &hangs])
        .env("MUSTER_LOCAL_DIR", &cluster.dir)
        .env("MUSTER_CONFIG", cluster.path("config.yaml"))
        .env_remove("MUSTER_SERVER")
        .stderr(Stdio::piped());
    let child = waits.spawn().unwrap();
    let running = until(|| {
        let jobs = cluster.json(["get", "jobs"]);
        (jobs["items"][0]["status"]["phase"] == "Running").then_some(())
    });
    running.expect("its job runs");
    kill(child.id().into(), Signal::INT);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    has_no_jobs(&cluster);

    let script = ["--steps", "100000", "--delay-ms", "20"];
    cluster.train_with("busy", "1", &["--nodelist", "node-2"], &script);
    cluster.trains("busy", 1, 1);
    let (code, found) = check(&cluster, &python(), &["--all"]);
    assert_eq!(
        (code, told(&found)),
        (Some(0), vec!["NotChecked node-2".to_owned()]),
        "{found:#}"
    );
    let why = reason(&found, "node-2");
    assert!(why.starts_with("busy: job/busy is there"), "{why}");
    let status = cluster.status("busy").unwrap();
    assert_eq!(
        (&status["phase"], &status["generation"]),
        (&json!("Running"), &json!(1)),
        "it was not disturbed"
    );
}
