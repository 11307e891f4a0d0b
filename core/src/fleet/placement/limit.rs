//! How many GPUs the jobs of one namespace or user may hold together, as the operator says (`--gpus-max`, `--user-gpus-max`), or
//! those of one queue (`--queues`).

use std::fmt;

use super::{demand::Demand, why::Shortfall};
use crate::fleet::{queues::NoQueue, shortage::Shortage};

/// What a job may have at most beside other jobs, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit<'a> {
    /// A namespace's limit, and what its other jobs hold.
    Namespace {
        namespace: &'a str,
        most: u32,
        others: OfOthers,
    },
    /// A user's limit, and what the other jobs of this user hold.
    User {
        user: &'a str,
        most: u32,
        others: OfOthers,
    },
    Queue(OfQueue<'a>),
    /// The job is in no queue, and keeps what it had before there were any.
    NoQueue {
        none: NoQueue<'a>,
        left: u32,
    },
}

/// The GPUs of other jobs that count against a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfOthers {
    pub held: u32,
    /// Those that jobs which wait before this one need, and that it leaves.
    pub kept: u32,
}

/// A queue's quota, what its other jobs hold, and what is left for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfQueue<'a> {
    pub queue: &'a str,
    pub quota: u32,
    pub held: u32,
    pub left: u32,
    pub why: QuotaWhy,
}

/// Why no more is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaWhy {
    /// The queue is at the top, and has no more.
    Own,
    /// It may borrow no more.
    BorrowingLimit(u32),
    /// Others have borrowed of its quota. It comes back.
    Lent,
    /// What could be borrowed is kept for jobs that need not borrow.
    Kept,
    /// So much is left to borrow.
    Used(u32),
}

impl<'a> Limit<'a> {
    /// How many GPUs the job may have.
    pub(crate) fn left(self) -> u32 {
        match self {
            Limit::Namespace { most, others, .. } | Limit::User { most, others, .. } => {
                most.saturating_sub(others.held + others.kept)
            }
            Limit::Queue(OfQueue { left, .. }) | Limit::NoQueue { left, .. } => left,
        }
    }

    pub(crate) fn shortage(self) -> Shortage {
        match self {
            Limit::Namespace { .. } => Shortage::NamespaceGpusMax,
            Limit::User { .. } => Shortage::UserGpusMax,
            Limit::Queue(_) | Limit::NoQueue { .. } => Shortage::QueueQuota,
        }
    }

    /// Makes the demand as small as the limit wants it. If even its minimum is too much, the error says it in GPUs.
    pub(crate) fn bound(self, demand: &mut Demand) -> Result<(), Shortfall<'a>> {
        let left = self.left();
        let min = demand.min();
        let need = demand.gpus_of(min);
        // A job without GPUs takes none from others.
        if need > left && need > 0 {
            return Err(Shortfall {
                need,
                have: left,
                unit: "GPUs",
                within: None,
                excluded: Vec::new(),
                over: Some(Box::new(self)),
            });
        }
        while demand.wanted > min && demand.gpus_of(demand.wanted) > left {
            demand.wanted -= 1;
        }
        Ok(())
    }
}

impl fmt::Display for Limit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Namespace {
                namespace,
                most,
                others,
            } => write!(
                f,
                "jobs of namespace {namespace} may hold {most} GPUs (--gpus-max of the coordinator): {others}"
            ),
            Limit::User { user, most, others } => write!(
                f,
                "jobs of user {user} may hold {most} GPUs (--user-gpus-max of the coordinator): {others}"
            ),
            Limit::Queue(of) => of.fmt(f),
            Limit::NoQueue { none, .. } => none.fmt(f),
        }
    }
}

impl fmt::Display for OfOthers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the others hold {}", self.held)?;
        match self.kept {
            0 => Ok(()),
            kept => write!(f, ", {kept} are kept for jobs that wait"),
        }
    }
}

impl fmt::Display for OfQueue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OfQueue {
            queue, quota, held, ..
        } = self;
        write!(f, "queue {queue} has a quota of {quota} GPUs")?;
        if let QuotaWhy::BorrowingLimit(limit) = self.why {
            write!(f, " and may borrow {limit} more")?;
        }
        write!(f, ": its other jobs hold {held}")?;
        match self.why {
            QuotaWhy::Own | QuotaWhy::BorrowingLimit(_) => Ok(()),
            QuotaWhy::Lent => f.write_str(", other queues hold what they have borrowed of it"),
            QuotaWhy::Kept => f.write_str(
                ", what it could borrow is kept for jobs that wait within the quota of their queue",
            ),
            QuotaWhy::Used(left) => write!(f, ", {left} more are left to borrow"),
        }
    }
}
