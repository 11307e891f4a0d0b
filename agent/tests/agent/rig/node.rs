//! One node: a state directory, an agent process, and an interpreter that plays torchrun with a
//! shell.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use muster_core::{
    id::{Generation, JobName, JobUid},
    nccl::profile::Profile,
    run::{Assignment, DesiredRun, Endpoint, RunId, Target},
    spec::{Launch, Standbys},
};
use muster_runner::{
    RunnerIdentity,
    procfs::{self, Stat},
    record,
};
use rustix::process::{Pid, Signal, kill_process};

use super::PATIENCE;

/// `python3`: answers the question for torch's version, starts one rank per local rank as torchrun
/// does, or runs a script with sh.
const PYTHON: &str = r#"#!/bin/sh
case "$1" in
-c) echo 2.15.0; exit 0 ;;
-m)
    while [ "$1" != --monitor-interval=0.1 ]; do
        case "$1" in
        --nnodes=*) nodes=${1#*=} ;;
        --node-rank=*) node=${1#*=} ;;
        --nproc-per-node=*) procs=${1#*=} ;;
        esac
        shift
    done
    shift
    local=0
    while [ $local -lt $procs ]; do
        RANK=$((node * procs + local)) LOCAL_RANK=$local WORLD_SIZE=$((nodes * procs)) "$PYTHON_EXEC" -u "$@" &
        local=$((local + 1))
    done
    failed=0
    trap 'failed=1' TERM
    while :; do wait && break; done
    exit $failed ;;
-u) shift; exec /bin/sh "$@" ;;
esac
"#;

/// Prints what it sees and its step, and works until it is stopped. It writes its environment to a
/// file, because `/proc/PID/environ` is empty for a moment while the last line executes another
/// program.
const TRAIN: &str = r#"env > "$OUT/environment-$RANK"
echo $$ > "$OUT/worker-$RANK"
echo "step 1 of generation $MUSTER_GENERATION"
exec sleep 1000000
"#;

pub struct Node {
    pub name: String,
    dir: tempfile::TempDir,
    agent: Option<Child>,
    /// Further flags of its agent.
    pub flags: Vec<String>,
    /// Whether its runners hold without a cgroup.
    pub no_cgroup: bool,
    /// Whether jobs run as their owners, whom the file `users` maps to numbers.
    as_owners: bool,
}

impl Node {
    /// A node whose agent has not been started.
    pub fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = Self {
            name: name.into(),
            dir,
            agent: None,
            flags: Vec::new(),
            no_cgroup: false,
            as_owners: false,
        };
        fs::create_dir(node.path("bin")).unwrap();
        fs::create_dir(node.path("out")).unwrap();
        fs::write(node.path("bin/python3"), PYTHON).unwrap();
        fs::set_permissions(node.path("bin/python3"), fs::Permissions::from_mode(0o755)).unwrap();
        node.script("train.py", TRAIN);
        node
    }

    /// One whose jobs run as their owners. `users`: the lines of its list. Only root can start its agent.
    pub fn of_owners(name: &str, users: &str) -> Self {
        let mut node = Self::new(name);
        node.as_owners = true;
        let open = |path: PathBuf, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        open(node.path(""), 0o755);
        open(node.path("out"), 0o1777);
        fs::write(node.path("users"), users).unwrap();
        open(node.path("users"), 0o644);
        // That of the build may be in somebody's home.
        fs::copy(runner(), node.path("muster-runner")).unwrap();
        node.flags = ["--run-as-owner", "--user-map"].map(str::to_owned).into();
        node.flags.push(node.path("users").display().to_string());
        node
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn script(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Starts the agent. Its log goes to a file of this node.
    pub fn start(&mut self, coordinator: &str) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("agent.log"))
            .unwrap();
        let _ = fs::remove_file(self.path("ready.json"));
        let child = self
            .command(coordinator)
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        self.agent = Some(child);
    }

    pub fn command(&self, coordinator: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster-agent"));
        command.args([
            "--coordinator",
            coordinator,
            "--node-name",
            &self.name,
            "--label",
            "rack=r7",
            "--slots",
            "4",
        ]);
        if !self.as_owners {
            command.arg("--allow-root-workers");
        }
        command
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--runner")
            .arg(self.runner());
        command
            .arg("--ready-file")
            .arg(self.path("ready.json"))
            .args(&self.flags);
        command.args(["--log-filter", "debug,h2=info,tower=info,hyper_util=info"]);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.dir.path())
            .env("PET_NNODES", "7");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn runner(&self) -> PathBuf {
        if self.as_owners {
            return self.path("muster-runner");
        }
        if !self.no_cgroup {
            return runner().to_owned();
        }
        let wrapper = self.path("runner");
        fs::write(
            &wrapper,
            format!(
                "#!/bin/sh\n[ \"$1\" = hold ] && set -- \"$@\" --no-cgroup\nexec {} \"$@\"\n",
                runner().display()
            ),
        )
        .unwrap();
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
        wrapper
    }

    /// A process that has this node's directory in its environment, which is an agent or a worker.
    fn anybody(&self) -> Option<i32> {
        let here = self.dir.path().to_str().unwrap().as_bytes();
        let knows = |stat: &Stat| {
            let environment = fs::read(format!("/proc/{}/environ", stat.pid)).unwrap_or_default();
            !stat.is_dead() && environment.windows(here.len()).any(|part| part == here)
        };
        procfs::all()
            .unwrap()
            .into_iter()
            .find(knows)
            .map(|stat| stat.pid)
    }

    pub fn pid(&self) -> u32 {
        self.agent.as_ref().unwrap().id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }

    /// Sends SIGKILL to the agent and to nothing else of the node.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    pub fn terminate_agent(&mut self) -> ExitStatus {
        let mut agent = self.agent.take().unwrap();
        kill_process(Pid::from_child(&agent), Signal::TERM).unwrap();
        agent.wait().unwrap()
    }

    /// Runs an agent that must end by itself. Returns its exit status and its last output.
    pub fn fail(&self, coordinator: &str) -> (i32, String) {
        let mut child = self
            .command(coordinator)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (child.wait().unwrap().code().unwrap(), said)
    }

    pub fn run_dir(&self, run: &RunId) -> PathBuf {
        self.path("state/runs")
            .join(format!("{}-g{}", run.job, run.generation))
    }

    pub fn assignment(&self, job: &str, generation: u64) -> Assignment {
        let env = [
            (
                "PATH",
                format!("{}:/usr/bin:/bin", self.path("bin").display()),
            ),
            ("OUT", self.path("out").display().to_string()),
        ];
        Assignment {
            run: run(job, generation),
            name: JobName {
                namespace: "default".into(),
                name: job.into(),
            },
            rendezvous: format!("{job}-g{generation}"),
            node_rank: 0,
            node_count: 1,
            proc_per_node: 1,
            first_rank: 0,
            world_size: 1,
            store_host: self.name.as_str().into(),
            hosts_store: true,
            store_clients: Vec::new(),
            env_files: BTreeMap::new(),
            command: vec!["python3".into()],
            args: vec!["train.py".into()],
            env: BTreeMap::from(env.map(|(name, value)| (name.to_owned(), value))),
            working_dir: Some(self.dir.path().to_str().unwrap().to_owned()),
            image: None,
            gpus: Vec::new(),
            hides_gpus: false,
            launch: Launch::Cold,
            standbys: Standbys::Auto,
            inspect: Default::default(),
            stop_grace: Duration::from_secs(10),
            step_pattern: None,
            checkpoint_pattern: None,
            restart_count: 0,
            profile: Profile::default(),
            profile_hash: Profile::default().hash(),
            fence_after: None,
            framework: Default::default(),
            layout: Default::default(),
            members: Vec::new(),
            programs: Vec::new(),
            owner: None,
        }
    }

    pub fn ready(&self, job: &str, generation: u64) -> DesiredRun {
        ready(self.assignment(job, generation))
    }

    pub fn running(&self, job: &str, generation: u64) -> DesiredRun {
        running(self.assignment(job, generation))
    }
}

pub fn run(job: &str, generation: u64) -> RunId {
    RunId {
        job: JobUid::from(job),
        generation: Generation(generation),
    }
}

pub fn ready(assignment: Assignment) -> DesiredRun {
    DesiredRun {
        run: assignment.run.clone(),
        target: Target::Ready(Box::new(assignment)),
    }
}

/// The script that plays torchrun does not use the store, so any address will do.
pub fn running(assignment: Assignment) -> DesiredRun {
    let store = Endpoint {
        host: "127.0.0.1".into(),
        port: 4711,
    };
    DesiredRun {
        run: assignment.run.clone(),
        target: Target::Running(Box::new(assignment), store.into()),
    }
}

pub fn stopped(job: &str, generation: u64, grace: Duration) -> DesiredRun {
    DesiredRun {
        run: run(job, generation),
        target: Target::Stopped {
            grace,
            reason: "the test says so".into(),
        },
    }
}

pub fn gone(job: &str, generation: u64, purge: bool) -> DesiredRun {
    DesiredRun {
        run: run(job, generation),
        target: Target::Gone { purge },
    }
}

/// The runner's program, which is built if needed: for a test, cargo builds only the libraries of
/// other packages.
fn runner() -> &'static Path {
    static RUNNER: OnceLock<PathBuf> = OnceLock::new();
    RUNNER.get_or_init(|| {
        let agent = Path::new(env!("CARGO_BIN_EXE_muster-agent"));
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--quiet",
            "--package",
            "muster-runner",
            "--bin",
            "muster-runner",
        ]);
        assert!(
            cargo.status().unwrap().success(),
            "cargo build of the runner"
        );
        agent.with_file_name("muster-runner")
    })
}

/// Whether a process exists and is not a zombie.
pub fn alive(pid: u32) -> bool {
    Stat::of(pid as i32).is_ok_and(|stat| !stat.is_dead())
}

/// Waits until a process is gone.
pub fn wait_gone(pid: u32) {
    let start = Instant::now();
    while alive(pid) {
        assert!(start.elapsed() < PATIENCE, "process {pid} does not end");
        std::thread::yield_now();
    }
}

/// Removes the cgroups of users in which nothing lives. The next start of a job would do so.
fn remove_cgroups() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let mount = mount.and_then(|line| line.split(' ').nth(4));
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let (Some(mount), Some(own)) = (mount, own) else {
        return;
    };
    let folders = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let is_ours = |name: &str| name.starts_with("musterowner-");
    for group in folders(&Path::new(mount).join(own)) {
        let name = group.file_name();
        let is_empty = muster_runner::leftovers::populated(&group.path()).is_ok_and(|lives| !lives);
        if is_empty && name.to_str().is_some_and(is_ours) {
            let _ = folders(&group.path())
                .filter(|below| fs::remove_dir(below.path()).is_ok())
                .count();
            let _ = fs::remove_dir(group.path());
        }
    }
}

impl Drop for Node {
    /// Leaves no process behind, however the test has ended.
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        for entry in fs::read_dir(self.path("state/runs"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let Ok(text) = fs::read(entry.path().join(record::RUNNER)) else {
                continue;
            };
            let Ok(identity) = serde_json::from_slice::<RunnerIdentity>(&text) else {
                continue;
            };
            if muster_runner::alive(&identity) {
                let _ = kill_process(Pid::from_raw(identity.pid).unwrap(), Signal::KILL);
                wait_gone(identity.pid as u32);
            }
        }
        if self.as_owners {
            remove_cgroups();
        }
        if std::thread::panicking() {
            eprintln!("--- log of the agent of {}\n{}", self.name, self.log());
            return;
        }
        let start = Instant::now();
        while let Some(left) = self.anybody() {
            assert!(start.elapsed() < PATIENCE, "left behind: process {left}");
            std::thread::yield_now();
        }
    }
}
