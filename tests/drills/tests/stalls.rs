//! Jobs that stand still: real ranks over gloo, told by the real programs with the rank and the line. The limit is a job's own `stallAfter`.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::fs;

use muster_drills::{Cluster, kill, pids, python, scripts};
use rustix::process::Signal;
use serde_json::{Value, json};

fn submit(cluster: &Cluster, name: &str, way: &str, on_stall: &str) {
    let script = scripts().join("stalls.py");
    let file = cluster.path(&format!("{name}.pt"));
    let spec = json!({
        "replicas": 3, "procPerNode": 1, "gpusPerNode": 0, "command": [python()], "args": [script, way, file],
        "launch": "fork", "stallAfter": "5s", "onStall": on_stall, "stopGracePeriod": "0s", "restartPolicy": {"maxRestarts": 3},
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name}, "spec": spec});
    let file = cluster.path(&format!("{name}.json"));
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
}

/// The place of rank 1, by the comment at the end of its line.
fn place(call: &str, comment: &str) -> String {
    let script = fs::read_to_string(scripts().join("stalls.py")).unwrap();
    let mut lines = script.lines();
    let line = lines.position(|line| line.ends_with(&format!("# {comment}")));
    format!("{call} at stalls.py:{}", line.unwrap() + 1)
}

/// The stall of a job, once it has been found.
fn stall(cluster: &Cluster, job: &str) -> Value {
    let status = cluster.wait(job, "known to stall", |status| !status["stall"].is_null());
    status["stall"].clone()
}

fn names_rank_1(stall: &Value, why: &str, place: &str) {
    let ranks = stall["ranks"].as_array().unwrap();
    let named: Vec<(u64, &str)> = { ranks.iter() }
        .map(|rank| {
            (
                rank["rank"].as_u64().unwrap(),
                rank["place"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        (stall["why"].as_str(), &named[..]),
        (Some(why), &[(1, place)][..]),
        "{stall:#}"
    );
}

#[test]
fn the_rank_that_the_others_wait_for_is_named_with_its_line() {
    let cluster = Cluster::up(3);
    for (way, call) in [("load", "load_batch"), ("hold", "hold")] {
        submit(&cluster, way, way, "report");
        let found = stall(&cluster, way);
        let comment = if way == "load" { "load_batch" } else { "hold" };
        names_rank_1(&found, "Elsewhere", &place(call, comment));
        let stacks = found["stacks"].as_array().unwrap();
        assert_eq!(
            (&stacks[0]["rank"], &stacks[1]["rank"]),
            (&json!(1), &json!(0))
        );
        let waits = place("all_reduce", "waits");
        let places = found["places"].as_array().unwrap();
        assert_eq!(
            places[0],
            json!({"ranks": "0, 2", "place": waits}),
            "{found:#}"
        );
        let text = cluster.muster(["describe", "job", way]);
        assert!(text.contains("rank 1 on "), "{text}");
        let events = cluster.muster(["events"]);
        let told = format!("{way}: nothing has moved for ");
        assert!(
            events.contains("JobStalled") && events.contains(&told),
            "{events}"
        );
        cluster.muster(["cancel", way]);
    }
    // It calls another collective than the others.
    submit(&cluster, "skip", "skip", "report");
    names_rank_1(
        &stall(&cluster, "skip"),
        "Mismatch",
        &place("barrier", "skip"),
    );
    cluster.muster(["cancel", "skip"]);
}

#[test]
fn a_stopped_rank_is_its_nodes_fault_and_a_stalled_generation_is_replaced() {
    let cluster = Cluster::up(3);
    submit(&cluster, "stopped", "load", "report");
    let status = cluster.trains("stopped", 1, 3);
    kill(pids(&status)[1], Signal::STOP);
    let found = stall(&cluster, "stopped");
    assert_eq!(found["why"], "Stopped", "{found:#}");
    assert_eq!(found["ranks"][0]["rank"], 1);
    cluster.muster(["cancel", "stopped"]);

    submit(&cluster, "again", "load", "restart");
    cluster.muster(["wait", "again", "--for", "complete", "--timeout", "120s"]);
    let story = cluster.json(["explain", "again"]);
    let incidents = story["incidents"].as_array().unwrap();
    let broke = { incidents.iter() }.find(|one| one["cause"] == "Stalled");
    let broke = broke.unwrap_or_else(|| panic!("no incident of it: {story:#}"));
    assert_eq!(broke["charged"], "job");
    names_rank_1(
        &broke["stall"],
        "Elsewhere",
        &place("load_batch", "load_batch"),
    );
    let text = cluster.muster(["explain", "again"]);
    assert!(
        text.contains("stack") && text.contains("stalls.py:"),
        "{text}"
    );
}

#[test]
fn a_job_that_saves_or_works_for_longer_than_its_limit_is_never_called_stalled() {
    let cluster = Cluster::up(3);
    for way in ["save", "work"] {
        submit(&cluster, way, way, "restart");
        cluster.muster(["wait", way, "--for", "complete", "--timeout", "180s"]);
        let events = cluster.muster(["events"]);
        assert!(!events.contains("JobStalled"), "{events}");
        assert_eq!(cluster.status(way).unwrap()["restarts"], 0);
    }
}
