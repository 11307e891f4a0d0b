//! Hardware that fails while a real agent is connected to a real coordinator.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{collections::BTreeSet, fs};

use muster_drills::{Cluster, python, scripts, until};
use serde_json::{Value, json};

/// How often the node must be heard while its driver hangs, counted once a second. It is more than
/// it takes to become Suspect.
const HEARD: usize = 5;

#[test]
fn a_driver_that_hangs_never_holds_up_a_heartbeat() {
    // The probes look often, so that three missed looks come soon.
    let cluster = Cluster::up_with(
        1,
        &["--hardware", "4xl40s"],
        &[("MUSTER_PROBE_EVERY", "500ms")],
    );
    let status = || cluster.json(["get", "node", "node-1"])["status"].clone();
    let hung = |status: &Value| {
        status["findings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|finding| finding["check"] == "nvml-hung")
    };
    let seen = until(|| (status()["gpus"].as_array().unwrap().len() == 4).then_some(()));
    assert!(seen.is_some(), "the GPUs are reported: {:#}", status());
    cluster.muster(["local", "inject", "node-1", "driver", "hang"]);
    assert!(
        until(|| hung(&status()).then_some(())).is_some(),
        "nobody notices: {:#}",
        status()
    );
    let mut heard = BTreeSet::new();
    let goes_on = until(|| {
        let status = status();
        assert!(hung(&status), "it hangs on: {status:#}");
        heard.insert(status["lastHeardAt"].as_str()?.to_owned());
        (heard.len() > HEARD && status["state"] == "Ready").then_some(())
    });
    assert!(goes_on.is_some(), "heard at {heard:?} only: {:#}", status());
    assert_eq!(
        status()["gpus"].as_array().unwrap().len(),
        4,
        "what was known is still said"
    );
    cluster.muster(["local", "inject", "node-1", "driver", "resume"]);
    assert!(
        until(|| (!hung(&status())).then_some(())).is_some(),
        "it is not forgiven: {:#}",
        status()
    );
}

/// The first and the last CPU that this process may use. With other CPUs a binding would not show.
fn own_cpus() -> [String; 2] {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = own
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap()
        .trim();
    let ends = |list: &str| {
        list.split([',', '-'])
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    [
        ends(allowed).first().unwrap().clone(),
        ends(allowed).last().unwrap().clone(),
    ]
}

#[test]
fn ranks_are_kept_to_the_cpus_of_their_gpus_numa_node() {
    let cluster = Cluster::up_with(
        1,
        &["--hardware", "8xh100"],
        &[("MUSTER_PROBE_EVERY", "250ms")],
    );
    // Each socket of the fake machine stands for one CPU of the real one.
    let cpus = own_cpus();
    for (numa, cpu) in cpus.iter().enumerate() {
        let list =
            format!("nodes/node-1/hardware/sysroot/sys/devices/system/node/node{numa}/cpulist");
        fs::write(cluster.dir.join(list), format!("{cpu}\n")).unwrap();
    }
    let reported = || {
        let topology = cluster.muster(["topology", "node-1"]);
        let affinity = |gpu: &str| {
            topology
                .lines()
                .find(|line| line.starts_with(gpu))?
                .split_whitespace()
                .rev()
                .nth(1)
                .map(str::to_owned)
        };
        (affinity("GPU0 ")? == cpus[0] && affinity("GPU7 ")? == cpus[1]).then_some(())
    };
    assert!(
        until(reported).is_some(),
        "{}",
        cluster.muster(["topology", "node-1"])
    );
    for lane in ["fork", "direct", "cold"] {
        let folder = cluster.path(lane);
        fs::create_dir(&folder).unwrap();
        let script = scripts().join("cpus.py");
        let spec = json!({
            "replicas": 1, "procPerNode": 8, "gpusPerNode": 8, "launch": lane, "workingDir": folder,
            "command": [python()], "args": [script, folder], "restartPolicy": {"maxRestarts": 0},
        });
        let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": lane}, "spec": spec});
        let file = cluster.path(&format!("{lane}.json"));
        fs::write(&file, document.to_string()).unwrap();
        cluster.muster(["submit", "-f", file.to_str().unwrap()]);
        let status = cluster.wait(lane, "ended", |status| {
            status["phase"] == "Succeeded" || status["phase"] == "Failed"
        });
        assert_eq!(
            status["phase"],
            "Succeeded",
            "{lane}: {}",
            cluster.muster(["logs", lane])
        );
        let of_rank = |rank: usize| {
            fs::read_to_string(folder.join(rank.to_string()))
                .unwrap()
                .trim()
                .to_owned()
        };
        let found: Vec<String> = (0..8).map(of_rank).collect();
        let wanted: Vec<String> = (0..8).map(|rank| cpus[rank / 4].clone()).collect();
        assert_eq!(found, wanted, "{lane}");
    }
}

/// Each rank writes down which GPUs it sees, and stays until it is told to end.
const WHICH_GPUS: &str = "\
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
own = folder / os.environ['RANK']
part = own.with_suffix('.part')
part.write_text(os.environ.get('CUDA_VISIBLE_DEVICES', 'unset'))
part.rename(own)
while not (folder / 'end').exists():
    time.sleep(0.05)
";

#[test]
fn a_job_that_says_nothing_has_its_gpus_alone_and_one_that_takes_none_sees_none() {
    let cluster = Cluster::up_with(1, &["--hardware", "8xh100"], &[]);
    let script = cluster.path("which.py");
    fs::write(&script, WHICH_GPUS).unwrap();
    let submit = |name: &str, procs: u32, gpus: Option<u32>| {
        let folder = cluster.path(name);
        fs::create_dir(&folder).unwrap();
        let mut spec = json!({
            "replicas": 1, "procPerNode": procs, "launch": "direct", "workingDir": folder,
            "command": [python()], "args": [script, folder], "restartPolicy": {"maxRestarts": 0},
        });
        if let Some(gpus) = gpus {
            spec["gpusPerNode"] = gpus.into();
        }
        let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name}, "spec": spec});
        let file = cluster.path(&format!("{name}.json"));
        fs::write(&file, document.to_string()).unwrap();
        cluster.muster(["submit", "-f", file.to_str().unwrap()]);
        folder
    };
    let sees = |folder: &std::path::Path, ranks: u32| {
        let of_rank = |rank: u32| fs::read_to_string(folder.join(rank.to_string())).ok();
        let all = until(|| (0..ranks).map(of_rank).collect::<Option<BTreeSet<_>>>());
        let all = all.unwrap_or_else(|| panic!("{}", cluster.muster(["explain", "first"])));
        assert_eq!(all.len(), 1, "all ranks of a node see the same: {all:?}");
        all.into_iter().next().unwrap()
    };
    let first = submit("first", 8, None);
    let theirs = sees(&first, 8);
    assert_eq!(theirs.split(',').count(), 8, "{theirs}");
    let second = submit("second", 8, Some(8));
    cluster.wait("second", "held back", |status| {
        status["reason"] == "BelowMinimum"
    });
    let third = submit("third", 1, Some(0));
    assert_eq!(sees(&third, 1), "");
    assert!(!second.join("0").exists());
    for folder in [&first, &second, &third] {
        fs::write(folder.join("end"), "").unwrap();
    }
    for name in ["first", "second", "third"] {
        cluster.wait(name, "over", |status| status["phase"] == "Succeeded");
    }
    assert_eq!(fs::read_to_string(second.join("7")).unwrap(), theirs);
}
