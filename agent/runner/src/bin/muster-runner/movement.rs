//! Whether ranks move: their output, the files that their processes read and write, and the processor that they use.
//!
//! A rank that prints costs nothing here. Of a silent one, `/proc` is read for each of its processes, once in two seconds.
//! What is not known counts as movement, so nobody is suspected for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_runner::procfs::{Counters, Stat};
use muster_runner::wire::StillStatus;

use crate::time::{self, micros};

/// The gap between two looks.
const GAP: Duration = Duration::from_secs(2);
/// Looks take at most one part in this many of the runner's time.
const SHARE: u32 = 200;
/// A rank is told to be still when it has not moved for so long. A shorter time would be news at each slow step.
const STILL_AFTER: Duration = Duration::from_secs(4);
/// Less than this is written by what only watches: metrics of the machine, a line in a log.
const WRITTEN_MIN: u64 = 64 << 10;
/// Programs that only watch read as they start. Data come in larger pieces.
const READ_MIN: u64 = 1 << 20;
/// The share of one processor above which a rank is busy, and below which it is idle again, in percent. Threads that wait
/// for the network use some.
const BUSY: u128 = 20;
const IDLE: u128 = 10;

/// A rank that lives.
pub(crate) struct Living {
    pub(crate) rank: u32,
    pub(crate) pid: i32,
    /// Bytes of output so far.
    pub(crate) bytes: u64,
}

#[derive(Default)]
pub(crate) struct Movement {
    ranks: BTreeMap<u32, Watched>,
    next: Duration,
}

struct Watched {
    pid: i32,
    bytes: u64,
    /// When it last moved, as far as looks have seen it.
    moved: Duration,
    /// Of each of its processes, as the last look found them.
    before: Option<(Duration, BTreeMap<i32, Counters>)>,
    idle_since: Option<Duration>,
    still: bool,
}

impl Movement {
    /// Looks if it is time. True: there is news of a rank. `all`: every process below the runner.
    pub(crate) fn mind(
        &mut self,
        now: Duration,
        living: &[Living],
        all: &[Stat],
        counters: impl Fn(i32) -> Option<Counters>,
    ) -> bool {
        if now < self.next {
            return false;
        }
        let begun = time::of_thread();
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for stat in all {
            children.entry(stat.ppid).or_default().push(stat.pid);
        }
        let running = all.iter().filter(|stat| stat.state == b'R');
        let running: BTreeSet<i32> = running.map(|stat| stat.pid).collect();
        let known = |rank: &u32| living.iter().any(|living| living.rank == *rank);
        self.ranks.retain(|rank, _| known(rank));
        let mut news = false;
        for living in living {
            let watched = self.ranks.entry(living.rank);
            let watched = watched.or_insert_with(|| Watched::begin(living, now));
            let before = (watched.still, watched.idle_since.is_some());
            watched.look(living, now, &running, || {
                tree(living.pid, &children, &counters)
            });
            let after = (watched.still, watched.idle_since.is_some());
            news |= after != before && (before.0 || after.0);
        }
        let took = time::of_thread().saturating_sub(begun);
        self.next = now + GAP.max(took * SHARE);
        news
    }

    /// What is told of a rank. `None`: it moves. What it has printed since the last look is movement, too.
    pub(crate) fn status(&self, rank: u32, pid: i32, bytes: u64) -> Option<StillStatus> {
        let watched = self.ranks.get(&rank)?;
        let same = (watched.pid, watched.bytes) == (pid, bytes);
        (watched.still && same).then(|| StillStatus {
            since_us: micros(watched.moved),
            idle_since_us: watched.idle_since.map(micros),
        })
    }
}

/// The processes of a rank. `None`: what the rank itself has done may not be known.
fn tree(
    top: i32,
    children: &BTreeMap<i32, Vec<i32>>,
    counters: impl Fn(i32) -> Option<Counters>,
) -> Option<BTreeMap<i32, Counters>> {
    let mut found = BTreeMap::from([(top, counters(top)?)]);
    let (mut next, mut seen) = (vec![top], BTreeSet::from([top]));
    while let Some(pid) = next.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if seen.insert(*child) {
                next.push(*child);
                found.extend(counters(*child).map(|counters| (*child, counters)));
            }
        }
    }
    Some(found)
}

impl Watched {
    fn begin(living: &Living, now: Duration) -> Self {
        Self {
            pid: living.pid,
            bytes: living.bytes,
            moved: now,
            before: None,
            idle_since: None,
            still: false,
        }
    }

    fn look(
        &mut self,
        living: &Living,
        now: Duration,
        running: &BTreeSet<i32>,
        tree: impl Fn() -> Option<BTreeMap<i32, Counters>>,
    ) {
        if (self.pid, self.bytes) != (living.pid, living.bytes) {
            *self = Self::begin(living, now);
            return;
        }
        let Some(after) = tree() else {
            *self = Self::begin(living, now);
            return;
        };
        if let Some((at, before)) = &self.before {
            let (mut read, mut written, mut cpu) = (0, 0, Duration::ZERO);
            // A process that was not there before tells nothing: it reads its own program.
            for (before, after) in
                { after.iter() }.filter_map(|(pid, after)| Some((before.get(pid)?, after)))
            {
                read += after.read.saturating_sub(before.read);
                written += after.written.saturating_sub(before.written);
                cpu += after.cpu.saturating_sub(before.cpu);
            }
            if written >= WRITTEN_MIN || read >= READ_MIN {
                self.moved = now;
            }
            let over = now.saturating_sub(*at).as_micros().max(1);
            // Where many want a processor, one that works gets little of it.
            let wants = after.keys().any(|pid| running.contains(pid));
            match cpu.as_micros() * 100 / over {
                _ if wants => self.idle_since = None,
                share if share >= BUSY => self.idle_since = None,
                share if share < IDLE => {
                    self.idle_since.get_or_insert(*at);
                }
                _ => {}
            }
            self.still = now >= self.moved + STILL_AFTER;
        }
        self.before = Some((now, after));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn living(bytes: u64) -> [Living; 1] {
        [Living {
            rank: 3,
            pid: 7,
            bytes,
        }]
    }

    fn used(cpu_ms: u64, written: u64, read: u64) -> Option<Counters> {
        Some(Counters {
            cpu: Duration::from_millis(cpu_ms),
            written,
            read,
        })
    }

    /// Looks every two seconds. Each step: bytes of output, and what the rank has used so far.
    fn seen(steps: &[(u64, Option<Counters>)]) -> Vec<Option<StillStatus>> {
        let mut movement = Movement::default();
        let mut found = Vec::new();
        for (step, (bytes, counters)) in (0..).zip(steps) {
            movement.mind(S(2 * step), &living(*bytes), &[], |_| *counters);
            found.push(movement.status(3, 7, *bytes));
        }
        found
    }

    #[test]
    fn a_rank_that_does_nothing_is_still_and_idle() {
        let found = seen(&[(5, used(0, 0, 0)); 5]);
        assert_eq!(found[..2], [None, None]);
        let must = Some(StillStatus {
            since_us: 0,
            idle_since_us: Some(0),
        });
        assert_eq!(found[2..], vec![must; 3]);
    }

    #[test]
    fn a_rank_that_prints_writes_or_reads_moves() {
        let prints: Vec<_> = (0..6).map(|n| (n, used(0, 0, 0))).collect();
        assert!(seen(&prints).iter().all(Option::is_none));
        let writes: Vec<_> = (0..6).map(|n| (1, used(0, n * WRITTEN_MIN, 0))).collect();
        assert!(seen(&writes).iter().all(Option::is_none));
        let reads: Vec<_> = (0..6).map(|n| (1, used(0, 0, n * READ_MIN))).collect();
        assert!(seen(&reads).iter().all(Option::is_none));
        let watches: Vec<_> = (0..6).map(|n| (1, used(0, n * 1_000, n * 5_000))).collect();
        assert!(seen(&watches)[5].is_some());
    }

    #[test]
    fn what_may_not_be_known_is_movement() {
        assert!(seen(&[(1, None); 6]).iter().all(Option::is_none));
    }

    #[test]
    fn a_busy_rank_is_still_and_not_idle() {
        let spins: Vec<_> = (0..5).map(|n| (1, used(n * 1_900, 0, 0))).collect();
        let busy = seen(&spins)[4].clone();
        assert_eq!(busy.map(|still| still.idle_since_us), Some(None));
        // It has worked for two looks, and waits since.
        let ends: Vec<_> = [0, 1_900, 3_800, 3_800, 3_800]
            .map(|cpu| (1, used(cpu, 0, 0)))
            .to_vec();
        let idle = seen(&ends)[4].clone();
        assert_eq!(idle.and_then(|still| still.idle_since_us), Some(4_000_000));
    }

    #[test]
    fn whoever_wants_a_processor_is_not_idle() {
        let wants = [Stat {
            pid: 7,
            state: b'R',
            ppid: 1,
            session: 7,
            threads: 1,
            start_time: 1,
        }];
        let mut movement = Movement::default();
        for step in 0..4 {
            movement.mind(S(2 * step), &living(1), &wants, |_| used(step * 20, 0, 0));
        }
        let starved = movement.status(3, 7, 1);
        assert_eq!(starved.map(|still| still.idle_since_us), Some(None));
    }

    #[test]
    fn output_ends_it_at_once_and_children_count() {
        let stat = |pid, ppid| Stat {
            pid,
            state: b'S',
            ppid,
            session: 7,
            threads: 1,
            start_time: 1,
        };
        let all = [stat(7, 1), stat(8, 7), stat(9, 8), stat(5, 1)];
        let mut movement = Movement::default();
        let mut news = Vec::new();
        for step in 0..4 {
            let counters = |pid| match pid {
                9 => used(0, step * WRITTEN_MIN, 0),
                5 => used(0, step * WRITTEN_MIN, 0),
                _ => used(0, 0, 0),
            };
            news.push(movement.mind(S(2 * step), &living(1), &all, counters));
        }
        assert_eq!(movement.status(3, 7, 1), None, "a grandchild writes");
        assert!(!news.contains(&true));
        for step in 4..8 {
            news.push(movement.mind(S(2 * step), &living(1), &all, |_| used(0, 0, 0)));
        }
        assert!(movement.status(3, 7, 1).is_some() && news.contains(&true));
        assert_eq!(movement.status(3, 7, 2), None, "it has printed since");
        assert_eq!(movement.status(3, 8, 1), None, "it was started again");
    }
}
