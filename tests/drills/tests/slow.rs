//! Ranks that make the others wait: real ranks over gloo, named by the real programs after a minute, and never where lateness goes from rank to rank.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{fs, time::Instant};

use muster_drills::{Cluster, python, scripts};
use serde_json::{Value, json};

fn submit(cluster: &Cluster, way: &str) {
    let script = scripts().join("slow.py");
    let spec = json!({
        "replicas": 3, "procPerNode": 1, "gpusPerNode": 0, "command": [python()], "args": [script, way],
        "launch": "fork", "inspect": "collectives", "stopGracePeriod": "0s", "restartPolicy": {"maxRestarts": 3},
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": way}, "spec": spec});
    let file = cluster.path(&format!("{way}.json"));
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
}

/// All three jobs at the same time, so that each look at them sees the same machine.
#[test]
fn a_rank_that_makes_the_others_wait_is_named_and_no_other() {
    let cluster = Cluster::up_with(3, &["--slots", "3"], &[]);
    for way in ["even", "hands", "slow"] {
        submit(&cluster, way);
        cluster.trains(way, 1, 3);
    }
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
        .filter(|line| line.contains("RankSlow"))
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
}
