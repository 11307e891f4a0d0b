//! A node runs the short half of the lanes' compatibility suite itself: when it is told to, and when it
//! has met an interpreter that nobody has proven. What it finds decides the lane of the next job.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use muster_drills::{Cluster, interpreter, processes_of, program, python, until};
use serde_json::{Value, json};

/// A version of torch that no run of the suite has.
const UNKNOWN: &str = "2.99.0+cpu";

fn prove(python: &Path, state: &Path) -> (Output, Value) {
    let output = Command::new(program("muster-agent"))
        .args(["prove", "--allow-root-workers", "-o", "json", "--python"])
        .arg(python)
        .arg("--state-dir")
        .arg(state)
        .output()
        .unwrap();
    let trial = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output, trial)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The packages of the interpreter under test, with torch under another version.
fn another_torch(folder: &Path) -> PathBuf {
    let place = "import os, torch; print(os.path.dirname(torch.__file__))";
    let output = Command::new(python()).args(["-c", place]).output().unwrap();
    let torch = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let packages = folder.join("packages");
    fs::create_dir_all(packages.join("torch")).unwrap();
    for entry in fs::read_dir(&torch).unwrap() {
        let name = entry.unwrap().file_name();
        if name != "version.py" {
            symlink(torch.join(&name), packages.join("torch").join(&name)).unwrap();
        }
    }
    let version = fs::read_to_string(torch.join("version.py")).unwrap();
    let version: String = version
        .lines()
        .map(|line| match line.starts_with("__version__") {
            true => format!("__version__ = '{UNKNOWN}'\n"),
            false => format!("{line}\n"),
        })
        .collect();
    fs::write(packages.join("torch/version.py"), version).unwrap();
    packages
}

#[test]
fn an_interpreter_is_tried_on_demand_and_the_script_that_differs_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    fs::create_dir(&state).unwrap();
    let (output, trial) = prove(Path::new(&python()), &state);
    assert_eq!(output.status.code(), Some(0), "{trial:#} {}", said(&output));
    assert_eq!(trial.get("differs"), None, "{trial:#}");
    let kept = || fs::read_to_string(state.join("trials.json")).unwrap();
    assert!(kept().contains(trial["torch"].as_str().unwrap()));
    // What this interpreter does in a lane is another thing.
    let packages = folder.path().join("packages");
    fs::create_dir(&packages).unwrap();
    let odd = "import os\nif 'MUSTER_RUN_DIR' in os.environ:\n    os.umask(0o77)\n";
    fs::write(packages.join("sitecustomize.py"), odd).unwrap();
    let other = interpreter::with_packages(&folder.path().join("home"), &packages);
    let (output, trial) = prove(&other, &state);
    assert_eq!(output.status.code(), Some(1), "{trial:#} {}", said(&output));
    let first = trial["differs"][0].as_str().unwrap();
    assert!(
        first.starts_with("start.py: fork, rank 0: umask: 63 instead of"),
        "{first}"
    );
    assert!(kept().contains("umask"));
    let (output, _) = prove(Path::new("/no/such/python"), &state);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("/no/such/python not found"),
        "{}",
        said(&output)
    );
    let left: Vec<_> = fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["trials.json"]);
    assert_eq!(processes_of(folder.path()), []);
}

#[test]
fn a_node_proves_an_interpreter_that_it_has_met_while_it_is_idle() {
    let folder = tempfile::tempdir().unwrap();
    let packages = another_torch(folder.path());
    let python = interpreter::with_packages(&folder.path().join("home"), &packages);
    let script = folder.path().join("train.py");
    let go = folder.path().join("go");
    let waits = "import pathlib, sys, time, torch\nwhile not pathlib.Path(sys.argv[1]).exists():\n    time.sleep(0.05)\n";
    fs::write(&script, waits).unwrap();
    fs::write(&go, "").unwrap();
    let cluster = Cluster::up(1);
    let submit = |name: &str| {
        let spec = json!({
            "replicas": 1, "procPerNode": 1, "gpusPerNode": 0, "command": [python], "args": [script, go],
            "restartPolicy": {"maxRestarts": 0},
        });
        let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name}, "spec": spec});
        let file = cluster.path(&format!("{name}.json"));
        fs::write(&file, document.to_string()).unwrap();
        cluster.muster(["submit", "-f", file.to_str().unwrap()]);
    };
    let lane = |name: &str| {
        let over = |status: &Value| status["phase"] == "Succeeded" || status["phase"] == "Failed";
        let status = cluster.wait(name, "ended", over);
        assert_eq!(status["phase"], "Succeeded", "{status:#}");
        let member = &status["members"][0];
        (member["lane"].clone(), member["laneReason"].to_string())
    };
    let trying = || {
        let processes = processes_of(&cluster.dir);
        processes
            .iter()
            .any(|(_, line)| line.contains("--below-a-runner"))
    };
    submit("before");
    let (before, why) = lane("before");
    assert_ne!(before, "fork", "{why}");
    assert!(
        why.contains("no faster lane is proven for torch 2.99"),
        "{why}"
    );
    until(|| trying().then_some(())).expect("the node tries the interpreter once it is idle");
    // Work comes first, and the trial begins anew.
    fs::remove_file(&go).unwrap();
    submit("between");
    cluster.wait("between", "running", |status| status["phase"] == "Running");
    until(|| (!trying()).then_some(())).expect("the trial ends when work comes");
    let node = cluster.json(["get", "node", "node-1"]);
    assert_eq!(node["status"].get("trials"), None, "{node:#}");
    fs::write(&go, "").unwrap();
    lane("between");
    let trial = until(|| {
        let node = cluster.json(["get", "node", "node-1"]);
        let trial = node["status"]["trials"][0].clone();
        (!trial.is_null()).then_some(trial)
    });
    let trial = trial.expect("the node tries it again when it is idle");
    assert_eq!(
        (&trial["passed"], &trial["torch"]),
        (&json!(true), &json!(UNKNOWN)),
        "{trial:#}"
    );
    let shown = cluster.muster(["describe", "node", "node-1"]);
    assert!(shown.contains("proven by this node at 20"), "{shown}");
    submit("after");
    let (after, why) = lane("after");
    assert_eq!(after, "fork", "{why}");
    assert!(why.contains(", by this node on 20"), "{why}");
}
