//! How many GPUs a job takes that does not say it: one for each process, if as many nodes have them
//! as the job needs at least, else none.
//!
//! What nodes have counts, not what is free: a job waits for GPUs that others hold. Until the first start
//! the question is asked again with each look at the job.

use crate::{
    fleet::{job_turn::JobTurn, registry::Node, worker_pod::is_pod},
    node_report::{Gpu, NodeReport},
    spec::{GpusSaid, JobSpec},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DefaultGpus {
    OneEach,
    /// No node has any.
    NoneThere,
    /// Fewer nodes (or members of shared nodes) than the job needs could have one for each process.
    TooFew {
        need: u32,
        have: u32,
        each: u32,
    },
}

/// `nodes`: how many GPUs each node has that the job might get.
pub(crate) fn decide(spec: &JobSpec, nodes: impl Iterator<Item = u32>) -> DefaultGpus {
    let of_roles = spec.roles.iter().map(|role| role.proc_per_node).max();
    let each = of_roles.unwrap_or(spec.proc_per_node).max(1);
    let (mut any, mut have) = (false, 0_u32);
    for gpus in nodes {
        any |= gpus > 0;
        have = have.saturating_add(match spec.packs() {
            true => gpus / each,
            false => u32::from(gpus >= each),
        });
    }
    let need = spec.min_replicas;
    match (any, have >= need) {
        (false, _) => DefaultGpus::NoneThere,
        (true, true) => DefaultGpus::OneEach,
        (true, false) => DefaultGpus::TooFew { need, have, each },
    }
}

/// The node's GPUs, with those that are sick. A MIG instance counts as one.
fn gpus_of(report: &NodeReport) -> u32 {
    let parts = |gpu: &Gpu| match &gpu.mig {
        Some(mig) if mig.enabled => mig.instances.len() as u32,
        _ => 1,
    };
    report.gpus.iter().map(parts).sum()
}

impl JobTurn<'_> {
    fn default_gpus(&self) -> DefaultGpus {
        let takes_work = |node: &&Node| !node.report.senses_only && !is_pod(&node.record.name);
        let nodes = self.nodes.iter().filter(takes_work);
        decide(&self.job.spec, nodes.map(|node| gpus_of(&node.report)))
    }

    /// Before a job is placed for the first time: the number that it would take now.
    pub(crate) fn propose_gpus(&mut self) {
        if self.job.spec.gpus_are_open() {
            let one_each = self.default_gpus() == DefaultGpus::OneEach;
            self.job.spec.take_gpus(one_each);
        }
    }

    /// When it was placed: the number is the job's from now on.
    pub(crate) fn keep_gpus(&mut self) {
        if !self.job.spec.gpus_are_open() {
            return;
        }
        let decided = self.default_gpus();
        self.job.spec.gpus = Some(GpusSaid::ByFleet);
        let counts = self.job.spec.counts();
        match decided {
            DefaultGpus::NoneThere => {}
            DefaultGpus::OneEach => {
                let message =
                    "takes one GPU for each process, because the job does not say how many; gpusPerNode: 0 (--gpus-per-node 0) takes none"
                        .to_owned();
                self.note("DefaultGpus", message);
            }
            DefaultGpus::TooFew { need, have, each } => {
                let gpus = if each == 1 { "GPU" } else { "GPUs" };
                let message = format!(
                    "runs without GPUs, because the job does not say how many it takes, and the fleet has {have} of at least {need} {counts} with {each} {gpus}, one for each process; gpusPerNode (--gpus-per-node) says how many"
                );
                self.warn("DefaultGpus", message);
            }
        }
    }

    /// What to say of a job that waits for GPUs for which nobody has asked.
    pub(crate) fn default_gpus_hint(&self) -> &'static str {
        let spec = &self.job.spec;
        match spec.gpus_are_open() && spec.gpus_max() > 0 {
            true => {
                "; the job does not say how many GPUs it takes, so it waits for one for each process: gpusPerNode: 0 (--gpus-per-node 0) takes none"
            }
            false => "",
        }
    }
}
