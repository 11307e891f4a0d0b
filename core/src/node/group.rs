//! One worker group as its runner describes it, and the report about it for the coordinator.
//!
//! A group holds until it is started. It then runs, and stops when it is told to or when its first
//! process fails that is not started again alone. It is dead once the runner has proven that no process of it lives. The words are
//! those of the runner, so that nothing is invented in between.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    exit::Exit,
    id::{Generation, Term},
    run::{
        Disobedience, Endpoint, Leftover, PhasesReport, RankReport, Refusal, RunId, RunPhase,
        RunReport, StepPatternFault, WorldReport,
    },
    time::Timestamp,
};

/// The phases of a group, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupPhase {
    Holding,
    Running,
    Stopping,
    Dead,
}

/// Everything that a runner knows. Times are on the agent's clock, which is also the runner's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    pub phase: GroupPhase,
    pub store: Option<Endpoint>,
    pub joined_ranks: Vec<u32>,
    pub all_joined_at: Option<Timestamp>,
    pub launched_at: Option<Timestamp>,
    pub torchrun_exit: Option<Exit>,
    /// The last lines of torchrun, if it failed.
    pub torchrun_error: Option<String>,
    pub dead_at: Option<Timestamp>,
    /// Its runner stopped it, because it had heard nothing of the coordinator for too long.
    pub fenced: bool,
    pub ranks: Vec<RankReport>,
    /// In a box, because it is large and mostly empty.
    pub world: Box<WorldReport>,
    pub leftovers: Vec<Leftover>,
    pub step_pattern_fault: Option<StepPatternFault>,
    /// In a box for the same reason.
    pub phases: Box<PhasesReport>,
}

impl GroupStatus {
    /// The status of a group that has not been started.
    pub fn holding() -> Self {
        Self {
            phase: GroupPhase::Holding,
            store: None,
            joined_ranks: Vec::new(),
            all_joined_at: None,
            launched_at: None,
            torchrun_exit: None,
            torchrun_error: None,
            dead_at: None,
            fenced: false,
            ranks: Vec::new(),
            world: Box::default(),
            leftovers: Vec::new(),
            step_pattern_fault: None,
            phases: Box::default(),
        }
    }
}

/// One line of a runner's journal of exits. The journal is what is left when the runner itself is
/// gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenExit {
    /// `None`: the launcher.
    pub rank: Option<u32>,
    /// Of the rank, as in [`RankReport`].
    pub attempt: u32,
    pub pid: u32,
    pub started_at: Timestamp,
    pub exit: Exit,
    pub exited_at: Timestamp,
}

/// A run found on disk when the agent starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub run: RunId,
    pub term: Term,
    pub gpus: Vec<String>,
    pub state: FoundState,
}

/// The state in which an agent finds a run at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundState {
    /// Its runner lives and has reported this status, or its end is recorded.
    Known(GroupStatus),
    /// Its runner lives but has not answered yet.
    Silent,
    /// Its runner is gone without a record of the end. At `at` nothing that it had started was
    /// left.
    Lost { exits: Vec<SeenExit>, at: Timestamp },
}

/// A run as this node knows it.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) term: Term,
    pub(super) gpus: Vec<String>,
    pub(super) hosts_store: bool,
    pub(super) state: State,
    /// The last requests to its runner.
    pub(super) start_asked: bool,
    pub(super) stop_asked: Option<Duration>,
    /// The last attempt of each rank that its runner was asked for.
    pub(super) restart_asked: BTreeMap<u32, u32>,
    /// The runner did not obey, and is being killed.
    pub(super) disobedience: Option<Disobedience>,
}

#[derive(Clone, Debug)]
pub(super) enum State {
    /// The runner is being started, or lives and has not reported yet.
    Waiting {
        alive: bool,
    },
    Up(GroupStatus),
    Refused(Refusal),
}

impl Run {
    pub(super) fn new(term: Term, gpus: Vec<String>, hosts_store: bool, state: State) -> Self {
        Self {
            term,
            gpus,
            hosts_store,
            state,
            start_asked: false,
            stop_asked: None,
            restart_asked: BTreeMap::new(),
            disobedience: None,
        }
    }

    pub(super) fn found(found: Found) -> Self {
        let state = match found.state {
            FoundState::Known(status) => State::Up(status),
            FoundState::Silent => State::Waiting { alive: true },
            FoundState::Lost { exits, at } => {
                let mut status = GroupStatus::holding();
                status.end(&exits, at);
                State::Up(status)
            }
        };
        Self::new(found.term, found.gpus, false, state)
    }

    /// Whether no process of this run lives, and none will.
    pub(super) fn is_over(&self) -> bool {
        match &self.state {
            State::Waiting { .. } => false,
            State::Up(status) => status.phase == GroupPhase::Dead,
            State::Refused(_) => true,
        }
    }

    /// Whether there is a runner that can take orders, heard or not.
    pub(super) fn has_runner(&self) -> bool {
        matches!(self.state, State::Up(_) | State::Waiting { alive: true })
    }

    /// Whether the runner is up, serves the TCPStore if it must, and has not started anything yet.
    pub(super) fn holds(&self) -> bool {
        match &self.state {
            State::Up(status) => {
                status.phase == GroupPhase::Holding && (status.store.is_some() || !self.hosts_store)
            }
            _ => false,
        }
    }

    /// Whether this attempt of a rank is the next one, and may begin: the one before has failed, and
    /// nothing ends the group.
    pub(super) fn awaits(&self, number: u32, attempt: u32) -> bool {
        let State::Up(status) = &self.state else {
            return false;
        };
        if status.phase != GroupPhase::Running || self.stop_asked.is_some() {
            return false;
        }
        status.ranks.iter().any(|rank| {
            let failed = rank.exit.is_some_and(|exit| !exit.is_success());
            rank.rank == number && rank.attempt + 1 == attempt && failed
        })
    }

    /// The report about this run. `clear`: no other run on this node prevents its start.
    pub(super) fn report(&self, run: &RunId, clear: bool) -> RunReport {
        let mut report = RunReport::preparing(run.clone(), self.term);
        report.phase = match &self.state {
            State::Refused(refusal) => RunPhase::Refused(refusal.reason.clone()),
            State::Waiting { alive: true } => RunPhase::Running,
            State::Waiting { alive: false } => RunPhase::Preparing,
            State::Up(status) => match status.phase {
                GroupPhase::Holding if self.stop_asked.is_some() => RunPhase::Stopping,
                GroupPhase::Holding if clear && self.holds() => RunPhase::Ready,
                GroupPhase::Holding => RunPhase::Preparing,
                GroupPhase::Running => RunPhase::Running,
                GroupPhase::Stopping => RunPhase::Stopping,
                GroupPhase::Dead => RunPhase::Dead,
            },
        };
        if let State::Refused(refusal) = &self.state {
            report.refused_due_to = refusal.due_to;
        }
        if let State::Up(status) = &self.state {
            report.store = status.store.clone();
            report.joined_ranks = status.joined_ranks.clone();
            report.all_joined_at = status.all_joined_at;
            report.launched_at = status.launched_at;
            report.torchrun_exit = status.torchrun_exit;
            report.torchrun_error = status.torchrun_error.clone();
            report.dead_at = status.dead_at;
            report.fenced = status.fenced;
            report.ranks = status.ranks.clone();
            report.world.clone_from(&status.world);
            report.phases.clone_from(&status.phases);
            report.leftovers = status.leftovers.clone();
            report.step_pattern_fault = status.step_pattern_fault;
        }
        report.disobedience.clone_from(&self.disobedience);
        report
    }
}

impl GroupStatus {
    /// The runner is gone, and its workers with it. Adds the exits in the journal to the last
    /// status.
    pub(super) fn end(&mut self, exits: &[SeenExit], at: Timestamp) {
        self.phase = GroupPhase::Dead;
        self.store = None;
        self.dead_at = Some(at);
        for seen in exits {
            let Some(number) = seen.rank else {
                self.torchrun_exit = Some(seen.exit);
                self.launched_at = self.launched_at.or(Some(seen.started_at));
                continue;
            };
            let place = match self.ranks.iter().position(|rank| rank.rank == number) {
                Some(place) => place,
                None => {
                    self.ranks
                        .push(RankReport::bare(number, self.ranks.len() as u32));
                    self.ranks.len() - 1
                }
            };
            let rank = &mut self.ranks[place];
            if seen.attempt < rank.attempt {
                continue;
            }
            if seen.attempt > rank.attempt {
                // What is known of the attempt before says nothing about this one.
                *rank = RankReport {
                    attempt: seen.attempt,
                    ..RankReport::bare(number, rank.local_rank)
                };
            }
            rank.pid = seen.pid;
            rank.started_at = Some(seen.started_at);
            rank.exit = Some(seen.exit);
            rank.exited_at = Some(seen.exited_at);
        }
    }
}

/// The range of all runs of the same job with an older generation.
pub(super) fn older_than(run: &RunId) -> std::ops::Range<RunId> {
    RunId {
        job: run.job.clone(),
        generation: Generation(0),
    }..run.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(attempt: u32, code: i32) -> SeenExit {
        SeenExit {
            rank: Some(0),
            attempt,
            pid: 7,
            started_at: Timestamp(5),
            exit: Exit::Code(code),
            exited_at: Timestamp(9),
        }
    }

    fn running(attempt: u32) -> GroupStatus {
        GroupStatus {
            phase: GroupPhase::Running,
            ranks: vec![RankReport {
                attempt,
                first_error: Some("of the attempt that was seen last".into()),
                ..RankReport::bare(0, 0)
            }],
            ..GroupStatus::holding()
        }
    }

    #[test]
    fn the_journal_tells_of_the_newest_attempt_alone() {
        // The journal is older than what was seen: that attempt lived to the end.
        let mut status = running(2);
        status.end(&[seen(1, 3)], Timestamp(10));
        assert_eq!((status.ranks[0].attempt, status.ranks[0].exit), (2, None));
        // It knows of an attempt that nobody has seen.
        let mut status = running(1);
        status.end(&[seen(2, 3)], Timestamp(10));
        let rank = &status.ranks[0];
        assert_eq!((rank.attempt, rank.exit), (2, Some(Exit::Code(3))));
        assert_eq!(rank.first_error, None, "that was another attempt's");
    }
}
