//! Points in time, which the caller passes in. This crate has no clock.

use std::{fmt, ops, time::Duration};

use serde::{Deserialize, Serialize};

/// Microseconds on the caller's clock, which never runs backwards within one process. The
/// coordinator's clock starts at the Unix epoch, so that records keep their meaning across
/// restarts. An agent's clock starts at boot.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Days from 0000-03-01 to 1970-01-01. Years that begin in March have their leap day at the end.
const MARCH_OF_YEAR_0: i64 = 719_468;
/// Days of 400 years, after which the calendar repeats.
const ERA: i64 = 146_097;

impl Timestamp {
    /// In UTC, as RFC 3339 writes it: `2026-11-23T17:00:36.000120Z`. For times of the coordinator.
    /// All texts have the same length, so they sort by time.
    pub fn rfc3339(self) -> String {
        let (seconds, us) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let (year, month, day) = date(i64::try_from(seconds / 86_400).unwrap_or(i64::MAX / 2));
        let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z")
    }

    /// The same without the fraction, for sentences.
    pub fn rfc3339_seconds(self) -> String {
        let mut text = self.rfc3339();
        text.truncate(text.len() - ".000000Z".len());
        text + "Z"
    }

    /// Reads a time in UTC since 1970, with or without a fraction of a second.
    pub fn from_rfc3339(text: &str) -> Option<Self> {
        let (day, time) = text.strip_suffix('Z')?.split_once('T')?;
        let (whole, fraction) = time.split_once('.').unwrap_or((time, ""));
        let numbers = |text: &str, between: char| -> Option<Vec<u64>> {
            let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
            let parts = text.split(between);
            parts
                .map(|part| part.parse().ok().filter(|_| digits(part)))
                .collect()
        };
        let (day, whole) = (numbers(day, '-')?, numbers(whole, ':')?);
        let (&[year, month, day], &[hour, minute, second]) = (&day[..], &whole[..]) else {
            return None;
        };
        let in_range = (1970..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        if !in_range {
            return None;
        }
        let known = fraction.get(..fraction.len().min(6))?;
        let us: u64 = match known {
            "" => 0,
            _ if !fraction.bytes().all(|b| b.is_ascii_digit()) => return None,
            digits => format!("{digits:0<6}").parse().ok()?,
        };
        let seconds = days(year as i64, month as i64, day as i64) as u64 * 86_400
            + hour * 3_600
            + minute * 60
            + second;
        Some(Timestamp(seconds * 1_000_000 + us))
    }
}

/// Year, month and day of a day since 1970, in the Gregorian calendar.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + MARCH_OF_YEAR_0;
    let (era, of_era) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // Months count from March. Their lengths repeat every five months, with 153 days.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of [`date`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - MARCH_OF_YEAR_0
}

impl ops::Add<Duration> for Timestamp {
    type Output = Timestamp;
    fn add(self, by: Duration) -> Timestamp {
        Timestamp(
            self.0
                .saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)),
        )
    }
}

impl ops::Sub<Duration> for Timestamp {
    type Output = Timestamp;
    fn sub(self, by: Duration) -> Timestamp {
        Timestamp(
            self.0
                .saturating_sub(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)),
        )
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_the_calendar_has_it_and_read_back() {
        // By `date -u -d @SECONDS`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_453_236, "2026-11-23T17:00:36Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            let time = Timestamp(seconds * 1_000_000 + 120);
            assert_eq!(time.rfc3339_seconds(), text);
            assert_eq!(time.rfc3339(), text.replace('Z', ".000120Z"));
            assert_eq!(Timestamp::from_rfc3339(&time.rfc3339()), Some(time));
            let whole = Timestamp(seconds * 1_000_000);
            assert_eq!(Timestamp::from_rfc3339(text), Some(whole));
        }
        for day in 0..60_000 {
            let (year, month, date) = date(day);
            assert_eq!(days(year, month, date), day);
        }
    }

    #[test]
    fn what_is_no_time_is_not_read() {
        for text in [
            "",
            "Z",
            "2026-11-23",
            "2026-11-23T17:00:36",
            "2026-11-23T17:00:36+01:00",
            "2026-13-23T17:00:36Z",
            "2026-11-23T25:00:36Z",
            "2026-11-23T17:00:36.x1Z",
            "1900-11-23T17:00:36Z",
            "2026-11-23T+7:00:36Z",
        ] {
            assert_eq!(Timestamp::from_rfc3339(text), None, "{text}");
        }
    }
}
