//! All worker pods that the cluster has told of, and why jobs lack more.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    fleet::{job::JobRecord, pod_plan, worker_pod::WorkerPod},
    id::{JobUid, NodeName},
};

/// All worker pods that exist, by the name of their node.
#[derive(Debug, Default)]
pub(crate) struct WorkerPods {
    pub all: BTreeMap<NodeName, Arc<WorkerPod>>,
    /// All were read once. From then on a node that is a pod and not in `all` is gone.
    pub listed: bool,
    /// Why jobs cannot have the pods that they lack.
    pub refused: BTreeMap<JobUid, String>,
}

impl WorkerPods {
    /// Why this job lacks pods, or why those that it has do not run yet.
    pub(crate) fn waits(&self, job: &JobRecord) -> Option<String> {
        job.spec.template.as_ref()?;
        if let Some(why) = self.refused.get(&job.uid) {
            return Some(format!("its pods cannot be made: {why}"));
        }
        let own = self
            .all
            .values()
            .filter(|pod| pod.is_of(&job.name, &job.uid));
        pod_plan::waits(own.map(|pod| &**pod))
    }
}
