//! One job while a turn settles it: its record, what else is known of it, and what its rules may
//! read of the rest of the fleet.
//!
//! The record is taken out of the fleet for that time, so a rule of one job cannot change another
//! job. A rule may change nodes (marks, cordons, requests for launchers), and it does so through
//! this type, where a reader can see it.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    fleet::{
        brake::Brake, capacity::Capacity, event::Event, fair_share::Standings, job::JobRecord,
        ledger::Ledger, live::Live, policy::Policy, presence::Presence, registry::Registry,
        reservations::Reservations, scratch::Scratch, settle_order::Rank, worker_pods::WorkerPods,
        yields::Yields,
    },
    id::{JobUid, NodeName},
    time::Timestamp,
};

pub(crate) struct JobTurn<'a> {
    pub uid: &'a JobUid,
    pub job: &'a mut JobRecord,
    pub live: &'a mut Live,
    pub nodes: &'a mut Registry,
    /// All jobs except this one.
    pub others: &'a BTreeMap<JobUid, JobRecord>,
    pub presence: &'a Presence,
    pub brake: Option<&'a Brake>,
    pub pods: &'a WorkerPods,
    /// What all nodes have left, at this moment of the turn.
    pub capacity: &'a Capacity,
    /// Nodes that know more than the store.
    pub halted: &'a BTreeSet<NodeName>,
    pub policy: &'a Policy,
    /// Whose jobs come first among equals.
    pub standings: &'a Standings,
    pub now: Timestamp,
    pub scratch: &'a mut Scratch,
}

/// The same, to read. What takes this changes nothing.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub uid: &'a JobUid,
    pub job: &'a JobRecord,
    pub live: &'a Live,
    pub nodes: &'a Registry,
    /// All jobs except `first`.
    pub others: &'a BTreeMap<JobUid, JobRecord>,
    /// The job that is settled, also while something is asked about another one.
    pub first: &'a JobRecord,
    pub presence: &'a Presence,
    pub brake: Option<&'a Brake>,
    pub pods: &'a WorkerPods,
    /// Nodes that know more than the store.
    pub halted: &'a BTreeSet<NodeName>,
    pub policy: &'a Policy,
    /// Whose jobs come first among equals.
    pub standings: &'a Standings,
    pub now: Timestamp,
    /// What all nodes have left, at this moment of the turn.
    pub capacity: &'a Capacity,
    /// Who waits for room, at this moment of the turn.
    pub reservations: &'a OnceCell<Reservations>,
    /// What the jobs of each queue hold, at this moment of the turn.
    pub ledger: &'a OnceCell<Ledger>,
    /// What jobs are to give up for others in this turn.
    pub yields: &'a BTreeMap<JobUid, Yields>,
}

impl<'a> Facts<'a> {
    /// All jobs.
    pub(crate) fn jobs(self) -> impl Iterator<Item = &'a JobRecord> {
        self.others.values().chain([self.first])
    }

    pub(crate) fn job_of(self, uid: &JobUid) -> Option<&'a JobRecord> {
        match uid == &self.first.uid {
            true => Some(self.first),
            false => self.others.get(uid),
        }
    }

    /// The place of the job in the order in which jobs choose.
    pub(crate) fn rank(self) -> Rank {
        Rank::of(self.job, self.standings)
    }

    pub(crate) fn reservations(self) -> &'a Reservations {
        self.reservations
            .get_or_init(|| Reservations::of(self.jobs(), self.standings))
    }

    pub(crate) fn is_listening(&self) -> bool {
        let jobs = || self.jobs();
        self.presence.is_listening(self.now, self.nodes, jobs)
    }
}

impl JobTurn<'_> {
    pub(crate) fn facts(&self) -> Facts<'_> {
        Facts {
            uid: self.uid,
            job: self.job,
            live: self.live,
            nodes: self.nodes,
            others: self.others,
            first: self.job,
            presence: self.presence,
            brake: self.brake,
            pods: self.pods,
            halted: self.halted,
            policy: self.policy,
            standings: self.standings,
            now: self.now,
            capacity: self.capacity,
            reservations: &self.scratch.reservations,
            ledger: &self.scratch.ledger,
            yields: &self.scratch.yields,
        }
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.facts().is_listening()
    }

    /// Asks for another look at the job at this time, or earlier if there is news.
    pub(crate) fn wake(&mut self, at: Timestamp) {
        self.live.wake = Some(self.live.wake.map_or(at, |before| before.min(at)));
    }

    /// Writes an informational event about this job.
    pub(crate) fn note(&mut self, reason: &str, message: String) -> &mut Event {
        self.scratch
            .events
            .note(reason, message)
            .of_job(self.uid, &self.job.name)
    }

    pub(crate) fn warn(&mut self, reason: &str, message: String) -> &mut Event {
        self.scratch
            .events
            .warn(reason, message)
            .of_job(self.uid, &self.job.name)
    }
}
