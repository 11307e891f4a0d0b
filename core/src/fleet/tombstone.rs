//! What is remembered of a deleted job: where its logs may be, and which nodes may still have its
//! workers. An operator may delete a node, and then the job whose workers ran there. If the node
//! comes back, its workers are expected: they are stopped, and do not prove that the store is an
//! old copy. Tombstones are stored, because the coordinator may have been restarted in between.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    fleet::job::JobRecord,
    id::{JobUid, NodeName},
    run::RunId,
    time::Timestamp,
};

/// A deleted job, kept as long as nodes may hold its logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tombstone {
    /// Its last generation.
    pub run: RunId,
    pub nodes: Vec<NodeName>,
    pub deleted: Timestamp,
}

/// The number of tombstones that are kept. The agents' own clean-up removes the logs of older ones.
pub(crate) const TOMBSTONES_MAX: usize = 256;

/// The stored tombstones, oldest first. If the coordinator died between the two writes, the job
/// of a tombstone may still be stored.
pub(crate) fn loaded(
    mut tombstones: Vec<Tombstone>,
    jobs: &BTreeMap<JobUid, JobRecord>,
) -> Vec<Tombstone> {
    tombstones.retain(|tombstone| !jobs.contains_key(&tombstone.run.job));
    tombstones.sort_by(|a, b| (a.deleted, &a.run.job).cmp(&(b.deleted, &b.run.job)));
    tombstones
}
