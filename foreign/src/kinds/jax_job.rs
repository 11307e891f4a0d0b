//! `JAXJob` of `kubeflow.org/v1`: read and refused, because Muster does not tell JAX's processes of
//! each other yet.

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

const SPEC: Rules = &[("jaxReplicaSpecs", Rule::Read), ("runPolicy", Rule::Read)];

const ALONE: Alone = Alone {
    specs: "jaxReplicaSpecs",
    roles: &["Worker"],
    // Even one process looks for COORDINATOR_ADDRESS.
    may_run: 0,
    style: Style {
        main: Main::Named("jax"),
        told: Told {
            names: &[
                "COORDINATOR_ADDRESS",
                "COORDINATOR_PORT",
                "NUM_PROCESSES",
                "PROCESS_ID",
                "PYTHONUNBUFFERED",
            ],
            prefixes: &[],
        },
        entrypoint: None,
        as_is: true,
    },
    policy: Policy::Never,
    why: "are JAX processes, which find each other by COORDINATOR_ADDRESS, and Muster does not set it yet",
};

pub(super) fn read(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, SPEC, log);
    ALONE.read(job, &spec, cluster, log)
}
