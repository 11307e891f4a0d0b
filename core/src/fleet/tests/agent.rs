//! An agent of the tests, which obeys at once.

use super::*;
use crate::run::{Assignment, DesiredRun, Endpoint, Key, LauncherState, Start, Target};

/// The port that each agent chooses for a process.
pub(super) const PORT: u16 = 2222;

#[derive(Default)]
pub(super) struct Agent {
    pub(super) session: Option<SessionId>,
    pub(super) runs: BTreeMap<RunId, RunReport>,
    pub(super) desired: Option<Desired>,
    pub(super) boot: u32,
    pub(super) epoch: NodeEpoch,
    pub(super) seen: BTreeMap<JobUid, Obeyed>,
    /// The agent takes orders, but does nothing and reports nothing new.
    pub(super) frozen: bool,
    /// What its interpreter has. The agent reports this when a run is ready.
    pub(super) stack: Stack,
    /// The agent's incarnation. 0 means that the agent starts anew when it connects.
    pub(super) incarnation: u64,
    /// Jobs for which it should have a launcher ready, and what it has reported about them.
    pub(super) asked: Vec<JobUid>,
    pub(super) said: Vec<LauncherReport>,
    /// Its imports never end.
    pub(super) imports: bool,
    /// Why it refuses to get ready for jobs, if it does.
    pub(super) refuses: Option<String>,
    /// The runs that it was last told of.
    pub(super) told: Vec<DesiredRun>,
    /// It does not say which ports it has chosen.
    pub(super) keeps_port: bool,
}

impl Agent {
    /// What it reports about its launchers, if that is new.
    pub(super) fn launchers(&mut self) -> Option<Vec<LauncherReport>> {
        let state = || {
            self.refuses
                .clone()
                .map_or(LauncherState::Ready, LauncherState::Refused)
        };
        let asked = self.asked.iter().filter(|_| !self.imports);
        let launchers: Vec<LauncherReport> = asked
            .map(|job| LauncherReport {
                job: job.clone(),
                state: state(),
            })
            .collect();
        (launchers != self.said).then(|| {
            self.said = launchers.clone();
            launchers
        })
    }
}

/// What a node was last told of the run that it shall start.
pub(super) fn told(bench: &Bench, node: &str) -> (Assignment, Start) {
    let told = &bench.agents[&node.into()].told;
    let running = told.iter().find_map(|wanted| match &wanted.target {
        Target::Running(assignment, start) => Some((*assignment.clone(), start.clone())),
        _ => None,
    });
    running.unwrap()
}

/// `imports`: the imports of a starting launcher never end.
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
                run.port = assignment.framework.tells_peers().then_some(PORT);
                if assignment.framework.tells_peers() && assignment.is_shared() {
                    run.ports = (PORT..).take(assignment.members.len()).collect();
                }
                run.key = assignment.lends().then(|| Key("0".repeat(32)));
                run.store = assignment.hosts_store.then(|| Endpoint {
                    host: "127.0.0.1".into(),
                    port: 4000,
                });
            }
        }
        Target::Running(assignment, start) => {
            let run = runs.entry(desired.run.clone()).or_insert_with(fresh);
            if run.phase == RunPhase::Running {
                for rank in &mut run.ranks {
                    let failed = rank.exit.is_some_and(|exit| !exit.is_success());
                    let attempt = start.attempts.get(&rank.rank).copied();
                    if failed && attempt == Some(rank.attempt + 1) {
                        *rank = RankReport {
                            attempt: rank.attempt + 1,
                            ..rank_report(rank.rank, rank.local_rank, now)
                        };
                    }
                }
            }
            if run.phase == RunPhase::Ready {
                (run.phase, run.launched_at) = (RunPhase::Running, Some(now));
                let ranks = assignment.ranks().into_iter();
                run.ranks = ranks
                    .map(|(rank, local)| rank_report(rank, local, now))
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
