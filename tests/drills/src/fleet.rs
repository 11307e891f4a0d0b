//! A small fleet of the real daemons, with a stand-in for torch. Every agent is in a network
//! namespace of its own and reaches the coordinator only through a [`Relay`]. Many such fleets can
//! run at a time.

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{namespace::Namespace, processes_of, program, relay::Relay, scripts};

/// The longest wait for any state. Only a failure waits this long.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often a state is looked at. Each look starts a process.
const LOOK: Duration = Duration::from_millis(150);

/// The heartbeat, and after how many missed ones a node is Suspect and Lost: 1 s and 4 s. A loaded
/// machine does not delay heartbeats that far. The coordinator waits for returning nodes longer
/// than the 5 s that an agent waits at most before it dials again.
const POLICY: [&str; 14] = [
    "--heartbeat",
    "250ms",
    "--suspect-missed",
    "4",
    "--lost-missed",
    "16",
    "--listen-hold",
    "6s",
    "--backoff-first",
    "100ms",
    "--backoff-max",
    "200ms",
    "--storm-failures",
    "100000",
];
/// After this long a silence a node is lost.
pub const LOST: Duration = Duration::from_millis(4_000);

pub struct Fleet {
    coordinator: Option<Child>,
    port: SocketAddr,
    pub nodes: Vec<Node>,
    clocks: Option<Clocks>,
    folder: tempfile::TempDir,
}

/// By how many seconds the wall clocks of the daemons are wrong.
#[derive(Clone, Debug)]
pub struct Clocks {
    library: PathBuf,
    pub coordinator: i64,
    /// In the order of the nodes.
    pub nodes: Vec<i64>,
}

impl Clocks {
    /// Builds the library that moves a clock into this folder, with the C compiler that Rust links with.
    pub fn new(folder: &Path, coordinator: i64, nodes: &[i64]) -> Self {
        let library = folder.join("clock.so");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &scripts().join("clock.c")])
            .status();
        assert!(built.expect("cc can be executed").success());
        Self {
            library,
            coordinator,
            nodes: nodes.to_vec(),
        }
    }

    /// Lets a program have a clock that is wrong by this much.
    pub fn set(&self, command: &mut Command, seconds: i64) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("MUSTER_TEST_CLOCK", seconds.to_string());
    }
}

pub struct Node {
    pub name: String,
    pub relay: Relay,
    agent: Option<Child>,
    clock: Option<(Clocks, i64)>,
    home: PathBuf,
    namespace: Option<Namespace>,
}

impl Fleet {
    pub fn start(nodes: usize) -> Fleet {
        Fleet::start_with(nodes, None)
    }

    pub fn start_with(nodes: usize, clocks: Option<Clocks>) -> Fleet {
        let folder = tempfile::Builder::new()
            .prefix("muster-fleet-")
            .tempdir()
            .expect("a temporary folder");
        let port = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut fleet = Fleet {
            coordinator: None,
            port,
            nodes: Vec::new(),
            clocks,
            folder,
        };
        fleet.start_coordinator();
        for _ in 0..nodes {
            fleet.add_node();
        }
        fleet.until("all nodes are ready", |fleet| fleet.ready_nodes() == nodes);
        fleet
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn start_coordinator(&mut self) {
        let ready = self.path().join("coordinator.json");
        let _ = fs::remove_file(&ready);
        let mut command = Command::new(program("muster-coordinator"));
        command
            .args(["--listen", &self.port.to_string()])
            .args(POLICY);
        command
            .arg("--state-dir")
            .arg(self.path().join("coordinator"))
            .arg("--ready-file")
            .arg(&ready);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log(&self.path().join("coordinator.log")));
        if let Some(clocks) = &self.clocks {
            clocks.set(&mut command, clocks.coordinator);
        }
        self.coordinator = Some(command.spawn().expect("the coordinator can be executed"));
        let address = self.until("the coordinator serves", |_| {
            let ready: Value = serde_json::from_slice(&fs::read(&ready).ok()?).ok()?;
            ready["endpoint"]
                .as_str()?
                .strip_prefix("http://")?
                .parse()
                .ok()
        });
        self.port = address;
    }

    pub fn kill_coordinator(&mut self) {
        end(&mut self.coordinator, Signal::KILL);
    }

    pub fn coordinator_pid(&self) -> Option<u32> {
        self.coordinator.as_ref().map(Child::id)
    }

    pub fn add_node(&mut self) {
        let name = format!("node-{}", self.nodes.len());
        let home = self.path().join(&name);
        fs::create_dir(&home).expect("a new folder");
        let namespace = Namespace::make();
        let listener = match &namespace {
            Some(namespace) => namespace.listen(),
            None => TcpListener::bind("127.0.0.1:0").expect("free ports"),
        };
        let relay = Relay::start(listener, self.port);
        let of_node = |clocks: &Clocks| (clocks.clone(), clocks.nodes[self.nodes.len()]);
        let clock = self.clocks.as_ref().map(of_node);
        self.nodes.push(Node {
            name,
            relay,
            agent: None,
            clock,
            home,
            namespace,
        });
        self.nodes.last_mut().expect("just added").start_agent();
    }

    pub fn try_muster(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("muster"));
        command
            .args(args)
            .env("MUSTER_SERVER", format!("http://{}", self.port))
            .env("MUSTER_LOCAL_DIR", self.path());
        command.output().expect("muster can be executed")
    }

    pub fn muster(&self, args: &[&str]) -> String {
        let output = self.try_muster(args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "muster {args:?}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Submits a job of the stand-in, with other fields of its spec.
    pub fn submit(&self, name: &str, replicas: usize, min: usize, other: Value) {
        let stand_in = scripts().join("stand-in");
        let mut spec = json!({
            "replicas": replicas, "minReplicas": min, "procPerNode": 1, "gpusPerNode": 0, "scaleUpCooldown": "0s", "stopGracePeriod": "1s", "launch": "cold",
            "command": [stand_in.join("python3")], "args": [stand_in.join("train.sh")], "workingDir": self.path(),
            "env": [{"name": "PATH", "value": "/usr/bin:/bin"}, {"name": "FLEET", "value": self.path()}],
        });
        for (field, value) in other.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name}, "spec": spec});
        let file = self.path().join(format!("{name}.json"));
        fs::write(&file, document.to_string()).expect("the folder is ours");
        self.muster(&["submit", "-f", file.to_str().expect("UTF-8")]);
    }

    pub fn json(&self, args: &[&str]) -> Option<Value> {
        serde_json::from_slice(&self.try_muster(&[args, &["-o", "json"]].concat()).stdout).ok()
    }

    pub fn status(&self, job: &str) -> Option<Value> {
        Some(self.json(&["get", "job", job])?["status"].take())
    }

    pub fn ready_nodes(&self) -> usize {
        let nodes = self.json(&["get", "nodes"]).unwrap_or_default();
        nodes["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|node| node["status"]["state"] == "Ready")
            .count()
    }

    /// Waits until the job runs on exactly these nodes, in a generation of at least this number.
    /// Returns its status.
    pub fn runs_on(&self, job: &str, generation: u64, nodes: &[usize]) -> Value {
        let wanted: BTreeSet<String> = nodes
            .iter()
            .map(|node| self.nodes[*node].name.clone())
            .collect();
        self.until(
            &format!("{job} runs on {wanted:?} as generation {generation} or later"),
            |fleet| {
                let status = fleet.status(job)?;
                let on: BTreeSet<String> = members(&status).into_iter().collect();
                let all = status["nodesRunning"].as_u64()? == nodes.len() as u64
                    && steps(&status) == nodes.len();
                (status["phase"] == "Running"
                    && on == wanted
                    && all
                    && status["generation"].as_u64()? >= generation)
                    .then_some(status)
            },
        )
    }

    /// Waits for an answer: a value, or `true`.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut(&Fleet) -> T) -> T::Found
    where
        T: Answer,
    {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look(self).found() {
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "not within {PATIENCE:?}: {what}\n{}",
                self.story()
            );
            std::thread::park_timeout(LOOK);
        }
    }

    /// Everything that this fleet can say about itself, for a failure.
    pub fn story(&self) -> String {
        let tell = |args: &[&str]| {
            let output = self.try_muster(args);
            format!(
                "--- muster {args:?}\n{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )
        };
        let jobs = self.json(&["get", "jobs"]).unwrap_or_default();
        let names = jobs["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|job| job["metadata"]["name"].as_str());
        let jobs: String = names
            .map(|name| tell(&["explain", name]) + &tell(&["get", "job", name, "-o", "json"]))
            .collect();
        let last = |path: PathBuf| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(15)..].join("\n")
        };
        let logs: String = self
            .nodes
            .iter()
            .map(|node| format!("--- {}\n{}\n", node.name, last(node.home.join("agent.log"))))
            .collect();
        format!(
            "{}{jobs}{logs}--- coordinator\n{}",
            tell(&["get", "nodes"]),
            last(self.path().join("coordinator.log"))
        )
    }

    /// Ends everything as its operator would, and checks that nothing is left behind.
    pub fn end(mut self) {
        if self.coordinator.is_some() {
            for node in &self.nodes {
                node.relay.heal();
            }
            let jobs = self.json(&["get", "jobs"]).unwrap_or_default();
            for job in jobs["items"].as_array().into_iter().flatten() {
                let name = job["metadata"]["name"].as_str().expect("a job has a name");
                let _ = self.try_muster(&["cancel", name]);
            }
            self.until("no worker and no runner is left", |fleet| {
                fleet.of_the_jobs().is_empty()
            });
        }
        self.end_daemons();
        let left = processes_of(self.path());
        assert!(left.is_empty(), "left behind: {left:?}");
        let groups = cgroups_of(self.path());
        assert!(groups.is_empty(), "cgroups left behind: {groups:?}");
    }

    /// Runners, launchers and workers: the living processes of this fleet that are not its daemons.
    pub fn of_the_jobs(&self) -> Vec<(u32, String)> {
        let daemons: BTreeSet<u32> = self
            .nodes
            .iter()
            .filter_map(Node::agent_pid)
            .chain(self.coordinator_pid())
            .collect();
        processes_of(self.path())
            .into_iter()
            .filter(|(pid, _)| !daemons.contains(pid))
            .collect()
    }

    fn end_daemons(&mut self) {
        for node in &mut self.nodes {
            end(&mut node.agent, Signal::KILL);
        }
        end(&mut self.coordinator, Signal::KILL);
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.end_daemons();
        // This happens only after a failure: `end` has checked that nothing is left.
        for (pid, _) in processes_of(self.path()) {
            let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, Signal::KILL));
        }
    }
}

impl Node {
    pub fn start_agent(&mut self) {
        self.start_agent_of(&program("muster-agent"), &program("muster-runner"));
    }

    /// Starts this program as the node's agent.
    pub fn start_agent_of(&mut self, agent: &Path, runner: &Path) {
        let ready = self.home.join("ready.json");
        let _ = fs::remove_file(&ready);
        let mut command = match &self.namespace {
            Some(namespace) => namespace.command(agent),
            None => Command::new(agent),
        };
        command
            .arg("--allow-root-workers")
            .arg("--runner")
            .arg(runner);
        command.args([
            "--coordinator",
            &format!("http://{}", self.relay.address),
            "--node-name",
            &self.name,
            "--slots",
            "4",
        ]);
        command
            .arg("--state-dir")
            .arg(self.home.join("state"))
            .arg("--ready-file")
            .arg(&ready);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log(&self.home.join("agent.log")));
        if let Some((clocks, seconds)) = &self.clock {
            clocks.set(&mut command, *seconds);
        }
        self.agent = Some(command.spawn().expect("the agent can be executed"));
    }

    pub fn kill_agent(&mut self) {
        end(&mut self.agent, Signal::KILL);
    }

    /// Ends the agent as an upgrade does.
    pub fn terminate_agent(&mut self) {
        end(&mut self.agent, Signal::TERM);
    }

    /// The pid of the agent, because nsenter replaces itself by the agent.
    pub fn agent_pid(&self) -> Option<u32> {
        self.agent.as_ref().map(Child::id)
    }
}

fn end(child: &mut Option<Child>, signal: Signal) {
    if let Some(mut child) = child.take() {
        // A stopped process takes no other signal than SIGKILL before it goes on.
        let _ = kill_process(Pid::from_child(&child), signal);
        let _ = kill_process(Pid::from_child(&child), Signal::CONT);
        child.wait().expect("it is our child");
    }
}

fn log(path: &Path) -> Stdio {
    Stdio::from(
        fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .expect("the folder is ours"),
    )
}

pub fn members(status: &Value) -> Vec<String> {
    status["members"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|member| Some(member["node"].as_str()?.to_owned()))
        .collect()
}

/// How many ranks have reported a step.
fn steps(status: &Value) -> usize {
    status["ranks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|rank| !rank["lastStep"].is_null())
        .count()
}

/// Cgroups that runners of this fleet have made. Each runner writes down its own.
fn cgroups_of(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let runs = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|node| fs::read_dir(node.path().join("state/runs")).ok());
    for run in runs.flatten().flatten() {
        let text = fs::read(run.path().join("runner.json")).unwrap_or_default();
        let runner: Value = serde_json::from_slice(&text).unwrap_or_default();
        found.extend(
            runner["cgroup"]
                .as_str()
                .map(PathBuf::from)
                .filter(|cgroup| cgroup.exists()),
        );
    }
    found
}

/// What [`Fleet::until`] waits for.
pub trait Answer {
    type Found;
    fn found(self) -> Option<Self::Found>;
}

impl<T> Answer for Option<T> {
    type Found = T;
    fn found(self) -> Option<T> {
        self
    }
}

impl Answer for bool {
    type Found = ();
    fn found(self) -> Option<()> {
        self.then_some(())
    }
}
