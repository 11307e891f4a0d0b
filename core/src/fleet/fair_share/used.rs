//! How much GPU time of one job counts today.

use std::time::Duration;

use crate::{
    fleet::{actor::Actor, job::JobRecord},
    time::Timestamp,
};

/// GPU time of a job, and when it was used. When within this time is not known, so it counts as spread evenly over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Used {
    pub gpu_time: Duration,
    pub from: Timestamp,
    pub to: Timestamp,
}

impl Used {
    /// GPU-seconds, each by how long ago it was: with each half-life it counts half as much.
    pub(super) fn counts(self, now: Timestamp, half_life: Duration) -> f64 {
        let half_lives = |at| now.since(at).as_secs_f64() / half_life.as_secs_f64();
        let (oldest, newest) = (half_lives(self.from), half_lives(self.to));
        let fades = (oldest - newest) * std::f64::consts::LN_2;
        // The mean of what each moment counts, beside the last.
        let mean = match fades > 1e-9 {
            true => -(-fades).exp_m1() / fades,
            false => 1.0,
        };
        self.gpu_time.as_secs_f64() * (-newest).exp2() * mean
    }

    /// What a job that is not over has used: in the states that are over, and in the one that is not.
    pub(super) fn so_far(job: &JobRecord, now: Timestamp) -> [Option<Used>; 2] {
        let Some(account) = &job.time else {
            return [None, None];
        };
        let since = account.open.map_or(now, |open| open.since);
        let closed = Used {
            gpu_time: account.spent.iter().map(|spent| spent.gpu_time).sum(),
            from: job.first_started.unwrap_or(account.since),
            to: since,
        };
        let open = account.open.map(|open| Used {
            gpu_time: now.since(open.since).saturating_mul(open.gpus),
            from: open.since,
            to: now,
        });
        [Some(closed), open]
    }
}

/// The user whose share a job uses. Empty: nobody has proven who it is, and all such jobs are one user's.
pub(super) fn user_of(owner: Option<&Actor>) -> String {
    match owner {
        Some(user @ (Actor::User { .. } | Actor::Local { .. })) => user.to_string(),
        Some(Actor::Host { .. } | Actor::Object | Actor::Unknown { .. }) | None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    fn counts(from: u64, to: u64, now: u64) -> f64 {
        let used = Used {
            gpu_time: Duration::from_secs(1_000),
            from: Timestamp(from * HOUR),
            to: Timestamp(to * HOUR),
        };
        used.counts(Timestamp(now * HOUR), Duration::from_secs(3_600))
    }

    #[test]
    fn with_each_half_life_it_counts_half_as_much() {
        for (hours, counted) in [(0, 1_000.0), (1, 500.0), (2, 250.0), (2_000, 0.0)] {
            let found = counts(5, 5, 5 + hours);
            assert!((found - counted).abs() < 1e-6, "{hours}: {found}");
        }
        let of_the_future = counts(9, 9, 5);
        assert!(
            (of_the_future - 1_000.0).abs() < 1e-6,
            "a clock that was ahead"
        );
    }

    #[test]
    fn what_took_long_counts_as_the_sum_of_its_parts() {
        for (from, to, now) in [(0, 1, 1), (0, 10, 12), (3, 4, 90)] {
            let parts = 10_000;
            let width = (to - from) * HOUR / parts;
            let part = |at: u64| Used {
                gpu_time: Duration::from_millis(100),
                from: Timestamp(from * HOUR + at * width),
                to: Timestamp(from * HOUR + at * width),
            };
            let half_life = Duration::from_secs(3_600);
            let sum: f64 = (0..parts)
                .map(|at| part(at).counts(Timestamp(now * HOUR), half_life))
                .sum();
            let whole = counts(from, to, now);
            assert!((whole - sum).abs() <= sum * 1e-3, "{whole} and {sum}");
        }
    }
}
