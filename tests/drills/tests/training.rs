//! A job trains through the events of a fleet: workers die, and nodes are cut off, come back, and
//! are scaled away.

use muster_drills::{Cluster, kill, last_step, nodes, pids, python};
use rustix::process::Signal;
use serde_json::json;

const LONG: [&str; 4] = ["--steps", "100000", "--delay-ms", "20"];

#[test]
fn a_job_runs_to_its_end_and_its_logs_can_be_read() {
    let cluster = Cluster::up(2);
    cluster.train("short", "2", &["--steps", "5"]);
    cluster.muster(["wait", "short", "--for=complete", "--timeout", "90s"]);
    let status = cluster.status("short").unwrap();
    assert_eq!(
        (&status["phase"], &status["generation"]),
        (&"Succeeded".into(), &1.into())
    );
    let log = cluster.muster(["logs", "short", "--rank", "1"]);
    assert!(
        log.contains("step=5 world=2 rank=1") && log.contains("done world=2"),
        "{log}"
    );
    cluster.muster(["delete", "job", "short"]);
    assert!(!cluster.try_muster(["get", "job", "short"]).status.success());
}

#[test]
fn a_killed_worker_costs_a_generation_and_not_the_job() {
    let cluster = Cluster::up(3);
    cluster.train("job", "2:3", &LONG);
    let before = cluster.trains("job", 1, 3);
    kill(pids(&before)[1], Signal::KILL);
    let after = cluster.trains("job", 2, 3);
    assert_eq!(
        nodes(&after),
        nodes(&before),
        "survivors keep their rank order"
    );
    assert!(last_step(&after) >= last_step(&before));
    let explain = cluster.json(["explain", "job"]);
    let incident = &explain["incidents"][1];
    assert_eq!(
        (&incident["cause"], &incident["charged"]),
        (&"WorkerKilled".into(), &"job".into()),
        "{incident:#}"
    );
    for phase in [
        "detectMs",
        "decideMs",
        "stopMs",
        "launchMs",
        "joinMs",
        "firstStepMs",
    ] {
        assert!(
            incident[phase].is_number(),
            "{phase} is not measured: {incident:#}"
        );
    }
}

#[test]
fn the_true_exit_code_and_error_reach_the_user() {
    let cluster = Cluster::up(2);
    cluster.train_with(
        "job",
        "2",
        &["--max-restarts", "0"],
        &[
            "--steps",
            "50",
            "--fail-at",
            "5",
            "--fail-rank",
            "1",
            "--exit-code",
            "77",
        ],
    );
    let output = cluster.try_muster(["wait", "job", "--for=complete", "--timeout", "90s"]);
    assert_eq!(output.status.code(), Some(3), "a job that failed");
    let status = cluster.status("job").unwrap();
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("rank 1") && message.contains("exit code 77: ValueError: asked to fail"),
        "{message}"
    );
}

#[test]
fn nodes_with_rank_0_and_with_the_store_may_be_cut_and_come_back() {
    let cluster = Cluster::up(4);
    cluster.train("job", "2:4", &LONG);
    let first = cluster.trains("job", 1, 4);
    let (rank_0, store) = (
        cluster.node_of(&first, 0),
        first["storeNode"].as_str().unwrap().to_owned(),
    );
    assert_ne!(rank_0, store);
    cluster.muster(["local", "kill-node", &rank_0]);
    let second = cluster.trains("job", 2, 3);
    assert_eq!(
        cluster.node_of(&second, 0),
        cluster.node_of(&first, 1),
        "the next in order is rank 0 now"
    );
    cluster.muster(["local", "kill-node", &store]);
    let third = cluster.trains("job", 3, 2);
    assert!(last_step(&third) >= last_step(&second));
    let explain = cluster.json(["explain", "job"]);
    let charged: Vec<&str> = explain["incidents"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|i| i["charged"].as_str())
        .collect();
    assert_eq!(
        charged,
        ["nobody", "node", "node"],
        "a node's fault costs the job nothing"
    );
    cluster.muster(["local", "start-node", &rank_0]);
    cluster.muster(["scale", "job", "--nodes", "3"]);
    let fourth = cluster.trains("job", 4, 3);
    assert_eq!(
        cluster.node_of(&fourth, 2),
        rank_0,
        "who comes back is last in order"
    );
}

#[test]
fn below_the_minimum_it_waits_says_so_and_goes_on() {
    let cluster = Cluster::up(2);
    cluster.train("job", "2:2", &LONG);
    let first = cluster.trains("job", 1, 2);
    kill(pids(&first)[0], Signal::KILL);
    let lost = cluster.node_of(&first, 1);
    cluster.muster(["local", "kill-node", &lost]);
    let waiting = cluster.wait("job", "waiting for nodes", |status| {
        status["reason"] == "BelowMinimum"
    });
    assert!(
        waiting["message"]
            .as_str()
            .unwrap()
            .contains("1 of at least 2 nodes"),
        "{waiting:#}"
    );
    cluster.muster(["local", "add-node"]);
    let status = cluster.wait("job", "training again", |status| {
        status["phase"] == "Running" && !status["lastStep"].is_null()
    });
    assert_eq!(status["nodes"], 2);
}

#[test]
fn a_job_that_cannot_start_says_why() {
    let cluster = Cluster::up(1);
    // On this machine the command looks itself.
    let refused = cluster.try_muster(["run", "--name", "job", "/nowhere/train.py"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("/nowhere/train.py"),
        "{said}"
    );

    let spec = json!({ "replicas": 1, "args": ["/nowhere/train.py"], "workingDir": "/", "command": [python()] });
    let document = json!({ "apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": { "name": "job" }, "spec": spec });
    let file = cluster.path("job.json");
    std::fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
    let status = cluster.wait("job", "failed", |status| status["phase"] == "Failed");
    assert_eq!(status["reason"], "CannotStart", "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("/nowhere/train.py"), "{message}");
}
