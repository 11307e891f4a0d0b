//! Real torchrun and gloo over real (virtual) cables that the test pulls: between a node and all
//! others, and between two ranks only.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use muster_drills::{
    last_step, lives, pids, processes_of, program, python, scripts, until, wires::Wires,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const NODES: u32 = 3;
/// The coordinator's end; node N is at end N.
const COORDINATOR: u32 = NODES + 1;

struct Site {
    daemons: Vec<Child>,
    folder: tempfile::TempDir,
    server: String,
    wires: Wires,
}

impl Site {
    fn build(wires: Wires) -> Site {
        let folder = tempfile::Builder::new()
            .prefix("muster-cables-")
            .tempdir()
            .unwrap();
        let mut site = Site {
            daemons: Vec::new(),
            folder,
            server: String::new(),
            wires,
        };
        let ready = site.path().join("ready.json");
        let mut coordinator = site
            .wires
            .command(COORDINATOR, &program("muster-coordinator"));
        coordinator
            .args([
                "--listen",
                &format!("{}:0", site.wires.address(COORDINATOR)),
                "--state-dir",
            ])
            .arg(site.path().join("c"));
        // Each end is in a network namespace of its own, so no kernel can say who the other end is.
        coordinator
            .arg("--accept-unknown-peers")
            .arg("--ready-file")
            .arg(&ready);
        site.start(coordinator, "coordinator.log");
        site.server = until(|| {
            let ready: Value = serde_json::from_slice(&fs::read(&ready).ok()?).ok()?;
            Some(ready["endpoint"].as_str()?.to_owned())
        })
        .expect("the coordinator serves");
        for node in 1..=NODES {
            let mut agent = site.wires.command(node, &program("muster-agent"));
            agent.args([
                "--coordinator",
                &site.server,
                "--node-name",
                &format!("node-{node}"),
                "--address",
                &site.wires.address(node),
            ]);
            agent
                .args(["--allow-root-workers", "--accept-unknown-peers"])
                .arg("--runner")
                .arg(program("muster-runner"))
                .arg("--state-dir")
                .arg(site.path().join(format!("n{node}")));
            site.start(agent, &format!("agent-{node}.log"));
        }
        site
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn start(&mut self, mut command: Command, log: &str) {
        let log = fs::File::create(self.path().join(log)).unwrap();
        self.daemons.push(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .unwrap(),
        );
    }

    fn muster(&self, args: &[&str]) -> (bool, String) {
        let mut command = self.wires.command(COORDINATOR, &program("muster"));
        let output = command
            .args(args)
            .env("MUSTER_SERVER", &self.server)
            .output()
            .unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr),
        )
    }

    fn status(&self) -> Option<Value> {
        let mut command = self.wires.command(COORDINATOR, &program("muster"));
        let output = command
            .args(["get", "job", "job", "-o", "json"])
            .env("MUSTER_SERVER", &self.server)
            .output()
            .unwrap();
        Some(serde_json::from_slice::<Value>(&output.stdout).ok()?["status"].take())
    }

    fn wait(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let found = until(|| self.status().filter(|status| wanted(status)));
        found.unwrap_or_else(|| {
            panic!(
                "not {what}: {:#}\n{}\n{}",
                self.status().unwrap_or_default(),
                self.muster(&["explain", "job"]).1,
                self.muster(&["logs", "job", "--tail", "5"]).1
            )
        })
    }

    fn trains(&self, after: u64, nodes: u64) -> Value {
        self.wait(
            &format!("training on {nodes} nodes after generation {after}"),
            |status| {
                let ranks = status["ranks"].as_array().map_or(&[][..], Vec::as_slice);
                let all = ranks.len() as u64 == nodes
                    && ranks.iter().all(|rank| !rank["lastStep"].is_null());
                status["generation"].as_u64() > Some(after)
                    && status["nodesRunning"] == nodes
                    && all
            },
        )
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = (daemon.kill(), daemon.wait());
        }
        let left = processes_of(self.folder.path());
        for (pid, _) in &left {
            let _ = Pid::from_raw(*pid as i32).map(|pid| kill_process(pid, Signal::KILL));
        }
        if !std::thread::panicking() {
            assert!(left.is_empty(), "left behind: {left:?}");
        }
    }
}

#[test]
#[ignore = "a minute and a half: make drill"]
fn pulled_cables_cost_the_node_behind_them_and_a_short_cut_between_ranks_costs_nothing() {
    let Some(wires) = Wires::lay(COORDINATOR) else {
        return;
    };
    let site = Site::build(wires);
    let script = [
        scripts().join("allreduce.py").display().to_string(),
        "--state".into(),
        site.path().join("step").display().to_string(),
    ];
    let long = ["--steps", "100000", "--delay-ms", "20"].map(str::to_owned);
    let args = [script.as_slice(), &long].concat();
    let spec = json!({
        "replicas": 3, "minReplicas": 2, "procPerNode": 1, "gpusPerNode": 0, "scaleUpCooldown": "0s", "launch": "cold", "stopGracePeriod": "1s",
        "command": [python()], "args": args, "workingDir": site.path(),
        "env": [{"name": "GLOO_SOCKET_IFNAME", "value": "eth0"}],
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": "job"}, "spec": spec});
    let file = site.path().join("job.json");
    fs::write(&file, document.to_string()).unwrap();
    let (accepted, text) = site.muster(&["submit", "-f", file.to_str().unwrap()]);
    assert!(accepted, "{text}");
    let first = site.trains(0, 3);

    // Two ranks cannot reach each other, and all others can. No step is made, nothing is reported,
    // and nothing is stopped.
    site.wires.isolate(1, true);
    site.wires.isolate(2, true);
    let mut before = last_step(&site.status().unwrap());
    until(|| {
        let now = last_step(&site.status()?);
        (std::mem::replace(&mut before, now) == now).then_some(())
    })
    .expect("a ring with a cut makes no step");
    site.wires.isolate(1, false);
    site.wires.isolate(2, false);
    let after = site.wait("training on", |status| last_step(status) > before + 5);
    assert_eq!(
        (&after["generation"], pids(&after)),
        (&first["generation"], pids(&first)),
        "TCP has repeated what was lost"
    );

    // The cable of one node is pulled. The others go on without it, and its worker runs on until
    // the node is heard again.
    let member = first["ranks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|rank| rank["node"] == "node-2")
        .unwrap();
    let behind = member["pid"].as_u64().unwrap();
    site.wires.set(2, false);
    let without = site.trains(first["generation"].as_u64().unwrap(), 2);
    assert!(lives(behind), "nobody could tell it to stop");
    let explain: Value =
        serde_json::from_str(&site.muster(&["explain", "job", "-o", "json"]).1).unwrap();
    let incident = explain["incidents"]
        .as_array()
        .unwrap()
        .iter()
        .find(|incident| incident["fromGeneration"] == first["generation"]);
    let incident = incident.unwrap();
    assert_eq!(
        (&incident["charged"], &incident["culprit"]),
        (&json!("node"), &json!("node-2")),
        "{incident:#}"
    );
    site.wires.set(2, true);
    let whole = site.trains(without["generation"].as_u64().unwrap(), 3);
    assert!(!lives(behind));

    site.muster(&["cancel", "job"]);
    site.wait("cancelled", |status| status["phase"] == "Cancelled");
    until(|| pids(&whole).iter().all(|pid| !lives(*pid)).then_some(())).expect("no worker is left");
    until(|| (processes_of(site.path()).len() == site.daemons.len()).then_some(()))
        .expect("no runner is left");
}
