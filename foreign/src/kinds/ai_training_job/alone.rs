//! A job of one process.

use super::{Job, Role, STYLE, Whole, ends, note, warn};
use crate::{
    draft::{Converted, Draft},
    roles,
    verdict::Verdicts,
};

const ALONE: &str = "is not needed by one process";
const ENDS: &str = "is so: with one process, the job ends as it does";
const ONE_SIZE: &str = "has no effect: one process does not grow";

pub(super) fn read(
    job: &Job<'_, '_>,
    whole: &Whole<'_>,
    role: &Role<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    if let Some((at, _)) = &whole.framework {
        log.note(at, ALONE);
    }
    if let Some((at, _)) = &whole.tolerant {
        log.note(at, "is so: Muster survives the loss of a node");
    }
    note(&whole.spec, &["plugin"], ALONE, log);
    note(&whole.spec, &["completePolicy", "failPolicy"], ENDS, log);
    let metrics = "have no effect: one process does not grow";
    warn(&whole.spec, &["metrics"], metrics, log);
    let alone = ["minReplicas", "replicaType", "restartScope"];
    note(&role.spec, &alone, ALONE, log);
    note(&role.spec, &["completePolicy", "failPolicy"], ENDS, log);
    let sizes = ["edlPolicy", "scaleTimeout", "scaleInpods", "scaleCancle"];
    warn(&role.spec, &sizes, ONE_SIZE, log);
    for (at, _) in [&role.replicas, &role.most_wanted].into_iter().flatten() {
        log.taken(at, "spec.replicas");
    }
    if whole.is_refused(log) {
        return None;
    }
    let mut launch = roles::start(&role.pod, STYLE, log)?;
    launch.without_torch();
    log.warn(
        &role.pod.container,
        "is not told the variables of its role, such as TRAINER_HOSTS, because it is alone",
    );
    let restarts = ends::of(role, whole, |at, log| log.note(at, ALONE), log);
    Draft {
        kind: job.kind,
        meta: job.meta,
        pod: &role.pod,
        launch: &launch,
        replicas: (1, role.policy_at().clone()),
        min: None,
        max: None,
        procs: 1,
        restarts,
        run: &whole.run,
    }
    .finish(log)
    .map(|job| job.of_groups([role.name]))
}
