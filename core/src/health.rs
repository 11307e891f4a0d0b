//! Judges whether a node's hardware is fit to train on: readings in, findings with reasons out.
//!
//! Rules are data (`table.txt`, and an operator's file on top of it): the check, its threshold, how
//! severe a finding is, and its remedy. [`Judge`] applies them to readings from the agent's probes,
//! keeps baselines for each boot, and remembers findings that only a reboot or a reset may clear.
//! It never reads hardware and never acts: the coordinator decides what follows from a finding.
//!
//! | file | owns |
//! |---|---|
//! | `table` | rules, read from text |
//! | `judge` | readings against rules |
//! | `usage` | the readings that come from a node's usage |
//! | `xid` | errors that the driver numbers, counted once though reported twice |
//! | `kernel_log` | the lines of the kernel log that mean something |

use serde::{Deserialize, Serialize};

use crate::id::RunId;

pub mod judge;
pub mod kernel_log;
pub mod table;
pub mod usage;
mod xid;

pub use judge::{Judge, Memory, Moment, Reading, Source, Value};
pub use table::{NoSuchWord, Remedy, Severity, Table, TableError};
pub use xid::{Channel, Xid};

/// The object that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Subject {
    Node,
    /// By UUID.
    Gpu(String),
    /// By name.
    Nic(String),
}

/// Something that is wrong, since when, and the evidence for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The rule that found it, as `xid:79` or `row-remap-pending`.
    pub check: String,
    pub subject: Subject,
    pub severity: Severity,
    pub remedy: Remedy,
    /// A sentence with the evidence.
    pub reason: String,
    /// By the node's own clock, in microseconds since 1970. Only for display.
    pub since_unix_us: u64,
    /// The runs that it is about, if it is about runs that the node holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunId>,
}

impl Finding {
    /// Whether it is about this run. An agent of the release before this field names
    /// runs only in the sentence. The sentence is read for one release, and then no more.
    pub fn is_about(&self, run: &RunId) -> bool {
        match self.runs.as_slice() {
            [] => run.is_named_in(&self.reason),
            runs => runs.contains(run),
        }
    }
}

/// The rule for processes that SIGKILL does not end.
pub const WORKER_UNKILLABLE: &str = "worker-unkillable";
/// The rule for connections that a TCPStore on this node has refused.
pub const TCPSTORE_REFUSAL: &str = "tcpstore-refusal";
/// The rule for a kubelet that does not say which pods hold GPUs.
pub const POD_RESOURCES: &str = "pod-resources";
/// The rule for a machine that will be taken away, such as a spot instance.
pub const TERMINATION_NOTICE: &str = "termination-notice";

/// All findings of a node, the worst first. Empty: nothing is known to be wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    pub findings: Vec<Finding>,
}

impl Health {
    /// The worst finding about this subject itself.
    pub fn worst(&self, subject: &Subject) -> Option<&Finding> {
        self.findings
            .iter()
            .filter(|finding| &finding.subject == subject)
            .max_by_key(|finding| finding.severity)
    }

    /// The worst finding that concerns a GPU: its own, or its node's.
    pub fn of_gpu(&self, uuid: &str) -> Option<&Finding> {
        let concerns =
            |finding: &&Finding| matches!(&finding.subject, Subject::Gpu(gpu) if gpu == uuid);
        let own = self
            .findings
            .iter()
            .filter(concerns)
            .max_by_key(|finding| finding.severity);
        own.into_iter()
            .chain(self.worst(&Subject::Node))
            .max_by_key(|finding| finding.severity)
    }

    /// Whether no new work may be placed on this GPU.
    pub fn withholds(&self, uuid: &str) -> bool {
        let grave = |finding: &Finding| finding.severity >= Severity::Drain;
        // Placement asks it for each GPU of the fleet.
        !self.findings.is_empty() && self.of_gpu(uuid).is_some_and(grave)
    }

    /// The finding for which nothing at all may be placed on the node, if there is one. A NIC that
    /// is out of service takes its whole node with it, because NCCL hangs if one node has fewer.
    pub fn withholds_node(&self) -> Option<&Finding> {
        let whole = |finding: &&Finding| {
            finding.severity >= Severity::Drain && !matches!(finding.subject, Subject::Gpu(_))
        };
        self.findings
            .iter()
            .filter(whole)
            .max_by_key(|finding| finding.severity)
    }
}
