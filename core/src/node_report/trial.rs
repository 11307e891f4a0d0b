//! What a node has found out about an interpreter by itself: the short half of the lanes'
//! compatibility suite, run there.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// How many trials of a node are reported. A node uses a few interpreters.
pub const TRIALS_MAX: usize = 16;
/// How many differences of one trial are kept, and how many bytes of each. One names the cause.
pub const DIFFERS_MAX: usize = 8;
pub const DIFFERS_BYTES_MAX: usize = 600;

/// One run of the short half of the suite.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    /// The interpreter's program.
    pub program: String,
    /// The whole version of torch, and the version of Python.
    pub torch: String,
    pub python: String,
    /// The version of the suite.
    pub suite: String,
    /// Microseconds since 1970, on the node's clock.
    pub at_unix_us: u64,
    /// What differs from plain torchrun, or why the suite could not be run, each with its script. Empty:
    /// the suite has passed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
}

impl Trial {
    pub fn passed(&self) -> bool {
        self.differs.is_empty()
    }

    /// The day on which it was run, as `2026-11-26`.
    pub fn day(&self) -> String {
        let text = Timestamp(self.at_unix_us).rfc3339();
        text.split('T').next().unwrap_or_default().to_owned()
    }

    /// The same with as much of the differences as a report may have.
    pub fn bounded(mut self) -> Self {
        self.differs.truncate(DIFFERS_MAX);
        for words in &mut self.differs {
            let end = (0..=DIFFERS_BYTES_MAX)
                .rev()
                .find(|at| words.is_char_boundary(*at));
            words.truncate(end.unwrap_or_default());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_difference_is_cut_between_two_characters() {
        let trial = Trial {
            differs: vec!["ä".repeat(400); 20],
            at_unix_us: 1_795_737_600_000_000,
            ..Trial::default()
        };
        let bounded = trial.bounded();
        assert_eq!(bounded.differs, vec!["ä".repeat(300); DIFFERS_MAX]);
        assert_eq!(bounded.day(), "2026-11-27");
        assert!(!bounded.passed());
    }
}
