//! Every daemon is replaced by a later build under a job that trains. No worker notices.
//!
//! `make upgrade FROM=COMMIT` builds an earlier commit and names its programs in
//! `MUSTER_OLD_BIN_DIR`. Without it the earlier build is this build, which shows only that a
//! restart of everything goes unnoticed; the test says so.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{env, path::PathBuf};

use muster_drills::{Cluster, kill, last_step, nodes, pids, programs};
use rustix::process::Signal;
use serde_json::Value;

const LONG: [&str; 4] = ["--steps", "100000", "--delay-ms", "50"];

/// The programs of the build before this one.
fn old_programs() -> PathBuf {
    env::var_os("MUSTER_OLD_BIN_DIR").map_or_else(
        || {
            println!("MUSTER_OLD_BIN_DIR is not set: the earlier build is this build");
            programs()
        },
        PathBuf::from,
    )
}

/// The job trains on, with the same workers.
fn trains_on(cluster: &Cluster, before: &Value, when: &str) {
    let at = cluster.wait("job", when, |status| status["nodesRunning"] == 2);
    let at = last_step(&at);
    let after = cluster.wait("job", when, |status| {
        status["nodesRunning"] == 2 && last_step(status) > at + 3
    });
    assert_eq!(
        (&after["generation"], pids(&after)),
        (&before["generation"], pids(before)),
        "{when}: the same workers"
    );
}

/// A worker is killed. The next generation trains on both nodes, and the right one is blamed.
fn survives_a_kill(cluster: &Cluster, before: &Value) -> Value {
    // A later agent ends the launchers of an earlier one and starts its own.
    cluster.wait("job", "with a launcher on each node", |status| {
        let members = status["members"].as_array().unwrap();
        let has_launcher = |member: &Value| {
            // Earlier builds have the second name.
            let mut named = ["launcherBytes", "spareBytes"]
                .iter()
                .map(|name| &member[name]);
            named.any(|bytes| bytes.as_u64() > Some(0))
        };
        members.iter().all(has_launcher)
    });
    let victim = &before["ranks"][1];
    kill(victim["pid"].as_u64().unwrap(), Signal::KILL);
    let after = cluster.trains("job", before["generation"].as_u64().unwrap() + 1, 2);
    let incidents = cluster.json(["explain", "job"]);
    let last = incidents["incidents"].as_array().unwrap().last().unwrap();
    assert_eq!(last["cause"], "WorkerKilled", "{last:#}");
    let culprit = format!("rank 1 on {}", victim["node"].as_str().unwrap());
    assert_eq!(last["culprit"], culprit.as_str(), "{last:#}");
    // Nothing has made the launchers useless on the way.
    for member in after["members"].as_array().unwrap() {
        assert_eq!(member["lane"], "fork", "{member:#}");
    }
    after
}

fn replaced(flags: &[&str]) {
    let old = old_programs();
    let mut cluster = Cluster::up_of(old.clone(), 2, flags, &[]);
    cluster.train_with("job", "1:2", &["--max-restarts", "9"], &LONG);
    let first = cluster.trains("job", 1, 2);
    // The launchers of the earlier build have forked a generation.
    let before = survives_a_kill(&cluster, &first);

    cluster.switch(programs());
    cluster.muster(["local", "kill-coordinator"]);
    cluster.muster(["local", "start-coordinator"]);
    trains_on(&cluster, &before, "training under the later coordinator");
    let list = cluster.try_muster_of(&old, ["get", "jobs", "-o", "json"]);
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list["items"][0]["metadata"]["name"], "job", "{list:#}");
    // The agents are of the earlier build, the coordinator of the later one.
    let before = survives_a_kill(&cluster, &before);

    for node in nodes(&before) {
        cluster.muster(["local", "kill-agent", node]);
        cluster.muster(["local", "start-agent", node]);
        trains_on(
            &cluster,
            &before,
            &format!("training with a later agent on {node}"),
        );
    }
    // The workers, their runners and launchers are of the earlier build, all else of the later one.
    let before = survives_a_kill(&cluster, &before);
    // Now the runners are, too.
    let before = survives_a_kill(&cluster, &before);

    cluster.muster(["local", "add-node"]);
    cluster.muster(["scale", "job", "--nodes", "1"]);
    cluster.trains("job", before["generation"].as_u64().unwrap() + 1, 1);
    cluster.muster(["cancel", "job", "--wait"]);
    cluster.train("next", "3", &["--steps", "3"]);
    cluster.wait("next", "over", |status| status["phase"] == "Succeeded");
}

#[test]
#[ignore = "the same without TLS: make upgrade"]
fn a_later_build_takes_over_from_an_earlier_one() {
    replaced(&[]);
}

#[test]
fn a_later_build_takes_over_from_an_earlier_one_with_tls() {
    replaced(&["--tls"]);
}
