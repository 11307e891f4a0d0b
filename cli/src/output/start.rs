//! When a job that waits will start: an estimate, as text and as a part of documents.

use muster_proto::v1::{EndBefore, JobStart, StartEstimate};
use serde::Serialize;

use super::words;

const DAY_US: u64 = 24 * 3_600 * 1_000_000;

/// The form of `-o json` and `-o yaml`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Estimate {
    /// None: there is no estimate.
    at: Option<String>,
    /// On what it is based, or why there is none.
    basis: String,
    /// Why there is none, as one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    unknown: String,
    /// Jobs that end before, or those whose end nobody knows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    after: Vec<End>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct End {
    job: String,
    namespace: String,
    /// None: nobody knows.
    at: Option<String>,
    /// deadline or measured.
    #[serde(skip_serializing_if = "String::is_empty")]
    basis: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
}

/// Jobs like it, from which its end is known.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    jobs: u32,
    same_spec: bool,
    shortest_seconds: f64,
    longest_seconds: f64,
}

impl Estimate {
    pub(crate) fn of(start: &StartEstimate) -> Self {
        let at = |at: u64| (at > 0).then(|| words::utc_seconds(at));
        let end = |end: &EndBefore| {
            let job = end.r#ref.clone().unwrap_or_default();
            let seconds = |us: u64| us as f64 / 1e6;
            End {
                job: job.name,
                namespace: job.namespace,
                at: at(end.at_unix_us),
                basis: end.basis.clone(),
                measured: (end.jobs > 0).then(|| Measured {
                    jobs: end.jobs,
                    same_spec: end.same_spec,
                    shortest_seconds: seconds(end.shortest_us),
                    longest_seconds: seconds(end.longest_us),
                }),
            }
        };
        Self {
            at: at(start.at_unix_us),
            basis: start.basis.clone(),
            unknown: start.unknown.clone(),
            after: start.after.iter().map(end).collect(),
        }
    }
}

/// What was said of one job.
pub(crate) fn of<'s>(
    starts: &'s [JobStart],
    namespace: &str,
    name: &str,
) -> Option<&'s StartEstimate> {
    let is_about = |one: &&JobStart| {
        let job = one.r#ref.as_ref();
        job.is_some_and(|job| job.namespace == namespace && job.name == name)
    };
    starts.iter().find(is_about)?.start.as_ref()
}

/// `~14:20Z in 2h`, with the day if that is not within a day. `-`: there is no estimate.
pub(crate) fn when(start: &StartEstimate, now_us: u64) -> String {
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
pub(crate) fn sentence(start: &StartEstimate, now_us: u64) -> String {
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
