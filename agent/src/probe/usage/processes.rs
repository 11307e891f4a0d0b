//! Process trees: what each rank uses, and how much of the CPUs Muster uses.
//!
//! CPU time is counted per tree, including processes that its members have reaped (`cutime`). So a
//! worker that starts a process for each batch is counted fully.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    time::Instant,
};

use muster_core::usage::RankUsage;
use sysinfo::{Pid, Process, ProcessRefreshKind, ProcessesToUpdate, System};

use crate::probe::held::HeldRun;

/// The prefix of the names of all agents' programs. Several agents may share this machine, and all
/// count.
const OURS: &str = "muster-";
/// 64 levels are deeper than any real tree. The bound ends a walk that a reused pid makes circular.
const DEPTH_MAX: usize = 64;
/// CPU time of all processes that ever belonged to a tree, by the pid and the start time of the
/// process at its top.
type Spent = BTreeMap<(u32, u64), u64>;

pub(super) struct Processes {
    system: System,
    own: Pid,
    /// The times of the previous look, in milliseconds.
    before: Option<(Instant, Spent)>,
}

/// One look.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) ranks: Vec<RankUsage>,
    /// Thousandths of a CPU that all agents of this machine, and the processes they have started,
    /// used since the previous look.
    pub(super) muster_milli: Option<u32>,
}

impl Processes {
    pub(super) fn open() -> Result<Self, sysinfo::Error> {
        Ok(Self {
            system: System::new()?,
            own: Pid::from_u32(std::process::id()),
            before: None,
        })
    }

    pub(super) fn look(&mut self, runs: &[HeldRun]) -> Seen {
        // Threads do not count as processes here. Each further fact would cost another file per
        // process.
        let times = ProcessRefreshKind::nothing().with_cpu().without_tasks();
        self.system
            .refresh_processes_specifics(ProcessesToUpdate::All, true, times);
        let at = Instant::now();
        let children = self.children();
        let mut spent = Spent::new();
        let mut muster = Vec::new();
        // Each process is asked only once, so that a rank's time is never larger than its agent's.
        let mut each = HashMap::new();
        for top in self.tops() {
            let tree = tree(top, &children);
            muster.extend(self.key(top));
            let all = self.spent(&tree, &mut each);
            spent.extend(self.key(top).map(|key| (key, all)));
        }
        let mut ranks = Vec::new();
        for run in runs {
            let id = run.id();
            for rank in run.ranks.iter().filter(|rank| rank.alive) {
                let top = Pid::from_u32(rank.pid);
                let Some(key) = self.key(top) else { continue };
                let tree = tree(top, &children);
                let used = *spent
                    .entry(key)
                    .or_insert_with(|| self.spent(&tree, &mut each));
                let cpu_milli = self.since(key, used, at);
                let memory_bytes = self.memory(&tree);
                ranks.push(RankUsage {
                    run: id.clone(),
                    rank: rank.rank,
                    memory_bytes,
                    cpu_milli,
                });
            }
        }
        // A tree that is new since the previous look has spent all its time since then.
        let of =
            |key: &(u32, u64)| self.rate(spent[key].saturating_sub(self.spent_before(*key)), at);
        let muster_milli = self
            .before
            .is_some()
            .then(|| muster.iter().filter_map(of).fold(0, u32::saturating_add));
        self.before = Some((at, spent));
        Seen {
            ranks,
            muster_milli,
        }
    }

    /// The topmost process of each of our trees.
    fn tops(&self) -> Vec<Pid> {
        let ours = |pid: &Pid, process: &Process| {
            *pid == self.own || process.name().to_string_lossy().starts_with(OURS)
        };
        let all = self.system.processes();
        let has_one_above = |process: &Process| {
            let mut above = process.parent();
            for _ in 0..DEPTH_MAX {
                let Some((pid, parent)) = above.and_then(|pid| Some((pid, all.get(&pid)?))) else {
                    return false;
                };
                if ours(&pid, parent) {
                    return true;
                }
                above = parent.parent();
            }
            false
        };
        all.iter()
            .filter(|(pid, process)| ours(pid, process) && !has_one_above(process))
            .map(|(pid, _)| *pid)
            .collect()
    }

    fn children(&self) -> HashMap<Pid, Vec<Pid>> {
        let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
        for (pid, process) in self.system.processes() {
            if let Some(parent) = process.parent() {
                children.entry(parent).or_default().push(*pid);
            }
        }
        children
    }

    fn key(&self, pid: Pid) -> Option<(u32, u64)> {
        self.system
            .process(pid)
            .map(|process| (pid.as_u32(), process.start_time()))
    }

    /// CPU time of a tree. `each` holds the processes that were already asked in this look.
    fn spent(&self, tree: &[Pid], each: &mut HashMap<Pid, u64>) -> u64 {
        let ask = |pid: &Pid| {
            self.system
                .process(*pid)
                .map_or(0, |process| process.accumulated_cpu_time() + reaped(*pid))
        };
        tree.iter()
            .map(|pid| *each.entry(*pid).or_insert_with(|| ask(pid)))
            .sum()
    }

    fn spent_before(&self, key: (u32, u64)) -> u64 {
        self.before
            .as_ref()
            .and_then(|(_, spent)| spent.get(&key))
            .copied()
            .unwrap_or(0)
    }

    /// The use of a tree since the previous look. None if the tree is new.
    fn since(&self, key: (u32, u64), used: u64, at: Instant) -> Option<u32> {
        let before = *self.before.as_ref()?.1.get(&key)?;
        self.rate(used.saturating_sub(before), at)
    }

    fn rate(&self, spent: u64, at: Instant) -> Option<u32> {
        let elapsed = at
            .duration_since(self.before.as_ref()?.0)
            .as_millis()
            .max(1);
        u32::try_from(u128::from(spent) * 1_000 / elapsed).ok()
    }

    fn memory(&mut self, tree: &[Pid]) -> u64 {
        let memory = ProcessRefreshKind::nothing().with_memory().without_tasks();
        self.system
            .refresh_processes_specifics(ProcessesToUpdate::Some(tree), false, memory);
        tree.iter()
            .filter_map(|pid| self.system.process(*pid))
            .map(Process::memory)
            .sum()
    }
}

/// A process and all that descends from it.
fn tree(top: Pid, children: &HashMap<Pid, Vec<Pid>>) -> Vec<Pid> {
    let (mut tree, mut known) = (vec![top], HashSet::from([top]));
    let mut next = 0;
    while next < tree.len() {
        // A pid that was reused during the look may appear to be its own ancestor.
        tree.extend(
            children
                .get(&tree[next])
                .into_iter()
                .flatten()
                .filter(|pid| known.insert(**pid)),
        );
        next += 1;
    }
    tree
}

/// Milliseconds of CPU time that the reaped children of a process had used. sysinfo does not report
/// it: it is in fields 16 and 17 of `/proc/PID/stat` (proc(5)), in ticks of a hundredth of a
/// second.
fn reaped(pid: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name
        .split_ascii_whitespace()
        .skip(16 - 3)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum::<u64>()
        * 10
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::probe::held::HeldRank;

    /// A shell that runs a script. It is killed together with the processes that it has started.
    struct Shell(Child);

    impl Shell {
        fn run(script: &str) -> Self {
            let child = Command::new("/bin/sh")
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn();
            Self(child.unwrap())
        }

        fn held(&self) -> HeldRun {
            let ranks = vec![HeldRank {
                rank: 3,
                pid: self.0.id(),
                alive: true,
            }];
            HeldRun {
                uid: "job-a".into(),
                generation: 2,
                ranks,
                ..HeldRun::default()
            }
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            // Its child reads the shell's input and ends when the input ends.
            drop(self.0.stdin.take());
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_rank_is_charged_for_what_descends_from_it() {
        let alone = Shell::run("exec cat");
        let with_child = Shell::run("cat; :");
        let mut processes = Processes::open().unwrap();
        let of_child = |processes: &mut Processes| {
            let seen = processes.look(&[with_child.held()]);
            let rank = seen.ranks.first().cloned().unwrap();
            assert_eq!(
                (rank.run.job.as_str(), rank.run.generation.0, rank.rank),
                ("job-a", 2, 3)
            );
            rank.memory_bytes
        };
        let one = processes.look(&[alone.held()]).ranks[0].memory_bytes;
        assert!(one > 0);
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        while tree(Pid::from_u32(with_child.0.id()), &processes.children()).len() < 2
            || of_child(&mut processes) <= one
        {
            assert!(Instant::now() < deadline, "its child is never counted");
            of_child(&mut processes);
        }
    }

    #[test]
    fn what_short_lived_processes_have_spent_stays_with_their_rank() {
        let busy =
            Shell::run("while :; do (i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done); done");
        let (mut processes, top) = (Processes::open().unwrap(), Pid::from_u32(busy.0.id()));
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        assert_eq!(
            processes.look(&[busy.held()]).muster_milli,
            None,
            "one look says nothing of a rate"
        );
        let mut counted = false;
        loop {
            let seen = processes.look(&[busy.held()]);
            // Here this test's own process is the agent, and the shell is its child. So are the
            // processes of other tests: when one of them ends between two looks, what it had spent is
            // missing until it is reaped.
            let rank = seen.ranks[0].cpu_milli;
            counted |= rank > Some(0) && seen.muster_milli >= rank;
            let living = tree(top, &processes.children());
            let own: u64 = living
                .iter()
                .filter_map(|pid| processes.system.process(*pid))
                .map(Process::accumulated_cpu_time)
                .sum();
            let reaped = processes.spent(&living, &mut HashMap::new()) > own + 200;
            if reaped && counted {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "the dead are forgotten ({reaped}), or the rank is not Muster's ({counted}): {seen:?}"
            );
        }
    }

    #[test]
    fn a_rank_that_has_ended_has_no_usage() {
        // The pid may belong to another process by now, here to this shell.
        let stranger = Shell::run("exec cat");
        let mut run = stranger.held();
        run.ranks[0].alive = false;
        assert_eq!(Processes::open().unwrap().look(&[run]).ranks, []);
    }
}
