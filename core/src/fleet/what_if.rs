//! What would become of a job if it were submitted now, and when those that wait will start. It asks the same placement as a turn does, about a job that does
//! not exist, and changes nothing.

use std::collections::BTreeMap;

use crate::{
    fleet::{
        default_gpus::{self, DefaultGpus},
        eligible::{self, Eligibility},
        held_back::HeldBack,
        job::JobRecord,
        job_turn::{Facts, JobTurn},
        live::Live,
        placement::Placement,
        plan::{Outcome, Plan, PlannedYield},
        preempt::{self, Preempt},
        reservations,
        scratch::Scratch,
        start_estimate::Start,
        state::Fleet,
    },
    id::JobName,
};

/// What jobs of lower priority would give up for this one.
fn yields(facts: Facts<'_>) -> Vec<PlannedYield> {
    let Preempt::From(given) = preempt::preempt(facts) else {
        return Vec::new();
    };
    let planned = given.into_iter().filter_map(|(uid, given)| {
        let job = facts.others.get(&uid)?;
        let own = job.name.namespace == facts.job.name.namespace;
        Some(PlannedYield {
            job: own.then(|| job.name.clone()),
            priority: job.spec.priority,
            nodes: given.nodes.into_iter().collect(),
            evicted: given.evicted,
        })
    });
    planned.collect()
}

impl Fleet {
    /// When the jobs that wait will start.
    pub(crate) fn starts(&mut self, scratch: &Scratch) -> BTreeMap<JobName, Start> {
        self.follow_capacity(scratch);
        let starts = self.foresee(None, scratch.now).into_iter();
        let named = starts.filter_map(|(uid, start)| {
            let job = self.jobs.get(&uid)?;
            Some((job.name.clone(), start))
        });
        named.collect()
    }

    /// The jobs that wait for nodes, the first to choose in front.
    pub(crate) fn waiting_order(&self) -> Vec<JobName> {
        let waiting = self.active.iter().filter(|uid| {
            let job = self.jobs.get(*uid);
            job.is_some_and(reservations::waits_for_room)
        });
        let order = self.in_order(waiting);
        let names = order.iter().filter_map(|uid| self.jobs.get(uid));
        names.map(|job| job.name.clone()).collect()
    }

    /// What would become of this job.
    pub(crate) fn plan(&mut self, mut job: JobRecord, scratch: &Scratch) -> Plan {
        self.follow_capacity(scratch);
        let uid = job.uid.clone();
        let mut turn = JobTurn {
            uid: &uid,
            job: &mut job,
            live: &mut Live::default(),
            nodes: &mut self.nodes,
            others: &self.jobs,
            presence: &self.presence,
            brake: self.brake.as_ref(),
            pods: &self.pods,
            capacity: &self.capacity,
            halted: &self.halted,
            policy: &self.policy,
            standings: self.fair_share.standings(),
            now: scratch.now,
            scratch: &mut Scratch::new(scratch.now),
        };
        let open = turn.job.spec.gpus_are_open();
        let decided = default_gpus::default_gpus(turn.facts());
        turn.propose_gpus();
        let default_gpus = match decided {
            _ if !open => None,
            DefaultGpus::OneEach => Some(turn.job.spec.gpus_max()),
            DefaultGpus::TooFew { .. } => Some(0),
            DefaultGpus::NoneThere => None,
        };
        let held_back = match eligible::judge(turn.job, turn.now) {
            Eligibility::Never(never) => Some(HeldBack::Never(never)),
            _ if turn.job.suspended => Some(HeldBack::Suspended),
            Eligibility::Waits(waits) => Some(HeldBack::Waits(waits)),
            Eligibility::Eligible => turn.is_listening().then_some(HeldBack::Listening),
        };
        let placed = turn.facts().place();
        let yields = match &placed {
            Placement::Gang(_) => Vec::new(),
            Placement::Short(_) => yields(turn.facts()),
        };
        let outcome = Outcome::of(placed);
        let starts_now = matches!(outcome, Outcome::Starts(_)) && held_back.is_none();
        let mut starts = match starts_now {
            true => BTreeMap::new(),
            false => self.foresee(Some(job), scratch.now),
        };
        Plan {
            outcome,
            default_gpus,
            held_back,
            yields,
            start: starts.remove(&uid),
        }
    }
}
