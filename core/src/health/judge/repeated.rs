//! XIDs that come back on the same GPU: several of them show what a single one does not.
//!
//! Bursts of grave XIDs count whatever their codes. A fault that programs cause is the job's own,
//! until several jobs have such faults on one GPU and nowhere else on the node. This node does not
//! know what other nodes saw, so the result is only a suspicion. Neither count outlives the agent:
//! a day of counting begins again with it.

use std::time::Duration;

use super::{Judge, Moment, Source};
use crate::health::{Subject, table::Trigger};

/// Grave XIDs within this time are one burst (NVSentinel: 3 minutes).
pub(super) const BURST: Duration = Duration::from_secs(180);
/// Older events do not count any more.
const WINDOW: Duration = Duration::from_secs(24 * 3_600);
/// Bursts remembered for each GPU: more than any rule asks for.
const BURSTS_MAX: usize = 64;
/// Jobs with faults that are remembered. With 16 GPUs each they make 4,096 entries. More such jobs
/// in one day on one node would all be of one kind.
const JOBS_MAX: usize = 256;
/// Faults that programs cause, and that a defect of the GPU can cause as well: an exception of its
/// engine (13), and of its memory unit (31).
const SHARED: [u32; 2] = [13, 31];

impl Judge {
    pub(super) fn burst(&mut self, gpu: &Subject, at: Moment) {
        let bursts = self.bursts.entry(gpu.clone()).or_default();
        if bursts
            .back()
            .is_none_or(|last| at.now.since(*last) >= BURST)
        {
            bursts.push_back(at.now);
        }
        while bursts.len() > BURSTS_MAX
            || bursts
                .front()
                .is_some_and(|first| at.now.since(*first) > WINDOW)
        {
            bursts.pop_front();
        }
        let many = bursts.len() as u64;
        if let Some(rule) = self.table.rule("xid-repeated").cloned()
            && let Trigger::Above(limit) = rule.trigger
            && many > limit
        {
            let reason = format!("{many} bursts of grave XIDs in 24 h");
            self.find(
                Source::Gpus,
                &rule,
                ("xid-repeated".into(), gpu.clone()),
                reason.into(),
                at,
                None,
            );
        }
    }

    /// Takes one XID that came while this job was on the GPU. Call it once for each XID.
    pub fn fault_of_job(&mut self, code: u32, gpu: &Subject, job: &str, at: Moment) {
        let Some(rule) = self.table.rule("xid-app-repeated").cloned() else {
            return;
        };
        let Trigger::Above(limit) = rule.trigger else {
            return;
        };
        self.faults.retain(|_, places| {
            places.retain(|_, last| at.now.since(*last) <= WINDOW);
            !places.is_empty()
        });
        if !SHARED.contains(&code)
            || (self.faults.len() >= JOBS_MAX && !self.faults.contains_key(job))
        {
            return;
        }
        let places = self.faults.entry(job.to_owned()).or_default();
        places.insert(gpu.clone(), at.now);
        // If a job has faults here too, the GPU where it had them first is no longer suspected for
        // it.
        let concerned: Vec<Subject> = places.keys().cloned().collect();
        for place in concerned {
            let jobs = self
                .faults
                .values()
                .filter(|on| on.len() == 1 && on.contains_key(&place))
                .count() as u64;
            let key = ("xid-app-repeated".to_owned(), place);
            if jobs <= limit {
                self.held.remove(&key);
            } else if &key.1 == gpu {
                let reason = format!(
                    "XIDs that programs cause, under {jobs} jobs that had them on no other GPU here"
                );
                self.find(Source::Gpus, &rule, key, reason.into(), at, None);
            }
        }
    }
}
