//! What Slurm says of the allocation in which a command runs: its variables, read and judged. Nothing is
//! asked or started here.

use std::env;

use crate::fail::Failure;

/// An allocation, as a command within it sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allocation {
    pub(super) job: String,
    pub(super) nodes: u32,
}

impl Allocation {
    pub(super) fn here() -> Result<Self, Failure> {
        Self::of(|name| env::var(name).ok()).map_err(Failure::usage)
    }

    fn of(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let job = job_of(&get).ok_or(
            "not in an allocation of Slurm (SLURM_JOB_ID is not set); run this in an sbatch script or within salloc",
        )?;
        let tasks = get("SLURM_STEP_NUM_TASKS").and_then(|tasks| tasks.parse().ok());
        if tasks.unwrap_or(1) > 1 {
            return Err(
                "this command runs once for the whole allocation: leave out the srun in front of it"
                    .into(),
            );
        }
        let nodes = ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"];
        let nodes = nodes.into_iter().find_map(&get);
        let nodes = nodes.ok_or(
            "SLURM_JOB_NUM_NODES is not set, so how many nodes the allocation has is not known",
        )?;
        match nodes.parse() {
            Ok(nodes) if nodes > 0 => Ok(Self { job, nodes }),
            _ => Err(format!(
                "SLURM_JOB_NUM_NODES is not a number of nodes: {nodes:?}"
            )),
        }
    }
}

fn job_of(get: impl Fn(&str) -> Option<String>) -> Option<String> {
    get("SLURM_JOB_ID").filter(|job| is_number(job))
}

/// Slurm's numbers of jobs. They become names of directories.
pub(super) fn is_number(text: &str) -> bool {
    (1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The number of the allocation in which this command runs.
pub(super) fn job_here() -> Option<String> {
    job_of(|name| env::var(name).ok())
}

/// Whether srun may have a variable. Those of the batch script that are defaults of its flags must not change
/// what our steps are: with SLURM_LABELIO they would print other lines, with SRUN_CPUS_PER_TASK have one
/// processor.
pub(super) fn srun_may_see(name: &str) -> bool {
    const KEPT: [&str; 10] = [
        "SLURM_CONF",
        "SLURM_JWT",
        "SLURM_CLUSTER_NAME",
        "SLURM_NODELIST",
        "SLURM_NNODES",
        "SLURM_TASKS_PER_NODE",
        "SLURM_SUBMIT_DIR",
        "SLURM_SUBMIT_HOST",
        "SLURM_RESTART_COUNT",
        "SLURM_TMPDIR",
    ];
    let is_of_slurm = name.starts_with("SLURM_") || name.starts_with("SRUN_");
    !is_of_slurm || name.starts_with("SLURM_JOB_") || KEPT.contains(&name)
}

/// How many nodes the allocation has in which this command runs.
pub(crate) fn nodes_here() -> Result<i64, Failure> {
    Allocation::here().map(|it| i64::from(it.nodes))
}

/// The agent's --gpus, from the variables of a step. Where Slurm lets a step see its own GPUs only, their
/// indices count those, as NVML's do.
pub(super) fn gpus(get: impl Fn(&str) -> Option<String>) -> String {
    let given = ["CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"];
    let given = given.into_iter().find_map(get).unwrap_or_default();
    match given.as_str() {
        "" | "NoDevFiles" | "-1" => "none".into(),
        _ => given,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<'a>(all: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| {
            let found = all.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    #[test]
    fn an_allocation_is_read_from_slurms_variables() {
        let read = |all: &[(&str, &str)]| Allocation::of(with(all));
        let expected = Allocation {
            job: "4711".into(),
            nodes: 3,
        };
        let modern = [("SLURM_JOB_ID", "4711"), ("SLURM_JOB_NUM_NODES", "3")];
        assert_eq!(read(&modern).unwrap(), expected);
        let old = [("SLURM_JOB_ID", "4711"), ("SLURM_NNODES", "3")];
        assert_eq!(read(&old).unwrap(), expected);
        for (wrong, why) in [
            (&[][..], "not in an allocation"),
            (
                &[("SLURM_JOB_ID", "../x"), ("SLURM_NNODES", "3")],
                "not in an allocation",
            ),
            (&[("SLURM_JOB_ID", "1")], "not set"),
            (
                &[("SLURM_JOB_ID", "1"), ("SLURM_NNODES", "0")],
                "not a number",
            ),
            (
                &[("SLURM_JOB_ID", "1"), ("SLURM_NNODES", "n")],
                "not a number",
            ),
        ] {
            let told = read(wrong).unwrap_err();
            assert!(told.contains(why), "{wrong:?}: {told}");
        }
    }

    #[test]
    fn a_node_has_the_gpus_that_slurm_gave_and_no_others() {
        for (all, expected) in [
            (
                &[("CUDA_VISIBLE_DEVICES", "0,1"), ("SLURM_JOB_GPUS", "4,5")][..],
                "0,1",
            ),
            (
                &[("CUDA_VISIBLE_DEVICES", "GPU-aa,GPU-bb")],
                "GPU-aa,GPU-bb",
            ),
            (&[("SLURM_JOB_GPUS", "4,5")], "4,5"),
            (&[("CUDA_VISIBLE_DEVICES", "NoDevFiles")], "none"),
            (&[("CUDA_VISIBLE_DEVICES", "")], "none"),
            (&[], "none"),
        ] {
            assert_eq!(gpus(with(all)), expected, "{all:?}");
        }
    }

    #[test]
    fn one_command_serves_all_tasks_and_its_steps_are_as_we_say() {
        let task = [
            ("SLURM_JOB_ID", "1"),
            ("SLURM_NNODES", "2"),
            ("SLURM_STEP_NUM_TASKS", "2"),
        ];
        let told = Allocation::of(with(&task)).unwrap_err();
        assert!(told.contains("leave out the srun"), "{told}");
        let gone = [
            "SLURM_LABELIO",
            "SRUN_CPUS_PER_TASK",
            "SLURM_GPUS_PER_TASK",
            "SLURM_GPUS",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_DISTRIBUTION",
        ];
        assert!(!gone.into_iter().any(srun_may_see));
        let kept = ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_CONF", "PATH"];
        assert!(kept.into_iter().all(srun_may_see));
    }
}
