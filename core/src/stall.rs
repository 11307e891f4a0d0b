//! Jobs that stand still: from when on one is suspected, what two looks at its ranks say, and who is named.
//!
//! A rank is *still* if it shows no step and no other output, and its processes read or write no files. A generation is
//! *suspected* when all its living ranks have been still, and idle, for longer than a limit ([`limit()`]). Then the stacks of
//! all ranks are taken twice, and [`verdict()`] finds out whether it *stalls*, and because of whom.
//!
//! A rank that uses a processor is not idle. It may spin in a collective, as gloo and NCCL do while they wait, or work. It
//! spins if both looks find it at the same place of the same wait; anywhere else it works, and the job is not stalled.
//! So a script that loops for ever without a word, outside any collective, is never called stalled.
//!
//! Nothing here asks, waits or acts. Values go in, and values come out.

mod kept;
mod limit;
mod stage;
mod verdict;
mod watch;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

pub use kept::{Named, Place, Stack, Stall, Why};
pub use limit::{Habit, STEPS_KNOWN, UNKNOWN, limit};
pub use stage::{Stage, stage};
pub use verdict::{Asked, Verdict, verdict};
pub use watch::{SAME, Todo, Watch};

/// What its node says of a rank that is still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Still {
    /// Since when it has shown no output, and its processes have read or written no files.
    pub since: Timestamp,
    /// Since when its processes have hardly used a processor. `None`: they use one.
    pub idle_since: Option<Timestamp>,
}

/// A generation of which nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspicion {
    /// Since when no rank has shown anything or touched a file.
    pub since: Timestamp,
    /// Since when, beyond that, no processor was used, but by ranks that use one still.
    pub idle: Timestamp,
    /// When the looks are due.
    pub due: Timestamp,
}

/// When to look at the ranks. `None`: one of them moves, or none lives. `ranks`: what is known of each living one.
pub fn suspicion(ranks: impl Iterator<Item = Option<Still>>, limit: Duration) -> Option<Suspicion> {
    let all: Vec<Still> = ranks.collect::<Option<_>>()?;
    let since = all.iter().map(|still| still.since).max()?;
    // A processor that was used until a moment ago is the last thing that has moved.
    let idle = all.iter().filter_map(|still| still.idle_since).max();
    let idle = idle.map_or(since, |idle| idle.max(since));
    Some(Suspicion {
        since,
        idle,
        due: idle + limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn still(since: u64, idle_since: Option<u64>) -> Option<Still> {
        Some(Still {
            since: Timestamp(since),
            idle_since: idle_since.map(Timestamp),
        })
    }

    #[test]
    fn one_rank_that_moves_is_enough() {
        let limit = Duration::from_micros(10);
        let all = |ranks: &[Option<Still>]| suspicion(ranks.iter().copied(), limit);
        assert_eq!(all(&[still(1, Some(1)), None]), None);
        assert_eq!(all(&[]), None, "of nobody nothing is said");
        let last = all(&[still(1, Some(2)), still(5, Some(3))]);
        let must = Suspicion {
            since: Timestamp(5),
            idle: Timestamp(5),
            due: Timestamp(15),
        };
        assert_eq!(last, Some(must), "the last that moved counts");
    }

    #[test]
    fn work_of_a_processor_is_movement_until_it_ends() {
        let limit = Duration::from_micros(10);
        let found = suspicion([still(1, Some(40)), still(2, None)].into_iter(), limit);
        let found = found.map(|found| (found.since, found.due));
        assert_eq!(found, Some((Timestamp(2), Timestamp(50))));
    }
}
