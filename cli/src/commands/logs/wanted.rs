//! Which lines are printed, if not all.

use std::time::Duration;

use regex_lite::Regex;

/// What a line must have. By default nothing.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// It was written at this time or later, as a log writes times.
    since: Option<String>,
    pattern: Option<Regex>,
}

impl Wanted {
    pub(super) fn new(
        now_us: u64,
        within: Option<Duration>,
        pattern: Option<&str>,
    ) -> Result<Self, String> {
        let pattern = pattern.map(Regex::new).transpose();
        let pattern = pattern.map_err(|why| format!("--grep is no pattern: {why}"))?;
        let since = within.map(|within| {
            let within = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
            time(now_us.saturating_sub(within))
        });
        Ok(Self { since, pattern })
    }

    /// Whether a line must be there to its end before it can be judged.
    pub(super) fn reads_text(&self) -> bool {
        self.pattern.is_some()
    }

    pub(super) fn takes(&self, time: &str, text: &[u8]) -> bool {
        let is_late = self.since.as_deref().is_none_or(|since| time >= since);
        is_late
            && self
                .pattern
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(&String::from_utf8_lossy(text)))
    }
}

/// A time with the nine digits that a log has, so that times compare as texts.
fn time(unix_us: u64) -> String {
    let us = i64::try_from(unix_us).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_microsecond(us).unwrap_or(jiff::Timestamp::MAX);
    format!("{time:.9}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_260_928_000_000;

    #[test]
    fn lines_of_the_last_minute_with_a_word() {
        let wanted =
            Wanted::new(NOW, Some(Duration::from_secs(60)), Some("(?i)error|nan")).unwrap();
        assert!(wanted.reads_text());
        for (time, text, takes) in [
            ("2026-11-21T11:34:28.000000000Z", "Error: x", true),
            ("2026-11-21T11:34:27.999999999Z", "Error: x", false),
            ("2026-11-21T11:35:00.000000000Z", "loss=NaN", true),
            ("2026-11-21T11:35:00.000000000Z", "loss=1", false),
        ] {
            assert_eq!(wanted.takes(time, text.as_bytes()), takes, "{time} {text}");
        }
    }

    #[test]
    fn by_default_all_are_taken_and_what_is_no_pattern_is_said() {
        let all = Wanted::default();
        assert!(all.takes("", b"\xff") && !all.reads_text());
        let why = Wanted::new(NOW, None, Some("(")).unwrap_err();
        assert!(why.starts_with("--grep is no pattern"), "{why}");
    }
}
