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
        // It may wait for weeks, and what it used fades meanwhile.
        let to = account.held_until.unwrap_or(since);
        let closed = Used {
            gpu_time: account.spent.iter().map(|spent| spent.gpu_time).sum(),
            from: job.first_started.unwrap_or(account.since),
            to,
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
        Some(Actor::User { name }) => name.clone(),
        // No certificate has such a name.
        Some(Actor::Local { uid }) => format!("uid {uid}"),
        Some(Actor::Host { .. } | Actor::Object | Actor::Unknown { .. }) | None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{
        job::tests::record,
        time_account::{State, TimeAccount, Wait},
    };

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

    /// A job had four GPUs for an hour, and has waited for four since.
    #[test]
    fn what_a_job_used_before_it_waits_fades_although_it_is_not_over() {
        let at = |hours: u64| Timestamp(hours * HOUR);
        let waits = |wait| State::Waiting { wait };
        let mut account = TimeAccount::begun(at(0));
        account.enter(at(1), State::Training, 4);
        account.enter(at(2), waits(Wait::BackOff), 0);
        account.enter(at(6), waits(Wait::Suspended), 0);
        let mut job = record();
        (job.first_started, job.time) = (Some(at(1)), Some(account));
        let used = Used::so_far(&job, at(6)).into_iter().flatten();
        let half_life = Duration::from_secs(3_600);
        let sum: f64 = used.map(|used| used.counts(at(6), half_life)).sum();
        let mean_of_an_hour = 0.5 / std::f64::consts::LN_2;
        let expected = 4.0 * 3_600.0 * mean_of_an_hour / 16.0;
        assert!((sum - expected).abs() < 1e-6, "{sum} and {expected}");
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
