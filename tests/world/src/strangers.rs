//! Agents and machines that are not what their name says: an agent that starts with another state
//! directory while its runners go on, and a new machine in the place of an old one that comes back
//! later. Also nodes that the coordinator loses all at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::{
    id::{JobUid, NodeName},
    node::{GroupPhase, Ledger},
    run::RunId,
};

use crate::{
    event::Event,
    fault::Fault,
    machine::{Group, Machine},
    plan::Size,
    trace::note,
    words,
    world::World,
};

/// No other fault strikes during this time: the shortest fence, and the coordinator's wait beyond
/// it.
const LULL: Duration = Duration::from_secs(40);

/// What an agent remembers.
#[derive(Debug)]
pub(crate) struct StateDir {
    ledger: Ledger,
    highest: Ledger,
    said_over: BTreeSet<RunId>,
}

#[derive(Debug)]
pub(crate) struct Disk {
    dir: StateDir,
    runs: BTreeMap<RunId, Group>,
}

impl StateDir {
    fn empty(place: &Machine) -> Self {
        let ledger = Ledger::new(place.name.clone());
        Self {
            highest: ledger.clone(),
            ledger,
            said_over: BTreeSet::new(),
        }
    }

    pub(crate) fn has_had(&self, job: &JobUid) -> bool {
        self.highest.jobs.contains_key(job)
    }

    fn swap(self, place: &mut Machine) -> Self {
        place.ledger_before = None;
        Self {
            ledger: std::mem::replace(&mut place.ledger, self.ledger),
            highest: std::mem::replace(&mut place.ledger_highest, self.highest),
            said_over: std::mem::replace(&mut place.said_over, self.said_over),
        }
    }
}

impl World {
    /// The agent is started with another state directory, while the workers of the first one run.
    /// The directory is empty, or holds what another agent left there. The lock of a directory
    /// keeps two agents from sharing it, but not from sharing a name.
    pub(crate) fn swap_state_dir(&mut self, machine: usize) -> bool {
        let place = &self.machines[machine];
        let held = || place.runs.values().filter(|group| group.is_held());
        let left = place.runs.values().any(|group| group.left.is_some());
        let working = held().next().is_some()
            && held().all(|group| group.phase == GroupPhase::Running && group.works());
        // If both the store and the agent have forgotten what was started, nothing can notice. Nor if an operator
        // believes that the store has, and says that it is accepted.
        if place.agent.is_none()
            || place.ledger_damaged
            || !working
            || left
            || self.plan.has(Fault::StoreRestored)
            || self.plan.has(Fault::HostLies)
        {
            return false;
        }
        note!(
            self,
            "the agent of n{machine} is stopped, and another started with a state directory of its own"
        );
        self.other_dir(machine);
        true
    }

    fn other_dir(&mut self, machine: usize) {
        let comes = self.rng.ms(50, 3_000);
        self.agent_dies(machine, Some(comes));
        let place = &mut self.machines[machine];
        let other = place
            .other_dir
            .take()
            .map_or_else(|| StateDir::empty(place), |other| *other);
        let left = Box::new(other.swap(place));
        place.other_dir = (!std::mem::take(&mut place.struck_off)).then_some(left);
        place.state_dir = 1 - place.state_dir;
    }

    pub(crate) fn operator_swaps_back(&mut self, machine: usize, state_dir: u32) {
        let place = &self.machines[machine];
        // After a reboot the agent may have been accepted meanwhile.
        let taken_in = place
            .runs
            .values()
            .any(|group| (group.is_held() || group.left.is_some()) && group.state_dir == state_dir);
        if place.powered && place.state_dir == state_dir && place.other_dir.is_some() && !taken_in {
            note!(
                self,
                "the operator starts the agent of n{machine} with the state directory it had"
            );
            self.other_dir(machine);
        }
    }

    /// An operator who deletes a node empties the state directories that were put away, as the
    /// message demands, and empties one in use before putting it away.
    pub(crate) fn strike_off(&mut self, name: &NodeName) {
        let Some(machine) = self.machine_named(name) else {
            return;
        };
        let place = &mut self.machines[machine];
        (place.other_dir, place.other_disk, place.struck_off) = (None, None, true);
        self.pods_of_gone_host(machine);
    }

    /// A runner is started for a run that another agent's runner holds.
    pub(crate) fn held_twice(&mut self, machine: usize, run: &RunId) {
        let works = self.machines[machine].runs[run].has_process();
        if works {
            self.fail(
                "R4",
                format!(
                    "{} is to be held twice on n{machine}, by two agents",
                    words::run(run)
                ),
            );
        }
    }

    /// The machine is replaced by another with its name and an empty disk. The old one comes back
    /// later.
    pub(crate) fn replace(&mut self, machine: usize) {
        if self.machines[machine].other_disk.is_some() {
            return;
        }
        self.disks_change(machine);
        let back = self.rng.ms(5_000, 40_000);
        self.after(back, Event::OldOneReturns { machine });
    }

    pub(crate) fn disks_change(&mut self, machine: usize) {
        note!(self, "another machine takes the place of n{machine}");
        self.power_cut(machine);
        let place = &mut self.machines[machine];
        (place.ledger_damaged, place.ledger_fails) = (false, false);
        let new = place.other_disk.take().map_or_else(
            || Disk {
                dir: StateDir::empty(place),
                runs: BTreeMap::new(),
            },
            |disk| *disk,
        );
        let old = Disk {
            dir: new.dir.swap(place),
            runs: std::mem::replace(&mut place.runs, new.runs),
        };
        place.other_disk = (!std::mem::take(&mut place.struck_off)).then(|| Box::new(old));
        let back = self.rng.ms(500, 8_000);
        self.after(back, Event::PowerOn { machine });
    }

    /// A machine is away when another coordinator takes over, and comes back to that one. The
    /// others stay with their coordinator, which learns late that its term is over, because nothing
    /// happens to it that it would have to commit.
    pub(crate) fn taken_over_while_away(&mut self) -> bool {
        let idle = |machine: &usize| {
            self.machines[*machine].powered && self.machines[*machine].working().next().is_none()
        };
        let idle: Vec<usize> = (0..self.machines.len()).filter(idle).collect();
        let fenced = |place: &Machine| place.working().any(|(_, group)| group.fence().is_some());
        let (Some(machine), true) = (
            self.traits.pick(&idle).copied(),
            self.machines.iter().any(fenced),
        ) else {
            return false;
        };
        if self.leader().is_none()
            || self
                .seats
                .iter()
                .any(|seat| seat.process.as_ref().is_some_and(|p| p.deposed.is_some()))
        {
            return false;
        }
        self.power_cut(machine);
        // By then the first coordinator counts the machine as Lost.
        let (takes, back) = (self.rng.ms(6_000, 9_000), self.rng.ms(500, 2_000));
        self.lull = self.now + takes + LULL;
        self.after(takes, Event::TakesOver);
        self.after(takes + back, Event::PowerOn { machine });
        true
    }

    pub(crate) fn takes_over(&mut self) {
        if self.healed.is_some() || !self.second_leader() {
            return;
        }
        self.count(Fault::SecondLeader);
        let deposed = |seat: &&mut crate::coordinator::Seat| {
            seat.process.as_ref().is_some_and(|p| p.deposed.is_some())
        };
        self.seats
            .iter_mut()
            .filter(deposed)
            .for_each(|seat| seat.unlisted = true);
    }

    /// The coordinator is cut off from all nodes, or from all but one.
    pub(crate) fn blackout(&mut self, spared: usize, a_while: Duration) {
        let all = self.machines.len();
        // This is one row of a large hall.
        let lost = if self.plan.size == Size::Large {
            3_000.min(all)
        } else {
            all
        };
        let spared = if self.rng.percent(60) {
            Some(spared)
        } else {
            None
        };
        for machine in (0..lost).filter(|machine| Some(*machine) != spared) {
            self.cut(machine, true, true);
            let more = self.rng.ms(0, 2_000);
            self.after(
                a_while + more,
                Event::Mends {
                    fault: Fault::CutBoth,
                    machine,
                    other: machine,
                },
            );
        }
    }
}
