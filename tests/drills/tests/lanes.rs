//! The compatibility suite of the launch lanes. This test runs each script under plain torchrun,
//! without Muster, and in the lanes. It compares what the script sees at its start, what works in
//! it, and how it ends. The scripts, the comparison and the allowed differences are in `agent/suite`.
//! `core/src/node/proven.txt` says with which interpreters this suite was run, and how that ended.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use muster_drills::{Cluster, python, suite, torchrun::Torchrun, until};
use muster_suite::RANKS;
use serde_json::{Value, json};

const LANES: [&str; 5] = ["cold", "parked", "fork", "direct", "exec"];
const ALL: &[&str] = &LANES;
const FORK: &[&str] = &["fork"];

fn submit(
    cluster: &Cluster,
    name: &str,
    lane: &str,
    command: &[&str],
    args: &[&str],
    env: &[(&str, &str)],
    restarts: u32,
) {
    let env: Vec<Value> = env
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let spec = json!({
        "replicas": 1, "procPerNode": 2, "gpusPerNode": 0, "command": command, "args": args, "env": env, "launch": lane,
        "workingDir": suite(), "restartPolicy": {"maxRestarts": restarts},
        // Survivors of a broken synchronous generation are killed at once. torchrun lets those on
        // its own node end by themselves.
        "progress": "independent",
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name}, "spec": spec});
    let file = cluster.path(&format!("{name}.json"));
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
}

fn ended(cluster: &Cluster, job: &str) -> Value {
    cluster.wait(job, "ended", |status| {
        status["phase"] == "Succeeded" || status["phase"] == "Failed"
    })
}

fn folder(cluster: &Cluster, name: &str) -> PathBuf {
    let folder = cluster.path(name);
    fs::create_dir(&folder).unwrap();
    folder
}

/// A file that a script left, with the folder's name replaced by the same one for all.
fn left(folder: &Path, name: &str) -> String {
    muster_suite::as_plain(folder, name).unwrap()
}

/// An interpreter with options, for plain torchrun.
fn with_options(cluster: &Cluster) -> PathBuf {
    let file = cluster.path("python-with-options");
    fs::write(
        &file,
        format!("#!/bin/sh\nexec {} -O -W ignore \"$@\"\n", python()),
    )
    .unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    file
}

#[test]
fn a_script_starts_and_ends_in_every_lane_as_under_plain_torchrun() {
    // Each job has a node of its own, because many jobs that fail on one node make that node
    // suspicious.
    let cluster = Cluster::up(LANES.len());
    let plain = folder(&cluster, "start-plain");
    let (script, python) = ("start.py", python());
    let interpreter = with_options(&cluster);
    let env = [
        ("PYTHON_EXEC", interpreter.to_str().unwrap()),
        ("MARK", "x"),
    ];
    let args = |folder: &Path| {
        [
            script.to_owned(),
            folder.to_str().unwrap().to_owned(),
            "--lr".to_owned(),
            "0.1".to_owned(),
        ]
    };
    let words = args(&plain);
    let torchrun = Torchrun::start(
        &cluster.path("torchrun"),
        &words.each_ref().map(String::as_str),
        &env,
    );
    let lanes = LANES.map(|lane| {
        let name = format!("start-{lane}");
        let folder = folder(&cluster, &name);
        submit(
            &cluster,
            &name,
            lane,
            &[&python, "-O", "-W", "ignore"],
            &args(&folder).each_ref().map(String::as_str),
            &[("MARK", "x")],
            0,
        );
        (lane, folder)
    });
    let folders = || lanes.iter().map(|(_, folder)| folder).chain([&plain]);
    let all_there = || {
        folders().all(|folder| {
            RANKS
                .iter()
                .all(|rank| folder.join(format!("{rank}.json")).exists())
        })
    };
    until(|| all_there().then_some(()))
        .unwrap_or_else(|| panic!("not every script has come to its end: {:?}", look(&cluster)));
    folders().for_each(|folder| fs::write(folder.join("go"), "").unwrap());
    let verdict = torchrun.verdict();
    assert!(
        muster_suite::start_ends_as_it_should(&verdict),
        "what plain torchrun makes of it: {verdict}"
    );

    let mut wrong = Vec::new();
    for (lane, folder) in &lanes {
        let status = ended(&cluster, &format!("start-{lane}"));
        let ends: Vec<&str> = status["ranks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rank| rank["state"].as_str().unwrap())
            .collect();
        assert_eq!(ends, ["exit code 5", "exit code 1"], "{lane}: {status:#}");
        assert_eq!(
            status["members"][0]["lane"], *lane,
            "a launcher that fails changes the lane: {status:#}"
        );
        wrong.extend(muster_suite::starts(lane, &plain, folder).unwrap());
    }
    let all: Vec<&Path> = folders().map(PathBuf::as_path).collect();
    wrong.extend(muster_suite::chances_met(&all).unwrap());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Variables that decide the locale, as minimal images and users set them. An empty variable counts
/// as unset.
const LOCALES: [&[(&str, &str)]; 8] = [
    &[("LANG", "")],
    &[("LANG", "C.UTF-8"), ("LC_ALL", "C")],
    &[("LANG", "C.UTF-8")],
    &[("LANG", "C")],
    &[("LANG", "POSIX")],
    // This locale is installed nowhere.
    &[("LANG", "tlh_QO.UTF-8")],
    &[("LANG", ""), ("LC_CTYPE", "POSIX")],
    &[("LANG", ""), ("PYTHONCOERCECLOCALE", "0")],
];

/// How many locales the short form tries. Each takes two starts.
const LOCALES_IN_SHORT: usize = 2;

#[test]
fn a_script_finds_the_locale_that_plain_torchrun_gives_it() {
    let cluster = Cluster::up(1);
    let python = python();
    let lanes: &[&str] = if muster_drills::is_long() { ALL } else { FORK };
    let tried = if muster_drills::is_long() {
        LOCALES.len()
    } else {
        LOCALES_IN_SHORT
    };
    let mut wrong = Vec::new();
    for (number, env) in LOCALES[..tried].iter().enumerate() {
        let plain = folder(&cluster, &format!("locale-{number}-plain"));
        let torchrun = Torchrun::start(
            &cluster.path(&format!("torchrun-{number}")),
            &["tongue.py", plain.to_str().unwrap()],
            env,
        );
        assert_eq!(torchrun.verdict(), json!({}));
        for lane in lanes {
            let name = format!("locale-{number}-{lane}");
            let own = folder(&cluster, &name);
            submit(
                &cluster,
                &name,
                lane,
                &[&python],
                &["tongue.py", own.to_str().unwrap()],
                env,
                0,
            );
            let status = ended(&cluster, &name);
            assert_eq!(status["phase"], "Succeeded", "{lane}: {env:?}: {status:#}");
            let name = |rank: &str| format!("{rank}.json");
            let found = muster_suite::same_files(lane, (&plain, &name), (&own, &name)).unwrap();
            wrong.extend(found.iter().map(|what| format!("{env:?}: {what}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn look(cluster: &Cluster) -> Vec<String> {
    LANES
        .iter()
        .map(|lane| cluster.muster(["logs", &format!("start-{lane}"), "--tail", "5"]))
        .collect()
}

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_script_that_counts_its_restarts_counts_them_as_under_plain_torchrun() {
    let cluster = Cluster::up(LANES.len());
    let (plain, python) = (folder(&cluster, "counts-plain"), python());
    let torchrun = Torchrun::start(
        &cluster.path("torchrun"),
        &[
            "--max-restarts=3",
            "--monitor-interval=0.1",
            "counts.py",
            plain.to_str().unwrap(),
        ],
        &[],
    );
    let lanes = LANES.map(|lane| {
        let name = format!("counts-{lane}");
        let folder = folder(&cluster, &name);
        submit(
            &cluster,
            &name,
            lane,
            &[&python],
            &["counts.py", folder.to_str().unwrap()],
            &[],
            3,
        );
        (lane, folder)
    });
    assert_eq!(torchrun.verdict(), json!({}));
    let expected = [0, 1, 2];
    assert_eq!(counts(&plain), expected, "what plain torchrun counts");
    for (lane, folder) in &lanes {
        let status = ended(&cluster, &format!("counts-{lane}"));
        assert_eq!(
            (&status["phase"], &status["restarts"]),
            (&json!("Succeeded"), &json!(2)),
            "{lane}: {status:#}"
        );
        assert_eq!(counts(folder), expected, "{lane}");
    }
}

/// The restart counts that a script was told at each of its starts, always under the same run id.
fn counts(folder: &Path) -> Vec<u64> {
    let notes: Vec<(u64, String)> = (0..names(folder).len())
        .map(|at| serde_json::from_str(&left(folder, &format!("{at}.json"))).unwrap())
        .collect();
    assert!(
        notes.iter().all(|(_, run)| *run == notes[0].1),
        "one run id for all starts: {notes:?}"
    );
    notes.into_iter().map(|(restarts, _)| restarts).collect()
}

#[test]
fn what_scripts_do_works_in_a_fork_and_in_a_fork_with_imports_made_ahead() {
    let cluster = Cluster::up(1);
    let (python, cache) = (python(), cluster.path("inductor"));
    // The fork compiles. Plain torchrun finds the compiled result, which saves 10 s.
    let env = [("TORCHINDUCTOR_CACHE_DIR", cache.to_str().unwrap())];
    let forked = folder(&cluster, "work-fork");
    fs::write(forked.join("again"), "").unwrap();
    submit(
        &cluster,
        "work",
        "fork",
        &[&python],
        &["-m", "work", forked.to_str().unwrap()],
        &env,
        1,
    );
    until(|| forked.join("1.0.txt").exists().then_some(()))
        .unwrap_or_else(|| panic!("{}", cluster.muster(["logs", "work"])));
    let plain = folder(&cluster, "work-plain");
    let torchrun = Torchrun::start(
        &cluster.path("torchrun"),
        &["-m", "work", plain.to_str().unwrap()],
        &env,
    );
    // This is checked now: a launcher ends soon after its job, and plain torchrun may take longer.
    let imported = until(|| Some(cluster.preloaded()).filter(|modules| !modules.is_empty()));
    let imported = imported.expect("the launcher imports ahead what the job has imported");
    // With an older torch this costs time and differs in nothing, so it says nothing about a pair.
    let compiler = ["torch._dynamo.convert_frame", "torch._dynamo.eval_frame"];
    let is_there = compiler.iter().all(|module| imported.contains(*module));
    assert!(
        is_there || env::var_os("MUSTER_PROVES_A_PAIR").is_some(),
        "not imported ahead: {compiler:?}; imported: {imported:?}"
    );
    fs::write(forked.join("go"), "").unwrap();
    let status = ended(&cluster, "work");
    assert_eq!(
        (&status["phase"], &status["generation"]),
        (&json!("Succeeded"), &json!(2)),
        "{status:#}"
    );
    assert_eq!(torchrun.verdict(), json!({}));
    let mut wrong = Vec::new();
    for restarts in ["0", "1"] {
        wrong.extend(
            muster_suite::same_files(
                "fork",
                (&plain, &|rank| format!("{rank}.0.txt")),
                (&forked, &|rank| format!("{rank}.{restarts}.txt")),
            )
            .unwrap(),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
