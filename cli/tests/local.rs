//! A local cluster of the real programs: started parts are there, killed parts are dead, and
//! nothing is left behind.
//!
//! The tests look for the daemons in `MUSTER_BIN_DIR`, else beside `muster`. Build the whole
//! workspace first.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

struct Local {
    dir: tempfile::TempDir,
}

impl Local {
    /// A directory for a cluster that is not started yet.
    fn new() -> Local {
        Local {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn up(nodes: u32) -> Local {
        let local = Local::new();
        local.ok(&["local", "up", "--nodes", &nodes.to_string()]);
        local
    }

    fn d(&self) -> PathBuf {
        self.dir.path().join("d")
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let bin_dir = std::env::var_os("MUSTER_BIN_DIR");
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MUSTER_")) {
            command.env_remove(name);
        }
        if let Some(bin_dir) = bin_dir {
            command.env("MUSTER_BIN_DIR", bin_dir);
        }
        // These tests are not about a restarted coordinator that has heard nobody yet.
        command
            .env("MUSTER_LOCAL_DIR", self.d())
            .args(args)
            .stdin(Stdio::null());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().expect("ended by itself"),
            text(output.stdout),
            text(output.stderr),
        )
    }

    fn ok(&self, args: &[&str]) -> String {
        let (code, out, error) = self.run(args);
        assert_eq!(code, 0, "{args:?}: {out}{error}");
        out
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["-o", "json"]].concat())).unwrap()
    }

    /// The daemon's row of `local status`.
    fn part(&self, name: &str) -> Value {
        let status = self.json(&["local", "status"]);
        let part = status["parts"]
            .as_array()
            .unwrap()
            .iter()
            .find(|part| part["name"] == name);
        part.unwrap_or_else(|| panic!("{name} in {status}")).clone()
    }

    fn pid(&self, name: &str) -> i64 {
        self.part(name)["pid"]
            .as_i64()
            .unwrap_or_else(|| panic!("{name} runs"))
    }

    /// Waits for a state. The slowest is the loss of a node, which takes 5 s.
    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(
                begun.elapsed() < Duration::from_secs(180),
                "{what} does not come true: {:?}",
                self.run(&["local", "status"])
            );
            std::thread::yield_now();
        }
    }

    fn state(&self, node: &str) -> String {
        self.json(&["get", "node", node])["status"]["state"]
            .as_str()
            .unwrap()
            .to_owned()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let (code, out, error) = self.run(&["local", "down", "--grace", "0s"]);
        if !std::thread::panicking() {
            assert_eq!(code, 0, "{out}{error}");
        }
    }
}

/// Living processes that name this directory in their command line or environment.
fn processes_of(dir: &Path) -> BTreeSet<i32> {
    let needle = dir.as_os_str().as_encoded_bytes();
    let names_it = |pid: i32| {
        ["cmdline", "environ"].iter().any(|file| {
            let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            text.windows(needle.len()).any(|window| window == needle)
        })
    };
    let pids = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // The tests' own `muster` children have ended by now.
    pids.filter(|pid| *pid != std::process::id() as i32 && names_it(*pid))
        .collect()
}

fn address(server: &str) -> SocketAddr {
    server.trim_start_matches("http://").parse().unwrap()
}

#[test]
fn up_add_and_down() {
    let local = Local::up(2);
    let status = local.json(&["local", "status"]);
    let names: Vec<&str> = status["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["coordinator", "node-1", "node-2"]);
    assert_eq!(processes_of(&local.d()).len(), 3);

    // Other commands find the cluster without a flag.
    assert_eq!(
        local.ok(&["nodes", "-o", "name"]),
        "node/node-1\nnode/node-2\n"
    );

    let (code, _, error) = local.run(&["local", "up"]);
    assert_eq!(code, 1);
    assert!(
        error.contains("is up already in")
            && error.contains("(3 processes)")
            && error.contains("`muster local down` stops it"),
        "{error}"
    );

    assert_eq!(local.ok(&["local", "add-node"]), "node-3 ready\n");
    assert_eq!(
        local.ok(&[
            "local", "add-node", "spare", "--label", "rack=b", "--slots", "2"
        ]),
        "spare ready\n"
    );
    let spare = local.json(&["get", "node", "spare"]);
    assert_eq!(
        (
            &spare["metadata"]["labels"]["rack"],
            &spare["status"]["slots"]
        ),
        (&"b".into(), &2.into())
    );
    let (code, _, error) = local.run(&["local", "add-node", "spare"]);
    assert_eq!(
        (code, error.as_str()),
        (
            1,
            "error: spare exists already; `muster local start-node spare` starts it again\n"
        )
    );
    let (code, _, error) = local.run(&["local", "add-node", "Bad"]);
    assert_eq!(code, 2, "{error}");

    let server = status["server"].as_str().unwrap();
    TcpStream::connect(address(server)).unwrap();
    assert_eq!(local.ok(&["local", "down"]), "local cluster down\n");
    assert_eq!(processes_of(&local.d()), BTreeSet::new());
    assert!(
        TcpStream::connect(address(server)).is_err(),
        "nobody listens any more"
    );
    assert!(!local.d().exists(), "the directory is gone");
}

#[test]
fn daemons_outlive_the_terminal_in_sessions_of_their_own() {
    let local = Local::up(1);
    for part in ["coordinator", "node-1"] {
        let pid = local.pid(part);
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let session: i64 = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .nth(3)
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(session, pid, "{part} leads its session");
        for fd in 0..3 {
            let target = fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
            let expected = if fd == 0 { "/dev/null" } else { "/log" };
            assert!(
                target.to_string_lossy().ends_with(expected),
                "{part} has {target:?} as {fd}"
            );
        }
    }
}

#[test]
fn a_killed_agent_comes_back_with_the_same_node() {
    let local = Local::up(2);
    let (agent, coordinator) = (local.pid("node-1"), local.pid("coordinator"));
    assert_eq!(
        local.ok(&["local", "kill-agent", "node-1"]),
        "agent of node-1 killed\n"
    );
    assert_eq!(local.part("node-1")["process"], "Dead");
    local.until("node-1 is missed", || local.state("node-1") != "Ready");
    assert_eq!(
        local.run(&["local", "kill-agent", "node-1"]).2,
        "error: agent of node-1: is not running\n"
    );
    assert_eq!(
        local.ok(&["local", "start-agent", "node-1"]),
        "node-1 ready\n"
    );
    assert_ne!(local.pid("node-1"), agent);
    assert_eq!(
        local.run(&["local", "start-agent", "node-1"]).2,
        "error: the agent of node-1 is running already\n"
    );
    assert_eq!(
        local.pid("coordinator"),
        coordinator,
        "nobody else was touched"
    );
    let (code, _, error) = local.run(&["local", "kill-agent", "node-9"]);
    assert_eq!(
        (code, error.as_str()),
        (
            1,
            "error: no node \"node-9\" in this cluster; there are: node-1, node-2\n"
        )
    );
}

#[test]
fn a_killed_coordinator_comes_back_on_its_port() {
    let local = Local::up(2);
    let server = local.json(&["local", "status"])["server"].clone();
    let agents = [local.pid("node-1"), local.pid("node-2")];
    local.ok(&["local", "kill-coordinator"]);
    let (code, _, error) = local.run(&["nodes"]);
    assert_eq!(code, 5);
    assert!(
        error.contains(&format!(
            "cannot reach the coordinator at {}",
            server.as_str().unwrap()
        )),
        "the local one is meant: {error}"
    );
    assert_eq!(local.part("coordinator")["state"], "Unreachable");
    local.ok(&["local", "start-coordinator"]);
    assert_eq!(local.json(&["local", "status"])["server"], server);
    local.until("all nodes are back", || {
        ["node-1", "node-2"]
            .iter()
            .all(|node| local.state(node) == "Ready")
    });
    assert_eq!([local.pid("node-1"), local.pid("node-2")], agents);
}

#[test]
fn a_node_without_power_has_no_process_and_can_be_started_again() {
    let local = Local::up(2);
    let home = local.d().join("nodes/node-2");
    assert_eq!(
        local.ok(&["local", "kill-node", "node-2"]),
        "node-2 killed (1 process)\n"
    );
    assert_eq!(processes_of(&home), BTreeSet::new());
    assert_eq!(
        local.run(&["local", "kill-node", "node-2"]).2,
        "error: node-2 is dead already: no process of it lives\n"
    );
    local.until("node-2 is lost", || local.state("node-2") == "Lost");
    assert_eq!(
        local.ok(&["local", "start-node", "node-2"]),
        "node-2 ready\n"
    );
}

#[test]
fn what_a_dead_cluster_left_is_recognised_and_used_again() {
    let local = Local::up(2);
    for pid in processes_of(&local.d()) {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    local.until("all are dead", || processes_of(&local.d()).is_empty());
    let (code, _, error) = local.run(&["local", "status"]);
    assert_eq!(code, 1);
    assert!(
        error.contains("is down; `muster local up` starts it again"),
        "{error}"
    );
    let (code, _, error) = local.run(&["local", "up", "--nodes", "2"]);
    assert_eq!(code, 0, "{error}");
    assert!(
        error.contains("is not running any more; starting it again with its state"),
        "{error}"
    );
}

#[test]
fn the_audit_trail_says_who_did_what() {
    let local = Local::up(1);
    local.ok(&["cordon", "node-1"]);
    assert_eq!(local.run(&["cancel", "nothing"]).0, 1);
    let trail = || local.json(&["events", "--audit", "--since", "1h"])["items"].clone();
    let done = |what: &str| {
        let items = trail();
        let mut items = items.as_array().unwrap().iter();
        items.find(|entry| entry["what"] == what).cloned()
    };
    local.until("the trail is written", || done("cancel").is_some());
    let (cordoned, cancelled) = (done("cordon").unwrap(), done("cancel").unwrap());
    assert_eq!(
        (&cordoned["object"], &cordoned["result"]),
        (&"node/node-1".into(), &"Allowed".into())
    );
    assert_eq!(
        (&cancelled["object"], &cancelled["code"]),
        (&"job/default/nothing".into(), &"NotFound".into())
    );
    let (code, table, said) = local.run(&["events", "--audit", "--limit", "1"]);
    assert_eq!((code, table.lines().count()), (0, 2), "{table}");
    assert!(table.starts_with("AGE "), "{table}");
    assert!(said.contains("Only the newest 1 entries"), "{said}");
}

#[test]
fn a_reused_pid_is_not_taken_for_a_daemon() {
    let local = Local::up(1);
    let record = local.d().join("cluster.json");
    let mut cluster: Value = serde_json::from_str(&fs::read_to_string(&record).unwrap()).unwrap();
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    cluster["coordinator"]["pid"] = stranger.id().into();
    cluster.as_object_mut().unwrap().remove("sum");
    fs::write(
        &record,
        muster_sealed::seal(cluster.to_string().into_bytes()),
    )
    .unwrap();
    assert_eq!(local.part("coordinator")["process"], "Dead");
    assert_eq!(
        local.ok(&["local", "down"]),
        "local cluster down\n",
        "the real one is found by its mark"
    );
    assert_eq!(stranger.try_wait().unwrap(), None, "a stranger lives on");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn kept_state_is_carried_on_with() {
    let local = Local::up(1);
    local.ok(&["cordon", "node-1", "--reason", "fan"]);
    local.ok(&["local", "down", "--keep"]);
    assert_eq!(processes_of(&local.d()), BTreeSet::new());
    assert!(local.d().join("nodes/node-1/log").exists());
    local.ok(&["local", "up", "--nodes", "1"]);
    assert_eq!(
        local.json(&["get", "node", "node-1"])["spec"]["cordon"]["reason"],
        "fan"
    );
}

#[test]
fn a_daemon_that_cannot_start_says_why_and_nothing_stays() {
    let local = Local::new();
    let bin = local.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for name in ["muster-coordinator", "muster-agent", "muster-runner"] {
        use std::os::unix::fs::PermissionsExt;
        fs::write(
            bin.join(name),
            "#!/bin/sh\necho 'no disk left' >&2\nexit 7\n",
        )
        .unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let (code, _, error) = local.run(&["local", "up", "--bin-dir", bin.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(
        error.contains("coordinator ended at once (exit status: 7); the end of")
            && error.ends_with(":\n  no disk left\n"),
        "{error}"
    );
    assert_eq!(processes_of(&local.d()), BTreeSet::new());
}
