//! Who keeps room from whom, and how many GPUs that leaves a job. On which nodes a job keeps it, `chosen_nodes` says.

use std::collections::BTreeMap;

use crate::{
    fleet::{
        candidates::Reserved,
        capacity::Capacity,
        job::JobRecord,
        job_turn::Facts,
        ledger::Claim,
        limits::{self, demand},
        live::Live,
        placement::{Keeps, Limit},
        reservations::{self, RESERVING_MAX, Waiting},
        settle_order::Rank,
        unhealthy, word,
    },
    id::{JobName, JobUid, NodeName},
};

impl<'a> Facts<'a> {
    /// The room that jobs before this one keep.
    pub(crate) fn reserved(self) -> Vec<Reserved<'a>> {
        if self.job.spec.template.is_some() {
            return Vec::new();
        }
        // Nobody asks one that asks: then each would come before the other, and there would be no end.
        let before = self.before().into_iter();
        let before = before.filter(|waiting| !waiting.is_choosing.get());
        let keeps = before.map(|waiting| Reserved {
            by: &waiting.name,
            keeps: self.kept_by(waiting),
            namespace: &self.job.name.namespace,
        });
        keeps
            .filter(|reserved| !reserved.keeps.is_empty())
            .collect()
    }

    /// What those before this job would keep if so much were left.
    pub(crate) fn kept_after(
        self,
        coming: &Capacity,
    ) -> Vec<(&'a JobName, BTreeMap<NodeName, Keeps>)> {
        let live = Live::default();
        let before = self.before().into_iter();
        let mut kept: Vec<(&JobName, BTreeMap<NodeName, Keeps>)> = Vec::new();
        for job in before.filter_map(|waiting| self.decided(&waiting.uid)) {
            let reserved = kept.iter().map(|(by, keeps)| Reserved {
                by,
                keeps,
                namespace: &job.name.namespace,
            });
            let reserved: Vec<Reserved<'_>> = reserved.collect();
            let keeps = self.of_other(job, &live).keeps(coming, &reserved);
            kept.push((&job.name, keeps));
        }
        kept
    }

    /// What a job that waits keeps of each node.
    fn kept_by(self, waiting: &'a Waiting) -> &'a BTreeMap<NodeName, Keeps> {
        waiting.keeps.get_or_init(|| {
            let live = Live::default();
            let Some(job) = self.decided(&waiting.uid) else {
                return BTreeMap::new();
            };
            let facts = self.of_other(job, &live);
            let coming = &self.reservations().coming;
            let coming = coming.get_or_init(|| self.coming());
            waiting.is_choosing.set(true);
            let reserved = facts.reserved();
            waiting.is_choosing.set(false);
            facts.keeps(coming, &reserved)
        })
    }

    /// Whether a job that waits would start on an empty fleet, so that it keeps something.
    fn would_start(self, waiting: &Waiting) -> bool {
        *waiting.would_start.get_or_init(|| {
            let live = Live::default();
            let job = self.decided(&waiting.uid);
            job.is_some_and(|job| !self.of_other(job, &live).could_use().is_empty())
        })
    }

    /// The job, unless nothing is decided about it: it may wait for days.
    fn decided(self, uid: &JobUid) -> Option<&'a JobRecord> {
        self.job_of(uid)
            .filter(|job| word::halted_by(self.halted, self.nodes, job).is_none())
    }

    /// What will be left when all that is being stopped has stopped.
    pub(crate) fn coming(self) -> Capacity {
        let mut coming = self.capacity.clone();
        for other in self.jobs() {
            if other.retiring.is_empty() || unhealthy::frees_nothing(self.halted, self.nodes, other)
            {
                continue;
            }
            let next = other.generation_now();
            if next.is_none() && reservations::has_its_place(other) {
                // It is about to begin again where it was.
                continue;
            }
            coming.keep_only(&other.uid, next);
        }
        for (uid, given) in self.yields {
            given
                .nodes
                .iter()
                .for_each(|node| coming.release(node, uid));
        }
        coming
    }

    /// The limit of its namespace or queue, if the job could be larger without it.
    pub(crate) fn limited(self) -> Option<Limit<'a>> {
        let mut demand = demand(self.job);
        let wanted = demand.wanted;
        let limit = self.limit()?;
        let bound = limit.bound(&mut demand);
        (bound.is_err() || demand.wanted < wanted).then_some(limit)
    }

    /// How many GPUs the job may have, by the limit that leaves it least.
    pub(crate) fn limit(self) -> Option<Limit<'a>> {
        let before = || self.keepers();
        let limits = [
            self.of_namespace(before),
            self.of_user(before),
            self.queue_limit(),
        ];
        limits
            .into_iter()
            .flatten()
            .min_by_key(|limit| limit.left())
    }

    /// The jobs that keep room from this one.
    fn keepers(self) -> Vec<&'a JobRecord> {
        let before = self.before().into_iter();
        let keeps = before.filter(|waiting| self.would_start(waiting));
        keeps.filter_map(|one| self.job_of(&one.uid)).collect()
    }

    fn queue_limit(self) -> Option<Limit<'a>> {
        if self.job.spec.template.is_some() {
            return None;
        }
        let usage = self.ledger()?.without(self.uid);
        Some(self.of_queue(&usage, self.claims()))
    }

    /// The first jobs that wait and that their quota lets start. None where there are no queues.
    pub(crate) fn claims(self) -> &'a [Claim] {
        let Some(ledger) = self.ledger() else {
            return &[];
        };
        let (queues, reservations) = (&self.policy.queues, self.reservations());
        let waiting = reservations.waiting();
        let needs = |uid: &JobUid| self.job_of(uid).map_or(0, limits::need);
        let would_start = |uid: &JobUid| {
            let rank = { self.job_of(uid) }.map(|job| Rank::of(job, self.standings));
            let waiting = rank.and_then(|rank| reservations.get(&rank));
            waiting.is_some_and(|waiting| self.would_start(waiting))
        };
        let coming = || self.coming_usage(ledger, |_| true);
        ledger.claims(queues, coming, waiting, needs, would_start)
    }

    /// Whether this job, which waits or is about to, is one of the first, so that what is freed for it is kept for it.
    pub(crate) fn is_among_first(self) -> bool {
        if self.ledger().is_none() {
            return self.reservations().reserves(&self.rank());
        }
        let rank = self.rank();
        let entitled = limits::need(self.job) > 0 && self.is_entitled(self.claims());
        let before = self.claims().iter();
        let before = before
            .filter(|claim| claim.rank < rank && claim.would_start)
            .filter(|claim| claim.entitled || !entitled);
        before.count() < RESERVING_MAX
    }

    /// Those that keep room from this job, the first to choose first.
    fn before(self) -> Vec<&'a Waiting> {
        let (reservations, job) = (self.reservations(), self.job);
        if self.ledger().is_none() {
            let before = reservations.before(job, self.rank(), self.policy, self.now);
            return before.collect();
        }
        let need = limits::need(job);
        let own = { self.claims().iter() }.find(|claim| &claim.uid == self.uid);
        // Others judge it by its claim, so the same counts here.
        let entitled = match own {
            Some(claim) => claim.entitled,
            None => need > 0 && self.is_entitled(self.claims()),
        };
        let borrows = self.queue().is_some() && !entitled && need > 0;
        // One order for all, also of several trees: whoever need not borrow comes first. So no jobs keep room from each other.
        let place = (borrows, self.rank());
        let binds = |claim: &&Claim| {
            let claim_borrows = claim.queue.is_some() && !claim.entitled;
            (claim_borrows, &claim.rank) < (place.0, &place.1)
        };
        let claims = self.claims().iter().filter(binds);
        let waiting = claims.filter_map(|claim| {
            let waiting = reservations.get(&claim.rank)?;
            let of_borrower = claim.entitled && borrows;
            let binds = of_borrower || waiting.binds(job, self.policy, self.now);
            binds.then_some(waiting)
        });
        waiting.collect()
    }
}
