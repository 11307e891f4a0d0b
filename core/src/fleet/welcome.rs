//! The beginning of a session: an agent says hello, and is refused or taken in.
//!
//! An agent is refused if it speaks no version that this coordinator knows, has obeyed a newer
//! term, is a second machine or a second agent of its name, does not know of workers that were
//! started on its node, or if there is no room for one more name. A node that knows more than the
//! store is taken in and halted (`rollback`).

use std::sync::Arc;

use crate::{
    fleet::{
        health_events,
        node_record::{Halt, NodeRecord},
        output::Effect,
        registry::Liveness,
        rollback::Ahead,
        scratch::Scratch,
        state::Fleet,
    },
    hello::Hello,
    id::{NodeEpoch, NodeName, SessionId},
    node_report::NodeReport,
    time::Timestamp,
};

impl Fleet {
    pub(crate) fn connected(&mut self, session: SessionId, hello: Hello, scratch: &mut Scratch) {
        let hello = self.of_own_job(hello);
        let name = hello.node.clone();
        // Asked before a new node gets a record.
        let is_awaited = self.nodes.is_unheard(&name);
        let ahead = self.ahead_of_store(&hello);
        let refused = self
            .unwelcome(&hello, scratch.now)
            .or_else(|| self.refused_without_workers(&hello, ahead.as_ref()))
            .or_else(|| self.admit(&hello, scratch));
        if let Some(why) = refused {
            let message = format!("session of {name} refused: {why}");
            scratch
                .events
                .warn("SessionRefused", message)
                .on_node(&name);
            return scratch.effects.push(Effect::Refuse { session, why });
        }
        self.take_numbers(&hello, ahead.as_ref(), scratch);
        scratch.changes.touch_node(&self.nodes, &name);
        let was_here = self.was_here_before(&hello);
        if is_awaited {
            self.presence
                .came_back(scratch.now, &self.policy, &self.nodes);
        }
        let replaced = self.bind_session(session, &name, scratch.now);
        scratch.effects.extend(replaced);
        let before = self.record_hello(hello, scratch.now);
        if let Some(ahead) = ahead.filter(|_| !self.policy.accept_store) {
            self.halt(&name, &ahead, scratch);
        }
        scratch.effects.push(self.welcome(session, &name));
        if was_here {
            self.presence.returned += 1;
        } else {
            let epoch = self.nodes[&name].record.epoch;
            let message = format!("{name} connected, node epoch {epoch}");
            scratch.events.note("NodeReady", message).on_node(&name);
        }
        if let Some(node) = self.nodes.get(&name) {
            health_events::tell_health(node, &before.health, &mut scratch.events);
        }
        self.pods_hear_host(&name, &before, scratch);
        let (nodes, policy) = (&mut self.nodes, &self.policy);
        self.objects.hear(&name, nodes, &self.jobs, policy, scratch);
        self.hear_pod(&name, scratch);
        scratch.changes.publish.insert(name.clone());
        scratch.changes.node_changed(&self.nodes, &self.jobs, &name);
    }

    /// Why this agent may not have a session. `None` if it may.
    fn unwelcome(&self, hello: &Hello, now: Timestamp) -> Option<String> {
        if let Err(why) = self.policy.speaks.agree(hello.speaks) {
            return Some(why.to_string());
        }
        if hello.term_seen > self.term {
            return Some(format!(
                "this coordinator's term {} is older than term {}, which the node has obeyed: the coordinator's store is an old copy. \
                 Restore the newest store, or start the coordinator with --min-term {}",
                self.term,
                hello.term_seen,
                hello.term_seen.next()
            ));
        }
        self.namesake(hello, now)
    }

    /// Why the agent is refused if it does not know of workers on its node. It is not refused if the
    /// store may be an old copy: then the agent may know better. What it says of jobs that are none of
    /// its business does not make the store old.
    fn refused_without_workers(&self, hello: &Hello, ahead: Option<&Ahead>) -> Option<String> {
        let is_ahead = ahead.is_some_and(Ahead::counts);
        self.lacks_workers(hello)
            .filter(|_| !is_ahead && !self.policy.accept_store)
    }

    /// Makes a record for a node that has none. Returns why there is no room for it.
    fn admit(&mut self, hello: &Hello, scratch: &mut Scratch) -> Option<String> {
        if self.nodes.contains(&hello.node) {
            return None;
        }
        if !self.has_room(scratch) {
            return Some(format!(
                "this coordinator knows {} nodes, its limit (--nodes-max), and none of them may be forgotten; delete nodes that are \
                 gone for good (muster delete node NAME)",
                self.nodes.len()
            ));
        }
        let record = NodeRecord {
            name: hello.node.clone(),
            epoch: NodeEpoch(0),
            boot_id: hello.boot_id.clone(),
            first_seen: scratch.now,
            gone: false,
            gone_since: None,
            cordon: None,
            pod_of: None,
            hold_off: None,
            ended: None,
            overruled: None,
            told_excluded: None,
            halt: None,
            marks: Vec::new(),
        };
        self.nodes.admit(record, scratch.now);
        scratch.changes.nodes.insert(hello.node.clone(), None);
        // The node may have been deleted while it still held work.
        for job in self.active.iter().filter_map(|uid| self.jobs.get(uid)) {
            self.nodes.note_members(job);
        }
        None
    }

    /// Raises the last generation number of each job to the one that the node has obeyed. It does not
    /// if the store may be an old copy, or the node is still halted, and no operator has accepted the
    /// store.
    fn take_numbers(&mut self, hello: &Hello, ahead: Option<&Ahead>, scratch: &mut Scratch) {
        let (name, accepts) = (&hello.node, self.policy.accept_store);
        if let Some(Ahead { why, .. }) = ahead.filter(|_| accepts) {
            let message = format!(
                "{name}: {why}; an operator has accepted the store, and what it does not know is stopped"
            );
            scratch.events.warn("StoreAccepted", message).on_node(name);
        }
        if accepts || ahead.is_none() && !self.halted.contains(name) {
            self.accept_numbers(hello, scratch.now, &mut scratch.changes);
        }
    }

    /// Whether the node was there before this coordinator last began to listen, in the same boot, and
    /// was not reported silent since.
    fn was_here_before(&self, hello: &Hello) -> bool {
        let node = self.nodes.get(&hello.node).expect("it was admitted");
        node.liveness == Liveness::Unknown
            && !node.told_silent
            && node.record.boot_id == hello.boot_id
            && node.record.epoch > NodeEpoch(0)
    }

    /// From now on this session speaks for the node, and an earlier one no longer does.
    fn bind_session(
        &mut self,
        session: SessionId,
        name: &NodeName,
        now: Timestamp,
    ) -> Option<Effect> {
        self.nodes.set_gone(name, false, now);
        let old = self.nodes.bind(session, name, now)?;
        let why = format!("a newer session of {name} took over");
        Some(Effect::Refuse { session: old, why })
    }

    /// Takes what the agent has said of its node, and raises the node epoch. Returns the report before
    /// that.
    fn record_hello(&mut self, hello: Hello, now: Timestamp) -> Arc<NodeReport> {
        let heartbeat = self.nodes.heartbeat(&self.policy);
        let protocol = self.policy.speaks.newest.min(hello.speaks.newest);
        let stale = self.presence.has_just_woken(now, &self.policy, &self.nodes);
        let node = self.nodes.get_mut(&hello.node);
        let node = node.expect("it was admitted");
        let same_boot = node.record.boot_id == hello.boot_id;
        node.spoke = if stale {
            node.spoke.filter(|_| same_boot)
        } else {
            Some(now)
        };
        (node.heartbeat, node.protocol) = (heartbeat, protocol);
        node.record.epoch = node.record.epoch.max(hello.epoch_seen).next();
        node.record.boot_id = hello.boot_id;
        node.told_silent = false;
        let before = node.report.clone();
        let report = self.objects.add_to(&hello.node, &before, hello.report);
        if *before != report {
            node.report = report.into();
        }
        node.incarnation = hello.incarnation;
        node.launchers.clear();
        let runs = hello.runs.into_iter();
        node.runs = runs.map(|run| (run.run.clone(), run)).collect();
        before
    }

    /// Halts a node that knows more than the store: nothing is decided about it from now on.
    fn halt(&mut self, name: &NodeName, ahead: &Ahead, scratch: &mut Scratch) {
        let why = ahead.sentence();
        let message = format!("{name}: {why}");
        scratch.events.warn("StoreBehind", message).on_node(name);
        self.halted.insert(name.clone());
        let node = self.nodes.get_mut(name).expect("it was admitted");
        let at = scratch.now;
        node.record.halt = Some(Halt { at, why });
        // Whoever waits for a job that it holds up is told.
        let held = node.runs.keys().filter_map(|run| self.jobs.get(&run.job));
        held.for_each(|job| scratch.changes.touch_job(job));
    }

    fn welcome(&self, session: SessionId, name: &NodeName) -> Effect {
        let node = self.nodes.get(name).expect("it was admitted");
        Effect::Welcome {
            session,
            term: self.term,
            epoch: node.record.epoch,
            heartbeat: node.heartbeat,
            protocol: node.protocol,
        }
    }
}
