//! All that one coordinator knows: the records and what is not stored. It also answers what several files of the
//! turn ask about the whole. It decides nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    fleet::{
        audit::Audit,
        brake::Brake,
        capacity::Capacity,
        changes::Changes,
        cordon,
        fair_share::FairShare,
        history,
        input::Stored,
        job::JobRecord,
        live::Live,
        notify::{Outbox, Outgoing},
        objects::Objects,
        policy::Policy,
        presence::Presence,
        registry::Registry,
        scratch::Scratch,
        shares::Buckets,
        tombstone::{self, Tombstone},
        worker_pod::WorkerPod,
        worker_pods::WorkerPods,
    },
    id::{JobName, JobUid, NodeName, Term},
    node_report::labels::Labels,
    time::Timestamp,
};

/// The whole fleet as one coordinator knows it.
#[derive(Debug)]
pub struct Fleet {
    pub(crate) policy: Policy,
    pub(crate) term: Term,
    pub(crate) jobs: BTreeMap<JobUid, JobRecord>,
    pub(crate) uid_by_name: BTreeMap<JobName, JobUid>,
    /// Jobs that are not over, or that may still have a live process.
    pub(crate) active: BTreeSet<JobUid>,
    /// Jobs that wait for the end of others.
    pub(crate) awaiting: BTreeSet<JobUid>,
    /// What is known of each job and need not survive a restart.
    pub(crate) live: BTreeMap<JobUid, Live>,
    /// The earliest timer of any job.
    pub(crate) jobs_wake: Option<Timestamp>,
    pub(crate) nodes: Registry,
    /// Nodes whose record has a halt.
    pub(crate) halted: BTreeSet<NodeName>,
    /// When to look again for nodes to forget.
    pub(crate) forget_at: Timestamp,
    /// Jobs that are over, and when each is deleted by itself.
    pub(crate) expiring: BTreeSet<(Timestamp, JobUid)>,
    /// When to consider withheld cordons again.
    pub(crate) consider_at: Timestamp,
    /// The brake for mass losses, while it is on.
    pub(crate) brake: Option<Brake>,
    pub(crate) objects: Objects,
    pub(crate) pods: WorkerPods,
    /// Jobs that were submitted, by namespace, and plans that were asked for, by caller.
    pub(crate) submissions: Buckets,
    pub(crate) plans: Buckets,
    /// What all nodes have left, as of the last turn that looked.
    pub(crate) capacity: Capacity,
    pub(crate) audit: Audit,
    pub(crate) tombstones: Vec<Tombstone>,
    pub(crate) history: history::Kept,
    pub(crate) fair_share: FairShare,
    pub(crate) outgoing: Outgoing,
    pub(crate) presence: Presence,
    pub(crate) last_event: u64,
    /// There was no turn yet.
    pub(crate) fresh: bool,
}

impl Fleet {
    /// The fleet as stored, under a new term. While the coordinator listens
    /// ([`Policy::listen_for`]), silence means nothing.
    pub fn new(policy: Policy, term: Term, stored: Stored, now: Timestamp) -> Self {
        let mut nodes = Registry::default();
        let mut halted = BTreeSet::new();
        for mut record in stored.nodes {
            record.halt = record.halt.filter(|_| !policy.accept_store);
            if record.halt.is_some() {
                halted.insert(record.name.clone());
            }
            nodes.admit(record, now);
        }
        for (name, mut report) in stored.reports {
            if !policy.reads_objects {
                report.object_labels = Labels::default();
                report.object_taints = Vec::new();
            }
            if let Some(node) = nodes.get_mut(&name) {
                node.report = report.into();
            }
        }
        let jobs: BTreeMap<JobUid, JobRecord> = stored
            .jobs
            .into_iter()
            .map(|mut job| {
                job.read_older();
                (job.uid.clone(), job)
            })
            .collect();
        let uid_by_name = jobs
            .values()
            .map(|job| (job.name.clone(), job.uid.clone()))
            .collect();
        let mut fleet = Self {
            presence: Presence::started(now, &policy, &nodes),
            forget_at: now,
            expiring: BTreeSet::new(),
            consider_at: now + cordon::AGAIN,
            policy,
            term,
            nodes,
            uid_by_name,
            active: jobs
                .values()
                .filter(|job| !job.is_over() || job.unproven_generations().next().is_some())
                .map(|j| j.uid.clone())
                .collect(),
            awaiting: jobs
                .values()
                .filter(|job| job.unended().next().is_some())
                .map(|job| job.uid.clone())
                .collect(),
            live: BTreeMap::new(),
            jobs_wake: None,
            brake: None,
            halted,
            objects: Objects::default(),
            pods: WorkerPods::default(),
            submissions: Buckets::default(),
            plans: Buckets::default(),
            capacity: Capacity::default(),
            audit: Audit::default(),
            tombstones: tombstone::loaded(stored.tombstones, &jobs),
            outgoing: Outgoing::loaded(stored.outbox),
            fair_share: FairShare::default(),
            history: history::Kept::loaded(stored.history.iter().map(|record| &**record)),
            jobs,
            last_event: stored.last_event,
            fresh: true,
        };
        for job in fleet.active.iter().filter_map(|uid| fleet.jobs.get(uid)) {
            fleet.nodes.note_members(job);
        }
        let jobs = fleet.jobs.values();
        let over = jobs.filter_map(|job| Some((fleet.delete_due(job)?, job.uid.clone())));
        fleet.expiring = over.collect();
        fleet
    }

    /// What waits to be sent to people.
    pub fn outbox(&self) -> &Arc<Outbox> {
        self.outgoing.outbox()
    }

    pub(crate) fn is_listening(&self, now: Timestamp) -> bool {
        self.presence
            .is_listening(now, &self.nodes, || self.jobs.values())
    }

    /// Brings what all nodes have left up to date.
    pub(crate) fn follow_capacity(&mut self, scratch: &Scratch) {
        self.count_changed_nodes();
        let changes = &scratch.changes;
        let deleted = changes.deleted.iter().map(|tombstone| &tombstone.run.job);
        let touched = changes.jobs.keys().chain(deleted);
        self.capacity.read_again(&self.nodes, &self.jobs, touched);
    }

    /// Counts what nodes have left that were handed out to be changed.
    pub(crate) fn count_changed_nodes(&mut self) {
        let (nodes, pods) = (&mut self.nodes, &mut self.pods);
        self.capacity.count_changed(nodes, &self.jobs, pods);
    }

    /// The job whose worker pod this is. A user who may make pods in a namespace can label them as those
    /// of any job, and only the jobs of that namespace are meant by it.
    pub(crate) fn job_of_pod(&self, pod: &WorkerPod) -> Option<&JobUid> {
        let job = self.jobs.get(&pod.job)?;
        pod.is_of(&job.name, &job.uid).then_some(&job.uid)
    }

    /// The job whose worker pod this node is, by what the cluster says, or else by the store.
    pub(crate) fn owner_of(&self, name: &NodeName) -> Option<&JobUid> {
        match self.pods.all.get(name) {
            Some(pod) => self.job_of_pod(pod),
            None => self.nodes.get(name)?.record.pod_of.as_ref(),
        }
    }

    /// When a job that is over is deleted by itself.
    pub(crate) fn delete_due(&self, job: &JobRecord) -> Option<Timestamp> {
        let ttl = job.spec.lifetime.ttl()?.max(self.policy.end_shown);
        let finished = job.finished.filter(|_| job.is_over())?;
        // The object is deleted in its place, and the job follows.
        let is_objects = job.is_of_object() && self.policy.follows_jobs;
        (!is_objects).then(|| finished + ttl)
    }

    /// Forgets a node, and counts all its workers as dead.
    pub(crate) fn remove_node(&mut self, name: &NodeName, changes: &mut Changes) {
        changes.node_changed(&self.nodes, &self.jobs, name);
        for uid in &self.active {
            let Some(job) = self.jobs.get_mut(uid) else {
                continue;
            };
            changes.touch_job(job);
            for generation in job.unproven_generations_mut() {
                if generation.has(name) {
                    generation.dead.insert(name.clone());
                }
            }
        }
        self.nodes.forget(name);
        self.halted.remove(name);
    }
}
