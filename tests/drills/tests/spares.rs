//! Spares take over what dies, and no launcher outlives its job.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::fs;

use muster_drills::{Cluster, kill, last_step, pids, python, scripts, until};
use rustix::process::Signal;
use serde_json::json;

const LONG: [&str; 4] = ["--steps", "100000", "--delay-ms", "20"];

fn train(cluster: &Cluster, lane: &str, nodes: &str) {
    let state = cluster.path("job.step");
    let (least, most) = nodes.split_once(':').unwrap_or((nodes, nodes));
    let number = |text: &str| text.parse::<u32>().unwrap();
    let mut args = vec![json!(scripts().join("allreduce.py")), json!("--state"), json!(state)];
    args.extend(LONG.iter().map(|word| json!(word)));
    let spec = json!({
        "replicas": number(most), "minReplicas": number(least), "maxReplicas": number(most), "procPerNode": 1, "gpusPerNode": 0,
        "command": [python()], "args": args, "launch": lane,
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": "job"}, "spec": spec});
    let file = cluster.path("job.json");
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
}

#[test]
fn a_spare_takes_over_whatever_dies() {
    let cluster = Cluster::up(3);
    train(&cluster, "fork", "2:3");
    let first = cluster.trains("job", 1, 3);
    until(|| (cluster.spares() == 3).then_some(())).expect("every node gets a spare");
    kill(pids(&first)[1], Signal::KILL);
    let second = cluster.trains("job", 2, 3);
    assert!(last_step(&second) >= last_step(&first));
    let explain = cluster.json(["explain", "job"]);
    let incident = &explain["incidents"][1];
    assert_eq!((&incident["cause"], &incident["charged"]), (&"WorkerKilled".into(), &"job".into()), "{incident:#}");
    // An interpreter takes longer than this to import torch on the machines this runs on, so nobody did.
    assert!(incident["launchMs"].as_f64().unwrap() < 1_000.0, "the spares were not used: {incident:#}");

    until(|| (cluster.spares() == 3).then_some(())).expect("and another");
    let agent = cluster.node_of(&second, 0);
    cluster.muster(["local", "kill-agent", &agent]);
    cluster.muster(["local", "start-agent", &agent]);
    let same = cluster.wait("job", "known again", |status| status["nodesRunning"] == 3 && last_step(status) > last_step(&second));
    assert_eq!(pids(&same), pids(&second), "workers do not notice that an agent with a spare dies");

    let cut = cluster.node_of(&second, 2);
    cluster.muster(["local", "kill-node", &cut]);
    cluster.trains("job", 3, 2);
    cluster.muster(["cancel", "job"]);
    cluster.wait("job", "cancelled", |status| status["phase"] == "Cancelled");
    let left = |cluster: &Cluster| {
        let processes = muster_drills::processes_of(&cluster.dir);
        processes.iter().any(|(_, line)| line.contains("launcher.py"))
    };
    until(|| (!left(&cluster)).then_some(())).expect("no launcher outlives its job");
}
