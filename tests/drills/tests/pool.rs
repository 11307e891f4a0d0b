//! The warm pool: a job starts from a launcher that belonged to no job, and sees no difference.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use muster_drills::{Cluster, processes_of, python, scripts, until};
use serde_json::{Value, json};

/// Variables that are new in each job: the place of the TCPStore, the run's and the job's folders, and names.
const OF_A_JOB: [&str; 7] = [
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "MUSTER_",
    "PYTHON_EXEC",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
];

struct Job {
    name: String,
    folder: PathBuf,
}

/// Submits a script that only pretends to train, until it is let go.
fn submit(cluster: &Cluster, name: &str, folder: &Path, env: &[(&str, &str)]) -> Job {
    let own = cluster.path(name);
    fs::create_dir(&own).unwrap();
    let env: Vec<Value> = env
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let script = scripts().join("surroundings.py");
    let spec = json!({
        "replicas": 1, "procPerNode": 2, "gpusPerNode": 0, "command": [python(), "-W", "ignore"], "args": [script, own], "env": env,
        "launch": "fork", "workingDir": folder, "restartPolicy": {"maxRestarts": 0},
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name}, "spec": spec});
    let file = cluster.path(&format!("{name}.json"));
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
    Job {
        name: name.to_owned(),
        folder: own,
    }
}

impl Job {
    /// What both ranks saw, and the reason for their lane, once the job has shown a step.
    fn seen(&self, cluster: &Cluster) -> (Vec<Value>, String) {
        let steps = |ranks: &Vec<Value>| {
            ranks.len() == 2 && ranks.iter().all(|rank| !rank["lastStep"].is_null())
        };
        let status = cluster.wait(&self.name, "training", |status| {
            status["ranks"].as_array().is_some_and(steps)
        });
        let lane = (&status["generation"], &status["members"][0]["lane"]);
        assert_eq!(
            lane,
            (&json!(1), &json!("fork")),
            "{status:#}\n{}",
            cluster.muster(["explain", &self.name])
        );
        let read = |rank: &str| {
            serde_json::from_slice(&fs::read(self.folder.join(format!("{rank}.json"))).unwrap())
                .unwrap()
        };
        (
            ["0", "1"].map(read).into(),
            status["members"][0]["laneReason"]
                .as_str()
                .unwrap()
                .to_owned(),
        )
    }

    /// Lets the job end, and waits until it has.
    fn finish(&self, cluster: &Cluster) {
        fs::write(self.folder.join("go"), "").unwrap();
        cluster.wait(&self.name, "ended", |status| status["phase"] == "Succeeded");
    }
}

const FROM_POOL: &str = "its launcher came from the warm pool";
const OWN: &str = "its launcher imported torch first";

fn until_ready(cluster: &Cluster, count: u64) -> Value {
    let found = until(|| {
        let pool = cluster.json(["get", "node", "node-1"])["status"]["warmPool"].clone();
        (pool["ready"] == count && (count == 0 || pool["bytes"].as_u64() > Some(0))).then_some(pool)
    });
    found.unwrap_or_else(|| {
        panic!(
            "no {count} launchers in the pool: {}",
            cluster.muster(["describe", "node", "node-1"])
        )
    })
}

fn pool_launchers(cluster: &Cluster) -> Vec<u32> {
    let mark = "/warm-pool-launcher-";
    let all = processes_of(&cluster.dir).into_iter();
    all.filter(|(_, line)| line.contains(mark) && line.contains("launcher.py"))
        .map(|(pid, _)| pid)
        .collect()
}

/// The differences between two ranks, field by field, without what is new in each job.
fn differences(own: &Value, pooled: &Value) -> Vec<String> {
    let is_new = |name: &str| {
        OF_A_JOB
            .iter()
            .any(|known| name == *known || known.ends_with('_') && name.starts_with(known))
    };
    let strip = |seen: &Value| {
        let mut seen = seen.as_object().unwrap().clone();
        seen["env"]
            .as_object_mut()
            .unwrap()
            .retain(|name, _| !is_new(name));
        seen["env_in_c"]
            .as_array_mut()
            .unwrap()
            .retain(|line| !is_new(line.as_str().unwrap().split('=').next().unwrap()));
        // Each run has a cgroup of its own.
        let cgroup = seen["cgroup"].as_str().unwrap().to_owned();
        let own = |line: &str| line.split("/muster-").next().unwrap().to_owned();
        seen["cgroup"] = cgroup
            .lines()
            .map(own)
            .collect::<Vec<_>>()
            .join("\n")
            .into();
        seen
    };
    let (own, pooled) = (strip(own), strip(pooled));
    let differs = |(field, value): (&String, &Value)| {
        (pooled[field] != *value).then(|| format!("{field}: {} instead of {value}", pooled[field]))
    };
    own.iter().filter_map(differs).collect()
}

#[test]
fn the_next_job_starts_from_a_launcher_of_the_pool_and_sees_what_it_would_see_from_its_own() {
    let cluster = Cluster::up_with(1, &["--warm-pool", "1"], &[]);
    assert_eq!(
        cluster.json(["get", "node", "node-1"])["status"]["warmPool"],
        json!({"limit": 1, "ready": 0, "bytes": 0})
    );
    let folder = scripts();
    let env = [("GLOO_SOCKET_IFNAME", "lo"), ("WANDB_MODE", "offline")];
    let first = submit(&cluster, "first", &folder, &env);
    let (own, why) = first.seen(&cluster);
    assert!(why.ends_with(OWN), "{why}");
    let pool = until_ready(&cluster, 1);
    assert_eq!(pool_launchers(&cluster).len(), 1);
    let secret = |pid: u32| {
        String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/environ")).unwrap())
            .contains("WANDB_MODE")
    };
    assert!(
        !pool_launchers(&cluster).into_iter().any(secret),
        "nothing of a job is kept for the next one"
    );
    assert!(pool["bytes"].as_u64().unwrap() > 10 << 20, "{pool}");
    let shown = cluster.muster(["describe", "node", "node-1"]);
    assert!(shown.contains("1 of 1 launchers ready, "), "{shown}");
    first.finish(&cluster);

    let second = submit(&cluster, "second", &folder, &env);
    let (pooled, why) = second.seen(&cluster);
    assert!(why.ends_with(FROM_POOL), "{why}");
    for (own, pooled) in own.iter().zip(&pooled) {
        assert_eq!(differences(own, pooled), [""; 0]);
    }
    second.finish(&cluster);

    // The job's own settings may differ.
    until_ready(&cluster, 1);
    let elsewhere = cluster.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let third = submit(
        &cluster,
        "third",
        &elsewhere,
        &[("NCCL_DEBUG", "WARN"), ("WANDB_MODE", "online")],
    );
    let (seen, why) = third.seen(&cluster);
    assert!(why.ends_with(FROM_POOL), "{why}");
    let own = &seen[0];
    assert_eq!(
        (&own["env"]["WANDB_MODE"], &own["env"]["NCCL_DEBUG"]),
        (&json!("online"), &json!("WARN"))
    );
    assert!(
        own["env_in_c"]
            .as_array()
            .unwrap()
            .contains(&json!("WANDB_MODE=online"))
    );
    let elsewhere = elsewhere.to_str().unwrap();
    assert_eq!(
        (&own["cwd"][0], &own["cwd"][1]),
        (&json!(elsewhere), &json!(elsewhere))
    );
    third.finish(&cluster);
}

#[test]
fn a_job_that_would_start_otherwise_takes_none_and_no_launcher_outlives_its_agent() {
    let cluster = Cluster::up_with(1, &["--warm-pool", "1"], &[]);
    let folder = scripts();
    let plain = submit(&cluster, "plain", &folder, &[]);
    plain.seen(&cluster);
    plain.finish(&cluster);
    until_ready(&cluster, 1);
    let package = cluster.path("package");
    fs::create_dir(&package).unwrap();
    let package = package.to_str().unwrap();
    for (name, value) in [("PYTHONPATH", package), ("PYTHONHASHSEED", "7")] {
        let job = submit(
            &cluster,
            &format!("with-{}", name.to_lowercase()),
            &folder,
            &[(name, value)],
        );
        let (seen, why) = job.seen(&cluster);
        assert!(why.ends_with(OWN), "{name}: {why}");
        assert_eq!(seen[0]["env"][name], value);
        let found = match name {
            "PYTHONPATH" => seen[0]["path"]
                .as_array()
                .unwrap()
                .contains(&json!(package)),
            _ => seen[0]["flags"]
                .as_str()
                .unwrap()
                .contains("hash_randomization=1"),
        };
        assert!(found, "{name}: {}", seen[0]);
        job.finish(&cluster);
    }
    until_ready(&cluster, 1);
    let threads = |name: &str| submit(&cluster, name, &folder, &[("OMP_NUM_THREADS", "2")]);
    let first = threads("two-threads");
    let (seen, why) = first.seen(&cluster);
    assert!(why.ends_with(OWN), "{why}");
    assert_eq!(
        (&seen[0]["torch"][0], &seen[0]["env"]["OMP_NUM_THREADS"]),
        (&json!(2), &json!("2"))
    );
    let before = pool_launchers(&cluster);
    // The pool changes to the settings of the job that ran last.
    let changed = || {
        pool_launchers(&cluster)
            .into_iter()
            .any(|pid| !before.contains(&pid))
    };
    until(|| changed().then_some(())).expect("a launcher for the other number of threads");
    until_ready(&cluster, 1);
    first.finish(&cluster);
    let second = threads("two-threads-again");
    let (seen, why) = second.seen(&cluster);
    assert!(why.ends_with(FROM_POOL), "{why}");
    assert_eq!(seen[0]["torch"][0], 2);
    second.finish(&cluster);

    until_ready(&cluster, 1);
    let left = pool_launchers(&cluster);
    cluster.muster(["local", "kill-agent", "node-1"]);
    cluster.muster(["local", "start-agent", "node-1"]);
    let gone = || {
        pool_launchers(&cluster)
            .iter()
            .all(|pid| !left.contains(pid))
    };
    until(|| gone().then_some(())).expect("a launcher of an agent that is gone ends");
}
