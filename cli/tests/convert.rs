//! `muster convert`, and the same files by `submit` and `validate`: what goes where, and with which
//! exit code. The tests in `foreign/` show what each kind becomes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;

const JOB: &str = "\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: letters}
spec:
  pytorchReplicaSpecs:
    Master: &pods
      replicas: 1
      template:
        spec:
          containers:
          - name: pytorch
            image: letters:1
            command: [torchrun, --nproc_per_node=2, letters.py]
            workingDir: src
            volumeMounts: [{name: d, mountPath: /data}]
          volumes: [{name: d, emptyDir: {}}]
    Worker: *pods
";

const SCRIPT: &str = "\
#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=4
#SBATCH --time=10

head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)
cd src
srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_endpoint=$head:29500 train.py \"$SLURM_SUBMIT_DIR/data\"
";

struct Ended {
    code: i32,
    out: String,
    err: String,
}

fn muster(dir: &Path, words: &[&str]) -> Ended {
    let output = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(words)
        .current_dir(dir)
        .env_remove("MUSTER_NAMESPACE")
        .env("HOME", dir)
        .output()
        .unwrap();
    Ended {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

#[test]
fn the_job_goes_to_stdout_and_the_verdicts_to_stderr() {
    let dir = folder(&[("job.yaml", JOB)]);
    let here = fs::canonicalize(dir.path()).unwrap();
    let ended = muster(dir.path(), &["convert", "-f", "job.yaml"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(
        ended
            .out
            .starts_with("apiVersion: muster.dev/v1alpha1\nkind: MusterJob\n")
    );
    assert!(
        ended
            .out
            .contains(&format!("workingDir: {}/src\n", here.display())),
        "{}",
        ended.out
    );
    let lines: Vec<&str> = ended.err.lines().collect();
    assert_eq!(
        lines,
        [
            "job.yaml:12:20: warning: spec.pytorchReplicaSpecs.Master.template.spec.containers[0].image: is not used here: the nodes' own programs run",
            "job.yaml:16:21: warning: spec.pytorchReplicaSpecs.Master.template.spec.volumes[0]: is an empty directory there; here /data is the node's own, and must be there",
        ]
    );
    let all = muster(dir.path(), &["convert", "-v", "-f", "job.yaml"]);
    assert_eq!(all.out, ended.out);
    assert!(
        all.err
            .contains("job.yaml:3:18: taken: metadata.name: is metadata.name\n"),
        "{}",
        all.err
    );
    assert!(all.err.lines().count() > lines.len() + 5);
}

#[test]
fn what_is_printed_is_the_same_job() {
    let dir = folder(&[("job.yaml", JOB)]);
    for format in ["yaml", "json"] {
        let printed = muster(dir.path(), &["convert", "-f", "job.yaml", "-o", format]).out;
        fs::write(dir.path().join("again"), &printed).unwrap();
        let again = muster(dir.path(), &["convert", "-f", "again", "-o", format]);
        assert_eq!(
            (again.code, again.out, again.err),
            (0, printed, String::new())
        );
    }
    let name = muster(dir.path(), &["convert", "-f", "job.yaml", "-o", "name"]);
    assert_eq!(name.out, "job/letters\n");
    let submitted = muster(
        dir.path(),
        &["submit", "-f", "job.yaml", "--dry-run", "-o", "yaml"],
    );
    let converted = muster(dir.path(), &["convert", "-f", "job.yaml"]);
    assert_eq!(
        (submitted.out, submitted.err),
        (converted.out, converted.err)
    );
}

#[test]
fn several_jobs_are_several_documents() {
    let two = format!("{JOB}---\n{}", JOB.replace("letters}", "digits}"));
    let dir = folder(&[("jobs.yaml", &two)]);
    let yaml = muster(dir.path(), &["convert", "-f", "jobs.yaml"]).out;
    assert_eq!(yaml.matches("\n---\n").count(), 1);
    fs::write(dir.path().join("again.yaml"), &yaml).unwrap();
    let valid = muster(dir.path(), &["validate", "again.yaml", "jobs.yaml"]);
    assert_eq!(
        valid.out,
        "again.yaml: job/letters is valid\nagain.yaml: job/digits is valid\njobs.yaml: job/letters is valid\njobs.yaml: job/digits is valid\n"
    );
    let json = muster(dir.path(), &["convert", "-f", "jobs.yaml", "-o", "json"]).out;
    assert!(json.contains("\"kind\": \"List\""));
}

#[test]
fn a_file_that_would_mean_something_else_is_refused() {
    let bad = JOB
        .replace("--nproc_per_node=2, ", "")
        .replace("torchrun", "accelerate, launch");
    let dir = folder(&[("job.yaml", &bad), ("good.yaml", JOB)]);
    for command in ["convert", "submit", "validate"] {
        let ended = muster(dir.path(), &[command, "-f", "job.yaml"]);
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{command}");
        let refusal = "job.yaml:13:23: spec.pytorchReplicaSpecs.Master.template.spec.containers[0].command[0]: accelerate starts processes";
        assert!(ended.err.contains(refusal), "{command}: {}", ended.err);
        // The warnings are told as well, so that all of a file is repaired at once.
        assert!(ended.err.contains("job.yaml:12:20: warning:"), "{command}");
    }
    let strict = muster(dir.path(), &["convert", "--strict", "-f", "good.yaml"]);
    assert_eq!((strict.code, strict.out.as_str()), (2, ""));
    assert_eq!(strict.err.lines().count(), 2, "{}", strict.err);
}

#[test]
fn the_site_map_says_what_the_nodes_have() {
    let site = "images: {'letters:*': {python: /opt/python, command: [python, /opt/letters.py]}}\n";
    let image = JOB.replace(
        "            command: [torchrun, --nproc_per_node=2, letters.py]\n",
        "",
    );
    let dir = folder(&[
        ("job.yaml", &image),
        ("site.yaml", site),
        ("bad.yaml", "image: {}\n"),
    ]);
    let refused = muster(dir.path(), &["convert", "-f", "job.yaml"]);
    assert_eq!(refused.code, 2);
    assert!(
        refused
            .err
            .contains("name it with --command, or with `images` in the site map")
    );
    let mapped = muster(
        dir.path(),
        &["convert", "-f", "job.yaml", "--site", "site.yaml"],
    );
    assert!(
        mapped.out.contains("/opt/python\n"),
        "{}{}",
        mapped.out,
        mapped.err
    );
    let named = muster(
        dir.path(),
        &[
            "convert",
            "-f",
            "job.yaml",
            "--command",
            "python3 '/opt/a b.py'",
        ],
    );
    assert!(
        named.out.contains("/opt/a b.py\n"),
        "{}{}",
        named.out,
        named.err
    );
    let bad = muster(
        dir.path(),
        &["convert", "-f", "job.yaml", "--site", "bad.yaml"],
    );
    assert_eq!(bad.code, 2);
    assert_eq!(
        bad.err,
        "bad.yaml:1:1: image: unknown field; did you mean images?\n"
    );
    let bad = muster(
        dir.path(),
        &["convert", "-f", "job.yaml", "--command", "a | b"],
    );
    assert_eq!(bad.code, 2, "{}", bad.err);
}

#[test]
fn a_batch_script_is_known_by_its_lines_and_not_by_its_name() {
    let dir = folder(&[("Train_it.txt", SCRIPT)]);
    let here = fs::canonicalize(dir.path()).unwrap();
    let ended = muster(dir.path(), &["convert", "-f", "Train_it.txt"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let name = ended.out.lines().find(|line| line.starts_with("  name: "));
    let end = name.and_then(|name| name.strip_prefix("  name: train-it-"));
    assert_eq!(end.map(str::len), Some(5), "{}", ended.out);
    for part in [
        format!("workingDir: {}/src\n", here.display()),
        format!("- train.py\n  - {}/data\n", here.display()),
        "replicas: 2\n  procPerNode: 4\n  gpusPerNode: 4\n".to_owned(),
    ] {
        assert!(ended.out.contains(&part), "{part}: {}", ended.out);
    }
    let warnings: Vec<&str> = ended.err.lines().collect();
    assert_eq!(warnings.len(), 1, "{}", ended.err);
    assert!(warnings[0].starts_with("Train_it.txt:3:1: warning: --time: "));

    // Each submission is another job.
    let dry = ["submit", "-f", "Train_it.txt", "--dry-run"];
    let (one, two) = (muster(dir.path(), &dry), muster(dir.path(), &dry));
    assert!(one.code == 0 && two.code == 0, "{}", one.err);
    assert_ne!(one.out, two.out);

    let pods = muster(dir.path(), &["convert", "-f", "Train_it.txt", "--pods"]);
    assert_eq!(pods.code, 2);
    assert!(
        pods.err.contains("has no pods that could be kept"),
        "{}",
        pods.err
    );
}

#[test]
fn a_batch_script_that_means_something_else_is_refused_with_its_lines() {
    let script = SCRIPT.replace("cd src", "wait $(jobs -p); cp -r a b");
    let script = script.replace("--time=10", "--array=1-3");
    let dir = folder(&[("job.sbatch", &script)]);
    let ended = muster(dir.path(), &["submit", "-f", "job.sbatch", "--dry-run"]);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""));
    let lines: Vec<&str> = ended.err.lines().collect();
    assert_eq!(lines.len(), 2, "{}", ended.err);
    assert!(
        lines[0].starts_with("job.sbatch:3:1: --array: makes many jobs"),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].starts_with("job.sbatch:6:18: cp: runs once in Slurm"),
        "{}",
        lines[1]
    );
    assert!(lines[1].contains("muster run --slurm"), "{}", lines[1]);
}
