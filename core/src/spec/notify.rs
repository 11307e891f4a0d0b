//! Whom a job asks to be told of it (`spec.notify`): receivers of the operator's file by name, and addresses of mail.
//!
//! Here is only what a document can say. Whether the operator allows it is asked when the job is submitted, and again when a
//! message is made (`fleet::notify`).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::errors::Errors;
use crate::id::label_error;

mod address;
mod kind;

pub use address::{ADDRESS_MAX, address_error, job_address_error};
pub use kind::Kind;

/// Entries of `notify`. With more than some, a job is a mailing list.
pub const NOTIFY_MAX: usize = 8;

/// Receivers, and addresses of mail, of one entry.
pub const NOTIFY_TO_MAX: usize = 8;

/// Receivers, and addresses of mail, of all entries: each notice of the job is looked up and stored for each of them. In the job's
/// record they are at most 16 * (63 + 254) bytes, 5 KiB.
pub const NOTIFY_NAMES_MAX: usize = 16;

/// What people want to know who say nothing: the ends, and a job that makes no progress while it holds its nodes.
const DEFAULT: [Kind; 3] = [Kind::JobFailed, Kind::JobSucceeded, Kind::JobStalled];

/// One entry as somebody wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NotifyDocument {
    /// Not `on`, as in the operator's file: kubectl reads YAML 1.1, in which that word is `true`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receivers: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mail: Vec<String>,
}

/// One checked entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notify {
    pub kinds: BTreeSet<Kind>,
    /// Receivers by the names in the operator's file.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub receivers: BTreeSet<String>,
    /// Addresses.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub mail: BTreeSet<String>,
}

impl Notify {
    /// The same as a document has it. A kind that only a later version knows is left out.
    pub fn document(&self) -> NotifyDocument {
        let kinds = Kind::OF_JOBS.into_iter();
        NotifyDocument {
            kinds: kinds
                .filter(|kind| self.kinds.contains(kind))
                .map(|kind| kind.word().to_owned())
                .collect(),
            receivers: self.receivers.iter().cloned().collect(),
            mail: self.mail.iter().cloned().collect(),
        }
    }
}

pub(super) fn check(entries: &[NotifyDocument], errors: &mut Errors) -> Vec<Notify> {
    few("spec.notify", entries.len(), NOTIFY_MAX, errors);
    type Names = fn(&NotifyDocument) -> usize;
    let lists: [(&str, Names); 2] = [
        ("receivers", |entry| entry.receivers.len()),
        ("addresses of mail", |entry| entry.mail.len()),
    ];
    for (what, names) in lists {
        let have: usize = entries.iter().map(names).sum();
        if have > NOTIFY_NAMES_MAX {
            let message = format!(
                "names {have} {what}, at most {NOTIFY_NAMES_MAX} are allowed in all entries together"
            );
            errors.add("spec.notify", message);
        }
    }
    let numbered = entries.iter().enumerate();
    numbered
        .map(|(at, entry)| check_one(&format!("spec.notify[{at}]"), entry, errors))
        .collect()
}

fn check_one(path: &str, entry: &NotifyDocument, errors: &mut Errors) -> Notify {
    let mut kinds = BTreeSet::new();
    few(
        &format!("{path}.kinds"),
        entry.kinds.len(),
        Kind::OF_JOBS.len(),
        errors,
    );
    for (at, word) in entry.kinds.iter().enumerate() {
        match Kind::OF_JOBS.into_iter().find(|kind| kind.word() == word) {
            Some(kind) => drop(kinds.insert(kind)),
            None => {
                let words = Kind::OF_JOBS.map(Kind::word).join(", ");
                let message = format!("is {word:?}, must be one of {words}");
                errors.add(format!("{path}.kinds[{at}]"), message);
            }
        }
    }
    if entry.kinds.is_empty() {
        kinds = DEFAULT.into();
    }
    if entry.receivers.is_empty() && entry.mail.is_empty() {
        errors.add(path, "names nobody: give receivers, mail or both");
    }
    type Wrong = fn(&str) -> Option<String>;
    let lists: [(&str, &[String], Wrong); 2] = [
        ("receivers", &entry.receivers, label_error),
        ("mail", &entry.mail, job_address_error),
    ];
    for (field, names, wrong) in lists {
        few(
            &format!("{path}.{field}"),
            names.len(),
            NOTIFY_TO_MAX,
            errors,
        );
        for (at, name) in names.iter().enumerate() {
            if let Some(why) = wrong(name) {
                errors.add(format!("{path}.{field}[{at}]"), why);
            }
        }
    }
    Notify {
        kinds,
        receivers: entry.receivers.iter().cloned().collect(),
        mail: entry.mail.iter().cloned().collect(),
    }
}

fn few(path: &str, have: usize, most: usize, errors: &mut Errors) {
    if have > most {
        errors.add(
            path,
            format!("has {have} items, at most {most} are allowed"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests::document;

    fn entry(kinds: &[&str], receivers: &[&str], mail: &[&str]) -> NotifyDocument {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        NotifyDocument {
            kinds: texts(kinds),
            receivers: texts(receivers),
            mail: texts(mail),
        }
    }

    fn checked(entries: Vec<NotifyDocument>) -> Result<Vec<Notify>, Vec<String>> {
        let mut document = document();
        document.spec.notify = entries;
        let checked = document.check().map(|(_, spec)| spec.notify);
        checked.map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn who_says_no_kind_hears_of_ends_and_stalls() {
        let spec = checked(vec![
            entry(&[], &["chat"], &[]),
            entry(&["jobStarted", "jobStarted"], &[], &["ann@example.org"]),
        ]);
        let spec = spec.unwrap();
        assert_eq!(spec[0].kinds, DEFAULT.into());
        assert_eq!(spec[1].kinds, [Kind::JobStarted].into());
        let again = spec.iter().map(Notify::document).collect();
        assert_eq!(checked(again), Ok(spec));
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let wrong = checked(vec![
            entry(&["jobFailed"], &[], &[]),
            entry(
                &["nodeCordoned"],
                &["Chat", "ok"],
                &["Ann <ann@example.org>"],
            ),
            entry(&[], &["a"; NOTIFY_TO_MAX + 1], &["a@x"; NOTIFY_TO_MAX + 1]),
        ]);
        let wrong = wrong.unwrap_err();
        for (said, must) in wrong.iter().zip([
            "spec.notify[0]: names nobody",
            "spec.notify[1].kinds[0]: is \"nodeCordoned\", must be one of jobFailed, jobSucceeded, jobStarted, jobStalled,",
            "spec.notify[1].receivers[0]: ",
            "spec.notify[1].mail[0]: \"Ann <ann@example.org>\" is no address",
            "spec.notify[2].receivers: has 9 items, at most 8",
            "spec.notify[2].mail: has 9 items",
        ]) {
            assert!(said.starts_with(must), "{must}: {wrong:?}");
        }
        assert_eq!(wrong.len(), 6, "{wrong:?}");
        let many = vec![entry(&[], &["a"], &[]); NOTIFY_MAX + 1];
        assert_eq!(checked(many).unwrap_err().len(), 1);
        let passed_on = checked(vec![entry(&[], &[], &["eve%evil.org@example.org"])]);
        let passed_on = passed_on.unwrap_err();
        assert!(
            passed_on[0].starts_with("spec.notify[0].mail[0]: "),
            "{passed_on:?}"
        );
    }

    #[test]
    fn a_job_names_few_people_in_all_its_entries() {
        let names = |receivers: usize, mail: usize| {
            let full = entry(&[], &["a"; NOTIFY_TO_MAX], &["a@x"; NOTIFY_TO_MAX]);
            checked(vec![
                full.clone(),
                full,
                entry(&[], &["a"], &[]),
                entry(&[], &vec!["a"; receivers], &vec!["a@x"; mail]),
            ])
        };
        let fits = vec![entry(&[], &["a"; NOTIFY_TO_MAX], &["a@x"; NOTIFY_TO_MAX]); 2];
        assert!(checked(fits).is_ok());
        assert_eq!(
            names(1, 1).unwrap_err(),
            [
                "spec.notify: names 18 receivers, at most 16 are allowed in all entries together",
                "spec.notify: names 17 addresses of mail, at most 16 are allowed in all entries together",
            ]
        );
    }
}
