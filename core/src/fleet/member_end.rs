//! How one member of a generation ended, as its node last described it.

use serde::{Deserialize, Serialize};

use crate::{
    exit::Exit,
    nccl::stack::Stack,
    run::{LaneReport, RankReport, RunPhase, RunReport, StepsShown},
};

/// One member's run, as its node last described it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberEnd {
    pub phase: RunPhase,
    pub lane: LaneReport,
    pub stack: Stack,
    pub ranks: Vec<RankEnd>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankEnd {
    pub rank: u32,
    pub local_rank: u32,
    pub pid: u32,
    pub exit: Option<Exit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// Where the exception was raised, the innermost frame last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<String>,
    #[serde(default, skip_serializing_if = "StepsShown::is_empty")]
    pub steps: StepsShown,
}

impl From<&RunReport> for MemberEnd {
    fn from(run: &RunReport) -> Self {
        let (phase, lane, stack) = (run.phase.clone(), run.lane.clone(), run.stack.clone());
        Self {
            phase,
            lane,
            stack,
            ranks: run.ranks.iter().map(RankEnd::from).collect(),
        }
    }
}

impl From<&RankReport> for RankEnd {
    fn from(rank: &RankReport) -> Self {
        Self {
            rank: rank.rank,
            local_rank: rank.local_rank,
            pid: rank.pid,
            exit: rank.exit,
            first_step: rank.first_step,
            last_step: rank.last_step,
            first_error: rank.first_error.clone(),
            frames: rank
                .exception
                .as_ref()
                .map_or_else(Vec::new, |exception| exception.frames.clone()),
            steps: rank.steps.clone(),
        }
    }
}
