//! Where the time of a job has gone.

use muster_proto::v1;
use serde::Serialize;

use super::{some, time};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TimeAccount {
    /// From when on time is counted.
    since: Option<String>,
    /// From 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    goodput: Option<f64>,
    spent: Vec<Spent>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spent {
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    seconds: f64,
    gpu_seconds: f64,
}

impl From<v1::TimeAccount> for TimeAccount {
    fn from(account: v1::TimeAccount) -> Self {
        Self {
            since: time(account.since_unix_us),
            goodput: account.goodput,
            spent: account.spent.into_iter().map(Spent::from).collect(),
        }
    }
}

impl From<v1::TimeSpent> for Spent {
    fn from(spent: v1::TimeSpent) -> Self {
        Self {
            state: spent.state,
            cause: some(spent.cause),
            phase: some(spent.phase),
            reason: some(spent.reason),
            seconds: spent.us as f64 / 1e6,
            gpu_seconds: spent.gpu_us as f64 / 1e6,
        }
    }
}
