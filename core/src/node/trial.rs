//! When a node tries an interpreter that nobody has proven: once, while it has nothing else to do.

use std::{fmt, time::Duration};

use crate::time::Timestamp;

/// How long a node must have held nothing. Between two jobs of a queue there are seconds, and a trial
/// that begins then is only ended again.
pub const QUIET: Duration = Duration::from_secs(30);
/// Time between two looks at the node's memory.
const AGAIN: Duration = Duration::from_secs(60);

/// What the rule needs to know of the node.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Since when it holds no run that may live, and none is about to come. None: it holds one.
    pub idle_since: Option<Timestamp>,
    /// Bytes of memory that are available. None: the kernel does not say it.
    pub memory: Option<u64>,
    /// Bytes that a trial may take.
    pub needed: u64,
}

/// Why no trial begins now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotNow {
    /// The node belongs to its jobs.
    Busy,
    /// It has not been idle for long enough.
    Until(Timestamp),
    /// It has less memory available than a trial may take.
    Memory {
        available: u64,
        needed: u64,
        look_again: Timestamp,
    },
}

impl NotNow {
    /// When the answer may be another one although nothing has happened.
    pub fn look_again(self) -> Option<Timestamp> {
        match self {
            NotNow::Busy => None,
            NotNow::Until(at) => Some(at),
            NotNow::Memory { look_again, .. } => Some(look_again),
        }
    }
}

impl fmt::Display for NotNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotNow::Busy => f.write_str("the node has work"),
            NotNow::Until(_) => f.write_str("the node was idle for a short time only"),
            NotNow::Memory {
                available, needed, ..
            } => write!(
                f,
                "{} MiB of memory are available, and a trial may take {}",
                available >> 20,
                needed >> 20
            ),
        }
    }
}

/// Whether a trial may begin now.
pub fn may_begin(now: Timestamp, node: Node) -> Result<(), NotNow> {
    let Some(since) = node.idle_since else {
        return Err(NotNow::Busy);
    };
    if now.since(since) < QUIET {
        return Err(NotNow::Until(since + QUIET));
    }
    // A node whose memory is not known is not put at risk.
    match node.memory.unwrap_or_default() {
        available if available < node.needed => Err(NotNow::Memory {
            available,
            needed: node.needed,
            look_again: now + AGAIN,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_idle_node_with_memory_tries() {
        let at = |s: u64| Timestamp(s * 1_000_000);
        let node = Node {
            idle_since: Some(at(10)),
            memory: Some(8 << 30),
            needed: 8 << 30,
        };
        assert_eq!(may_begin(at(40), node), Ok(()));
        assert_eq!(may_begin(at(39), node), Err(NotNow::Until(at(40))));
        let busy = Node {
            idle_since: None,
            ..node
        };
        assert_eq!(may_begin(at(9_999), busy), Err(NotNow::Busy));
        assert_eq!(NotNow::Busy.look_again(), None, "its end is an input");
        for memory in [Some(1 << 30), None] {
            let why = may_begin(at(40), Node { memory, ..node }).unwrap_err();
            assert_eq!(why.look_again(), Some(at(100)), "{why}");
        }
    }
}
