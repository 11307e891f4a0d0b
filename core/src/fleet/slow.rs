//! Watches whether ranks of a training generation make the others wait, and tells people. The rules are in [`crate::slow`].

use std::{collections::BTreeSet, time::Duration};

use crate::{
    fleet::{job::JobRecord, job_turn::JobTurn, registry::Registry, training_ranks},
    id::NodeName,
    slow::{self, Came, SlowRank},
    spec::OnSlowRank,
    time::Timestamp,
};

/// Health rules whose findings can make a rank slow.
const CAUSES: [&str; 12] = [
    "throttle",
    "memory-hot",
    "clocks-low",
    "pcie-width",
    "pcie-generation",
    "pcie-replay",
    "nvlink-errors",
    "port-rate-low",
    "other-load",
    "memory-low",
    "state-disk-slow",
    "nic-heat",
];
/// How many causes are told.
const CAUSES_MAX: usize = 2;
/// Bytes of one cause.
const CAUSE_MAX: usize = 160;

impl JobTurn<'_> {
    /// Takes what the newest looks at the ranks have found, once all nodes have told theirs.
    pub(crate) fn watch_slow(&mut self) {
        let Some(generation) = self.job.training().filter(|g| g.won.is_none()) else {
            return;
        };
        if !self.live.condition.is_sound() || generation.stall.is_some() {
            return;
        }
        let Some(ranks) = training_ranks::ranks(self.nodes, self.uid, generation) else {
            return;
        };
        let came = ranks.living.iter().filter_map(|(node, rank)| {
            Some(Came {
                rank: rank.rank,
                node,
                arrivals: rank.arrivals.as_deref()?,
            })
        });
        let came: Vec<Came<'_>> = came.collect();
        let looks: BTreeSet<u64> = came.iter().map(|came| came.arrivals.look).collect();
        let number = generation.number;
        // The others tell theirs in a moment, or with the next look.
        let Some(look) = looks.first().filter(|_| looks.len() == 1) else {
            return;
        };
        if !self.live.slow.is_new(number, *look) || self.is_listening() {
            return;
        }
        let usual = training_ranks::habit(&ranks, Duration::ZERO);
        let step = usual.usual.filter(|_| usual.is_known());
        let late = slow::late(&came, step);
        let known = generation.slow.as_deref();
        let lasts = self.policy.slow_after;
        let seen: BTreeSet<u32> = came.iter().map(|came| came.rank).collect();
        let seen = |rank| seen.contains(&rank);
        let look = (number, *look);
        let news = (self.live.slow).step(look, &late, seen, known, self.now, lasts);
        news.ends
            .iter()
            .for_each(|slow| self.not_slow_any_more(slow));
        for found in news.begins {
            let causes = causes(self.nodes, &found.node);
            self.tell_slow(SlowRank { causes, ..found });
        }
    }

    fn tell_slow(&mut self, found: SlowRank) {
        let training = self.job.training();
        let began = training.map(|generation| generation.started_at.unwrap_or(generation.opened));
        let before = began.and_then(|began| self.job.left_slow.judge(&found, began));
        let before = before.map_or_else(String::new, |node| {
            format!("; it was slow on {node} too, so it is its work and not the node")
        });
        let name = &self.job.name;
        let message = format!(
            "{name}: {}{before} (muster stacks {} --rank {})",
            found.sentence(),
            name.name,
            found.rank
        );
        let number = self.job.last_generation;
        let event = self.warn("RankSlow", message);
        event.in_generation(number).on_node(&found.node);
        if let Some(generation) = &mut self.job.current {
            let slow = generation.slow.get_or_insert_default();
            slow.ranks.push(found);
            slow.ranks
                .sort_by_key(|one| (std::cmp::Reverse(one.times_percent()), one.rank));
        }
    }

    fn not_slow_any_more(&mut self, slow: &SlowRank) {
        let name = &self.job.name;
        let message = format!(
            "{name}: the others do not wait for rank {} on {} any more",
            slow.rank, slow.node
        );
        let number = self.job.last_generation;
        let event = self.note("RankNotSlow", message);
        event.in_generation(number).on_node(&slow.node);
        let Some(generation) = &mut self.job.current else {
            return;
        };
        if let Some(all) = &mut generation.slow {
            all.ranks.retain(|one| one.rank != slow.rank);
        }
        if { generation.slow.as_ref() }.is_some_and(|all| all.ranks.is_empty()) {
            generation.slow = None;
        }
    }
}

/// The current generation is about to be replaced. The next stays away from the nodes of slow ranks, if the job wants that.
pub(crate) fn leave(job: &mut JobRecord, now: Timestamp) {
    let current = job.current.as_ref();
    if let Some(slow) = current.and_then(|generation| generation.slow.as_deref())
        && job.spec.on_slow_rank == OnSlowRank::Replace
    {
        job.left_slow.leave(slow, now);
    }
}

/// What the node of a slow rank reports that may be why.
fn causes(nodes: &Registry, node: &NodeName) -> Vec<String> {
    let Some(node) = nodes.get(node) else {
        return Vec::new();
    };
    let findings = node.report.health.findings.iter();
    let causes = findings.filter(|finding| CAUSES.contains(&finding.check.as_str()));
    let told = causes.map(|finding| {
        let reason: String = finding.reason.chars().take(CAUSE_MAX).collect();
        format!("{}: {reason}", finding.check)
    });
    told.take(CAUSES_MAX).collect()
}
