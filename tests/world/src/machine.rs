//! One machine: its power, its disk, its runners and their worker processes. What outlives what is
//! the point of this file: an agent's death touches nothing here, a runner's takes its group along,
//! a power cut leaves only the disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::{
    exit::Exit,
    health::{Finding, Health, Remedy, Severity, Subject, TERMINATION_NOTICE},
    id::{NodeName, Term},
    node::{FoundState, GroupPhase, GroupStatus, Ledger, SeenExit},
    node_report::{Gpu, NodeReport},
    protocol::Speaks,
    run::{Assignment, Endpoint, RankReport, RunId},
    time::Timestamp,
};

use crate::{
    agent::AgentProcess,
    clock::Clock,
    leftovers::Left,
    planted::{Planted, on},
    strangers::{Disk, StateDir},
};

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: NodeName,
    pub(crate) powered: bool,
    pub(crate) boot: u32,
    pub(crate) booted: Timestamp,
    pub(crate) slots: u32,
    pub(crate) gpus: u32,
    pub(crate) agent: Option<AgentProcess>,
    pub(crate) agents_started: u64,
    /// The versions of the protocol its installed agent speaks.
    pub(crate) speaks: Speaks,
    /// On disk.
    pub(crate) ledger: Ledger,
    /// What the ledger was before it was written last.
    pub(crate) ledger_before: Option<Ledger>,
    /// Highest ledger ever persisted, for the check that none is forgotten.
    pub(crate) ledger_highest: Ledger,
    /// On disk; each with its runner and its processes, if they live.
    pub(crate) runs: BTreeMap<RunId, Group>,
    /// Runs of which the agent has said that they are over.
    pub(crate) said_over: BTreeSet<RunId>,
    /// Nothing gets through, silently: to the coordinator, and from it.
    pub(crate) up_cut: bool,
    pub(crate) down_cut: bool,
    pub(crate) slow_ms: u64,
    pub(crate) refuse_hold: bool,
    pub(crate) refuse_start: bool,
    pub(crate) gpus_hidden: bool,
    /// Its agent knows that the machine will be taken away, or that its network card is down.
    pub(crate) noticed: bool,
    pub(crate) nic_down: bool,
    pub(crate) unkillable: bool,
    /// The next write of the ledger fails.
    pub(crate) ledger_fails: bool,
    /// Writes of the ledger take long until then.
    pub(crate) disk_slow_until: Timestamp,
    /// The ledger's file cannot be read.
    pub(crate) ledger_damaged: bool,
    /// Ranks fail here until then.
    pub(crate) sick_until: Timestamp,
    pub(crate) ports: u16,
    /// How wrong its clock goes, in parts of a million.
    pub(crate) ppm: i32,
    pub(crate) agent_paused_until: Timestamp,
    /// Everything on it stands still until then, and its runners a little longer.
    pub(crate) stands_until: Timestamp,
    pub(crate) runners_wake: Timestamp,
    /// How long it has stood still since it was booted.
    pub(crate) slept: Duration,
    /// Which of its state directories the agent uses, and what lies in the other.
    pub(crate) state_dir: u32,
    pub(crate) other_dir: Option<Box<StateDir>>,
    /// The disk of the machine that had this name before, or has taken its place.
    pub(crate) other_disk: Option<Box<Disk>>,
    /// Its node was struck off, and nobody was welcomed as it since.
    pub(crate) struck_off: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    Starting,
    Up,
    Gone,
}

/// A worker group, held by its runner. Times are on the machine's clock.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) assignment: Assignment,
    pub(crate) term: Term,
    /// Of the agent that holds it.
    pub(crate) state_dir: u32,
    /// Unique in the world: events for a group that is gone find nobody.
    pub(crate) life: u64,
    pub(crate) runner: Runner,
    /// When the coordinator was heard, as far as its runner knows.
    pub(crate) heard: Option<Timestamp>,
    /// Its runner has stopped it since nothing was heard; or had to stop it all the same.
    pub(crate) fenced: bool,
    pub(crate) fence_closed: bool,
    pub(crate) phase: GroupPhase,
    pub(crate) store: Option<Endpoint>,
    /// Where it was told to meet, and the world that formed there.
    pub(crate) world: Option<u64>,
    pub(crate) launcher: bool,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) launched_at: Option<Timestamp>,
    pub(crate) joined_at: Option<Timestamp>,
    pub(crate) launcher_exit: Option<Exit>,
    pub(crate) dead_at: Option<Timestamp>,
    pub(crate) stop_asked: bool,
    /// On the world's clock: from then on it is killed.
    pub(crate) kill_at: Option<Timestamp>,
    pub(crate) reaping: bool,
    pub(crate) unkillable_until: Timestamp,
    /// A process that got away when its runner was killed.
    pub(crate) left: Option<Left>,
    pub(crate) released: bool,
    /// The connection between agent and runner, by number.
    pub(crate) line: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Rank {
    pub(crate) report: RankReport,
    pub(crate) alive: bool,
}

impl Machine {
    pub(crate) fn clock(&self, now: Timestamp) -> Timestamp {
        Clock::new(self.booted, Timestamp(0), self.ppm).at(now)
    }

    /// The moment of the world at which its clock will show this.
    pub(crate) fn when(&self, shown: Timestamp) -> Timestamp {
        Clock::new(self.booted, Timestamp(0), self.ppm).when(shown)
    }

    pub(crate) fn report(&self, extra_slots: u32) -> NodeReport {
        let gpu = |index: u32| Gpu {
            uuid: format!("{}-gpu-{index}", self.name),
            index,
            model: "H100".into(),
            memory_bytes: 80 << 30,
            ..Gpu::default()
        };
        let finding = |check: &str, subject: Subject| Finding {
            check: check.to_owned(),
            subject,
            severity: Severity::Drain,
            remedy: Remedy::None,
            reason: "as it says".to_owned(),
            since_unix_us: 0,
        };
        let findings = [
            self.noticed
                .then(|| finding(TERMINATION_NOTICE, Subject::Node)),
            self.nic_down
                .then(|| finding("port-down", Subject::Nic("mlx5_0".into()))),
        ];
        NodeReport {
            address: "10.0.0.1".into(),
            slots: self.slots + extra_slots,
            gpus: (0..self.gpus)
                .filter(|_| !self.gpus_hidden)
                .map(gpu)
                .collect(),
            health: Health {
                findings: findings.into_iter().flatten().collect(),
            },
            ..NodeReport::default()
        }
    }

    /// Runs with a living worker process.
    pub(crate) fn working(&self) -> impl Iterator<Item = (&RunId, &Group)> {
        self.runs.iter().filter(|(_, group)| group.works())
    }
}

impl Group {
    pub(crate) fn new(assignment: Assignment, term: Term, state_dir: u32, life: u64) -> Self {
        Self {
            assignment,
            term,
            state_dir,
            life,
            runner: Runner::Starting,
            heard: None,
            fenced: false,
            fence_closed: false,
            phase: GroupPhase::Holding,
            store: None,
            world: None,
            launcher: false,
            ranks: Vec::new(),
            launched_at: None,
            joined_at: None,
            launcher_exit: None,
            dead_at: None,
            stop_asked: false,
            kill_at: None,
            reaping: false,
            unkillable_until: Timestamp(0),
            left: None,
            released: false,
            line: 0,
        }
    }

    pub(crate) fn fence(&self) -> Option<Duration> {
        self.assignment.fence_after
    }

    /// Whether anything lives that uses what the group was given.
    pub(crate) fn works(&self) -> bool {
        self.left.is_some() || self.has_ranks()
    }

    pub(crate) fn has_ranks(&self) -> bool {
        self.ranks.iter().any(|rank| rank.alive)
    }

    /// Cannot be killed now, or could not when it was: the kernel ends it then before it does
    /// anything more.
    pub(crate) fn is_beyond_reach(&self, now: Timestamp) -> bool {
        now < self.unkillable_until
            || self
                .kill_at
                .is_some_and(|at| at <= now && at < self.unkillable_until)
    }

    /// Whether any process of the job is there, torchrun included.
    pub(crate) fn has_process(&self) -> bool {
        self.launcher || self.works()
    }

    /// Its runner is there and has it in hand.
    pub(crate) fn is_held(&self) -> bool {
        self.runner != Runner::Gone && self.phase != GroupPhase::Dead
    }

    pub(crate) fn failed(&self) -> bool {
        self.ranks
            .iter()
            .any(|rank| rank.report.exit.is_some_and(|exit| !exit.is_success()))
    }

    pub(crate) fn finished(&self) -> bool {
        !self.ranks.is_empty()
            && self
                .ranks
                .iter()
                .all(|rank| rank.report.exit.is_some_and(Exit::is_success))
    }

    /// Can still take part in a step: every rank lives, and nobody has told it to stop.
    pub(crate) fn trains(&self) -> bool {
        !self.ranks.is_empty() && !self.stop_asked && self.ranks.iter().all(|rank| rank.alive)
    }

    pub(crate) fn status(&self, joined: bool) -> GroupStatus {
        GroupStatus {
            phase: self.phase,
            store: self.store.clone(),
            joined_ranks: if joined {
                (0..self.assignment.world_size).collect()
            } else {
                Vec::new()
            },
            all_joined_at: self.joined_at,
            launched_at: self.launched_at,
            launcher_exit: self.launcher_exit,
            dead_at: self.dead_at,
            fenced: self.fenced,
            ranks: self.ranks.iter().map(|rank| rank.report.clone()).collect(),
            ..GroupStatus::holding()
        }
    }

    /// What the runner's journal of exits says after the runner is gone.
    pub(crate) fn journal(&self) -> Vec<SeenExit> {
        let seen = |rank: &Rank| {
            let report = &rank.report;
            Some(SeenExit {
                rank: Some(report.rank),
                pid: report.pid,
                started_at: report.started_at?,
                exit: report.exit?,
                exited_at: report.exited_at?,
            })
        };
        self.ranks.iter().filter_map(seen).collect()
    }

    /// What a starting agent finds; nothing, while the runner has not yet said on disk that it is
    /// there. `answers`: it has spoken already.
    pub(crate) fn found(&self, answers: bool, clock: Timestamp) -> Option<FoundState> {
        match self.runner {
            Runner::Starting => None,
            // Its agent has not proven yet that nothing of it lives.
            Runner::Gone if self.left.is_some() && !on(Planted::LeftUnlooked) => {
                Some(FoundState::Silent)
            }
            Runner::Gone if self.phase != GroupPhase::Dead => Some(FoundState::Lost {
                exits: self.journal(),
                at: clock,
            }),
            Runner::Up if !answers => Some(FoundState::Silent),
            _ => Some(FoundState::Known(self.status(self.joined_at.is_some()))),
        }
    }
}
