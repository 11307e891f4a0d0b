//! What becomes of one field of a foreign file: the verdict, its reason and its place.
//!
//! Every field gets exactly one verdict, or stands inside of one that has. `Verdicts` collects them
//! and knows no field.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::tree::{Field, Place};

/// How much of a field survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// A field of the MusterJob says it.
    Taken,
    /// The same effect by other means, or none was meant.
    Note,
    /// A part has no effect here. `--strict` refuses it.
    Warning,
    /// The job would mean something else. Nothing of the file is submitted.
    Refusal,
}

impl Verdict {
    /// The word before the reason. A refusal has none, like every other mistake in a job file.
    fn word(self) -> &'static str {
        match self {
            Verdict::Taken => "taken: ",
            Verdict::Note => "note: ",
            Verdict::Warning => "warning: ",
            Verdict::Refusal => "",
        }
    }
}

/// The verdict about one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    pub place: Place,
    /// The field in its document, as `spec.replicaSpecs.Worker.replicas`. Empty: the document.
    pub path: String,
    pub verdict: Verdict,
    /// What is done, or why not.
    pub message: String,
}

impl Remark {
    pub fn refusal(place: Place, path: impl Into<String>, message: impl Into<String>) -> Remark {
        Remark {
            place,
            path: path.into(),
            verdict: Verdict::Refusal,
            message: message.into(),
        }
    }
}

impl fmt::Display for Remark {
    /// Everything after the name of the file: `9:16: warning: spec.x: message`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column } = self.place;
        write!(f, "{line}:{column}: {}", self.verdict.word())?;
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

/// The verdicts so far.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    pub(crate) remarks: Vec<Remark>,
    said: BTreeSet<String>,
    /// Where the remarks of the present document begin.
    from: usize,
    /// Fields of the present document that a misspelt name probably means. If such a field is missing,
    /// that is no second mistake.
    meant: BTreeSet<String>,
    /// Which remarks refuse a name and not what it names.
    names: BTreeSet<usize>,
}

impl Verdicts {
    /// Begins another document, whose fields have the same names.
    pub(crate) fn begin(&mut self) {
        self.from = self.remarks.len();
        self.meant.clear();
    }

    /// Refuses the name of a field, whose value is read all the same.
    pub(crate) fn refuse_name(&mut self, field: &Field<'_>, message: impl Into<String>) {
        self.names.insert(self.remarks.len());
        self.refuse(field, message);
    }

    /// The fields of the present document whose values are refused.
    fn refused_values(&self) -> impl Iterator<Item = &str> {
        let remarks = self.remarks.iter().enumerate().skip(self.from);
        remarks
            .filter(|(i, remark)| remark.verdict == Verdict::Refusal && !self.names.contains(i))
            .map(|(_, remark)| &*remark.path)
    }

    /// Remembers that a misspelt name probably means this field.
    pub(crate) fn means(&mut self, path: String) {
        self.meant.insert(path);
    }

    /// Refuses a mapping for a field that it does not have, unless a misspelt name means that field.
    pub(crate) fn lacks(&mut self, field: &Field<'_>, name: &str) {
        if !self.meant.contains(&field.below(name)) {
            self.refuse(field, format!("has no {name}"));
        }
    }

    /// Whether this field, or one around it, is known to be wrong. What else is wrong with it may follow
    /// from that.
    pub(crate) fn is_settled(&self, path: &str) -> bool {
        let covers = |covered: &str| {
            let rest = path.strip_prefix(covered);
            !covered.is_empty()
                && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.meant.iter().any(|meant| covers(meant)) || self.refused_values().any(covers)
    }

    /// Whether a field of one of these names, anywhere in the document, is wrong or misspelt.
    pub(crate) fn doubts(&self, names: &[&str]) -> bool {
        let is_one = |path: &str| names.contains(&path.rsplit('.').next().unwrap_or(path));
        self.meant.iter().any(|meant| is_one(meant)) || self.refused_values().any(is_one)
    }

    pub(crate) fn taken(&mut self, field: &Field<'_>, as_what: impl fmt::Display) {
        self.add(field, Verdict::Taken, format!("is {as_what}"));
    }

    pub(crate) fn note(&mut self, field: &Field<'_>, message: impl Into<String>) {
        self.add(field, Verdict::Note, message);
    }

    pub(crate) fn warn(&mut self, field: &Field<'_>, message: impl Into<String>) {
        self.add(field, Verdict::Warning, message);
    }

    /// Warns of something once for each `subject`, and notes it after that.
    pub(crate) fn warn_once(&mut self, field: &Field<'_>, subject: &str, message: &str) {
        match self.is_first(subject) {
            true => self.warn(field, message),
            false => self.note(field, message),
        }
    }

    /// Whether nothing was said about this subject before.
    pub(crate) fn is_first(&mut self, subject: &str) -> bool {
        self.said.insert(subject.to_owned())
    }

    pub(crate) fn refuse(&mut self, field: &Field<'_>, message: impl Into<String>) {
        self.add(field, Verdict::Refusal, message);
    }

    pub(crate) fn add(&mut self, field: &Field<'_>, verdict: Verdict, message: impl Into<String>) {
        self.remarks.push(Remark {
            place: field.place,
            path: field.path.clone(),
            verdict,
            message: message.into(),
        });
    }

    /// Puts all in the order of the lines. Takes away what was said twice, as of a runtime of two jobs, and what
    /// was said of fields that are refused: nothing becomes of them.
    pub(crate) fn only_once(&mut self) {
        let key = |remark: &Remark| (remark.place, remark.path.clone(), remark.message.clone());
        let mut worst: BTreeMap<_, Verdict> = BTreeMap::new();
        for remark in &self.remarks {
            let verdict = worst.entry(key(remark)).or_insert(remark.verdict);
            *verdict = remark.verdict.max(*verdict);
        }
        // The first of those that are alike stays, with the worst verdict.
        self.remarks
            .retain_mut(|remark| match worst.remove(&key(remark)) {
                Some(verdict) => {
                    remark.verdict = verdict;
                    true
                }
                None => false,
            });
        let is_refusal = |remark: &&Remark| remark.verdict == Verdict::Refusal;
        let refused = self.remarks.iter().filter(is_refusal);
        let refused: BTreeSet<(Place, String)> = refused
            .map(|remark| (remark.place, remark.path.clone()))
            .collect();
        self.remarks.retain(|remark| {
            is_refusal(&remark) || !refused.contains(&(remark.place, remark.path.clone()))
        });
        self.remarks.sort_by_key(|remark| remark.place);
    }

    pub(crate) fn refused(&self) -> usize {
        let refusals = self.remarks.iter();
        refusals
            .filter(|remark| remark.verdict == Verdict::Refusal)
            .count()
    }
}
