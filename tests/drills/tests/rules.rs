//! What a job itself says about its ends, with real processes: final and retried exit codes, a
//! deadline, a time to live, and a job that is suspended and goes on.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use muster_drills::{Cluster, lives, pids, python, scripts, until};
use serde_json::Value;

fn run(cluster: &Cluster, name: &str, flags: &[&str], words: &str) {
    let (python, script) = (python(), scripts().join("ends.py"));
    let mut args = vec![
        "run", "--name", name, "--launch", "direct", "--python", &python,
    ];
    args.extend(flags);
    args.extend(["--", script.to_str().unwrap(), words]);
    cluster.muster(args);
}

fn is_over(status: &Value) -> bool {
    status["phase"] == "Succeeded" || status["phase"] == "Failed"
}

#[test]
fn a_job_s_own_rules_decide_its_ends() {
    let cluster = Cluster::up(1);
    run(
        &cluster,
        "final",
        &["--rule", "exit codes 64-78: fail", "--max-restarts", "9"],
        "66",
    );
    let status = cluster.wait("final", "over", is_over);
    assert_eq!(
        (
            &status["phase"],
            &status["reason"],
            &status["restarts"],
            &status["generation"]
        ),
        (
            &"Failed".into(),
            &"FailedByRule".into(),
            &0.into(),
            &1.into()
        ),
        "{status:#}"
    );
    let explained = cluster.muster(["explain", "final"]);
    assert!(
        explained.contains("rule 1 (exit codes 64-78: fail)"),
        "{explained}"
    );

    let flags = [
        "--rule",
        "exit codes 75: restart, at most 2",
        "--rule",
        "failure: fail",
        "--max-restarts",
        "0",
    ];
    run(&cluster, "retried", &flags, "75,75,train");
    let status = cluster.trains("retried", 3, 1);
    let described = cluster.muster(["describe", "job", "retried"]);
    assert!(
        described.contains("rule 1 (exit codes 75: restart, at most 2); 2 restarts so far"),
        "{described}"
    );

    // It is held back, and its generations are counted on when it is resumed.
    let worker = pids(&status)[0];
    cluster.muster(["suspend", "retried", "--wait"]);
    assert!(!lives(worker));
    let rests = cluster.status("retried").unwrap();
    assert_eq!(
        (&rests["phase"], &rests["reason"], &rests["suspended"]),
        (&"Pending".into(), &"Suspended".into(), &true.into())
    );
    cluster.muster(["resume", "retried"]);
    cluster.trains("retried", 4, 1);
    cluster.muster(["cancel", "retried", "--wait"]);
}

#[test]
fn a_job_has_a_deadline_and_a_time_to_live() {
    let cluster = Cluster::up(1);
    run(&cluster, "late", &["--active-deadline", "8s"], "train");
    let status = cluster.wait("late", "over", is_over);
    assert_eq!(
        (&status["phase"], &status["reason"], &status["message"]),
        (
            &"Failed".into(),
            &"DeadlineExceeded".into(),
            &"it has had the 8s of its activeDeadlineSeconds".into()
        )
    );

    run(&cluster, "waits", &["--suspend", "--ttl", "1s"], "0");
    let status = cluster.wait("waits", "suspended", |status| status["suspended"] == true);
    assert_eq!(status["generation"], 0, "it never started");
    cluster.muster(["resume", "waits"]);
    cluster.wait("waits", "over", is_over);
    // With its record go its logs.
    let logs = || {
        let output = cluster.try_muster(["logs", "waits"]);
        (!output.status.success()).then_some(())
    };
    until(logs).expect("it is deleted");
    assert_eq!(cluster.status("waits"), None);
}
