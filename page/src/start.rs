//! When a job that waits will start: an estimate, in words that pages and the command line share.

use muster_proto::v1::{JobStart, StartEstimate};

use crate::words;

const DAY_US: u64 = 24 * 3_600 * 1_000_000;

/// What was said of one job.
pub fn of<'s>(starts: &'s [JobStart], namespace: &str, name: &str) -> Option<&'s StartEstimate> {
    let is_about = |one: &&JobStart| {
        let job = one.r#ref.as_ref();
        job.is_some_and(|job| job.namespace == namespace && job.name == name)
    };
    starts.iter().find(is_about)?.start.as_ref()
}

/// `~14:20Z in 2h`, with the day if that is not within a day. `-`: there is no estimate.
pub fn when(start: &StartEstimate, now_us: u64) -> String {
    let at = start.at_unix_us;
    if at == 0 {
        return "-".into();
    }
    let text = words::utc_seconds(at);
    // Minutes: nobody knows the seconds.
    let minutes = text.get(.."2026-11-21T11:35".len()).unwrap_or(&text);
    let shown = match at.saturating_sub(now_us) < DAY_US {
        true => minutes.split_once('T').map_or(minutes, |(_, time)| time),
        false => minutes,
    };
    format!("~{shown}Z in {}", words::age(now_us, at))
}

/// A sentence for one job.
pub fn sentence(start: &StartEstimate, now_us: u64) -> String {
    let basis = &start.basis;
    match start.at_unix_us {
        0 => format!("There is no estimate of its start: {basis}."),
        _ => format!("Estimate: it starts {}, {basis}.", when(start, now_us)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_260_900_000_000;

    #[test]
    fn a_time_is_rough_and_has_its_day_if_that_is_another() {
        let start = |seconds: u64| StartEstimate {
            at_unix_us: NOW + seconds * 1_000_000,
            basis: "after job team-a/a (at its deadline)".into(),
            ..StartEstimate::default()
        };
        assert_eq!(when(&start(7_300), NOW), "~13:36Z in 121m");
        assert_eq!(when(&start(200_000), NOW), "~2026-11-23T19:08Z in 2d7h");
        assert_eq!(
            sentence(&start(0), NOW),
            "Estimate: it starts ~11:35Z in 0s, after job team-a/a (at its deadline)."
        );
        let none = StartEstimate {
            basis: "it would not start even on an empty fleet".into(),
            unknown: "Never".into(),
            ..StartEstimate::default()
        };
        assert_eq!(when(&none, NOW), "-");
        assert_eq!(
            sentence(&none, NOW),
            "There is no estimate of its start: it would not start even on an empty fleet."
        );
    }
}
