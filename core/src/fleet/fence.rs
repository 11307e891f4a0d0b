//! Jobs with `fenceAfter`: the moment when the workers of a node that cannot be heard must have
//! stopped by themselves, whatever became of the node (decision 0015).
//!
//! The node counts from the moment it sent the last answered heartbeat. The coordinator counts from
//! the moment it last heard the node, which is later. So one number gives two deadlines, and the
//! node's always comes first, although the two share no clock. A node past its deadline makes no
//! step any more, so the next generation may start. It is not proven dead, and it frees no GPU.
//! Only the node's own report does that.

use std::time::Duration;

use crate::{
    fleet::{job::JobRecord, registry::Registry},
    time::Timestamp,
};

/// Clocks run up to one percent wrong, and there are two: (1 + 1 %) / (1 - 1 %) is 1.0202. The part
/// beyond two percent is 0.9 s for the longest fence and grace, and the margin covers it.
const DRIFT_PERCENT: u32 = 2;

/// The time from the end of the grace to the death of the last process. The runner's kill is
/// confirmed within 5 s. A loaded machine may wake its runner late, so as much again is added for
/// that.
const MARGIN: Duration = Duration::from_secs(10);

/// When the workers of a node that was last `heard` then must have stopped, by the coordinator's
/// clock.
fn stopped_at(heard: Timestamp, fence_after: Duration, grace: Duration) -> Timestamp {
    let lasts = fence_after + grace;
    heard + lasts + lasts * DRIFT_PERCENT / 100 + MARGIN
}

/// Notes which members have stopped by now. Returns when the next one will have stopped.
pub(crate) fn note(nodes: &Registry, job: &mut JobRecord, now: Timestamp) -> Option<Timestamp> {
    let (fence_after, grace) = (job.spec.fence_after?, job.spec.stop_grace_period);
    let mut next = None;
    for generation in job
        .unproven_generations_mut()
        .filter(|generation| generation.started)
    {
        for member in &generation.members {
            if generation.has_stopped(&member.node) {
                continue;
            }
            // A node that is there reports for itself.
            let Some(node) = nodes
                .get(&member.node)
                .filter(|node| node.session.is_none() || !node.is_ready())
            else {
                continue;
            };
            let at = stopped_at(node.heard, fence_after, grace);
            if now >= at {
                generation.fenced.insert(member.node.clone());
            } else {
                next = Some(next.map_or(at, |before: Timestamp| before.min(at)));
            }
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_always_first() {
        let second = Duration::from_secs(1);
        assert_eq!(
            stopped_at(Timestamp(0), 60 * second, 10 * second),
            Timestamp(0) + Duration::from_millis(81_400)
        );
        for (fence, grace) in [(10, 0), (10, 300), (60, 10), (3_600, 0), (3_600, 900)] {
            let (fence, grace) = (fence * second, grace * second);
            // The node's clock is one percent slow, the coordinator's is one percent fast, and the
            // heartbeat took no time.
            let by_node = (fence + grace).mul_f64(1.01 / 0.99);
            let left = stopped_at(Timestamp(0), fence, grace)
                .since(Timestamp(0))
                .saturating_sub(by_node);
            assert!(left >= 9 * second, "{fence:?} {grace:?}: {left:?}");
        }
    }
}
