//! Whose word counts for which job.
//!
//! A node that says more of a job than the store knows holds the job up (`rollback`), and then not even
//! a user can end it. Every node could say so of every job, and a node is somebody's machine or
//! somebody's pod. So its word counts only for the jobs that the store gives it: those of which it is or
//! was a member, and the one whose worker pod it is.
//!
//! What that costs: an old copy of the store may not know the newest members. If none that it knows has
//! seen what is missing, or none of those is heard, only the node that has seen it is left alone, and
//! its job is decided by what the store knows (decision 0078).

use std::{collections::BTreeSet, fmt};

use crate::{
    fleet::{job::JobRecord, registry::Registry},
    id::{JobUid, NodeName},
};

/// Why a node's word counts for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// It is a member of a generation that is not proven dead.
    Member,
    /// It was a member of an earlier generation.
    WasMember,
    /// It is a worker pod of the job, and no member yet.
    OwnPod,
}

/// Why it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discounted {
    /// The store has no such job.
    NoSuchJob,
    /// The store has the job, and has never given it this node.
    Stranger,
}

/// For a sentence about the node.
impl fmt::Display for Discounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchJob => "the store has no such job",
            Self::Stranger => "the store has never given it that job",
        })
    }
}

/// Whether what this node says of a job counts for the job. `job`: what the store has of it. `pod_of`:
/// the job whose worker pod the node is.
pub(crate) fn counts(
    node: &NodeName,
    pod_of: Option<&JobUid>,
    job: Option<&JobRecord>,
) -> Result<Counts, Discounted> {
    let job = job.ok_or(Discounted::NoSuchJob)?;
    let mut unproven = job.unproven_generations();
    if unproven.any(|generation| generation.has(node)) {
        Ok(Counts::Member)
    } else if job.nodes_used.contains(node) {
        Ok(Counts::WasMember)
    } else if pod_of == Some(&job.uid) {
        Ok(Counts::OwnPod)
    } else {
        Err(Discounted::Stranger)
    }
}

/// The halted node that holds up this job, so that nothing is decided about it.
pub(crate) fn halted_by<'a>(
    halted: &'a BTreeSet<NodeName>,
    nodes: &Registry,
    job: &JobRecord,
) -> Option<&'a NodeName> {
    let holds = |name: &&NodeName| {
        let node = nodes.get(name);
        node.is_some_and(|node| {
            let says = || node.runs.keys().any(|run| run.job == job.uid);
            let heard = || counts(name, node.record.pod_of.as_ref(), Some(job)).is_ok();
            node.jobs.contains(&job.uid) || says() && heard()
        })
    };
    halted.iter().find(holds)
}
