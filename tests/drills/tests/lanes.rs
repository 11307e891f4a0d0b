//! The compatibility suite of the launch lanes. This test runs each script under plain torchrun,
//! without Muster, and in the lanes. It compares what the script sees at its start, what works in
//! it, and how it ends. Every allowed difference is in [`DIFFERENCES`] or [`ENVIRONMENT`], with its
//! reason. `core::node::lane` names the interpreters for which this suite has passed.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use muster_drills::{Cluster, python, scripts, torchrun::Torchrun, until};
use serde_json::{Value, json};

const LANES: [&str; 4] = ["cold", "parked", "fork", "direct"];
const RANKS: [&str; 2] = ["0", "1"];
const ALL: &[&str] = &LANES;
const FORK: &[&str] = &["fork"];

/// What a script may see differently than under plain torchrun: the lanes, the field as `start.py`
/// calls it, and why the difference does no harm.
const DIFFERENCES: [(&[&str], &str, &str); 11] = [
    (
        ALL,
        "env",
        "Muster has variables of its own, and some have another value in every job: ENVIRONMENT names them",
    ),
    (
        ALL,
        "chances",
        "random numbers begin by chance; that no two processes begin alike is checked",
    ),
    (ALL, "torch.rand", "the same"),
    (ALL, "torch.seed", "the same"),
    (
        ALL,
        "torch.authkey",
        "a secret of each process; that no two are alike is checked",
    ),
    (
        FORK,
        "modules",
        "what the script imports is there already; that nothing is missing, and nothing of the job's own there, is checked",
    ),
    (
        FORK,
        "also_main",
        "multiprocessing, once it is imported, has a second name for the main module: the same module",
    ),
    (
        FORK,
        "atexit",
        "what modules register for the end when they are imported is registered already",
    ),
    (
        FORK,
        "meta_path",
        "one finder more, in front: it notes what is imported, for the next generation, and from which file",
    ),
    (
        FORK,
        "stack",
        "frames of the launcher lie below the script's: not in the traceback of an exception, but in a stack that is printed; and \
                     four calls less fit before a RecursionError",
    ),
    (
        FORK,
        "frozen",
        "what was imported ahead is exempt from garbage collection, so that the ranks of a node share those pages",
    ),
];

/// Variables of a rank that plain torchrun does not set, or sets differently.
const ENVIRONMENT: [(&str, &str); 14] = [
    ("MASTER_ADDR", "of the store that Muster serves"),
    ("MASTER_PORT", "of the store that Muster serves"),
    (
        "TORCHELASTIC_RUN_ID",
        "the job's uid, which stays; that it does is checked",
    ),
    ("TORCHELASTIC_ERROR_FILE", "lies in the run's directory"),
    (
        "TORCH_ELASTIC_WORKER_IDENTICAL",
        "asks torchrun not to exchange roles",
    ),
    (
        "GLOO_SOCKET_IFNAME",
        "lo where the node's address is a loopback one; a job may set its own",
    ),
    (
        "PYTHON_EXEC",
        "the way of this test to give the interpreter options under plain torchrun, which has none for it",
    ),
    (
        "PWD",
        "a shell's, which this test puts between plain torchrun and its ranks for those options",
    ),
    ("OLDPWD", "the same"),
    ("NODE_GPU_COUNT", "part of the node's own profile"),
    ("NODE_GPU_MODEL", "the same"),
    (
        "TORCHINDUCTOR_CACHE_DIR",
        "a folder of the job on its node, which outlives generations",
    ),
    ("TRITON_CACHE_DIR", "the same"),
    ("MUSTER_", "Muster's own"),
];

/// What a rank that fell because a peer was lost leaves out at its end: the end of its modules.
/// That would take half a second of every re-form. Its threads, exit handlers and files are ended
/// properly.
const NO_TEARDOWN: (&[&str], &str, &str) = (FORK, "0.peer lost.txt", "let go of a global\n");

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
        "workingDir": scripts().join("lanes"), "restartPolicy": {"maxRestarts": restarts},
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
    let text = fs::read_to_string(folder.join(name))
        .unwrap_or_else(|e| panic!("{name} in {}: {e}", folder.display()));
    text.replace(folder.to_str().unwrap(), "FOLDER")
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
    assert_eq!(
        (&verdict["0"][0], &verdict["1"][0]),
        (&json!(5), &json!(1)),
        "what plain torchrun makes of it: {verdict}"
    );

    let (mut by_chance, mut wrong) = (Vec::new(), Vec::new());
    let baseline = RANKS.map(|rank| start(&plain, rank, &mut by_chance));
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
            "a launcher that fails is replaced by lane cold: {status:#}"
        );
        for (rank, plain) in RANKS.iter().zip(&baseline) {
            let found = compare(lane, plain, &start(folder, rank, &mut by_chance));
            wrong.extend(
                found
                    .iter()
                    .map(|what| format!("{lane}, rank {rank}: {what}")),
            );
        }
        assert_eq!(names(folder), names(&plain), "{lane}: what the script left");
        for name in names(&plain).iter().filter(|name| !name.ends_with(".json")) {
            let (lanes, way, words) = NO_TEARDOWN;
            let plain = left(&plain, name);
            let plain = if lanes.contains(lane) && name == way {
                plain.replace(words, "")
            } else {
                plain
            };
            let (seen, expected) = (
                without_launcher(&left(folder, name)),
                without_launcher(&plain),
            );
            if seen != expected {
                wrong.push(format!(
                    "{lane}: {name}:\n{seen}\n--- instead of\n{expected}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let all = by_chance.len();
    by_chance.sort();
    by_chance.dedup();
    assert_eq!(
        by_chance.len(),
        all,
        "two processes began alike: {by_chance:?}"
    );
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
            for rank in RANKS {
                let (seen, expected) = (
                    left(&own, &format!("{rank}.json")),
                    left(&plain, &format!("{rank}.json")),
                );
                if seen != expected {
                    wrong.push(format!(
                        "{lane}, rank {rank}, {env:?}:\n{seen}\n--- instead of\n{expected}"
                    ));
                }
            }
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

/// What one rank saw, as a flat map, without values that come by chance.
fn start(folder: &Path, rank: &str, by_chance: &mut Vec<String>) -> serde_json::Map<String, Value> {
    let mut seen: Value = serde_json::from_str(&left(folder, &format!("{rank}.json"))).unwrap();
    let seen = seen.as_object_mut().unwrap();
    let torch = seen.remove("torch").unwrap();
    seen.extend(
        torch
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (format!("torch.{name}"), value.clone())),
    );
    for name in ["torch.rand", "torch.seed", "torch.authkey"] {
        by_chance.push(seen[name].to_string());
    }
    by_chance.extend(
        seen["chances"]
            .as_array()
            .unwrap()
            .iter()
            .map(Value::to_string),
    );
    std::mem::take(seen)
}

/// The differences that are not allowed.
fn compare(
    lane: &str,
    plain: &serde_json::Map<String, Value>,
    seen: &serde_json::Map<String, Value>,
) -> Vec<String> {
    let texts = |value: &Value| {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect::<BTreeSet<_>>()
    };
    let mut wrong = Vec::new();
    for (field, value) in plain {
        let differs = DIFFERENCES
            .iter()
            .any(|(lanes, name, _)| lanes.contains(&lane) && name == field);
        if !differs && seen[field] != *value {
            wrong.push(format!("{field}: {} instead of {value}", seen[field]));
        }
    }
    let (own, theirs) = (
        seen["env"].as_object().unwrap(),
        plain["env"].as_object().unwrap(),
    );
    for name in own.keys().chain(theirs.keys()) {
        let may_differ = ENVIRONMENT
            .iter()
            .any(|(known, _)| name == known || known.ends_with('_') && name.starts_with(known));
        if !may_differ && own.get(name) != theirs.get(name) {
            wrong.push(format!(
                "environment: {name}: {:?} instead of {:?}",
                own.get(name),
                theirs.get(name)
            ));
        }
    }
    let (modules, needed) = (texts(&seen["modules"]), texts(&plain["modules"]));
    wrong.extend(
        needed
            .difference(&modules)
            .map(|name| format!("module {name} is not there")),
    );
    let jobs_own = fs::read_dir(scripts().join("lanes"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let jobs_own: BTreeSet<String> = jobs_own
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    wrong.extend(
        modules
            .intersection(&jobs_own)
            .map(|name| format!("module {name} is the job's own and is there")),
    );
    wrong
}

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// A text without the parts that `stack` and `modules` of [`DIFFERENCES`] describe: the launcher's
/// frames, the number of calls before a RecursionError, and the list of modules after a crash.
/// Addresses are removed too.
fn without_launcher(text: &str) -> String {
    let mut kept = Vec::new();
    let mut within = false;
    for line in text.lines() {
        within = line.contains("/launcher.py\"") || within && line.starts_with("    ");
        let by_chance = [
            "Extension modules: ",
            "Current thread ",
            "  [Previous line repeated ",
        ];
        if !within && !line.is_empty() && !by_chance.iter().any(|start| line.starts_with(start)) {
            kept.push(line);
        }
    }
    kept.join("\n")
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
    let compiler = ["torch._dynamo.convert_frame", "torch._dynamo.eval_frame"];
    let is_there = || {
        compiler
            .iter()
            .all(|module| cluster.preloaded().contains(*module))
            .then_some(())
    };
    until(is_there).unwrap_or_else(|| {
        panic!(
            "not imported ahead: {compiler:?}; imported: {:?}",
            cluster.preloaded()
        )
    });
    fs::write(forked.join("go"), "").unwrap();
    let status = ended(&cluster, "work");
    assert_eq!(
        (&status["phase"], &status["generation"]),
        (&json!("Succeeded"), &json!(2)),
        "{status:#}"
    );
    assert_eq!(torchrun.verdict(), json!({}));
    for rank in RANKS {
        let expected = left(&plain, &format!("{rank}.0.txt"));
        for restarts in RANKS {
            assert_eq!(
                left(&forked, &format!("{rank}.{restarts}.txt")),
                expected,
                "rank {rank} after {restarts} restarts"
            );
        }
    }
}
