//! The kinds whose words are known: how they are called on a command line, and what their operators
//! write into reasons and messages.

use super::{End, Life, ai_training, trainer};

/// A kind whose jobs can be shown in its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub kind: &'static str,
    pub group: &'static str,
    /// As `pytorchjobs`. Without its last letter it names one job.
    pub plural: &'static str,
    /// A message names the job as NAMESPACE/NAME where others have its name alone.
    full_name: FullName,
    pub(super) operator: Operator,
}

/// Whose words they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    /// Kubeflow's training operator, and that of TorchElastic, from which it came.
    Training,
    /// mpi-operator, since `v2beta1`. It leaves restarts to the launcher's own Job, whose reasons it
    /// passes on (`pkg/controller/mpi_job_controller.go`).
    Mpi,
    /// That of Baidu's CCE, and its open ancestor, trainingjob-operator.
    AiTraining,
    /// Kubeflow Trainer, which has followed the training operator.
    Trainer,
}

/// When messages about running and success name the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FullName {
    Never,
    Always,
    WithoutMaster,
}

const KUBEFLOW: &str = "kubeflow.org";

const KINDS: [Shown; 10] = [
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
    ai_training("kongming.cce.baiudbce.com"),
    ai_training("elasticdeeplearning.ai"),
    Shown {
        group: "trainer.kubeflow.org",
        operator: Operator::Trainer,
        ..kubeflow("TrainJob", "trainjobs", FullName::Never)
    },
];

const fn ai_training(group: &'static str) -> Shown {
    Shown {
        group,
        operator: Operator::AiTraining,
        ..kubeflow("AITrainingJob", "aitrainingjobs", FullName::Never)
    }
}

const fn kubeflow(kind: &'static str, plural: &'static str, full_name: FullName) -> Shown {
    Shown {
        kind,
        group: KUBEFLOW,
        plural,
        full_name,
        operator: Operator::Training,
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
        operator: match (kind, version) {
            ("MPIJob", "v2beta1") => Operator::Mpi,
            _ => found.operator,
        },
        ..*found
    })
}

impl Shown {
    /// Whether a condition of this type that holds means that the job is over.
    pub fn is_end(&self, condition: &str) -> bool {
        let ends: &[&str] = match self.operator {
            Operator::Training | Operator::Mpi => &["Succeeded", "Failed"],
            Operator::AiTraining => &ai_training::ENDS,
            Operator::Trainer => &trainer::ENDS,
        };
        ends.contains(&condition)
    }

    /// Whether such a condition says that the job has failed.
    pub fn is_failure(&self, condition: &str) -> bool {
        let succeeds = ["Succeeded", "Succeed", "Complete"];
        self.is_end(condition) && !succeeds.contains(&condition)
    }

    /// Its status counts the replicas of each group, also where there are none.
    pub fn has_replicas(&self) -> bool {
        self.operator != Operator::Trainer
    }

    /// A job that was held back once says for ever that it was resumed.
    pub fn tells_of_resuming(&self) -> bool {
        self.operator != Operator::AiTraining
    }

    /// Its conditions are a history: each change adds one.
    pub fn has_history(&self) -> bool {
        self.operator == Operator::AiTraining
    }

    /// Whether this is the kind that a user means: kind, singular or plural, with or without its group.
    pub fn is_called(&self, word: &str) -> bool {
        let word = word.to_ascii_lowercase();
        let named = match word.split_once('.') {
            Some((named, group)) if group == self.group => named,
            Some(_) => return false,
            None => &word,
        };
        let short = (self.operator == Operator::AiTraining).then_some("aitj");
        named == self.plural || named == self.singular() || Some(named) == short
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
            is_mpi: self.operator == Operator::Mpi,
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
    is_mpi: bool,
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
        match self.is_mpi {
            false => format!("{} is created.", self.short()),
            true => format!("{} is created.", self.full()),
        }
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
        match self.is_mpi {
            false => format!("{} is suspended.", self.short()),
            true => format!("{} suspended", self.kind),
        }
    }

    /// The message of the condition Running, which does not hold any more.
    pub(super) fn runs_no_more(&self) -> String {
        match self.is_mpi {
            false => self.suspended(),
            true => format!("{} is suspended.", self.full()),
        }
    }

    pub(super) fn resumed(&self) -> String {
        match self.is_mpi {
            false => format!("{} is resumed.", self.short()),
            true => format!("{} resumed", self.kind),
        }
    }

    pub(super) fn succeeded(&self) -> String {
        match self.namespace {
            Some(_) => format!("{} successfully completed.", self.full()),
            None => format!("{} is successfully completed.", self.short()),
        }
    }

    /// The reason of the condition Failed.
    pub(super) fn why_failed(&self, end: &End) -> String {
        match (end, self.is_mpi) {
            (End::Cancelled, _) => "Cancelled".to_owned(),
            (End::Refused { .. }, _) => self.reason("FailedValidation"),
            (End::Restarts, true) => "BackoffLimitExceeded".to_owned(),
            (End::Deadline, true) => "DeadlineExceeded".to_owned(),
            _ => self.reason("Failed"),
        }
    }

    pub(super) fn failed(&self, end: &End) -> String {
        match end {
            End::Restarts if self.is_mpi => {
                "Job has reached the specified backoff limit".to_owned()
            }
            End::Deadline if self.is_mpi => {
                "Job was active longer than specified deadline".to_owned()
            }
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
