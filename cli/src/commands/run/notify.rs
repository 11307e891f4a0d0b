//! Who is told of the job.

use clap::Args;
use muster_core::spec::{NotifyDocument, SpecDocument, notify::Kind};

#[derive(Debug, Default, Args)]
pub(super) struct Told {
    /// Tell this receiver or address of mail of the job, as chat or ann@example.org (repeatable;
    /// `muster notify list` shows what the operator has opened to jobs)
    #[arg(long, value_name = "NAME|ADDRESS")]
    notify: Vec<String>,

    /// What they are told of, as failed,succeeded,started,stalled,waiting,restartBudgetHalfSpent,nodeFailed
    /// [default: failed,succeeded,stalled]
    #[arg(long, alias = "notify_on", value_name = "KINDS", value_delimiter = ',', value_parser = read, requires = "notify")]
    notify_on: Vec<Kind>,
}

/// A kind's own word, or that of a job's without `job`: `failed` is `jobFailed`. A failure of a node has its whole word.
fn read(text: &str) -> Result<Kind, String> {
    let short = |kind: Kind| kind.word().strip_prefix("job").map(str::to_lowercase);
    let kinds = || Kind::OF_JOBS.into_iter();
    let word = text.trim();
    { kinds() }
        .find(|kind| kind.word() == word || short(*kind).is_some_and(|short| short == word))
        .ok_or_else(|| {
            let words = kinds().map(|kind| short(kind).unwrap_or_else(|| kind.word().to_owned()));
            let words: Vec<String> = words.collect();
            format!("must be some of {}", words.join(","))
        })
}

impl Told {
    /// Writes it into a document.
    pub(super) fn write(&self, spec: &mut SpecDocument) {
        if self.notify.is_empty() {
            return;
        }
        let (mail, receivers) = { self.notify.iter().cloned() }.partition(|to| to.contains('@'));
        spec.notify = vec![NotifyDocument {
            kinds: { self.notify_on.iter() }
                .map(|kind| kind.word().to_owned())
                .collect(),
            receivers,
            mail,
        }];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_its_own_word_and_a_jobs_a_short_one() {
        for (text, kind) in [
            ("failed", Kind::JobFailed),
            ("jobFailed", Kind::JobFailed),
            (" started", Kind::JobStarted),
            ("nodeFailed", Kind::NodeFailed),
            ("restartBudgetHalfSpent", Kind::RestartBudgetHalfSpent),
        ] {
            assert_eq!(read(text), Ok(kind), "{text}");
        }
        for bad in ["Failed", "nodeCordoned", "cordoned", "test", ""] {
            let why = read(bad).unwrap_err();
            assert!(
                why.starts_with("must be some of failed,succeeded,started,"),
                "{why}"
            );
        }
    }

    #[test]
    fn what_has_an_at_sign_is_an_address() {
        let told = Told {
            notify: ["chat", "ann@example.org"].map(str::to_owned).to_vec(),
            notify_on: vec![Kind::JobFailed],
        };
        let mut spec = SpecDocument::default();
        told.write(&mut spec);
        let entry = &spec.notify[0];
        assert_eq!(entry.kinds, ["jobFailed"]);
        assert_eq!(
            (&entry.receivers[..], &entry.mail[..]),
            (
                &["chat".to_owned()][..],
                &["ann@example.org".to_owned()][..]
            )
        );
        let mut nothing = SpecDocument::default();
        Told::default().write(&mut nothing);
        assert!(nothing.notify.is_empty());
    }
}
