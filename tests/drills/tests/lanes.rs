//! The fast launch lanes are plain starts to a script, and faster ones to a job that broke.
//!
//! Known differences of the fork lane, which no script below looks at: modules are imported already (so a variable that torch or a library
//! reads when it is imported must be in the job's `env`, not set by the script), frames of the launcher lie below the script's in
//! `inspect.stack()`, ranks of a node share the hash seed, and `/proc/PID/cmdline` and `environ` are the launcher's.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{collections::BTreeMap, fs, path::PathBuf};

use muster_drills::{Cluster, kill, last_step, pids, python, scripts, until};
use rustix::process::Signal;
use serde_json::{Value, json};

const LANES: [&str; 3] = ["cold", "parked", "fork"];
const LONG: [&str; 4] = ["--steps", "100000", "--delay-ms", "20"];

struct Ended {
    status: Value,
    log: String,
    folder: PathBuf,
}

/// Runs `scripts/lanes/SCRIPT FOLDER ARGS` to its end.
fn run(cluster: &Cluster, name: &str, lane: &str, ranks: u32, args: &[&str]) -> Ended {
    let folder = cluster.path(name);
    fs::create_dir(&folder).unwrap();
    let here = scripts().join("lanes");
    let mut words = vec![json!(here.join(args[0])), json!(folder)];
    words.extend(args[1..].iter().map(|arg| json!(arg)));
    let spec = json!({
        "replicas": 1, "procPerNode": ranks, "gpusPerNode": 0, "command": [python(), "-O", "-W", "ignore"], "args": words,
        "workingDir": here, "launch": lane, "restartPolicy": {"maxRestarts": 0}, "env": [{"name": "MARK", "value": "x"}],
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name}, "spec": spec});
    let file = cluster.path(&format!("{name}.json"));
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
    let status = cluster.wait(name, "ended", |status| status["phase"] == "Succeeded" || status["phase"] == "Failed");
    let log = cluster.muster(["logs", name, "--rank", "0"]).replace(folder.to_str().unwrap(), "FOLDER");
    Ended { status, log, folder }
}

fn names(ended: &Ended) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(&ended.folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_script_sees_the_same_start_in_every_lane() {
    let cluster = Cluster::up(1);
    let mut seen = BTreeMap::new();
    let mut chances = Vec::new();
    for lane in LANES {
        let ended = run(&cluster, &format!("dump-{lane}"), lane, 2, &["dump.py", "--lr", "0.1"]);
        assert_eq!(ended.status["phase"], "Succeeded", "{lane}: {}", ended.log);
        for rank in ["0", "1"] {
            let read = |what: &str| fs::read_to_string(ended.folder.join(format!("{rank}.{what}"))).unwrap();
            assert_eq!(read("atexit"), "ran", "{lane}");
            chances.push(read("random"));
            let mut dump: Value = serde_json::from_str(&read("json").replace(ended.folder.to_str().unwrap(), "FOLDER")).unwrap();
            // What must differ between two jobs; that it is there at all is compared below.
            for name in
                ["MASTER_PORT", "MUSTER_JOB", "MUSTER_JOB_UID", "MUSTER_RUN_DIR", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"]
            {
                assert!(dump["env"][name].is_string(), "{lane}: {name} is not set");
                dump["env"][name] = json!("its own");
            }
            for by_chance in ["seed", "rand"] {
                chances.push(dump["torch"][by_chance].to_string());
                dump["torch"][by_chance] = json!("by chance");
            }
            seen.insert((rank, lane), dump);
        }
    }
    for rank in ["0", "1"] {
        for lane in LANES {
            for (field, plain) in seen[&(rank, "cold")].as_object().unwrap() {
                assert_eq!(seen[&(rank, lane)][field], *plain, "{lane}, rank {rank}: {field}");
            }
        }
    }
    let all = chances.len();
    chances.sort();
    chances.dedup();
    assert_eq!(chances.len(), all, "random, numpy and torch begin differently in every process");
}

#[test]
fn a_script_ends_the_same_way_in_every_lane() {
    for way in ["exception", "exit3", "message", "segv", "interrupt", "hook", "thread", "term", "abort", "syntax"] {
        // Of many jobs that fail on one node the node is suspected: each pair has a node of its own.
        let cluster = Cluster::up(1);
        let script = if way == "syntax" { "syntax.py" } else { "ends.py" };
        let ends = ["cold", "fork"].map(|lane| run(&cluster, &format!("{way}-{lane}"), lane, 1, &[script, way]));
        let [cold, fork] = &ends;
        assert_eq!(fork.log, cold.log, "{way}");
        assert_eq!(names(fork), names(cold), "{way}");
        for field in ["phase", "message"] {
            assert_eq!(fork.status[field], cold.status[field], "{way}");
        }
    }
}

#[test]
fn processes_of_the_script_work_in_every_lane() {
    let cluster = Cluster::up(1);
    let shown = LANES.map(|lane| {
        let ended = run(&cluster, &format!("workers-{lane}"), lane, 1, &["workers.py"]);
        assert_eq!(ended.status["phase"], "Succeeded", "{lane}: {}", ended.log);
        fs::read_to_string(ended.folder.join("0.txt")).unwrap()
    });
    assert_eq!(shown[1], shown[0]);
    assert_eq!(shown[2], shown[0]);
}

fn spares(cluster: &Cluster) -> usize {
    let nodes = fs::read_dir(cluster.dir.join("nodes")).unwrap().flatten();
    let runs = nodes.filter_map(|node| fs::read_dir(node.path().join("state/runs")).ok()).flatten().flatten();
    runs.filter(|run| run.file_name().to_string_lossy().contains("-spare-") && run.path().join("parked").exists()).count()
}

fn train(cluster: &Cluster, lane: &str, nodes: &str) {
    let state = cluster.path("job.step");
    let (least, most) = nodes.split_once(':').unwrap_or((nodes, nodes));
    let number = |text: &str| text.parse::<u32>().unwrap();
    let mut args = vec![json!(scripts().join("allreduce.py")), json!("--state"), json!(state)];
    args.extend(LONG.iter().map(|word| json!(word)));
    let spec = json!({
        "replicas": number(most), "minReplicas": number(least), "maxReplicas": number(most), "procPerNode": 1, "gpusPerNode": 0,
        "command": [python()], "args": args, "launch": lane,
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": "job"}, "spec": spec});
    let file = cluster.path("job.json");
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
}

#[test]
fn a_spare_takes_over_whatever_dies() {
    let cluster = Cluster::up(3);
    train(&cluster, "fork", "2:3");
    let first = cluster.trains("job", 1, 3);
    until(|| (spares(&cluster) == 3).then_some(())).expect("every node gets a spare");
    kill(pids(&first)[1], Signal::KILL);
    let second = cluster.trains("job", 2, 3);
    assert!(last_step(&second) >= last_step(&first));
    let explain = cluster.json(["explain", "job"]);
    let incident = &explain["incidents"][1];
    assert_eq!((&incident["cause"], &incident["charged"]), (&"WorkerKilled".into(), &"job".into()), "{incident:#}");
    // An interpreter takes longer than this to import torch on the machines this runs on, so nobody did.
    assert!(incident["launchMs"].as_f64().unwrap() < 1_000.0, "the spares were not used: {incident:#}");

    until(|| (spares(&cluster) == 3).then_some(())).expect("and another");
    let agent = cluster.node_of(&second, 0);
    cluster.muster(["local", "kill-agent", &agent]);
    cluster.muster(["local", "start-agent", &agent]);
    let same = cluster.wait("job", "known again", |status| status["nodesRunning"] == 3 && last_step(status) > last_step(&second));
    assert_eq!(pids(&same), pids(&second), "workers do not notice that an agent with a spare dies");

    let cut = cluster.node_of(&second, 2);
    cluster.muster(["local", "kill-node", &cut]);
    cluster.trains("job", 3, 2);
    cluster.muster(["cancel", "job"]);
    cluster.wait("job", "cancelled", |status| status["phase"] == "Cancelled");
    let left = |cluster: &Cluster| {
        let processes = muster_drills::processes_of(&cluster.dir);
        processes.iter().any(|(_, line)| line.contains("launcher.py"))
    };
    until(|| (!left(&cluster)).then_some(())).expect("no launcher outlives its job");
}
