//! One turn of the fleet, in this order: take the inputs as facts, judge silence, forget what is
//! over, decide the brake and the cordons, settle every job that may be affected, and return what
//! changed.
//!
//! Reports are applied first and judged afterwards, so their order within one burst does not matter.
//! A request comes last and is decided at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    fleet::{
        brake::Brake,
        capacity, cordon,
        input::{Input, Stored},
        job::JobRecord,
        live::Live,
        marking,
        objects::Objects,
        output::TurnOutput,
        pod_gpus,
        policy::Policy,
        presence::Presence,
        registry::{Liveness, Node, Registry},
        scratch::Scratch,
        shares::Submissions,
        tombstone::{self, Tombstone},
        view::{self, JobView, NodeView, PodPlace},
        worker_pods::WorkerPods,
    },
    id::{JobName, JobUid, NodeName, Term},
    node_report::{holders::Holder, labels::Labels},
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
    pub(crate) submissions: Submissions,
    pub(crate) tombstones: Vec<Tombstone>,
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
            }
            if let Some(node) = nodes.get_mut(&name) {
                node.report = report.into();
            }
        }
        let jobs: BTreeMap<JobUid, JobRecord> = stored
            .jobs
            .into_iter()
            .map(|job| (job.uid.clone(), job))
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
                .filter(|job| !job.phase.is_over() || job.unproven_generations().next().is_some())
                .map(|j| j.uid.clone())
                .collect(),
            live: BTreeMap::new(),
            jobs_wake: None,
            brake: None,
            halted,
            objects: Objects::default(),
            pods: WorkerPods::default(),
            submissions: Submissions::default(),
            tombstones: tombstone::loaded(stored.tombstones, &jobs),
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

    /// Takes one input and decides.
    pub fn turn(&mut self, now: Timestamp, input: Input) -> TurnOutput {
        self.turn_all(now, [input])
    }

    /// Takes all inputs of a burst, in order, and decides once. So a thousand nodes that answer at
    /// the same time cost one decision and one commit. At most one of the inputs may be a request,
    /// and it must be the last, so that its answer describes the job as the request left it.
    pub fn turn_all(
        &mut self,
        now: Timestamp,
        inputs: impl IntoIterator<Item = Input>,
    ) -> TurnOutput {
        let mut scratch = Scratch::new(now);
        let slept = self
            .presence
            .turn_begins(now, &self.policy, &mut self.nodes);
        self.put_off(slept);
        // Timers are not stored, so the first turn looks at every job.
        scratch.changes.capacity = std::mem::take(&mut self.fresh);
        for input in inputs {
            self.apply(input, &mut scratch);
        }
        self.tell_return(now, &mut scratch.events);
        let heartbeat = self.nodes.heartbeat(&self.policy);
        let listening = self.is_listening(now);
        for name in self.nodes.expire(now, heartbeat, &self.policy, listening) {
            self.liveness_changed(&name, &mut scratch);
        }
        self.forget_gone(&mut scratch);
        self.delete_expired(&mut scratch);
        self.decide_brake(&mut scratch);
        self.consider_cordons_again(&mut scratch);
        self.settle_all(&mut scratch);
        self.finish(scratch)
    }

    fn consider_cordons_again(&mut self, scratch: &mut Scratch) {
        let now = scratch.now;
        if now < self.consider_at || self.is_listening(now) {
            return;
        }
        self.consider_at = now + cordon::AGAIN;
        let (brake, policy) = (self.brake.as_ref(), &self.policy);
        cordon::consider_again(&mut self.nodes, &self.jobs, brake, policy, scratch);
    }

    /// The coordinator stood still for so long. It heard nobody meanwhile, so those who may still come
    /// back have as much more time.
    fn put_off(&mut self, slept: Duration) {
        if slept.is_zero() {
            return;
        }
        let of_brake = self.brake.as_mut().map(|brake| &mut brake.enough_back);
        let doubts = self.live.values_mut();
        let of_jobs =
            doubts.filter_map(|live| Some(&mut live.condition.doubt_mut()?.shared_silence.until));
        of_brake
            .into_iter()
            .chain(of_jobs)
            .flatten()
            .for_each(|until| *until = *until + slept);
    }

    pub(crate) fn is_listening(&self, now: Timestamp) -> bool {
        self.presence
            .is_listening(now, &self.nodes, || self.jobs.values())
    }

    fn apply(&mut self, input: Input, scratch: &mut Scratch) {
        match input {
            Input::Connected { session, hello } => self.connected(session, hello, scratch),
            Input::Report { session, report } => self.reported(session, report, scratch),
            Input::Runs { session, runs } => self.runs(session, runs, scratch),
            Input::Launchers { session, launchers } => self.launchers(session, launchers, scratch),
            Input::Heartbeat { session } => self.heard(session, scratch),
            Input::Disconnected { session } => self.disconnected(session, scratch),
            Input::Objects(news) => {
                self.objects
                    .read(news, &mut self.nodes, &self.jobs, &self.policy, scratch)
            }
            Input::Pods(news) => self.read_pods(news, scratch),
            Input::Request { id, actor, request } => {
                scratch.events.actor = Some(actor.clone());
                let reply = self.request(&actor, request, scratch);
                scratch.events.actor = None;
                debug_assert!(scratch.answer.is_none(), "one request a turn");
                scratch.answer = Some((id, reply));
            }
            Input::RecordTooLarge { job, why } => self.record_too_large(&job, &why, scratch),
            Input::Tick => {}
        }
    }

    pub fn job_view(&self, uid: &JobUid) -> Option<JobView> {
        let mut view = view::job(self.jobs.get(uid)?, &self.nodes);
        let unneeded = self.pods.unneeded.get(uid);
        view.pods_unneeded = unneeded.cloned().unwrap_or_default();
        view.shortage = self.live.get(uid).and_then(|live| live.shortage);
        Some(view)
    }

    pub fn node_view(&self, name: &NodeName) -> Option<NodeView> {
        let node = self.nodes.get(name)?;
        let is_ours = |holder: &Holder| self.pods.of_holder(holder).is_some();
        Some(NodeView {
            place: PodPlace::of(&self.nodes, node),
            bars_pods: pod_gpus::bars_new_pods(node, is_ours),
            mass_loss: self.is_lost_with_many(node),
            ..view::node(
                node,
                &self.jobs,
                capacity::slots_free(node, &self.jobs, None),
                self.conditions(node),
                capacity::no_new_work(&self.nodes, node),
                marking::due(node, self.brake.is_some(), &self.policy),
            )
        })
    }

    /// Whether the node was lost with many others. A coordinator that has just started does not know
    /// that of the nodes that an earlier one has lost, so it listens first.
    fn is_lost_with_many(&self, node: &Node) -> bool {
        let mut brake = self.brake.iter();
        let is_listened_for = node.liveness == Liveness::Unknown && self.presence.holds();
        is_listened_for || brake.any(|brake| brake.is_about(node, &self.policy))
    }

    pub fn job_views(&self) -> Vec<JobView> {
        self.jobs
            .keys()
            .filter_map(|uid| self.job_view(uid))
            .collect()
    }

    pub fn node_views(&self) -> Vec<NodeView> {
        self.nodes
            .names()
            .filter_map(|name| self.node_view(name))
            .collect()
    }
}
