//! How many processors nothing uses.

use std::{fs, thread};

use muster_core::{node::launcher::SPARE_LOOK, time::Timestamp};

/// The unit of the times in `/proc/stat`: USER_HZ, which is 100 on every platform that Linux has
/// today.
const TICKS_PER_SECOND: u64 = 100;

/// Two looks at how long processors were idle, and what they told.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    before: Option<(Timestamp, Idle)>,
    found: u32,
}

/// How long each processor was idle since the machine has booted, together, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Idle(u64);

impl Spare {
    /// How many processors were idle since an earlier look, at most as many as this process may use
    /// beside so many ranks. It is 0 until two looks are far enough apart. In a container others on
    /// the machine count, too.
    pub(crate) fn look(&mut self, now: Timestamp, ranks: usize) -> u32 {
        let may_use = thread::available_parallelism().map_or(1, |count| count.get());
        let due = |(at, _): (Timestamp, Idle)| at + SPARE_LOOK <= now;
        if self.before.is_none_or(due) {
            let text = fs::read_to_string("/proc/stat").unwrap_or_default();
            self.note(now, idle(&text));
        }
        let beside = u32::try_from(may_use.saturating_sub(ranks)).unwrap_or(u32::MAX);
        self.found.min(beside)
    }

    fn note(&mut self, now: Timestamp, seen: Option<Idle>) {
        let before = std::mem::replace(&mut self.before, seen.map(|idle| (now, idle)));
        self.found = match (before, seen) {
            // After a longer pause it says nothing about now.
            (Some((at, before)), Some(idle)) if now <= at + SPARE_LOOK * 4 => {
                let ticks = idle.0.saturating_sub(before.0);
                let all = now.since(at).as_millis() as u64 * TICKS_PER_SECOND / 1000;
                // A processor that was idle for half of the time counts.
                u32::try_from((ticks + all / 2) / all.max(1)).unwrap_or(u32::MAX)
            }
            _ => 0,
        };
    }
}

/// The idle time in `/proc/stat` (proc(5)): the fourth number of its first line, and the fifth, which
/// is the time in which nothing ran because a disk was awaited.
fn idle(stat: &str) -> Option<Idle> {
    let mut words = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace();
    let mut number = |at| words.nth(at)?.parse::<u64>().ok();
    Some(Idle(number(3)?.saturating_add(number(0)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Timestamp = Timestamp(60_000_000);

    #[test]
    fn idle_time_is_read() {
        assert_eq!(
            idle("cpu  10 20 30 4000 50 0 0 0 0 0\ncpu0 1 2"),
            Some(Idle(4050))
        );
        for other in [
            "",
            "cpu",
            "cpu  10 20 30",
            "intr 1 2 3 4 5 6",
            "cpu  a b c d e",
        ] {
            assert_eq!(idle(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_processor_is_spare_if_it_was_idle_between_two_looks() {
        let after = |ticks: u64, millis: u64| {
            let mut spare = Spare::default();
            spare.note(AT, Some(Idle(1000)));
            assert_eq!(spare.found, 0, "one look says nothing");
            let later = Timestamp(AT.0 + millis * 1000);
            spare.note(later, Some(Idle(1000 + ticks)));
            spare.found
        };
        assert_eq!((after(0, 300), after(14, 300), after(15, 300)), (0, 0, 1));
        assert_eq!((after(59, 300), after(300, 300)), (2, 10));
        assert_eq!(after(100_000, 100_000), 0, "that was long ago");
        let mut spare = Spare::default();
        spare.note(AT, Some(Idle(1000)));
        spare.note(AT + SPARE_LOOK, None);
        assert_eq!(spare.found, 0, "it cannot be read");
    }
}
