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

    /// Takes one. The error is when the next one is there.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let periods =
            now.saturating_duration_since(self.since).as_micros() / self.period.as_micros();
        let new = u32::try_from(periods).unwrap_or(u32::MAX);
        if self.left.saturating_add(new) >= self.at_once {
            (self.left, self.since) = (self.at_once, now);
        } else {
            self.left += new;
            self.since += self.period * new;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(self.since + self.period),
        }
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
        assert_eq!((pace.take(start), pace.take(start)), (Ok(()), Ok(())));
        assert_eq!(pace.take(start), Err(start + second));
        let later = start + second * 3 / 2;
        assert_eq!(pace.take(later), Ok(()));
        assert_eq!(pace.take(later), Err(start + second * 2));
        let rested = start + second * 100;
        let taken = (0..9).filter(|_| pace.take(rested).is_ok()).count();
        assert_eq!(taken, 2, "rest is not saved up");
    }
}
