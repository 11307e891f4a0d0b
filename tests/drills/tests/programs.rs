//! Other people's programs after a failure. This test compares what a script and its packages see
//! and do in the second and third generation with plain torchrun, which it starts without Muster
//! and which restarts the same script after the same kills.
//!
//! `make test` looks at the lane that `launch: auto` takes, and `make drill` at all lanes. The long
//! half is `make strangers`: public packages, in an environment of their own.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use muster_drills::{
    Cluster, interpreter, kill, program, python, scripts, torchrun::Torchrun, until,
};
use rustix::process::Signal;
use serde_json::{Map, Value, json};

/// In the lane `parked`, torchrun starts the script as in `cold`.
const ALL_LANES: &[&str] = &["cold", "exec", "fork", "direct"];
/// The lanes of the short form: those that `launch: auto` takes. Each takes a minute and a half.
const SHORT_LANES: &[&str] = &["fork"];
/// Names one lane, to look only at that.
const ONLY: &str = "MUSTER_STRANGERS_LANE";
const KILLS: u64 = 2;
const RANKS: u64 = 2;
/// Options of the interpreter that must survive restarts.
const OPTIONS: [&str; 2] = ["-W", "ignore::UserWarning"];
/// How long a kill waits for the imports that are made ahead. They run at a low priority, and on a
/// busy machine they may not get a processor. Then the kill comes anyway, and shows less.
const AHEAD_MAX: Duration = Duration::from_secs(60);
/// How many lines `train.py` prints in every generation.
const LINES: usize = 200;

fn folder() -> PathBuf {
    scripts().join("strangers")
}

fn submit(cluster: &Cluster, name: &str, spec: Value) {
    let mut whole = json!({"procPerNode": 1, "gpusPerNode": 0, "workingDir": folder(), "scaleUpCooldown": "0s"});
    whole
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name}, "spec": whole});
    let file = cluster.path(&format!("{name}.json"));
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
}

fn is_over(status: &Value) -> bool {
    status["phase"] == "Succeeded" || status["phase"] == "Failed"
}

/// An interpreter that has the test's packages, as if a user had installed them.
fn installed(home: &Path) -> PathBuf {
    interpreter::with_packages(home, &folder().join("packages"))
}

/// What the ranks of one generation left, if all of them have left something.
fn generation(folder: &Path, number: u64, ranks: u64) -> Option<Vec<Value>> {
    let read = |rank| fs::read(folder.join(format!("{number}.{rank}.json"))).ok();
    (0..ranks)
        .map(|rank| Some(serde_json::from_slice(&read(rank)?).unwrap()))
        .collect()
}

/// Kills rank 1 of each of the first generations once it has trained and `is_due` agrees. Stops
/// early when `gave_up` says that no more will come.
fn kill_each(folder: &Path, is_due: impl Fn(u64, &[Value]) -> bool, gave_up: impl Fn() -> bool) {
    for number in 0..KILLS {
        let mut trains_since = None;
        let found = until(|| match generation(folder, number, RANKS) {
            Some(ranks) => {
                let late = trains_since.get_or_insert_with(Instant::now).elapsed() > AHEAD_MAX;
                (late || is_due(number, &ranks)).then_some(Some(ranks))
            }
            None => gave_up().then_some(None),
        });
        match found.unwrap_or_else(|| {
            panic!(
                "generation {number} in {}: not there in time",
                folder.display()
            )
        }) {
            Some(ranks) => kill(ranks[1]["pid"].as_u64().unwrap(), Signal::KILL),
            None => return,
        }
    }
}

/// Whether a process that is not one of these ranks has begun to import the slow package.
fn is_imported_ahead(importers: &Path, ranks: &[Value]) -> bool {
    let text = fs::read_to_string(importers).unwrap_or_default();
    let ranks: Vec<u64> = ranks
        .iter()
        .filter_map(|rank| rank["pid"].as_u64())
        .collect();
    text.lines()
        .filter_map(|pid| pid.parse().ok())
        .any(|pid| !ranks.contains(&pid))
}

/// `muster logs -f` from the start of a job to its end.
struct Followed {
    process: Child,
    file: PathBuf,
}

impl Followed {
    fn start(cluster: &Cluster, job: &str) -> Followed {
        let file = cluster.path(&format!("{job}.followed"));
        let mut command = Command::new(program("muster"));
        command
            .args(["logs", job, "-f"])
            .env("MUSTER_LOCAL_DIR", &cluster.dir)
            .env_remove("MUSTER_SERVER");
        let process = command
            .stdin(Stdio::null())
            .stdout(fs::File::create(&file).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Followed { process, file }
    }

    /// Lines of so many generations that are missing, or that occur more than once.
    fn wrong(mut self, generations: u64) -> Vec<String> {
        until(|| self.process.try_wait().unwrap()).expect("logs -f ends with its job");
        let text = fs::read_to_string(&self.file).unwrap();
        let mut counts = BTreeMap::<&str, usize>::new();
        text.lines()
            .for_each(|line| *counts.entry(line).or_default() += 1);
        let mut wrong = Vec::new();
        for (number, rank) in
            (0..generations).flat_map(|number| (0..RANKS).map(move |rank| (number, rank)))
        {
            let wanted =
                (0..LINES).map(|line| format!("generation {number} rank {rank} line {line}"));
            let once = wanted
                .filter(|line| counts.get(line.as_str()) == Some(&1))
                .count();
            if once != LINES {
                wrong.push(format!("logs -f: generation {number}, rank {rank}: {once} of {LINES} lines are there once"));
            }
        }
        wrong
    }
}

#[test]
fn a_strangers_script_goes_on_in_every_lane_as_under_plain_torchrun() {
    let home = tempfile::Builder::new()
        .prefix("muster-strangers-")
        .tempdir()
        .unwrap();
    let python = installed(&home.path().join("env"));
    let plain = home.path().join("plain");
    fs::create_dir(&plain).unwrap();
    let torchrun = plain_torchrun(home.path(), &python, &plain);
    kill_each(&plain, |_, _| true, || false);
    assert_eq!(torchrun.verdict(), json!({}));

    let (mut wrong, mut alike) = (Vec::new(), BTreeMap::new());
    wrong.extend(own("plain torchrun", &plain, &mut alike));
    let only = env::var(ONLY).ok();
    let lanes = if muster_drills::is_long() || only.is_some() {
        ALL_LANES
    } else {
        SHORT_LANES
    };
    for &lane in lanes
        .iter()
        .filter(|lane| only.as_ref().is_none_or(|only| only == *lane))
    {
        let cluster = Cluster::up(1);
        let (folder, importers) = (cluster.path("left"), cluster.path("importers"));
        fs::create_dir(&folder).unwrap();
        let argv = ["train.py", folder.to_str().unwrap(), &KILLS.to_string()].map(str::to_owned);
        let command = [&[python.to_str().unwrap()], &OPTIONS[..]].concat();
        submit(
            &cluster,
            "job",
            json!({
                "replicas": 1, "procPerNode": 2, "launch": lane, "command": command, "args": argv,
                "env": [{"name": "STRANGER_IMPORTERS", "value": importers}],
                // This is more than the job can be charged with, so all of its generations can be
                // looked at.
                "restartPolicy": {"maxRestarts": 10 * KILLS},
            }),
        );
        let followed = Followed::start(&cluster, "job");
        // The first kill comes while imports are made ahead. The second comes when all of them are
        // done.
        let is_due = |number, ranks: &[Value]| {
            ["cold", "exec"].contains(&lane)
                || !cluster.preloaded().is_empty()
                || number == 0 && is_imported_ahead(&importers, ranks)
        };
        kill_each(&folder, is_due, || {
            cluster.status("job").is_some_and(|status| is_over(&status))
        });
        let status = cluster.wait("job", "over", is_over);
        let mut found = followed.wrong(KILLS + 1);
        found.extend(account(&cluster, &status));
        found.extend(compare(&plain, &folder));
        found.extend(own(lane, &folder, &mut alike));
        wrong.extend(found.into_iter().map(|what| format!("{lane}: {what}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn plain_torchrun(home: &Path, python: &Path, plain: &Path) -> Torchrun {
    let with_options = home.join("python-with-options");
    fs::write(
        &with_options,
        format!(
            "#!/bin/sh\nexec {} {} \"$@\"\n",
            python.display(),
            OPTIONS.join(" ")
        ),
    )
    .unwrap();
    fs::set_permissions(&with_options, fs::Permissions::from_mode(0o755)).unwrap();
    let (restarts, kills) = (format!("--max-restarts={KILLS}"), KILLS.to_string());
    let args = [&restarts, "train.py", plain.to_str().unwrap(), &kills];
    let env = [
        ("PYTHON_EXEC", with_options.to_str().unwrap()),
        // With the store of the previous attempt the next one often never meets.
        ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),
    ];
    Torchrun::start_with(python, &folder(), &home.join("torchrun"), &args, &env)
}

/// What is wrong with the charges to the job and their causes.
fn account(cluster: &Cluster, status: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    if (&status["phase"], &status["restarts"]) != (&json!("Succeeded"), &json!(KILLS)) {
        wrong.push(format!(
            "{} after {} restarts: {}",
            status["phase"], status["restarts"], status["message"]
        ));
    }
    let explain = cluster.json(["explain", "job"]);
    let incidents = explain["incidents"].as_array().unwrap().iter().skip(1);
    let causes: Vec<_> = incidents
        .map(|incident| (incident["cause"].clone(), incident["charged"].clone()))
        .collect();
    if causes != vec![(json!("WorkerKilled"), json!("job")); KILLS as usize] {
        wrong.push(format!("incidents: {causes:?}"));
    }
    wrong
}

/// Where the ranks of a job left something else than those of plain torchrun.
fn compare(plain: &Path, folder: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    let read =
        |folder: &Path, name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    if read(folder, "losses.txt") != read(plain, "losses.txt") {
        wrong.push(format!(
            "losses:\n{}instead of\n{}",
            read(folder, "losses.txt"),
            read(plain, "losses.txt")
        ));
    }
    let mut kept = BTreeSet::new();
    for number in 0..=KILLS {
        let expected = generation(plain, number, RANKS).expect("plain torchrun came to its end");
        let Some(found) = generation(folder, number, RANKS) else {
            wrong.push(format!("generation {number} never trained"));
            continue;
        };
        for (rank, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let differences = differing(&expected["same"], &found["same"], true).into_iter();
            let differences =
                differences.chain(differing(&expected["files"], &found["files"], false));
            wrong.extend(
                differences.map(|what| format!("generation {number}, rank {rank}: {what}")),
            );
            kept.insert(found["kept"].to_string());
        }
        if number == KILLS {
            let pids = |rank: usize| format!("{}\n", found[rank]["pid"]);
            let ends = (0..RANKS as usize)
                .filter(|rank| read(folder, &format!("end.{rank}.txt")) != pids(*rank));
            wrong.extend(ends.map(|rank| {
                format!("rank {rank}: a package's function for the end was not called once")
            }));
        }
    }
    if kept.len() > 1 {
        wrong.push(format!("not kept over restarts: {kept:?}"));
    }
    wrong
}

/// Values of `found` that differ from those of `expected`. Without `all`, only those are compared
/// that both have.
fn differing(expected: &Value, found: &Value, all: bool) -> Vec<String> {
    let of = |value: &Value| value.as_object().unwrap().clone();
    let (expected, found): (Map<_, _>, Map<_, _>) = (of(expected), of(found));
    let differs = |(name, value): &(&String, &Value)| match found.get(*name) {
        None => all,
        Some(other) => other != *value,
    };
    let say = |(name, value): (&String, &Value)| {
        format!(
            "{name}: {} instead of {value}",
            found.get(name).unwrap_or(&Value::Null)
        )
    };
    expected.iter().filter(differs).map(say).collect()
}

/// Values that two processes share and should not. `alike` holds the values of all processes so
/// far, each with its owner.
fn own(who: &str, folder: &Path, alike: &mut BTreeMap<String, String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for number in 0..=KILLS {
        for (rank, found) in generation(folder, number, RANKS)
            .unwrap_or_default()
            .iter()
            .enumerate()
        {
            let whose = format!("{who}, generation {number}, rank {rank}");
            for (name, value) in found["own"].as_object().unwrap() {
                // The seed of `hash` belongs to the interpreter, and forked ranks share one.
                // docs/limits.md says so.
                if name == "hash" && (who == "fork" || who == "direct") {
                    continue;
                }
                if let Some(other) = alike.insert(format!("{name} {value}"), whose.clone()) {
                    wrong.push(format!(
                        "generation {number}, rank {rank}: {name}: the same as {other}"
                    ));
                }
            }
        }
    }
    wrong
}

#[test]
fn who_joins_imports_what_the_script_imports_and_nothing_else() {
    let cluster = Cluster::up(1);
    let python = installed(&cluster.path("env"));
    let folder = cluster.path("left");
    fs::create_dir(&folder).unwrap();
    let argv = ["train.py", folder.to_str().unwrap(), "1"].map(str::to_owned);
    submit(
        &cluster,
        "job",
        json!({
            "replicas": 2, "minReplicas": 1, "maxReplicas": 2, "launch": "fork", "command": [python], "args": argv,
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}], "stopGracePeriod": "0s",
        }),
    );
    until(|| generation(&folder, 0, 1)).expect("one node trains");
    cluster.muster(["local", "add-node"]);
    let status = cluster.wait("job", "over", is_over);
    assert_eq!(status["phase"], json!("Succeeded"), "{status:#}");
    let (before, after) = (
        generation(&folder, 0, 1).unwrap(),
        generation(&folder, 1, 2).expect("two nodes have trained"),
    );
    let mut wrong = Vec::new();
    for (rank, found) in after.iter().enumerate() {
        let mut expected = before[0]["same"].clone();
        for its_own in [
            "answered by a thread of a package",
            "read from the environment at import",
            "weights",
            "restarts",
        ] {
            expected.as_object_mut().unwrap().remove(its_own);
        }
        let differences = differing(&expected, &found["same"], true).into_iter();
        let differences = differences.chain(differing(&before[0]["files"], &found["files"], false));
        wrong.extend(differences.map(|what| format!("rank {rank}: {what}")));
        let read = &found["same"]["read from the environment at import"];
        if *read != json!(["set by the script", rank.to_string()]) {
            wrong.push(format!(
                "rank {rank}: read from the environment at import: {read}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_exception_that_speaks_of_a_refused_connection_is_the_jobs_own() {
    let mut wrong = Vec::new();
    for lane in ["fork", "cold"] {
        let cluster = Cluster::up(2);
        let folder = cluster.path("left");
        fs::create_dir(&folder).unwrap();
        submit(
            &cluster,
            "job",
            json!({
                "replicas": 2, "launch": lane, "command": [python()], "args": ["refused.py", folder],
                "restartPolicy": {"maxRestarts": 0},
            }),
        );
        let status = cluster.wait("job", "over or started again", |status| {
            is_over(status) || status["generation"] != 1
        });
        let message = status["message"].as_str().unwrap();
        if status["phase"] != "Failed"
            || !message.contains("rank 1")
            || !message.contains("Connection refused")
        {
            wrong.push(format!(
                "{lane}: generation {} is {}: {message}",
                status["generation"], status["phase"]
            ));
        }
        let read = |name: &str| fs::read(folder.join(name)).unwrap_or_default();
        if read("1.ledger.txt") != b"closed" {
            wrong.push(format!("{lane}: an object of the script was not let go"));
        }
        // A gzip file ends with the length of its unpacked content.
        if !read("1.gz").ends_with(&9u32.to_le_bytes()) {
            wrong.push(format!(
                "{lane}: a file of the script was not written to its end"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A CPU to which a rank can be bound here.
fn a_cpu() -> String {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = own
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap()
        .trim();
    allowed.split([',', '-']).next().unwrap().to_owned()
}

#[test]
fn a_pinned_rank_computes_with_as_many_threads_as_it_has_cpus() {
    let cluster = Cluster::up_with(
        1,
        &["--hardware", "8xh100"],
        &[("MUSTER_PROBE_EVERY", "250ms")],
    );
    let list = "nodes/node-1/hardware/sysroot/sys/devices/system/node/node0/cpulist";
    fs::write(cluster.dir.join(list), format!("{}\n", a_cpu())).unwrap();
    let pinned = || {
        let topology = cluster.muster(["topology", "node-1"]);
        let line = topology.lines().find(|line| line.starts_with("GPU0 "))?;
        (line.split_whitespace().rev().nth(1)? == a_cpu()).then_some(())
    };
    until(pinned).unwrap_or_else(|| panic!("{}", cluster.muster(["topology", "node-1"])));
    let mut wrong = Vec::new();
    for lane in ALL_LANES {
        let file = cluster.path(&format!("{lane}.pools"));
        submit(
            &cluster,
            lane,
            json!({
                "replicas": 1, "gpusPerNode": 1, "launch": lane, "command": [python()], "args": ["pools.py", file],
                "restartPolicy": {"maxRestarts": 0},
            }),
        );
        cluster.wait(lane, "over", |status| status["phase"] == "Succeeded");
        let found = fs::read_to_string(&file).unwrap();
        if found != format!("1 [{}]\n", a_cpu()) {
            wrong.push(format!("{lane}: threads and CPUs: {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
