//! One simulated node: a real session, and behind it a node that obeys at once. It notes the time
//! of every order.
//!
//! It is the fastest possible agent, so that the measurement shows the coordinator. A run is ready
//! as soon as it is requested, and dead as soon as it must stop, and one report tells both. So the
//! coordinator gets its reports in the worst possible burst.

use std::{collections::BTreeMap, time::Instant};

use muster_agent::simulated::{SimulatedAgent, Told};
use muster_core::{
    exit::Exit,
    id::Term,
    run::{Assignment, Desired, Endpoint, RankReport, RunId, RunPhase, RunReport, Target},
    time::Timestamp,
};
use muster_runtime::clock::Clock;
use tokio::sync::mpsc;

/// What a node was told, and when.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) node: usize,
    pub(crate) at: Instant,
    pub(crate) what: What,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum What {
    Welcome(u64),
    /// The node has the assignment of this generation.
    Assigned(u64),
    /// The node has the order to train in this generation.
    Running(u64),
    /// The last requested report was handed to the session.
    Reported,
}

/// An act that a node is made to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Do {
    /// Its worker dies, and its torchrun too.
    Die(Exit),
    /// Its worker prints a step.
    Step(u64),
}

pub(crate) struct Node {
    number: usize,
    agent: SimulatedAgent,
    term: Term,
    runs: BTreeMap<RunId, RunReport>,
    acts: mpsc::Receiver<Do>,
    seen: mpsc::Sender<Seen>,
}

impl Node {
    pub(crate) fn new(
        number: usize,
        agent: SimulatedAgent,
        acts: mpsc::Receiver<Do>,
        seen: mpsc::Sender<Seen>,
    ) -> Self {
        Self {
            number,
            agent,
            term: Term(0),
            runs: BTreeMap::new(),
            acts,
            seen,
        }
    }

    pub(crate) async fn run(mut self) {
        loop {
            tokio::select! {
                told = self.agent.told() => match told {
                    None => return,
                    Some(Told::Welcome { term, .. }) => {
                        self.term = term;
                        self.note(Instant::now(), What::Welcome(term.0)).await;
                    }
                    Some(Told::Desired(desired)) => self.obey(desired).await,
                },
                Some(act) = self.acts.recv() => {
                    self.act(act);
                    if matches!(act, Do::Die(_)) {
                        self.note(Instant::now(), What::Reported).await;
                    }
                }
            }
        }
    }

    async fn note(&self, at: Instant, what: What) {
        // Only at the very end nothing receives this any more.
        let _ = self
            .seen
            .send(Seen {
                node: self.number,
                at,
                what,
            })
            .await;
    }

    async fn obey(&mut self, desired: Desired) {
        let at = Instant::now();
        let before = self.runs.clone();
        for wanted in desired.runs {
            let run = wanted.run;
            match wanted.target {
                Target::Ready(assignment) if !self.runs.contains_key(&run) => {
                    self.note(at, What::Assigned(run.generation.0)).await;
                    self.runs
                        .insert(run.clone(), ready(run, self.term, &assignment));
                }
                Target::Running(assignment, _) => {
                    let report = self
                        .runs
                        .entry(run.clone())
                        .or_insert_with(|| ready(run.clone(), self.term, &assignment));
                    if report.phase == RunPhase::Ready {
                        train(report, &assignment);
                        self.note(at, What::Running(run.generation.0)).await;
                    }
                }
                Target::Stopped { .. } => {
                    if let Some(report) = self
                        .runs
                        .get_mut(&run)
                        .filter(|report| !report.phase.is_over())
                    {
                        die(report, Exit::Signal(15));
                    }
                }
                Target::Gone { .. } => drop(self.runs.remove(&run)),
                Target::Ready(_) => {}
            }
        }
        if self.runs != before {
            self.agent.report(self.runs.values().cloned().collect());
        }
    }

    fn act(&mut self, act: Do) {
        let Some(report) = self
            .runs
            .values_mut()
            .rfind(|report| report.phase == RunPhase::Running)
        else {
            return;
        };
        match act {
            Do::Die(how) => die(report, how),
            Do::Step(step) => {
                for rank in &mut report.ranks {
                    let at = Some(now());
                    (rank.last_step, rank.last_step_at) = (Some(step), at);
                    (rank.first_step, rank.first_step_at) =
                        (rank.first_step.or(Some(step)), rank.first_step_at.or(at));
                }
            }
        }
        self.agent.report(self.runs.values().cloned().collect());
    }
}

fn ready(run: RunId, term: Term, assignment: &Assignment) -> RunReport {
    let store = assignment.hosts_store.then(|| Endpoint {
        host: "127.0.0.1".into(),
        port: 29_500,
    });
    RunReport {
        phase: RunPhase::Ready,
        store,
        ..RunReport::preparing(run, term)
    }
}

fn train(report: &mut RunReport, assignment: &Assignment) {
    report.phase = RunPhase::Running;
    report.launched_at = Some(now());
    if assignment.hosts_store {
        report.all_joined_at = Some(now());
    }
    report.ranks = (0..assignment.proc_per_node)
        .map(|local| rank(assignment.first_rank + local, local))
        .collect();
}

fn rank(rank: u32, local_rank: u32) -> RankReport {
    RankReport {
        pid: 1_000 + local_rank,
        started_at: Some(now()),
        ..RankReport::bare(rank, local_rank)
    }
}

fn die(report: &mut RunReport, how: Exit) {
    report.phase = RunPhase::Dead;
    report.dead_at = Some(now());
    report.torchrun_exit = Some(Exit::Code(1));
    for rank in &mut report.ranks {
        (rank.exit, rank.exited_at) = (Some(how), Some(now()));
    }
}

fn now() -> Timestamp {
    Timestamp(Clock::Boot.now_us())
}
