//! `PaddleJob` of `kubeflow.org/v1`. One process alone runs; several find each other by PADDLE_MASTER,
//! which Muster does not set yet.

use super::{Alone, Job};
use crate::{
    Cluster,
    draft::Converted,
    fields::{Object, Rule, Rules},
    pod::Main,
    roles::{Policy, Style},
    variables::Told,
    verdict::Verdicts,
};

const SPEC: Rules = &[
    ("paddleReplicaSpecs", Rule::Read),
    ("runPolicy", Rule::Read),
    (
        "elasticPolicy",
        Rule::Refuse("lets a job of Paddle grow and shrink, which Muster cannot do yet"),
    ),
];

const ALONE: Alone = Alone {
    specs: "paddleReplicaSpecs",
    roles: &["Worker", "Master"],
    may_run: 1,
    style: Style {
        main: Main::Named("paddle"),
        told: Told {
            names: &[],
            prefixes: &["PADDLE_"],
        },
        entrypoint: None,
        as_is: true,
    },
    policy: Policy::OnFailure,
    why: "are several Paddle processes, which find each other by PADDLE_MASTER, and Muster does not set it yet",
};

pub(super) fn read(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, SPEC, log);
    ALONE.read(job, &spec, cluster, log)
}
