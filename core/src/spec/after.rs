//! What a job waits for before it may start: other jobs, as Slurm's `--dependency`, and a time, as its `--begin`.

use serde::{Deserialize, Serialize};

use super::{AFTER_MAX, Errors, SpecDocument};
use crate::{id::label_error, time::Timestamp};

/// A job that another waits for, as a document says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AfterDocument {
    #[serde(default)]
    pub job: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

/// What a job waits for before it may start. It waits for all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartWhen {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<After>,
    /// Not before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_after: Option<Timestamp>,
}

/// A job that this one waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct After {
    /// Its name, in the same namespace.
    pub job: String,
    pub condition: AfterCondition,
}

/// How the other job must end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AfterCondition {
    /// As Slurm's `afterok`.
    #[default]
    Succeeded,
    /// As Slurm's `afternotok`, but a cancelled job has not failed.
    Failed,
    /// In any way, as Slurm's `afterany`.
    Ended,
}

impl AfterCondition {
    pub const ALL: [(&str, AfterCondition); 3] = [
        ("succeeded", AfterCondition::Succeeded),
        ("failed", AfterCondition::Failed),
        ("ended", AfterCondition::Ended),
    ];

    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            AfterCondition::Succeeded => "succeeded",
            AfterCondition::Failed => "failed",
            AfterCondition::Ended => "ended",
        }
    }

    /// What the other job is to do.
    pub fn verb(self) -> &'static str {
        match self {
            AfterCondition::Succeeded => "succeed",
            AfterCondition::Failed => "fail",
            AfterCondition::Ended => "end",
        }
    }
}

impl AfterDocument {
    /// Reads `JOB` or `JOB:CONDITION`. The words are checked with the document.
    pub fn read(text: &str) -> Self {
        let (job, condition) = match text.split_once(':') {
            Some((job, condition)) => (job, Some(condition.to_owned())),
            None => (text, None),
        };
        Self {
            job: job.to_owned(),
            condition,
        }
    }
}

impl StartWhen {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks what a document says.
    pub(super) fn check(document: &SpecDocument, errors: &mut Errors) -> Self {
        let all = &document.after;
        if all.len() > AFTER_MAX {
            let message = format!("has {} jobs, at most {AFTER_MAX} are possible", all.len());
            errors.add("spec.after", message);
        }
        let mut after: Vec<After> = Vec::new();
        for (at, one) in all.iter().enumerate().take(AFTER_MAX) {
            let path = format!("spec.after[{at}]");
            if let Some(message) = label_error(&one.job) {
                errors.add(format!("{path}.job"), message);
            }
            if after.iter().any(|before| before.job == one.job) {
                let message = format!("names {} again; each job may be named once", one.job);
                errors.add(format!("{path}.job"), message);
            }
            let said = one.condition.as_deref();
            after.push(After {
                job: one.job.clone(),
                condition: errors.one_of(&format!("{path}.condition"), said, &AfterCondition::ALL),
            });
        }
        let said = document.start_after.as_deref();
        let start_after = said.and_then(read_time);
        if start_after.is_none()
            && let Some(text) = said
        {
            let message = format!(
                "is {text:?}, must be a time of RFC 3339, as 2026-11-30T18:00:00Z or 2026-11-30T19:00:00+01:00"
            );
            errors.add("spec.startAfter", message);
        }
        Self { after, start_after }
    }

    /// Refuses a job that waits for itself.
    pub(super) fn check_name(&self, name: &str, errors: &mut Errors) {
        if let Some(at) = self.after.iter().position(|after| after.job == name) {
            let message = "is the job itself, which cannot wait for its own end";
            errors.add(format!("spec.after[{at}].job"), message);
        }
    }

    /// The same as a document has it.
    pub fn write(&self, document: &mut SpecDocument) {
        let after = self.after.iter().map(|after| AfterDocument {
            job: after.job.clone(),
            condition: Some(after.condition.name().into()),
        });
        document.after = after.collect();
        document.start_after = self.start_after.map(Timestamp::rfc3339);
    }
}

/// Reads a time of RFC 3339 with any offset from UTC.
fn read_time(text: &str) -> Option<Timestamp> {
    if text.ends_with('Z') {
        return Timestamp::from_rfc3339(text);
    }
    let (time, offset) = text.split_at_checked(text.len().checked_sub("+00:00".len())?)?;
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let number = |text: &str, below: u64| {
        let digits = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        let number: u64 = text.parse().ok()?;
        (digits && number < below).then_some(number)
    };
    let minutes = number(hours, 24)? * 60 + number(minutes, 60)?;
    let off = std::time::Duration::from_secs(minutes * 60);
    let local = Timestamp::from_rfc3339(&format!("{time}Z"))?;
    match offset.as_bytes()[0] {
        b'+' => Some(local - off),
        b'-' => Some(local + off),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{FieldError, JobSpec, tests::document};

    fn checked(change: impl Fn(&mut SpecDocument)) -> Result<JobSpec, Vec<FieldError>> {
        let mut document = document();
        change(&mut document.spec);
        document.check().map(|(_, spec)| spec)
    }

    #[test]
    fn it_is_read_and_written_back() {
        let words = ["prepare", "check:failed", "other:ended"];
        let spec = checked(|spec| {
            spec.after = words.map(AfterDocument::read).to_vec();
            spec.start_after = Some("2026-11-30T19:00:00+01:00".into());
        })
        .unwrap();
        let conditions: Vec<AfterCondition> =
            spec.start.after.iter().map(|one| one.condition).collect();
        assert_eq!(
            conditions,
            [
                AfterCondition::Succeeded,
                AfterCondition::Failed,
                AfterCondition::Ended
            ]
        );
        let mut again = SpecDocument::default();
        spec.start.write(&mut again);
        assert_eq!(
            again.start_after.as_deref(),
            Some("2026-11-30T18:00:00.000000Z")
        );
        let again = checked(|spec| {
            spec.after.clone_from(&again.after);
            spec.start_after.clone_from(&again.start_after);
        });
        assert_eq!(again.unwrap().start, spec.start);
        assert!(checked(|_| {}).unwrap().start.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_by_its_path() {
        let own = document().metadata.name;
        let errors = checked(|spec| {
            spec.after = [own.as_str(), "Bad", "a:afterok", "b", "b:ended"]
                .map(AfterDocument::read)
                .to_vec();
            spec.start_after = Some("tomorrow".into());
        })
        .unwrap_err();
        let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "spec.after[1].job",
                "spec.after[2].condition",
                "spec.after[4].job",
                "spec.startAfter",
                "spec.after[0].job",
            ]
        );
        assert_eq!(
            errors[1].message,
            "is \"afterok\", must be one of succeeded, failed, ended"
        );
        let many = checked(|spec| {
            let names = (0..=AFTER_MAX).map(|n| AfterDocument::read(&format!("job-{n}")));
            spec.after = names.collect();
        });
        assert_eq!(many.unwrap_err()[0].path, "spec.after");
    }

    #[test]
    fn a_time_has_any_offset() {
        let at = |text: &str| read_time(text).map(Timestamp::rfc3339_seconds);
        let utc = Some("2026-11-30T18:00:00Z".to_owned());
        assert_eq!(at("2026-11-30T18:00:00Z"), utc);
        assert_eq!(at("2026-11-30T23:30:00+05:30"), utc);
        assert_eq!(at("2026-11-30T10:00:00.5-08:00"), utc);
        for bad in [
            "",
            "2026-11-30",
            "2026-11-30T18:00:00",
            "2026-11-30T18:00:00+24:00",
            "2026-11-30T18:00:00+1:000",
            "é2026",
        ] {
            assert_eq!(at(bad), None, "{bad}");
        }
    }
}
