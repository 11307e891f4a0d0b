//! So many things in a time, and a few at once: a token bucket. Time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// Allows so many at once, and after that one in each period.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    at_once: u32,
    period: Duration,
    left: u32,
    /// Since when the next token is in the making.
    since: Instant,
}

impl Pace {
    pub(super) fn new(at_once: u32, period: Duration, now: Instant) -> Self {
        Self {
            at_once,
            period,
            left: at_once,
            since: now,
        }
    }

    /// Takes one, and leaves so many for others. The error is when to ask again.
    pub(super) fn take(&mut self, now: Instant, reserve: u32) -> Result<(), Instant> {
        let periods =
            now.saturating_duration_since(self.since).as_micros() / self.period.as_micros();
        let new = u32::try_from(periods).unwrap_or(u32::MAX);
        if self.left.saturating_add(new) >= self.at_once {
            (self.left, self.since) = (self.at_once, now);
        } else {
            self.left += new;
            self.since += self.period * new;
        }
        let missing = (reserve + 1).saturating_sub(self.left);
        if missing > 0 {
            return Err(self.since + self.period * missing);
        }
        self.left -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_at_once_and_then_one_in_each_period() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let mut pace = Pace::new(2, second, start);
        assert_eq!((pace.take(start, 0), pace.take(start, 0)), (Ok(()), Ok(())));
        assert_eq!(pace.take(start, 0), Err(start + second));
        let later = start + second * 3 / 2;
        assert_eq!(pace.take(later, 0), Ok(()));
        assert_eq!(pace.take(later, 0), Err(start + second * 2));
        let rested = start + second * 100;
        let taken = (0..9).filter(|_| pace.take(rested, 0).is_ok()).count();
        assert_eq!(taken, 2, "rest is not saved up");
    }

    #[test]
    fn what_is_left_for_others_is_not_taken() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let mut pace = Pace::new(4, second, start);
        assert_eq!((pace.take(start, 2), pace.take(start, 2)), (Ok(()), Ok(())));
        assert_eq!(pace.take(start, 2), Err(start + second));
        assert_eq!(pace.take(start, 0), Ok(()));
        assert_eq!(pace.take(start, 2), Err(start + second * 2));
    }
}
