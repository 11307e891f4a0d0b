//! A local cluster of the real programs, for drills: real coordinator, agents, runners, torchrun
//! and workers. The real command line drives them, as a user would.
//!
//! A drill waits for states, never for time. When it ends, well or not, the cluster is taken down.
//! Any process of it that is still alive is a failure of the drill.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;

pub mod fleet;
pub mod interpreter;
pub mod namespace;
pub mod relay;
pub mod systemd;
pub mod torchrun;
pub mod wires;

/// Drills run one at a time: each starts several PyTorch processes, and the smallest machine has
/// two cores.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The longest wait for any state. Only a failure waits this long. In every worker group a cold
/// launch imports torch twice in sequence. On one machine one import was seen to take 2 s of
/// processor time at one hour of the day, and 12 s at another.
const PATIENCE: Duration = Duration::from_secs(300);

/// How often a state is looked at. This is cheap compared with the processes.
const LOOK: Duration = Duration::from_millis(100);

pub struct Cluster {
    pub dir: PathBuf,
    /// Where the programs lie that it uses now.
    programs: PathBuf,
    folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// `muster local up` with this many nodes.
    pub fn up(nodes: usize) -> Cluster {
        Self::up_with(nodes, &[], &[])
    }

    /// The same with more flags, and with variables for the daemons.
    pub fn up_with(nodes: usize, flags: &[&str], env: &[(&str, &str)]) -> Cluster {
        Self::up_of(programs(), nodes, flags, env)
    }

    /// The same with the programs of another build.
    pub fn up_of(programs: PathBuf, nodes: usize, flags: &[&str], env: &[(&str, &str)]) -> Cluster {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::Builder::new()
            .prefix("muster-drill-")
            .tempdir()
            .expect("a temporary folder");
        let dir = folder.path().join("cluster");
        let cluster = Cluster {
            dir,
            programs,
            folder,
            _turn: turn,
        };
        let mut command = Command::new(cluster.programs.join("muster"));
        command
            .args(["local", "up", "--nodes", &nodes.to_string()])
            .args(flags)
            .envs(env.iter().copied());
        let output = command
            .env("MUSTER_LOCAL_DIR", &cluster.dir)
            .env("MUSTER_CONFIG", cluster.path("config.yaml"))
            .env_remove("MUSTER_SERVER")
            .output()
            .expect("muster can be executed");
        assert!(
            output.status.success(),
            "the cluster does not come up: {}",
            text(&output)
        );
        cluster
    }

    /// From now on `muster`, and each daemon that it starts, is of this build.
    pub fn switch(&mut self, programs: PathBuf) {
        self.programs = programs;
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `muster ARGS`, which must succeed, and returns its standard output.
    pub fn muster<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let output = self.try_muster(args);
        assert!(
            output.status.success(),
            "muster failed: {}\n{}",
            output.status,
            text(&output)
        );
        String::from_utf8(output.stdout).expect("muster prints UTF-8")
    }

    pub fn try_muster<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.try_muster_of(&self.programs, args)
    }

    /// Runs the `muster` of another build.
    pub fn try_muster_of<S: AsRef<OsStr>>(
        &self,
        programs: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Output {
        let mut command = Command::new(programs.join("muster"));
        command
            .args(args)
            .env("MUSTER_LOCAL_DIR", &self.dir)
            .env("MUSTER_CONFIG", self.path("config.yaml"))
            .env_remove("MUSTER_SERVER");
        command.output().expect("muster can be executed")
    }

    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Value {
        let args: Vec<std::ffi::OsString> = args
            .into_iter()
            .map(|arg| arg.as_ref().to_owned())
            .chain(["-o".into(), "json".into()])
            .collect();
        serde_json::from_str(&self.muster(args)).expect("-o json prints JSON")
    }

    /// The job's `status`, or `None` while the coordinator cannot be reached.
    pub fn status(&self, job: &str) -> Option<Value> {
        let output = self.try_muster(["get", "job", job, "-o", "json"]);
        let job: Value = serde_json::from_slice(&output.stdout).ok()?;
        job.get("status").cloned()
    }

    /// Submits `scripts/allreduce.py` through `muster run`.
    pub fn train(&self, name: &str, nodes: &str, script: &[&str]) {
        self.train_with(name, nodes, &[], script);
    }

    pub fn train_with(&self, name: &str, nodes: &str, flags: &[&str], script: &[&str]) {
        let (python, state) = (python(), self.path(&format!("{name}.step")));
        let mut args = vec![
            "run",
            "--name",
            name,
            "--nnodes",
            nodes,
            "--nproc-per-node",
            "1",
            "--python",
            &python,
        ];
        args.extend(flags);
        let file = scripts().join("allreduce.py");
        args.extend([
            "--",
            file.to_str().expect("a UTF-8 path"),
            "--state",
            state.to_str().expect("a UTF-8 path"),
        ]);
        args.extend(script);
        self.muster(args);
    }

    /// Waits until the job's status is as wanted, and returns it.
    pub fn wait(&self, job: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = until(|| {
            last = self.status(job)?;
            wanted(&last).then(|| last.clone())
        });
        found.unwrap_or_else(|| {
            let explain = text(&self.try_muster(["explain", job]));
            let logs = text(&self.try_muster(["logs", job, "--tail", "5"]));
            panic!("{job}: not {what} within {PATIENCE:?}; status: {last:#}\n{explain}\n{logs}")
        })
    }

    /// Waits until generation `generation` trains with `nodes` nodes and has made a step.
    pub fn trains(&self, job: &str, generation: u64, nodes: u64) -> Value {
        self.wait(
            job,
            &format!("training as generation {generation} on {nodes} nodes"),
            |status| {
                let ranks = status["ranks"].as_array().map_or(0, Vec::len) as u64;
                status["generation"] == generation
                    && status["nodes"] == nodes
                    && ranks == nodes
                    && status["phase"] == "Running"
                    && status["ranks"]
                        .as_array()
                        .is_some_and(|ranks| ranks.iter().all(|rank| !rank["lastStep"].is_null()))
            },
        )
    }

    /// Pids of the launchers from which generations are forked, on all nodes. Copies of them do not
    /// count.
    pub fn launchers(&self) -> BTreeSet<u32> {
        let read = |pid: u32, file: &str| {
            String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default())
                .into_owned()
        };
        let is_one = |pid: u32| {
            let run = |variable: &str| {
                variable.starts_with("MUSTER_RUN_DIR=") && variable.contains("-launcher-")
            };
            read(pid, "environ").split('\0').any(run)
        };
        let family = |pid: u32| {
            let stat = read(pid, "stat");
            let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(1);
            let mut next = || fields.next()?.parse::<u32>().ok();
            Some((next()?, next()?))
        };
        // Only a launcher has its own runner as its parent, and a process group. What it forks for the next
        // generation has the same parent for a moment, and the launcher's group.
        let has_runner = |pid: u32| {
            family(pid).is_some_and(|(parent, group)| {
                let line = read(parent, "cmdline");
                group == pid && line.contains("\0hold\0") && line.contains("-launcher-")
            })
        };
        processes_of(&self.dir)
            .into_iter()
            .map(|(pid, _)| pid)
            .filter(|pid| is_one(*pid) && has_runner(*pid))
            .collect()
    }

    /// All modules that any launcher has imported because a rank had imported them.
    pub fn preloaded(&self) -> BTreeSet<String> {
        let read =
            |run: &PathBuf| fs::read_to_string(run.join("preloaded.txt")).unwrap_or_default();
        let name = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
        let launchers = self.runs().into_iter().filter(|run| is_launcher(run));
        launchers
            .flat_map(|run| read(&run).lines().map(name).collect::<Vec<_>>())
            .collect()
    }

    fn runs(&self) -> Vec<PathBuf> {
        let nodes = fs::read_dir(self.dir.join("nodes"))
            .expect("a local cluster has nodes")
            .flatten();
        let runs = nodes
            .filter_map(|node| fs::read_dir(node.path().join("state/runs")).ok())
            .flatten()
            .flatten();
        runs.map(|run| run.path()).collect()
    }

    /// The node of a member, by node rank.
    pub fn node_of(&self, status: &Value, node_rank: usize) -> String {
        status["members"][node_rank]["node"]
            .as_str()
            .expect("a member has a node")
            .to_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let output = self.try_muster(["local", "down"]);
        let alive = processes_of(&self.dir);
        if !std::thread::panicking() {
            assert!(
                output.status.success(),
                "local down failed: {}",
                text(&output)
            );
            assert!(
                alive.is_empty(),
                "local down left processes behind: {alive:?}"
            );
        }
    }
}

/// Polls until there is an answer, or until the patience ends.
pub fn until<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::park_timeout(LOOK);
    }
}

fn is_launcher(run: &Path) -> bool {
    run.file_name()
        .is_some_and(|name| name.to_string_lossy().contains("-launcher-"))
}

/// Whether the long form of the drills was asked for, as `make drill` does.
pub fn is_long() -> bool {
    env::var_os("MUSTER_LONG_DRILL").is_some()
}

/// Whether a process exists and is not a zombie.
pub fn lives(pid: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The pids, by rank.
pub fn pids(status: &Value) -> Vec<u64> {
    status["ranks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|rank| rank["pid"].as_u64())
        .collect()
}

/// Names of the members, in node rank order.
pub fn nodes(status: &Value) -> Vec<&str> {
    status["members"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|member| member["node"].as_str())
        .collect()
}

pub fn last_step(status: &Value) -> u64 {
    status["lastStep"].as_u64().unwrap_or(0)
}

pub fn kill(pid: u64, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a pid is positive");
    rustix::process::kill_process(pid, signal).expect("the process is there");
}

/// Processes whose command line or environment names this folder. Everything that a local cluster
/// starts does so.
pub fn processes_of(dir: &Path) -> Vec<(u32, String)> {
    let needle = dir.to_str().expect("a UTF-8 path");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc is there").flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let read = |file: &str| {
            String::from_utf8_lossy(&fs::read(entry.path().join(file)).unwrap_or_default())
                .replace('\0', " ")
        };
        let (line, environment) = (read("cmdline"), read("environ"));
        if line.contains(needle) || environment.contains(needle) {
            found.push((pid, line));
        }
    }
    found
}

/// Where the programs under test are: in `MUSTER_BIN_DIR`, which `make test` sets, or in the target
/// folder of this test.
pub fn programs() -> PathBuf {
    env::var_os("MUSTER_BIN_DIR")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            let test = env::current_exe().expect("a test has a path");
            test.ancestors()
                .nth(2)
                .expect("tests lie in target/PROFILE/deps")
                .to_owned()
        })
}

pub fn program(name: &str) -> PathBuf {
    let path = programs().join(name);
    assert!(
        path.exists(),
        "{} is not there: run `make build`, or `make test`, which also sets MUSTER_BIN_DIR",
        path.display()
    );
    path
}

/// The interpreter with PyTorch, as `make test` sets it.
pub fn python() -> String {
    env::var("MUSTER_TEST_PYTHON").expect(
        "MUSTER_TEST_PYTHON names an interpreter with PyTorch: run `make test`, which sets it",
    )
}

/// The folder with the scripts of the lanes' compatibility suite.
pub fn suite() -> PathBuf {
    // The folder's plain name: a script sees it, and the lanes are compared.
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../agent/suite/scripts"))
        .expect("the suite is part of the workspace")
}

pub fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
