//! How many failures of its own a job survives.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    errors::Errors,
    limits::{RESTART_WINDOW, RESTARTS_MAX, SAME_FAILURES},
};
use crate::period::{self, serde_period};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestartPolicyDocument {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_same_failures: Option<i64>,
}

/// How many failures of its own a job survives: at most `max_restarts` within any `window`, and fewer if they
/// are all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartPolicy {
    pub max_restarts: u32,
    #[serde(with = "serde_period")]
    pub window: Duration,
    /// So many failures of code or data that are the same, without progress between them, end the job. 0: any
    /// number may come.
    #[serde(default = "same_failures", skip_serializing_if = "is_usual")]
    pub max_same_failures: u32,
}

fn same_failures() -> u32 {
    SAME_FAILURES
}

fn is_usual(number: &u32) -> bool {
    *number == SAME_FAILURES
}

/// The policy that this document asks for.
pub(super) fn check(said: Option<&RestartPolicyDocument>, errors: &mut Errors) -> RestartPolicy {
    let said = said.cloned().unwrap_or_default();
    let mut number = |path: &str, said: Option<i64>, usual: u32| {
        let said = said.unwrap_or(usual.into());
        errors.number(path, said, 0, RESTARTS_MAX) as u32
    };
    RestartPolicy {
        max_restarts: number("spec.restartPolicy.maxRestarts", said.max_restarts, 3),
        max_same_failures: number(
            "spec.restartPolicy.maxSameFailures",
            said.max_same_failures,
            SAME_FAILURES,
        ),
        window: errors.period(
            "spec.restartPolicy.window",
            said.window.as_deref(),
            RESTART_WINDOW,
            Duration::from_secs(1),
            period::LONGEST,
        ),
    }
}
