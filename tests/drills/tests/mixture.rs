//! Nodes whose interpreters do not go together: real daemons, and a stand-in for torch that reports
//! on each node what the test wants.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::fs;

use muster_drills::fleet::Fleet;
use serde_json::{Value, json};

/// From now on the node's interpreter reports this release of torch.
fn install(fleet: &Fleet, node: usize, torch: &str) {
    let file = fleet.path().join(&fleet.nodes[node].name).join("torch");
    // The answer names the file that it came from, so that another file is noticed.
    fs::write(
        &file,
        format!(
            "{torch} cpython 3.11 linux {torch}+cpu - -\n{}\n",
            file.display()
        ),
    )
    .unwrap();
}

fn releases(status: &Value) -> Vec<(&str, &str)> {
    status["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| (m["node"].as_str().unwrap(), m["torch"].as_str().unwrap()))
        .collect()
}

#[test]
fn a_mixture_of_interpreters_is_refused_or_warned_of_as_the_job_says() {
    let fleet = Fleet::start(3);
    [(0, "2.15.0"), (1, "2.14.1"), (2, "2.15.0")]
        .into_iter()
        .for_each(|(node, torch)| install(&fleet, node, torch));

    fleet.submit("refuses", 3, 2, json!({"nodeMix": "refuse"}));
    let status = fleet.runs_on("refuses", 2, &[0, 2]);
    assert_eq!(
        releases(&status),
        [("node-0", "2.15.0+cpu"), ("node-2", "2.15.0+cpu")]
    );
    assert_eq!(
        status["restarts"], 0,
        "the mixture was never started: {status:#}"
    );
    let told = fleet.muster(&["explain", "refuses"]);
    let receipt = "1 of 3 nodes not taken, as they do not go with the others: node-1 (torch 2.14, not torch 2.15)";
    assert!(
        told.contains("MixedNodes") && told.contains(receipt),
        "{told}"
    );
    assert!(
        told.contains("generation 2: world 2 on 2 nodes: node-0, node-2; torch 2.15.0+cpu"),
        "{told}"
    );
    let described = fleet.muster(&["describe", "job", "refuses"]);
    assert!(
        described.contains("Software:           torch 2.15.0+cpu\n"),
        "{described}"
    );

    // The odd node is left alone until a user asks for another look. Then it is asked again.
    install(&fleet, 1, "2.15.2");
    fleet.muster(&["scale", "refuses", "--nodes", "3"]);
    let status = fleet.runs_on("refuses", 3, &[0, 1, 2]);
    assert_eq!(status["generation"], 3, "{status:#}");

    install(&fleet, 1, "2.14.1");
    fleet.submit("takes", 3, 3, json!({}));
    let status = fleet.runs_on("takes", 1, &[0, 1, 2]);
    assert_eq!(releases(&status)[1], ("node-1", "2.14.1+cpu"));
    let told = fleet.muster(&["explain", "takes"]);
    let warning =
        "the release of torch differs: torch 2.14 on node-1, torch 2.15 on node-0 and 1 more";
    assert_eq!(told.matches(warning).count(), 1, "{told}");
    let described = fleet.muster(&["describe", "job", "takes"]);
    assert!(
        described.contains("Software:           torch 2.14.1+cpu on node-1\n"),
        "{described}"
    );
    fleet.end();
}
