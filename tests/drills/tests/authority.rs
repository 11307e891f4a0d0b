//! The certificate authority changes, and certificates expire, under a job that trains. No worker
//! notices.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use muster_drills::{Cluster, last_step, nodes, pids, program, until};
use serde_json::Value;

const LONG: [&str; 4] = ["--steps", "100000", "--delay-ms", "50"];

/// The admin of a cluster, on the coordinator's machine.
struct Admin<'a>(&'a Cluster);

impl Admin<'_> {
    fn try_say(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("muster-coordinator"));
        command
            .args(args)
            .arg("--state-dir")
            .arg(self.0.dir.join("coordinator/state"));
        command.stdin(Stdio::null()).output().unwrap()
    }

    fn say(&self, args: &[&str]) -> String {
        let output = self.try_say(args);
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {why}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Says why it refuses.
    fn refused(&self, args: &[&str]) -> String {
        let output = self.try_say(args);
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn needs_old(&self) -> BTreeSet<String> {
        let status: Value =
            serde_json::from_str(&self.say(&["authority", "status", "-o", "json"])).unwrap();
        let left = status["needsOld"].as_array().unwrap().iter();
        left.map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    }

    fn server(&self) -> String {
        let record = fs::read(self.0.dir.join("cluster.json")).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        record["server"].as_str().unwrap().to_owned()
    }

    /// Joins as this node, without an agent. Returns what was written.
    fn join(&self, pin: &str, token: &str, node: &str, state: PathBuf) -> Result<Value, String> {
        let mut join = Command::new(program("muster-agent"));
        join.args(["join", &self.server(), "--ca-pin", pin])
            .args(["--node-name", node, "--state-dir"])
            .arg(&state)
            .env("MUSTER_TOKEN", token);
        let output = join.stdin(Stdio::null()).output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8(output.stderr).unwrap());
        }
        let text = fs::read(state.join("identity/credentials.json")).unwrap();
        Ok(serde_json::from_slice(&text).unwrap())
    }
}

fn node_dir(cluster: &Cluster, node: &str) -> PathBuf {
    cluster.dir.join("nodes").join(node)
}

/// What the node's agent shows.
fn credentials(cluster: &Cluster, node: &str) -> Value {
    let path = node_dir(cluster, node).join("state/identity/credentials.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// How many authorities these credentials trust.
fn trusted(credentials: &Value) -> usize {
    let authorities = credentials["authorities"].as_str().unwrap();
    authorities.matches("BEGIN CERTIFICATE").count()
}

fn not_after_us(credentials: &Value) -> u64 {
    credentials["notAfterUs"].as_u64().unwrap()
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap()
}

fn log(cluster: &Cluster, node: &str) -> String {
    fs::read_to_string(node_dir(cluster, node).join("log")).unwrap()
}

/// The job trains on, with the same workers.
fn trains_on(cluster: &Cluster, before: &Value) {
    let at = last_step(&cluster.status("job").unwrap());
    let after = cluster.wait("job", "training on", |status| {
        status["nodesRunning"] == 2 && last_step(status) > at + 3
    });
    assert_eq!(
        (&after["generation"], pids(&after)),
        (&before["generation"], pids(before)),
        "the same workers"
    );
}

#[test]
fn the_authority_is_replaced_under_a_job_and_nobody_notices() {
    let cluster = Cluster::up_with(2, &["--tls"], &[]);
    let admin = Admin(&cluster);
    let ann = ["token", "create", "--user", "ann", "--role", "viewer", "-A"];
    let old_pin = admin.say(&["pin"]);
    let token = admin.say(&ann);
    let server = admin.server();
    let as_ann = |args: &[&str]| {
        let mut command = Command::new(program("muster"));
        command
            .args(args)
            .env("MUSTER_CONFIG", cluster.path("ann.yaml"))
            .env("MUSTER_TOKEN", &token)
            .env_remove("MUSTER_SERVER");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {why}");
        String::from_utf8(output.stdout).unwrap()
    };
    as_ann(&["login", &server, "--ca-pin", &old_pin]);
    let early = admin.say(&["token", "create", "--host", "early"]);
    let late = admin.say(&["token", "create", "--host", "late"]);
    cluster.train("job", "2", &LONG);
    let before = cluster.trains("job", 1, 2);
    let why = admin.refused(&["authority", "finish"]);
    assert!(
        why.contains("no change of the authority is under way"),
        "{why}"
    );

    admin.say(&["authority", "rotate"]);
    let why = admin.refused(&["authority", "rotate"]);
    assert!(why.contains("is under way already"), "{why}");
    assert!(admin.needs_old().contains("user/ann"));
    // The commands of a user go on, and the first one gets the user a new certificate.
    trains_on(&cluster, &before);
    let waits = BTreeSet::from(["user/ann".to_owned()]);
    until(|| {
        // The coordinator follows within two seconds.
        cluster.muster(["get", "nodes"]);
        (admin.needs_old() == waits).then_some(())
    })
    .unwrap_or_else(|| panic!("the agents renew: {:?} need the old one", admin.needs_old()));
    for node in ["node-1", "node-2"] {
        assert_eq!(trusted(&credentials(&cluster, node)), 2, "{node}");
    }
    let new_pin = admin.say(&["pin"]);
    assert_ne!(new_pin, old_pin);
    // A token and a pin from before the change.
    let joined = admin.join(&old_pin, &early, "early", cluster.path("early"));
    assert_eq!(trusted(&joined.unwrap()), 2);
    let why = admin.refused(&["authority", "finish"]);
    assert!(
        why.contains("user/ann (until ") && why.contains("--force"),
        "{why}"
    );
    as_ann(&["whoami"]);
    until(|| admin.needs_old().is_empty().then_some(())).expect("ann has a new certificate");
    trains_on(&cluster, &before);

    admin.say(&["authority", "finish"]);
    until(|| {
        let nodes = ["node-1", "node-2"].iter();
        let mut credentials = nodes.map(|node| credentials(&cluster, node));
        credentials.all(|one| trusted(&one) == 1).then_some(())
    })
    .expect("the agents forget the old authority");
    assert!(as_ann(&["whoami"]).contains("user/ann"));
    trains_on(&cluster, &before);
    for node in ["node-1", "node-2"] {
        let sessions = log(&cluster, node).matches(" welcome").count();
        assert_eq!(sessions, 1, "{node}: no session has ended");
    }
    let why = admin.join(&old_pin, &late, "late", cluster.path("late"));
    let why = why.unwrap_err();
    assert!(why.contains("its authority was replaced"), "{why}");

    // Everything begins again with what it has now.
    cluster.muster(["local", "kill-agent", "node-2"]);
    cluster.muster(["local", "start-agent", "node-2"]);
    trains_on(&cluster, &before);
    cluster.muster(["local", "kill-coordinator"]);
    cluster.muster(["local", "start-coordinator"]);
    cluster.wait("job", "known again", |status| status["nodesRunning"] == 2);
    trains_on(&cluster, &before);
    cluster.muster(["local", "add-node"]);
    assert!(cluster.muster(["get", "nodes"]).contains("node-3"));
    assert_eq!(trusted(&credentials(&cluster, "node-3")), 1);
    trains_on(&cluster, &before);
}

#[test]
fn certificates_expire_while_a_job_trains_and_agents_renew_them() {
    let life = ("MUSTER_CERTIFICATE_LIFE", "40s");
    let cluster = Cluster::up_with(3, &["--tls"], &[life]);
    cluster.train("job", "2", &LONG);
    let before = cluster.trains("job", 1, 2);
    let members: BTreeSet<String> = nodes(&before).iter().map(|name| (*name).into()).collect();
    let all = ["node-1", "node-2", "node-3"];
    let idle = all.iter().find(|node| !members.contains(**node)).unwrap();
    let first = all.map(|node| not_after_us(&credentials(&cluster, node)));

    cluster.muster(["local", "kill-agent", idle]);
    let left = not_after_us(&credentials(&cluster, idle));
    let last = first.into_iter().max().unwrap().max(left);
    until(|| {
        // The user's certificate renews itself when it is used.
        cluster.status("job")?;
        (now_us() > last).then_some(())
    })
    .expect("all certificates of the beginning expire");
    for node in &members {
        let now = not_after_us(&credentials(&cluster, node));
        assert!(now > now_us(), "{node} has a new one");
    }
    trains_on(&cluster, &before);

    // An agent that was down for too long says what to do, and goes on when that is done.
    let _ = cluster.try_muster(["local", "start-agent", idle, "--timeout", "1s"]);
    let says = format!("muster-coordinator token create --host {idle}");
    until(|| log(&cluster, idle).contains(&says).then_some(())).expect("it says what to do");
    let admin = Admin(&cluster);
    let token = admin.say(&["token", "create", "--host", idle]);
    let state = node_dir(&cluster, idle).join("state");
    let joined = admin.join(&admin.say(&["pin"]), &token, idle, state);
    joined.unwrap();
    until(|| {
        let nodes = cluster.json(["get", "nodes"]);
        let mut nodes = nodes["items"].as_array()?.iter();
        nodes
            .all(|node| node["status"]["state"] == "Ready")
            .then_some(())
    })
    .expect("the node is back without a restart");
    trains_on(&cluster, &before);
}
