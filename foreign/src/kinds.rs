//! The kinds that are read, each by group, kind and version, and those that are refused by name.

use crate::{
    draft::{Converted, Meta, SIZES, Size},
    launch::{Given, Launch},
    options::Cluster,
    spelling::misspelt,
    tree::{Field, Node},
    verdict::Verdicts,
};

mod ai_training_job;
mod elastic_job;
mod frameworks;
mod mpi_job;
pub(crate) mod pods;
mod pytorch_job;
pub(crate) mod sbatch;
mod train_job;

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
        read: frameworks::tensorflow,
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
        read: frameworks::jax,
    },
    Kind {
        group: "kubeflow.org",
        kind: "XGBoostJob",
        versions: &["v1"],
        read: frameworks::xgboost,
    },
    Kind {
        group: "kubeflow.org",
        kind: "PaddleJob",
        versions: &["v1"],
        read: frameworks::paddle,
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
    /// The kind that is probably meant.
    Misspelt(&'static Kind),
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
        None => match misspelt(kind, &of_group(group)) {
            Some(meant) => match find(group, meant, version) {
                Known::Reads(found) => Known::Misspelt(found),
                other => other,
            },
            None => Known::Unknown,
        },
    }
}

/// The kinds of a group that are read.
fn of_group(group: &str) -> Vec<&'static str> {
    let kinds = KINDS.iter().filter(|kind| kind.group == group);
    kinds.map(|kind| kind.kind).collect()
}

/// Version 1 has alpha and beta before it, and is the nearest of both.
fn nearest_version(versions: &[&'static str], version: &str) -> &'static str {
    let same_major = versions.iter().find(|known| {
        let major = |text: &str| text.chars().nth(1);
        major(known) == major(version)
    });
    same_major.or(versions.first()).copied().unwrap_or_default()
}

/// How many nodes a job has, and how few and how many it may have.
#[derive(Debug)]
struct Sizes<'t> {
    replicas: Size<'t>,
    min: Option<Size<'t>>,
    max: Option<Size<'t>>,
}

/// The same after the launcher's own flags, which win over what an operator tells it (torchrun prefers its
/// command line to `PET_NNODES`). `given` are the job's fields for the least and the most nodes, each with
/// the name of ours.
fn nodes<'t>(
    launch: &Launch,
    sizes: Sizes<'t>,
    given: &[(Option<&Field<'t>>, &'static str)],
    log: &mut Verdicts,
) -> Sizes<'t> {
    let replicas = sizes.replicas.0;
    let most = |sizes: &Sizes<'_>| sizes.max.as_ref().map_or(replicas, |(max, _)| *max);
    let least = |sizes: &Sizes<'_>| sizes.min.as_ref().map_or(replicas, |(min, _)| *min);
    let said = (least(&sizes), most(&sizes));
    let is_elastic = sizes.min.is_some() || sizes.max.is_some();
    let in_doubt = log.doubts(&SIZES);
    if let Some((_, at)) = launch.standalone.as_ref().map(Given::field) {
        match replicas == 1 && said.1 == 1 {
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
    let flag = launch.nodes.as_ref().map(Given::field);
    let wins = flag.filter(|(flag, at)| {
        if *flag == said {
            log.note(at, "says the same number of nodes as the job");
        }
        *flag != said
    });
    for (field, name) in given {
        if let Some(field) = field {
            match &wins {
                None => log.taken(field, name),
                Some(_) => log.note(
                    field,
                    "is not used: the command says it, and wins upstream as well",
                ),
            }
        }
    }
    let Some(((min, max), at)) = wins.filter(|_| !in_doubt) else {
        return sizes;
    };
    let shown = |(min, max): (i64, i64)| match min == max {
        true => min.to_string(),
        false => format!("{min}:{max}"),
    };
    let flag = shown((min, max));
    if min < 1 || max < min {
        log.refuse(
            &at,
            format!(
                "is {flag}, must be a number of nodes from 1 on, or MIN:MAX with MIN not above MAX"
            ),
        );
    } else if replicas < min {
        log.refuse(
            &at,
            format!("says {flag} nodes, and the job has {replicas}: this world never forms, upstream as well; make the numbers the same"),
        );
    } else if replicas > max {
        log.refuse(
            &at,
            format!("says {flag} nodes, and the job has {replicas}: the others would never train; make the numbers the same"),
        );
    } else if is_elastic {
        let stays = match min == max {
            true => "; the number stays",
            false => "",
        };
        log.warn(
            &at,
            format!(
                "says {flag} nodes, and wins over the {} of the job, as upstream{stays}",
                shown(said)
            ),
        );
    } else {
        log.taken(&at, "spec.minReplicas and spec.maxReplicas");
    }
    let changes = min != max;
    Sizes {
        min: changes.then(|| (min, at.clone())),
        max: changes.then_some((max, at)),
        ..sizes
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
