//! `--mail-type` and `--mail-user`: who gets mail of what.

use std::collections::BTreeSet;

use muster_core::spec::{
    NotifyDocument,
    notify::{Kind, NOTIFY_TO_MAX, job_address_error},
};

use super::asked::At;
use crate::{tree::Field, verdict::Verdicts};

/// What each type means here. Source: sbatch(1) of Slurm 25.05. The end of a time limit and a dependency that can never be met
/// are failures, and a job that has lost a node starts again without a queue.
const TYPES: [(&str, &[Kind]); 8] = [
    ("NONE", &[]),
    ("BEGIN", &[Kind::JobStarted]),
    ("END", &[Kind::JobFailed, Kind::JobSucceeded]),
    ("FAIL", &[Kind::JobFailed]),
    ("REQUEUE", &[Kind::NodeFailed]),
    ("TIME_LIMIT", &[Kind::JobFailed]),
    ("INVALID_DEPEND", &[Kind::JobFailed]),
    (
        "ALL",
        &[
            Kind::JobFailed,
            Kind::JobSucceeded,
            Kind::JobStarted,
            Kind::JobStalled,
            Kind::NodeFailed,
        ],
    ),
];

#[derive(Clone, Debug, Default)]
pub(super) struct Mail {
    types: At<String>,
    user: At<String>,
}

impl Mail {
    /// Takes one of the two options. A later one wins, as in Slurm.
    pub(super) fn take(&mut self, name: &str, text: &str, at: &Field<'static>) {
        let to = match name {
            "mail-type" => &mut self.types,
            _ => &mut self.user,
        };
        *to = Some((text.to_owned(), at.clone()));
    }

    /// Whom the job asks to be told of what.
    pub(super) fn notify(&self, log: &mut Verdicts) -> Vec<NotifyDocument> {
        let (types, at) = match (&self.types, &self.user) {
            (Some((types, at)), _) => (types, at),
            (None, Some((_, at))) => {
                log.note(at, "has no effect without --mail-type, as in Slurm");
                return Vec::new();
            }
            (None, None) => return Vec::new(),
        };
        let kinds = kinds(types, at, log);
        let Some((user, user_at)) = &self.user else {
            if !kinds.is_empty() {
                log.warn(at, "tells nobody: Slurm mails the user who submits, whose address Muster does not know; say it with --mail-user=ann@example.org");
            }
            return Vec::new();
        };
        let users: Vec<&str> = user.split(',').map(str::trim).collect();
        let bare = users.iter().find(|user| job_address_error(user).is_some());
        let no_effect = match (bare, kinds.is_empty()) {
            (_, true) => {
                log.note(user_at, "has no effect: --mail-type asks for nothing");
                return Vec::new();
            }
            (Some(bare), _) => Some(format!(
                "tells nobody: write {bare:?} as an address of mail, as ann@example.org"
            )),
            _ if users.len() > NOTIFY_TO_MAX => Some(format!(
                "tells nobody: it names {} addresses, and at most {NOTIFY_TO_MAX} are told",
                users.len()
            )),
            _ => None,
        };
        if let Some(why) = no_effect {
            log.warn(user_at, why);
            log.note(at, "has no effect without an address");
            return Vec::new();
        }
        let what = "part of spec.notify, if the coordinator's operator has opened mail to jobs (muster notify list)";
        log.taken(at, what);
        log.taken(user_at, what);
        vec![NotifyDocument {
            kinds: { kinds.into_iter() }
                .map(|kind| kind.word().to_owned())
                .collect(),
            receivers: Vec::new(),
            mail: users.into_iter().map(str::to_owned).collect(),
        }]
    }
}

fn kinds(text: &str, at: &Field<'static>, log: &mut Verdicts) -> BTreeSet<Kind> {
    let (mut kinds, mut others) = (BTreeSet::new(), Vec::new());
    for word in text.split(',').map(str::trim) {
        let known = TYPES
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(word));
        match known {
            Some((_, of)) => kinds.extend(of.iter().copied()),
            None => others.push(word),
        }
    }
    match (others.is_empty(), kinds.is_empty()) {
        (true, false) => {}
        (true, true) => log.note(at, "asks for no mail"),
        (false, _) => log.note(at, format!("{} has no meaning here", others.join(", "))),
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{tree::Place, words::Word};

    /// What is asked for, and what is said, with the letter of the option: t or u.
    fn read(types: Option<&str>, user: Option<&str>) -> (Vec<NotifyDocument>, Vec<String>) {
        let (mut mail, mut log) = (Mail::default(), Verdicts::default());
        for (name, text) in [("mail-type", types), ("mail-user", user)] {
            if let Some(text) = text {
                mail.take(name, text, &Word::at(Place::START, &name[5..6]).field());
            }
        }
        let notify = mail.notify(&mut log);
        let said = log
            .remarks
            .iter()
            .map(|one| format!("{}: {}", one.path, one.message));
        (notify, said.collect())
    }

    #[test]
    fn types_are_kinds_and_the_user_is_an_address() {
        let on = |types| {
            let (notify, _) = read(Some(types), Some("ann@example.org"));
            notify.first().map(|entry| entry.kinds.join(","))
        };
        for (types, kinds) in [
            ("BEGIN", Some("jobStarted")),
            ("end", Some("jobFailed,jobSucceeded")),
            ("FAIL,TIME_LIMIT", Some("jobFailed")),
            ("REQUEUE", Some("nodeFailed")),
            (
                "ALL",
                Some("jobFailed,jobSucceeded,jobStarted,jobStalled,nodeFailed"),
            ),
            ("NONE", None),
            ("STAGE_OUT", None),
        ] {
            assert_eq!(on(types).as_deref(), kinds, "{types}");
        }
        let (notify, said) = read(Some("END,TIME_LIMIT_80,ARRAY_TASKS"), Some("ann@x, bob@x"));
        assert_eq!(notify[0].mail, ["ann@x", "bob@x"]);
        assert_eq!(said[0], "t: TIME_LIMIT_80, ARRAY_TASKS has no meaning here");
        assert_eq!(said.len(), 3, "{said:?}");
    }

    #[test]
    fn each_option_that_tells_nobody_says_why() {
        for (types, user, must) in [
            (Some("END"), None, &["t: tells nobody: Slurm mails"][..]),
            (
                Some("END"),
                Some("ann"),
                &["u: tells nobody: write \"ann\" as", "t: has no effect"],
            ),
            (
                Some("END"),
                Some("ann%x@y"),
                &["u: tells nobody: write \"ann%x@y\" as", "t: has no effect"],
            ),
            (
                Some("END"),
                Some("a@x,a@x,a@x,a@x,a@x,a@x,a@x,a@x,a@x"),
                &["u: tells nobody: it names 9", "t: has no effect"],
            ),
            (
                None,
                Some("ann@x"),
                &["u: has no effect without --mail-type"],
            ),
            (
                Some("NONE"),
                Some("ann@x"),
                &["t: asks for no mail", "u: has no effect"],
            ),
            (Some("STAGE_OUT"), None, &["t: STAGE_OUT has no meaning"]),
            (None, None, &[]),
        ] {
            let (notify, said) = read(types, user);
            assert!(notify.is_empty());
            assert_eq!(said.len(), must.len(), "{said:?}");
            for (said, must) in said.iter().zip(must) {
                assert!(said.starts_with(must), "{must}: {said}");
            }
        }
    }
}
