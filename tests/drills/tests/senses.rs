//! Hardware that misbehaves while a real agent is connected to a real coordinator.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::collections::BTreeSet;

use muster_drills::{Cluster, until};
use serde_json::Value;

/// Times at which the node was heard, one a second, that must be seen while its driver hangs: more than it takes to become Suspect.
const HEARD: usize = 5;

#[test]
fn a_driver_that_hangs_never_holds_up_a_heartbeat() {
    // Looked at often, so that three looks missed are soon missed.
    let cluster = Cluster::up_with(1, &["--hardware", "4xl40s"], &[("MUSTER_PROBE_EVERY", "500ms")]);
    let status = || cluster.json(["get", "node", "node-1"])["status"].clone();
    let hung = |status: &Value| status["findings"].as_array().unwrap().iter().any(|finding| finding["check"] == "nvml-hung");
    let seen = until(|| (status()["gpus"].as_array().unwrap().len() == 4).then_some(()));
    assert!(seen.is_some(), "the GPUs are reported: {:#}", status());
    cluster.muster(["local", "inject", "node-1", "driver", "hang"]);
    assert!(until(|| hung(&status()).then_some(())).is_some(), "nobody notices: {:#}", status());
    let mut heard = BTreeSet::new();
    let goes_on = until(|| {
        let status = status();
        assert!(hung(&status), "it hangs on: {status:#}");
        heard.insert(status["lastHeardAt"].as_str()?.to_owned());
        (heard.len() > HEARD && status["state"] == "Ready").then_some(())
    });
    assert!(goes_on.is_some(), "heard at {heard:?} only: {:#}", status());
    assert_eq!(status()["gpus"].as_array().unwrap().len(), 4, "what was known is still said");
    cluster.muster(["local", "inject", "node-1", "driver", "resume"]);
    assert!(until(|| (!hung(&status())).then_some(())).is_some(), "it is not forgiven: {:#}", status());
}
