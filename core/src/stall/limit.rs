//! How long nothing may move. A job that has shown its habit is judged by that; one that has not has ten minutes.

use std::time::Duration;

/// The least of all limits. A garbage collection, a slow batch and a retry of a network take seconds.
const LEAST: Duration = Duration::from_secs(10);
/// How many usual steps long nothing may move. In traces of real jobs the slowest one in a hundred took 4.2 times the usual.
const STEPS: u32 = 4;
/// A job stood still for so long before and went on, so it may do that again, and a little longer.
const AGAIN: u32 = 2;
/// The limit of a job that has not shown its habit: a first step compiles, loads and connects. NCCL gives up after as long.
pub const UNKNOWN: Duration = Duration::from_secs(600);
/// After so many steps of a generation its habit is known. The first ones compile, and fill caches.
pub const STEPS_KNOWN: u64 = 20;

/// What is known of how a job moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Habit {
    /// How many steps this generation has made.
    pub steps: u64,
    /// The mean time of one of them.
    pub usual: Option<Duration>,
    /// The longest time after which it went on by itself.
    pub longest: Duration,
}

impl Habit {
    pub fn is_known(&self) -> bool {
        self.steps >= STEPS_KNOWN && self.usual.is_some()
    }
}

/// How long nothing may move. `said`: the job's own word (`stallAfter`), which always counts.
pub fn limit(said: Option<Duration>, habit: Habit) -> Duration {
    if let Some(said) = said {
        return said;
    }
    let known = habit.usual.filter(|_| habit.is_known());
    let base = known.map_or(UNKNOWN, |usual| LEAST.max(usual.saturating_mul(STEPS)));
    base.max(habit.longest.saturating_mul(AGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn the_jobs_own_habit_decides() {
        let habit = |steps, usual: u64, longest: u64| Habit {
            steps,
            usual: Some(S(usual)),
            longest: S(longest),
        };
        let of = |habit| limit(None, habit);
        assert_eq!(of(Habit::default()), UNKNOWN);
        assert_eq!(of(habit(19, 1, 0)), UNKNOWN, "it may still compile");
        assert_eq!(of(habit(20, 1, 0)), S(10));
        assert_eq!(of(habit(20, 30, 0)), S(120));
        assert_eq!(of(habit(20, 1, 45)), S(90), "it evaluates now and then");
        assert_eq!(of(habit(0, 1, 3_600)), S(7_200));
        assert_eq!(limit(Some(S(3)), habit(20, 30, 45)), S(3));
    }
}
