//! Which nodes are alive. It judges silence only. A node's health and its cordon are other matters.
//!
//! A node goes `Unknown -> Ready -> Suspect -> Lost`, and a new session brings it back to `Ready`
//! from each of them. *Suspect*: it missed three heartbeats, or its stream broke. It gets no new
//! work, and nothing is stopped. *Lost*: it missed five. Its work may be placed elsewhere as soon
//! as that is safe. *Unknown*: it was not heard since this coordinator started, or since the
//! coordinator stood still. While the coordinator listens, an Unknown node never becomes Lost.
//! After a standstill the end of a stream says nothing either, because it was the coordinator that
//! was away.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Index,
    sync::Arc,
    time::Duration,
};

use crate::{
    fleet::{job::JobRecord, node_record::NodeRecord, policy::Policy, worker_pod::WorkerPod},
    id::{JobUid, NodeName, SessionId},
    nccl::profile::Profile,
    node_object::NodeObject,
    node_report::NodeReport,
    run::{Desired, LauncherState, RunId, RunReport},
    time::Timestamp,
};

/// Liveness as the registry judges it, from silence and never from health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Liveness {
    Ready,
    Suspect,
    Lost,
    /// The node is known, and was not heard since this coordinator started or stood still.
    Unknown,
}

/// The launcher that a node was asked to have ready.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prewarm {
    pub since: Timestamp,
    pub gpus: Vec<String>,
    pub profile: Profile,
    /// The job is not about to come: it waits for something else, and another may come before it.
    pub gives_way: bool,
}

/// A cordon that something forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Withheld {
    /// Why the node should be cordoned.
    pub reason: String,
    pub veto: String,
}

/// A node and what this coordinator has heard of it.
#[derive(Debug)]
pub(crate) struct Node {
    pub record: NodeRecord,
    /// What the node last said of itself. All views share it, because a node with eight GPUs says
    /// about 15 KiB.
    pub report: Arc<NodeReport>,
    pub session: Option<SessionId>,
    pub incarnation: u64,
    /// The version of the session's protocol under which its agent was welcomed, and 0 before that.
    pub protocol: u32,
    pub liveness: Liveness,
    /// The heartbeat interval that its agent was given. The node is judged by it, even after the
    /// fleet has shrunk and its heartbeat has become quicker.
    pub heartbeat: Duration,
    /// An event said that the node is silent, and none has said yet that it is back.
    pub told_silent: bool,
    /// Since when the node is not Ready.
    pub doubted_at: Timestamp,
    /// When this coordinator saw the node become Lost. `None` if it was Lost before this
    /// coordinator started.
    pub lost_at: Option<Timestamp>,
    /// When the node was last heard. The coordinator's own stalls are added, so that they do not
    /// count as silence of the node.
    pub heard: Timestamp,
    /// The last time this boot was known to be up, by a message of the node itself. `None`: this
    /// coordinator has not heard that boot yet.
    pub spoke: Option<Timestamp>,
    /// Its Kubernetes Node object. `None`: it has none, or none was read.
    pub object: Option<Arc<NodeObject>>,
    /// The worker pod that it is. `None`: it is a host, or its pod was not read yet.
    pub pod: Option<Arc<WorkerPod>>,
    /// Why Muster has not cordoned it although it should.
    pub withheld: Option<Withheld>,
    /// All runs that the node holds, as of its last report.
    pub runs: BTreeMap<RunId, RunReport>,
    /// The desired state that its session was last given.
    pub published: Option<Desired>,
    /// Jobs with a member here in a generation that is not proven dead.
    pub jobs: BTreeSet<JobUid>,
    /// Jobs that are about to come here. The node is to have a launcher ready for each.
    pub prewarm: BTreeMap<JobUid, Prewarm>,
    /// What the node last said about those launchers.
    pub launchers: BTreeMap<JobUid, LauncherState>,
    /// The moment under which the node is filed in [`Registry::due`].
    pub due: Option<Timestamp>,
}

impl Node {
    pub(crate) fn stored(record: NodeRecord, now: Timestamp) -> Self {
        Self {
            told_silent: record.gone,
            record,
            report: Arc::default(),
            session: None,
            incarnation: 0,
            protocol: 0,
            liveness: Liveness::Unknown,
            heartbeat: Duration::ZERO,
            doubted_at: now,
            lost_at: None,
            heard: now,
            spoke: None,
            object: None,
            pod: None,
            withheld: None,
            runs: BTreeMap::new(),
            published: None,
            jobs: BTreeSet::new(),
            prewarm: BTreeMap::new(),
            launchers: BTreeMap::new(),
            due: None,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.liveness == Liveness::Ready
    }

    /// How long a silence makes the node Suspect, and how long a silence makes it Lost. `heartbeat`
    /// is the fleet's interval at present.
    fn patience(&self, heartbeat: Duration, policy: &Policy) -> (Duration, Duration) {
        let heartbeat = heartbeat.max(self.heartbeat);
        (
            heartbeat * policy.suspect_missed,
            heartbeat * policy.lost_missed,
        )
    }

    /// When the node's silence will change its liveness. `heartbeat` is the fleet's interval at
    /// present.
    fn next_silence_limit(&self, heartbeat: Duration, policy: &Policy) -> Option<Timestamp> {
        let (suspect, lost) = self.patience(heartbeat, policy);
        match self.liveness {
            Liveness::Ready => Some(self.heard + suspect),
            Liveness::Suspect => Some(self.heard + lost),
            Liveness::Lost | Liveness::Unknown => None,
        }
    }

    fn doubt(&mut self, liveness: Liveness, now: Timestamp) {
        if matches!(self.liveness, Liveness::Ready | Liveness::Unknown) {
            self.doubted_at = now;
        }
        self.liveness = liveness;
    }
}

/// The heartbeat changes with every step of this many nodes. Whenever it becomes quicker, all nodes
/// are filed anew, so the steps must not be small.
pub(crate) const HEARTBEAT_STEP: usize = 500;

/// All nodes, and the session that speaks for each.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    nodes: BTreeMap<NodeName, Node>,
    sessions: BTreeMap<SessionId, NodeName>,
    /// When to look at each Ready or Suspect node: never later than its next verdict. A message
    /// puts the verdict off and changes nothing here. When the moment has come, the node is filed
    /// again under its new verdict. So a message costs nothing here, and a turn costs no more than
    /// the nodes that it is about.
    due: BTreeSet<(Timestamp, NodeName)>,
    unknown: BTreeSet<NodeName>,
    /// Nodes that may have changed since `capacity` last counted them.
    changed: BTreeSet<NodeName>,
    /// Nodes that are not gone.
    present: usize,
    /// No verdict on silence is due before this. Messages of Ready nodes only put verdicts off, and
    /// every other change sets this to zero. So 2,000 heartbeats a second do not each look at
    /// 10,000 nodes.
    quiet_until: Timestamp,
}

impl Registry {
    pub(crate) fn get(&self, name: &NodeName) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// The node, to change it. Whatever is changed, its capacity is counted again before the next job asks for nodes.
    pub(crate) fn get_mut(&mut self, name: &NodeName) -> Option<&mut Node> {
        let node = self.nodes.get_mut(name)?;
        self.changed.insert(name.clone());
        Some(node)
    }

    /// Whether a node was handed out to be changed since they were last asked for.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The nodes that were handed out to be changed, are new or are forgotten, since this was last asked.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.changed)
    }

    /// Notes what a node's session was given. Thousands are given something in one turn, and it concerns no capacity.
    pub(crate) fn set_published(&mut self, name: &NodeName, desired: Desired) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.published = Some(desired);
        }
    }

    /// Notes that a node has no member in an unproven generation of this job. What the job holds follows its record.
    pub(crate) fn forget_member(&mut self, name: &NodeName, uid: &JobUid) -> bool {
        let node = self.nodes.get_mut(name);
        node.map(|node| node.jobs.remove(uid)).is_some()
    }

    pub(crate) fn contains(&self, name: &NodeName) -> bool {
        self.nodes.contains_key(name)
    }

    /// The number of all nodes, those that are gone among them.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// All nodes, in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// The names of all nodes, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.keys()
    }

    /// Puts a node there as it is, filed nowhere.
    #[cfg(test)]
    pub(crate) fn insert(&mut self, node: Node) {
        self.changed.insert(node.record.name.clone());
        self.nodes.insert(node.record.name.clone(), node);
    }

    /// The host on which a worker pod is. `None`: the node is no pod, or nothing is known of its host.
    pub(crate) fn host_of(&self, node: &Node) -> Option<&Node> {
        self.nodes.get(node.pod.as_ref()?.host.as_ref()?)
    }

    /// The worker pods on this host.
    pub(crate) fn pods_on<'a>(&'a self, host: &'a NodeName) -> impl Iterator<Item = &'a NodeName> {
        let is_there = move |node: &&Node| {
            let pod = node.pod.as_ref();
            pod.is_some_and(|pod| pod.host.as_ref() == Some(host))
        };
        self.nodes
            .values()
            .filter(is_there)
            .map(|node| &node.record.name)
    }

    /// The node that answers for what happens on this one: a worker pod's host.
    pub(crate) fn blamed<'a>(&'a self, node: &'a Node) -> &'a Node {
        self.host_of(node).unwrap_or(node)
    }

    /// Whether the node, or the host on which it is a pod, is cordoned.
    pub(crate) fn is_cordoned(&self, node: &Node) -> bool {
        node.record.cordon.is_some() || self.blamed(node).record.cordon.is_some()
    }

    /// The number of nodes that are connected or awaited, without those that are gone. The
    /// heartbeat depends on it, in steps.
    pub(crate) fn present(&self) -> usize {
        self.present
    }

    /// The heartbeat interval that agents are given. It is one second, and longer in a large fleet,
    /// so that at most 2,000 heartbeats arrive in a second. A node that is gone sends none.
    pub(crate) fn heartbeat(&self, policy: &Policy) -> Duration {
        const PER_SECOND: u64 = 2_000;
        let present = self.present.next_multiple_of(HEARTBEAT_STEP) as u64;
        policy
            .heartbeat
            .max(Duration::from_millis(present * 1_000 / PER_SECOND))
    }

    /// Notes on every node that has a member in an unproven generation of this job that it may hold
    /// something of the job. Returns these nodes.
    pub(crate) fn note_members(&mut self, job: &JobRecord) -> BTreeSet<NodeName> {
        let members: BTreeSet<NodeName> = job
            .unproven_generations()
            .flat_map(|generation| generation.members.iter().map(|member| member.node.clone()))
            .collect();
        for name in &members {
            if let Some(node) = self.nodes.get_mut(name) {
                node.jobs.insert(job.uid.clone());
            }
        }
        members
    }

    pub(crate) fn forget_job(&mut self, uid: &JobUid) {
        for node in self.nodes.values_mut() {
            node.jobs.remove(uid);
        }
    }

    /// Notes that a node is gone since `now`, or that it is not gone. True if that is new.
    pub(crate) fn set_gone(&mut self, name: &NodeName, gone: bool, now: Timestamp) -> bool {
        let Some(node) = self
            .nodes
            .get_mut(name)
            .filter(|node| node.record.gone != gone)
        else {
            return false;
        };
        (node.record.gone, node.record.gone_since) = (gone, gone.then_some(now));
        match gone {
            true => self.count_one_gone(),
            false => self.present += 1,
        }
        true
    }

    /// A smaller fleet has a quicker heartbeat, so verdicts may be due sooner than they were filed.
    fn count_one_gone(&mut self) {
        self.present -= 1;
        if self.present.is_multiple_of(HEARTBEAT_STEP) {
            self.quiet_until = Timestamp(0);
            let all: Vec<NodeName> = self.nodes.keys().cloned().collect();
            all.iter().for_each(|name| self.file(name, Timestamp(0)));
        }
    }

    /// Adds a node that this coordinator has not heard yet.
    pub(crate) fn admit(&mut self, record: NodeRecord, now: Timestamp) {
        self.quiet_until = Timestamp(0);
        self.present += usize::from(!record.gone);
        let name = record.name.clone();
        self.nodes.insert(name.clone(), Node::stored(record, now));
        self.changed.insert(name.clone());
        self.file(&name, now);
    }

    /// Nodes that this coordinator has not heard yet.
    pub(crate) fn unheard(&self) -> impl Iterator<Item = &Node> {
        self.unknown.iter().filter_map(|name| self.nodes.get(name))
    }

    pub(crate) fn is_unheard(&self, name: &NodeName) -> bool {
        self.unknown.contains(name)
    }

    /// Updates `self.due` and `self.unknown` for a node by its liveness. The argument `due` is not
    /// later than the node's next verdict.
    fn file(&mut self, name: &NodeName, due: Timestamp) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if let Some(before) = node.due.take() {
            self.due.remove(&(before, name.clone()));
        }
        if node.liveness == Liveness::Unknown {
            self.unknown.insert(name.clone());
            return;
        }
        self.unknown.remove(name);
        if node.liveness != Liveness::Lost {
            node.due = Some(due);
            self.due.insert((due, name.clone()));
        }
    }

    pub(crate) fn speaker(&self, session: SessionId) -> Option<&NodeName> {
        self.sessions.get(&session)
    }

    /// Binds a session to a node. Returns the node's earlier session, which no longer speaks for
    /// it.
    pub(crate) fn bind(
        &mut self,
        session: SessionId,
        name: &NodeName,
        now: Timestamp,
    ) -> Option<SessionId> {
        self.quiet_until = Timestamp(0);
        let node = self.nodes.get_mut(name)?;
        let before = node.session.replace(session);
        node.liveness = Liveness::Ready;
        node.heard = now;
        node.published = None;
        if let Some(before) = before {
            self.sessions.remove(&before);
        }
        self.sessions.insert(session, name.clone());
        self.file(name, now);
        before
    }

    /// A message came. `stale`: it may have waited here for long. True if the node was not Ready
    /// before.
    pub(crate) fn heard(&mut self, session: SessionId, now: Timestamp, stale: bool) -> bool {
        let Some(name) = self.sessions.get(&session) else {
            return false;
        };
        let Some(node) = self.nodes.get_mut(name) else {
            return false;
        };
        node.heard = now;
        if !stale {
            node.spoke = Some(now);
        }
        let back = node.liveness != Liveness::Ready;
        node.liveness = Liveness::Ready;
        if back {
            self.quiet_until = Timestamp(0);
            let name = name.clone();
            self.file(&name, now);
        }
        back
    }

    /// The stream ended. The node becomes Suspect at once, unless it is Lost already. `excused`: this
    /// coordinator may be the cause, so the node must be heard anew. Returns the node if its liveness is
    /// another now.
    pub(crate) fn disconnect(
        &mut self,
        session: SessionId,
        now: Timestamp,
        excused: bool,
    ) -> Option<NodeName> {
        let name = self.sessions.remove(&session)?;
        self.quiet_until = Timestamp(0);
        let node = self.nodes.get_mut(&name)?;
        node.session = None;
        node.published = None;
        match (node.liveness, excused) {
            // The end of the stream of a machine that is switched off comes after its silence.
            (Liveness::Lost, _) => return None,
            (_, true) => node.liveness = Liveness::Unknown,
            (_, false) => node.doubt(Liveness::Suspect, now),
        }
        self.file(&name, now);
        Some(name)
    }

    pub(crate) fn forget(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.remove(name) else {
            return;
        };
        self.changed.insert(name.clone());
        if let Some(due) = node.due {
            self.due.remove(&(due, name.clone()));
        }
        self.unknown.remove(name);
        self.quiet_until = Timestamp(0);
        if !node.record.gone {
            self.count_one_gone();
        }
    }

    /// Judges silence by the heartbeat interval that agents were given. While `listening`, a node
    /// that this coordinator has not heard does not become Lost. Returns the nodes whose liveness
    /// changed.
    pub(crate) fn expire(
        &mut self,
        now: Timestamp,
        heartbeat: Duration,
        policy: &Policy,
        listening: bool,
    ) -> Vec<NodeName> {
        if now < self.quiet_until {
            return Vec::new();
        }
        let mut looked_at = Vec::new();
        while self.due.first().is_some_and(|(at, _)| *at <= now) {
            looked_at.extend(self.due.pop_first().map(|(_, name)| name));
        }
        if !listening {
            looked_at.extend(std::mem::take(&mut self.unknown));
        }
        let mut changed = Vec::new();
        for name in looked_at {
            let Some(node) = self.nodes.get_mut(&name) else {
                continue;
            };
            node.due = None;
            let next = match node.liveness {
                Liveness::Unknown => Liveness::Lost,
                same if node
                    .next_silence_limit(heartbeat, policy)
                    .is_none_or(|at| now < at) =>
                {
                    same
                }
                Liveness::Ready => Liveness::Suspect,
                _ => Liveness::Lost,
            };
            if next != node.liveness {
                node.doubt(next, now);
                changed.push(name.clone());
            }
            let due = node.next_silence_limit(heartbeat, policy).unwrap_or(now);
            self.file(&name, due);
        }
        changed.sort_unstable();
        let heard_all = self.unknown.is_empty();
        self.quiet_until = if heard_all {
            self.next_silence(heartbeat, policy)
                .unwrap_or(Timestamp(u64::MAX))
        } else {
            Timestamp(0)
        };
        changed
    }

    /// The coordinator itself stood still for `stall`. It could hear no node, so no node was
    /// silent.
    pub(crate) fn discount(&mut self, stall: Duration) {
        if stall.is_zero() {
            return;
        }
        self.quiet_until = Timestamp(0);
        for node in self.nodes.values_mut() {
            node.heard = node.heard + stall;
        }
    }

    /// The coordinator stood still so long that agents may have given it up. Nodes must be heard
    /// anew.
    pub(crate) fn unhear(&mut self) {
        self.quiet_until = Timestamp(0);
        for (name, node) in self
            .nodes
            .iter_mut()
            .filter(|(_, node)| node.liveness != Liveness::Lost)
        {
            (node.liveness, node.due) = (Liveness::Unknown, None);
            self.unknown.insert(name.clone());
        }
        self.due.clear();
    }

    /// A moment not later than the next verdict on silence.
    pub(crate) fn next_silence_limit(
        &mut self,
        heartbeat: Duration,
        policy: &Policy,
    ) -> Option<Timestamp> {
        match self.quiet_until {
            Timestamp(0) => self.next_silence(heartbeat, policy),
            known => Some(known).filter(|at| *at < Timestamp(u64::MAX)),
        }
    }

    fn next_silence(&mut self, heartbeat: Duration, policy: &Policy) -> Option<Timestamp> {
        loop {
            let (filed, name) = self.due.first()?.clone();
            let due = self
                .nodes
                .get(&name)?
                .next_silence_limit(heartbeat, policy)?;
            if due <= filed {
                return Some(due);
            }
            self.file(&name, due);
        }
    }
}

impl Index<&NodeName> for Registry {
    type Output = Node;

    fn index(&self, name: &NodeName) -> &Node {
        &self.nodes[name]
    }
}

#[cfg(test)]
mod tests;
