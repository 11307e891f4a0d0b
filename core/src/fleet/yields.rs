//! What a job gives up for one that waits: one of higher priority, or of a queue that has lent it.

use std::{collections::BTreeSet, fmt};

use crate::id::{JobName, NodeName};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Yields {
    /// The job that waits.
    pub to: JobName,
    pub priority: i32,
    /// The queue that takes back what it has lent, if priority is no reason.
    pub lent_by: Option<String>,
    /// What it gives up.
    pub nodes: BTreeSet<NodeName>,
    /// It gives up everything, and waits again.
    pub evicted: bool,
}

impl Yields {
    /// How those who may read of this job are told who takes it.
    pub(crate) fn to(&self, namespace: &str) -> String {
        match (&self.lent_by, self.to.namespace == namespace) {
            (None, true) => format!("{}, which has priority {}", self.to, self.priority),
            (None, false) => format!("a job of another namespace with priority {}", self.priority),
            (Some(queue), true) => format!("{}, whose queue {queue} has lent this", self.to),
            (Some(queue), false) => format!("a job of queue {queue}, which has lent this"),
        }
    }
}

/// The nodes.
impl fmt::Display for Yields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A few names help a reader. A thousand do not.
        const NAMED: usize = 8;
        let named: Vec<&str> = self
            .nodes
            .iter()
            .take(NAMED)
            .map(NodeName::as_str)
            .collect();
        f.write_str(&named.join(", "))?;
        match self.nodes.len() > NAMED {
            true => write!(f, " and {} more", self.nodes.len() - NAMED),
            false => Ok(()),
        }
    }
}
