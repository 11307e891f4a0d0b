//! Before a job is stopped to grow, who comes new has a launcher ready: to import torch takes
//! seconds, and for as long nobody would train.
//!
//! A node that cannot start the job says so here, and nobody was stopped for it. Nothing of this is
//! stored: a coordinator that is started asks anew, and so does one of which the nodes go another
//! way before all are ready.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet::{
        Fleet,
        budget::{AVOID, Avoided},
        job::Member,
        turn::Scratch,
    },
    id::{JobUid, SessionId},
    nccl::profile::Profile,
    planted::{self, Mistake},
    run::{SpareReport, SpareState},
    spec::Launch,
    time::Timestamp,
};

/// How long a growth waits for those that are to join. Nobody stands still meanwhile: far longer
/// than an import takes, which is seconds here. Agents of before this was asked never answer.
pub(crate) const PREWARM_MAX: Duration = Duration::from_secs(60);

/// How soon to look again for room that another job is about to take.
const TAKEN: Duration = Duration::from_secs(5);

/// What a node was asked to get ready for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prewarm {
    pub since: Timestamp,
    pub gpus: Vec<String>,
    pub profile: Profile,
}

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

impl Fleet {
    /// Has a launcher made ready on every node of `gang` that is not a member yet.
    pub(crate) fn prewarm(
        &mut self,
        uid: &JobUid,
        gang: &[Member],
        now: Timestamp,
        scratch: &mut Scratch,
    ) -> Readiness {
        let job = &self.jobs[uid];
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
        if new.iter().any(|member| self.is_taken(member, uid)) {
            // All or none: two jobs that each hold what the other waits for would wait for ever.
            self.wake_job(uid, now + TAKEN);
            return Readiness::Awaited;
        }
        let (name, profile) = (job.name.clone(), self.agree(gang).0);
        let (mut refused, mut awaited, mut first) = (Vec::new(), false, now);
        for member in new {
            let since = self.ask(uid, member, &profile, now, scratch);
            first = first.min(since);
            match self
                .nodes
                .get(&member.node)
                .and_then(|node| node.spares.get(uid))
            {
                Some(SpareState::Refused(why)) => refused.push((member.node.clone(), why.clone())),
                Some(SpareState::Ready | SpareState::Without(_)) => {}
                None => awaited = true,
            }
        }
        for (node, why) in &refused {
            let message = format!("{node} cannot join {name}: {why}");
            self.event(
                scratch,
                now,
                true,
                "CannotJoin",
                message,
                Some((uid, &name, None)),
                Some(node),
            );
            self.live(uid).avoided.push(Avoided {
                node: node.clone(),
                until: now + AVOID,
                why: why.clone(),
            });
        }
        let for_ever = planted::on(Mistake::SilenceAwaited);
        if !refused.is_empty() {
            return Readiness::Refused;
        }
        if !awaited || now >= first + PREWARM_MAX && !for_ever {
            return Readiness::Ready;
        }
        if !for_ever {
            self.wake_job(uid, first + PREWARM_MAX);
        }
        // Those that are ready stay so until the others are.
        let live = self.live(uid);
        live.prewarm_awaited = gang
            .iter()
            .map(|member| member.node.clone())
            .filter(|node| live.prewarm_asked.contains(node))
            .collect();
        Readiness::Awaited
    }

    /// Asks one node, if it has not been asked the same. Since when it is.
    fn ask(
        &mut self,
        uid: &JobUid,
        member: &Member,
        profile: &Profile,
        now: Timestamp,
        scratch: &mut Scratch,
    ) -> Timestamp {
        let Some(node) = self.nodes.nodes.get_mut(&member.node) else {
            return now;
        };
        if let Some(asked) = node
            .prewarm
            .get(uid)
            .filter(|asked| asked.gpus == member.gpus && asked.profile == *profile)
        {
            return asked.since;
        }
        let before = node.prewarm.get(uid);
        let since = before.map_or(now, |asked| asked.since);
        if before.is_some_and(|asked| asked.gpus != member.gpus) {
            // It makes another launcher: what it has said was of the old one.
            node.spares.remove(uid);
        }
        node.prewarm.insert(
            uid.clone(),
            Prewarm {
                since,
                gpus: member.gpus.clone(),
                profile: profile.clone(),
            },
        );
        scratch.publish.insert(member.node.clone());
        self.live(uid).prewarm_asked.insert(member.node.clone());
        since
    }

    /// Another job is about to come where this member would be. When it has come, or does not,
    /// capacity changes.
    fn is_taken(&self, member: &Member, uid: &JobUid) -> bool {
        let Some(node) = self.nodes.get(&member.node) else {
            return true;
        };
        let mut others = node
            .prewarm
            .iter()
            .filter(|(other, _)| *other != uid)
            .map(|(_, asked)| asked);
        if !member.gpus.is_empty() {
            return others.any(|asked| asked.gpus.iter().any(|gpu| member.gpus.contains(gpu)));
        }
        others.filter(|asked| asked.gpus.is_empty()).count() as u32
            >= self.slots_free_on(node, Some(uid))
    }

    /// Takes back what was asked of nodes for this job and is not any more.
    pub(crate) fn end_prewarm(&mut self, uid: &JobUid, scratch: &mut Scratch) {
        let live = self.live(uid);
        let kept = live.prewarm_awaited.clone();
        for name in std::mem::replace(&mut live.prewarm_asked, kept.clone()).difference(&kept) {
            if let Some(node) = self.nodes.nodes.get_mut(name) {
                node.prewarm.remove(uid);
                scratch.publish.insert(name.clone());
                scratch.capacity = true;
            }
        }
    }

    /// What a node says of the launchers it was asked for. All of it is kept: what is asked for may
    /// change to and fro without the node noticing, and it says nothing twice.
    pub(crate) fn spares(
        &mut self,
        session: SessionId,
        spares: Vec<SpareReport>,
        now: Timestamp,
        scratch: &mut Scratch,
    ) {
        self.heard(session, now, scratch);
        let Some(name) = self.nodes.speaker(session).cloned() else {
            return;
        };
        let Some(node) = self.nodes.nodes.get_mut(&name) else {
            return;
        };
        let said: BTreeMap<JobUid, SpareState> = spares
            .into_iter()
            .map(|spare| (spare.job, spare.state))
            .collect();
        let is_news = |uid: &&JobUid| said.get(*uid) != node.spares.get(*uid);
        let news: Vec<JobUid> = node.prewarm.keys().filter(is_news).cloned().collect();
        node.spares = said;
        for uid in news {
            self.touch_job(&uid, scratch);
        }
    }
}
