//! Decides how long a node keeps what the ranks of a job have compiled.
//!
//! The folder of a job's compile caches outlives its generations: without it each of them compiles
//! again what the one before has compiled. It goes when the job has left the node.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{id::JobUid, run::Assignment, time::Timestamp};

/// How long the folder stays after the job's last run here has ended badly. A job that waits for
/// its restart, or whose node was away, comes back within this time. Compiling again takes minutes
/// for a large model.
pub const LINGER: Duration = Duration::from_secs(600);

/// The most bytes of one job's folder when a generation starts. Above that it is emptied: torch
/// itself never removes anything there. A large model takes some hundred MB for each shape that it
/// was compiled for.
pub const BYTES_MAX: u64 = 8 << 30;

/// The end of the folder's name. It lies beside the job's runs, so that the workers of a pod reach it
/// and it outlives their container.
pub const SUFFIX: &str = "-cache";

/// The variables by which torch's compilers find their caches, with the folder below the job's.
const VARIABLES: [(&str, &str); 2] = [
    ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ("TRITON_CACHE_DIR", "triton"),
];

/// Whether a variable names a folder of these.
pub fn is_variable(name: &str) -> bool {
    VARIABLES.iter().any(|(known, _)| *known == name)
}

/// The variables that a launch gets, unless it has one of them: whoever names one folder lets the
/// other follow from it, as torch does. `run_dir` is the directory of the run.
pub fn variables(
    assignment: &Assignment,
    run_dir: &str,
    env: &BTreeMap<String, String>,
) -> Vec<(String, String)> {
    let named = VARIABLES.iter().any(|(name, _)| env.contains_key(*name));
    match run_dir.rsplit_once('/') {
        Some((runs, _)) if assignment.framework.is_torch() && !named => VARIABLES
            .iter()
            .map(|(name, folder)| {
                let value = format!("{runs}/{}{SUFFIX}/{folder}", assignment.run.job);
                ((*name).to_owned(), value)
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The folders that are not needed any more, and when to ask again. `last_here` has the jobs with a
/// folder and when they were last here; `here` those that have a run or an order here now, and
/// `over` those that have ended well.
pub fn unneeded(
    now: Timestamp,
    last_here: &BTreeMap<JobUid, Timestamp>,
    here: &BTreeSet<JobUid>,
    over: &BTreeSet<JobUid>,
) -> (Vec<JobUid>, Option<Timestamp>) {
    let due = |job: &JobUid, last: &Timestamp| match over.contains(job) {
        true => now,
        false => *last + LINGER,
    };
    let waiting = || last_here.iter().filter(|(job, _)| !here.contains(*job));
    let (gone, later) = waiting().partition::<Vec<_>, _>(|(job, last)| due(job, last) <= now);
    (
        gone.into_iter().map(|(job, _)| job.clone()).collect(),
        later.into_iter().map(|(job, last)| due(job, last)).min(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> JobUid {
        JobUid::from(name)
    }

    #[test]
    fn a_launch_gets_both_folders_or_none() {
        let assignment = crate::node::turn::tests::assignment("a", 3);
        let of = |env: &[(&str, &str)]| {
            let env = env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            variables(&assignment, "/state/runs/a-g3", &env)
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            of(&[("HOME", "/h")]),
            [
                pair("TORCHINDUCTOR_CACHE_DIR", "/state/runs/a-cache/inductor"),
                pair("TRITON_CACHE_DIR", "/state/runs/a-cache/triton"),
            ]
        );
        for (name, _) in VARIABLES {
            assert_eq!(of(&[(name, "/mine")]), [], "{name} is the user's");
        }
    }

    #[test]
    fn a_folder_stays_for_ten_minutes_after_its_job_and_goes_at_once_when_that_is_over() {
        let set = |names: &[&str]| names.iter().map(|name| job(name)).collect::<BTreeSet<_>>();
        let last = BTreeMap::from([(job("a"), Timestamp(0)), (job("b"), Timestamp(5_000_000))]);
        let at = |second: u64, here: &[&str], over: &[&str]| {
            unneeded(Timestamp(second * 1_000_000), &last, &set(here), &set(over))
        };
        let due = |second: u64| Some(Timestamp(second * 1_000_000));
        assert_eq!(at(10, &["a", "b"], &[]), (vec![], None));
        assert_eq!(at(10, &["a"], &[]), (vec![], due(605)));
        assert_eq!(at(10, &[], &[]), (vec![], due(600)));
        assert_eq!(at(600, &[], &[]), (vec![job("a")], due(605)));
        assert_eq!(at(10, &[], &["b"]), (vec![job("b")], due(600)));
        assert_eq!(at(10, &["b"], &["b"]).0, [], "it was submitted again");
    }
}
