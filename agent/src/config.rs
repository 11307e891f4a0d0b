//! The flags, and the configuration that they give once all of them are checked.

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Parser;
use muster_core::{
    id::NodeName,
    node::standby::Most,
    node_report::{
        labels::{LABELS_MAX, label_key_error, label_value_error},
        taint::{TAINTS_MAX, Taint},
    },
    period,
};
use muster_rpc::Address;
use muster_runner::{pod::LEAVING, wire::PortRange};
use muster_runtime::{telemetry, telemetry::LogFormat, version::version};

use crate::{
    probe::{Pace, Probes, settings},
    proof::Proof,
    run_dir::LOGS_MAX_MIB,
    step_formats,
};

mod awaited;
mod containers;
mod kubelet;
mod place;
mod proof;
mod users;

use awaited::{interfaces, peers};
pub use containers::{Containers, Engines};
use kubelet::kubelet;
pub use place::credentials_path;
pub(crate) use place::host_name;
use place::{address, coordinator, joined, node_name};
pub use proof::Shown;
pub use users::Users;
use users::users;

/// The daemon of one node: reports the node to the coordinator and runs its share of every job.
///
/// Runners, which are separate processes, hold the workers. Workers go on while the agent is
/// stopped, restarted or upgraded, and a new agent on the same state directory finds them again. To
/// end the workers, cancel the job.
#[derive(Clone, Debug, Parser)]
#[command(name = "muster-agent", version = version(), max_term_width = 110, after_help = "\
SIGTERM and SIGINT end the agent and leave all workers running.

Examples:
  # Serve a coordinator on this machine as node-1
  muster-agent --coordinator http://127.0.0.1:7070 --node-name node-1 --state-dir /var/lib/muster/agent

  # Join a coordinator on another machine, once, with a token of `muster-coordinator token create`; then serve it
  MUSTER_TOKEN=... muster-agent join https://train.example.org:7070 --ca-pin sha256:... --state-dir /var/lib/muster/agent
  muster-agent --state-dir /var/lib/muster/agent

  # In a pod of a coordinator with --kubernetes-agents: show the pod's token
  muster-agent --coordinator https://muster-coordinator.muster-system:7070 --state-dir /var/lib/muster/agent \\
    --token-file /var/run/secrets/muster/token --ca-file /etc/muster/ca.crt

  # Take two worker groups at a time, with a label for placement
  muster-agent --node-name node-1 --state-dir /var/lib/muster/agent --slots 2 --label rack=r7")]
pub struct Flags {
    /// The coordinator's address [default: the one that was joined, else http://127.0.0.1:7070]
    #[arg(long, env = "MUSTER_COORDINATOR", value_name = "URL")]
    pub coordinator: Option<String>,
    #[command(flatten)]
    pub shown: Shown,
    /// This node's name, unique in the fleet; the one that was joined with, or the host name, if not
    /// given
    #[arg(long, env = "MUSTER_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
    /// Where the agent keeps its durable state, its runs and their logs; one agent per directory
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR")]
    pub state_dir: PathBuf,
    /// The IP address at which other nodes reach this one [default: the one from which this machine
    /// reaches the coordinator, looked up again at every dial]
    #[arg(long, env = "MUSTER_ADDRESS", value_name = "IP")]
    pub address: Option<String>,
    /// A label of this node, for placement; may be given several times
    #[arg(
        long = "label",
        env = "MUSTER_LABELS",
        value_name = "KEY=VALUE",
        value_delimiter = ','
    )]
    pub labels: Vec<String>,
    /// A taint of this node, as kubectl taint has it: KEY=VALUE:EFFECT or KEY:EFFECT, with the effect NoSchedule, NoExecute
    /// (here the same: nothing that runs is stopped) or PreferNoSchedule. Only jobs that tolerate it get the node; may be given several times
    #[arg(
        long = "taint",
        env = "MUSTER_TAINTS",
        value_name = "TAINT",
        value_delimiter = ',',
        value_parser = Taint::read
    )]
    pub taints: Vec<Taint>,
    /// More labels, one KEY=VALUE a line; '#' begins a comment
    #[arg(long, env = "MUSTER_LABEL_FILE", value_name = "FILE")]
    pub label_file: Option<PathBuf>,
    /// How many members of jobs, without GPUs, this node runs at a time
    #[arg(long, env = "MUSTER_SLOTS", value_name = "N", default_value_t = 1)]
    pub slots: u32,
    /// Space for the logs of runs that are over, in all; the oldest go first. Each job keeps those of
    /// its 4 newest generations and of the first that failed. What a run that goes on has written is
    /// not counted: at most 128 MiB for each rank
    #[arg(long, env = "MUSTER_LOGS_MAX", value_name = "MIB", default_value_t = LOGS_MAX_MIB)]
    pub logs_max: u64,
    /// The runner's program; muster-runner beside this one if not given
    #[arg(long, env = "MUSTER_RUNNER", value_name = "PATH")]
    pub runner: Option<PathBuf>,
    #[command(flatten)]
    pub engines: Engines,
    /// Workers live in another container of this pod, whose first process is `muster-runner pod --dir
    /// DIR`. Both containers mount this volume at the same path, and have the same user
    #[arg(long, env = "MUSTER_POD", value_name = "DIR")]
    pub pod: Option<PathBuf>,
    /// The kubelet's socket pod-resources/kubelet.sock, to ask which pods hold which GPUs. What a pod holds
    /// is not given to jobs, and worker pods get the health of their GPUs. Only root can call it, as a rule
    #[arg(long, env = "MUSTER_POD_RESOURCES", value_name = "PATH")]
    pub pod_resources: Option<PathBuf>,
    /// The agent's own pod. What it holds, by the word of the kubelet, is this node's
    #[arg(long, env = "MUSTER_OWN_POD", value_name = "NAMESPACE/NAME")]
    pub own_pod: Option<String>,
    /// Only look at the node, and take no work. The agent then starts no worker, whoever asks
    #[arg(long, env = "MUSTER_SENSES_ONLY")]
    pub senses_only: bool,
    /// Which of this machine's GPUs belong to this node: all, none, one of equal parts such as 2/3,
    /// or UUIDs and indices
    #[arg(long, env = "MUSTER_GPUS", value_name = "WHICH", default_value = "all")]
    pub gpus: String,
    /// How many GPUs this node should have; fewer are a finding from the first look on
    #[arg(long, env = "MUSTER_EXPECT_GPUS", value_name = "N")]
    pub expect_gpus: Option<u32>,
    /// Health rules that replace the built-in rules of the same name (form:
    /// core/src/health/table.txt)
    #[arg(long, env = "MUSTER_HEALTH_RULES", value_name = "FILE")]
    pub health_rules: Option<PathBuf>,
    /// This node's address as other nodes see it, if the network translates addresses (NAT); may be
    /// given several times. A job's TCPStore takes connections only from the
    /// addresses of its members
    #[arg(
        long,
        env = "MUSTER_OUTER_ADDRESS",
        value_name = "ADDRESS",
        value_delimiter = ','
    )]
    pub outer_address: Vec<IpAddr>,
    /// The ports that the TCPStores of jobs may have, for a firewall between nodes [default: a free
    /// port that the kernel chooses]
    #[arg(long, env = "MUSTER_PORT_RANGE", value_name = "FIRST-LAST")]
    pub port_range: Option<PortRange>,
    /// More formats in which programs print their steps (form: steps/src/formats.txt)
    #[arg(long, env = "MUSTER_STEP_FORMATS", value_name = "FILE")]
    pub step_formats: Option<PathBuf>,
    /// The NVIDIA management library; the loader finds it if not given
    #[arg(long, env = "MUSTER_NVML_LIBRARY", value_name = "FILE")]
    pub nvml_library: Option<PathBuf>,
    /// The directory below which /sys, /proc and /dev are read for the node's facts
    #[arg(
        long,
        env = "MUSTER_SYSROOT",
        value_name = "DIR",
        default_value = "/",
        hide = true
    )]
    pub sysroot: PathBuf,
    /// Take no work until this interface, such as a WireGuard one, is up and has an address; may be
    /// given several times
    #[arg(
        long,
        env = "MUSTER_WAIT_INTERFACE",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub wait_interface: Vec<String>,
    /// Take no work until this peer has answered once: its port accepts or, without a port, the
    /// host at least refuses; may be given several times
    #[arg(
        long,
        env = "MUSTER_WAIT_PEER",
        value_name = "HOST[:PORT]",
        value_delimiter = ','
    )]
    pub wait_peer: Vec<String>,
    /// While this file exists, the machine is about to be taken away, as a spot instance is: jobs
    /// leave it at once, with their stop grace. Its first line is shown [default:
    /// termination-notice in the state directory]
    #[arg(long, env = "MUSTER_NOTICE_FILE", value_name = "FILE")]
    pub notice_file: Option<PathBuf>,
    /// How often to look at the hardware; facts that change seldom are read less often
    #[arg(
        long,
        env = "MUSTER_PROBE_EVERY",
        value_name = "PERIOD",
        default_value = "5s",
        hide = true
    )]
    pub probe_every: String,
    /// Print this node's report as JSON and exit
    #[arg(long)]
    pub print_report: bool,
    /// Check all flags and exit, with status 0 if the agent would start with them
    #[arg(long = "check")]
    pub only_check: bool,
    /// Keep no launchers: jobs with a fast launch lane import torch at every start
    #[arg(long, alias = "no-spares", env = "MUSTER_NO_LAUNCHERS")]
    pub no_launchers: bool,
    /// Never run the lanes' compatibility suite here by itself, for an interpreter that nobody has proven.
    /// Its jobs then take a slower lane, unless they ask for another or `muster-agent prove` was run
    #[arg(long, env = "MUSTER_NO_PROVE")]
    pub no_prove: bool,
    /// Ranks open no worker server, whatever their job says: `muster stacks` shows only what the kernel
    /// knows of them
    #[arg(long, env = "MUSTER_NO_INSPECT")]
    pub no_inspect: bool,
    /// Let workers run as root if the agent does: every program that a job names then owns this
    /// machine
    #[arg(long, env = "MUSTER_ALLOW_ROOT_WORKERS")]
    pub allow_root_workers: bool,
    /// Start each job as its owner: its runner and its ranks, and the look for what it names. The owner's
    /// name in the cluster must be the name of an account of this machine, neither root nor one of the
    /// system. The agent itself runs as root
    #[arg(long, env = "MUSTER_RUN_AS_OWNER")]
    pub run_as_owner: bool,
    /// Which owner is which account, in place of the names, one a line: OWNER ACCOUNT, where ACCOUNT is a
    /// name, or UID:GID[:GROUP,...[:HOME[:SHELL]]]. Owners who are not in it run nothing here
    #[arg(long, env = "MUSTER_USER_MAP", value_name = "FILE")]
    pub user_map: Option<PathBuf>,
    /// Also talk to a coordinator if the kernel cannot tell which user runs it, as in another
    /// network namespace. Insecure: anybody can arrange that
    #[arg(long, env = "MUSTER_ACCEPT_UNKNOWN_PEERS", hide = true)]
    pub accept_unknown_peers: bool,
    /// Memory that all launchers of this node may take together; a launcher that exceeds it
    /// is ended
    #[arg(
        long,
        alias = "spare-memory-max",
        env = "MUSTER_LAUNCHER_MEMORY_MAX",
        value_name = "MIB"
    )]
    pub launcher_memory_max: Option<u64>,
    /// How many launchers with torch imported this node keeps ready for future jobs, for the
    /// interpreters that its jobs used last. The first start of such a job takes half a second and
    /// imports nothing. Each launcher takes 250 to 350 MiB, which counts towards --launcher-memory-max.
    /// They are the first to end when all launchers take too much, or while less than a tenth of
    /// the node's memory is available. A job whose environment differs takes none
    #[arg(long, env = "MUSTER_WARM_POOL", value_name = "N", default_value_t = 0)]
    pub warm_pool: u32,
    /// The most that standbys may hold on this node. A standby waits beside each rank of a job with
    /// GPUs, with its GPU open, and becomes the rank after a failure. An open one holds 400 MiB of its
    /// GPU while it waits, a parked one none of it and 2 GiB of the machine's memory. off: there are
    /// none
    #[arg(
        long,
        env = "MUSTER_STANDBYS",
        value_name = "off|parked|open",
        default_value = "open"
    )]
    pub standbys: String,
    /// Write {"node": NAME, "pid": PID} to this file once all runs of an earlier agent are found
    /// again
    #[arg(long, env = "MUSTER_READY_FILE", value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// How log lines look
    #[arg(
        long,
        env = "MUSTER_LOG_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value_t
    )]
    pub log_format: LogFormat,
    /// What is logged, as "info" or "muster_agent=debug,info"
    #[arg(long, env = "MUSTER_LOG_FILTER", value_name = "FILTER", default_value = telemetry::DEFAULT_FILTER)]
    pub log_filter: String,
}

/// Everything that the flags say, checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub coordinator: Address,
    /// What this node shows to a coordinator that speaks TLS.
    pub identity: Option<Proof>,
    /// The name that must stand in the coordinator's certificate, if not the one in its address.
    pub server_name: Option<String>,
    /// Talk to the coordinator even if the kernel cannot tell which user runs it.
    pub accept_unknown: bool,
    pub node: NodeName,
    pub state_dir: PathBuf,
    /// The volume that the container for workers shares, if workers do not live beside the agent.
    pub pod: Option<PathBuf>,
    /// The agent starts no worker.
    pub senses_only: bool,
    pub containers: Option<Containers>,
    /// As whom jobs run.
    pub users: Users,
    pub address: IpAddr,
    /// The address is the one from which this machine reaches the coordinator, and follows it if
    /// that becomes another one.
    pub follows_address: bool,
    /// The ports that a TCPStore may have.
    pub port_range: Option<PortRange>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub slots: u32,
    /// How many bytes the logs of runs that are over may take.
    pub logs_max: u64,
    pub runner: PathBuf,
    /// Keep launchers ready for the next generation of jobs whose lane uses them.
    pub launchers: bool,
    /// How many bytes all these launchers may take.
    pub launcher_memory_max: Option<u64>,
    /// Prove interpreters that nobody has proven, while the node is idle.
    pub proves: bool,
    /// Ranks may open torch's worker server.
    pub inspects: bool,
    /// How many launchers that belong to no job are kept ready.
    pub warm_pool: u32,
    /// The most that standbys may hold of a GPU while they wait.
    pub standbys: Most,
    pub ready_file: Option<PathBuf>,
    /// The operator's formats of steps, as text that was checked.
    pub step_formats: Option<String>,
    pub probes: Probes,
}

fn most_standbys(word: &str) -> Result<Most, WrongFlag> {
    let known = Most::ALL.iter().find(|(name, _)| *name == word);
    known.map(|(_, most)| *most).ok_or_else(|| {
        let words = Most::ALL.map(|(name, _)| name).join(", ");
        wrong("standbys", format!("is {word:?}, must be one of {words}"))
    })
}

/// A flag whose value cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}: {message}")]
pub struct WrongFlag {
    pub flag: &'static str,
    pub message: String,
}

fn wrong(flag: &'static str, message: impl Into<String>) -> WrongFlag {
    WrongFlag {
        flag,
        message: message.into(),
    }
}

/// A node has at most this many groups at once. The coordinator takes 64 runs in one report, and
/// half of them may be ended runs that wait to be acknowledged.
const SLOTS_MAX: u32 = 32;

/// More than the jobs that start on a node at the same moment. With 350 MiB each, 8 launchers take
/// 2.8 GiB.
const WARM_POOL_MAX: u32 = 8;

impl Config {
    /// Where the directory of all runs is.
    pub(crate) fn holds_runs(&self) -> &Path {
        self.pod.as_ref().unwrap_or(&self.state_dir)
    }
}

impl Flags {
    /// Checks that workers may run as `user`, the number of the agent's own user.
    pub fn check_user(&self, user: u32) -> Result<(), WrongFlag> {
        if self.run_as_owner {
            return match user {
                0 => Ok(()),
                _ => Err(wrong(
                    "run-as-owner",
                    "only root can start a job as another user; start the agent as root",
                )),
            };
        }
        if user != 0 || self.allow_root_workers || self.senses_only {
            return Ok(());
        }
        let message = "this agent runs as root, and every program that a job names would too; start it as a user of its own, start \
                       each job as its owner (--run-as-owner), or give this flag if root is meant, as in a container of its own";
        Err(wrong("allow-root-workers", message))
    }

    pub fn check(self) -> Result<Config, WrongFlag> {
        let state_dir =
            std::path::absolute(&self.state_dir).map_err(|e| wrong("state-dir", e.to_string()))?;
        let shown = self.shown;
        let joined = if shown.names_files() {
            None
        } else {
            joined(&state_dir)?
        };
        let node = node_name(self.node_name, joined.as_ref())?;
        let coordinator = coordinator(self.coordinator, joined.as_ref())?;
        let own = joined.map(|_| credentials_path(&state_dir));
        let identity = proof::checked(&coordinator, own, &shown)?;
        if self.slots > SLOTS_MAX {
            return Err(wrong(
                "slots",
                format!("is {}, at most {SLOTS_MAX} are allowed", self.slots),
            ));
        }
        if self.warm_pool > WARM_POOL_MAX {
            return Err(wrong(
                "warm-pool",
                format!("is {}, at most {WARM_POOL_MAX} are allowed", self.warm_pool),
            ));
        }
        if self.warm_pool > 0 && self.no_launchers {
            return Err(wrong(
                "warm-pool",
                "keeps launchers, and --no-launchers forbids them",
            ));
        }
        if self.senses_only && (self.pod.is_some() || self.warm_pool > 0) {
            return Err(wrong(
                "senses-only",
                "takes no work, and --pod and --warm-pool are for work",
            ));
        }
        if self.run_as_owner && (self.pod.is_some() || self.senses_only || self.allow_root_workers)
        {
            return Err(wrong(
                "run-as-owner",
                "cannot be with --pod, --senses-only or --allow-root-workers: in a pod its container says as whom workers run",
            ));
        }
        let users = users(self.run_as_owner, self.user_map.as_deref())?;
        if let Some(dir) = users::closed(&state_dir).filter(|_| self.run_as_owner) {
            return Err(wrong(
                "state-dir",
                format!(
                    "{} is below {}, which other users cannot enter, and jobs run as their owners: chmod o+x it, or take another directory",
                    state_dir.display(),
                    dir.display()
                ),
            ));
        }
        let not_hosts = self.run_as_owner || self.senses_only || self.pod.is_some();
        let containers = containers::containers(self.engines, !not_hosts)?;
        let kubelet = kubelet(self.pod_resources, self.own_pod)?;
        let pod = self.pod.map(std::path::absolute).transpose();
        let pod = pod.map_err(|e| wrong("pod", e.to_string()))?;
        for (flag, dir) in [("state-dir", Some(&state_dir)), ("pod", pod.as_ref())] {
            if let Some(dir) = dir.filter(|dir| dir.to_str().is_none()) {
                let message =
                    format!("{dir:?} is not UTF-8, and workers get it in their environment");
                return Err(wrong(flag, message));
            }
        }
        Ok(Config {
            address: address(self.address.as_deref(), &coordinator)?,
            follows_address: self.address.is_none(),
            port_range: self.port_range,
            identity,
            server_name: shown.server_name,
            coordinator,
            accept_unknown: self.accept_unknown_peers,
            node: NodeName::from(node),
            state_dir,
            pod: pod.clone(),
            users,
            senses_only: self.senses_only,
            containers,
            labels: labels(&self.labels, self.label_file.as_deref())?,
            taints: match self.taints.len() {
                0..=TAINTS_MAX => self.taints,
                many => {
                    let why = format!("{many} are given, at most {TAINTS_MAX} are allowed");
                    return Err(wrong("taint", why));
                }
            },
            slots: match self.senses_only {
                true => 0,
                false => self.slots,
            },
            logs_max: self.logs_max.saturating_mul(1 << 20),
            runner: match &pod {
                // The other container brings its own.
                Some(_) => PathBuf::new(),
                None if self.senses_only => PathBuf::new(),
                None => runner(self.runner)?,
            },
            launchers: !self.no_launchers && !self.senses_only,
            launcher_memory_max: self
                .launcher_memory_max
                .map(|mib| mib.saturating_mul(1 << 20)),
            proves: !self.no_prove && !self.no_launchers && !self.senses_only && pod.is_none(),
            inspects: !self.no_inspect,
            warm_pool: self.warm_pool,
            standbys: most_standbys(&self.standbys)?,
            ready_file: self.ready_file,
            step_formats: step_formats::given(self.step_formats.as_deref())
                .map_err(|e| wrong("step-formats", e))?,
            probes: Probes {
                outer_addresses: self.outer_address,
                sysroot: self.sysroot,
                nvml: self.nvml_library,
                gpus: self.gpus.parse().map_err(|e: String| wrong("gpus", e))?,
                expected_gpus: self.expect_gpus,
                table: settings::table(self.health_rules.as_deref())
                    .map_err(|e| wrong("health-rules", e))?,
                pace: pace(&self.probe_every)?,
                // An agent that only prints must not write into a running agent's memory.
                remembers: !self.print_report,
                wait_interfaces: interfaces(self.wait_interface)?,
                wait_peers: peers(&self.wait_peer)?,
                notice_file: self
                    .notice_file
                    .or_else(|| Some(pod.as_ref()?.join(LEAVING))),
                pod,
                kubelet,
            },
        })
    }
}

fn pace(text: &str) -> Result<Pace, WrongFlag> {
    let every = period::parse(text).map_err(|e| wrong("probe-every", e))?;
    let (shortest, longest) = (Duration::from_millis(100), Duration::from_secs(300));
    match every {
        every if every < shortest || every > longest => Err(wrong(
            "probe-every",
            format!("{text} is not between 100ms and 5m"),
        )),
        every => Ok(Pace::every(every)),
    }
}

/// The labels from the flags and from a file.
fn labels(given: &[String], file: Option<&Path>) -> Result<BTreeMap<String, String>, WrongFlag> {
    let mut labels = BTreeMap::new();
    let mut given = given.to_vec();
    if let Some(path) = file {
        let text = fs::read_to_string(path)
            .map_err(|e| wrong("label-file", format!("{}: {e}", path.display())))?;
        let lines = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default().trim());
        given.extend(lines.filter(|line| !line.is_empty()).map(str::to_owned));
    }
    for label in &given {
        let Some((key, value)) = label.split_once('=') else {
            return Err(wrong("label", format!("{label:?} is not KEY=VALUE")));
        };
        // A job could not name another one, so nobody could choose the node by it.
        if let Some(why) = label_key_error(key).or_else(|| label_value_error(value)) {
            return Err(wrong("label", format!("{label:?} is no label: {why}")));
        }
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(wrong("label", format!("{key:?} is given twice")));
        }
    }
    if labels.len() > LABELS_MAX {
        return Err(wrong(
            "label",
            format!(
                "{} are given, at most {LABELS_MAX} are allowed",
                labels.len()
            ),
        ));
    }
    Ok(labels)
}

/// The runner as an absolute path, because it is started in another working directory.
fn runner(given: Option<PathBuf>) -> Result<PathBuf, WrongFlag> {
    let path = match given {
        Some(path) => path,
        None => std::env::current_exe()
            .map_err(|e| wrong("runner", format!("own program: {e}")))?
            .with_file_name("muster-runner"),
    };
    let path =
        fs::canonicalize(&path).map_err(|e| wrong("runner", format!("{}: {e}", path.display())))?;
    let mode =
        fs::metadata(&path).map_err(|e| wrong("runner", format!("{}: {e}", path.display())))?;
    if !mode.is_file() || mode.permissions().mode() & 0o111 == 0 {
        return Err(wrong(
            "runner",
            format!("{} is not a program", path.display()),
        ));
    }
    Ok(path)
}

#[cfg(test)]
mod tests;
