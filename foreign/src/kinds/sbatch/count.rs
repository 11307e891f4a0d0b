//! How many nodes a script asks for, and how many tasks and GPUs each has; and what of it the variables of
//! Slurm say.

use std::collections::BTreeMap;

use super::{asked::Asked, values::OfSlurm};
use crate::{options::Options, tree::Field, verdict::Verdicts};

/// How many nodes the script has, and how many tasks and GPUs each.
#[derive(Clone, Debug)]
pub(super) struct Count {
    /// At least and at most so many.
    pub(super) nodes: (i64, i64),
    pub(super) nodes_at: Field<'static>,
    /// GPUs of each node. `None`: the script does not say.
    pub(super) gpus: Option<(i64, Field<'static>)>,
    /// Tasks of each node.
    pub(super) tasks: i64,
}

impl Count {
    pub(super) fn of(asked: &Asked, start: &Field<'static>, log: &mut Verdicts) -> Count {
        let (nodes, nodes_at) = match (&asked.nodes, &asked.tasks, &asked.tasks_per_node) {
            (Some((nodes, at)), ..) => {
                log.taken(
                    at,
                    match nodes.0 == nodes.1 {
                        true => "spec.replicas",
                        false => "spec.minReplicas and spec.maxReplicas",
                    },
                );
                (*nodes, at.clone())
            }
            (None, Some((tasks, at)), Some((each, _))) => match tasks % each {
                0 => ((tasks / each, tasks / each), at.clone()),
                _ => {
                    log.refuse(at, format!("is {tasks} tasks, which is no multiple of the {each} of each node; add --nodes"));
                    ((1, 1), at.clone())
                }
            },
            (None, Some((tasks, at)), None) if *tasks > 1 => {
                log.refuse(
                    at,
                    format!("is {tasks} tasks on as many nodes as Slurm likes; add --nodes"),
                );
                ((1, 1), at.clone())
            }
            _ => ((1, 1), start.clone()),
        };
        let tasks = tasks_per_node(asked, nodes, log);
        let mut count = Count {
            nodes,
            nodes_at,
            gpus: None,
            tasks,
        };
        count.gpus = count.gpus(asked, log);
        count
    }

    fn is_fixed(&self) -> bool {
        self.nodes.0 == self.nodes.1
    }

    /// GPUs of each node.
    fn gpus(&self, asked: &Asked, log: &mut Verdicts) -> Option<(i64, Field<'static>)> {
        if let Some((count, at)) = &asked.gpus_per_node {
            log.taken(at, "spec.gpusPerNode");
            return Some((*count, at.clone()));
        }
        if let Some((count, at)) = &asked.gpus {
            let whole = self.is_fixed() && count % self.nodes.1 == 0;
            match whole {
                true => log.taken(at, "spec.gpusPerNode, the same on each node"),
                false => log.refuse(at, format!("is {count} GPUs in all, which is not the same number on each node; give --gpus-per-node instead")),
            }
            return Some((count / self.nodes.1, at.clone()));
        }
        let (each, at) = asked.gpus_per_task.as_ref()?;
        match self.tasks > 1 {
            true => log.warn(at, "is part of spec.gpusPerNode: each rank sees all GPUs of its node, not only its own as device 0; take that of LOCAL_RANK"),
            false => log.taken(at, "spec.gpusPerNode"),
        }
        Some((each.saturating_mul(self.tasks), at.clone()))
    }
}

/// Tasks on each node.
pub(super) fn tasks_per_node(asked: &Asked, nodes: (i64, i64), log: &mut Verdicts) -> i64 {
    match (&asked.tasks_per_node, &asked.tasks) {
        (Some((each, at)), all) => {
            log.taken(at, "part of spec.procPerNode");
            if let Some((_, at)) = all {
                log.note(at, "is not used: --ntasks-per-node says it");
            }
            *each
        }
        (None, Some((all, at))) => match nodes.0 == nodes.1 && all % nodes.1 == 0 {
            true => {
                log.taken(at, "part of spec.procPerNode, the same on each node");
                all / nodes.1
            }
            false => {
                log.refuse(at, format!("is {all} tasks in all, which is not the same number on each node; give --ntasks-per-node instead"));
                1
            }
        },
        (None, None) => 1,
    }
}

/// The variables of Slurm, as far as they can be said here.
pub(super) fn of_slurm(
    asked: &Asked,
    count: &Count,
    name: &str,
    options: &Options,
) -> BTreeMap<&'static str, OfSlurm> {
    let is = |value: String| OfSlurm::Is(value);
    let fixed = |value: i64| match count.is_fixed() {
        true => is(value.to_string()),
        false => OfSlurm::Rank,
    };
    let tasks = count.nodes.1.saturating_mul(count.tasks);
    let mut known = BTreeMap::from([
        ("SLURM_NNODES", fixed(count.nodes.1)),
        ("SLURM_JOB_NUM_NODES", fixed(count.nodes.1)),
        ("SLURM_NTASKS", fixed(tasks)),
        ("SLURM_NPROCS", fixed(tasks)),
        ("SLURM_NTASKS_PER_NODE", is(count.tasks.to_string())),
        ("SLURM_JOB_ID", is(name.to_owned())),
        ("SLURM_JOBID", is(name.to_owned())),
    ]);
    for name in [
        "SLURM_PROCID",
        "SLURM_NODEID",
        "SLURM_LOCALID",
        "SLURM_RESTART_COUNT",
        "SLURMD_NODENAME",
        "SLURM_JOB_USER",
    ] {
        known.insert(name, OfSlurm::Rank);
    }
    if let Some((gpus, _)) = &count.gpus {
        for name in ["SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"] {
            known.insert(name, is(gpus.to_string()));
        }
        if count.is_fixed() {
            let all = gpus.saturating_mul(count.nodes.1);
            known.insert("SLURM_GPUS", is(all.to_string()));
        }
    }
    for (name, value) in [
        ("SLURM_CPUS_PER_TASK", &asked.cpus_per_task),
        ("SLURM_GPUS_PER_TASK", &asked.gpus_per_task),
    ] {
        if let Some((value, _)) = value {
            known.insert(name, is(value.to_string()));
        }
    }
    if let Some((said, _)) = &asked.name {
        known.insert("SLURM_JOB_NAME", is(said.clone()));
    }
    if let Some(partition) = &asked.partition {
        known.insert("SLURM_JOB_PARTITION", is(partition.clone()));
    }
    if !options.here.is_empty() {
        known.insert("SLURM_SUBMIT_DIR", is(options.here.clone()));
    }
    known
}
