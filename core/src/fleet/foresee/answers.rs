//! What is said of a job whose start was looked for: after which ends it starts, or why it does not.

use std::{
    cell::OnceCell,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::Foresight;
use crate::{
    fleet::{
        job::JobRecord,
        job_turn::Facts,
        ledger, limits,
        members::Member,
        placement::Keeps,
        start_estimate::{Before, NAMED_MAX, NoEstimate, StartEstimate},
    },
    id::{JobUid, NodeName},
};

impl Foresight<'_> {
    /// What is said of a job that starts now with this gang.
    pub(super) fn estimate(&self, gang: &[Member]) -> StartEstimate {
        let freed = gang
            .iter()
            .filter_map(|member| self.freed.get(&member.node));
        let mut before: BTreeSet<usize> = freed.flatten().copied().collect();
        let ends_now = |place: &usize| self.ended[*place].end.at == self.now;
        if !before.iter().any(ends_now) {
            // Of what ends now, nothing but its share of a limit was awaited.
            before.extend((0..self.ended.len()).filter(ends_now));
        }
        let mut before: Vec<&Before> = before.iter().map(|place| &self.ended[*place]).collect();
        before.sort_by_key(|before| (Reverse(before.end.at), &before.job));
        StartEstimate {
            at: self.now,
            more: before.len().saturating_sub(NAMED_MAX) as u32,
            after: before.into_iter().take(NAMED_MAX).cloned().collect(),
        }
    }

    /// Why a job does not start although all ends that are known have come.
    pub(super) fn why_never(&self, uid: &JobUid) -> NoEstimate {
        let Some(job) = self.jobs.get(uid) else {
            return NoEstimate::Never;
        };
        let Some(usable) = self.usable_alone(job) else {
            return NoEstimate::Never;
        };
        let in_its_way = |uid: &&JobUid| {
            let mut held = self.capacity.held_by(uid);
            held.any(|node| usable.contains_key(node))
        };
        let all = self.jobs.keys().filter(in_its_way);
        let all = self.in_order(all);
        let names = all.iter().filter_map(|uid| self.jobs.get(uid));
        NoEstimate::UnknownEnds {
            more: all.len().saturating_sub(NAMED_MAX) as u32,
            jobs: names.map(|job| job.name.clone()).take(NAMED_MAX).collect(),
        }
    }

    /// The nodes that the job could use if no other job were there. `None`: it would not start even so.
    fn usable_alone(&self, job: &JobRecord) -> Option<BTreeMap<NodeName, Keeps>> {
        let queues = &self.fleet.policy.queues;
        if !queues.is_empty() {
            let queue = ledger::queue_of(queues, job).ok()?;
            if limits::need(job) > queues.available(queue, &queues.unused()) {
                return None;
            }
        }
        let (others, ledger) = (BTreeMap::new(), OnceCell::new());
        let alone = Facts {
            others: &others,
            ledger: &ledger,
            ..self.facts(job)
        };
        let usable = alone.could_use();
        (!usable.is_empty()).then_some(usable)
    }
}
