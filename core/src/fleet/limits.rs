//! How many GPUs a job may have beside the others, by what the operator says of its namespace and its queue, and what it asks
//! for. It knows no nodes.

use crate::{
    fleet::{
        job::JobRecord,
        job_turn::Facts,
        ledger::{self, Claim, Ledger},
        placement::{Demand, Limit, OfOthers, OfQueue, QuotaWhy, RoleDemand},
        queues::{QueueId, Usage},
        unhealthy,
    },
    spec::Role,
};

/// What the job asks of placement. A job without roles has one.
pub(crate) fn demand(job: &JobRecord) -> Demand {
    let spec = &job.spec;
    // A worker pod's GPUs are the kubelet's affair: its agent does not see them, and the pod's resource limits hold them for
    // the job.
    let gpus_of = |gpus: u32| if spec.template.is_some() { 0 } else { gpus };
    let role = |role: &Role| RoleDemand {
        min: role.min_replicas,
        max: role.max_replicas,
        multiple: role.multiple_of,
        gpus: gpus_of(role.gpus_per_node),
        procs: role.proc_per_node,
    };
    let mut roles: Vec<RoleDemand> = spec.roles.iter().map(role).collect();
    if roles.is_empty() {
        roles.push(RoleDemand {
            min: spec.min_replicas,
            max: spec.max_replicas,
            multiple: spec.multiple_of,
            gpus: gpus_of(spec.gpus_max()),
            procs: spec.proc_per_node,
        });
    }
    Demand {
        roles,
        wanted: job.replicas,
        per_node: if spec.packs() { u32::MAX } else { 1 },
    }
}

/// How many GPUs the job needs to begin.
pub(crate) fn need(job: &JobRecord) -> u32 {
    let demand = demand(job);
    demand.gpus_of(demand.min())
}

/// The user whose limit counts for a job.
fn user_of(job: &JobRecord) -> Option<&str> {
    // Kubernetes counts what pods have.
    let counts = job.spec.template.is_none();
    job.owner.as_ref().filter(|_| counts)?.limited_as()
}

impl<'a> Facts<'a> {
    /// What the jobs of each queue hold. `None`: there are no queues.
    pub(crate) fn ledger(self) -> Option<&'a Ledger> {
        let queues = &self.policy.queues;
        if queues.is_empty() {
            return None;
        }
        Some(self.ledger.get_or_init(|| Ledger::of(queues, self.jobs())))
    }

    /// The job's queue.
    pub(crate) fn queue(self) -> Option<QueueId> {
        ledger::queue_of(&self.policy.queues, self.job).ok()
    }

    /// Whether it could begin without borrowing, if others gave back what they have borrowed.
    pub(crate) fn is_entitled(self, claims: &[Claim]) -> bool {
        let Some((ledger, queue)) = self.ledger().zip(self.queue()) else {
            return false;
        };
        need(self.job) <= self.entitled(queue, &ledger.without(self.uid), claims)
    }

    /// How many GPUs it need not borrow. Those that come before it in its queue come first.
    fn entitled(self, queue: QueueId, usage: &Usage, claims: &[Claim]) -> u32 {
        let (rank, mut usage) = (self.rank(), usage.clone());
        let before = claims.iter().filter(|claim| claim.rank < rank);
        let own = before.filter(|claim| claim.would_start && claim.queue == Some(queue));
        own.for_each(|claim| usage.add(queue, claim.need));
        self.policy.queues.entitled(queue, &usage)
    }

    /// What the jobs of each queue will hold when all that is being stopped has stopped, and all has been given up that is to
    /// be.
    pub(crate) fn coming_usage(
        self,
        ledger: &Ledger,
        counts: impl Fn(&JobRecord) -> bool,
    ) -> Usage {
        let queues = &self.policy.queues;
        let mut coming = queues.unused();
        for uid in ledger.holding() {
            let Some(job) = self.job_of(uid).filter(|job| counts(job)) else {
                continue;
            };
            let gpus = match unhealthy::frees_nothing(self.halted, self.nodes, job) {
                true => ledger.held_by(uid),
                false => ledger::stays(job, self.yields.get(uid)),
            };
            if let Ok(queue) = ledger::queue_of(queues, job) {
                coming.add(queue, gpus);
            }
        }
        coming
    }

    /// How many more GPUs the job may have by the limit of its namespace. `before`: the jobs that wait, and to which it leaves
    /// what they need. They are asked for only if there is a limit.
    pub(crate) fn of_namespace(
        self,
        before: impl FnOnce() -> Vec<&'a JobRecord>,
    ) -> Option<Limit<'a>> {
        let namespace = &self.job.name.namespace;
        let most = self.policy.gpus_max.of(namespace)?;
        // Kubernetes counts what pods have.
        if self.job.spec.template.is_some() {
            return None;
        }
        let counts =
            |other: &JobRecord| &other.name.namespace == namespace && other.spec.template.is_none();
        Some(Limit::Namespace {
            namespace,
            most,
            others: self.of_others(most, counts, &before()),
        })
    }

    /// How many more GPUs the job may have by the limit of its user.
    pub(crate) fn of_user(self, before: impl FnOnce() -> Vec<&'a JobRecord>) -> Option<Limit<'a>> {
        let user = user_of(self.job)?;
        let most = self.policy.user_gpus_max.of(user)?;
        let counts = |other: &JobRecord| user_of(other) == Some(user);
        Some(Limit::User {
            user,
            most,
            others: self.of_others(most, counts, &before()),
        })
    }

    /// The limit of its namespace or its user, which leaves it less, whoever else waits.
    pub(crate) fn own_limit(self) -> Option<Limit<'a>> {
        let limits = [self.of_namespace(Vec::new), self.of_user(Vec::new)];
        { limits.into_iter().flatten() }.min_by_key(|limit| limit.left())
    }

    /// The GPUs that count against a limit: those that other jobs hold, and those that the jobs before this one need. It leaves
    /// them nothing of what it has.
    fn of_others(
        self,
        most: u32,
        counts: impl Fn(&JobRecord) -> bool,
        before: &[&JobRecord],
    ) -> OfOthers {
        let others = self.jobs().filter(|other| &other.uid != self.uid);
        let held = self
            .capacity
            .gpus_held_by(others.filter(|other| counts(other)));
        let over = most.saturating_sub(held).saturating_sub(self.own_gpus());
        let needs = before.iter().filter(|job| counts(job)).map(|job| need(job));
        OfOthers {
            held,
            kept: needs.fold(0_u32, u32::saturating_add).min(over),
        }
    }

    /// How many GPUs the job may have by the quota of its queue, if the other jobs hold so much.
    ///
    /// While a job of its tree waits within its quota, or comes before it, nobody borrows more beside what it already has.
    /// Only one that cannot begin without borrowing may, and leaves as much as those that wait need.
    pub(crate) fn of_queue(self, usage: &Usage, claims: &[Claim]) -> Limit<'a> {
        let (queues, own) = (&self.policy.queues, self.own_gpus());
        let queue = match ledger::queue_of(queues, self.job) {
            Ok(queue) => queue,
            Err(none) => return Limit::NoQueue { none, left: own },
        };
        let (mut claimed, rank) = (queues.unused(), self.rank());
        for claim in claims {
            let counts = claim.would_start
                && &claim.uid != self.uid
                && (claim.entitled || claim.rank < rank);
            let of_tree = |of: &QueueId| queues.top(*of) == queues.top(queue);
            if let Some(of) = claim.queue.filter(|of| counts && of_tree(of)) {
                claimed.add(of, claim.need);
            }
        }
        let (available, entitled) = (
            queues.available(queue, usage),
            self.entitled(queue, usage, claims),
        );
        let begins_by_borrowing = own == 0 && need(self.job) > entitled;
        let borrows = match claimed == queues.unused() || begins_by_borrowing {
            true => queues.available(queue, &usage.with(&claimed)),
            false => 0,
        };
        let left = available.min(entitled.max(borrows)).max(own);
        let quota = queues.quota(queue);
        let held = usage.of(queue);
        let more = left.saturating_add(1);
        let limit = queues.borrowing_limit(queue);
        let why = if !queues.has_parent(queue) {
            QuotaWhy::Own
        } else if more <= entitled {
            QuotaWhy::Lent
        } else if more <= available {
            QuotaWhy::Kept
        } else if let Some(limit) =
            limit.filter(|limit| held.saturating_add(more) > quota.saturating_add(*limit))
        {
            QuotaWhy::BorrowingLimit(limit)
        } else {
            QuotaWhy::Used(available)
        };
        Limit::Queue(OfQueue {
            queue: queues.name(queue),
            quota,
            held,
            left,
            why,
        })
    }

    /// How many GPUs the job has its place with: it keeps them through restarts, but for what it gives up.
    fn own_gpus(self) -> u32 {
        ledger::stays(self.job, self.yields.get(self.uid))
    }
}
