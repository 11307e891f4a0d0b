//! The folders in which the ranks of this node's jobs keep what they have compiled. `core::node::caches`
//! decides when one goes; ranks write what they want there, so it is removed through [`Folder`].

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use muster_core::{id::JobUid, node::caches, time::Timestamp};
use muster_runner::Folder;
use tracing::warn;

use crate::run_dir::Runs;

/// The jobs that have a folder, and when each last had a run or an order on this node.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    last_here: BTreeMap<JobUid, Timestamp>,
    /// Those of an earlier agent are known.
    listed: bool,
}

impl Caches {
    /// Notes which jobs are here now. Returns the folders to remove, and when to ask again.
    pub(crate) fn tend(
        &mut self,
        now: Timestamp,
        runs: &Runs,
        here: BTreeSet<JobUid>,
        over: &BTreeSet<JobUid>,
    ) -> (Vec<PathBuf>, Option<Timestamp>) {
        if !self.listed {
            self.listed = true;
            match runs.cached_jobs() {
                Ok(jobs) => self
                    .last_here
                    .extend(jobs.into_iter().map(|job| (job, now))),
                Err(e) => warn!("the compile caches of earlier jobs cannot be looked at: {e}"),
            }
        }
        let (gone, again) = caches::unneeded(now, &self.last_here, &here, over);
        for job in &gone {
            self.last_here.remove(job);
        }
        self.last_here
            .extend(here.into_iter().map(|job| (job, now)));
        (gone.iter().map(|job| runs.cache_dir(job)).collect(), again)
    }
}

/// Removes a folder. It may be large, so this is for a thread of its own.
pub(crate) fn remove(dir: PathBuf) {
    if let Err(e) = Folder::remove_run(&dir) {
        warn!(dir = %dir.display(), "compile caches cannot be removed: {e}");
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_jobs_folder_is_closed_found_again_after_a_restart_and_removed_with_what_ranks_put_there() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::write(&outside, "not theirs").unwrap();
        let runs = Runs::new(dir.path());
        let job = JobUid::from("a");
        runs.make_cache(&job).unwrap();
        let folder = runs.cache_dir(&job);
        let mode = fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::create_dir_all(folder.join("inductor/ab")).unwrap();
        std::os::unix::fs::symlink(&outside, folder.join("inductor/ab/link")).unwrap();
        runs.make_cache(&job).unwrap();
        assert!(
            folder.join("inductor/ab").exists(),
            "the next generation finds it"
        );
        assert_eq!(runs.open().unwrap(), [], "it is no run");

        let (here, none) = (BTreeSet::from([job.clone()]), BTreeSet::new());
        // An agent that has just started.
        let mut caches = Caches::default();
        let now = Timestamp(1_000_000);
        assert_eq!(caches.tend(now, &runs, here.clone(), &none), (vec![], None));
        let (gone, again) = caches.tend(now, &runs, BTreeSet::new(), &none);
        assert_eq!((gone, again), (vec![], Some(now + caches::LINGER)));
        let (gone, _) = caches.tend(now, &runs, BTreeSet::new(), &here);
        assert_eq!(gone, std::slice::from_ref(&folder));
        gone.into_iter().for_each(remove);
        assert!(!folder.exists() && outside.exists());
        assert_eq!(runs.cached_jobs().unwrap(), []);
    }
}
