//! What the reader is told beside a file, and what the file of one kind sees of it.

use crate::{site::Site, tree::Field, verdict::Verdicts};

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
    /// It is an object of a cluster that names Muster as its manager.
    pub adopted: bool,
    /// The runtime of a TrainJob is not read yet. What the job says itself gets its verdicts.
    pub runtime_later: bool,
    /// The end of names that the cluster would make up (`generateName`).
    pub suffix: String,
    /// What the file is called: the name of a batch script that says none.
    pub file: String,
    /// The absolute directory in which the command runs, which a batch script can ask for.
    pub here: String,
}

/// What a kind's file knows beside its document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster<'a> {
    pub(crate) site: &'a Site,
    pub(crate) namespace: &'a str,
    pub(crate) command: &'a [String],
    /// What the file says of its pods is kept.
    pub(crate) pods: bool,
    /// Whose the job is was judged before.
    pub(crate) adopted: bool,
    pub(crate) runtime_later: bool,
}

impl Cluster<'_> {
    /// The priority of a class: as the site map says, else by its usual name.
    pub(crate) fn priority(
        &self,
        class: &str,
        field: &Field<'_>,
        log: &mut Verdicts,
    ) -> Option<i64> {
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
