//! `XGBoostJob` of `kubeflow.org/v1`: read and refused. Its master serves a tracker at MASTER_PORT,
//! where Muster's own store is.

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

const SPEC: Rules = &[("xgbReplicaSpecs", Rule::Read), ("runPolicy", Rule::Read)];

const ALONE: Alone = Alone {
    specs: "xgbReplicaSpecs",
    roles: &["Master", "Worker"],
    // Even one process serves its tracker at MASTER_PORT.
    may_run: 0,
    style: Style {
        main: Main::Named("xgboost"),
        told: Told {
            names: &[
                "MASTER_ADDR",
                "MASTER_PORT",
                "WORLD_SIZE",
                "RANK",
                "WORKER_ADDRS",
                "WORKER_PORT",
                "PYTHONUNBUFFERED",
            ],
            prefixes: &[],
        },
        entrypoint: None,
        as_is: true,
    },
    policy: Policy::Never,
    why: "are XGBoost processes, which find each other by WORKER_ADDRS and a tracker on the master, and Muster has neither yet",
};

pub(super) fn read(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, SPEC, log);
    ALONE.read(job, &spec, cluster, log)
}
