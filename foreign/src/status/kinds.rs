//! The kinds whose words are known: how they are called on a command line, and what their operators
//! write into reasons and messages.

use super::{End, Life};

/// A kind whose jobs can be shown in its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub kind: &'static str,
    pub group: &'static str,
    /// As `pytorchjobs`. Without its last letter it names one job.
    pub plural: &'static str,
    /// A message names the job as NAMESPACE/NAME where others have its name alone.
    full_name: FullName,
    /// A failure of a member shows as Restarting. Elsewhere the job stays Running.
    pub(super) says_restarting: bool,
}

/// When messages about running and success name the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FullName {
    Never,
    Always,
    WithoutMaster,
}

const KUBEFLOW: &str = "kubeflow.org";

const KINDS: [Shown; 7] = [
    kubeflow("PyTorchJob", "pytorchjobs", FullName::WithoutMaster),
    kubeflow("TFJob", "tfjobs", FullName::Always),
    kubeflow("JAXJob", "jaxjobs", FullName::Always),
    kubeflow("XGBoostJob", "xgboostjobs", FullName::Never),
    kubeflow("PaddleJob", "paddlejobs", FullName::WithoutMaster),
    kubeflow("MPIJob", "mpijobs", FullName::Always),
    Shown {
        group: "elastic.pytorch.org",
        ..kubeflow("ElasticJob", "elasticjobs", FullName::Never)
    },
];

const fn kubeflow(kind: &'static str, plural: &'static str, full_name: FullName) -> Shown {
    Shown {
        kind,
        group: KUBEFLOW,
        plural,
        full_name,
        says_restarting: true,
    }
}

/// All kinds whose words are known.
pub fn shown_kinds() -> impl Iterator<Item = &'static Shown> {
    KINDS.iter()
}

/// The kind of a job's origin, if its words are known.
pub fn shown(kind: &str, api_version: &str) -> Option<Shown> {
    let (group, version) = api_version.split_once('/')?;
    let found = shown_kinds().find(|known| known.kind == kind && known.group == group)?;
    Some(Shown {
        // The operator of this version leaves restarts to the launcher's own Job.
        says_restarting: !(kind == "MPIJob" && version == "v2beta1"),
        ..*found
    })
}

impl Shown {
    /// Whether this is the kind that a user means: kind, singular or plural, with or without its group.
    pub fn is_called(&self, word: &str) -> bool {
        let word = word.to_ascii_lowercase();
        let named = match word.split_once('.') {
            Some((named, group)) if group == self.group => named,
            Some(_) => return false,
            None => &word,
        };
        named == self.plural || named == self.singular()
    }

    /// As `pytorchjob`: the word before the name of one.
    pub fn singular(&self) -> &'static str {
        self.plural.strip_suffix('s').unwrap_or(self.plural)
    }

    pub(super) fn words<'a>(&self, life: &'a Life<'_>) -> Words<'a> {
        let has_master = life.members.iter().any(|member| member.group == "master");
        let full = match self.full_name {
            FullName::Never => false,
            FullName::Always => true,
            FullName::WithoutMaster => !has_master,
        };
        Words {
            kind: self.kind,
            name: life.name,
            namespace: full.then_some(life.namespace),
        }
    }
}

/// A group as the kinds write it: `Worker`, `PS`. Groups of other names are as they are.
pub(super) fn group(name: &str) -> String {
    const GROUPS: [&str; 6] = ["Master", "Worker", "Chief", "PS", "Evaluator", "Launcher"];
    let known = GROUPS.iter().find(|known| known.eq_ignore_ascii_case(name));
    known.copied().unwrap_or(name).to_owned()
}

/// The words about one job.
#[derive(Debug)]
pub(super) struct Words<'a> {
    kind: &'static str,
    name: &'a str,
    /// If messages name it.
    namespace: Option<&'a str>,
}

impl Words<'_> {
    /// `PyTorchJobRunning`.
    pub(super) fn reason(&self, what: &str) -> String {
        format!("{}{what}", self.kind)
    }

    fn full(&self) -> String {
        match self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => self.short(),
        }
    }

    fn short(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    pub(super) fn created(&self) -> String {
        format!("{} is created.", self.short())
    }

    pub(super) fn running(&self) -> String {
        format!("{} is running.", self.full())
    }

    /// One member is at fault, whatever fell with it.
    pub(super) fn restarting(&self, culprit: Option<&str>) -> String {
        let replicas = replicas(culprit);
        format!("{} is restarting because {replicas} failed.", self.short())
    }

    pub(super) fn suspended(&self) -> String {
        format!("{} is suspended.", self.short())
    }

    pub(super) fn resumed(&self) -> String {
        format!("{} is resumed.", self.short())
    }

    pub(super) fn succeeded(&self) -> String {
        match self.namespace {
            Some(_) => format!("{} successfully completed.", self.full()),
            None => format!("{} is successfully completed.", self.short()),
        }
    }

    pub(super) fn failed(&self, end: &End) -> String {
        match end {
            End::Restarts => format!(
                "Job {} has failed because it has reached the specified backoff limit",
                self.name
            ),
            End::Deadline => format!(
                "Job {} has failed because it was active longer than specified deadline",
                self.name
            ),
            End::Failure { group } => {
                let replicas = replicas(group.as_deref());
                match self.kind {
                    "TFJob" => format!("{} has failed because {replicas} failed.", self.full()),
                    "MPIJob" => format!("{} has failed", self.full()),
                    _ => format!("{} is failed because {replicas} failed.", self.short()),
                }
            }
            End::Cancelled => format!("{} was cancelled.", self.short()),
            End::Other { message } | End::Refused { message } => message.clone(),
        }
    }
}

fn replicas(of: Option<&str>) -> String {
    match of {
        Some(name) => format!("1 {} replica(s)", group(name)),
        None => "1 replica(s)".to_owned(),
    }
}
