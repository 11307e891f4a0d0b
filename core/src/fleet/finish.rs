//! The end of a turn: everything it touched becomes changes to store and effects to execute. The
//! fleet's indexes (which jobs are active, which node has which jobs) follow the records here.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    fleet::{
        changes::Changes,
        desired,
        job::{GenerationRecord, JobRecord, MemberRestart, Stopping},
        news,
        output::{Answer, Effect, TurnOutput},
        scratch::{Reply, Scratch},
        state::Fleet,
        write_order::{self, Altered},
    },
    id::{Generation, JobUid, NodeName},
    run::Endpoint,
};

impl Fleet {
    /// Turns everything that was touched into changes and effects.
    pub(crate) fn finish(&mut self, mut scratch: Scratch) -> TurnOutput {
        self.leave_records(&mut scratch);
        let heartbeat = self.nodes.heartbeat(&self.policy);
        let mut effects = self.without_welcomes_of_the_gone(scratch.effects);
        let Changes {
            jobs,
            mut steps_only,
            deleted,
            forgotten,
            history,
            untold,
            nodes,
            mut publish,
            capacity: _,
            lost: _,
        } = scratch.changes;
        let (mut altered, mut views) = (Vec::new(), Vec::new());
        let mut news = untold;
        for (uid, before) in jobs {
            let Some(job) = self.jobs.get(&uid) else {
                continue;
            };
            if before.as_ref() != Some(job) {
                news.extend(news::of_job(before.as_ref(), job, scratch.now));
                let was_over = before.as_ref().is_some_and(JobRecord::is_over);
                news.extend(news::of_end(job).filter(|_| !was_over));
                let after = Box::new(job.clone());
                self.reindex(&uid, before.as_ref(), &mut publish);
                altered.push(Altered::Job { before, after });
            }
            let job = &self.jobs[&uid];
            if let Some(at) = self.delete_due(job) {
                self.expiring.insert((at, uid.clone()));
            }
            if job.is_over() && job.unproven_generations().next().is_none() {
                self.active.remove(&uid);
                self.live.remove(&uid);
            }
            steps_only.remove(&uid);
            views.push(Effect::JobChanged(uid));
        }
        views.extend(steps_only.into_iter().map(Effect::JobChanged));
        for tombstone in deleted {
            let uid = tombstone.run.job.clone();
            self.outgoing.forget(&uid);
            altered.push(Altered::JobDeleted(uid.clone()));
            publish.extend(tombstone.nodes.iter().cloned());
            altered.push(Altered::Tombstone(tombstone));
            views.push(Effect::JobChanged(uid));
        }
        altered.extend(forgotten.into_iter().map(Altered::Forgotten));
        altered.extend(history.into_iter().map(Altered::History));
        let surplus = self.history.drop_surplus(&self.policy, scratch.now);
        altered.extend(surplus.map(Altered::HistoryDropped));
        for (name, before) in nodes {
            match self.nodes.get(&name) {
                Some(node) if before.as_ref() != Some(&node.record) => {
                    news.extend(news::of_node(before.as_ref(), &node.record, scratch.now));
                    let after = Box::new(node.record.clone());
                    altered.push(Altered::Node { before, after });
                }
                Some(_) => {}
                None if before.is_some() => altered.push(Altered::NodeDeleted(name.clone())),
                None => continue,
            }
            views.push(Effect::NodeChanged(name));
        }
        let outbox = self.tell(news, &mut scratch.events, scratch.now);
        altered.extend(outbox.map(Altered::Outbox));
        let events = scratch.events.numbered(&mut self.last_event);
        altered.extend(events.into_iter().map(Altered::Event));
        for name in publish {
            effects.extend(self.publish(&name));
        }
        effects.extend(views);
        if let Some((id, reply)) = scratch.answer {
            effects.push(Effect::Answer {
                id,
                answer: self.answer(reply),
            });
        }
        let listening = self.is_listening(scratch.now);
        let wake_at = [
            scratch.wake_at,
            self.nodes.next_silence_limit(heartbeat, &self.policy),
            listening.then_some(self.presence.listen_until),
            self.expiring.first().map(|(at, _)| *at),
        ]
        .into_iter()
        .flatten()
        .min();
        TurnOutput {
            changes: write_order::in_order(altered),
            effects,
            wake_at,
        }
    }

    /// An agent whose session has begun and ended within one turn is not welcomed: its node may be gone, and its epoch is old.
    fn without_welcomes_of_the_gone(&self, mut effects: Vec<Effect>) -> Vec<Effect> {
        effects.retain(|effect| match effect {
            Effect::Welcome { session, .. } => self.nodes.speaker(*session).is_some(),
            _ => true,
        });
        effects
    }

    fn reindex(
        &mut self,
        uid: &JobUid,
        before: Option<&JobRecord>,
        publish: &mut BTreeSet<NodeName>,
    ) {
        let job = &self.jobs[uid];
        if let Some(before) = before.filter(|before| same_orders(before, job)) {
            // In a large job the usual news is that some more members are dead. Only those members
            // get new orders.
            let pairs = before
                .unproven_generations()
                .zip(job.unproven_generations());
            return publish.extend(
                pairs
                    .flat_map(|(before, now)| now.dead.difference(&before.dead))
                    .cloned(),
            );
        }
        let members = self.nodes.note_members(job);
        for generation in before.into_iter().flat_map(JobRecord::unproven_generations) {
            for member in &generation.members {
                if !members.contains(&member.node) && self.nodes.forget_member(&member.node, uid) {
                    publish.insert(member.node.clone());
                }
            }
        }
        publish.extend(members);
    }

    fn publish(&mut self, name: &NodeName) -> Option<Effect> {
        let node = self.nodes.get(name)?;
        let session = node.session.filter(|_| node.record.halt.is_none())?;
        let desired = desired::of_node(name, node, self.term, &self.jobs, &self.tombstones);
        if node.published.as_ref() == Some(&desired) {
            return None;
        }
        self.nodes.set_published(name, desired.clone());
        Some(Effect::SendDesired { session, desired })
    }

    fn answer(&self, reply: Reply) -> Answer {
        match reply {
            Reply::Complete(answer) => answer,
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
}

/// Whether no orders have changed, except those of members that are dead now.
fn same_orders(before: &JobRecord, now: &JobRecord) -> bool {
    type Told<'a> = (
        Generation,
        bool,
        &'a Option<Endpoint>,
        &'a Option<Stopping>,
        &'a BTreeMap<u32, MemberRestart>,
    );
    fn told(generation: &GenerationRecord) -> Told<'_> {
        let GenerationRecord {
            number,
            started,
            store,
            stopping,
            member_restarts,
            ..
        } = generation;
        (*number, *started, store, stopping, member_restarts)
    }
    let orders = |job| JobRecord::unproven_generations(job).map(told);
    before.last_generation == now.last_generation && orders(before).eq(orders(now))
}
