//! When a job begins, how long it may take, and how long it is kept after its end. The names are those
//! of batch/v1, `startDeadlineSeconds` apart, which no kind of Kubernetes has.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Errors, FieldError, SECONDS_MAX, SpecDocument};

/// The limits of a job's life. `None`: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifetime {
    /// The job may take so many seconds, from its submission or from when it was last resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<u64>,
    /// The job may wait so many seconds for its first start, from the same moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_deadline_seconds: Option<u64>,
    /// The job is deleted so many seconds after its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<u64>,
}

impl Lifetime {
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    pub fn active_deadline(&self) -> Option<Duration> {
        self.active_deadline_seconds.map(Duration::from_secs)
    }

    pub fn start_deadline(&self) -> Option<Duration> {
        self.start_deadline_seconds.map(Duration::from_secs)
    }

    pub fn ttl(&self) -> Option<Duration> {
        self.ttl_seconds_after_finished.map(Duration::from_secs)
    }
}

impl SpecDocument {
    pub(super) fn check_lifetime(&self, errors: &mut Errors) -> Lifetime {
        let mut seconds = |path: &str, value: Option<i64>, low: i64| {
            value.map(|value| errors.number(path, value, low, SECONDS_MAX) as u64)
        };
        Lifetime {
            active_deadline_seconds: seconds(
                "spec.activeDeadlineSeconds",
                self.active_deadline_seconds,
                1,
            ),
            start_deadline_seconds: seconds(
                "spec.startDeadlineSeconds",
                self.start_deadline_seconds,
                1,
            ),
            ttl_seconds_after_finished: seconds(
                "spec.ttlSecondsAfterFinished",
                self.ttl_seconds_after_finished,
                0,
            ),
        }
    }

    /// The limits of the job's life, or what is wrong with them.
    pub fn lifetime(&self) -> Result<Lifetime, Vec<FieldError>> {
        let mut errors = Errors::default();
        let lifetime = self.check_lifetime(&mut errors);
        match errors.0.is_empty() {
            true => Ok(lifetime),
            false => Err(errors.0),
        }
    }

    /// The same document with the limits, and whether it begins suspended, of an accepted job.
    pub fn with_life_of(self, job: &super::JobSpec) -> Self {
        let number = |seconds: Option<u64>| seconds.and_then(|n| i64::try_from(n).ok());
        Self {
            suspend: job.suspend.then_some(true),
            active_deadline_seconds: number(job.lifetime.active_deadline_seconds),
            start_deadline_seconds: number(job.lifetime.start_deadline_seconds),
            ttl_seconds_after_finished: number(job.lifetime.ttl_seconds_after_finished),
            ..self
        }
    }
}
