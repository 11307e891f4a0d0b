//! A rank that makes the others wait.

use muster_proto::v1;
use serde::Serialize;

use super::super::words;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Slow {
    rank: u32,
    node: String,
    since: String,
    /// How long each step waits for it, and how long a step takes.
    wait_micros: u64,
    step_micros: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<String>,
    sentence: String,
}

impl From<v1::SlowRank> for Slow {
    fn from(slow: v1::SlowRank) -> Self {
        Slow {
            rank: slow.rank,
            node: slow.node,
            since: words::utc(slow.since_unix_us),
            wait_micros: slow.wait_us,
            step_micros: slow.step_us,
            causes: slow.causes,
            sentence: slow.sentence,
        }
    }
}
