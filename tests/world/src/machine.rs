//! One machine: its power, its disk, its runners and their worker processes. This file shows what
//! outlives what. An agent's death touches nothing here. A runner's death ends its group. A power
//! cut leaves only the disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::{
    exit::Exit,
    health::{Finding, Health, Remedy, Severity, Subject, TERMINATION_NOTICE},
    id::{JobUid, NodeName, Term},
    node::{FoundState, GroupPhase, GroupStatus, Ledger, SeenExit},
    node_report::{Gpu, NodeReport},
    protocol::Speaks,
    run::{Assignment, Endpoint, Key, RankReport, RunId, RunReport},
    time::Timestamp,
};

use crate::{
    agent::AgentProcess,
    clock::Clock,
    leftovers::Left,
    planted::{Planted, on},
    pods::{Containers, KubeletGpu, Place},
    stalls::{Movement, Sees},
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
    /// The versions of the protocol that its installed agent speaks.
    pub(crate) speaks: Speaks,
    /// The ledger on its disk.
    pub(crate) ledger: Ledger,
    /// The ledger before its last write.
    pub(crate) ledger_before: Option<Ledger>,
    /// The highest ledger that was ever persisted. A check uses it to see that nothing is
    /// forgotten.
    pub(crate) ledger_highest: Ledger,
    /// The runs on its disk, each with its runner and its processes if they live.
    pub(crate) runs: BTreeMap<RunId, Group>,
    /// Runs that the agent has reported as over.
    pub(crate) said_over: BTreeSet<RunId>,
    /// Messages to the coordinator, or from it, are silently held up.
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
    /// Until then writes of the ledger take long.
    pub(crate) disk_slow_until: Timestamp,
    /// The file of the ledger cannot be read.
    pub(crate) ledger_damaged: bool,
    /// Until then ranks fail here.
    pub(crate) sick_until: Timestamp,
    pub(crate) ports: u16,
    /// How wrong its clock runs, in parts per million.
    pub(crate) ppm: i32,
    pub(crate) agent_paused_until: Timestamp,
    /// Until then everything on it stands still. Its runners wake a little later.
    pub(crate) stands_until: Timestamp,
    pub(crate) runners_wake: Timestamp,
    /// How long it has stood still since its boot.
    pub(crate) slept: Duration,
    /// Which of its state directories the agent uses, and the content of the other.
    pub(crate) state_dir: u32,
    pub(crate) other_dir: Option<Box<StateDir>>,
    /// The disk of the machine that had this name before, or that has taken its place.
    pub(crate) other_disk: Option<Box<Disk>>,
    /// An operator has deleted its node, and no agent was welcomed under its name since.
    pub(crate) struck_off: bool,
    /// It is a worker pod.
    pub(crate) pod: Option<Place>,
    /// The GPUs that its kubelet gives to pods.
    pub(crate) kubelet_gpus: Vec<KubeletGpu>,
    /// In its next hello its agent speaks of a job that is not its own; and whether one has done so.
    pub(crate) lies: bool,
    pub(crate) lied: bool,
    /// What its agent can say of ranks.
    pub(crate) sees: Sees,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    Starting,
    Up,
    Gone,
}

/// A worker group, held by its runner. Its times are on the machine's clock.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) assignment: Assignment,
    pub(crate) term: Term,
    /// The state directory of the agent that holds it.
    pub(crate) state_dir: u32,
    /// Unique in the world. Events for a group that is gone find no group.
    pub(crate) life: u64,
    pub(crate) runner: Runner,
    /// When the coordinator was last heard, as far as its runner knows.
    pub(crate) heard: Option<Timestamp>,
    /// `fenced`: its runner stopped it because the coordinator was not heard. `fence_closed`: its
    /// runner had to stop it for that reason, whatever it reports.
    pub(crate) fenced: bool,
    pub(crate) fence_closed: bool,
    pub(crate) phase: GroupPhase,
    pub(crate) store: Option<Endpoint>,
    /// The training that formed at the TCPStore where it was told to meet.
    pub(crate) world: Option<u64>,
    pub(crate) launcher: bool,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) launched_at: Option<Timestamp>,
    pub(crate) joined_at: Option<Timestamp>,
    pub(crate) torchrun_exit: Option<Exit>,
    pub(crate) dead_at: Option<Timestamp>,
    pub(crate) stop_asked: bool,
    /// From then on it is killed. On the world's clock.
    pub(crate) kill_at: Option<Timestamp>,
    pub(crate) reaping: bool,
    /// When its launcher tells the other ranks to end, because one has failed.
    pub(crate) term_at: Option<Timestamp>,
    pub(crate) unkillable_until: Timestamp,
    /// A process that escaped when the runner was killed.
    pub(crate) left: Option<Left>,
    pub(crate) released: bool,
    /// The number of an agent, and the status of this group that it was told last.
    pub(crate) told: Option<(u64, GroupStatus)>,
    /// Orders to start a rank again: from which agent, over which connection, the rank and its attempt.
    pub(crate) asked: BTreeSet<(u64, u64, u32, u32)>,
    /// The last agent that had it stopped.
    pub(crate) stopped_by: Option<u64>,
    /// The number of the connection between agent and runner.
    pub(crate) line: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Rank {
    pub(crate) report: RankReport,
    pub(crate) alive: bool,
    /// The next attempt was ordered, and has not begun.
    pub(crate) ordered: bool,
    pub(crate) movement: Movement,
}

impl Rank {
    pub(crate) fn new(report: RankReport) -> Self {
        Self {
            report,
            alive: true,
            ordered: false,
            movement: Movement::default(),
        }
    }
}

impl Machine {
    /// Whether it was ever given this job, in any of its state directories.
    pub(crate) fn has_had(&self, job: &JobUid) -> bool {
        let ledgers = [&self.ledger, &self.ledger_highest];
        let obeyed = ledgers.iter().any(|ledger| ledger.jobs.contains_key(job));
        let others = self.other_dir.as_ref().is_some_and(|dir| dir.has_had(job));
        obeyed || others || self.runs.keys().any(|run| &run.job == job)
    }

    pub(crate) fn clock(&self, now: Timestamp) -> Timestamp {
        Clock::new(self.booted, Timestamp(0), self.ppm).at(now)
    }

    /// The moment of the world at which the machine's clock will show this.
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
            runs: Vec::new(),
        };
        let findings = [
            self.noticed
                .then(|| finding(TERMINATION_NOTICE, Subject::Node)),
            self.nic_down
                .then(|| finding("port-down", Subject::Nic("mlx5_0".into()))),
        ];
        let mut report = NodeReport {
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
        };
        self.add_kubelet_gpus(&mut report);
        report
    }

    /// Whether something may happen on it: it is no pod, or one whose containers run.
    pub(crate) fn is_there(&self) -> bool {
        let runs = |pod: Place| matches!(pod.containers, Containers::Starting | Containers::Up);
        self.pod.is_none_or(runs)
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
            torchrun_exit: None,
            dead_at: None,
            stop_asked: false,
            kill_at: None,
            reaping: false,
            term_at: None,
            unkillable_until: Timestamp(0),
            left: None,
            released: false,
            told: None,
            asked: BTreeSet::new(),
            stopped_by: None,
            line: 0,
        }
    }

    pub(crate) fn fence(&self) -> Option<Duration> {
        self.assignment.fence_after
    }

    /// Whether any living process uses what the group was given.
    pub(crate) fn works(&self) -> bool {
        self.left.is_some() || self.has_ranks()
    }

    pub(crate) fn has_ranks(&self) -> bool {
        self.ranks.iter().any(|rank| rank.alive)
    }

    /// The group cannot be killed now. Or it could not when it was, and then the kernel ends it
    /// before it does anything more.
    pub(crate) fn is_beyond_reach(&self, now: Timestamp) -> bool {
        now < self.unkillable_until
            || self
                .kill_at
                .is_some_and(|at| at <= now && at < self.unkillable_until)
    }

    /// Whether any process of the job lives, including torchrun.
    pub(crate) fn has_process(&self) -> bool {
        self.launcher || self.works()
    }

    /// Its runner lives and controls it.
    pub(crate) fn is_held(&self) -> bool {
        self.runner != Runner::Gone && self.phase != GroupPhase::Dead
    }

    /// Whether a failure in it ends it.
    pub(crate) fn failed(&self) -> bool {
        self.ranks.iter().any(|rank| {
            let failed = rank.report.exit.is_some_and(|exit| !exit.is_success());
            failed && !self.waits(rank)
        })
    }

    pub(crate) fn finished(&self) -> bool {
        !self.ranks.is_empty()
            && self
                .ranks
                .iter()
                .all(|rank| rank.report.exit.is_some_and(Exit::is_success))
    }

    /// Whether every rank lives, and nothing has told it to stop.
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
            torchrun_exit: self.torchrun_exit,
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
                attempt: report.attempt,
                pid: report.pid,
                started_at: report.started_at?,
                exit: report.exit?,
                exited_at: report.exited_at?,
            })
        };
        let known = self.ranks.iter().filter(|rank| !rank.ordered);
        known.filter_map(seen).collect()
    }

    /// What a starting agent finds. It finds nothing as long as the runner has not recorded itself
    /// on disk. `answers`: the runner has already reported.
    pub(crate) fn found(&self, answers: bool, clock: Timestamp) -> Option<FoundState> {
        match self.runner {
            Runner::Starting => None,
            // Its agent has not yet proven that no process of it lives.
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

/// Adds the port that the agent has chosen for each run whose processes are told of each other, and the
/// key of those that lend.
pub(crate) fn tell_ports(
    machine: usize,
    groups: &BTreeMap<RunId, Group>,
    reports: &mut [RunReport],
) {
    for report in reports {
        let group = groups.get(&report.run);
        let assignment = group.map(|group| &group.assignment);
        report.port = assignment
            .filter(|assignment| assignment.framework.tells_peers())
            .map(|_| 20_000 + machine as u16);
        // A hundred for each machine: none holds more members.
        report.ports = assignment
            .filter(|assignment| assignment.framework.tells_peers())
            .map(|assignment| {
                let members = 0..assignment.members.len() as u16;
                members
                    .map(|at| 20_000 + machine as u16 * 100 + at)
                    .collect()
            })
            .unwrap_or_default();
        report.key = assignment
            .filter(|assignment| assignment.lends())
            .map(|_| Key(format!("{machine:032x}")));
    }
}
