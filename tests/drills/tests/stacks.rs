//! `muster stacks`: a job that stands still is named by rank, call and line, through the real programs.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::fs;

use muster_drills::{Cluster, kill, pids, python, scripts, until};
use rustix::process::Signal;
use serde_json::{Value, json};

fn submit(cluster: &Cluster, name: &str, lane: &str, way: &str, inspect: &str) {
    let script = scripts().join("stands_still.py");
    let spec = json!({
        "replicas": 3, "procPerNode": 1, "gpusPerNode": 0, "command": [python()], "args": [script, way],
        "launch": lane, "inspect": inspect, "stopGracePeriod": "0s", "restartPolicy": {"maxRestarts": 3},
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name}, "spec": spec});
    let file = cluster.path(&format!("{name}.json"));
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
}

/// The line of the script that ends with this comment.
fn line(comment: &str) -> usize {
    let script = fs::read_to_string(scripts().join("stands_still.py")).unwrap();
    let at = script
        .lines()
        .position(|line| line.ends_with(&format!("# {comment}")));
    at.unwrap() + 1
}

/// Asks until the answer is as wished.
fn stacks(cluster: &Cluster, job: &str, wish: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let found = until(|| {
        last = cluster.json(["stacks", job]);
        wish(&last).then(|| last.clone())
    });
    found.unwrap_or_else(|| {
        panic!(
            "{job} is never as wished, with waits {:#}: {last:#}",
            last["waits"]
        )
    })
}

fn others_wait(stacks: &Value) -> bool {
    stacks["waits"][0]["waiting"] == json!([0, 2])
}

/// The place of a rank.
fn sentence(stacks: &Value, rank: u32) -> String {
    let groups = stacks["groups"].as_array().unwrap();
    let of = |group: &&Value| group["ranks"].as_array().unwrap().contains(&json!(rank));
    let group = groups.iter().find(of).unwrap();
    group["sentence"].as_str().unwrap().to_owned()
}

fn names_rank_1(stacks: &Value, call: &str, comment: &str) {
    let at = format!("{call} at stands_still.py:{}", line(comment));
    assert_eq!(sentence(stacks, 1), at, "{stacks:#}");
    let waits = format!("all_reduce at stands_still.py:{}", line("waits"));
    assert_eq!(sentence(stacks, 0), waits);
    let wait = &stacks["waits"][0];
    assert_eq!(
        (
            &wait["call"],
            &wait["sequence"],
            &wait["behind"],
            &wait["completed"]
        ),
        (&json!("all_reduce"), &json!(4), &json!([1]), &json!(3)),
        "{stacks:#}"
    );
}

#[test]
fn a_job_that_stands_still_is_named_by_rank_call_and_line() {
    let cluster = Cluster::up(3);
    submit(&cluster, "load", "fork", "load", "collectives");
    let status = cluster.trains("load", 1, 3);
    names_rank_1(
        &stacks(&cluster, "load", others_wait),
        "load_batch",
        "load_batch",
    );
    let text = cluster.muster(["stacks", "load"]);
    assert!(
        text.contains("behind: rank 1, which has completed 3 and not called 4"),
        "{text}"
    );
    let one = cluster.muster(["stacks", "load", "--rank", "1"]);
    assert!(one.contains("Rank 1, main thread"), "{one}");

    let pid = pids(&status)[1];
    kill(pid, Signal::STOP);
    let stopped = stacks(&cluster, "load", |stacks| {
        sentence(stacks, 1).starts_with("stopped")
    });
    let process = &stopped["ranks"][1]["process"];
    assert_eq!(
        (&process["pid"], &process["state"]),
        (&json!(pid), &json!("T"))
    );
    assert_eq!(stopped["waits"][0]["silent"], json!([1]), "{stopped:#}");
    kill(pid, Signal::CONT);

    // Direct executes the first generation and forks the second.
    cluster.muster(["cancel", "load"]);
    submit(&cluster, "hold", "direct", "hold", "collectives");
    let status = cluster.trains("hold", 1, 3);
    let first = stacks(&cluster, "hold", |_| true);
    let error = first["ranks"][1]["error"].as_str().unwrap();
    assert!(
        error.starts_with("only ranks that Muster forks can be asked"),
        "{first:#}"
    );
    // A launcher that still imports cannot fork.
    cluster.wait("hold", "known to have launchers that are ready", |status| {
        let members = status["members"].as_array().unwrap();
        let bytes = members
            .iter()
            .map(|member| member["launcherBytes"].as_u64());
        bytes.flatten().filter(|bytes| *bytes > 0).count() == 3
    });
    kill(pids(&status)[0], Signal::KILL);
    cluster.trains("hold", 2, 3);
    names_rank_1(&stacks(&cluster, "hold", others_wait), "hold", "hold");

    cluster.muster(["cancel", "hold"]);
    submit(&cluster, "off", "fork", "load", "off");
    cluster.trains("off", 1, 3);
    let off = stacks(&cluster, "off", |_| true);
    let sentence = sentence(&off, 0);
    assert!(
        sentence.contains("(state "),
        "what the kernel knows: {off:#}"
    );
    assert_eq!(off["ranks"][0]["threads"], Value::Null);
}
