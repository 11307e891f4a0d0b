//! What a job waits for before it may start, in words.

use muster_core::spec::SpecDocument;
use muster_proto::v1;
use serde::Serialize;

use super::words;

/// Rows of `muster describe job`.
pub(super) fn rows(
    spec: &SpecDocument,
    status: &v1::JobStatus,
    now_us: u64,
) -> Vec<(&'static str, String)> {
    let waits = status.not_eligible.as_ref();
    let mut rows: Vec<(&'static str, String)> = Vec::new();
    for after in &spec.after {
        let condition = after.condition.as_deref().unwrap_or("succeeded");
        let known = waits.and_then(|waits| waits.jobs.iter().find(|one| one.name == after.job));
        let how = match known.map(|one| one.end.as_str()) {
            Some("") => ", and it has not ended yet".to_owned(),
            Some(end) => format!(", as it has ({end})"),
            None => String::new(),
        };
        rows.push(("After", format!("job {} has {condition}{how}", after.job)));
    }
    if let Some(time) = &spec.start_after {
        rows.push(("Start after", time.clone()));
    }
    if let Some(waits) = waits {
        let age = words::age(waits.since_unix_us, now_us);
        let text = format!(
            "it waits for the above for {age}, holds no place in the queue and keeps no room"
        );
        rows.push(("Not eligible", text));
    }
    rows
}

/// The form of `-o json` and `-o yaml`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NotEligible {
    jobs: Vec<Awaited>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_after: Option<String>,
    since: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Awaited {
    name: String,
    uid: String,
    condition: String,
    /// How it ended. None: it has not ended yet.
    end: Option<String>,
    ended_at: Option<String>,
}

impl From<&v1::NotEligible> for NotEligible {
    fn from(waits: &v1::NotEligible) -> Self {
        let time = |us: u64| (us != 0).then(|| words::utc(us));
        let jobs = waits.jobs.iter().map(|job| Awaited {
            name: job.name.clone(),
            uid: job.uid.clone(),
            condition: job.condition.clone(),
            end: (!job.end.is_empty()).then(|| job.end.clone()),
            ended_at: time(job.ended_unix_us),
        });
        NotEligible {
            jobs: jobs.collect(),
            start_after: time(waits.start_after_unix_us),
            since: words::utc(waits.since_unix_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_core::spec::AfterDocument;

    #[test]
    fn it_says_what_is_still_to_come() {
        let job = |name: &str, condition: &str, end: &str| v1::AwaitedJob {
            name: name.into(),
            condition: condition.into(),
            end: end.into(),
            ..v1::AwaitedJob::default()
        };
        let waits = v1::NotEligible {
            jobs: vec![
                job("a", "succeeded", ""),
                job("b", "ended", "Failed"),
                job("c", "failed", ""),
            ],
            start_after_unix_us: 5_000_000,
            since_unix_us: 1_000_000,
        };
        let spec = SpecDocument {
            after: ["a", "b:ended"].map(AfterDocument::read).to_vec(),
            ..SpecDocument::default()
        };
        let status = v1::JobStatus {
            not_eligible: Some(waits),
            ..v1::JobStatus::default()
        };
        let texts: Vec<String> = rows(&spec, &status, 61_000_000)
            .into_iter()
            .map(|(name, text)| format!("{name}: {text}"))
            .collect();
        assert_eq!(
            texts,
            [
                "After: job a has succeeded, and it has not ended yet",
                "After: job b has ended, as it has (Failed)",
                "Not eligible: it waits for the above for 60s, holds no place in the queue and keeps no room",
            ]
        );
        let now = v1::JobStatus::default();
        assert_eq!(rows(&spec, &now, 0).len(), 2);
    }
}
