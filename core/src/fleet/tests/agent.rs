//! An agent that does what it is told, at once.

use super::*;
use crate::run::{DesiredRun, Endpoint, SpareState, Target};

#[derive(Default)]
pub(super) struct Agent {
    pub(super) session: Option<SessionId>,
    pub(super) runs: BTreeMap<RunId, RunReport>,
    pub(super) desired: Option<Desired>,
    pub(super) boot: u32,
    pub(super) epoch: NodeEpoch,
    pub(super) seen: BTreeMap<JobUid, Obeyed>,
    /// Takes orders, but gets nothing done and says nothing new.
    pub(super) frozen: bool,
    /// What its interpreter has, said once a run is ready.
    pub(super) stack: Stack,
    /// 0: it is started anew when it dials.
    pub(super) incarnation: u64,
    /// Jobs it is to have a launcher ready for, and what it has said of them.
    pub(super) asked: Vec<JobUid>,
    pub(super) said: Vec<SpareReport>,
    /// Its imports take for ever.
    pub(super) imports: bool,
    /// What it says of jobs it is asked to get ready for.
    pub(super) refuses: Option<String>,
}

impl Agent {
    /// What it says of its launchers, if that is new.
    pub(super) fn spares(&mut self) -> Option<Vec<SpareReport>> {
        let state = || {
            self.refuses
                .clone()
                .map_or(SpareState::Ready, SpareState::Refused)
        };
        let asked = self.asked.iter().filter(|_| !self.imports);
        let spares: Vec<SpareReport> = asked
            .map(|job| SpareReport {
                job: job.clone(),
                state: state(),
            })
            .collect();
        (spares != self.said).then(|| {
            self.said = spares.clone();
            spares
        })
    }
}

/// `imports`: launchers that are started take for ever to import.
pub(super) fn obey(
    runs: &mut BTreeMap<RunId, RunReport>,
    desired: DesiredRun,
    term: Term,
    now: Timestamp,
    imports: bool,
) {
    let older_alive = runs.iter().any(|(id, run)| {
        id.job == desired.run.job && id.generation < desired.run.generation && !run.phase.is_over()
    });
    let fresh = || RunReport::preparing(desired.run.clone(), term);
    match desired.target {
        Target::Ready(assignment) => {
            let run = runs.entry(desired.run.clone()).or_insert_with(fresh);
            if run.phase == RunPhase::Preparing && !older_alive {
                run.phase = RunPhase::Ready;
                run.store = assignment.hosts_store.then(|| Endpoint {
                    host: "127.0.0.1".into(),
                    port: 4000,
                });
            }
        }
        Target::Running(assignment, _) => {
            let run = runs.entry(desired.run.clone()).or_insert_with(fresh);
            if run.phase == RunPhase::Ready {
                (run.phase, run.launched_at) = (RunPhase::Running, Some(now));
                let locals = 0..assignment.proc_per_node;
                run.ranks = locals
                    .map(|local| rank_report(assignment.first_rank + local, local, now))
                    .collect();
                if imports {
                    run.ranks.clear();
                }
            }
        }
        Target::Stopped { .. } => {
            let run = runs.entry(desired.run.clone()).or_insert_with(fresh);
            if !run.phase.is_over() {
                (run.phase, run.dead_at) = (RunPhase::Dead, Some(now));
            }
        }
        Target::Gone { .. } => drop(runs.remove(&desired.run)),
    }
}

fn rank_report(rank: u32, local_rank: u32, now: Timestamp) -> RankReport {
    RankReport {
        pid: 1000 + rank,
        started_at: Some(now),
        ..RankReport::bare(rank, local_rank)
    }
}
