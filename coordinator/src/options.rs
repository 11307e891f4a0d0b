//! The command line of `muster-coordinator`. Every flag can also be set in the environment.

mod kubernetes;
mod site;
mod turns;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, ValueEnum};
use muster_core::{fleet::Policy, id::Term, period};
use muster_rpc::listen;
use muster_runtime::{
    telemetry::{DEFAULT_FILTER, LogFormat},
    version::version,
};

pub use kubernetes::KubernetesOptions;
pub use site::SiteOptions;
pub use turns::TurnOptions;

use crate::trust;

/// Central daemon of Muster: hears the agents, decides, serves users.
///
/// Runs until SIGTERM or SIGINT; a second signal ends it at once. Workers never notice whether it
/// runs. Its whole state is in --state-dir, which two coordinators cannot share; with --store kubernetes
/// it is in the cluster, and several can run.
#[derive(Clone, Debug, Parser)]
#[command(name = "muster-coordinator", version = version(), max_term_width = 120, after_help = "\
Commands, each with its own --help:
  init       make the certificate authority, so that other machines can be served; with --service also a service of systemd
  remove     take that service away
  authority  change the authority while everything runs
  token      create join tokens for nodes and users, list and delete them
  user       give users roles, list them, take them away
  deny       deny a node or user everything; allow takes it back
  pin        print the pin by which other machines know this coordinator
  crd        print the CustomResourceDefinitions of MusterJob and MusterRecord objects")]
pub struct Options {
    /// Address and port to listen on; port 0 takes a free one. After `muster-coordinator init`
    /// and with --tls-cert-file everything here is TLS, and any address may be given, as 0.0.0.0:7070. Without it only
    /// loopback addresses are allowed, and only this coordinator's own user and root are served.
    #[arg(long, env = "MUSTER_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:7070", value_parser = listen::parse_address)]
    pub listen: SocketAddr,

    /// Address and port at which a Prometheus finds /metrics; port 0 takes a free one. Without it there is
    /// none. It is plain HTTP, and everybody who reaches it may read it: names of jobs, namespaces and
    /// nodes with their figures, and nothing of what jobs run or print. Example: 127.0.0.1:7071.
    #[arg(long, env = "MUSTER_METRICS_LISTEN", value_name = "ADDR", value_parser = listen::parse_address)]
    pub metrics_listen: Option<SocketAddr>,

    /// Names and IP addresses at which agents and users call this coordinator. Makes the certificate
    /// authority if there is none, as `muster-coordinator init` does, or adds the names.
    #[arg(long, env = "MUSTER_SERVER_NAMES", value_name = "NAME,...", value_delimiter = ',', value_parser = parse_server_name)]
    pub server_names: Vec<String>,

    /// Serve also callers whose user the kernel cannot tell, for example those in another network
    /// namespace. Insecure: anybody can become such a caller.
    #[arg(long, env = "MUSTER_ACCEPT_UNKNOWN_PEERS", hide = true)]
    pub accept_unknown_peers: bool,

    /// Directory of the coordinator's state; made if it is not there.
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR")]
    pub state_dir: PathBuf,

    /// Where jobs and nodes are recorded. `kubernetes`: in MusterRecord objects in the namespace of the
    /// pod or kubeconfig. Then several coordinators may run: one decides at a time, the others stand
    /// by, and --state-dir need not survive its pod. It needs the rights that
    /// manifests/components/two-coordinators grants.
    #[arg(
        long,
        env = "MUSTER_STORE",
        value_name = "WHERE",
        value_enum,
        default_value_t
    )]
    pub store: StoreKind,

    /// The pod of this coordinator. With --store kubernetes it has the label muster.dev/leader=true while
    /// this coordinator decides, so that a Service finds the right one.
    #[arg(long, env = "MUSTER_POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,

    /// For how long the right to decide lasts without a renewal, with --store kubernetes. For tests.
    #[arg(long, env = "MUSTER_LEASE", value_name = "PERIOD", default_value = "15s", value_parser = period::parse, hide = true)]
    pub lease: Duration,

    /// File to write, whole or not at all, once the coordinator serves:
    /// {"endpoint":"http://ADDR","pid":N}, and with --metrics-listen also "metrics":"URL". Removed at the end.
    #[arg(long, env = "MUSTER_READY_FILE", value_name = "FILE")]
    pub ready_file: Option<PathBuf>,

    /// File with rules that say which receivers (webhooks, chats, an Alertmanager) are told of what: jobs that failed or
    /// stand still, nodes that were cordoned. docs/notifications.md describes it. Read at the start.
    #[arg(long, env = "MUSTER_NOTIFY", value_name = "FILE")]
    pub notify: Option<PathBuf>,

    /// File to append the statistics of every turn to, one JSON object in a line. For benchmarks.
    #[arg(long, env = "MUSTER_TURN_STATS", value_name = "FILE", hide = true)]
    pub turn_stats: Option<PathBuf>,

    /// For how long the certificates of nodes and users are valid. For tests.
    #[arg(long, env = "MUSTER_CERTIFICATE_LIFE", value_name = "PERIOD", default_value = "30d", value_parser = period::parse, hide = true)]
    pub certificate_life: Duration,

    /// Lowest term to start with. Needed only after an old copy of the state was restored; the
    /// agents' errors then ask for it.
    #[arg(long, env = "MUSTER_MIN_TERM", value_name = "N", default_value = "0", hide_default_value = true, value_parser = parse_term)]
    pub min_term: Term,

    /// Check all flags and exit, with status 0 if they are right.
    #[arg(long = "check")]
    pub only_check: bool,

    /// How logs are written to standard error.
    #[arg(
        long,
        env = "MUSTER_LOG_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value_t
    )]
    pub log_format: LogFormat,

    /// What is logged: a level, or a list as "muster_coordinator=debug,info".
    #[arg(long, env = "MUSTER_LOG_FILTER", value_name = "FILTER", default_value = DEFAULT_FILTER)]
    pub log_filter: String,

    #[command(flatten)]
    pub site: SiteOptions,

    #[command(flatten)]
    pub kubernetes: KubernetesOptions,

    #[command(flatten)]
    pub policy: PolicyOptions,
}

/// Where jobs and nodes are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// In a file in --state-dir
    #[default]
    File,
    /// In the API server of a Kubernetes cluster
    Kubernetes,
}

/// All timings and bounds of the fleet. Periods are written as 500ms, 10s, 1m30s or 2h.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Policy")]
pub struct PolicyOptions {
    /// How often an agent sends a heartbeat; less often if more than 2,000 nodes are connected.
    #[arg(long, env = "MUSTER_HEARTBEAT", value_name = "PERIOD", default_value = "1s", value_parser = period::parse)]
    pub heartbeat: Duration,

    /// Missed heartbeats after which a node is Suspect.
    #[arg(
        long,
        env = "MUSTER_SUSPECT_MISSED",
        value_name = "N",
        default_value = "3"
    )]
    pub suspect_missed: u32,

    /// Missed heartbeats after which a node is Lost.
    #[arg(
        long,
        env = "MUSTER_LOST_MISSED",
        value_name = "N",
        default_value = "5"
    )]
    pub lost_missed: u32,

    /// How long failures are gathered to be judged together. The failure of a rank that was killed
    /// (SIGKILL) is judged at once.
    #[arg(long, env = "MUSTER_COALESCE", value_name = "PERIOD", default_value = "50ms", value_parser = period::parse)]
    pub coalesce: Duration,

    /// How long a rank that still runs may take to end with its own error, when every rank that has failed
    /// reports only a lost peer or a timeout.
    #[arg(long, env = "MUSTER_OWN_END", value_name = "PERIOD", default_value = "10s", value_parser = period::parse)]
    pub own_end: Duration,

    /// For how long after a start silence means nothing, plus 2 ms for each node.
    #[arg(long, env = "MUSTER_LISTEN_HOLD", value_name = "PERIOD", default_value = "10s", value_parser = period::parse)]
    pub listen_hold: Duration,

    /// How long a node may take to be ready for its workers.
    #[arg(long, env = "MUSTER_PREPARE_TIMEOUT", value_name = "PERIOD", default_value = "90s", value_parser = period::parse)]
    pub prepare_timeout: Duration,

    /// Wait before the second restart in a row after generations that made no progress. The wait
    /// doubles with each further restart.
    #[arg(long, env = "MUSTER_BACKOFF_FIRST", value_name = "PERIOD", default_value = "1s", value_parser = period::parse)]
    pub backoff_first: Duration,

    /// Longest wait before a restart.
    #[arg(long, env = "MUSTER_BACKOFF_MAX", value_name = "PERIOD", default_value = "5m", value_parser = period::parse)]
    pub backoff_max: Duration,

    /// How long a generation of a job that prints no step must run to count as progress, if its
    /// ranks are not seen to meet. If a job prints steps, a higher step than before counts.
    #[arg(long, env = "MUSTER_BACKOFF_RESET", value_name = "PERIOD", default_value = "1m", value_parser = period::parse)]
    pub backoff_reset: Duration,

    /// A node is cordoned after this many failures on it within --storm-window, if they are of at
    /// least two jobs.
    #[arg(
        long,
        env = "MUSTER_STORM_FAILURES",
        value_name = "N",
        default_value = "3"
    )]
    pub storm_failures: usize,

    /// How long a failure counts against its node.
    #[arg(long, env = "MUSTER_STORM_WINDOW", value_name = "PERIOD", default_value = "30m", value_parser = period::parse)]
    pub storm_window: Duration,

    /// How many nodes Muster may cordon within --cordon-window, in percent of all nodes; at least
    /// one.
    #[arg(long, env = "MUSTER_CORDON_PERCENT", value_name = "N", default_value = "2", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub cordon_percent: u32,

    /// The window of --cordon-percent.
    #[arg(long, env = "MUSTER_CORDON_WINDOW", value_name = "PERIOD", default_value = "10m", value_parser = period::parse)]
    pub cordon_window: Duration,

    /// How many nodes may be cordoned by Muster at a time, in percent of all nodes; at least one.
    /// Beyond that Muster stops and asks a person.
    #[arg(long, env = "MUSTER_CORDON_BREAKER_PERCENT", value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub cordon_breaker_percent: u32,

    /// If this share of the nodes, in percent and at least three nodes, falls silent within a
    /// minute, Muster cordons no node and leaves jobs alone whose nodes are all silent.
    #[arg(long, env = "MUSTER_MASS_LOSS_PERCENT", value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub mass_loss_percent: u32,

    /// The brake of --mass-loss-percent is released when no further node was lost for this long.
    #[arg(long, env = "MUSTER_MASS_LOSS_HOLD", value_name = "PERIOD", default_value = "10m", value_parser = period::parse)]
    pub mass_loss_hold: Duration,

    /// Accept the state as it is although nodes know more than it. What it does not know is
    /// stopped. For one start, after the newest state was lost.
    #[arg(long, env = "MUSTER_ACCEPT_STORE")]
    pub accept_store: bool,

    /// How many jobs are kept, including those that are over.
    #[arg(
        long,
        env = "MUSTER_JOBS_MAX",
        value_name = "N",
        default_value = "10000"
    )]
    pub jobs_max: usize,

    /// How many of them one namespace may have, so that its users leave room for others.
    #[arg(
        long,
        env = "MUSTER_NAMESPACE_JOBS_MAX",
        value_name = "N",
        default_value = "5000"
    )]
    pub namespace_jobs_max: usize,

    #[command(flatten)]
    pub turns: TurnOptions,

    /// How many jobs that are over leave a record in the history; 0: none. The oldest make room.
    #[arg(
        long,
        env = "MUSTER_HISTORY_RECORDS",
        value_name = "N",
        default_value = "10000"
    )]
    pub history_records: usize,

    /// For how many days a record stays in the history.
    #[arg(
        long,
        env = "MUSTER_HISTORY_DAYS",
        value_name = "N",
        default_value = "365"
    )]
    pub history_days: u32,

    /// How many jobs one namespace may submit in a second, once it has used up --submits-burst.
    #[arg(
        long,
        env = "MUSTER_SUBMITS_PER_SECOND",
        value_name = "N",
        default_value = "10"
    )]
    pub submits_per_second: u32,

    /// How many jobs one namespace may submit at once.
    #[arg(
        long,
        env = "MUSTER_SUBMITS_BURST",
        value_name = "N",
        default_value = "500"
    )]
    pub submits_burst: u32,

    /// How many nodes are known, including those that are gone. At the limit, the node that has
    /// been gone longest makes room for a new one, if it may be forgotten.
    #[arg(
        long,
        env = "MUSTER_NODES_MAX",
        value_name = "N",
        default_value = "20000"
    )]
    pub nodes_max: usize,

    /// Forget a node that has been gone for this long, unless it is cordoned or has workers that
    /// are not proven dead.
    #[arg(long, env = "MUSTER_FORGET_AFTER", value_name = "PERIOD", default_value = "48h", value_parser = period::parse)]
    pub forget_after: Duration,
}

impl PolicyOptions {
    /// The policy that the flags ask for, or which flag is wrong.
    pub fn policy(&self) -> Result<Policy, String> {
        // The intervals that an agent accepts: a hundred heartbeats a second are a flood, and one a
        // minute is as good as silence.
        const HEARTBEAT: std::ops::RangeInclusive<Duration> =
            Duration::from_millis(10)..=Duration::from_secs(60);
        if !HEARTBEAT.contains(&self.heartbeat) {
            return Err(format!(
                "--heartbeat: is {}, must be between 10ms and 1m",
                period::format(self.heartbeat)
            ));
        }
        if self.suspect_missed == 0 || self.lost_missed <= self.suspect_missed {
            return Err(format!(
                "--lost-missed: is {}, must be more than --suspect-missed, which is {} and must be at least 1",
                self.lost_missed, self.suspect_missed
            ));
        }
        if self.backoff_max < self.backoff_first {
            return Err(format!(
                "--backoff-max: is {}, must not be less than --backoff-first, which is {}",
                period::format(self.backoff_max),
                period::format(self.backoff_first)
            ));
        }
        if self.jobs_max == 0 {
            return Err("--jobs-max: must be at least 1".into());
        }
        for (flag, is_zero) in [
            ("--namespace-jobs-max", self.namespace_jobs_max == 0),
            ("--submits-per-second", self.submits_per_second == 0),
            ("--submits-burst", self.submits_burst == 0),
        ] {
            if is_zero {
                return Err(format!("{flag}: must be at least 1"));
            }
        }
        if self.history_days == 0 {
            return Err(
                "--history-days: must be at least 1; --history-records 0 keeps no history".into(),
            );
        }
        if self.history_records == 0 && self.turns.fair_share_half_life.is_some() {
            return Err(
                "--fair-share-half-life: what jobs that are over have used is read from the history, and --history-records 0 keeps none"
                    .into(),
            );
        }
        if self.nodes_max == 0 {
            return Err("--nodes-max: must be at least 1".into());
        }
        Ok(Policy {
            heartbeat: self.heartbeat,
            suspect_missed: self.suspect_missed,
            lost_missed: self.lost_missed,
            coalesce: self.coalesce,
            own_end: self.own_end,
            listen: self.listen_hold,
            prepare_timeout: self.prepare_timeout,
            backoff_first: self.backoff_first,
            backoff_max: self.backoff_max,
            backoff_reset: self.backoff_reset,
            storm_failures: self.storm_failures,
            storm_window: self.storm_window,
            cordon_percent: self.cordon_percent,
            cordon_window: self.cordon_window,
            cordon_breaker_percent: self.cordon_breaker_percent,
            mass_loss_percent: self.mass_loss_percent,
            mass_loss_hold: self.mass_loss_hold,
            jobs_max: self.jobs_max,
            namespace_jobs_max: self.namespace_jobs_max,
            history_max: self.history_records,
            history_for: Duration::from_secs(24 * 3600) * self.history_days,
            submits_per_second: self.submits_per_second,
            submits_burst: self.submits_burst,
            nodes_max: self.nodes_max,
            forget_after: self.forget_after,
            accept_store: self.accept_store,
            ..self.turns.policy()?
        })
    }
}

fn parse_server_name(text: &str) -> Result<String, String> {
    if trust::is_server_name(text) {
        return Ok(text.to_owned());
    }
    Err("is neither a DNS name nor an IP address".into())
}

fn parse_term(text: &str) -> Result<Term, std::num::ParseIntError> {
    text.parse().map(Term)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn options(flags: &[&str]) -> Options {
        Options::try_parse_from(
            ["muster-coordinator", "--state-dir", "/s"]
                .iter()
                .chain(flags),
        )
        .unwrap()
    }

    #[test]
    fn the_flags_defaults_are_the_policys() {
        Options::command().debug_assert();
        assert_eq!(options(&[]).policy.policy(), Ok(Policy::default()));
    }

    #[test]
    fn a_policy_that_contradicts_itself_names_its_flag() {
        let refused = |flags: &[&str]| options(flags).policy.policy().unwrap_err();
        assert_eq!(
            refused(&["--heartbeat", "5ms"]),
            "--heartbeat: is 5ms, must be between 10ms and 1m"
        );
        assert_eq!(
            refused(&["--lost-missed", "3"]),
            "--lost-missed: is 3, must be more than --suspect-missed, which is 3 and must be at least 1"
        );
        assert_eq!(
            refused(&["--backoff-max", "500ms"]),
            "--backoff-max: is 500ms, must not be less than --backoff-first, which is 1s"
        );
        assert_eq!(
            refused(&["--jobs-max", "0"]),
            "--jobs-max: must be at least 1"
        );
        assert_eq!(
            refused(&["--history-days", "0"]),
            "--history-days: must be at least 1; --history-records 0 keeps no history"
        );
        assert_eq!(
            refused(&["--fair-share-half-life", "7d", "--history-records", "0"]),
            "--fair-share-half-life: what jobs that are over have used is read from the history, and --history-records 0 keeps none"
        );
        assert_eq!(
            refused(&["--gpus-max", "a=1,b=2,a=3"]),
            "--gpus-max: a is there twice"
        );
        assert_eq!(
            refused(&["--user-gpus-max", "*=1,*=2"]),
            "--user-gpus-max: * is there twice"
        );
        assert_eq!(
            refused(&["--submits-burst", "0"]),
            "--submits-burst: must be at least 1"
        );
    }
}
