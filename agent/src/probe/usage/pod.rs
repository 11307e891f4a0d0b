//! What ranks use that live in another container of the agent's pod. Its init process is asked, and
//! may not answer: then that look knows nothing of them.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use muster_core::usage::RankUsage;
use muster_runner::{
    place::TreeUsage,
    pod::{self, Question, Used},
};
use tokio::sync::watch;

use super::{patient::Patient, processes::Seen};
use crate::probe::held::HeldRun;

pub(super) struct Pod {
    used: Patient<(Instant, Used)>,
    before: Option<(Instant, Used)>,
}

impl Pod {
    pub(super) fn open(volume: PathBuf, runs: watch::Receiver<Vec<HeldRun>>) -> Self {
        let ask = move || {
            let pids = runs.borrow().iter().flat_map(living).collect();
            let used = pod::ask(&volume, &Question::Usage { pids }).ok()?;
            Some((Instant::now(), used))
        };
        Self {
            used: Patient::start("usage pod", ask),
            before: None,
        }
    }

    pub(super) fn ask(&mut self) {
        self.used.ask();
    }

    pub(super) fn look(&mut self, runs: &[HeldRun], until: Instant) -> Seen {
        let Some((at, used)) = self.used.answer(until) else {
            return Seen::default();
        };
        let seen = seen(runs, &used, at, self.before.as_ref());
        self.before = Some((at, used));
        seen
    }
}

fn living(run: &HeldRun) -> impl Iterator<Item = i32> {
    let living = run.ranks.iter().filter(|rank| rank.alive);
    living.filter_map(|rank| i32::try_from(rank.pid).ok())
}

/// A rate is known of a process that was seen before.
fn seen(runs: &[HeldRun], used: &Used, at: Instant, before: Option<&(Instant, Used)>) -> Seen {
    let by_pid: BTreeMap<i32, &TreeUsage> = used.trees.iter().map(|one| (one.pid, one)).collect();
    let rate = |now: &TreeUsage| {
        let (then, before) = before?;
        let mut all = before.trees.iter().chain([&before.all]);
        let was = all.find(|one| (one.pid, one.start_time) == (now.pid, now.start_time))?;
        milli(
            now.cpu_ms.saturating_sub(was.cpu_ms),
            at.duration_since(*then),
        )
    };
    let mut ranks = Vec::new();
    for run in runs {
        for rank in run.ranks.iter().filter(|rank| rank.alive) {
            let Some(tree) = i32::try_from(rank.pid)
                .ok()
                .and_then(|pid| by_pid.get(&pid))
            else {
                continue;
            };
            ranks.push(RankUsage {
                run: run.id(),
                rank: rank.rank,
                memory_bytes: tree.memory_bytes,
                cpu_milli: rate(tree),
            });
        }
    }
    Seen {
        ranks,
        muster_milli: rate(&used.all),
    }
}

/// Thousandths of a CPU.
fn milli(spent_ms: u64, elapsed: Duration) -> Option<u32> {
    let elapsed = elapsed.as_millis().max(1);
    u32::try_from(u128::from(spent_ms) * 1_000 / elapsed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::held::HeldRank;

    fn tree(pid: i32, start_time: u64, cpu_ms: u64) -> TreeUsage {
        TreeUsage {
            pid,
            start_time,
            cpu_ms,
            memory_bytes: 7,
            processes: 1,
        }
    }

    #[test]
    fn a_rate_is_that_of_the_same_process_since_the_last_look() {
        let rank = |rank, pid, alive| HeldRank { rank, pid, alive };
        let run = HeldRun {
            ranks: vec![
                rank(0, 40, true),
                rank(1, 41, true),
                rank(2, 42, false),
                rank(3, 43, true),
            ],
            ..HeldRun::default()
        };
        let runs = [run];
        let all = |ms| tree(1, 5, ms);
        let first = Used {
            trees: vec![tree(40, 9, 1_000), tree(41, 9, 1_000)],
            all: all(4_000),
        };
        let second = Used {
            // 41 is another process now; nothing is known of 43.
            trees: vec![tree(40, 9, 3_000), tree(41, 10, 500), tree(42, 9, 1)],
            all: all(9_000),
        };
        let at = Instant::now();
        let later = at + Duration::from_secs(2);

        let alone = seen(&runs, &first, at, None);
        let rates = |seen: &Seen| -> Vec<_> {
            seen.ranks
                .iter()
                .map(|one| (one.rank, one.cpu_milli))
                .collect()
        };
        assert_eq!(rates(&alone), [(0, None), (1, None)]);
        assert_eq!((alone.muster_milli, alone.ranks[0].memory_bytes), (None, 7));
        let after = seen(&runs, &second, later, Some(&(at, first)));
        assert_eq!(rates(&after), [(0, Some(1_000)), (1, None)]);
        assert_eq!(after.muster_milli, Some(2_500));
    }
}
