//! When a job that waits will start: an estimate as a part of documents. Its words are those of the pages.

pub(crate) use muster_page::start::{of, sentence};
use muster_proto::v1::{EndBefore, StartEstimate};
use serde::Serialize;

use super::words;

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
