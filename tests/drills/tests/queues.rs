//! A job of higher priority gets nodes from an elastic one, with real ranks: nothing is lost and nobody is charged.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use muster_drills::{Cluster, last_step, python, scripts};

fn run(cluster: &Cluster, name: &str, nodes: &str, priority: &str) {
    let script = scripts().join("allreduce.py");
    let saved = cluster.path(&format!("{name}.saved"));
    let (python, script) = (python(), script.to_str().unwrap().to_owned());
    cluster.muster([
        "run",
        "--detach",
        "--name",
        name,
        "--nnodes",
        nodes,
        "--nproc-per-node",
        "1",
        "--python",
        &python,
        "--priority",
        priority,
        "--scale-up-cooldown",
        "0s",
        "--",
        &script,
        "--steps",
        "100000",
        "--delay-ms",
        "20",
        "--state",
        saved.to_str().unwrap(),
    ]);
}

#[test]
fn an_elastic_job_shrinks_for_a_higher_priority_with_its_steps_saved_and_grows_again() {
    let cluster = Cluster::up(3);
    run(&cluster, "low", "1:3", "0");
    cluster.trains("low", 1, 3);
    run(&cluster, "urgent", "2:2", "5");
    cluster.trains("urgent", 1, 2);
    let low = cluster.trains("low", 2, 1);
    let receipts = cluster.json(["explain", "low"]);
    let receipt = receipts["incidents"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .clone();
    assert_eq!(receipt["cause"], "Preempted", "{receipt:#}");
    // Rank 0 saves each step, which another rank may have told before.
    let lost = receipt["stepsLost"].as_u64();
    assert!(lost.is_some_and(|lost| lost <= 1), "{receipt:#}");

    // A third one has to wait behind nobody, and says what it lacks.
    run(&cluster, "late", "1:1", "0");
    cluster.wait("late", "waiting", |status| {
        status["reason"] == "BelowMinimum"
    });
    let queue = cluster.json(["queue"]);
    let waiting = queue["items"].as_array().unwrap();
    assert_eq!(
        (waiting.len(), &waiting[0]["lacks"]),
        (1, &"NodesOccupied".into()),
        "{queue:#}"
    );
    cluster.muster(["cancel", "late", "--wait"]);

    cluster.muster(["cancel", "urgent", "--wait"]);
    // In one step or in two: nodes are free as soon as their workers are proven dead.
    cluster.wait("low", "training on all nodes again", |status| {
        let steps = status["ranks"].as_array().unwrap();
        let steps: Vec<_> = steps.iter().map(|rank| rank["lastStep"].as_u64()).collect();
        steps.len() == 3 && steps.iter().all(|step| *step > Some(last_step(&low)))
    });
    cluster.muster(["cancel", "low", "--wait"]);
}
