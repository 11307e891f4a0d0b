//! Who is alive. Silence only: a node's health is another matter, and so is whether somebody
//! cordoned it.
//!
//! `Unknown -> Ready -> Suspect -> Lost`, and from each back to `Ready` by a new session.
//! *Suspect*: three heartbeats missed, or the stream broke; no new work, nothing is stopped.
//! *Lost*: five missed; its work may be placed elsewhere as soon as that is safe. *Unknown*: not
//! heard since this coordinator started, or since it stood still itself; while the coordinator
//! listens, Unknown never turns into Lost, and a stream that ends says nothing, since it is the
//! coordinator who was away.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    fleet::{job::JobRecord, node_record::NodeRecord, policy::Policy},
    id::{JobUid, NodeName, SessionId},
    nccl::profile::Profile,
    node_report::NodeReport,
    run::{Desired, RunId, RunReport, SpareState},
    time::Timestamp,
};

/// Liveness as the registry judges it; silence only, never health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Liveness {
    Ready,
    Suspect,
    Lost,
    /// Known from the store and not heard since this coordinator started.
    Unknown,
}

/// What a node was asked to get ready for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prewarm {
    pub since: Timestamp,
    pub gpus: Vec<String>,
    pub profile: Profile,
}

/// A node and what this coordinator has heard of it.
#[derive(Debug)]
pub(crate) struct Node {
    pub record: NodeRecord,
    /// What it last said of itself, shared with all views: a node with eight GPUs has some 15 KiB
    /// to say.
    pub report: Arc<NodeReport>,
    pub session: Option<SessionId>,
    pub incarnation: u64,
    /// The version of the session's protocol its agent was welcomed under; 0 before that.
    pub protocol: u32,
    pub liveness: Liveness,
    /// How often its agent was told to speak: it is judged by this, also when the fleet has become
    /// smaller, and its heartbeat quicker.
    pub heartbeat: Duration,
    /// People were told that it is silent, and not yet that it is back.
    pub told_silent: bool,
    /// Since when it is not Ready.
    pub doubted_at: Timestamp,
    /// When this coordinator saw it become Lost; `None` for one that was Lost before it started.
    pub lost_at: Option<Timestamp>,
    /// When it was last heard; the coordinator's own stalls are added, so that they are not held
    /// against it.
    pub heard: Timestamp,
    /// When this boot certainly lived, by its own word; `None`: this coordinator has not heard it
    /// yet.
    pub spoke: Option<Timestamp>,
    /// Everything it holds, as of its last report.
    pub runs: BTreeMap<RunId, RunReport>,
    /// What its session was last told.
    pub published: Option<Desired>,
    /// Jobs whose unproven generations have a member here.
    pub jobs: BTreeSet<JobUid>,
    /// Jobs that are about to come here, for which it is to have a launcher ready.
    pub prewarm: BTreeMap<JobUid, Prewarm>,
    /// What it last said of such launchers.
    pub spares: BTreeMap<JobUid, SpareState>,
    /// Under which moment it is filed in [`Registry::due`].
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
            runs: BTreeMap::new(),
            published: None,
            jobs: BTreeSet::new(),
            prewarm: BTreeMap::new(),
            spares: BTreeMap::new(),
            due: None,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.liveness == Liveness::Ready
    }

    /// After how long a silence it is doubted, and lost. `heartbeat`: the fleet's now.
    fn patience(&self, heartbeat: Duration, policy: &Policy) -> (Duration, Duration) {
        let heartbeat = heartbeat.max(self.heartbeat);
        (
            heartbeat * policy.suspect_missed,
            heartbeat * policy.lost_missed,
        )
    }

    /// When its silence will say something new. `heartbeat`: the fleet's now.
    fn next_verdict(&self, heartbeat: Duration, policy: &Policy) -> Option<Timestamp> {
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

/// The heartbeat changes with the number of nodes in steps of so many: whoever becomes quicker has
/// everybody filed anew.
pub(crate) const HEARTBEAT_STEP: usize = 500;

/// All nodes, and which session speaks for which.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub nodes: BTreeMap<NodeName, Node>,
    sessions: BTreeMap<SessionId, NodeName>,
    /// Ready and Suspect nodes, each by a moment not later than the next verdict on it. Messages
    /// only put verdicts off; how far is looked up when that moment has come, so that a message
    /// costs nothing here, and a turn no more than the nodes it is about.
    due: BTreeSet<(Timestamp, NodeName)>,
    unknown: BTreeSet<NodeName>,
    /// Nodes that are not gone.
    present: usize,
    /// No verdict on silence is due before this. Messages of Ready nodes only put verdicts off;
    /// whatever else happens resets it, so that 2,000 heartbeats a second do not each look at
    /// 10,000 nodes.
    quiet_until: Timestamp,
}

impl Registry {
    pub(crate) fn get(&self, name: &NodeName) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// Nodes that are connected, or awaited: not those that are gone. The heartbeat depends on
    /// their number, in steps.
    pub(crate) fn present(&self) -> usize {
        self.present
    }

    /// The heartbeat interval agents are given: one second, stretched so that 2,000 a second arrive
    /// at most. A node that is gone sends none.
    pub(crate) fn heartbeat(&self, policy: &Policy) -> Duration {
        const PER_SECOND: u64 = 2_000;
        let present = self.present.next_multiple_of(HEARTBEAT_STEP) as u64;
        policy
            .heartbeat
            .max(Duration::from_millis(present * 1_000 / PER_SECOND))
    }

    /// Notes on all members of a job's unproven generations that it may hold something there.
    /// Answers with them.
    pub(crate) fn index(&mut self, job: &JobRecord) -> BTreeSet<NodeName> {
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

    /// Notes that a node is gone since `now`, or that it is not. True if that is new.
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
            true => self.one_less(),
            false => self.present += 1,
        }
        true
    }

    /// A smaller fleet has a quicker heartbeat: verdicts may come sooner than they were filed.
    fn one_less(&mut self) {
        self.present -= 1;
        if self.present.is_multiple_of(HEARTBEAT_STEP) {
            self.quiet_until = Timestamp(0);
            let all: Vec<NodeName> = self.nodes.keys().cloned().collect();
            all.iter().for_each(|name| self.file(name, Timestamp(0)));
        }
    }

    /// A node of which nothing has been heard yet.
    pub(crate) fn admit(&mut self, record: NodeRecord, now: Timestamp) {
        self.quiet_until = Timestamp(0);
        self.present += usize::from(!record.gone);
        let name = record.name.clone();
        self.nodes.insert(name.clone(), Node::stored(record, now));
        self.file(&name, now);
    }

    /// Those of which this coordinator has heard nothing yet.
    pub(crate) fn unheard(&self) -> impl Iterator<Item = &Node> {
        self.unknown.iter().filter_map(|name| self.nodes.get(name))
    }

    /// Puts a node where its liveness belongs. `due`: not later than the next verdict on it.
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

    /// Binds a session to a node, and frees the node of the session it had.
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

    /// A message came; `stale`: it may have waited here for long. True if that ended a doubt.
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

    /// The stream ended: a suspicion, at once; `excused`: it may be for this coordinator's own
    /// fault, and the node must be heard anew. Answers with the node, if the session still spoke
    /// for one.
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
        match excused {
            true => node.liveness = Liveness::Unknown,
            false => node.doubt(Liveness::Suspect, now),
        }
        self.file(&name, now);
        Some(name)
    }

    pub(crate) fn forget(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.remove(name) else {
            return;
        };
        if let Some(due) = node.due {
            self.due.remove(&(due, name.clone()));
        }
        self.unknown.remove(name);
        self.quiet_until = Timestamp(0);
        if !node.record.gone {
            self.one_less();
        }
    }

    /// Judges silence by the heartbeat that agents were given. `listening`: nobody becomes Lost who
    /// was not heard by this coordinator. Answers with those that changed.
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
                    .next_verdict(heartbeat, policy)
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
            let due = node.next_verdict(heartbeat, policy).unwrap_or(now);
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

    /// The coordinator itself stood still for `stall`: nobody could be heard, so nobody was silent.
    pub(crate) fn discount(&mut self, stall: Duration) {
        self.quiet_until = Timestamp(0);
        for node in self.nodes.values_mut() {
            node.heard = node.heard + stall;
        }
    }

    /// The coordinator stood still so long that agents may have given it up: who is there must be
    /// heard anew.
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

    /// When the next verdict on silence may be due; never later than it is.
    pub(crate) fn next_verdict(
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
            let due = self.nodes.get(&name)?.next_verdict(heartbeat, policy)?;
            if due <= filed {
                return Some(due);
            }
            self.file(&name, due);
        }
    }
}

#[cfg(test)]
mod tests;
