//! A node's state disk that is slow for longer than a node may be silent. Training goes on, and the
//! node says what is wrong.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::fs;

use muster_drills::{Cluster, last_step, nodes, pids};
use serde_json::Value;
use slow_disk::SlowDisk;

#[path = "../../../agent/tests/agent/slow_disk.rs"]
mod slow_disk;

const LONG: [&str; 4] = ["--steps", "100000", "--delay-ms", "20"];

/// The agent reports a slow write after 1, 2, 4 and 8 s. A node that has been silent for 5 s is
/// lost.
const BEYOND_LOST_MS: u64 = 8_000;

/// The agent's process. Its lock tells it.
fn agent_of(cluster: &Cluster, node: &str) -> u32 {
    let lock = cluster.dir.join(format!("nodes/{node}/state/lock"));
    let lock = fs::read_to_string(lock).unwrap();
    let agent = lock.trim().rsplit(' ').next().unwrap();
    agent.parse().unwrap()
}

/// For how many milliseconds the ledger has been written, as the node's own finding says.
fn slow_for(node: &Value) -> Option<u64> {
    let findings = node["status"]["findings"].as_array()?;
    let slow = findings
        .iter()
        .find(|finding| finding["check"] == "state-disk-slow")?;
    let words = slow["reason"].as_str()?;
    let numbers = words
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|number| number.parse().ok());
    numbers.max()
}

#[test]
fn a_slow_disk_is_a_finding_and_training_goes_on() {
    let cluster = Cluster::up_with(2, &["--slots", "2"], &[]);
    cluster.train("job", "2", &LONG);
    let before = cluster.trains("job", 1, 2);
    let slow = cluster.node_of(&before, 1);
    let disk = SlowDisk::of(agent_of(&cluster, &slow));
    // A node writes a new job into its ledger first.
    cluster.train("second", "2", &LONG);
    let shown = muster_drills::until(|| {
        let shown = cluster.json(["get", "node", &slow]);
        slow_for(&shown)
            .is_some_and(|ms| ms >= BEYOND_LOST_MS)
            .then_some(shown)
    });
    let shown = shown.unwrap_or_else(|| {
        panic!(
            "no finding: {}",
            cluster.muster(["describe", "node", &slow])
        )
    });
    assert_eq!(shown["status"]["state"], "Ready", "{shown:#}");
    let at = last_step(&cluster.status("job").unwrap());
    let after = cluster.wait("job", "training on", |status| last_step(status) > at + 5);
    assert_eq!(
        (&after["generation"], pids(&after)),
        (&before["generation"], pids(&before)),
        "the same workers"
    );
    let events = cluster.muster(["events"]);
    assert!(
        !events.contains("NodeSuspect") && !events.contains("NodeLost"),
        "{events}"
    );
    let second = cluster.status("second").unwrap();
    assert!(
        second["phase"] != "Running",
        "it is obeyed before it is on disk: {second:#}"
    );

    drop(disk);
    let second = cluster.wait("second", "training once the disk writes again", |status| {
        status["phase"] == "Running" && pids(status).len() == 2 && last_step(status) > 0
    });
    assert!(nodes(&second).contains(&slow.as_str()), "{second:#}");
    for job in ["job", "second"] {
        cluster.muster(["cancel", job]);
        cluster.wait(job, "cancelled", |status| status["phase"] == "Cancelled");
    }
}
