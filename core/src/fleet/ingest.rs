//! Takes down what agents say, and what their silence says: facts about nodes. It judges no job.
//! How a session begins is in `welcome`.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    fleet::{
        brake, event_log::EventLog, health_events, registry::Liveness, scratch::Scratch,
        state::Fleet,
    },
    id::{JobUid, NodeName, SessionId},
    node_report::NodeReport,
    period,
    run::{LauncherReport, LauncherState, RunReport},
    stacks::RankStack,
    time::Timestamp,
};

impl Fleet {
    pub(crate) fn heard(&mut self, session: SessionId, scratch: &mut Scratch) {
        let now = scratch.now;
        let stale = self
            .presence
            .has_just_woken(scratch.now, &self.policy, &self.nodes);
        if self.nodes.heard(session, now, stale)
            && let Some(name) = self.nodes.speaker(session).cloned()
        {
            self.liveness_changed(&name, scratch);
        }
    }

    pub(crate) fn disconnected(&mut self, session: SessionId, scratch: &mut Scratch) {
        let now = scratch.now;
        let excused = self.presence.has_just_woken(now, &self.policy, &self.nodes);
        let speaker = self.nodes.speaker(session).cloned();
        match self.nodes.disconnect(session, now, excused) {
            Some(name) => self.liveness_changed(&name, scratch),
            None => {
                let changes = &mut scratch.changes;
                speaker
                    .iter()
                    .for_each(|name| changes.node_changed(&self.nodes, &self.jobs, name));
            }
        }
    }

    pub(crate) fn reported(
        &mut self,
        session: SessionId,
        report: NodeReport,
        scratch: &mut Scratch,
    ) {
        self.heard(session, scratch);
        let Some(name) = self.nodes.speaker(session).cloned() else {
            return;
        };
        scratch.changes.touch_node(&self.nodes, &name);
        if let Some(node) = self.nodes.get_mut(&name) {
            let report = self.objects.add_to(&name, &node.report, report);
            let before = std::mem::replace(&mut node.report, report.into());
            health_events::tell_health(node, &before.health, &mut scratch.events);
            self.pods_hear_host(&name, &before, scratch);
        }
        scratch.changes.publish.insert(name.clone());
        scratch.changes.node_changed(&self.nodes, &self.jobs, &name);
    }

    /// What a host says of its GPUs concerns the worker pods that hold them.
    pub(crate) fn pods_hear_host(
        &self,
        host: &NodeName,
        before: &NodeReport,
        scratch: &mut Scratch,
    ) {
        let Some(report) = self.nodes.get(host).map(|node| &node.report) else {
            return;
        };
        let same = |a: &NodeReport, b: &NodeReport| {
            (&a.holders, &a.health, &a.gpus) == (&b.holders, &b.health, &b.gpus)
        };
        if self.pods.all.is_empty() || same(report, before) {
            return;
        }
        for pod in self.nodes.pods_on(host) {
            scratch.changes.node_changed(&self.nodes, &self.jobs, pod);
        }
        health_events::tell_xids(
            host,
            &before.health,
            &self.nodes,
            &self.jobs,
            &mut scratch.events,
        );
    }

    pub(crate) fn runs(&mut self, session: SessionId, runs: Vec<RunReport>, scratch: &mut Scratch) {
        self.heard(session, scratch);
        let Some(name) = self.nodes.speaker(session).cloned() else {
            return;
        };
        let runs = self.own_runs(&name, runs);
        let Some(node) = self.nodes.get_mut(&name) else {
            return;
        };
        let next: BTreeMap<_, _> = runs.into_iter().map(|run| (run.run.clone(), run)).collect();
        let keys_changed = !node.runs.keys().eq(next.keys());
        let ended = next.iter().any(|(id, run)| {
            run.phase.is_over() && node.runs.get(id).is_none_or(|old| !old.phase.is_over())
        });
        let mut touched = BTreeSet::new();
        let mut awaited = BTreeSet::new();
        for (id, run) in &next {
            let live = self.live.get_mut(&id.job);
            if let (Some(live), Some(saved)) = (live, run.checkpoint)
                && live.saves.hear(id.generation, saved)
            {
                awaited.insert(id.clone());
            }
        }
        for (id, run) in &next {
            match node.runs.get(id) {
                Some(before) if before == run => {}
                // Every node reports steps all the time. They are shown to users, and decide
                // nothing until something else happens.
                Some(before) if before.without_progress() == run.without_progress() => {
                    scratch.changes.steps_only.insert(id.job.clone());
                    // A rank that pauses is no news. A node on which nothing moves is, and the end of that, and a rank there that
                    // begins to work.
                    let stands = before.busy_in_standstill() != run.busy_in_standstill();
                    if stands || before.look() != run.look() || awaited.contains(id) {
                        touched.insert(id.job.clone());
                    }
                }
                _ => {
                    touched.insert(id.job.clone());
                }
            }
        }
        node.runs = next;
        for job in touched.iter().filter_map(|uid| self.jobs.get(uid)) {
            scratch.changes.touch_job(job);
        }
        scratch.changes.publish.insert(name.clone());
        if keys_changed || ended {
            scratch.changes.node_changed(&self.nodes, &self.jobs, &name);
        } else if !touched.is_empty() {
            // The node's view tells the phase of each run.
            scratch.changes.touch_node(&self.nodes, &name);
        }
    }

    /// Takes down what a node says of the launchers that it was asked for. An answer is kept although
    /// the request was withdrawn: if the request is repeated before the node has seen the
    /// withdrawal, the node does not answer again.
    pub(crate) fn launchers(
        &mut self,
        session: SessionId,
        launchers: Vec<LauncherReport>,
        scratch: &mut Scratch,
    ) {
        self.heard(session, scratch);
        let Some(name) = self.nodes.speaker(session).cloned() else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&name) else {
            return;
        };
        let said: BTreeMap<JobUid, LauncherState> = launchers
            .into_iter()
            .map(|launcher| (launcher.job, launcher.state))
            .collect();
        let is_news = |uid: &&JobUid| said.get(*uid) != node.launchers.get(*uid);
        let news: Vec<JobUid> = node.prewarm.keys().filter(is_news).cloned().collect();
        node.launchers = said;
        for job in news.iter().filter_map(|uid| self.jobs.get(uid)) {
            scratch.changes.touch_job(job);
        }
    }

    /// Ranks of a job have said where they are.
    pub(crate) fn looked(
        &mut self,
        job: &JobUid,
        number: u64,
        ranks: Vec<RankStack>,
        scratch: &mut Scratch,
    ) {
        let live = self.live.get_mut(job);
        let heard = live.is_some_and(|live| live.stall.heard(number, ranks, scratch.now));
        if let Some(job) = self.jobs.get(job).filter(|_| heard) {
            scratch.changes.touch_job(job);
        }
    }

    pub(crate) fn liveness_changed(&mut self, name: &NodeName, scratch: &mut Scratch) {
        let now = scratch.now;
        scratch.changes.touch_node(&self.nodes, name);
        let Some(node) = self.nodes.get(name) else {
            return;
        };
        let lost = node.liveness == Liveness::Lost;
        if !node.is_ready() {
            self.hear_pod(name, scratch);
        }
        let newly_lost = self.nodes.set_gone(name, lost, now) && lost;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if newly_lost {
            node.lost_at = Some(now);
            scratch.changes.lost = true;
        }
        let told_silent = node.told_silent;
        node.told_silent = match node.liveness {
            Liveness::Suspect | Liveness::Lost => true,
            Liveness::Ready => false,
            // No event says this, so what was told stands.
            Liveness::Unknown => told_silent,
        };
        let silent = now.since(node.heard).as_secs_f64();
        let connected = node.session.is_some();
        match node.liveness {
            Liveness::Suspect if connected => {
                scratch
                    .events
                    .warn(
                        "NodeSuspect",
                        format!("{name} has been silent for {silent:.1} s"),
                    )
                    .on_node(name);
            }
            Liveness::Suspect => {
                scratch
                    .events
                    .warn(
                        "NodeSuspect",
                        format!("{name}: the agent's connection broke"),
                    )
                    .on_node(name);
            }
            Liveness::Lost => {
                scratch
                    .events
                    .warn(
                        "NodeLost",
                        format!("{name} has been silent for {silent:.1} s"),
                    )
                    .on_node(name);
            }
            Liveness::Ready => {
                if told_silent {
                    scratch
                        .events
                        .note("NodeReady", format!("{name} is heard again"))
                        .on_node(name);
                } else {
                    self.presence.returned += 1;
                }
                scratch.changes.publish.insert(name.clone());
            }
            Liveness::Unknown => {}
        }
        scratch.changes.node_changed(&self.nodes, &self.jobs, name);
    }

    /// Writes one event about the return of the nodes that were there before this coordinator
    /// started, or before it stood still.
    pub(crate) fn tell_return(&mut self, now: Timestamp, events: &mut EventLog) {
        if self.presence.told_return || self.is_listening(now) {
            return;
        }
        self.presence.told_return = true;
        let missing: Vec<&str> = self
            .nodes
            .unheard()
            .filter(|node| !node.record.gone)
            .map(|node| node.record.name.as_str())
            .collect();
        let (back, named) = (
            std::mem::take(&mut self.presence.returned),
            missing
                .iter()
                .take(8)
                .copied()
                .collect::<Vec<_>>()
                .join(", "),
        );
        if back == 0 && missing.is_empty() {
            return;
        }
        let took = now.since(self.presence.since).as_secs_f64();
        let message = match missing.len() {
            0 => format!("{back} nodes are back, all that were there, after {took:.1} s"),
            some => {
                let more = if some > 8 { ", ..." } else { "" };
                format!(
                    "{back} nodes are back after {took:.1} s; not heard: {some} ({named}{more})"
                )
            }
        };
        events.tell(!missing.is_empty(), "NodesBack", message);
    }

    /// Puts the brake for mass losses on, or takes it off.
    pub(crate) fn decide_brake(&mut self, scratch: &mut Scratch) {
        let now = scratch.now;
        if self.brake.is_none() && !scratch.changes.lost {
            return;
        }
        let next = brake::decide(self.brake.as_ref(), &self.nodes, &self.policy, now);
        let turned = self.brake.is_some() != next.is_some();
        match (&self.brake, &next) {
            (None, Some(brake)) => {
                let message = format!(
                    "{}: this may be the network, or this coordinator's own isolation. No node is cordoned, jobs whose nodes are all \
                     silent are left alone, and no worker pod is made in place of a silent one. This ends when enough nodes have returned or are deleted (muster delete node), or when no further node is lost for {}",
                    brake.sentence(&self.policy),
                    period::format(self.policy.mass_loss_hold)
                );
                scratch.events.warn("MassLoss", message);
            }
            (Some(brake), None) => {
                let message = format!(
                    "{}; Muster decides as usual again",
                    brake.sentence(&self.policy)
                );
                scratch.events.note("MassLossOver", message);
            }
            _ => {}
        }
        self.brake = next;
        if turned {
            scratch.changes.capacity = true;
            let silent: Vec<NodeName> = self
                .nodes
                .iter()
                .filter(|node| !node.is_ready())
                .map(|node| node.record.name.clone())
                .collect();
            silent
                .iter()
                .for_each(|name| scratch.changes.touch_node(&self.nodes, name));
        }
        if let Some(brake) = &self.brake {
            scratch.wake(brake.until(&self.policy));
        }
    }
}
