//! The kinds that are read, each by group, kind and version, and those that are refused by name.

use crate::{
    Cluster,
    draft::{Converted, Draft, Meta},
    fields::{Field, Object},
    launch::{Given, Launch},
    roles::{self, Policy, Style},
    run_policy,
    tree::Node,
    verdict::Verdicts,
};

mod ai_training_job;
mod elastic_job;
mod jax_job;
mod mpi_job;
mod paddle_job;
pub(crate) mod pods;
mod pytorch_job;
mod tf_job;
mod train_job;
mod xgboost_job;

/// One job of a file.
#[derive(Debug)]
pub(crate) struct Job<'a, 't> {
    pub(crate) kind: &'static str,
    pub(crate) version: &'t str,
    pub(crate) meta: &'a Meta<'t>,
    pub(crate) spec: Field<'t>,
    /// All documents of the file.
    pub(crate) documents: &'a [&'t Node],
}

type Read = for<'a, 't> fn(&Job<'a, 't>, &Cluster<'_>, &mut Verdicts) -> Option<Converted>;

/// A kind that is read.
pub(crate) struct Kind {
    group: &'static str,
    pub(crate) kind: &'static str,
    /// The newest first.
    versions: &'static [&'static str],
    pub(crate) read: Read,
}

static KINDS: [Kind; 10] = [
    Kind {
        group: "elastic.pytorch.org",
        kind: "ElasticJob",
        versions: &["v1alpha1"],
        read: elastic_job::read,
    },
    Kind {
        group: "kubeflow.org",
        kind: "PyTorchJob",
        versions: &["v1"],
        read: pytorch_job::read,
    },
    Kind {
        group: "kubeflow.org",
        kind: "TFJob",
        versions: &["v1"],
        read: tf_job::read,
    },
    Kind {
        group: "kubeflow.org",
        kind: "MPIJob",
        versions: &["v2beta1", "v1"],
        read: mpi_job::read,
    },
    Kind {
        group: "kubeflow.org",
        kind: "JAXJob",
        versions: &["v1"],
        read: jax_job::read,
    },
    Kind {
        group: "kubeflow.org",
        kind: "XGBoostJob",
        versions: &["v1"],
        read: xgboost_job::read,
    },
    Kind {
        group: "kubeflow.org",
        kind: "PaddleJob",
        versions: &["v1"],
        read: paddle_job::read,
    },
    Kind {
        group: "trainer.kubeflow.org",
        kind: "TrainJob",
        versions: &["v1alpha1"],
        read: train_job::read,
    },
    Kind {
        group: "kongming.cce.baiudbce.com",
        kind: "AITrainingJob",
        versions: &["v1"],
        read: ai_training_job::read,
    },
    Kind {
        group: "elasticdeeplearning.ai",
        kind: "AITrainingJob",
        versions: &["v1"],
        read: ai_training_job::read,
    },
];

/// Kinds that are known and not read.
const REFUSED: [(&str, &str, &str); 4] = [
    (
        "elastic.iml.github.io",
        "ElasticJob",
        "is DLRover's ElasticJob, which is another kind than that of elastic.pytorch.org, and is not read",
    ),
    (
        "kubeflow.org",
        "MXJob",
        "is an MXJob, which Kubeflow has given up and Muster does not read",
    ),
    (
        "batch.volcano.sh",
        "Job",
        "is a job of Volcano, which is not read yet: Muster has no tasks with different commands",
    ),
    (
        "jobset.x-k8s.io",
        "JobSet",
        "is a JobSet, which is not read; a TrainJob that makes one is",
    ),
];

/// What is known of a kind.
pub(crate) enum Known {
    Reads(&'static Kind),
    Refused(String),
    Unknown,
}

pub(crate) fn find(group: &str, kind: &str, version: &str) -> Known {
    if let Some(found) = KINDS.iter().find(|k| k.group == group && k.kind == kind) {
        return match found.versions.contains(&version) {
            true => Known::Reads(found),
            false => Known::Refused(format!(
                "is {kind} of version {version:?}, which is not read; the nearest that is read is {group}/{}",
                nearest_version(found.versions, version)
            )),
        };
    }
    let refused = REFUSED
        .iter()
        .find(|(known_group, known, _)| *known_group == group && *known == kind);
    if let Some((_, _, why)) = refused {
        return Known::Refused((*why).to_owned());
    }
    // A group that is misspelt, or another operator's kind of the same name.
    match KINDS.iter().find(|k| k.kind == kind) {
        Some(found) => Known::Refused(format!(
            "is {kind} of {group:?}, which is not read; {kind} of {:?} is",
            found.group
        )),
        None => Known::Unknown,
    }
}

/// Version 1 has alpha and beta before it, and is the nearest of both.
fn nearest_version(versions: &[&'static str], version: &str) -> &'static str {
    let same_major = versions.iter().find(|known| {
        let major = |text: &str| text.chars().nth(1);
        major(known) == major(version)
    });
    same_major.or(versions.first()).copied().unwrap_or_default()
}

/// A flag of the launcher that says another number of nodes than the job would win upstream.
/// `sizes` are the least and the most nodes.
fn nodes_agree(launch: &Launch, sizes: (i64, i64), replicas: i64, log: &mut Verdicts) {
    if let Some((_, at)) = launch.standalone.as_ref().map(Given::field) {
        match replicas == 1 && sizes.1 == 1 {
            true => log.note(
                &at,
                "--standalone is not needed: Muster brings the nodes together",
            ),
            false => log.refuse(
                &at,
                "--standalone makes each node a world of its own; submit one job for each",
            ),
        }
    }
    let Some(((min, max), at)) = launch.nodes.as_ref().map(Given::field) else {
        return;
    };
    let shown = |(min, max): (i64, i64)| match min == max {
        true => min.to_string(),
        false => format!("{min}:{max}"),
    };
    match (min, max) == sizes {
        true => log.note(&at, "says the same number of nodes as the job"),
        false => log.refuse(
            &at,
            format!(
                "says {} nodes, and the job {}; say it once, in the job",
                shown((min, max)),
                shown(sizes)
            ),
        ),
    }
}

/// Reads a kind whose processes find each other in a way that Muster does not offer yet. One process
/// alone needs nobody: it runs as a plain program.
#[derive(Clone, Copy, Debug)]
struct Alone {
    /// The field with the replica groups.
    specs: &'static str,
    /// The groups, of which the first ones may run alone.
    roles: &'static [&'static str],
    may_run: usize,
    style: Style,
    /// The groups' restartPolicy, if they name none.
    policy: Policy,
    /// Why more than one process is refused, or any if none `may_run`.
    why: &'static str,
}

impl Alone {
    fn read(
        self,
        job: &Job<'_, '_>,
        spec: &Object<'_>,
        cluster: &Cluster<'_>,
        log: &mut Verdicts,
    ) -> Option<Converted> {
        let first = log.remarks.len();
        let own = [
            "kubeflow.org/training-operator",
            "kubeflow.org/mpi-operator",
        ];
        let run = run_policy::read(spec, &own, cluster, log);
        let Some(specs) = spec.get(self.specs) else {
            log.refuse(&job.spec, format!("has no {}", self.specs));
            return None;
        };
        let before = log.refused();
        let roles = roles::read(specs, self.roles, 1, self.style, cluster, log);
        let total = roles
            .iter()
            .fold(0_i64, |sum, role| sum.saturating_add(role.replicas));
        let others = log.refused() > before;
        let role = match &roles[..] {
            [role] if total == 1 && self.roles[..self.may_run].contains(&role.name) => role,
            _ => {
                log.refuse(specs, self.why);
                log.calm(first);
                return None;
            }
        };
        if others {
            return None;
        }
        log.taken(&role.replicas_at, "spec.replicas");
        let mut launch = role.launch.clone();
        launch.without_torch();
        let restarts = roles::restarts(
            role.policy.as_ref(),
            self.policy,
            &run,
            None,
            "128 to 255",
            log,
        );
        Draft {
            kind: job.kind,
            meta: job.meta,
            pod: &role.pod,
            launch: &launch,
            replicas: (1, role.replicas_at.clone()),
            min: None,
            max: None,
            procs: 1,
            restarts,
            run: &run,
        }
        .finish(log)
    }
}

/// The names of all kinds that are read.
pub(crate) fn names() -> String {
    let mut names: Vec<&str> = vec![muster_core::spec::KIND];
    for kind in &KINDS {
        if !names.contains(&kind.kind) {
            names.push(kind.kind);
        }
    }
    names.join(", ")
}
