//! Before a job is stopped to grow, the nodes that will join get a launcher ready. Importing torch
//! takes seconds, and without this no node would train during that time.
//!
//! A node that cannot start the job says so at this point, before any training has stopped for it.
//! None of this is stored, so a coordinator that restarts asks again. If placement chooses other
//! nodes before all are ready, those are asked instead.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    container::START_MAX,
    fleet::{
        agreement,
        job_turn::{Facts, JobTurn},
        live::{AVOID, Avoided},
        members::Member,
        registry::Prewarm,
    },
    id::NodeName,
    nccl::profile::Profile,
    run::LauncherState,
    spec::JobSpec,
    time::Timestamp,
};

/// How long a growth waits for the nodes that are to join. The job trains meanwhile, so this may be
/// far longer than an import, which takes seconds. Older agents never answer, so the wait must have
/// an end.
pub(crate) const PREWARM_MAX: Duration = Duration::from_secs(60);

/// How soon to look again for room that another job is about to take. A change of capacity brings
/// the look sooner.
const TAKEN: Duration = Duration::from_secs(5);

/// Whether all new nodes are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// Some are not ready. The job is woken when it is to ask again.
    Awaited,
    /// Some cannot start the job. They are avoided from now on, so placement will choose others.
    Refused,
}

/// Whether a job waits for launchers before it grows. Where members share nodes, most are not forked from launchers.
pub(crate) fn grows_prewarmed(spec: &JobSpec) -> bool {
    spec.launch.may_have_launcher() && spec.framework.has_launchers() && !spec.packs()
}

impl JobTurn<'_> {
    /// Has a launcher made ready on every node of `gang` that is not a member yet.
    pub(crate) fn prewarm(&mut self, gang: &[Member]) -> Readiness {
        let job = &*self.job;
        let in_image = job.spec.image.is_some();
        let Some(current) = job.current.as_ref().filter(|_| grows_prewarmed(&job.spec)) else {
            return Readiness::Ready;
        };
        let new: Vec<&Member> = gang
            .iter()
            .filter(|member| !current.has(&member.node))
            .collect();
        if new.iter().any(|member| is_taken(self.facts(), member)) {
            // A job asks all its new nodes or none. Otherwise two jobs could each hold a node that
            // the other waits for, for ever.
            self.wake(self.now + TAKEN);
            return Readiness::Awaited;
        }
        let profile = agreement::agree(self.nodes, &job.spec, gang).0;
        let (mut refused, mut awaited, mut asked_since) = (Vec::new(), false, self.now);
        for member in new {
            let since = self.ask(member, &profile);
            asked_since = asked_since.min(since);
            match self
                .nodes
                .get(&member.node)
                .and_then(|node| node.launchers.get(self.uid))
            {
                Some(LauncherState::Refused(why)) => {
                    refused.push((member.node.clone(), why.clone()))
                }
                Some(LauncherState::Ready | LauncherState::Without(_)) => {}
                None => awaited = true,
            }
        }
        if !refused.is_empty() {
            self.avoid_all(refused);
            return Readiness::Refused;
        }
        // A node of an agent that knows no images gets no such job, so each of these answers.
        let pull = if in_image { START_MAX } else { Duration::ZERO };
        let until = asked_since + PREWARM_MAX + pull;
        if !awaited || self.now >= until {
            return Readiness::Ready;
        }
        self.wake(until);
        // The nodes that are ready stay so until the others are.
        self.live.prewarm_awaited = self.asked_of(gang);
        Readiness::Awaited
    }

    /// The nodes of `gang` stay ready until the job uses them, or another job does.
    pub(crate) fn keep_prewarmed(&mut self, gang: &[Member]) {
        self.live.prewarm_ready = self.asked_of(gang);
        for name in &self.live.prewarm_ready {
            let node = self.nodes.get_mut(name);
            let asked = node.and_then(|node| node.prewarm.get_mut(self.uid));
            asked.into_iter().for_each(|asked| asked.gives_way = true);
        }
    }

    fn asked_of(&self, gang: &[Member]) -> BTreeSet<NodeName> {
        let nodes = gang.iter().map(|member| &member.node);
        nodes
            .filter(|node| self.live.prewarm_asked.contains(*node))
            .cloned()
            .collect()
    }

    /// Avoids nodes that have said why they cannot start the job.
    fn avoid_all(&mut self, refused: Vec<(NodeName, String)>) {
        for (node, why) in refused {
            let message = format!("{node} cannot join {}: {why}", self.job.name);
            self.warn("CannotJoin", message).on_node(&node);
            self.live.avoided.push(Avoided {
                node,
                until: self.now + AVOID,
                why,
            });
        }
    }

    /// Asks one node, unless it was already asked for the same. Returns since when it has been
    /// asked.
    fn ask(&mut self, member: &Member, profile: &Profile) -> Timestamp {
        let Some(node) = self.nodes.get_mut(&member.node) else {
            return self.now;
        };
        if let Some(asked) = node
            .prewarm
            .get_mut(self.uid)
            .filter(|asked| asked.gpus == member.gpus && asked.profile == *profile)
        {
            asked.gives_way = false;
            return asked.since;
        }
        let before = node.prewarm.get(self.uid);
        let since = before.map_or(self.now, |asked| asked.since);
        if before.is_some_and(|asked| asked.gpus != member.gpus) {
            // The node makes another launcher. Its report was about the old one.
            node.launchers.remove(self.uid);
        }
        node.prewarm.insert(
            self.uid.clone(),
            Prewarm {
                since,
                gpus: member.gpus.clone(),
                profile: profile.clone(),
                gives_way: false,
            },
        );
        self.scratch.changes.publish.insert(member.node.clone());
        self.live.prewarm_asked.insert(member.node.clone());
        since
    }

    /// Withdraws what was asked of nodes for this job and is not wanted any more.
    pub(crate) fn end_prewarm(&mut self) {
        let live = &mut *self.live;
        let kept = &live.prewarm_awaited | &live.prewarm_ready;
        for name in std::mem::replace(&mut live.prewarm_asked, kept.clone()).difference(&kept) {
            if let Some(node) = self.nodes.get_mut(name) {
                node.prewarm.remove(self.uid);
                self.scratch.changes.publish.insert(name.clone());
                self.scratch.changes.capacity = true;
            }
        }
    }
}

/// Whether another job is about to come to this member's place. Capacity changes when that job
/// has come, and when it gives up.
fn is_taken(facts: Facts<'_>, member: &Member) -> bool {
    let Some(node) = facts.nodes.get(&member.node) else {
        return true;
    };
    let Some(mut room) = facts.room(&member.node) else {
        return true;
    };
    let others = node.prewarm.iter().filter(|(other, _)| *other != facts.uid);
    let others = others.filter(|(_, asked)| !asked.gives_way);
    others.for_each(|(_, asked)| room.reserve(&asked.gpus));
    !room.fits(&member.gpus)
}
