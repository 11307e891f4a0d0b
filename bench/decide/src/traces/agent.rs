//! A simulated agent and its node: it does what it is told, at once, and reports it. It is the least that the brain accepts: nothing
//! fails, every start succeeds, and a stop needs no grace. It keeps its own account of who has which GPU, and says so if one is given
//! to two.

use std::collections::BTreeMap;

use muster_core::{
    exit::Exit,
    hello::Hello,
    id::{NodeEpoch, NodeName, SessionId, Term},
    node_report::{Gpu, NodeReport},
    protocol::Speaks,
    run::{
        Assignment, Desired, DesiredRun, Endpoint, RankReport, RunId, RunPhase, RunReport, Target,
    },
    time::Timestamp,
};

#[derive(Default)]
pub(super) struct Agent {
    number: usize,
    gpus: u32,
    pub(super) desired: Option<Desired>,
    runs: BTreeMap<RunId, RunReport>,
    /// The GPUs of each run that is not over.
    held: BTreeMap<RunId, Vec<String>>,
}

/// What an agent did that the world has to know.
#[derive(Debug)]
pub(super) enum Did {
    /// It started so many members with so many GPUs together, of a generation with so many members.
    Started {
        run: RunId,
        members: u32,
        gpus: u32,
        of: u32,
    },
    /// It ended a run as it was told.
    Stopped(RunId),
    /// It was told to get ready with a GPU that another run has.
    HeldTwice(String),
}

pub(super) fn session(node: usize) -> SessionId {
    SessionId(1 + node as u64)
}

/// The node whose session it is.
pub(super) fn node_of(session: SessionId) -> usize {
    session.0 as usize - 1
}

fn uuid(node: usize, index: u32) -> String {
    format!("GPU-{node:05}-{index}")
}

impl Agent {
    pub(super) fn new(number: usize, gpus: u32) -> Self {
        Self {
            number,
            gpus,
            ..Self::default()
        }
    }

    pub(super) fn hello(&self) -> Hello {
        let number = self.number;
        let gpu = |index: u32| Gpu {
            uuid: uuid(number, index),
            index,
            model: "NVIDIA H100 80GB HBM3".into(),
            memory_bytes: 80 << 30,
            ..Gpu::default()
        };
        Hello {
            node: NodeName::from(format!("node-{number:05}").as_str()),
            boot_id: format!("boot-{number}"),
            uptime: None,
            incarnation: 1,
            speaks: Speaks::OURS,
            term_seen: Term(0),
            epoch_seen: NodeEpoch(0),
            jobs_seen: BTreeMap::new(),
            report: NodeReport {
                address: format!("10.0.{}.{}", number / 256, number % 256),
                slots: 1,
                gpus: (0..self.gpus).map(gpu).collect(),
                ..NodeReport::default()
            },
            runs: Vec::new(),
        }
    }

    pub(super) fn free(&self) -> u32 {
        let held: usize = self.held.values().map(Vec::len).sum();
        self.gpus - (held as u32).min(self.gpus)
    }

    pub(super) fn report(&self) -> Vec<RunReport> {
        self.runs.values().cloned().collect()
    }

    /// Obeys what it was told last. Returns whether its runs are others than before.
    pub(super) fn obey(&mut self, now: Timestamp, did: &mut Vec<Did>) -> bool {
        let Some(desired) = self.desired.take() else {
            return false;
        };
        let mut changed = false;
        for wanted in desired.runs {
            changed |= self.reach(wanted, desired.term, now, did);
        }
        changed
    }

    fn reach(
        &mut self,
        wanted: DesiredRun,
        term: Term,
        now: Timestamp,
        did: &mut Vec<Did>,
    ) -> bool {
        let run = wanted.run;
        let phase = self.runs.get(&run).map(|report| report.phase.clone());
        match (wanted.target, phase) {
            (Target::Ready(assignment), None) => {
                self.prepare(&run, &assignment, term, did);
                true
            }
            (Target::Running(assignment, _), Some(RunPhase::Ready)) => {
                let report = self.runs.get_mut(&run).expect("it is ready");
                start(report, &assignment, now);
                did.push(Did::Started {
                    members: assignment.members.len().max(1) as u32,
                    gpus: assignment.gpus.len() as u32,
                    of: assignment.node_count,
                    run,
                });
                true
            }
            (Target::Stopped { .. }, Some(RunPhase::Dead)) => false,
            (Target::Stopped { .. }, _) => {
                let fresh = || RunReport::preparing(run.clone(), term);
                let report = self.runs.entry(run.clone()).or_insert_with(fresh);
                (report.phase, report.dead_at) = (RunPhase::Dead, Some(now));
                self.held.remove(&run);
                did.push(Did::Stopped(run));
                true
            }
            (Target::Gone { .. }, Some(_)) => {
                self.held.remove(&run);
                self.runs.remove(&run);
                true
            }
            _ => false,
        }
    }

    /// Gets ready for a run. It needs no time, so the older generation of the same job is dead if it was told so.
    fn prepare(&mut self, run: &RunId, assignment: &Assignment, term: Term, did: &mut Vec<Did>) {
        for gpu in &assignment.gpus {
            let holder = self.held.iter().find(|(_, gpus)| gpus.contains(gpu));
            if let Some((holder, _)) = holder {
                did.push(Did::HeldTwice(format!(
                    "{gpu} of {holder} is given to {run}"
                )));
            }
        }
        self.held.insert(run.clone(), assignment.gpus.clone());
        let mut report = RunReport::preparing(run.clone(), term);
        report.phase = RunPhase::Ready;
        report.store = assignment.hosts_store.then(|| Endpoint {
            host: "10.0.0.1".into(),
            port: 4_000,
        });
        self.runs.insert(run.clone(), report);
    }

    /// All ranks of this run have joined. They show no steps: one that shows a step must show more.
    pub(super) fn join(&mut self, run: &RunId, now: Timestamp) {
        if let Some(report) = self.runs.get_mut(run) {
            report.all_joined_at = Some(now);
        }
    }

    /// All ranks of this run end well, and nothing of it is left.
    pub(super) fn finish(&mut self, run: &RunId, now: Timestamp) {
        self.held.remove(run);
        let Some(report) = self.runs.get_mut(run) else {
            return;
        };
        for rank in &mut report.ranks {
            (rank.exit, rank.exited_at) = (Some(Exit::Code(0)), Some(now));
        }
        report.torchrun_exit = Some(Exit::Code(0));
        (report.phase, report.dead_at) = (RunPhase::Dead, Some(now));
    }
}

fn start(report: &mut RunReport, assignment: &Assignment, now: Timestamp) {
    (report.phase, report.launched_at) = (RunPhase::Running, Some(now));
    let rank = |(rank, local): (u32, u32)| RankReport {
        pid: 1_000 + rank,
        started_at: Some(now),
        ..RankReport::bare(rank, local)
    };
    report.ranks = assignment.ranks().into_iter().map(rank).collect();
}
