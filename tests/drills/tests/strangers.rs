//! Another user of the same machine can do and see nothing of a local cluster.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
};

use muster_drills::{Cluster, program, python, until};
use serde_json::json;

const NOBODY: u32 = 65_534;
const SECRET: &str = "hunter2-of-the-drill";

#[test]
fn another_user_of_the_machine_can_neither_use_a_local_cluster_nor_read_its_files() {
    let cluster = Cluster::up(1);
    let server = cluster.json(["local", "status"])["server"]
        .as_str()
        .unwrap()
        .to_owned();
    let mark = cluster.path("mark");
    fs::write(&mark, "").unwrap();
    let job = |command: &str| {
        // The interpreter of torchrun is the first one on this path.
        let path = format!(
            "{}:/usr/bin:/bin",
            Path::new(&python()).parent().unwrap().display()
        );
        let env = json!([{"name": "TOKEN", "value": SECRET}, {"name": "PATH", "value": path}]);
        let spec = json!({"replicas": 1, "gpusPerNode": 0, "command": ["/bin/sh", "-c", command], "env": env});
        json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": "job"}, "spec": spec}).to_string()
    };
    let file = cluster.path("job.json");
    fs::write(&file, job("echo started; sleep 1000")).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
    // Until the rank has printed something there is no log, and `muster logs` says so.
    until(|| {
        let logs = cluster.try_muster(["logs", "job"]).stdout;
        String::from_utf8_lossy(&logs)
            .contains("started")
            .then_some(())
    })
    .expect("the job runs");

    let open = readable_by_others(&cluster.dir);
    assert!(open.is_empty(), "others may look into {open:?}");

    let shown = |args: &[&str]| cluster.muster(args).contains(SECRET);
    for args in [
        &["describe", "job", "job"][..],
        &["get", "job", "job", "-o", "yaml"],
        &["get", "jobs", "-o", "json"],
        &["explain", "job", "-o", "json"],
    ] {
        assert!(!shown(args), "{args:?} shows a value that may be a secret");
        assert!(
            shown(&[args, &["--show-env"]].concat()),
            "{args:?} cannot be made to show it"
        );
    }
    assert!(!shown(&["events", "-o", "json"]) && !shown(&["explain", "job", "--env"]));

    let Some(stranger) = Stranger::here() else {
        return;
    };
    for args in [
        &["get", "jobs"][..],
        &["nodes"],
        &["events"],
        &["cancel", "job"],
        &["delete", "job"],
        &["logs", "job"],
    ] {
        let output = stranger.muster(&server, args);
        stranger.is_refused(&output, args);
    }
    let theirs = stranger.folder.path().join("job.json");
    fs::write(
        &theirs,
        job(&format!(
            "touch {}",
            mark.with_extension("touched").display()
        ))
        .replace("\"job\"", "\"theirs\""),
    )
    .unwrap();
    let submit = ["submit", "-f", theirs.to_str().unwrap()];
    stranger.is_refused(&stranger.muster(&server, &submit), &submit);
    assert!(
        !cluster.muster(["get", "jobs"]).contains("theirs"),
        "a stranger's job was taken in"
    );
    assert!(!mark.with_extension("touched").exists());
    cluster.muster(["cancel", "job"]);
}

/// Files and folders of the cluster that other users may use, if they reach them.
fn readable_by_others(dir: &Path) -> Vec<PathBuf> {
    let mut open = Vec::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(path) = waiting.pop() {
        // Some files come and go.
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if !metadata.is_symlink() && metadata.mode() & 0o077 != 0 && !is_a_program(&path) {
            open.push(path.clone());
        }
        if metadata.is_dir() {
            waiting.extend(
                fs::read_dir(&path)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|entry| entry.path()),
            );
        }
    }
    open
}

/// A copy of the runner, or a link to it. It is in a closed folder, and it is no secret.
fn is_a_program(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name == "muster-shim" || name == "muster-ranks")
}

/// Another user with a command line of their own, because they may not be allowed to execute this
/// user's files.
struct Stranger {
    folder: tempfile::TempDir,
}

impl Stranger {
    /// `None`, with a clear message, if this is not root and cannot become another user.
    fn here() -> Option<Stranger> {
        if !rustix::process::geteuid().is_root() {
            eprintln!(
                "\n!!! NOT ROOT: that a local cluster refuses other users is NOT SHOWN, only that its files are closed.\n"
            );
            return None;
        }
        let folder = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        fs::copy(program("muster"), folder.path().join("muster")).unwrap();
        Some(Stranger { folder })
    }

    fn muster(&self, server: &str, args: &[&str]) -> Output {
        let mut command = Command::new(self.folder.path().join("muster"));
        command
            .args(args)
            .env_clear()
            .env("MUSTER_SERVER", server)
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY);
        command.output().unwrap()
    }

    fn is_refused(&self, output: &Output, args: &[&str]) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{args:?}: {said}");
        assert!(
            said.contains("this coordinator serves root only, and you are user 65534"),
            "{args:?}: {said}"
        );
        assert!(!String::from_utf8_lossy(&output.stdout).contains(SECRET));
    }
}
