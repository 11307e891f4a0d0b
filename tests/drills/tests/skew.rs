//! Clocks that are minutes apart: those of two nodes and of the coordinator. Nothing is decided by
//! them, and what is shown is of one clock.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::process::Command;

use muster_drills::{
    Cluster,
    fleet::{Clocks, Fleet},
    kill, program,
    relay::Way,
};
use rustix::process::Signal;
use serde_json::json;

/// Seconds. No two clocks are less than ten minutes apart.
const COORDINATOR: i64 = -700;
const NODES: [i64; 2] = [900, -1_800];

#[test]
fn clocks_that_are_minutes_apart_decide_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let clocks = Clocks::new(folder.path(), COORDINATOR, &NODES);
    let fleet = Fleet::start_with(2, Some(clocks));
    fleet.submit("job", 2, 1, json!({}));
    let before = fleet.runs_on("job", 1, &[0, 1]);
    let mut ranks = before["ranks"].as_array().unwrap().iter();
    let victim = ranks.find(|rank| rank["node"] == "node-1").unwrap();
    kill(victim["pid"].as_u64().unwrap(), Signal::KILL);
    let generation = before["generation"].as_u64().unwrap();
    fleet.runs_on("job", generation + 1, &[0, 1]);

    let explained = fleet.json(&["explain", "job"]).unwrap();
    let incidents = explained["incidents"].as_array().unwrap();
    let last = incidents.last().unwrap();
    assert_eq!(last["cause"], "WorkerKilled", "{last:#}");
    assert!(last["culprit"].as_str().unwrap().ends_with("on node-1"));
    // Periods are measured by clocks that count, and moments are of one clock.
    for incident in incidents {
        let all = incident.as_object().unwrap().iter();
        let periods = all.filter(|(name, ms)| name.ends_with("Ms") && !ms.is_null());
        for (name, ms) in periods {
            let ms = ms.as_f64().unwrap();
            assert!((0.0..60_000.0).contains(&ms), "{name} in {incident:#}");
        }
    }
    let text = fleet.muster(&["explain", "job"]);
    let moments: Vec<f64> = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix('+')?.split_once('s'))
        .map(|(seconds, _)| seconds.parse().unwrap())
        .collect();
    assert!(moments.len() > 3 && moments.is_sorted(), "{text}");
    assert!(moments.iter().all(|seconds| *seconds < 120.0), "{text}");

    // A node that falls silent is lost by what the coordinator counts, and comes back.
    fleet.nodes[1].relay.set(Way::Shut, Way::Shut);
    fleet.runs_on("job", generation + 2, &[0]);
    fleet.nodes[1].relay.heal();
    fleet.runs_on("job", generation + 3, &[0, 1]);
    fleet.end();
}

#[test]
fn a_clock_that_is_hours_behind_is_named() {
    let cluster = Cluster::up_with(1, &["--tls"], &[]);
    let clocks = Clocks::new(&cluster.dir, 0, &[]);
    // Certificates are good from an hour before they were made.
    for (seconds, says) in [(-1_800, None), (-10_800, Some("the clock of this machine"))] {
        let mut command = Command::new(program("muster"));
        command.arg("nodes").env("MUSTER_LOCAL_DIR", &cluster.dir);
        clocks.set(&mut command, seconds);
        let output = command.output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), says.is_none(), "{why}");
        assert!(why.contains(says.unwrap_or_default()), "{why}");
    }
}
