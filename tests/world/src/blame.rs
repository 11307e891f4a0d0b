//! The coordinator's blames, each compared with what truly happened.

use muster_core::fleet::receipt::Cause;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Blame {
    /// What the coordinator says.
    pub cause: Cause,
    /// What truly happened to the blamed one, or why the blame is accepted all the same.
    pub truly: &'static str,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// It did happen, to the very run, rank or node that is named. Nothing had broken the
    /// generation before.
    First,
    /// It did happen to the blamed one, but something else had broken the generation before.
    Later,
    /// It did not happen. The blame is accepted for the reason given.
    Excused,
    /// Nothing is named, and the network between members had failed.
    Spared,
    /// Nothing is named, although a member had broken the generation.
    Missed,
}

impl Verdict {
    pub const ALL: [Verdict; 5] = [
        Verdict::First,
        Verdict::Later,
        Verdict::Excused,
        Verdict::Spared,
        Verdict::Missed,
    ];

    /// The verdict in words for people.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::First => "true, and the first cause",
            Verdict::Later => "true, and something else had come first",
            Verdict::Excused => "excused",
            Verdict::Spared => "nobody named, and the network had failed",
            Verdict::Missed => "nobody named, and somebody had done it",
        }
    }

    /// Whether something is named, or a job or node pays.
    pub fn is_blame(self) -> bool {
        matches!(self, Verdict::First | Verdict::Later | Verdict::Excused)
    }
}
