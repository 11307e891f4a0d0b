//! One turn of the fleet: take the input as a fact, judge silence, settle every job that may be
//! affected, say what changed.
//!
//! Facts are applied first and judged afterwards, so the order in which messages of one burst
//! arrive does not matter.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    fleet::{
        Answer, Change, Effect, Event, Fleet, Input, NodeRecord, Policy, Stored, Turn, desired,
        generation,
        job::{JobRecord, Stopping},
        objects::Objects,
        registry::{Node, Registry},
        settle::Live,
        view::{self, JobView, NodeView},
    },
    id::{Generation, JobName, JobUid, NodeName, Term},
    node_report::labels::Labels,
    planted::{self, Mistake},
    run::Endpoint,
    time::Timestamp,
};

/// A stall of the coordinator itself longer than this many ticks is not held against the nodes.
const STALL_TICKS: u32 = 4;

/// What a turn gathers on its way: the records before it, whom to look at, what to say.
#[derive(Default)]
pub(crate) struct Scratch {
    pub effects: Vec<Effect>,
    pub events: Vec<Event>,
    /// Jobs whose view may have changed, with their record before the turn (`None`: new).
    pub jobs: BTreeMap<JobUid, Option<JobRecord>>,
    /// Jobs of which nothing is known that is new but steps.
    pub shown: BTreeSet<JobUid>,
    pub deleted: Vec<(JobUid, Vec<NodeName>)>,
    pub nodes: BTreeMap<NodeName, Option<NodeRecord>>,
    /// Nodes whose desired state may have changed.
    pub publish: BTreeSet<NodeName>,
    /// Capacity changed: every job that waits for some must be settled.
    pub capacity: bool,
    pub wake_at: Option<Timestamp>,
    /// A node has just become Lost.
    pub lost: bool,
    pub answer: Option<(crate::fleet::RequestId, Reply)>,
}

/// What a request is answered with, once the turn is settled.
pub(crate) enum Reply {
    Job { uid: JobUid, existed: bool },
    Node(NodeName),
    Ready(Answer),
}

impl Scratch {
    pub(crate) fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }
}

impl Fleet {
    /// The fleet as stored, under a new term. While it listens ([`Policy::listen_for`]), silence
    /// means nothing.
    pub fn new(policy: Policy, term: Term, stored: Stored, now: Timestamp) -> Self {
        let mut nodes = Registry::default();
        let mut halted = BTreeSet::new();
        for mut record in stored.nodes {
            record.halt = record
                .halt
                .filter(|_| !policy.accept_store && !planted::on(Mistake::HaltLifted));
            if record.halt.is_some() {
                halted.insert(record.name.clone());
            }
            nodes.admit(record, now);
        }
        for (name, mut report) in stored.reports {
            if !policy.reads_objects {
                report.object_labels = Labels::default();
            }
            if let Some(node) = nodes.nodes.get_mut(&name) {
                node.report = report.into();
            }
        }
        let jobs: BTreeMap<JobUid, JobRecord> = stored
            .jobs
            .into_iter()
            .map(|job| (job.uid.clone(), job))
            .collect();
        let names = jobs
            .values()
            .map(|job| (job.name.clone(), job.uid.clone()))
            .collect();
        let mut fleet = Self {
            listen_until: now + policy.listen_for(nodes.present()),
            forget_at: now,
            policy,
            term,
            nodes,
            names,
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
            jobs,
            tombstones: Vec::new(),
            last_event: stored.last_event,
            last_turn: now,
            present_since: now,
            woke_at: None,
            returned: 0,
            told_return: false,
            fresh: true,
        };
        for uid in fleet.active.clone() {
            fleet.index(&uid);
        }
        fleet
    }

    /// Takes one input and decides.
    pub fn turn(&mut self, now: Timestamp, input: Input) -> Turn {
        self.turn_all(now, [input])
    }

    /// Takes all of a burst, in order, and decides once: a thousand nodes that answer at the same
    /// time cost one decision and one commit. At most one of the inputs may be a request, and it
    /// must be the last, so that its answer tells of the job as it left it.
    pub fn turn_all(&mut self, now: Timestamp, inputs: impl IntoIterator<Item = Input>) -> Turn {
        let mut scratch = Scratch::default();
        let stall = now.since(self.last_turn);
        if stall > self.policy.tick * STALL_TICKS {
            self.nodes.discount(stall - self.policy.tick);
        }
        if stall >= self.heartbeat() * self.policy.suspect_missed {
            // Agents may have given this coordinator up: it listens again, as after a start.
            self.nodes.unhear();
            let hold = self.policy.listen_for(self.nodes.present());
            (self.listen_until, self.present_since, self.woke_at) = (now + hold, now, Some(now));
            (self.returned, self.told_return) = (0, false);
        }
        self.last_turn = now;
        // Timers are not stored: the first turn looks at every job.
        scratch.capacity = std::mem::take(&mut self.fresh);
        for input in inputs {
            self.apply(now, input, &mut scratch);
        }
        self.tell_return(now, &mut scratch);
        let listening = self.is_listening(now);
        for name in self
            .nodes
            .expire(now, self.heartbeat(), &self.policy, listening)
        {
            self.liveness_changed(&name, now, &mut scratch);
        }
        self.forget_gone(now, &mut scratch);
        self.judge_brake(now, &mut scratch);
        self.settle_all(now, &mut scratch);
        self.finish(now, scratch)
    }

    /// A started coordinator listens before it judges: until everybody it knows is back, or the
    /// hold is over (R8). A node that was gone before is waited for only where a generation counts
    /// on it: that would be broken, and the node blamed, unheard.
    pub(crate) fn is_listening(&self, now: Timestamp) -> bool {
        let is_awaited = |node: &Node| !node.record.gone || self.is_member(&node.record.name);
        !planted::on(Mistake::NoListening)
            && now < self.listen_until
            && self.nodes.unheard().any(is_awaited)
    }

    /// What piled up while this coordinator stood still tells of agents that gave it up, in any
    /// order with their last words.
    pub(crate) fn has_just_woken(&self, now: Timestamp) -> bool {
        self.woke_at
            .is_some_and(|at| now.since(at) < self.heartbeat() * self.policy.suspect_missed)
    }

    fn is_member(&self, node: &NodeName) -> bool {
        self.jobs.values().any(|job| {
            job.current
                .as_ref()
                .is_some_and(|generation| generation.has(node))
        })
    }

    fn apply(&mut self, now: Timestamp, input: Input, scratch: &mut Scratch) {
        match input {
            Input::Connected { session, hello } => self.connected(session, hello, now, scratch),
            Input::Report { session, report } => self.reported(session, report, now, scratch),
            Input::Runs { session, runs } => self.runs(session, runs, now, scratch),
            Input::Spares { session, spares } => self.spares(session, spares, now, scratch),
            Input::Heartbeat { session } => self.heard(session, now, scratch),
            Input::Disconnected { session } => {
                let excused = self.has_just_woken(now);
                if let Some(name) = self.nodes.disconnect(session, now, excused) {
                    self.liveness_changed(&name, now, scratch);
                }
            }
            Input::Objects(news) => self.objects_read(news, now, scratch),
            Input::Request { id, request } => {
                let reply = self.request(request, now, scratch);
                scratch.answer = Some((id, reply));
            }
            Input::Tick => {}
        }
    }

    /// Remembers a job's record as it was before this turn, and that it must be settled.
    pub(crate) fn touch_job(&mut self, uid: &JobUid, scratch: &mut Scratch) {
        if let Some(job) = self.jobs.get(uid) {
            scratch
                .jobs
                .entry(uid.clone())
                .or_insert_with(|| Some(job.clone()));
        }
    }

    pub(crate) fn touch_node(&mut self, name: &NodeName, scratch: &mut Scratch) {
        if let Some(node) = self.nodes.get(name) {
            scratch
                .nodes
                .entry(name.clone())
                .or_insert_with(|| Some(node.record.clone()));
        }
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "an event has this many parts, and every caller names them in this order"
    )]
    pub(crate) fn event(
        &mut self,
        scratch: &mut Scratch,
        at: Timestamp,
        warning: bool,
        reason: &str,
        message: String,
        job: Option<(&JobUid, &JobName, Option<Generation>)>,
        node: Option<&NodeName>,
    ) {
        self.last_event += 1;
        scratch.events.push(Event {
            sequence: self.last_event,
            at,
            warning,
            reason: reason.to_owned(),
            message,
            job: job.map(|(uid, name, _)| (uid.clone(), name.clone())),
            node: node.cloned(),
            generation: job.and_then(|(_, _, generation)| generation),
        });
    }

    /// Keeps the index of nodes by job true, and marks all nodes concerned for publishing.
    pub(crate) fn index(&mut self, uid: &JobUid) -> BTreeSet<NodeName> {
        let Some(job) = self.jobs.get(uid) else {
            return BTreeSet::new();
        };
        let members: BTreeSet<NodeName> = job
            .unproven_generations()
            .flat_map(|g| g.members.iter().map(|m| m.node.clone()))
            .collect();
        for name in &members {
            if let Some(node) = self.nodes.nodes.get_mut(name) {
                node.jobs.insert(uid.clone());
            }
        }
        members
    }

    /// Turns what was touched into changes and effects.
    fn finish(&mut self, now: Timestamp, mut scratch: Scratch) -> Turn {
        let mut turn = Turn::default();
        let mut views = Vec::new();
        for (uid, before) in std::mem::take(&mut scratch.jobs) {
            let Some(job) = self.jobs.get(&uid) else {
                continue;
            };
            if before.as_ref() != Some(job) {
                turn.changes.push(Change::PutJob(Box::new(job.clone())));
                self.reindex(&uid, before.as_ref(), &mut scratch.publish);
            }
            let job = &self.jobs[&uid];
            if job.phase.is_over() && job.unproven_generations().next().is_none() {
                self.active.remove(&uid);
                self.live.remove(&uid);
            }
            scratch.shown.remove(&uid);
            views.push(Effect::JobChanged(uid));
        }
        views.extend(
            std::mem::take(&mut scratch.shown)
                .into_iter()
                .map(Effect::JobChanged),
        );
        for (uid, nodes) in std::mem::take(&mut scratch.deleted) {
            turn.changes.push(Change::DeleteJob(uid.clone()));
            scratch.publish.extend(nodes);
            views.push(Effect::JobChanged(uid));
        }
        for (name, before) in std::mem::take(&mut scratch.nodes) {
            match self.nodes.get(&name) {
                Some(node) if before.as_ref() != Some(&node.record) => turn
                    .changes
                    .push(Change::PutNode(Box::new(node.record.clone()))),
                Some(_) => {}
                None if before.is_some() => turn.changes.push(Change::DeleteNode(name.clone())),
                None => continue,
            }
            views.push(Effect::NodeChanged(name));
        }
        turn.changes.extend(
            scratch
                .events
                .into_iter()
                .map(|event| Change::Event(Box::new(event))),
        );
        turn.effects = scratch.effects;
        for name in scratch.publish {
            turn.effects.extend(self.publish(&name));
        }
        turn.effects.extend(views);
        if let Some((id, reply)) = scratch.answer {
            turn.effects.push(Effect::Answer {
                id,
                answer: self.answer(reply),
            });
        }
        let heartbeat = self.heartbeat();
        for at in [
            self.nodes.next_verdict(heartbeat, &self.policy),
            self.is_listening(now).then_some(self.listen_until),
        ]
        .into_iter()
        .flatten()
        {
            scratch.wake_at = Some(scratch.wake_at.map_or(at, |before| before.min(at)));
        }
        turn.wake_at = scratch.wake_at;
        turn
    }

    fn reindex(
        &mut self,
        uid: &JobUid,
        before: Option<&JobRecord>,
        publish: &mut BTreeSet<NodeName>,
    ) {
        let job = &self.jobs[uid];
        if let Some(before) = before.filter(|before| same_orders(before, job)) {
            // The usual news of a large job: some more members are dead, and only they are told
            // anything for it.
            let pairs = before
                .unproven_generations()
                .zip(job.unproven_generations());
            return publish.extend(
                pairs
                    .flat_map(|(before, now)| now.dead.difference(&before.dead))
                    .cloned(),
            );
        }
        let members = self.index(uid);
        for generation in before.into_iter().flat_map(JobRecord::unproven_generations) {
            for member in &generation.members {
                if !members.contains(&member.node)
                    && let Some(node) = self.nodes.nodes.get_mut(&member.node)
                {
                    node.jobs.remove(uid);
                    publish.insert(member.node.clone());
                }
            }
        }
        publish.extend(members);
    }

    fn publish(&mut self, name: &NodeName) -> Option<Effect> {
        let node = self.nodes.get(name)?;
        let session = node
            .session
            .filter(|_| node.record.halt.is_none() || planted::on(Mistake::HaltIgnored))?;
        let desired = desired::of_node(name, node, self.term, &self.jobs, &self.tombstones);
        if node.published.as_ref() == Some(&desired) {
            return None;
        }
        self.nodes.nodes.get_mut(name)?.published = Some(desired.clone());
        Some(Effect::Publish { session, desired })
    }

    fn answer(&self, reply: Reply) -> Answer {
        match reply {
            Reply::Ready(answer) => answer,
            Reply::Job { uid, existed } => match self.job_view(&uid) {
                Some(job) => Answer::Job {
                    job: Box::new(job),
                    existed,
                },
                None => Answer::Done,
            },
            Reply::Node(name) => self
                .node_view(&name)
                .map_or(Answer::Done, |node| Answer::Node(Box::new(node))),
        }
    }

    pub fn job_view(&self, uid: &JobUid) -> Option<JobView> {
        self.jobs
            .get(uid)
            .map(|record| view::job(record, &self.nodes))
    }

    pub fn node_view(&self, name: &NodeName) -> Option<NodeView> {
        let node = self.nodes.get(name)?;
        Some(view::node(
            node,
            &self.jobs,
            self.slots_free(name, None),
            self.conditions(node),
        ))
    }

    pub fn job_views(&self) -> Vec<JobView> {
        self.jobs
            .keys()
            .filter_map(|uid| self.job_view(uid))
            .collect()
    }

    pub fn node_views(&self) -> Vec<NodeView> {
        self.nodes
            .nodes
            .keys()
            .filter_map(|name| self.node_view(name))
            .collect()
    }

    pub(crate) fn live(&mut self, uid: &JobUid) -> &mut Live {
        self.live.entry(uid.clone()).or_default()
    }

    /// Records new proofs of death in all of a job's generations. True if there were any.
    pub(crate) fn note_deaths(&mut self, uid: &JobUid) -> bool {
        let Some(job) = self.jobs.get_mut(uid) else {
            return false;
        };
        let mut any = false;
        for generation in job.unproven_generations_mut() {
            any |= generation::note_deaths(&self.nodes, uid, generation);
        }
        any
    }
}

/// Whether all members are told the same, apart from what follows from their own death.
fn same_orders(before: &JobRecord, now: &JobRecord) -> bool {
    fn told(
        job: &JobRecord,
    ) -> impl Iterator<Item = (Generation, bool, &Option<Endpoint>, &Option<Stopping>)> {
        job.unproven_generations()
            .map(|g| (g.number, g.started, &g.store, &g.stopping))
    }
    before.last_generation == now.last_generation && told(before).eq(told(now))
}
