//! A fake machine, and the agent's own probes that look at it. The tests are in `tests/`.
//! `senses-cost` measures the cost of looking, and `muster-fake-gpus` offers a fake machine's GPUs to
//! a real kubelet.

pub mod kubelet;
pub mod plugin;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use muster_agent::{
    config::{Config, Flags},
    daemon,
    probe::{Facts, HeldRun, Pace},
};
use muster_core::{health::Finding, node_report::NodeReport, usage::Usage};
use muster_fake_nvml::{fault, machine};
use tempfile::TempDir;
use tokio::sync::watch;

/// How often the probes look in the tests. A test must not wait long for the next look. If this
/// were shorter, a dozen machines side by side on two cores would take longer than three looks may,
/// and that looks like a hung driver.
pub const QUICK: Pace = Pace {
    glance: Duration::from_millis(250),
    fast: Duration::from_millis(250),
    counters: Duration::from_millis(250),
    slow: Duration::from_millis(500),
    usage: Duration::from_millis(500),
};

/// Only a loaded machine needs more than a moment of this.
const PATIENCE: Duration = Duration::from_secs(180);

/// A machine, its directory, and the state directory of an agent beside it.
#[derive(Debug)]
pub struct Machine {
    home: TempDir,
}

impl Machine {
    pub fn new(scenario: &str) -> Self {
        let made = Self {
            home: tempfile::tempdir().expect("a place for temporary files"),
        };
        let library = machine::built_library().expect("cargo builds the library beside the tests");
        machine::make(&made.dir(), scenario, "test", Some(&library))
            .expect("the scenario can be made");
        std::fs::create_dir_all(made.state_dir()).expect("the directory is ours");
        made
    }

    pub fn dir(&self) -> PathBuf {
        self.home.path().join("machine")
    }

    pub fn state_dir(&self) -> PathBuf {
        self.home.path().join("state")
    }

    pub fn inject(&self, target: &str, fault: &str) {
        fault::inject(&self.dir(), target, fault).expect("the fault can be injected");
    }

    /// An agent's configuration that looks at this machine.
    pub fn config(&self, pace: Pace, more: &[&str]) -> Config {
        let path = |path: PathBuf| {
            path.to_str()
                .expect("temporary files have plain names")
                .to_owned()
        };
        let fixed = [
            "muster-agent".to_owned(),
            "--node-name=n1".to_owned(),
            "--runner=/bin/sh".to_owned(),
            // What runs images is the real machine's.
            "--containers=none".to_owned(),
            format!("--state-dir={}", path(self.state_dir())),
            format!("--sysroot={}", path(self.dir().join(machine::SYSROOT))),
            format!("--nvml-library={}", path(self.dir().join(machine::LIBRARY))),
        ];
        let args = fixed
            .into_iter()
            .chain(more.iter().map(|arg| (*arg).to_owned()));
        let mut config = Flags::parse_from(args).check().expect("the flags are good");
        config.probes.pace = pace;
        config
    }

    /// Starts the probes on this machine.
    pub async fn look(&self, more: &[&str]) -> Eyes {
        Eyes::open(&self.config(QUICK, more)).await
    }
}

/// An agent's senses, and their last report.
pub struct Eyes {
    facts: Facts,
    pub report: NodeReport,
}

impl Eyes {
    pub async fn open(config: &Config) -> Self {
        let mut facts = daemon::facts(config);
        // After a while the agent goes on without the first look. A test on a loaded machine waits
        // for it.
        let looked = async { while !facts.first_look().await {} };
        tokio::time::timeout(PATIENCE, looked)
            .await
            .expect("the probes look at the machine");
        let report = facts.report();
        Self { facts, report }
    }

    /// Each look at how much of the machine is in use.
    pub fn usage(&self) -> watch::Receiver<Option<Arc<Usage>>> {
        self.facts.usage()
    }

    /// Tells the probes which runs the agent's supervisor holds.
    pub fn hold(&self, runs: &[HeldRun]) {
        self.facts.note_runs(runs.to_vec());
    }

    /// Waits until the report is as wanted. Panics with the last report if it never is.
    pub async fn until(&mut self, what: &str, is_so: impl Fn(&NodeReport) -> bool) -> &NodeReport {
        let seen = tokio::time::timeout(PATIENCE, async {
            while !is_so(&self.report) {
                self.facts.changed().await;
                self.report = self.facts.report();
            }
        });
        assert!(
            seen.await.is_ok(),
            "never saw that {what}; findings: {:#?}, error: {:?}",
            self.report.health,
            self.report.gpu_error
        );
        &self.report
    }

    /// Waits for a finding of this check, and returns it.
    pub async fn finding(&mut self, check: &str) -> Finding {
        let of_check = |report: &NodeReport| {
            report
                .health
                .findings
                .iter()
                .find(|finding| finding.check == check)
                .cloned()
        };
        let report = self
            .until(&format!("{check} is found"), |report| {
                of_check(report).is_some()
            })
            .await;
        of_check(report).expect("waited for")
    }

    /// Waits until this check has no finding.
    pub async fn no_finding(&mut self, check: &str) {
        self.until(&format!("{check} is gone"), |report| {
            !report
                .health
                .findings
                .iter()
                .any(|finding| finding.check == check)
        })
        .await;
    }
}

/// The folder of a machine's golden report.
pub fn golden(scenario: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/node-reports")
        .join(format!("{scenario}.json"))
}
