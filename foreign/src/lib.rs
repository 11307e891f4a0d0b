//! Reads the job files of other systems: a tree with places in, [`JobDocument`]s and a verdict for
//! every field out.
//!
//! A file is taken as it is, or refused with the reason and the place: nothing is left out in
//! silence. `tree` owns the syntax. `documents` finds the jobs in a file by group and kind, `kinds`
//! has a file for each kind, `pod` the template that they share, `launch` the command. This crate
//! reads no file and asks no node; whether a job is right in the end is for `JobDocument::check` in
//! core.
#![forbid(unsafe_code)]

use muster_core::spec::JobDocument;

mod documents;
mod draft;
mod fields;
mod flags;
mod kinds;
mod launch;
mod pod;
mod procs;
mod roles;
mod run_policy;
mod shell;
mod site;
pub mod spelling;
#[cfg(test)]
mod tests;
pub mod tree;
mod variables;
mod verdict;
mod words;

pub use documents::{is_ours, read};
pub use draft::{Converted, ObjectOnly};
pub use shell::words as split_words;
pub use site::Site;
pub use verdict::{Remark, Verdict};

use fields::Field;
use verdict::Verdicts;

/// What the reader is told beside the file.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub site: Site,
    /// The namespace that every job must have, and jobs that name none get.
    pub namespace: Option<String>,
    /// What is run where a file only names an image.
    pub command: Vec<String>,
    /// The job shall run in pods of its own, as a `MusterJob` object with a template. Then what the file
    /// says of its pods is kept.
    pub pods: bool,
    /// The end of names that the cluster would make up (`generateName`).
    pub suffix: String,
}

/// What was found in a file.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// In the order of the file. A job that was refused is not among them.
    pub jobs: Vec<Converted>,
    /// The verdicts, in the order of the lines.
    pub remarks: Vec<Remark>,
}

impl Reading {
    pub fn is_refused(&self) -> bool {
        self.remarks
            .iter()
            .any(|remark| remark.verdict == Verdict::Refusal)
    }

    /// The jobs as documents.
    pub fn documents(&self) -> impl Iterator<Item = &JobDocument> {
        self.jobs.iter().map(|job| &job.document)
    }
}

/// What a kind's file knows beside its document.
#[derive(Clone, Copy, Debug)]
struct Cluster<'a> {
    site: &'a Site,
    namespace: &'a str,
    command: &'a [String],
    /// What the file says of its pods is kept.
    pods: bool,
}

impl Cluster<'_> {
    /// The priority of a class: as the site map says, else by its usual name.
    fn priority(&self, class: &str, field: &Field<'_>, log: &mut Verdicts) -> Option<i64> {
        let usual = match class {
            "high" => Some(1_000),
            "normal" => Some(0),
            "low" => Some(-1_000),
            _ => None,
        };
        let priority = self.site.priorities.get(class).copied().or(usual);
        match priority {
            Some(priority) => log.taken(field, format!("spec.priority: {priority}")),
            None => log.warn(
                field,
                format!(
                    "has no effect; name a number with `priorities: {{{class}: N}}` in the site map"
                ),
            ),
        }
        priority
    }
}
