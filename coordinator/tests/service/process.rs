//! The program itself: its flags and errors, its ready file, its end, and the state after a `kill
//! -9`.

use std::{
    fs,
    io::Read,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use muster_proto::v1::{self, job_service_client::JobServiceClient};
use muster_rpc::{Channel, dial, dial::Options};
use rustix::process::{Pid, Signal, kill_process};

use crate::server::{PATIENCE, reference, spec, within};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_muster-coordinator");

pub(crate) fn program(state: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MUSTER_")) {
        command.env_remove(name);
    }
    command
        .args(["--listen", "127.0.0.1:0", "--state-dir"])
        .arg(state)
        .stdin(Stdio::null());
    command
}

/// A coordinator process that is killed when the test is over.
pub(crate) struct Running {
    child: Child,
    pub(crate) endpoint: String,
    ready: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    async fn start(directory: &Path) -> Self {
        Self::start_with(directory, |_| {}).await
    }

    pub(crate) async fn start_with(directory: &Path, with: impl FnOnce(&mut Command)) -> Self {
        let ready = directory.join("ready.json");
        let mut command = program(&directory.join("state"));
        with(command.stderr(Stdio::null()));
        let child = command.arg("--ready-file").arg(&ready).spawn().unwrap();
        let content = within(async {
            let mut look = tokio::time::interval(Duration::from_millis(10));
            loop {
                look.tick().await;
                // The file of an earlier process must not be taken for this one's.
                if let Ok(content) = fs::read_to_string(&ready)
                    && content.contains(&format!("\"pid\":{}", child.id()))
                {
                    return content;
                }
            }
        })
        .await;
        let ready_state: serde_json::Value = serde_json::from_str(&content).unwrap();
        Self {
            child,
            endpoint: ready_state["endpoint"].as_str().unwrap().to_owned(),
            ready,
        }
    }

    pub(crate) async fn jobs(&self) -> JobServiceClient<Channel> {
        let address = self.endpoint.parse().unwrap();
        let clients = dial(&address, Options::default()).await.unwrap();
        clients.jobs()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

pub(crate) fn refused(mut command: Command) -> String {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE, "a start that must fail goes on");
        std::thread::yield_now();
    }
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert!(!status.success());
    let text = String::from_utf8(stderr).unwrap();
    assert!(!text.contains("panicked"), "{text}");
    text.lines()
        .filter(|line| !line.contains(" INFO "))
        .collect::<Vec<_>>()
        .join("\n")
}

#[tokio::test]
async fn accepted_jobs_survive_kill_9_at_any_moment() {
    let directory = tempfile::tempdir().unwrap();
    let mut accepted: Vec<String> = Vec::new();
    for round in 0..3 {
        let mut running = Running::start(directory.path()).await;
        let mut jobs = running.jobs().await;
        for name in &accepted {
            jobs.get(v1::GetJobRequest {
                r#ref: Some(reference(name)),
            })
            .await
            .unwrap();
        }
        // Killed while it answers requests: every acknowledged job must be there, and the last one
        // may be there.
        let pid = Pid::from_child(&running.child);
        for number in 0.. {
            let name = format!("job-{round}-{number}");
            let request = v1::SubmitRequest {
                r#ref: Some(reference(&name)),
                spec: Some(spec(1)),
                ..Default::default()
            };
            let killer = (number == 5 + round)
                .then(|| std::thread::spawn(move || kill_process(pid, Signal::KILL).unwrap()));
            let submitted = within(jobs.submit(request)).await;
            if let Some(killer) = killer {
                killer.join().unwrap();
                if submitted.is_ok() {
                    accepted.push(name);
                }
                break;
            }
            submitted.unwrap();
            accepted.push(name);
        }
        running.child.wait().unwrap();
    }
    let running = Running::start(directory.path()).await;
    let listed = running
        .jobs()
        .await
        .list(v1::ListJobsRequest::default())
        .await
        .unwrap()
        .into_inner()
        .jobs;
    let names: Vec<String> = listed
        .into_iter()
        .map(|job| job.r#ref.unwrap().name)
        .collect();
    for name in &accepted {
        assert!(names.contains(name), "{name} was accepted and is lost");
    }
    assert!(
        names.len() <= accepted.len() + 3,
        "at most one unanswered job a round"
    );
}

#[tokio::test]
async fn sigterm_ends_it_gracefully_with_streams_open() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = Running::start(directory.path()).await;
    let mut watch = running
        .jobs()
        .await
        .watch(v1::WatchJobsRequest::default())
        .await
        .unwrap()
        .into_inner();
    running.signal(Signal::TERM);
    let ended = within(watch.message()).await.unwrap_err();
    assert_eq!(ended.message(), "the coordinator is shutting down");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = running.child.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < PATIENCE);
        tokio::task::yield_now().await;
    };
    assert!(status.success(), "{status}");
    assert!(
        !running.ready.exists(),
        "a ready file says that somebody serves"
    );
}

/// The coordinator could not read what another user writes, so a denial would not hold.
#[test]
fn a_command_writes_only_as_the_user_whose_directory_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let init = |name: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["init", "--name", name, "--state-dir"]);
        command.arg(&state).output().unwrap()
    };
    assert!(init("a.example").status.success());
    if muster_rpc::peer::own_user() != 0 {
        // Only root can give a directory away.
        return;
    }
    std::os::unix::fs::chown(&state, Some(65_534), None).unwrap();
    let refused = init("b.example");
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(
        why.contains("belongs to user 65534, and you are user 0"),
        "{why}"
    );
}

#[test]
fn says_what_is_wrong_with_how_it_was_started() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let with = |flags: &[&str]| {
        let mut command = program(&state);
        command.args(flags);
        command
    };
    assert_eq!(
        refused(with(&["--listen", "0.0.0.0:0"])),
        "error: the argument '--listen <ADDR>' cannot be used multiple times\n\nUsage: muster-coordinator [OPTIONS] --state-dir <DIR>\n\n\
         For more information, try '--help'."
    );
    let listen = |address: &str| {
        let mut command = Command::new(PROGRAM);
        command
            .env_remove("MUSTER_LISTEN")
            .args(["--listen", address, "--state-dir"])
            .arg(&state);
        refused(command)
    };
    assert_eq!(
        listen("0.0.0.0:0"),
        "muster-coordinator: --listen: 0.0.0.0:0 can be reached from other machines, and there is no TLS; run `muster-coordinator init` \
         first, or use a loopback address, as 127.0.0.1:0"
    );
    assert!(listen("example.org:1").starts_with(
        "error: invalid value 'example.org:1' for '--listen <ADDR>': \"example.org:1\" is not an IP address and a port; write for example \
         127.0.0.1:7070 or [::1]:7070"
    ));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    assert_eq!(
        listen(&address.to_string()),
        format!(
            "muster-coordinator: --listen: port {} of 127.0.0.1 is in use; stop what uses it or take another port",
            address.port()
        )
    );
    assert!(
        !state.exists(),
        "a start that cannot listen leaves no trace"
    );
    assert!(
        refused(with(&["--heartbeat", "1h"]))
            .starts_with("error: --heartbeat: is 1h, must be between 10ms and 1m")
    );
    assert!(
        refused(with(&["--heartbeat", "soon"]))
            .contains("\"soon\" is not a period; write for example 500ms, 10s, 1m30s or 2h")
    );
    assert!(
        refused(with(&["--log-filter", "x=loud"]))
            .starts_with("muster-coordinator: log filter \"x=loud\" is not a list like")
    );

    let file = directory.path().join("file");
    fs::write(&file, "x").unwrap();
    assert_eq!(
        refused(program(&file)),
        format!(
            "muster-coordinator: state directory {} cannot be used: not a directory",
            file.display()
        )
    );
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("muster.redb"), "garbage").unwrap();
    let damaged = refused(program(&state));
    assert!(
        damaged.starts_with(&format!(
            "muster-coordinator: store file {}/muster.redb is damaged: ",
            state.display()
        )),
        "{damaged}"
    );
    assert!(
        damaged.ends_with("move it away and start with no jobs, which leaves running workers alone but forgets them"),
        "{damaged}"
    );
}

#[tokio::test]
async fn a_second_one_on_the_same_state_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::start(directory.path()).await;
    let state = directory.path().join("state");
    let text = tokio::task::spawn_blocking({
        let state = state.clone();
        move || refused(program(&state))
    })
    .await
    .unwrap();
    assert_eq!(
        text,
        format!(
            "muster-coordinator: state directory {} is in use by another coordinator (pid {}); two must never share one",
            state.display(),
            running.child.id()
        )
    );
    running
        .jobs()
        .await
        .list(v1::ListJobsRequest::default())
        .await
        .unwrap();
}

#[test]
fn says_its_version_and_its_flags() {
    let output = Command::new(PROGRAM).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("muster-coordinator 0.1.0 (commit ") && text.ends_with(")\n"),
        "{text}"
    );
    let help =
        String::from_utf8(Command::new(PROGRAM).arg("--help").output().unwrap().stdout).unwrap();
    for flag in [
        "--kubernetes-nodes",
        "--listen",
        "--state-dir",
        "--ready-file",
        "--min-term",
        "--heartbeat",
        "--lost-missed",
        "MUSTER_STATE_DIR",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
}

/// The manifests have the definition of MusterJob objects as this program prints it.
#[test]
fn the_definition_of_objects_is_in_the_manifests() {
    let output = Command::new(PROGRAM).arg("crd").output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/base/crd.yaml");
    if std::env::var_os("MUSTER_BLESS").is_some() {
        fs::write(file, &printed).unwrap();
    }
    let there = fs::read_to_string(file).unwrap_or_default();
    assert!(
        printed == there,
        "manifests/base/crd.yaml is not what `muster-coordinator crd` prints; MUSTER_BLESS=1 writes it"
    );
}

#[test]
fn json_logs_are_json() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("muster.redb"), "garbage").unwrap();
    let mut child = program(directory.path())
        .args(["--log-format", "json"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    child.wait().unwrap();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(
        (first["level"].as_str(), first["message"].as_str()),
        (Some("INFO"), Some("starting"))
    );
}

/// Behaves like a disk without space.
#[tokio::test]
async fn a_log_that_takes_nothing_ends_no_coordinator() {
    let directory = tempfile::tempdir().unwrap();
    let full = fs::File::options().append(true).open("/dev/full").unwrap();
    let running = Running::start_with(directory.path(), |command| {
        command.stderr(full);
    })
    .await;
    let mut jobs = running.jobs().await;
    // An event, which is logged.
    let request = v1::SubmitRequest {
        r#ref: Some(reference("one")),
        spec: Some(spec(1)),
        ..Default::default()
    };
    within(jobs.submit(request)).await.unwrap();
    within(jobs.get(v1::GetJobRequest {
        r#ref: Some(reference("one")),
    }))
    .await
    .unwrap();
}

#[tokio::test]
async fn a_service_manager_hears_that_it_serves_lives_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("notify");
    let manager = tokio::net::UnixDatagram::bind(&socket).unwrap();
    let running = Running::start_with(directory.path(), |command| {
        command.env("NOTIFY_SOCKET", &socket);
        command.env("WATCHDOG_USEC", "300000");
    })
    .await;
    let next = async || {
        let mut message = [0; 64];
        let length = within(manager.recv(&mut message)).await.unwrap();
        String::from_utf8_lossy(&message[..length])
            .trim()
            .to_owned()
    };
    assert_eq!(next().await, "READY=1");
    assert_eq!(next().await, "WATCHDOG=1");
    assert_eq!(next().await, "WATCHDOG=1");
    running.signal(Signal::TERM);
    while next().await != "STOPPING=1" {}
}
