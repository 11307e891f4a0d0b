//! How the members of a generation ended: what their nodes said last of them, kept with the job.
//!
//! A node forgets a run as soon as its death is noted. Who asks afterwards how a job ended is
//! answered from here.

use serde::{Deserialize, Serialize};

use crate::{
    exit::Exit,
    fleet::Fleet,
    id::{JobUid, NodeName},
    nccl::stack::Stack,
    run::{LaneReport, RankReport, RunPhase, RunReport},
};

/// Ranks kept of one generation, beside those of the node that is to blame. 256 of about 120 bytes
/// are 30 KiB of a record.
const RANKS_MAX: usize = 256;

/// One member's run as its node described it last.
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
        }
    }
}

impl Fleet {
    /// Takes down how members of the last started generation ended, and forgets it of those before.
    pub(crate) fn keep_ends(&mut self, uid: &JobUid) {
        let job = &self.jobs[uid];
        let Some(last) = job.trained_last() else {
            return;
        };
        let (number, run) = (last.number, last.run(uid));
        let culprit = job
            .incidents
            .iter()
            .rev()
            .find(|incident| incident.from == Some(number))
            .and_then(|i| i.node.as_ref());
        let mut kept: usize = last.ends.values().map(|end| end.ranks.len().max(1)).sum();
        let mut new: Vec<(NodeName, MemberEnd)> = Vec::new();
        for name in last
            .dead
            .iter()
            .filter(|name| !last.ends.contains_key(*name))
        {
            let report = self
                .nodes
                .get(name)
                .and_then(|node| node.runs.get(&run))
                .filter(|report| report.phase.is_over());
            let Some(report) = report else { continue };
            let weight = report.ranks.len().max(1);
            if kept + weight <= RANKS_MAX || culprit == Some(name) {
                kept += weight;
                new.push((name.clone(), report.into()));
            }
        }
        let Some(job) = self.jobs.get_mut(uid) else {
            return;
        };
        for generation in job
            .retiring
            .iter_mut()
            .chain(&mut job.current)
            .chain(&mut job.history)
        {
            if generation.number == number {
                generation.ends.extend(std::mem::take(&mut new));
            } else if generation.number < number {
                generation.ends.clear();
            }
        }
    }
}
