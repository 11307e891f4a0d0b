//! Proof that nothing of a lost runner lives.
//!
//! A killed runner takes its launcher with it (parent-death signal), its shims kill the ranks, and
//! its keeper kills all its other descendants. That takes a moment, and all of them can be killed
//! at once. So this module kills too: all processes in the run's cgroup, if it had one; those that
//! name the run's directory in their environment; those that the runner had listed as its
//! descendants; and all descendants of these.
//!
//! A process is not dead just because it was not found. The proof is the keeper's record, an empty
//! cgroup, or a complete list without a living process. Without one of them the death is not
//! proven. No timer declares a run dead.

use std::{
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::{
    Descendants, Folder, ReadError, RunnerIdentity, alive, kept,
    leftovers::{self, Leftovers},
    procfs::{self, Stat},
    record::{self, Swept},
    wire::Hold,
};

/// The variable in which every process of a run finds the run's directory.
pub const RUN_DIR: &str = "MUSTER_RUN_DIR";

/// How many looks there are, at most. Each finds processes that were forked during the previous
/// look. All processes found are stopped and fork no more.
const LOOKS: usize = 10;

/// What is left of a run whose runner is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Left {
    /// Its death is proven.
    Nothing,
    /// Some processes lived and were killed. These are those that can be named.
    Living(Vec<i32>),
    /// Nothing was found, but there is no proof that nothing lives, for this reason.
    Unproven(String),
}

/// A run's directory, and how its processes are recognised.
#[derive(Debug)]
pub struct Remains<'a> {
    pub dir: &'a Path,
    /// The directory that its first processes were started with.
    pub was: Option<PathBuf>,
    /// None: there never was a runner, or its record cannot be read.
    pub runner: Option<&'a RunnerIdentity>,
    /// The runner lives and does not obey: it is killed too.
    pub with_runner: bool,
}

impl Remains<'_> {
    /// Kills everything of the run, and says what was left. Call it until it returns
    /// [`Left::Nothing`].
    pub fn kill_all(&self) -> io::Result<Left> {
        let disobedient = self
            .runner
            .filter(|runner| self.with_runner && alive(runner));
        if let Some(runner) = disobedient {
            kill_runner(runner);
        }
        if self.held_a_launcher() {
            return self.after_launcher();
        }
        let in_cgroup = match self.runner.map(leftovers::clear).transpose()? {
            None | Some(Leftovers::Unknown | Leftovers::Empty) => false,
            Some(Leftovers::Killed | Leftovers::Held) => true,
        };
        // Checked before its record is read, because the keeper writes the record and then ends.
        let kept = self.runner.is_some_and(kept);
        let boot_id = procfs::boot_id()?;
        let list = match Descendants::read(self.dir) {
            Ok(list) => Ok(list.filter(|list| list.boot_id == boot_id)),
            Err(e) => Err(e),
        };
        let mut living = self.kill(list.as_ref().ok().and_then(Option::as_ref))?;
        living.extend(disobedient.filter(|runner| alive(runner)).map(|r| r.pid));
        if in_cgroup || kept || !living.is_empty() {
            return Ok(Left::Living(living));
        }
        let swept = Swept::read(self.dir)
            .ok()
            .flatten()
            .is_some_and(|swept| swept.boot_id == boot_id);
        Ok(if swept {
            Left::Nothing
        } else {
            self.if_none_is_found(list)
        })
    }

    fn kill(&self, list: Option<&Descendants>) -> io::Result<Vec<i32>> {
        let nothing = Descendants::default();
        let list = list.unwrap_or(&nothing);
        let own = std::process::id() as i32;
        let mut living: Vec<Stat> = Vec::new();
        for _ in 0..LOOKS {
            let all = procfs::all()?;
            let known = |stat: &Stat| {
                living
                    .iter()
                    .any(|l| (l.pid, l.start_time) == (stat.pid, stat.start_time))
            };
            let found = list.living(&all, |stat| known(stat) || self.names(stat));
            let fresh: Vec<Stat> = found
                .into_iter()
                .filter(|s| s.pid != own && !known(s))
                .copied()
                .collect();
            if fresh.is_empty() {
                break;
            }
            fresh
                .iter()
                .for_each(|stat| procfs::send(stat, Signal::STOP));
            living.extend(fresh);
        }
        living
            .iter()
            .for_each(|stat| procfs::send(stat, Signal::KILL));
        Ok(living.iter().map(|stat| stat.pid).collect())
    }

    fn held_a_launcher(&self) -> bool {
        let hold = record::json::<Hold>(self.dir, record::HOLD);
        hold.is_ok_and(|hold| hold.is_some_and(|hold| hold.launcher))
    }

    /// What is left of a launcher. Only its runner and its keeper know the chains that it has forked,
    /// and leave them alone: nothing is searched for by its environment, or by a list that may be older
    /// than a chain.
    fn after_launcher(&self) -> io::Result<Left> {
        let Some(runner) = self.runner else {
            return Ok(Left::Nothing);
        };
        if alive(runner) || kept(runner) {
            let pids = [Some(runner.pid), runner.keeper.as_ref().map(|k| k.pid)];
            return Ok(Left::Living(pids.into_iter().flatten().collect()));
        }
        let swept = Swept::read(self.dir).ok().flatten();
        let has_outcome = |folder: Folder| folder.has(record::OUTCOME);
        let ended = Folder::of_run(self.dir).is_ok_and(has_outcome)
            || is_gone(&std::fs::symlink_metadata(self.dir));
        let boot_id = procfs::boot_id()?;
        Ok(
            match ended || swept.is_some_and(|swept| swept.boot_id == boot_id) {
                true => Left::Nothing,
                false => Left::Unproven("its runner and its keeper were killed".into()),
            },
        )
    }

    /// Whether the process has the run's directory in its environment.
    fn names(&self, stat: &Stat) -> bool {
        let dirs = [Some(self.dir), self.was.as_deref()];
        let is_mark = |entry: &[u8]| {
            let value = entry
                .strip_prefix(RUN_DIR.as_bytes())
                .and_then(|rest| rest.strip_prefix(b"="));
            value.is_some_and(|value| {
                dirs.iter()
                    .flatten()
                    .any(|dir| dir.as_os_str().as_bytes() == value)
            })
        };
        // The environment of another user's process cannot be read. Such a process belongs to the
        // run only if it has changed its user. Then the list names it, or one of its ancestors.
        procfs::environment(stat.pid)
            .is_ok_and(|environment| environment.split(|b| *b == 0).any(is_mark))
    }

    /// What is left if no living process was found. The list of descendants may prove that nothing is.
    fn if_none_is_found(&self, list: Result<Option<Descendants>, ReadError>) -> Left {
        let about = |name| Folder::of_run(self.dir).and_then(|folder| folder.about(name));
        match (self.runner, &list) {
            // An operator has checked it and moved the directory away.
            _ if is_gone(&std::fs::symlink_metadata(self.dir)) => Left::Nothing,
            (Some(runner), _) if runner.cgroup.is_some() || !runner.lists_descendants => {
                Left::Nothing
            }
            // No runner was ever ready, so nothing was ever started.
            (None, Ok(None)) if is_gone(&about(record::RUNNER)) => Left::Nothing,
            (_, Ok(Some(list))) if !list.cut => Left::Nothing,
            (_, Ok(Some(_))) => {
                Left::Unproven("it had more processes than its runner lists".into())
            }
            (_, Ok(None)) => Left::Unproven("its runner left no list of its processes".into()),
            (_, Err(e)) => Left::Unproven(chain(e)),
        }
    }
}

/// Whether it is certainly not there. What cannot be looked at proves nothing.
fn is_gone(at: &io::Result<std::fs::Metadata>) -> bool {
    at.as_ref()
        .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

/// Kills a runner that lives, and what is in its cgroup. A runner that waits for a disk ends only
/// when the disk answers, and what it holds does not wait for that.
fn kill_runner(runner: &RunnerIdentity) {
    // Whoever has stopped the runner may have stopped its keeper, which proves the group dead.
    if let Some(keeper) = &runner.keeper {
        let _ = procfs::signal(keeper.pid, keeper.start_time, Signal::CONT);
    }
    let _ = procfs::signal(runner.pid, runner.start_time, Signal::KILL);
    if let Some(cgroup) = &runner.cgroup {
        // Where the kernel cannot kill a cgroup, what is in it is found like the rest.
        let _ = leftovers::kill(cgroup);
    }
}

/// The error and what it comes from, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;
    use crate::descendants::Descendant;

    fn remains<'a>(dir: &'a Path, runner: Option<&'a RunnerIdentity>) -> Remains<'a> {
        Remains {
            dir,
            was: None,
            runner,
            with_runner: false,
        }
    }

    /// A runner that is gone.
    fn gone() -> RunnerIdentity {
        RunnerIdentity {
            start_time: 1,
            ..RunnerIdentity::own("test".into()).unwrap()
        }
    }

    fn list(processes: Vec<Descendant>) -> Descendants {
        Descendants {
            v: 1,
            boot_id: procfs::boot_id().unwrap(),
            cut: false,
            processes,
        }
    }

    #[test]
    fn kills_what_carries_the_name_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("a-g1"), dir.path().join("a-g12"));
        let start = |dir: &Path| {
            Command::new("/bin/sleep")
                .arg("600")
                .env_clear()
                .env(RUN_DIR, dir)
                .spawn()
                .unwrap()
        };
        let (mut mine, mut other) = (start(&one), start(&two));
        // Before its exec the child has this process's environment.
        while remains(&one, None).kill_all().unwrap() == Left::Nothing {}
        assert!(!mine.wait().unwrap().success());
        assert_eq!(remains(&one, None).kill_all().unwrap(), Left::Nothing);
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn kills_what_is_listed_whatever_its_environment() {
        let dir = tempfile::tempdir().unwrap();
        let start = || {
            Command::new("/bin/sleep")
                .arg("600")
                .env_clear()
                .spawn()
                .unwrap()
        };
        let (mut mine, mut other) = (start(), start());
        let stat = |child: &std::process::Child| Stat::of(child.id() as i32).unwrap();
        let entry = |stat: Stat| Descendant {
            pid: stat.pid,
            start_time: stat.start_time,
            session: 0,
        };
        let another = Descendant {
            start_time: stat(&other).start_time + 1,
            ..entry(stat(&other))
        };
        list(vec![entry(stat(&mine)), another])
            .write(dir.path())
            .unwrap();
        let runner = gone();
        assert_eq!(
            remains(dir.path(), Some(&runner)).kill_all().unwrap(),
            Left::Living(vec![mine.id() as i32])
        );
        assert!(!mine.wait().unwrap().success());
        assert_eq!(
            remains(dir.path(), Some(&runner)).kill_all().unwrap(),
            Left::Nothing
        );
        assert_eq!(
            other.try_wait().unwrap(),
            None,
            "its pid belonged to another process of the run once"
        );
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_looked_at_is_not_gone() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("runs/a-g1");
        let left = remains(&gone, None).kill_all().unwrap();
        assert_eq!(left, Left::Nothing, "somebody has moved it away");
        std::os::unix::fs::symlink("runs", dir.path().join("runs")).unwrap();
        let left = remains(&gone, None).kill_all().unwrap();
        assert!(matches!(left, Left::Unproven(_)), "{left:?}");
    }

    #[test]
    fn without_a_proof_nothing_is_dead() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let runner = gone();
        let without = Left::Unproven("its runner left no list of its processes".into());
        assert_eq!(remains(dir, Some(&runner)).kill_all().unwrap(), without);
        assert_eq!(
            remains(dir, None).kill_all().unwrap(),
            Left::Nothing,
            "no runner was ever there"
        );
        fs::write(dir.join(record::RUNNER), "damaged").unwrap();
        assert_eq!(remains(dir, None).kill_all().unwrap(), without);
        Descendants {
            cut: true,
            ..list(Vec::new())
        }
        .write(dir)
        .unwrap();
        let cut = Left::Unproven("it had more processes than its runner lists".into());
        assert_eq!(remains(dir, Some(&runner)).kill_all().unwrap(), cut);
        Descendants {
            boot_id: "another".into(),
            ..list(Vec::new())
        }
        .write(dir)
        .unwrap();
        assert_eq!(remains(dir, Some(&runner)).kill_all().unwrap(), without);
        fs::write(dir.join(record::DESCENDANTS), "damaged").unwrap();
        let Left::Unproven(why) = remains(dir, Some(&runner)).kill_all().unwrap() else {
            panic!("it is proven")
        };
        assert!(why.contains("descendants.json: damaged at byte"), "{why}");
        let swept = Swept {
            v: 1,
            boot_id: "another".into(),
            at_us: 1,
        };
        record::write_atomic(dir, record::SWEPT, &swept).unwrap();
        assert!(matches!(
            remains(dir, Some(&runner)).kill_all().unwrap(),
            Left::Unproven(_)
        ));
        record::write_atomic(
            dir,
            record::SWEPT,
            &Swept {
                boot_id: procfs::boot_id().unwrap(),
                ..swept
            },
        )
        .unwrap();
        assert_eq!(
            remains(dir, Some(&runner)).kill_all().unwrap(),
            Left::Nothing,
            "its keeper says so"
        );
        fs::remove_file(dir.join(record::SWEPT)).unwrap();
        list(Vec::new()).write(dir).unwrap();
        assert_eq!(
            remains(dir, Some(&runner)).kill_all().unwrap(),
            Left::Nothing
        );
        fs::remove_file(dir.join(record::DESCENDANTS)).unwrap();
        let older = RunnerIdentity {
            lists_descendants: false,
            ..runner
        };
        assert_eq!(
            remains(dir, Some(&older)).kill_all().unwrap(),
            Left::Nothing,
            "an older runner is judged as before"
        );
    }
}
