//! Is the hardware of a node fit to train on: readings in, findings with reasons out.
//!
//! Rules are data (`table.txt`, and an operator's file over it): which check, from which threshold
//! on, how severe, what would remedy it. [`Judge`] applies them to readings that the agent's probes
//! bring, keeps baselines per boot, and remembers what only a reboot or a reset may clear. It never
//! reads hardware itself, and never acts: what follows from a verdict is the coordinator's.
//!
//! | file | owns |
//! |---|---|
//! | `table` | rules, read from text |
//! | `judge` | readings against rules |
//! | `usage` | which readings a node's usage makes |
//! | `xid` | errors the driver numbers, counted once though told twice |
//! | `kernel_log` | which lines of the kernel log mean something |

use serde::{Deserialize, Serialize};

pub mod judge;
pub mod kernel_log;
pub mod table;
pub mod usage;
mod xid;

pub use judge::{Judge, Memory, Moment, Reading, Source, Value};
pub use table::{NoSuchWord, Remedy, Severity, Table, TableError};
pub use xid::{Channel, Xid};

/// What a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Subject {
    Node,
    /// By UUID.
    Gpu(String),
    /// By name.
    Nic(String),
}

/// Something wrong, since when, and why we think so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The rule, as `xid:79` or `row-remap-pending`.
    pub check: String,
    pub subject: Subject,
    pub severity: Severity,
    pub remedy: Remedy,
    /// A sentence with the evidence.
    pub reason: String,
    /// By the node's own clock, for people.
    pub since_unix_us: u64,
}

/// The rule that says that processes live on which nothing kills.
pub const WORKER_UNKILLABLE: &str = "worker-unkillable";
/// The rule that says that the machine will be taken away, as a spot instance is.
pub const TERMINATION_NOTICE: &str = "termination-notice";

/// All findings of a node, the worst first. None: nothing is known to be wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    pub findings: Vec<Finding>,
}

impl Health {
    /// The gravest finding about a subject itself.
    pub fn worst(&self, subject: &Subject) -> Option<&Finding> {
        self.findings
            .iter()
            .filter(|finding| &finding.subject == subject)
            .max_by_key(|finding| finding.severity)
    }

    /// The gravest finding that concerns a GPU: its own, or its node's.
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

    /// No new work may be placed on this GPU.
    pub fn withholds(&self, uuid: &str) -> bool {
        self.of_gpu(uuid)
            .is_some_and(|finding| finding.severity >= Severity::Drain)
    }

    /// Why nothing at all may be placed on the node, if so. A NIC that is out takes its node with
    /// it: NCCL hangs when one node has fewer.
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
