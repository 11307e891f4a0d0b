//! Members whose interpreters do not go together ([`crate::nccl::stack`]). A node knows what a job's interpreter has only once it has made itself ready to
//! run it; so this is judged when all members of a generation are ready and none is started.
//!
//! A job that refuses a mixture has such a generation broken before it starts, and the odd ones are not taken again. That is forgotten when the
//! node's agent starts anew, when a user scales the job, when what then trains turns out to be like them, and after a while if the job waits for
//! nodes: a job that waits may as well look again, one that trains is not disturbed for it. Any other job is started with a warning.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    fleet::{
        Fleet,
        blame::Evidence,
        budget::AVOID,
        job::{GenerationRecord, JobRecord},
        registry::Node,
        rendezvous,
        turn::Scratch,
    },
    id::JobUid,
    nccl::stack::{self, Bearer, Stack},
    spec::NodeMix,
    time::Timestamp,
};

/// Odd nodes remembered by one job; the oldest are forgotten, and would be asked again. 256 of about 150 bytes keep a record below 64 KiB.
const UNLIKE_MAX: usize = 256;

/// A node that was not taken, and what it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unlike {
    pub at: Timestamp,
    /// How it differed: `torch 2.14, not torch 2.15`.
    pub how: String,
    pub stack: Stack,
    /// The agent that said so.
    pub incarnation: u64,
}

impl JobRecord {
    /// Why this job does not take the node, if it was odd.
    pub(crate) fn not_taken(&self, node: &Node) -> Option<String> {
        let unlike = self.unlike.get(&node.record.name).filter(|unlike| unlike.incarnation == node.incarnation)?;
        Some(format!("does not go with the others ({})", unlike.how))
    }

    /// When a job that waits for nodes may ask the first of the odd ones again.
    pub(crate) fn asks_again_at(&self) -> Option<Timestamp> {
        self.unlike.values().map(|unlike| unlike.at + AVOID).min()
    }

    /// Forgets those that were odd so long ago that they may be asked again.
    pub(crate) fn ask_again(&mut self, now: Timestamp) {
        self.unlike.retain(|_, unlike| unlike.at + AVOID > now);
    }

    /// Who trained last, before this generation.
    fn trained_before(&self, generation: &GenerationRecord) -> Option<&GenerationRecord> {
        self.retiring.iter().chain(&self.history).filter(|g| g.started && g.number < generation.number).max_by_key(|g| g.number)
    }
}

impl Fleet {
    /// The members and what their nodes say they have.
    fn bearers<'a>(&'a self, job: &'a JobRecord, generation: &'a GenerationRecord) -> Vec<Bearer<'a>> {
        let before = job.trained_before(generation);
        let reports = rendezvous::reports(&self.nodes, &job.uid, generation);
        let known = reports.filter_map(|(node, run)| Some((node, &run?.stack)));
        known.map(|(node, stack)| Bearer { node, stack, survivor: before.is_some_and(|g| g.has(node)) }).collect()
    }

    /// Members of the generation being formed that do not go with the others, where the job refuses that; none before all are ready.
    pub(crate) fn odd_ones(&self, uid: &JobUid, now: Timestamp) -> Vec<Evidence> {
        let job = &self.jobs[uid];
        let forming = job.current.as_ref().filter(|g| !g.started && job.spec.node_mix == NodeMix::Refuse);
        let Some(generation) = forming.filter(|g| rendezvous::unready(&self.nodes, uid, g).is_empty()) else { return Vec::new() };
        let odd = stack::odd_ones(&self.bearers(job, generation), job.spec.gpus_per_node > 0, job.spec.min_replicas);
        odd.into_iter().map(|(node, how)| Evidence::Unlike { node, how, at: now }).collect()
    }

    /// Remembers whom placement shall leave out.
    pub(crate) fn note_unlike(&mut self, uid: &JobUid, evidence: &[Evidence], now: Timestamp) {
        for odd in evidence {
            let Evidence::Unlike { node: name, how, .. } = odd else { continue };
            let (Some(node), Some(job)) = (self.nodes.get(name), self.jobs.get(uid)) else { continue };
            let run = job.current.as_ref().and_then(|g| node.runs.get(&g.run(uid)));
            let stack = run.map(|run| run.stack.clone()).unwrap_or_default();
            let unlike = Unlike { at: now, how: how.clone(), stack, incarnation: node.incarnation };
            let known = &mut self.jobs.get_mut(uid).expect("found above").unlike;
            known.insert(name.clone(), unlike);
            while known.len() > UNLIKE_MAX {
                let oldest = known.iter().min_by_key(|(_, unlike)| unlike.at).map(|(node, _)| node.clone());
                oldest.and_then(|node| known.remove(&node));
            }
        }
    }

    /// What the generation about to start is made of, for its event. Warns of what differs, and forgets who is not odd any more.
    pub(crate) fn know_stacks(&mut self, uid: &JobUid, now: Timestamp, scratch: &mut Scratch) -> String {
        let job = &self.jobs[uid];
        let Some(generation) = &job.current else { return String::new() };
        let (bearers, gpus) = (self.bearers(job, generation), job.spec.gpus_per_node > 0);
        let mismatches = stack::mismatches(&bearers, gpus);
        let fits = |odd: &Unlike, node| {
            let with = bearers.iter().copied().chain([Bearer { node, stack: &odd.stack, survivor: false }]);
            mismatches.is_empty() && stack::mismatches(&with.collect::<Vec<_>>(), gpus).is_empty()
        };
        let like: Vec<_> =
            job.unlike.iter().filter(|(node, odd)| generation.has(node) || fits(odd, node)).map(|(node, _)| node.clone()).collect();
        let said: BTreeSet<String> = bearers.iter().map(|b| b.stack.to_string()).filter(|said| !said.is_empty()).collect();
        let (name, number) = (job.name.clone(), generation.number);
        for mismatch in mismatches {
            self.event(scratch, now, true, "MixedNodes", mismatch.to_string(), Some((uid, &name, Some(number))), None);
        }
        if let Some(job) = self.jobs.get_mut(uid) {
            like.iter().for_each(|node| drop(job.unlike.remove(node)));
        }
        said.into_iter().collect::<Vec<_>>().join(" / ")
    }
}
