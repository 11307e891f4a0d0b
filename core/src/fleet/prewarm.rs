//! Before a job is stopped to grow, who comes new has a launcher ready: to import torch takes
//! seconds, and for as long nobody would train.
//!
//! A node that cannot start the job says so here, and nobody was stopped for it. Nothing of this is
//! stored: a coordinator that is started asks anew, and so does one of which the nodes go another
//! way before all are ready.

use std::time::Duration;

use crate::{
    fleet::{
        agreement,
        budget::{AVOID, Avoided},
        capacity,
        job_turn::JobTurn,
        members::Member,
        registry::Prewarm,
    },
    nccl::profile::Profile,
    planted::{self, Mistake},
    run::SpareState,
    spec::Launch,
    time::Timestamp,
};

/// How long a growth waits for those that are to join. Nobody stands still meanwhile: far longer
/// than an import takes, which is seconds here. Agents of before this was asked never answer.
pub(crate) const PREWARM_MAX: Duration = Duration::from_secs(60);

/// How soon to look again for room that another job is about to take.
const TAKEN: Duration = Duration::from_secs(5);

/// Whether all that would be new are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// The job is woken when it is to be asked again.
    Awaited,
    /// Some cannot start the job. They are avoided from now on, so that placement has another
    /// answer.
    Refused,
}

impl JobTurn<'_> {
    /// Has a launcher made ready on every node of `gang` that is not a member yet.
    pub(crate) fn prewarm(&mut self, gang: &[Member]) -> Readiness {
        let job = &*self.job;
        let Some(current) = job
            .current
            .as_ref()
            .filter(|_| job.spec.launch != Launch::Cold)
        else {
            return Readiness::Ready;
        };
        let new: Vec<&Member> = gang
            .iter()
            .filter(|member| !current.has(&member.node))
            .collect();
        if new.iter().any(|member| self.is_taken(member)) {
            // All or none: two jobs that each hold what the other waits for would wait for ever.
            self.wake(self.now + TAKEN);
            return Readiness::Awaited;
        }
        let (name, profile) = (job.name.clone(), agreement::agree(self.nodes, gang).0);
        let (mut refused, mut awaited, mut first) = (Vec::new(), false, self.now);
        for member in new {
            let since = self.ask(member, &profile);
            first = first.min(since);
            match self
                .nodes
                .get(&member.node)
                .and_then(|node| node.spares.get(self.uid))
            {
                Some(SpareState::Refused(why)) => refused.push((member.node.clone(), why.clone())),
                Some(SpareState::Ready | SpareState::Without(_)) => {}
                None => awaited = true,
            }
        }
        for (node, why) in &refused {
            let message = format!("{node} cannot join {name}: {why}");
            self.warn("CannotJoin", message).on_node(node);
            self.live.avoided.push(Avoided {
                node: node.clone(),
                until: self.now + AVOID,
                why: why.clone(),
            });
        }
        let for_ever = planted::on(Mistake::SilenceAwaited);
        if !refused.is_empty() {
            return Readiness::Refused;
        }
        if !awaited || self.now >= first + PREWARM_MAX && !for_ever {
            return Readiness::Ready;
        }
        if !for_ever {
            self.wake(first + PREWARM_MAX);
        }
        // Those that are ready stay so until the others are.
        let live = &mut *self.live;
        live.prewarm_awaited = gang
            .iter()
            .map(|member| member.node.clone())
            .filter(|node| live.prewarm_asked.contains(node))
            .collect();
        Readiness::Awaited
    }

    /// Asks one node, if it has not been asked the same. Since when it is.
    fn ask(&mut self, member: &Member, profile: &Profile) -> Timestamp {
        let Some(node) = self.nodes.nodes.get_mut(&member.node) else {
            return self.now;
        };
        if let Some(asked) = node
            .prewarm
            .get(self.uid)
            .filter(|asked| asked.gpus == member.gpus && asked.profile == *profile)
        {
            return asked.since;
        }
        let before = node.prewarm.get(self.uid);
        let since = before.map_or(self.now, |asked| asked.since);
        if before.is_some_and(|asked| asked.gpus != member.gpus) {
            // It makes another launcher: what it has said was of the old one.
            node.spares.remove(self.uid);
        }
        node.prewarm.insert(
            self.uid.clone(),
            Prewarm {
                since,
                gpus: member.gpus.clone(),
                profile: profile.clone(),
            },
        );
        self.out.publish.insert(member.node.clone());
        self.live.prewarm_asked.insert(member.node.clone());
        since
    }

    /// Another job is about to come where this member would be. When it has come, or does not,
    /// capacity changes.
    fn is_taken(&self, member: &Member) -> bool {
        let Some(node) = self.nodes.get(&member.node) else {
            return true;
        };
        let mut others = node
            .prewarm
            .iter()
            .filter(|(other, _)| *other != self.uid)
            .map(|(_, asked)| asked);
        if !member.gpus.is_empty() {
            return others.any(|asked| asked.gpus.iter().any(|gpu| member.gpus.contains(gpu)));
        }
        others.filter(|asked| asked.gpus.is_empty()).count() as u32
            >= capacity::slots_free(node, self.others, Some(self.uid))
    }

    /// Takes back what was asked of nodes for this job and is not any more.
    pub(crate) fn end_prewarm(&mut self) {
        let live = &mut *self.live;
        let kept = live.prewarm_awaited.clone();
        for name in std::mem::replace(&mut live.prewarm_asked, kept.clone()).difference(&kept) {
            if let Some(node) = self.nodes.nodes.get_mut(name) {
                node.prewarm.remove(self.uid);
                self.out.publish.insert(name.clone());
                self.out.capacity = true;
            }
        }
    }
}
