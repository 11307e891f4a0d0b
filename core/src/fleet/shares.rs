//! What one namespace may ask of the coordinator, so that its users cannot shut out those of another:
//! a number of jobs, and a rate at which it submits new ones; and the rate at which one caller may ask what would happen.
//!
//! A rate is a bucket for each namespace or caller. It is full at first, each submission or question takes one out, and it is
//! filled again at the rate. It is kept as one moment: when the bucket will be full again (GCRA, as ATM
//! Forum's Traffic Management 4.0 has it). Nothing of it is stored.

use std::{collections::BTreeMap, time::Duration};

use crate::{fleet::policy::Rate, time::Timestamp};

/// The largest share with which namespaces that want so much take no more than `room` together, if each
/// takes at most its share (max-min fairness). Whoever wants less than that has all it wants.
pub fn fair_share(wanted: impl IntoIterator<Item = usize>, room: usize) -> usize {
    let mut wanted: Vec<usize> = wanted.into_iter().collect();
    wanted.sort_unstable();
    let (mut room, mut left) = (room, wanted.len());
    for wants in wanted {
        if wants > room / left {
            return room / left;
        }
        room -= wants;
        left -= 1;
    }
    usize::MAX
}

/// The most buckets that are kept one by one. Whoever comes beyond that shares one: a client may make up a name for each call.
const BUCKETS_MAX: usize = 1_000;

/// A bucket for each namespace or caller.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    /// When each is full again. Those that are full are not kept.
    full_at: BTreeMap<String, Timestamp>,
}

impl Buckets {
    /// Takes one out of this bucket. An error: the bucket is empty, and has one again after so long.
    pub(crate) fn take(&mut self, of: &str, rate: Rate, now: Timestamp) -> Result<(), Duration> {
        self.full_at.retain(|_, at| *at > now);
        let is_own = self.full_at.contains_key(of) || self.full_at.len() < BUCKETS_MAX;
        let of = if is_own { of } else { "" };
        let each = Duration::from_secs(1) / rate.per_second.max(1);
        let whole = each * rate.burst.max(1);
        let full_at = self.full_at.get(of).copied().unwrap_or(now) + each;
        let lacks = full_at.since(now).saturating_sub(whole);
        if !lacks.is_zero() {
            return Err(lacks);
        }
        self.full_at.insert(of.to_owned(), full_at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_little_has_it_and_the_others_share_the_rest() {
        assert_eq!(fair_share([], 10), usize::MAX);
        assert_eq!(fair_share([1, 9], 10), usize::MAX);
        assert_eq!(fair_share([1, 50, 3], 10), 6);
        assert_eq!(fair_share([50, 40, 1], 11), 5);
        assert_eq!(fair_share([7, 7, 7], 2), 0);
    }

    #[test]
    fn a_burst_is_taken_and_then_the_rate_counts() {
        let rate = Rate {
            per_second: 4,
            burst: 10,
        };
        let (mut submissions, now) = (Buckets::default(), Timestamp(1_000_000_000));
        for number in 0..10 {
            assert_eq!(submissions.take("a", rate, now), Ok(()), "{number}");
        }
        let quarter = Duration::from_millis(250);
        assert_eq!(submissions.take("a", rate, now), Err(quarter));
        assert_eq!(submissions.take("b", rate, now), Ok(()), "another one");
        // What is refused costs nothing.
        assert_eq!(submissions.take("a", rate, now), Err(quarter));
        let now = now + quarter;
        assert_eq!(submissions.take("a", rate, now), Ok(()));
        assert_eq!(submissions.take("a", rate, now), Err(quarter));
        // A namespace that rests is forgotten, and has its whole burst again.
        let now = now + 11 * quarter;
        assert_eq!(submissions.take("b", rate, now), Ok(()));
        assert_eq!(submissions.full_at.len(), 1);
        for number in 0..10 {
            assert_eq!(submissions.take("a", rate, now), Ok(()), "{number}");
        }
    }

    #[test]
    fn names_that_are_made_up_share_one_bucket() {
        let rate = Rate {
            per_second: 1,
            burst: 2,
        };
        let (mut buckets, now) = (Buckets::default(), Timestamp(1_000_000_000));
        for number in 0..BUCKETS_MAX {
            assert_eq!(buckets.take(&format!("name-{number}"), rate, now), Ok(()));
        }
        assert_eq!(buckets.take("more-1", rate, now), Ok(()));
        assert_eq!(buckets.take("more-2", rate, now), Ok(()));
        let second = Duration::from_secs(1);
        assert_eq!(buckets.take("more-3", rate, now), Err(second));
        assert_eq!(buckets.take("name-7", rate, now), Ok(()), "it has its own");
        assert_eq!(buckets.full_at.len(), BUCKETS_MAX + 1);
    }
}
