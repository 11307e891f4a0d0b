//! Draws what makes jobs wait: crowds of them, and the operator's preemption, limits and trees of queues.

use std::time::Duration;

use muster_core::{fleet::queues::Queue, period, spec::Preemption};

use super::{Cut, Plan, Size};
use crate::rng::Rng;

/// How many seeds in a hundred have more jobs than whole nodes for them.
const CROWDS_SHARE: u64 = 8;

/// How many crowds in a hundred have fair shares.
const FAIR_SHARE: u64 = 40;

impl Plan {
    /// Draws whether more jobs ask for whole nodes than there are, from a source of its own.
    pub(crate) fn draw_crowds(&mut self, seed: u64, cut: &Cut) {
        // These bytes spell "heap".
        let mut crowds = Rng::new(seed ^ 0x6865_6170);
        self.crowded = crowds.percent(CROWDS_SHARE)
            && !(self.pods || self.restarts || self.fences || self.size == Size::Large);
        if !self.crowded {
            return;
        }
        self.gpus = crowds.range(1, 2) as u32;
        self.machines = cut.machines.unwrap_or(crowds.range(2, 5) as usize);
        self.members_max = self.machines as u64;
        self.jobs = cut.jobs.unwrap_or(crowds.range(4, 8) as usize);
        // Nodes are to be free in between.
        self.fault_gap = crowds.ms(5_000, 60_000);
        self.user_gap = crowds.ms(3_000, 15_000);
        if cut.trouble_ms.is_none() {
            self.trouble = crowds.ms(30_000, 120_000);
        }
    }

    /// Draws what the operator allows jobs to take, from a source of its own.
    pub(crate) fn draw_queues(&mut self, seed: u64) {
        // These bytes spell "queu".
        let mut queues = Rng::new(seed ^ 0x7175_6575);
        self.preemption = match queues.below(100) {
            0..=39 => Preemption::Evict,
            40..=89 => Preemption::Shrink,
            _ => Preemption::Never,
        };
        let all = self.gpus * self.machines as u32;
        if all > 0 && queues.percent(25) {
            self.gpus_max = Some(queues.range(1, all.into()) as u32);
        } else if all > 0 && !self.pods && queues.percent(60) {
            self.queues = tree(&mut queues, all.into());
        }
    }

    /// Draws whether there is a second tree, whether jobs name their queues, and the limit of users, from a source of its own.
    pub(crate) fn draw_more_queues(&mut self, seed: u64) {
        // These bytes spell "tree".
        let mut more = Rng::new(seed ^ 0x7472_6565);
        let all = u64::from(self.gpus) * self.machines as u64;
        if self.crowded && more.percent(75) {
            (self.gpus_max, self.queues) = (None, tree(&mut more, all));
        }
        if !self.queues.is_empty() && more.percent(40) {
            let second = tree(&mut more, all).into_iter().map(|queue| Queue {
                name: format!("other-{}", queue.name),
                parent: queue.parent.map(|_| self.queues.len()),
                namespaces: queue
                    .namespaces
                    .iter()
                    .map(|one| format!("other-{one}"))
                    .collect(),
                ..queue
            });
            let second: Vec<Queue> = second.collect();
            self.queues.extend(second);
        }
        if !self.queues.is_empty() && more.percent(40) {
            for queue in self
                .queues
                .iter_mut()
                .filter(|queue| queue.parent.is_some())
            {
                queue.namespaces.insert(SHARED.to_owned());
            }
        }
        if all > 0 && !self.pods && more.percent(20) {
            self.user_gpus_max = Some(more.range(1, all) as u32);
        }
    }

    /// Draws whether jobs of equal priority go by fair share, from a source of its own: other seeds keep their histories. Only in a crowd
    /// does it matter who comes first.
    pub(crate) fn draw_fair_share(&mut self, seed: u64, cut: &Cut) {
        // These bytes spell "fair".
        let mut fair = Rng::new(seed ^ 0x6661_6972);
        if !self.crowded || !fair.percent(FAIR_SHARE) {
            return;
        }
        let half_life = match fair.percent(60) {
            true => period::LONGEST,
            false => Duration::from_secs(fair.range(60, 600)),
        };
        self.fair_share_half_life = Some(half_life);
        if fair.percent(70) {
            self.queues.clear();
        }
        for queue in &mut self.queues {
            queue.weight = fair.percent(30).then(|| fair.range(1, 4) as u32);
        }
        // Somebody is to have used more for a while.
        self.jobs = cut.jobs.unwrap_or(fair.range(8, 14) as usize);
        self.user_gap = fair.ms(2_000, 10_000);
        if cut.trouble_ms.is_none() {
            self.trouble = fair.ms(120_000, 240_000);
        }
    }

    /// The namespace of a job, and the queue that it names.
    pub(crate) fn queue_of(&self, number: usize) -> (Option<String>, Option<String>) {
        let with_jobs = || {
            self.queues
                .iter()
                .filter(|queue| !queue.namespaces.is_empty())
        };
        let Some(queue) = with_jobs().nth(number % with_jobs().count().max(1)) else {
            let other = self.fair_share_half_life.is_some() && number % 3 == 2;
            return (other.then(|| "other".to_owned()), None);
        };
        // Not by the same remainders as queues and users.
        let shared = queue.namespaces.contains(SHARED) && number / 2 % 2 == 1;
        // One of them names none, and uses the first queue.
        let named = number != 7;
        match shared {
            true => (Some(SHARED.to_owned()), named.then(|| queue.name.clone())),
            false => (Some(queue.name.clone()), None),
        }
    }
}

/// The namespace whose jobs may name any queue.
const SHARED: &str = "shared";

/// Two or three queues that have so many GPUs between none and all each.
fn tree(rng: &mut Rng, all: u64) -> Vec<Queue> {
    let below: Vec<Queue> = (0..rng.range(2, 3))
        .map(|number| {
            let limit = |rng: &mut Rng| rng.percent(25).then(|| rng.range(0, all) as u32);
            Queue {
                name: format!("q{number}"),
                parent: Some(0),
                quota: Some(rng.range(0, all) as u32),
                borrowing_limit: limit(rng),
                lending_limit: limit(rng),
                namespaces: [format!("q{number}")].into(),
                max_priority: None,
                weight: None,
            }
        })
        .collect();
    let quotas: u32 = below.iter().filter_map(|queue| queue.quota).sum();
    let top = Queue {
        name: "all".into(),
        quota: rng.percent(30).then(|| quotas + rng.range(0, 2) as u32),
        ..Queue::default()
    };
    [vec![top], below].concat()
}
