//! The example of the gRPC API (`examples/api/client.py`) as docs/api.md says to run it: stubs made
//! from the .proto files, a job that fails once, its logs and its incidents. On a plain local
//! cluster, on one with TLS, and as a user who has logged in.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use muster_drills::{Cluster, program, python, until};
use serde_json::Value;

fn root() -> &'static Path {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_folder.ancestors().nth(2).unwrap()
}

/// Runs a command to its end, and returns what it prints to stdout.
fn said(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {why}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What a client of the API needs: an interpreter with grpcio, and the stubs.
struct Client {
    python: String,
    stubs: PathBuf,
}

impl Client {
    fn make(cluster: &Cluster) -> Self {
        let requirements = root().join("examples/api/requirements.txt");
        let python = said(
            Command::new(root().join("tools/python-env"))
                .arg("--requirements")
                .arg(requirements),
        );
        let stubs = cluster.path("stubs");
        fs::create_dir(&stubs).unwrap();
        let protos = fs::read_dir(root().join("proto/muster/v1")).unwrap();
        let protos = protos.map(|entry| entry.unwrap().path());
        said(
            Command::new(&python)
                .current_dir(root())
                .args(["-m", "grpc_tools.protoc", "-I", "proto"])
                .arg(format!("--python_out={}", stubs.display()))
                .arg(format!("--grpc_python_out={}", stubs.display()))
                .args(protos.map(|path| path.strip_prefix(root()).unwrap().to_owned())),
        );
        Self { python, stubs }
    }

    /// Submits `fails_once.py` under this name. Returns whether the client was content, and what it
    /// has printed.
    fn run(&self, cluster: &Cluster, name: &str, flags: &[&str]) -> (bool, String) {
        let path = cluster.path(&format!("{name}.out"));
        let out = fs::File::create(&path).unwrap();
        let mut client = Running(
            Command::new(&self.python)
                .current_dir(root())
                .arg("examples/api/client.py")
                .args(flags)
                .args(["--name", name, "--python", &python()])
                .arg("examples/api/fails_once.py")
                .env("PYTHONPATH", &self.stubs)
                .env("MUSTER_LOCAL_DIR", &cluster.dir)
                .env("MUSTER_CONFIG", cluster.path("config.yaml"))
                .stdin(Stdio::null())
                .stdout(out.try_clone().unwrap())
                .stderr(out)
                .spawn()
                .unwrap(),
        );
        let ended = until(|| client.0.try_wait().unwrap());
        let text = fs::read_to_string(path).unwrap();
        let ended = ended.unwrap_or_else(|| panic!("the client does not end: {text}"));
        (ended.success(), text)
    }
}

/// Never outlives the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// Checks the whole story of the job that fails once.
fn expect_story((content, text): (bool, String), who: &str, job: &str) {
    assert!(content, "{text}");
    let has = |line: &dyn Fn(&str) -> bool| text.lines().any(line);
    let begins = [
        who.to_owned(),
        format!("submitted {job}, uid "),
        "Succeeded: ".to_owned(),
        "generation 1 rank 0 | step=3 loss=0.333".to_owned(),
        "generation 1 rank 0 | ValueError: asked to fail once".to_owned(),
        "generation 2 rank 0 | step=3 loss=0.333".to_owned(),
        "generation 2 rank 0 | done after 1 restart".to_owned(),
        "incident FirstStart: ".to_owned(),
    ];
    for begin in begins {
        assert!(has(&|line| line.starts_with(&begin)), "{begin:?}: {text}");
    }
    let incident = |line: &str| {
        line.starts_with("incident WorkerFailed: rank 0 on ")
            && line.contains("ValueError: asked to fail once; charged to job; ")
            && line.ends_with(" s in all")
    };
    assert!(has(&incident), "the failure and its cost: {text}");
    assert!(!text.contains("generation 3"), "{text}");
}

#[test]
fn the_python_client_tells_the_story_of_a_job_that_fails_once() {
    let cluster = Cluster::up(1);
    let client = Client::make(&cluster);
    expect_story(
        client.run(&cluster, "story", &[]),
        "connected as ",
        "default/story",
    );
    let (content, text) = client.run(&cluster, "story", &[]);
    assert!(!content, "{text}");
    assert!(
        text.contains("FAILED_PRECONDITION: ") && !text.contains("Traceback"),
        "a job of that name is over: {text}"
    );
}

#[test]
fn the_python_client_speaks_tls_with_the_file_that_login_has_written() {
    let cluster = Cluster::up_with(1, &["--tls"], &[]);
    let client = Client::make(&cluster);
    let who = "connected as user/local, role admin";
    expect_story(client.run(&cluster, "local", &[]), who, "default/local");

    let state = cluster.dir.join("coordinator/state");
    let admin = |args: &[&str]| {
        let mut command = Command::new(program("muster-coordinator"));
        said(command.args(args).arg("--state-dir").arg(&state))
    };
    let ann = ["--user", "ann", "--role", "submitter", "--namespace", "a"];
    let token = admin(&[&["token", "create"], &ann[..]].concat());
    let record = fs::read(cluster.dir.join("cluster.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    said(
        Command::new(program("muster"))
            .args(["login", record["server"].as_str().unwrap()])
            .args(["--ca-pin", &admin(&["pin"]), "--as-context", "site"])
            .env("MUSTER_TOKEN", token)
            .env("MUSTER_CONFIG", cluster.path("config.yaml")),
    );
    let who = "connected as user/ann, role submitter";
    let flags = ["--context", "site", "-n", "a"];
    expect_story(client.run(&cluster, "remote", &flags), who, "a/remote");
    let (content, text) = client.run(&cluster, "elsewhere", &flags[..2]);
    assert!(!content, "{text}");
    assert!(
        text.contains("PERMISSION_DENIED: ") && text.contains("no role in namespace \"default\""),
        "{text}"
    );
}
