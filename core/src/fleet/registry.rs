//! Who is alive. Silence only: a node's health is another matter, and so is whether somebody cordoned it.
//!
//! `Unknown -> Ready -> Suspect -> Lost`, and from each back to `Ready` by a new session. *Suspect*: three heartbeats missed, or the
//! stream broke; no new work, nothing is stopped. *Lost*: five missed; its work may be placed elsewhere as soon as that is safe.
//! *Unknown*: not heard since this coordinator started, or since it stood still itself; while the coordinator listens, Unknown never
//! turns into Lost, and a stream that ends says nothing, since it is the coordinator who was away.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    fleet::{NodeRecord, Policy, view::Liveness},
    id::{JobUid, NodeName, SessionId},
    node_report::NodeReport,
    run::{Desired, RunId, RunReport},
    time::Timestamp,
};

/// A node and what this coordinator has heard of it.
#[derive(Debug)]
pub(crate) struct Node {
    pub record: NodeRecord,
    /// What it last said of itself, shared with all views: a node with eight GPUs has some 15 KiB to say.
    pub report: Arc<NodeReport>,
    pub session: Option<SessionId>,
    pub incarnation: u64,
    /// The version of the session's protocol its agent was welcomed under; 0 before that.
    pub protocol: u32,
    pub liveness: Liveness,
    /// How often its agent was told to speak: it is judged by this, also when the fleet has become smaller, and its heartbeat quicker.
    pub heartbeat: Duration,
    /// Since when it is not Ready.
    pub doubted_at: Timestamp,
    /// When this coordinator saw it become Lost; `None` for one that was Lost before it started.
    pub lost_at: Option<Timestamp>,
    /// When it was last heard; the coordinator's own stalls are added, so that they are not held against it.
    pub heard: Timestamp,
    /// Everything it holds, as of its last report.
    pub runs: BTreeMap<RunId, RunReport>,
    /// What its session was last told.
    pub published: Option<Desired>,
    /// Jobs whose unburied generations have a member here.
    pub jobs: BTreeSet<JobUid>,
}

impl Node {
    pub(crate) fn stored(record: NodeRecord, now: Timestamp) -> Self {
        Self {
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
            runs: BTreeMap::new(),
            published: None,
            jobs: BTreeSet::new(),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.liveness == Liveness::Ready
    }

    /// After how long a silence it is doubted, and lost. `heartbeat`: the fleet's now.
    fn patience(&self, heartbeat: Duration, policy: &Policy) -> (Duration, Duration) {
        let heartbeat = heartbeat.max(self.heartbeat);
        (heartbeat * policy.suspect_missed, heartbeat * policy.lost_missed)
    }

    fn doubt(&mut self, liveness: Liveness, now: Timestamp) {
        if matches!(self.liveness, Liveness::Ready | Liveness::Unknown) {
            self.doubted_at = now;
        }
        self.liveness = liveness;
    }
}

/// All nodes, and which session speaks for which.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub nodes: BTreeMap<NodeName, Node>,
    sessions: BTreeMap<SessionId, NodeName>,
    /// No verdict on silence is due before this. Messages of Ready nodes only put verdicts off; whatever else happens resets it, so that
    /// 2,000 heartbeats a second do not each look at 10,000 nodes.
    quiet_until: Timestamp,
}

impl Registry {
    pub(crate) fn get(&self, name: &NodeName) -> Option<&Node> {
        self.nodes.get(name)
    }

    pub(crate) fn speaker(&self, session: SessionId) -> Option<&NodeName> {
        self.sessions.get(&session)
    }

    /// Binds a session to a node, and frees the node of the session it had.
    pub(crate) fn bind(&mut self, session: SessionId, name: &NodeName, now: Timestamp) -> Option<SessionId> {
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
        before
    }

    /// A message came. True if that ended a doubt.
    pub(crate) fn heard(&mut self, session: SessionId, now: Timestamp) -> bool {
        let Some(node) = self.sessions.get(&session).and_then(|name| self.nodes.get_mut(name)) else { return false };
        node.heard = now;
        let back = node.liveness != Liveness::Ready;
        node.liveness = Liveness::Ready;
        if back {
            self.quiet_until = Timestamp(0);
        }
        back
    }

    /// The stream ended: a suspicion, at once; `excused`: it may be for this coordinator's own fault, and the node must be heard anew.
    /// Answers with the node, if the session still spoke for one.
    pub(crate) fn disconnect(&mut self, session: SessionId, now: Timestamp, excused: bool) -> Option<NodeName> {
        let name = self.sessions.remove(&session)?;
        self.quiet_until = Timestamp(0);
        let node = self.nodes.get_mut(&name)?;
        node.session = None;
        node.published = None;
        match excused {
            true => node.liveness = Liveness::Unknown,
            false => node.doubt(Liveness::Suspect, now),
        }
        Some(name)
    }

    pub(crate) fn forget(&mut self, name: &NodeName) {
        self.nodes.remove(name);
        // A smaller fleet has a quicker heartbeat.
        self.quiet_until = Timestamp(0);
    }

    /// Judges silence by the heartbeat that agents were given. `listening`: nobody becomes Lost who was not heard by this
    /// coordinator. Answers with those that changed.
    pub(crate) fn expire(&mut self, now: Timestamp, heartbeat: Duration, policy: &Policy, listening: bool) -> Vec<NodeName> {
        if now < self.quiet_until {
            return Vec::new();
        }
        let mut changed = Vec::new();
        for (name, node) in &mut self.nodes {
            let silent = now.since(node.heard);
            let (suspect, lost) = node.patience(heartbeat, policy);
            let next = match node.liveness {
                Liveness::Unknown if listening => Liveness::Unknown,
                Liveness::Unknown => Liveness::Lost,
                Liveness::Ready if silent >= suspect => Liveness::Suspect,
                Liveness::Suspect if silent >= lost => Liveness::Lost,
                same => same,
            };
            if next != node.liveness {
                node.doubt(next, now);
                changed.push(name.clone());
            }
        }
        let unheard = self.nodes.values().any(|node| node.liveness == Liveness::Unknown);
        self.quiet_until = if unheard { Timestamp(0) } else { self.next_silence(heartbeat, policy).unwrap_or(Timestamp(u64::MAX)) };
        changed
    }

    /// The coordinator itself stood still for `stall`: nobody could be heard, so nobody was silent.
    pub(crate) fn discount(&mut self, stall: Duration) {
        self.quiet_until = Timestamp(0);
        for node in self.nodes.values_mut() {
            node.heard = node.heard + stall;
        }
    }

    /// The coordinator stood still so long that agents may have given it up: who is there must be heard anew.
    pub(crate) fn unhear(&mut self) {
        self.quiet_until = Timestamp(0);
        for node in self.nodes.values_mut().filter(|node| node.liveness != Liveness::Lost) {
            node.liveness = Liveness::Unknown;
        }
    }

    /// When the next verdict on silence may be due; never later than it is.
    pub(crate) fn next_verdict(&self, heartbeat: Duration, policy: &Policy) -> Option<Timestamp> {
        match self.quiet_until {
            Timestamp(0) => self.next_silence(heartbeat, policy),
            known => Some(known).filter(|at| *at < Timestamp(u64::MAX)),
        }
    }

    fn next_silence(&self, heartbeat: Duration, policy: &Policy) -> Option<Timestamp> {
        let due = |node: &Node| match node.liveness {
            Liveness::Ready => Some(node.heard + node.patience(heartbeat, policy).0),
            Liveness::Suspect => Some(node.heard + node.patience(heartbeat, policy).1),
            Liveness::Lost | Liveness::Unknown => None,
        };
        self.nodes.values().filter_map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeEpoch;

    fn registry(now: Timestamp) -> Registry {
        let mut registry = Registry::default();
        let record = NodeRecord {
            name: "a".into(),
            epoch: NodeEpoch(1),
            boot_id: "boot".into(),
            first_seen: now,
            gone: false,
            cordon: None,
            halt: None,
            marks: Vec::new(),
        };
        registry.nodes.insert("a".into(), Node::stored(record, now));
        registry
    }

    #[test]
    fn silence_leads_from_ready_over_suspect_to_lost() {
        let (policy, start) = (Policy::default(), Timestamp(1_000_000));
        let mut registry = registry(start);
        registry.bind(SessionId(1), &"a".into(), start);
        let at = |ms| start + Duration::from_millis(ms);
        assert!(registry.expire(at(2_999), policy.heartbeat, &policy, false).is_empty());
        assert_eq!(registry.expire(at(3_000), policy.heartbeat, &policy, false).len(), 1);
        assert_eq!(registry.nodes[&"a".into()].liveness, Liveness::Suspect);
        assert!(registry.expire(at(4_999), policy.heartbeat, &policy, false).is_empty());
        assert_eq!(registry.expire(at(5_000), policy.heartbeat, &policy, false).len(), 1);
        assert_eq!(registry.nodes[&"a".into()].liveness, Liveness::Lost);
        assert!(registry.heard(SessionId(1), at(6_000)), "a message ends the doubt");
    }

    #[test]
    fn a_large_fleet_is_judged_by_the_slow_heartbeat_it_was_given() {
        let (policy, start) = (Policy::default(), Timestamp(0));
        let mut registry = registry(start);
        registry.bind(SessionId(1), &"a".into(), start);
        let slow = Duration::from_secs(5);
        assert!(registry.expire(start + 2 * slow, slow, &policy, false).is_empty());
        assert_eq!(registry.next_verdict(slow, &policy), Some(start + 3 * slow));
        assert_eq!(registry.expire(start + 3 * slow, slow, &policy, false).len(), 1);
    }

    #[test]
    fn a_node_is_judged_by_the_heartbeat_it_was_given_when_the_fleet_has_shrunk() {
        let (policy, start) = (Policy::default(), Timestamp(0));
        let mut registry = registry(start);
        registry.bind(SessionId(1), &"a".into(), start);
        let slow = Duration::from_secs(5);
        registry.nodes.get_mut(&"a".into()).unwrap().heartbeat = slow;
        assert!(registry.expire(start + 2 * slow, policy.heartbeat, &policy, false).is_empty());
        assert_eq!(registry.next_verdict(policy.heartbeat, &policy), Some(start + 3 * slow));
        assert_eq!(registry.expire(start + 3 * slow, policy.heartbeat, &policy, false).len(), 1);
    }

    #[test]
    fn messages_put_a_verdict_off_and_never_away() {
        let (policy, start) = (Policy::default(), Timestamp(1_000_000));
        let mut registry = registry(start);
        registry.bind(SessionId(1), &"a".into(), start);
        let at = |ms| start + Duration::from_millis(ms);
        assert!(registry.expire(at(0), policy.heartbeat, &policy, false).is_empty());
        registry.heard(SessionId(1), at(2_000));
        assert!(registry.expire(at(3_000), policy.heartbeat, &policy, false).is_empty());
        assert_eq!(registry.next_verdict(policy.heartbeat, &policy), Some(at(5_000)));
        assert_eq!(registry.expire(at(5_000), policy.heartbeat, &policy, false).len(), 1);
        assert!(registry.heard(SessionId(1), at(5_100)), "a message ends the doubt");
        assert_eq!(registry.next_verdict(policy.heartbeat, &policy), Some(at(8_100)));
        assert_eq!(registry.expire(at(8_100), policy.heartbeat, &policy, false).len(), 1);
    }

    #[test]
    fn a_broken_stream_is_suspect_at_once() {
        let start = Timestamp(0);
        let mut registry = registry(start);
        registry.bind(SessionId(1), &"a".into(), start);
        assert_eq!(registry.disconnect(SessionId(1), start, false), Some("a".into()));
        assert_eq!(registry.nodes[&"a".into()].liveness, Liveness::Suspect);
        assert_eq!(registry.disconnect(SessionId(1), start, false), None);
    }

    #[test]
    fn who_was_not_heard_yet_is_not_lost_while_we_listen() {
        let (policy, start) = (Policy::default(), Timestamp(0));
        let mut registry = registry(start);
        assert!(registry.expire(start + Duration::from_secs(60), policy.heartbeat, &policy, true).is_empty());
        assert_eq!(registry.expire(start + Duration::from_secs(60), policy.heartbeat, &policy, false).len(), 1);
    }

    #[test]
    fn our_own_stall_is_not_held_against_anybody() {
        let (policy, start) = (Policy::default(), Timestamp(0));
        let mut registry = registry(start);
        registry.bind(SessionId(1), &"a".into(), start);
        registry.discount(Duration::from_secs(20));
        assert!(registry.expire(start + Duration::from_secs(20), policy.heartbeat, &policy, false).is_empty());
    }

    #[test]
    fn a_new_session_takes_the_place_of_the_old() {
        let start = Timestamp(0);
        let mut registry = registry(start);
        registry.bind(SessionId(1), &"a".into(), start);
        assert_eq!(registry.bind(SessionId(2), &"a".into(), start), Some(SessionId(1)));
        assert_eq!(registry.disconnect(SessionId(1), start, false), None, "the old stream's end says nothing any more");
        assert!(registry.nodes[&"a".into()].is_ready());
    }
}
