//! A coordinator that stands still for longer than a node may be silent, as on a laptop with its
//! lid closed. Its agents have given it up when it goes on, and no node is lost because of that.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::time::{Duration, Instant};

use muster_drills::{
    fleet::{Fleet, LOST},
    kill, pids,
};
use rustix::process::Signal;
use serde_json::json;

/// This is longer than a node may be silent before it is lost.
const ASLEEP: Duration = Duration::from_millis(LOST.as_millis() as u64 + 2_000);

/// A stopped process sees CLOCK_BOOTTIME jump when it goes on, as it would after a suspend.
#[test]
fn a_coordinator_that_slept_blames_no_node_for_its_own_absence() {
    let fleet = Fleet::start(3);
    fleet.submit("job", 2, 1, json!({}));
    let before = fleet.until("the job runs", |fleet| {
        let status = fleet.status("job")?;
        (status["nodesRunning"] == 2 && pids(&status).len() == 2).then_some(status)
    });
    let coordinator = fleet.coordinator_pid().unwrap().into();
    kill(coordinator, Signal::STOP);
    // No connection outlives the pause.
    fleet.nodes.iter().for_each(|node| node.relay.reset());
    let wakes = Instant::now() + ASLEEP;
    while let Some(left) = wakes.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
    fleet.nodes.iter().for_each(|node| node.relay.heal());
    kill(coordinator, Signal::CONT);
    fleet.until("all nodes are back", |fleet| fleet.ready_nodes() == 3);
    let told = fleet.muster(&["events"]);
    assert!(
        !told.contains("NodeLost") && !told.contains("NodeSuspect"),
        "{told}"
    );
    let after = fleet.status("job").unwrap();
    assert_eq!(
        (&after["generation"], pids(&after)),
        (&before["generation"], pids(&before)),
        "the same workers"
    );
    fleet.end();
}
