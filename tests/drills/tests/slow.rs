//! Ranks that make the others wait: real ranks over gloo, named by the real programs after a minute, and never where lateness goes from rank to rank.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{fs, time::Instant};

use muster_drills::{Cluster, python, scripts};
use serde_json::{Value, json};

fn submit(cluster: &Cluster, way: &str, nodes: u32, more: Value) {
    let script = scripts().join("slow.py");
    let mut spec = json!({
        "replicas": nodes, "procPerNode": 1, "gpusPerNode": 0, "command": [python()], "args": [script, way],
        "launch": "fork", "inspect": "collectives", "stopGracePeriod": "0s", "restartPolicy": {"maxRestarts": 3},
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
    });
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": way}, "spec": spec});
    let file = cluster.path(&format!("{way}.json"));
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
}

/// All jobs at the same time, so that each look at them sees the same machine.
#[test]
fn a_rank_that_makes_the_others_wait_is_named_and_no_other() {
    let cluster = Cluster::up_with(3, &["--slots", "4"], &[]);
    for way in ["even", "hands", "slow"] {
        submit(&cluster, way, 3, json!({}));
        cluster.trains(way, 1, 3);
    }
    // Its slow node is the one on which rank 1 begins.
    let marker = cluster.path("slow-node");
    let args = json!([scripts().join("slow.py"), "node", marker]);
    let leaves = json!({"args": args, "onSlowRank": "replace", "scaleUpCooldown": "0s"});
    submit(&cluster, "leaves", 2, leaves);
    cluster.trains("leaves", 1, 2);
    let begun = Instant::now();
    let named = |status: &Value| status["slow"].as_array().is_some_and(|all| !all.is_empty());
    let status = cluster.wait("slow", "known to have a slow rank", named);
    println!("named after {:.0?}: {:#}", begun.elapsed(), status["slow"]);
    let slow = status["slow"].as_array().unwrap();
    let ranks: Vec<u64> = { slow.iter() }
        .map(|one| one["rank"].as_u64().unwrap())
        .collect();
    assert_eq!(ranks, [1], "{status:#}");
    let wait = slow[0]["waitMicros"].as_u64().unwrap();
    assert!((20_000..40_000).contains(&wait), "{status:#}");
    let text = cluster.muster(["describe", "job", "slow"]);
    assert!(
        text.contains("rank 1 on ") && text.contains("each step waits"),
        "{text}"
    );
    let events = cluster.muster(["events"]);
    let told: Vec<&str> = { events.lines() }
        .filter(|line| line.contains("RankSlow") && line.contains("job/slow"))
        .collect();
    assert!(
        told.len() == 1 && told[0].contains("slow: rank 1 on"),
        "{events}"
    );
    for way in ["even", "hands"] {
        let status = cluster.status(way).unwrap();
        assert_eq!(status["slow"], Value::Null, "{way}: {status:#}");
        assert_eq!(status["restarts"], 0);
    }
    assert_eq!(
        cluster.status("slow").unwrap()["restarts"],
        0,
        "nothing is done about it"
    );
    cluster.trains("leaves", 2, 2);
    let slow_node = fs::read_to_string(&marker).unwrap();
    let status = cluster.status("leaves").unwrap();
    let nodes: Vec<&str> = { status["members"].as_array().unwrap().iter() }
        .map(|member| member["node"].as_str().unwrap())
        .collect();
    assert!(
        nodes.len() == 2 && !nodes.contains(&slow_node.as_str()),
        "{slow_node}: {status:#}"
    );
    let told = cluster.json(["explain", "leaves"]);
    let receipt = told["incidents"].as_array().unwrap().last().unwrap();
    let because = format!("leaving what is slow: rank 1 on {slow_node}: each step waits");
    assert!(
        receipt["cause"] == "RankSlow"
            && receipt["charged"] == "nobody"
            && receipt["message"].as_str().unwrap().starts_with(&because),
        "{receipt:#}"
    );
}
