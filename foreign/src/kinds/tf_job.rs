//! `TFJob` of `kubeflow.org/v1`. One process alone runs; several need TF_CONFIG and roles, which
//! Muster does not have yet.

use super::{Job, alone::Alone};
use crate::{
    draft::Converted,
    fields::{Object, Rule, Rules},
    options::Cluster,
    pod::Main,
    roles::{Policy, Style},
    variables::Told,
    verdict::Verdicts,
};

const SPEC: Rules = &[
    ("tfReplicaSpecs", Rule::Read),
    ("runPolicy", Rule::Read),
    ("successPolicy", Rule::Read),
    ("enableDynamicWorker", Rule::Read),
    // Before runPolicy these were here.
    ("cleanPodPolicy", Rule::Read),
    ("ttlSecondsAfterFinished", Rule::Read),
    ("activeDeadlineSeconds", Rule::Read),
    ("backoffLimit", Rule::Read),
];

const ALONE: Alone = Alone {
    specs: "tfReplicaSpecs",
    roles: &["Worker", "Chief", "Master", "PS", "Evaluator"],
    may_run: 3,
    style: Style {
        main: Main::Named("tensorflow"),
        told: Told {
            names: &["TF_CONFIG"],
            prefixes: &[],
        },
        entrypoint: None,
        as_is: true,
    },
    policy: Policy::Never,
    why: "is more than one TensorFlow process, and Muster does not set TF_CONFIG and has no parameter servers yet",
};

pub(super) fn read(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, SPEC, log);
    if let Some((at, policy)) = spec.text("successPolicy", log) {
        match policy {
            "" | "AllWorkers" => {
                log.note(at, "is so: the job has succeeded when all its ranks have")
            }
            other => log.refuse(at, format!("is {other:?}, must be empty or AllWorkers")),
        }
    }
    if let Some((at, dynamic)) = spec.flag("enableDynamicWorker", log) {
        match dynamic {
            true => log.refuse(
                at,
                "lets workers come and go one by one, which Muster cannot do yet",
            ),
            false => log.note(at, "is so"),
        }
    }
    ALONE.read(job, &spec, cluster, log)
}
