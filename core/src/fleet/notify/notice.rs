//! One thing to tell. It goes to other programs, so it has no command line and no value of a variable.

use serde::{Deserialize, Serialize};

use crate::{
    fleet::job::JobRecord,
    id::{Generation, JobName, JobUid, NodeName},
    spec::{JobSpec, notify::Kind},
    time::Timestamp,
};

/// Characters of a sentence and of an error. Chats show no more without a click.
const SENTENCE_MAX: usize = 500;
const ERROR_MAX: usize = 300;

/// Shorter values of variables are words like `1` and `info`, and no secrets.
const SECRET_MIN: usize = 6;

/// What stands in place of a value.
const HIDDEN: &str = "***";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    pub kind: Kind,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<JobUid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// What happened, in a sentence.
    pub message: String,
    /// Who broke first: `rank 3 on b`, or a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub culprit: Option<String>,
    /// The cause of the incident ([`Cause`](crate::fleet::receipt::Cause)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The last line of the error that the culprit has printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Notice {
    pub fn new(kind: Kind, at: Timestamp, message: &str) -> Self {
        Self {
            kind,
            at,
            job: None,
            uid: None,
            node: None,
            generation: None,
            message: cut(message, SENTENCE_MAX),
            culprit: None,
            cause: None,
            error: None,
        }
    }

    pub(crate) fn of_job(kind: Kind, at: Timestamp, message: &str, job: &JobRecord) -> Self {
        let hidden = hide(message, &job.spec);
        Self {
            job: Some(job.name.clone()),
            uid: Some(job.uid.clone()),
            generation: Some(job.last_generation).filter(|number| number.0 > 0),
            ..Self::new(kind, at, &hidden)
        }
    }

    pub(crate) fn with_error(mut self, error: Option<&str>, job: &JobRecord) -> Self {
        let hidden = error.map(|error| hide(error.trim(), &job.spec));
        self.error = hidden.map(|error| cut(&error, ERROR_MAX));
        self
    }

    /// Whether it tells the same.
    pub(crate) fn is_again(&self, other: &Notice) -> bool {
        let key = |notice: &Notice| {
            let (uid, node) = (notice.uid.clone(), notice.node.clone());
            (notice.kind, notice.at, uid, node)
        };
        key(self) == key(other)
    }

    /// What it is about: the job, or else the node.
    pub fn subject(&self) -> String {
        match (&self.job, &self.node) {
            (Some(job), _) => job.to_string(),
            (None, Some(node)) => node.to_string(),
            (None, None) => String::new(),
        }
    }

    /// Its part of the outbox, in bytes, roughly.
    pub(crate) fn size(&self) -> usize {
        let texts = [&self.culprit, &self.cause, &self.error];
        let texts: usize = texts
            .iter()
            .filter_map(|text| Some(text.as_ref()?.len()))
            .sum();
        // Names, numbers and what JSON adds.
        300 + self.message.len() + texts
    }
}

/// The first line of a text, with a mark if that is not all.
fn cut(text: &str, most: usize) -> String {
    let mut lines = text.trim().lines();
    let first = lines.next().unwrap_or_default();
    let is_whole = lines.next().is_none() && first.chars().count() <= most;
    let mut kept: String = first.chars().take(most).collect();
    if !is_whole {
        kept.push_str("...");
    }
    kept
}

/// The text without values of the job's variables, and without what stands before the @ of an address.
fn hide(text: &str, spec: &JobSpec) -> String {
    let own = spec.env.iter();
    let of_roles = spec.roles.iter().flat_map(|role| &role.env);
    let values = own.chain(of_roles).map(|variable| variable.value.as_str());
    let mut secret: Vec<&str> = values.filter(|value| value.len() >= SECRET_MIN).collect();
    // A value may be a part of another one.
    secret.sort_by_key(|value| std::cmp::Reverse(value.len()));
    let mut hidden = text.to_owned();
    for value in secret {
        if hidden.contains(value) {
            hidden = hidden.replace(value, HIDDEN);
        }
    }
    without_credentials(&hidden)
}

fn without_credentials(text: &str) -> String {
    const MARK: &str = "://";
    let mut parts = text.split(MARK);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole.push_str(MARK);
        let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'');
        let authority = part.split(ends).next().unwrap_or_default();
        match authority.rfind('@') {
            Some(at) => {
                whole.push_str(HIDDEN);
                whole.push_str(&part[at..]);
            }
            None => whole.push_str(part),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fleet::job::tests::record, spec::EnvVar};

    #[test]
    fn values_of_variables_and_credentials_in_addresses_are_hidden() {
        let mut job = record();
        let variable = |name: &str, value: &str| EnvVar {
            name: name.into(),
            value: value.into(),
            value_from: None,
        };
        job.spec.env = vec![
            variable("TOKEN", "hf_secret"),
            variable("LONGER", "hf_secret_and_more"),
            variable("DEBUG", "1"),
        ];
        let said = "step 1: hf_secret_and_more, hf_secret, postgres://ann:pw@db/x http://a/b@c";
        let notice = Notice::of_job(Kind::JobFailed, Timestamp(1), said, &job)
            .with_error(Some("401 for hf_secret\nmore"), &job);
        assert_eq!(
            notice.message,
            "step 1: ***, ***, postgres://***@db/x http://a/b@c"
        );
        assert_eq!(notice.error.as_deref(), Some("401 for ***..."));
    }

    #[test]
    fn long_texts_are_cut() {
        let notice = Notice::new(Kind::Test, Timestamp(1), &"x".repeat(9_000));
        assert_eq!(notice.message.len(), SENTENCE_MAX + 3);
        assert!(notice.size() < 1_000);
    }
}
