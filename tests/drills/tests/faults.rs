//! Real torchrun and gloo under the faults that the storm applies to stand-ins: a launcher and a
//! runner are killed, a worker and an agent are stopped.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::fs;

use muster_drills::{Cluster, is_long, kill, last_step, lives, nodes, pids, until};
use rustix::process::Signal;
use serde_json::Value;

const LONG: [&str; 4] = ["--steps", "100000", "--delay-ms", "20"];

fn parent(pid: u64) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ")
        .unwrap()
        .1
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

fn line(pid: u64) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
        .replace('\0', " ")
}

/// The runner above a worker, and the launcher that is the runner's child.
fn above(worker: u64) -> (u64, u64) {
    let mut below = worker;
    loop {
        let up = parent(below);
        assert!(up > 1, "a worker stands below its runner");
        if line(up).contains("muster-runner hold") {
            return (up, below);
        }
        below = up;
    }
}

/// Waits until a generation other than `before` trains on all three nodes.
fn trains_anew(cluster: &Cluster, before: &Value) -> Value {
    cluster.wait("job", "training in a new generation", |status| {
        let ranks = status["ranks"].as_array().map_or(&[][..], Vec::as_slice);
        status["generation"].as_u64() > before["generation"].as_u64()
            && status["nodesRunning"] == 3
            && ranks.len() == 3
            && ranks.iter().all(|rank| !rank["lastStep"].is_null())
    })
}

#[test]
fn launchers_runners_workers_and_agents_are_killed_and_stopped_under_real_torchrun() {
    let cluster = Cluster::up(3);
    cluster.train("job", "2:3", &LONG);
    let mut now = cluster.trains("job", 1, 3);

    let (_, launcher) = above(pids(&now)[1]);
    kill(launcher, Signal::KILL);
    now = trains_anew(&cluster, &now);

    // A collective waits for a late rank, so a stop loses nothing.
    let (stopped, step) = (pids(&now)[2], last_step(&now));
    kill(stopped, Signal::STOP);
    until(|| is_stopped(stopped).then_some(())).expect("it stops");
    kill(stopped, Signal::CONT);
    let after = cluster.wait("job", "training on", |status| last_step(status) > step + 5);
    assert_eq!(
        (&after["generation"], pids(&after)),
        (&now["generation"], pids(&now)),
        "same workers after a stop"
    );
    now = after;

    if is_long() {
        let old = pids(&now);
        let (runner, _) = above(old[0]);
        kill(runner, Signal::KILL);
        now = trains_anew(&cluster, &now);
        assert!(
            old.iter().all(|pid| !lives(*pid)),
            "nobody of the generation before lives"
        );

        // The node is silent for longer than a lost one. Its worker is stopped with the others when
        // it hears.
        let agent = agent_of(&cluster, &cluster.node_of(&now, 1));
        kill(agent, Signal::STOP);
        cluster.wait("job", "training without the silent node", |status| {
            status["generation"].as_u64() > now["generation"].as_u64()
                && status["nodesRunning"] == 2
                && pids(status).len() == 2
        });
        kill(agent, Signal::CONT);
        until(|| pids(&now).iter().all(|pid| !lives(*pid)).then_some(()))
            .expect("nobody of the generation before lives on");
    }
    cluster.muster(["cancel", "job"]);
    cluster.wait("job", "cancelled", |status| status["phase"] == "Cancelled");
}

#[test]
fn a_machine_that_will_be_taken_away_is_left_before_it_goes() {
    let cluster = Cluster::up_with(3, &[], &[("MUSTER_PROBE_EVERY", "250ms")]);
    cluster.train("job", "2:3", &LONG);
    let now = cluster.trains("job", 1, 3);
    let node = cluster.node_of(&now, 1);
    let notice = cluster
        .dir
        .join(format!("nodes/{node}/state/termination-notice"));
    fs::write(&notice, "spot interruption: terminate at 10:02\n").unwrap();
    let after = cluster.wait("job", "training on the other two", |status| {
        let ranks = status["ranks"].as_array().map_or(&[][..], Vec::as_slice);
        status["generation"] == 2
            && ranks.len() == 2
            && ranks.iter().all(|rank| !rank["lastStep"].is_null())
    });
    assert!(!nodes(&after).contains(&node.as_str()), "{after:#}");
    let told = cluster.muster(["explain", "job"]);
    assert!(
        told.contains(&format!(
            "leaving {node}: spot interruption: terminate at 10:02"
        )),
        "{told}"
    );
    assert!(
        until(|| pids(&now).iter().all(|pid| !lives(*pid)).then_some(())).is_some(),
        "everybody of the generation before has left"
    );
    assert_eq!(
        cluster.json(["explain", "job"])["incidents"][1]["charged"],
        "nobody"
    );
    let shown = cluster.json(["get", "node", &node]);
    assert!(
        shown["status"]["findings"]
            .to_string()
            .contains("termination-notice"),
        "{shown:#}"
    );
    cluster.muster(["cancel", "job"]);
    cluster.wait("job", "cancelled", |status| status["phase"] == "Cancelled");
}

fn is_stopped(pid: u64) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

fn agent_of(cluster: &Cluster, node: &str) -> u64 {
    let name = format!("--node-name {node} ");
    let ours = muster_drills::processes_of(&cluster.dir);
    let found = ours
        .iter()
        .find(|(_, line)| line.contains("muster-agent") && (line.clone() + " ").contains(&name));
    found
        .unwrap_or_else(|| panic!("no agent of {node} in {ours:?}"))
        .0
        .into()
}
