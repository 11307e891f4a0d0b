//! How many GPUs a job takes if its document does not say it.
//!
//! The document of a torch job may leave the number out. Then the first start decides, because only
//! then the nodes are known: one GPU for each process if the fleet has enough nodes for that, else
//! none. The decision is kept, so a job does not change because a node came or went. Any other document
//! says its number, and 0 means that the ranks see no GPU.

use serde::{Deserialize, Serialize};

use super::{JobSpec, SpecDocument, framework::Framework};

/// Who has said how many GPUs the members of a job take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GpusSaid {
    /// The document, for at least one role.
    ByJob,
    /// Nobody yet. The first start decides.
    Open,
    /// The first start, by the nodes that there were.
    ByFleet,
}

/// What the document says. `None`: nothing, and the framework has one process on each node, which
/// takes what it sees.
pub(super) fn said(document: &SpecDocument, framework: Framework) -> Option<GpusSaid> {
    let mut of_roles = document.roles.iter().map(|role| role.gpus_per_node);
    let says = document.gpus_per_node.is_some() || of_roles.any(|gpus| gpus.is_some());
    match (says, framework) {
        (true, _) => Some(GpusSaid::ByJob),
        (false, Framework::Torch) => Some(GpusSaid::Open),
        (false, _) => None,
    }
}

impl JobSpec {
    /// Whether the first start decides how many GPUs the job takes.
    pub fn gpus_are_open(&self) -> bool {
        self.gpus == Some(GpusSaid::Open)
    }

    /// Whether a document of the job names the numbers. Otherwise it must leave them out, to be of
    /// the same job.
    pub fn says_gpus(&self) -> bool {
        match self.gpus {
            Some(said) => said != GpusSaid::Open,
            None => self.framework.is_torch() || self.gpus_max() > 0,
        }
    }

    /// Whether members without GPUs see none of their node's. Those of jobs that were accepted before
    /// anybody asked see all. Of worker pods the kubelet decides it.
    pub fn hides_gpus(&self) -> bool {
        self.template.is_none() && matches!(self.gpus, Some(GpusSaid::ByJob | GpusSaid::ByFleet))
    }

    /// Takes one GPU for each process, or none. Only for a job whose number is open.
    pub fn take_gpus(&mut self, one_each: bool) {
        let gpus = |procs: u32| if one_each { procs } else { 0 };
        self.gpus_per_node = gpus(self.proc_per_node);
        for role in &mut self.roles {
            role.gpus_per_node = gpus(role.proc_per_node);
        }
    }

    /// The same spec with the numbers of `accepted`, if this one leaves them out and nobody had said
    /// them there either.
    pub(super) fn with_gpus_of(&self, accepted: &JobSpec) -> JobSpec {
        let mut same = self.clone();
        let decided = matches!(accepted.gpus, Some(GpusSaid::Open | GpusSaid::ByFleet));
        if self.gpus_are_open() && decided {
            same.gpus_per_node = accepted.gpus_per_node;
            for (role, other) in same.roles.iter_mut().zip(&accepted.roles) {
                role.gpus_per_node = other.gpus_per_node;
            }
        }
        same
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{API_VERSION, JobDocument, KIND, Metadata, RoleDocument};

    fn checked(change: impl FnOnce(&mut SpecDocument)) -> JobSpec {
        let mut spec = SpecDocument {
            args: vec!["train.py".into()],
            proc_per_node: Some(4),
            ..SpecDocument::default()
        };
        change(&mut spec);
        let document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata {
                name: "a".into(),
                namespace: None,
            },
            spec,
        };
        document.check().unwrap().1
    }

    #[test]
    fn only_a_torch_job_that_says_nothing_is_open() {
        assert!(checked(|_| {}).gpus_are_open());
        assert!(!checked(|spec| spec.gpus_per_node = Some(0)).gpus_are_open());
        let of_tensorflow = |roles: Vec<RoleDocument>| {
            checked(|spec| {
                spec.framework = Some("tensorflow".into());
                (spec.proc_per_node, spec.roles) = (None, roles);
            })
        };
        let other = of_tensorflow(Vec::new());
        assert_eq!((other.gpus, other.hides_gpus()), (None, false));
        let role = |name: &str, gpus| RoleDocument {
            name: name.into(),
            gpus_per_node: gpus,
            ..RoleDocument::default()
        };
        let roles = |gpus| of_tensorflow(vec![role("ps", None), role("worker", gpus)]);
        // A parameter server that sees the GPUs of the workers beside it takes their memory.
        assert!(roles(Some(4)).hides_gpus());
        assert!(!roles(None).hides_gpus());
    }

    #[test]
    fn one_gpu_for_each_process_or_none() {
        let mut spec = checked(|_| {});
        assert!(!spec.hides_gpus(), "nothing is decided yet");
        spec.take_gpus(true);
        assert_eq!((spec.proc_per_node, spec.gpus_max()), (4, 4));
        spec.take_gpus(false);
        assert_eq!((spec.proc_per_node, spec.gpus_max()), (4, 0));
    }

    #[test]
    fn a_document_that_leaves_the_number_out_repeats_a_job_for_which_it_was_decided() {
        let open = checked(|_| {});
        let says = |gpus| checked(|spec| spec.gpus_per_node = Some(gpus));
        let mut decided = open.clone();
        decided.take_gpus(true);
        let waits = decided.clone();
        decided.gpus = Some(GpusSaid::ByFleet);
        let none: [&str; 0] = [];
        for accepted in [&open, &waits, &decided] {
            assert_eq!(accepted.differences(&open), none);
        }
        assert_eq!(decided.differences(&says(4)), none);
        // Somebody who asks for none while the job waits for GPUs wants another job.
        for (accepted, now) in [
            (&open, says(0)),
            (&decided, says(0)),
            (&says(8), open.clone()),
        ] {
            assert_eq!(accepted.differences(&now), ["spec.gpusPerNode"]);
        }
        // The job of an older coordinator stays as it was.
        let old = JobSpec {
            gpus: None,
            ..says(0)
        };
        assert!(!old.gpus_are_open() && !old.hides_gpus());
        assert_eq!(old.differences(&open), none);
    }
}
