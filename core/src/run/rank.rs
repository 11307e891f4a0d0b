//! What the output of a rank and its note say of it: the exception that ended it, and its steps. What
//! an end means for blame is decided in `exit`.

use serde::{Deserialize, Serialize};

use super::{RankReport, RunPhase, RunReport};
use crate::stall::Still;

/// A Python exception that ended a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankException {
    /// The qualified type, as Python prints it.
    pub name: String,
    /// Its text in one line, cut where it is too long.
    pub text: String,
    /// `FILE:LINE in FUNCTION`, the innermost last. Of many, the script's own and the innermost ones.
    pub frames: Vec<String>,
    /// It has left the script: the rank wrote it down then, or torch's hook for such exceptions has printed
    /// it. Otherwise it was read in the output, and the script may have handled it. A `SystemExit` that
    /// left the script may be the answer to a signal.
    pub left_script: bool,
}

/// What else a rank's output says about its steps. For display to users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepsShown {
    /// The step at which training ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The newest loss, as it was printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// The newest speed, as it was printed, with its unit: `9.84 it/s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// The name of the format that found the steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// About how many lines were read, as long as none of them had a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stepless_lines: Option<u64>,
}

impl StepsShown {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl RankReport {
    /// A rank that has shown nothing yet.
    pub fn bare(rank: u32, local_rank: u32) -> Self {
        Self {
            rank,
            local_rank,
            attempt: 1,
            pid: 0,
            started_at: None,
            exit: None,
            exited_at: None,
            killed_after: None,
            first_error: None,
            exception: None,
            tail: Vec::new(),
            first_step: None,
            first_step_at: None,
            last_step: None,
            last_step_at: None,
            steps: StepsShown::default(),
            still: None,
            arrivals: None,
        }
    }
}

impl RunReport {
    /// The newest look at when its ranks come to their collectives.
    pub fn look(&self) -> Option<u64> {
        let found = self.ranks.iter().filter_map(|rank| rank.arrivals.as_ref());
        found.map(|arrivals| arrivals.look).max()
    }

    /// If it trains and none of its living ranks moves: how many of them use a processor.
    pub fn busy_in_standstill(&self) -> Option<usize> {
        let living = self.ranks.iter().filter(|rank| rank.exit.is_none());
        let still: Vec<Still> = living.map(|rank| rank.still).collect::<Option<_>>()?;
        let busy = still.iter().filter(|still| still.idle_since.is_none());
        (self.phase == RunPhase::Running).then(|| busy.count())
    }
}
