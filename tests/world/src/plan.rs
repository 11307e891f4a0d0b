//! What kind of world a seed makes: how large it is, how busy, and which faults it has. It also
//! makes a found history smaller.
//!
//! A seed has a random half of the faults, not all. So faults that hide each other also occur apart
//! (swarm testing, Groce and others, 2012).

mod queues;

use std::{collections::BTreeSet, fmt, str::FromStr, time::Duration};

use muster_core::{
    fleet::{
        GpusMax, Policy,
        queues::{Queue, Queues},
    },
    spec::Preemption,
};

use crate::{fault::Fault, invariants::EVICT_AFTER, rng::Rng};

/// How large and how long the histories are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// Up to four nodes, and up to half a minute of trouble. Most mistakes are found here, and
    /// fastest.
    Small,
    /// Mostly small worlds, and some with up to forty nodes.
    #[default]
    Mixed,
    /// Ten thousand agents for an hour.
    Large,
}

impl Size {
    pub fn name(self) -> &'static str {
        match self {
            Size::Small => "small",
            Size::Mixed => "mixed",
            Size::Large => "large",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) size: Size,
    pub(crate) machines: usize,
    pub(crate) slots: u32,
    /// GPUs per machine. Zero for none.
    pub(crate) gpus: u32,
    pub(crate) jobs: usize,
    /// The largest number of members that a job asks for.
    pub(crate) members_max: u64,
    pub(crate) faults: Vec<Fault>,
    /// Mean time between two faults.
    pub(crate) fault_gap: Duration,
    pub(crate) user_gap: Duration,
    /// How long faults and users go on.
    pub(crate) trouble: Duration,
    /// When all has been well for this long, nothing new will come.
    pub(crate) calm: Duration,
    /// The longest time of one way between agent and coordinator, in ms.
    pub(crate) delay_ms: u64,
    /// The longest time from a start to the workers, in ms.
    pub(crate) launch_ms: u64,
    pub(crate) step_ms: u64,
    /// How many inputs wait for others, in percent, and for how long at most. An input that does
    /// not wait has a turn of its own.
    pub(crate) gathered_percent: u64,
    pub(crate) gather_ms: u64,
    /// How often a level is delivered twice, in percent, in worlds where that happens at all.
    pub(crate) duplicate_percent: u64,
    /// The numbers of the strikes that are left out. `users_act`: whether users do anything after
    /// their submissions.
    pub(crate) skipped: BTreeSet<u64>,
    pub(crate) users_act: bool,
    /// `fences`: some jobs have `fenceAfter`. `versions`: agents are upgraded one by one.
    pub(crate) fences: bool,
    pub(crate) versions: bool,
    /// `pods`: some jobs have worker pods. `scarce`: there is room for few of them, for so long that
    /// jobs give them back.
    pub(crate) pods: bool,
    pub(crate) scarce: bool,
    /// Processes of most jobs are started again alone.
    pub(crate) restarts: bool,
    /// Jobs run on even numbers of nodes (`multipleOf`).
    pub(crate) in_pairs: bool,
    /// Some jobs wait for others, or for a time.
    pub(crate) pipelines: bool,
    /// What the operator lets be done to jobs for those of higher priority.
    pub(crate) preemption: Preemption,
    /// How many GPUs all jobs may hold together.
    pub(crate) gpus_max: Option<u32>,
    /// A tree of two levels, the one above all in front, or none.
    pub(crate) queues: Vec<Queue>,
    /// More jobs ask for whole nodes than there are, most of them for a fixed number.
    pub(crate) crowded: bool,
    /// Jobs of equal priority go by fair share.
    pub(crate) fair_share_half_life: Option<Duration>,
    /// The most GPUs that the jobs of one user may hold together.
    pub(crate) user_gpus_max: Option<u32>,
    /// `stalls`: runners notice which ranks move, and some stand still. `stalls_long`: for so long that jobs without a limit
    /// of their own are restarted. `spins`: whoever waits in a collective uses a processor. `recorder`: ranks tell at which
    /// collective they are.
    pub(crate) stalls: bool,
    pub(crate) stalls_long: bool,
    pub(crate) spins: bool,
    pub(crate) recorder: bool,
}

/// How many seeds in a hundred have jobs that run on even numbers of nodes.
const PAIRS_SHARE: u64 = 8;
/// How many seeds in a hundred have ranks that stand still.
const STALLS_SHARE: u64 = 5;

/// How many seeds in a hundred have worker pods.
const PODS_SHARE: u64 = 15;

/// How many seeds in a hundred have jobs whose processes are started again alone.
const RESTARTS_SHARE: u64 = 15;

impl Plan {
    /// Draws whether the world has worker pods, from a source of its own.
    pub(crate) fn draw_pods(&mut self, seed: u64, cut: &Cut) {
        // These bytes spell "pods".
        let mut pods = Rng::new(seed ^ 0x706f_6473);
        self.pods = pods.percent(PODS_SHARE) && self.size != Size::Large;
        if !self.pods {
            return;
        }
        // Pods take seconds to start, and the end of one is seen late.
        self.fault_gap = self.fault_gap.max(Duration::from_millis(800)) * 2;
        self.calm += Duration::from_secs(5);
        // An old store would not know of objects that the cluster has. That is not simulated.
        self.faults.retain(|fault| *fault != Fault::StoreRestored);
        let longer = pods.ms(10_000, 40_000);
        if cut.trouble_ms.is_none() {
            self.trouble += longer;
        }
        self.scarce = pods.percent(25);
        if !self.scarce {
            return;
        }
        let (longer, gap) = (pods.ms(200_000, 500_000), pods.ms(8_000, 30_000));
        if cut.trouble_ms.is_none() {
            self.trouble += longer;
        }
        if cut.jobs.is_none() {
            self.jobs = self.jobs.max(2);
        }
        (self.fault_gap, self.user_gap) = (gap, gap * 2);
        // A gang gives its pods back after five minutes.
        self.calm = Duration::from_secs(400);
    }

    /// Draws whether processes are started again alone, from a source of its own. Ranks fail there
    /// whatever else does.
    pub(crate) fn draw_restarts(&mut self, seed: u64, cut: &Cut) {
        // These bytes spell "rest".
        let mut rest = Rng::new(seed ^ 0x7265_7374);
        self.restarts = rest.percent(RESTARTS_SHARE);
        if !self.restarts {
            return;
        }
        // A job that fails again and again waits between its restarts.
        let longer = rest.ms(10_000, 30_000);
        if cut.trouble_ms.is_none() {
            self.trouble += longer;
        }
        let fail = [Fault::RankError, Fault::RankKilled, Fault::SickNode];
        let new = |fault: &Fault| {
            let kept = cut.faults.as_ref().is_none_or(|kept| kept.contains(fault));
            kept && !self.has(*fault)
        };
        let new: Vec<Fault> = fail.into_iter().filter(new).collect();
        self.faults.extend(new);
        if cut.faults.is_none() && rest.percent(50) {
            // Elsewhere the whole world is formed anew so often that few ranks fail alone.
            self.fault_gap = rest.ms(1_000, 4_000);
            self.faults = vec![
                Fault::RankError,
                Fault::RankSegfault,
                Fault::RankKilled,
                Fault::SickNode,
                Fault::AgentCrash,
                Fault::RunnerConnection,
                Fault::RunnerKilled,
                Fault::SessionBreak,
                Fault::CutUp,
                Fault::CoordinatorCrash,
                Fault::CrashAfterCommit,
            ];
        }
        // A worker needs a node beside the head's.
        if cut.machines.is_none() {
            self.machines = self.machines.max(3);
            self.members_max = self.members_max.max(3);
        }
    }

    /// Draws whether jobs run on even numbers of nodes, from a source of its own: other seeds keep their histories.
    pub(crate) fn draw_multiples(&mut self, seed: u64) {
        // These bytes spell "pair".
        self.in_pairs = Rng::new(seed ^ 0x7061_6972).percent(PAIRS_SHARE) && self.members_max > 1;
    }

    /// What the operator has said of jobs that wait.
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            preemption: self.preemption,
            evict_after: EVICT_AFTER,
            gpus_max: GpusMax::each(self.gpus_max),
            user_gpus_max: GpusMax::each(self.user_gpus_max),
            queues: Queues::new(self.queues.clone()).expect("the world draws good queues"),
            fair_share_half_life: self.fair_share_half_life,
            ..Policy::default()
        }
    }

    /// Draws whether ranks stand still, from a source of its own.
    pub(crate) fn draw_stalls(&mut self, seed: u64, cut: &Cut) {
        // These bytes spell "stal".
        let mut stalls = Rng::new(seed ^ 0x7374_616c);
        self.stalls = stalls.percent(STALLS_SHARE)
            && !(self.crowded
                || self.pods
                || self.restarts
                || self.fences
                || self.size == Size::Large);
        if !self.stalls {
            return;
        }
        self.stalls_long = stalls.percent(20);
        (self.spins, self.recorder) = (stalls.percent(50), stalls.percent(50));
        // It takes a habit of some steps, a limit, and two looks.
        let longer = match self.stalls_long {
            true => stalls.ms(700_000, 1_200_000),
            false => stalls.ms(60_000, 150_000),
        };
        if cut.trouble_ms.is_none() {
            self.trouble += longer;
        }
        self.fault_gap = match self.stalls_long {
            true => stalls.ms(30_000, 150_000),
            false => stalls.ms(5_000, 20_000),
        };
        self.user_gap = self.fault_gap * 2;
        let few = [
            Fault::AgentCrash,
            Fault::SessionBreak,
            Fault::CutUp,
            Fault::FabricCut,
            Fault::CoordinatorCrash,
            Fault::CrashAfterCommit,
            Fault::RunnerConnection,
            Fault::SlowNetwork,
        ];
        if cut.faults.is_none() && stalls.percent(70) {
            self.faults = few.into_iter().filter(|_| stalls.percent(40)).collect();
        }
        let kept = |fault: &Fault| cut.faults.as_ref().is_none_or(|kept| kept.contains(fault));
        let [stands, saves, works] = Fault::OF_STALLS;
        let often = [stands, stands, stands, stands, saves, works];
        self.faults.extend(often.into_iter().filter(kept));
    }

    /// Draws what only some worlds have, from a source of its own, so that the other worlds stay
    /// the same.
    pub(crate) fn draw_traits(&mut self, traits: &mut Rng, cut: &Cut) {
        (self.fences, self.versions) = (traits.percent(20), traits.percent(15));
        if !self.fences || self.size == Size::Large {
            return;
        }
        // A fence takes half a minute to pass. That needs a coordinator that is there all the time,
        // and another node to go to.
        self.fault_gap *= 3;
        if cut.trouble_ms.is_none() {
            self.trouble += traits.ms(20_000, 50_000);
        }
        if cut.machines.is_none() {
            self.machines = self.machines.max(4);
        }
        if cut.faults.is_none() && traits.percent(50) {
            // Only silences strike here, and seldom, so that every one is seen to its end and some
            // nodes are left.
            self.fault_gap = traits.ms(10_000, 25_000);
            self.faults = vec![
                Fault::AgentPause,
                Fault::CutUp,
                Fault::AgentPause,
                Fault::CutBoth,
            ];
        }
    }

    pub(crate) fn draw(rng: &mut Rng, size: Size, cut: &Cut) -> Self {
        let machines = match (size, rng.below(100)) {
            (Size::Large, _) => 10_000,
            (Size::Small, 0..=4) => rng.range(5, 12),
            (Size::Small, _) => rng.range(1, 4),
            (Size::Mixed, 0) => rng.range(20, 40),
            (Size::Mixed, 1..=10) => rng.range(7, 12),
            (Size::Mixed, _) => rng.range(1, 6),
        } as usize;
        let mut faults: Vec<Fault> = Fault::ALL
            .into_iter()
            .filter(|fault| !Fault::LATER.contains(fault) && !Fault::LAST.contains(fault))
            .filter(|fault| !Fault::OF_STALLS.contains(fault))
            .filter(|fault| rng.percent(fault.share()))
            .collect();
        let delay_ms = *rng.pick(&[2, 10, 80, 400]).expect("there are four");
        let launch_ms = *rng.pick(&[50, 500, 3_000]).expect("there are three");
        let step_ms = *rng.pick(&[200, 500, 1_200]).expect("there are three");
        let mut plan = Self {
            size,
            machines,
            slots: if rng.percent(25) { 2 } else { 1 },
            gpus: if rng.percent(30) {
                rng.range(1, 4) as u32
            } else {
                0
            },
            jobs: rng.range(1, 4) as usize,
            members_max: machines as u64,
            faults: Vec::new(),
            fault_gap: rng.ms(400, 8_000),
            user_gap: rng.ms(1_000, 20_000),
            trouble: rng.ms(20_000, 90_000),
            calm: Duration::from_secs(40),
            delay_ms,
            launch_ms,
            step_ms,
            gathered_percent: 20,
            gather_ms: 3,
            duplicate_percent: 10,
            skipped: cut.skipped.clone(),
            users_act: !cut.quiet_users,
            fences: false,
            versions: false,
            pods: false,
            scarce: false,
            restarts: false,
            in_pairs: false,
            pipelines: false,
            preemption: Preemption::Shrink,
            gpus_max: None,
            queues: Vec::new(),
            fair_share_half_life: None,
            crowded: false,
            user_gpus_max: None,
            stalls: false,
            stalls_long: false,
            spins: false,
            recorder: false,
        };
        match size {
            Size::Mixed => {}
            Size::Small => {
                plan.jobs = rng.range(1, 3) as usize;
                plan.fault_gap = rng.ms(300, 2_500);
                plan.user_gap = rng.ms(500, 8_000);
                plan.trouble = rng.ms(8_000, 30_000);
                plan.calm = Duration::from_secs(10);
                plan.step_ms = *rng.pick(&[500, 1_200]).expect("there are two");
            }
            Size::Large => {
                plan.jobs = rng.range(15, 30) as usize;
                plan.members_max = 128;
                plan.slots = 1;
                plan.fault_gap = rng.ms(1_000, 6_000);
                plan.user_gap = Duration::from_secs(10);
                plan.trouble = Duration::from_secs(3_600) - Duration::from_secs(240);
                plan.calm = Duration::from_secs(30);
                plan.step_ms = 20_000;
                // The engine gathers like this while turns are long.
                plan.gathered_percent = 98;
                plan.gather_ms = 20;
                plan.duplicate_percent = 1;
            }
        }
        faults.retain(|fault| cut.faults.as_ref().is_none_or(|kept| kept.contains(fault)));
        plan.faults = faults;
        plan.machines = cut.machines.unwrap_or(plan.machines);
        plan.members_max = plan.members_max.min(plan.machines as u64);
        plan.jobs = cut.jobs.unwrap_or(plan.jobs);
        plan.trouble = cut.trouble_ms.map_or(plan.trouble, Duration::from_millis);
        plan
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

/// What is taken away from the world of a seed, to see whether it still breaks a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    pub machines: Option<usize>,
    pub jobs: Option<usize>,
    pub trouble_ms: Option<u64>,
    /// The only kinds of faults that strike.
    pub faults: Option<Vec<Fault>>,
    /// The numbers of the strikes that are left out.
    pub skipped: BTreeSet<u64>,
    /// Users submit, and do nothing else.
    pub quiet_users: bool,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.machines.map(|n| format!("machines={n}")));
        parts.extend(self.jobs.map(|n| format!("jobs={n}")));
        parts.extend(self.trouble_ms.map(|n| format!("trouble_ms={n}")));
        if let Some(faults) = &self.faults {
            let names: Vec<String> = faults.iter().map(Fault::to_string).collect();
            parts.push(format!("faults={}", names.join("+")));
        }
        if !self.skipped.is_empty() {
            let numbers: Vec<String> = self.skipped.iter().map(u64::to_string).collect();
            parts.push(format!("skip={}", numbers.join("+")));
        }
        if self.quiet_users {
            parts.push("users=quiet".to_owned());
        }
        f.write_str(&parts.join(","))
    }
}

impl FromStr for Cut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cut = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?}: write it as key=value"))?;
            let number = || value.parse::<u64>().map_err(|e| format!("{part:?}: {e}"));
            match key {
                "machines" => cut.machines = Some(number()? as usize),
                "jobs" => cut.jobs = Some(number()? as usize),
                "trouble_ms" => cut.trouble_ms = Some(number()?),
                "users" => cut.quiet_users = value == "quiet",
                "skip" => {
                    for number in value.split('+') {
                        cut.skipped
                            .insert(number.parse().map_err(|e| format!("{part:?}: {e}"))?);
                    }
                }
                "faults" => {
                    let named = |name: &str| {
                        Fault::ALL
                            .into_iter()
                            .find(|fault| fault.to_string() == name)
                            .ok_or_else(|| format!("no fault {name:?}"))
                    };
                    let names = value.split('+').filter(|name| !name.is_empty());
                    cut.faults = Some(names.map(named).collect::<Result<_, _>>()?);
                }
                _ => {
                    return Err(format!(
                        "{key:?}: machines, jobs, trouble_ms, faults, skip and users can be cut"
                    ));
                }
            }
        }
        Ok(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_read_as_it_is_written() {
        let cut = Cut {
            machines: Some(2),
            jobs: None,
            trouble_ms: Some(9_000),
            faults: Some(vec![Fault::AgentCrash, Fault::CutUp]),
            skipped: [1, 7].into(),
            quiet_users: true,
        };
        assert_eq!(cut.to_string().parse(), Ok(cut));
        assert_eq!("".parse(), Ok(Cut::default()));
        assert!("machines".parse::<Cut>().is_err() && "faults=Fire".parse::<Cut>().is_err());
    }
}
