//! Planned stops with real processes: a script with a DataLoader saves, whatever it is started by;
//! who had to be killed and what was left behind is told.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use muster_drills::{Cluster, python, scripts, until};
use serde_json::Value;

fn folder(cluster: &Cluster, name: &str) -> PathBuf {
    let folder = cluster.path(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs `stops.py` with these words. `start`: a shell script that runs it in place of Muster.
fn run(cluster: &Cluster, name: &str, flags: &[&str], start: Option<&str>, words: &[&str]) {
    let (python, script) = (python(), scripts().join("stops.py"));
    let script = script.to_str().unwrap();
    let mut args = vec!["run", "--name", name];
    args.extend(flags);
    let path = cluster.path(&format!("{name}.sh"));
    // Ranks that are programs are started with the interpreter of the job's PATH.
    let folder = python.rsplit_once('/').map_or(".", |(folder, _)| folder);
    let env = format!("PATH={folder}:/usr/local/bin:/usr/bin:/bin");
    if let Some(text) = start {
        let command = format!("{python} {script} {}", words.join(" "));
        let text = text.replace("TRAIN", &command);
        fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        args.extend(["--env", &env, "--no-python", "--"]);
        args.extend([path.to_str().unwrap(), "word"]);
    } else {
        args.extend(["--python", &python, "--", script]);
        args.extend(words);
    }
    cluster.muster(args);
}

fn steps(status: &Value, ranks: usize) -> bool {
    let all = status["ranks"].as_array().map_or(&[][..], Vec::as_slice);
    all.len() == ranks && all.iter().all(|rank| !rank["lastStep"].is_null())
}

fn is_over(status: &Value) -> bool {
    status["phase"] == "Succeeded" || status["phase"] == "Failed"
}

#[test]
fn a_script_with_loader_workers_saves_at_a_planned_stop() {
    let cluster = Cluster::up(1);
    for (name, flags, start) in [
        ("forked", &["--launch", "fork"][..], None),
        ("cold", &["--launch", "cold"], None),
        ("shell", &["--launch", "direct"], Some("TRAIN")),
        (
            "trap",
            &["--launch", "direct"],
            Some("trap 'echo cleaned' EXIT TERM\nTRAIN\n"),
        ),
        (
            "tee",
            &["--launch", "direct"],
            Some("TRAIN 2>&1 | tee /dev/null\n"),
        ),
    ] {
        let saved = folder(&cluster, name);
        let flags = [flags, &["--nproc-per-node", "2"]].concat();
        run(
            &cluster,
            name,
            &flags,
            start,
            &["save", saved.to_str().unwrap()],
        );
        // What stands behind a shell prints the steps all the same.
        cluster.wait(name, "training", |status| steps(status, 2));
        cluster.muster(["suspend", name, "--wait"]);
        for rank in 0..2 {
            let file = saved.join(format!("saved.{rank}"));
            let logs = cluster.try_muster(["logs", name, "--tail", "20"]);
            assert!(
                file.exists(),
                "{name}: rank {rank}: {}",
                String::from_utf8_lossy(&logs.stdout)
            );
        }
        let events = cluster.muster(["explain", name]);
        assert!(!events.contains("GraceOver"), "{events}");
        cluster.muster(["cancel", name, "--wait"]);
    }
}

#[test]
fn who_is_killed_when_its_grace_is_over_is_told() {
    let cluster = Cluster::up(1);
    for (lane, stop) in [("fork", "suspend"), ("cold", "cancel")] {
        let name = format!("deaf-{lane}");
        let flags = [
            "--launch",
            lane,
            "--nproc-per-node",
            "2",
            "--shutdown-timeout",
            "1",
        ];
        run(&cluster, &name, &flags, None, &["deaf"]);
        cluster.wait(&name, "training", |status| steps(status, 2));
        cluster.muster([stop, &name, "--wait"]);
        let told = until(|| {
            let explained = cluster.muster(["explain", &name]);
            (explained.matches("GraceOver").count() == 2).then_some(explained)
        });
        let told = told.unwrap_or_else(|| panic!("{}", cluster.muster(["explain", &name])));
        let described = cluster.muster(["describe", "job", &name]);
        for rank in 0..2 {
            let words = format!(
                "rank {rank} on node-1 was killed: it had not ended within its stopGracePeriod of 1s after SIGTERM"
            );
            assert!(told.contains(&words), "{told}");
            assert!(described.contains(&words), "{described}");
        }
    }
}

#[test]
fn what_a_rank_leaves_behind_is_named_and_has_its_grace() {
    let cluster = Cluster::up(1);
    for lane in ["fork", "cold"] {
        let (name, left) = (format!("leaves-{lane}"), folder(&cluster, lane));
        let words = ["leave", left.to_str().unwrap()];
        run(
            &cluster,
            &name,
            &["--launch", lane, "--stop-grace-period", "5m"],
            None,
            &words,
        );
        let status = cluster.wait(&name, "waiting for what was left", |status| {
            let message = status["message"].as_str().unwrap_or_default();
            message.contains("waiting for what they have left behind: python")
        });
        assert_eq!(status["phase"], "Running", "{status:#}");
        until(|| left.join("told").exists().then_some(())).expect("it hears SIGTERM");
        fs::write(left.join("go"), "").unwrap();
        let status = cluster.wait(&name, "over", is_over);
        assert_eq!(status["phase"], "Succeeded", "{status:#}");
        assert!(left.join("copied").exists());
        let explained = cluster.muster(["explain", &name]);
        assert_eq!(explained.matches("! LeftBehind").count(), 1, "{explained}");
        assert!(
            !explained.contains("secret") && !explained.contains("GraceOver"),
            "{explained}"
        );
    }
}
