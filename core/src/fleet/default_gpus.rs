//! How many GPUs a job takes that does not say it: one for each process, if as many nodes have them
//! as the job needs at least, else none.
//!
//! What nodes have counts, not what is free: a job waits for GPUs that others hold. It also waits for those
//! of a node that was lost, until the silence is as long as no passing disturbance is
//! ([`Policy::mass_loss_hold`]). Until the first start the question is asked again with each look at the
//! job, also when a generation of it was placed and never started.

use crate::{
    fleet::{
        job_turn::{Facts, JobTurn},
        policy::Policy,
        registry::Node,
        selected,
        worker_pod::is_pod,
    },
    node_report::{Gpu, NodeReport},
    spec::{GpusSaid, JobSpec},
    time::Timestamp,
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

/// The GPUs of a node that the job might get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Has {
    pub gpus: u32,
    /// Nobody waits for the node any more.
    pub given_up: bool,
}

pub(crate) fn decide(spec: &JobSpec, nodes: impl Iterator<Item = Has>) -> DefaultGpus {
    let of_roles = spec.roles.iter().map(|role| role.proc_per_node).max();
    let each = of_roles.unwrap_or(spec.proc_per_node).max(1);
    let (mut any, mut have) = (false, 0_u32);
    for Has { gpus, given_up } in nodes {
        any |= gpus > 0;
        let gpus = if given_up { 0 } else { gpus };
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

/// When nobody waits any more for a node that is lost. `None`: it is not lost.
fn given_up_at(node: &Node, policy: &Policy) -> Option<Timestamp> {
    let since = node.record.gone_since.unwrap_or(Timestamp(0));
    node.record.gone.then(|| since + policy.mass_loss_hold)
}

impl JobTurn<'_> {
    /// Before a job is placed that has not been started yet: the number that it would take now.
    pub(crate) fn propose_gpus(&mut self) {
        let spec = &self.job.spec;
        let kept = spec.gpus == Some(GpusSaid::ByFleet) && self.job.first_started.is_none();
        if !spec.gpus_are_open() && !kept {
            return;
        }
        let one_each = default_gpus(self.facts()) == DefaultGpus::OneEach;
        let spec = &mut self.job.spec;
        if kept && one_each == (spec.gpus_max() > 0) {
            return;
        }
        spec.gpus = Some(GpusSaid::Open);
        spec.take_gpus(one_each);
    }

    /// Looks again when the next node with GPUs is given up.
    pub(crate) fn wake_without_gpus(&mut self) {
        if !self.job.spec.gpus_are_open() {
            return;
        }
        let with_gpus = gpu_nodes(self.facts()).filter(|node| gpus_of(&node.report) > 0);
        let given_up = with_gpus.filter_map(|node| given_up_at(node, self.policy));
        if let Some(at) = given_up.filter(|at| *at > self.now).min() {
            self.wake(at);
        }
    }

    /// When it was placed: the number is the job's from now on.
    pub(crate) fn keep_gpus(&mut self) {
        if !self.job.spec.gpus_are_open() {
            return;
        }
        let decided = default_gpus(self.facts());
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
}

/// The nodes that take work, of hosts.
fn gpu_nodes(facts: Facts<'_>) -> impl Iterator<Item = &Node> {
    let spec = &facts.job.spec;
    let (selection, image) = (&spec.selection, spec.image.as_deref());
    let takes_work = move |node: &&Node| {
        !node.report.senses_only
            && !is_pod(&node.record.name)
            && selected::misfit(selection, (*node).into()).is_none()
            && selected::tainted(selection, &node.report, true).is_none()
            && selected::imageless(image, &node.report).is_none()
    };
    facts.nodes.iter().filter(takes_work)
}

pub(crate) fn default_gpus(facts: Facts<'_>) -> DefaultGpus {
    let has = |node: &Node| Has {
        gpus: gpus_of(&node.report),
        given_up: given_up_at(node, facts.policy).is_some_and(|at| at <= facts.now),
    };
    decide(&facts.job.spec, gpu_nodes(facts).map(has))
}

/// What to say of a job that waits for GPUs for which nobody has asked.
pub(crate) fn default_gpus_hint(facts: Facts<'_>) -> &'static str {
    let spec = &facts.job.spec;
    match spec.gpus_are_open() && spec.gpus_max() > 0 {
        true => {
            "; the job does not say how many GPUs it takes, so it waits for one for each process: gpusPerNode: 0 (--gpus-per-node 0) takes none"
        }
        false => "",
    }
}
