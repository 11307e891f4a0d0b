//! `descendants.json`: every process below a runner, as the runner saw them last.
//!
//! A killed runner cannot prove its worker group dead, so its agent does. The agent finds a process
//! of the group by its cgroup, its environment, its ancestors, or this list. Only the list finds a
//! process that has left the cgroup, cleared its environment and lost its parent.
//!
//! The list is useful during one boot only, so it is never synced to the disk. A runner that cannot
//! replace the list removes it, because an outdated list would prove too much.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::folder::Folder;
use crate::procfs::Stat;
use crate::record::{self, DESCENDANTS, ReadError};

/// The most processes that are listed: 256 ranks with a shim and 30 loader processes each. The file
/// is then about 600 KiB long.
pub const MAX: usize = 256 * 32;

/// The content of `descendants.json`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Descendants {
    pub v: u32,
    pub boot_id: String,
    /// There were more than [`MAX`] processes, and the list leaves the others out.
    #[serde(default)]
    pub cut: bool,
    pub processes: Vec<Descendant>,
}

/// One process below a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Descendant {
    pub pid: i32,
    /// Clock ticks since boot.
    pub start_time: u64,
    /// Its session, or 0 for the runner's own session, to which strangers may belong.
    pub session: i32,
}

impl Descendants {
    /// Reads the list in a runner's directory. None: there is no list.
    pub fn read(dir: &Path) -> Result<Option<Descendants>, ReadError> {
        record::json(dir, DESCENDANTS)
    }

    /// Replaces the list in `dir`. If that fails, it removes the list.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let folder = match Folder::of_run(dir) {
            Ok(folder) => folder,
            Err(why) => {
                // There may be no descriptor left, and this needs none. An outdated list would prove too much.
                let _ = std::fs::remove_file(dir.join(DESCENDANTS));
                return Err(why);
            }
        };
        let content = muster_sealed::seal(serde_json::to_vec(self)?);
        let outcome = folder.replace_unsynced(DESCENDANTS, &content);
        if outcome.is_err() {
            let _ = folder.remove(DESCENDANTS);
        }
        outcome
    }

    /// The processes of `all` that belong to the group: those that are listed or `named`, the
    /// members of a listed session, and all descendants of these.
    pub fn living<'a>(&self, all: &'a [Stat], named: impl Fn(&Stat) -> bool) -> Vec<&'a Stat> {
        let known: BTreeMap<i32, u64> = self
            .processes
            .iter()
            .map(|p| (p.pid, p.start_time))
            .collect();
        let listed = |stat: &Stat| known.get(&stat.pid) == Some(&stat.start_time);
        // The kernel gives a session's number to no other process while the session has a member.
        // If a process that is not listed has the number as its pid, the listed session has ended.
        let taken: BTreeSet<i32> = all
            .iter()
            .filter(|s| !s.is_dead() && !listed(s))
            .map(|s| s.pid)
            .collect();
        let sessions: BTreeSet<i32> = self
            .processes
            .iter()
            .map(|p| p.session)
            .filter(|s| *s > 0 && !taken.contains(s))
            .collect();
        let mut ours: BTreeSet<i32> = BTreeSet::new();
        let mut found: Vec<&Stat> = Vec::new();
        loop {
            let fresh: Vec<&Stat> = all
                .iter()
                .filter(|s| !ours.contains(&s.pid))
                .filter(|s| {
                    ours.contains(&s.ppid) || sessions.contains(&s.session) || listed(s) || named(s)
                })
                .collect();
            if fresh.is_empty() {
                found.retain(|stat| !stat.is_dead());
                return found;
            }
            ours.extend(fresh.iter().map(|s| s.pid));
            found.extend(fresh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: i32, ppid: i32, session: i32, start_time: u64) -> Stat {
        Stat {
            pid,
            state: b'S',
            ppid,
            session,
            threads: 1,
            start_time,
        }
    }

    fn listed(processes: &[(i32, u64, i32)]) -> Descendants {
        let processes = processes
            .iter()
            .map(|&(pid, start_time, session)| Descendant {
                pid,
                start_time,
                session,
            })
            .collect();
        Descendants {
            v: 1,
            boot_id: "b".into(),
            cut: false,
            processes,
        }
    }

    fn no_one() -> Vec<i32> {
        Vec::new()
    }

    fn pids(list: &Descendants, all: &[Stat], named: i32) -> Vec<i32> {
        let mut pids: Vec<i32> = list
            .living(all, |s| s.pid == named)
            .iter()
            .map(|s| s.pid)
            .collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn the_listed_the_named_and_what_descends_from_them() {
        let all = [
            stat(1, 0, 1, 0),
            stat(10, 1, 10, 50),
            stat(11, 10, 11, 60),
            stat(12, 11, 11, 70),
            stat(20, 1, 20, 80),
        ];
        assert_eq!(pids(&listed(&[(10, 50, 0)]), &all, 0), [10, 11, 12]);
        assert_eq!(pids(&listed(&[]), &all, 20), [20]);
        assert_eq!(
            pids(&listed(&[(10, 49, 0)]), &all, 0),
            no_one(),
            "a pid that came again is a stranger"
        );
    }

    #[test]
    fn members_of_a_listed_session_belong_to_it_until_its_number_comes_again() {
        // Process 11 led the session and has ended; 30 was forked after the last look.
        let list = listed(&[(11, 60, 11), (12, 61, 11)]);
        let all = [stat(1, 0, 1, 0), stat(30, 1, 11, 99)];
        assert_eq!(pids(&list, &all, 0), [30]);
        let again = [stat(1, 0, 1, 0), stat(11, 1, 11, 98), stat(30, 11, 11, 99)];
        assert_eq!(pids(&list, &again, 0), no_one());
        let ours = [stat(1, 0, 1, 0), stat(11, 1, 11, 60), stat(30, 1, 11, 99)];
        assert_eq!(pids(&list, &ours, 0), [11, 30]);
        assert_eq!(
            pids(&listed(&[(12, 61, 0)]), &[stat(40, 1, 0, 1)], 0),
            no_one(),
            "kernel threads have session 0"
        );
    }

    #[test]
    fn a_list_that_cannot_be_replaced_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Descendants::read(dir.path()).unwrap(), None);
        let list = listed(&[(12, 61, 0)]);
        list.write(dir.path()).unwrap();
        assert_eq!(Descendants::read(dir.path()).unwrap(), Some(list.clone()));
        // A list cannot take the place of a directory.
        std::fs::remove_file(dir.path().join(DESCENDANTS)).unwrap();
        std::fs::create_dir(dir.path().join(DESCENDANTS)).unwrap();
        list.write(dir.path()).unwrap_err();
        assert_eq!(Descendants::read(dir.path()).unwrap(), None);
    }
}
