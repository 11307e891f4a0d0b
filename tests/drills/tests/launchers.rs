//! One launcher per job and node serves all generations, and no launcher outlives its job.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::fs;

use muster_drills::{Cluster, kill, last_step, pids, python, scripts, until};
use rustix::process::Signal;
use serde_json::{Value, json};

const LONG: [&str; 4] = ["--steps", "100000", "--delay-ms", "20"];

fn submit(
    cluster: &Cluster,
    name: &str,
    lane: &str,
    (least, most): (u32, u32),
    args: &[&str],
    restarts: u32,
) {
    let spec = json!({
        "replicas": most, "minReplicas": least, "maxReplicas": most, "procPerNode": 1, "gpusPerNode": 0,
        "command": [python()], "args": args, "launch": lane, "restartPolicy": {"maxRestarts": restarts}, "scaleUpCooldown": "0s",
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name}, "spec": spec});
    let file = cluster.path(&format!("{name}.json"));
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
}

fn script(name: &str) -> String {
    scripts().join(name).to_str().unwrap().to_owned()
}

/// Whether every member reports that its node's launcher was ready.
fn from_ready_launchers(status: &Value) -> bool {
    let members = status["members"].as_array().unwrap();
    members.iter().all(|member| {
        member["lane"] == "fork"
            && member["laneReason"]
                .as_str()
                .unwrap()
                .ends_with("its launcher was ready")
    })
}

/// The second receipt says what its start was spent on, and its phases are the whole. Nodes may say it some
/// milliseconds after the step.
fn receipt_adds_up(cluster: &Cluster) {
    let seen = until(|| {
        let explain = cluster.json(["explain", "job"]);
        let incident = explain["incidents"][1].clone();
        let start = &incident["start"];
        (!start["forkMs"].is_null() && !start["importsMs"].is_null()).then_some(incident)
    });
    let incident = seen.unwrap_or_else(|| panic!("{}", cluster.muster(["explain", "job"])));
    let us = |of: &Value, name: &str| (of[name].as_f64().unwrap_or(0.0) * 1e3).round() as u64;
    let sum = |of: &Value, names: &[&str]| names.iter().map(|name| us(of, name)).sum::<u64>();
    let start = sum(
        &incident["start"],
        &[
            "forkMs",
            "importsMs",
            "gpuMs",
            "joinMs",
            "modelMs",
            "ncclMs",
            "firstStepMs",
        ],
    );
    assert_eq!(
        start,
        sum(&incident, &["joinMs", "firstStepMs"]),
        "{incident:#}"
    );
    let before = sum(&incident, &["detectMs", "decideMs", "stopMs", "launchMs"]);
    assert_eq!(before + start, us(&incident, "totalMs"), "{incident:#}");
    let shown = cluster.muster(["explain", "job"]);
    assert!(
        shown
            .lines()
            .any(|line| line.trim_start().starts_with("fork ")),
        "{shown}"
    );
}

#[test]
fn one_launcher_per_node_serves_every_generation_whatever_dies() {
    let cluster = Cluster::up(3);
    let state = cluster.path("job.step");
    submit(
        &cluster,
        "job",
        "auto",
        (2, 3),
        &[
            &[
                script("allreduce.py").as_str(),
                "--state",
                state.to_str().unwrap(),
            ],
            &LONG[..],
        ]
        .concat(),
        10,
    );
    let first = cluster.trains("job", 1, 3);
    assert!(
        first["members"]
            .as_array()
            .unwrap()
            .iter()
            .all(|member| member["lane"] == "fork"),
        "{first:#}"
    );
    let launchers = cluster.launchers();
    assert_eq!(launchers.len(), 3, "one on each node");
    kill(pids(&first)[1], Signal::KILL);
    let second = cluster.trains("job", 2, 3);
    assert!(last_step(&second) >= last_step(&first));
    assert!(from_ready_launchers(&second), "{second:#}");
    assert_eq!(cluster.launchers(), launchers, "none was used up");
    let explain = cluster.json(["explain", "job"]);
    let incident = &explain["incidents"][1];
    assert_eq!(
        (&incident["cause"], &incident["charged"]),
        (&"WorkerKilled".into(), &"job".into()),
        "{incident:#}"
    );
    receipt_adds_up(&cluster);

    // This kill follows the last re-form at once. Nothing needs to settle first.
    kill(pids(&second)[2], Signal::KILL);
    let third = cluster.trains("job", 3, 3);
    assert!(from_ready_launchers(&third), "{third:#}");
    assert_eq!(cluster.launchers(), launchers);
    cluster.wait("job", "told what its launchers take", |status| {
        status["members"].as_array().unwrap().iter().all(|member| {
            member["launcherBytes"]
                .as_u64()
                .is_some_and(|bytes| bytes > 10 << 20)
        })
    });

    let agent = cluster.node_of(&third, 0);
    cluster.muster(["local", "kill-agent", &agent]);
    cluster.muster(["local", "start-agent", &agent]);
    let same = cluster.wait("job", "known again", |status| {
        status["nodesRunning"] == 3 && last_step(status) > last_step(&third)
    });
    assert_eq!(
        pids(&same),
        pids(&third),
        "workers do not notice that an agent with a launcher dies"
    );

    let cut = cluster.node_of(&third, 2);
    cluster.muster(["local", "kill-node", &cut]);
    cluster.trains("job", 4, 2);
    cluster.muster(["cancel", "job"]);
    cluster.wait("job", "cancelled", |status| status["phase"] == "Cancelled");
    let left = || {
        muster_drills::processes_of(&cluster.dir)
            .iter()
            .any(|(_, line)| line.contains("launcher.py"))
    };
    until(|| (!left()).then_some(())).expect("no launcher outlives its job");
}

#[test]
fn after_a_launcher_that_failed_ranks_are_executed_without_torchrun() {
    let cluster = Cluster::up(1);
    let state = cluster.path("job.step");
    let allreduce = script("allreduce.py");
    let args = [
        &[allreduce.as_str(), "--state", state.to_str().unwrap()],
        &LONG[..],
    ]
    .concat();
    submit(&cluster, "job", "auto", (1, 1), &args, 10);
    let first = cluster.trains("job", 1, 1);
    assert_eq!(first["members"][0]["lane"], "fork", "{first:#}");
    for launcher in cluster.launchers() {
        kill(launcher.into(), Signal::KILL);
    }
    until(|| cluster.launchers().is_empty().then_some(())).expect("it is dead");
    kill(pids(&first)[0], Signal::KILL);
    let second = cluster.trains("job", 2, 1);
    let member = &second["members"][0];
    let why = member["laneReason"].as_str().unwrap();
    assert_eq!(member["lane"], "exec", "{second:#}");
    assert!(
        why.starts_with("its launcher on this node failed"),
        "{second:#}"
    );
    let torchrun = |(_, line): &(u32, String)| line.contains("torch.distributed.run");
    assert!(
        !muster_drills::processes_of(&cluster.dir)
            .iter()
            .any(torchrun)
    );
}

/// The first generation imports more than the second, and is killed before it counts as training.
const IMPORTS_ONCE: &str = r#"import os, pathlib, sys, time
generation = os.environ["MUSTER_GENERATION"]
if generation == "1":
    import sklearn.datasets
pathlib.Path(sys.argv[1], generation).touch()
time.sleep(1000)
"#;

#[test]
fn what_a_short_generation_imported_is_imported_beside_the_next() {
    let cluster = Cluster::up(1);
    let (folder, script) = (cluster.path("folder"), cluster.path("imports_once.py"));
    fs::create_dir(&folder).unwrap();
    fs::write(&script, IMPORTS_ONCE).unwrap();
    let args = [script.to_str().unwrap(), folder.to_str().unwrap()];
    submit(&cluster, "job", "fork", (1, 1), &args, 10);
    let has_imported = |generation| {
        until(|| folder.join(generation).exists().then_some(())).expect("its ranks have started");
    };
    has_imported("1");
    kill(pids(&cluster.status("job").unwrap())[0], Signal::KILL);
    has_imported("2");
    let ahead = || cluster.preloaded().contains("sklearn").then_some(());
    until(ahead)
        .expect("the second generation has not imported it, so only the first can have said so");
}

#[test]
fn a_node_that_joins_has_a_launcher_before_anybody_is_stopped() {
    let cluster = Cluster::up(2);
    let state = cluster.path("job.step");
    let allreduce = script("allreduce.py");
    let args = [
        &[allreduce.as_str(), "--state", state.to_str().unwrap()],
        &LONG[..],
    ]
    .concat();
    submit(&cluster, "job", "fork", (2, 3), &args, 10);
    cluster.trains("job", 1, 2);
    cluster.muster(["local", "add-node"]);
    let grown = cluster.trains("job", 2, 3);
    assert!(
        from_ready_launchers(&grown),
        "the new node had to import torch while nobody trained: {grown:#}"
    );
    let explain = cluster.json(["explain", "job"]);
    let incident = &explain["incidents"][1];
    assert_eq!(
        (&incident["cause"], &incident["charged"]),
        (&"NodeJoined".into(), &"nobody".into()),
        "{incident:#}"
    );
}

#[test]
fn a_start_that_cannot_succeed_ends_when_its_first_rank_does() {
    let cluster = Cluster::up(2);
    let folder = cluster.path("folder");
    fs::create_dir(&folder).unwrap();
    // Rank 0 waits in init_process_group, for 30 minutes by torch's default.
    submit(
        &cluster,
        "job",
        "fork",
        (2, 2),
        &[&script("leaves.py"), folder.to_str().unwrap(), "early"],
        0,
    );
    let status = cluster.wait("job", "failed", |status| status["phase"] == "Failed");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("rank 1 on ") && message.contains("exit code 1"),
        "{message}"
    );
}

#[test]
fn a_node_lost_after_its_workers_had_finished_is_not_waited_for() {
    for lane in ["cold", "fork"] {
        let cluster = Cluster::up(2);
        let folder = cluster.path("folder");
        fs::create_dir(&folder).unwrap();
        submit(
            &cluster,
            "job",
            lane,
            (2, 2),
            &[&script("leaves.py"), folder.to_str().unwrap(), "late"],
            0,
        );
        let status = cluster.wait("job", "half done", |status| {
            status["ranks"][1]["state"] == "exit code 0"
        });
        let gone = cluster.node_of(&status, 1);
        cluster.muster(["local", "kill-node", &gone]);
        cluster.wait("job", "known to have lost a node", |_| {
            cluster.json(["get", "node", &gone])["status"]["state"] != "Ready"
        });
        fs::write(folder.join("go"), "").unwrap();
        let status = cluster.wait("job", "over", |status| {
            status["phase"] == "Succeeded" || status["phase"] == "Failed"
        });
        assert_eq!(
            (&status["phase"], &status["restarts"]),
            (&json!("Succeeded"), &json!(0)),
            "{lane}: {status:#}"
        );
    }
}
