//! `ElasticJob` of `elastic.pytorch.org/v1alpha1`: the TorchElastic controller.
//!
//! Its images start torchelastic's launcher by themselves, so a template has arguments only: the
//! launcher's flags, the script, and the script's. Source: pytorch/elastic, kubernetes/controllers.

use super::Job;
use crate::{
    draft::{Converted, Draft},
    fields::{Object, Rule, Rules},
    launch::{By, Procs},
    options::Cluster,
    pod::Main,
    procs,
    roles::{self, Policy, Style},
    run_policy,
    variables::Told,
    verdict::Verdicts,
};

const SPEC: Rules = &[
    (
        "rdzvEndpoint",
        Rule::Note("is not needed: Muster brings the nodes together, so the etcd may go"),
    ),
    ("minReplicas", Rule::Read),
    ("maxReplicas", Rule::Read),
    ("replicaSpecs", Rule::Read),
    ("cleanPodPolicy", Rule::Read),
    ("ttlSecondsAfterFinished", Rule::Read),
    ("activeDeadlineSeconds", Rule::Read),
    ("backoffLimit", Rule::Read),
    ("schedulingPolicy", Rule::Read),
    ("RunPolicy", Rule::Read),
    ("runPolicy", Rule::Read),
];

/// The default of torchelastic's `--max_restarts`.
pub(super) const MAX_RESTARTS: i64 = 3;

const STYLE: Style = Style {
    main: Main::Named("elasticjob-worker"),
    // The controller sets no environment; it puts flags before the arguments.
    told: Told::NOTHING,
    entrypoint: Some(By::Torchelastic),
    as_is: false,
};

pub(crate) fn read(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, SPEC, log);
    let run = run_policy::read(&spec, &[], cluster, log);
    let Some(specs) = spec.get("replicaSpecs") else {
        log.refuse(&job.spec, "has no replicaSpecs");
        return None;
    };
    let size = |name: &str, log: &mut Verdicts| {
        let (at, size) = spec.whole(name, log)?;
        log.taken(at, format!("spec.{name}"));
        Some((size, at.clone()))
    };
    let (min, max) = (size("minReplicas", log), size("maxReplicas", log));
    let before = log.refused();
    let roles = roles::read(specs, &["Worker"], 1, STYLE, cluster, log);
    let Some(worker) = roles.first() else {
        if log.refused() == before {
            log.refuse(specs, "has no Worker");
        }
        return None;
    };
    log.taken(&worker.replicas_at, "spec.replicas");
    let replicas = (worker.replicas, worker.replicas_at.clone());
    let procs = procs::count(
        &worker.launch,
        None,
        Procs::Count(1),
        worker.pod.gpus,
        &worker.pod.container,
        log,
    )?;
    // The user's flags come after the controller's, and win.
    super::nodes_agree(
        &worker.launch,
        (
            min.as_ref().map_or(replicas.0, |(min, _)| *min),
            max.as_ref().map_or(replicas.0, |(max, _)| *max),
        ),
        replicas.0,
        log,
    );
    let own = worker.launch.max_restarts.or(Some(MAX_RESTARTS));
    let restarts = roles::restarts(
        worker.policy.as_ref(),
        Policy::OnFailure,
        &run,
        own,
        roles::RETRIED_BY_ELASTIC_JOB,
        log,
    );
    Draft {
        kind: job.kind,
        meta: job.meta,
        pod: &worker.pod,
        launch: &worker.launch,
        replicas,
        min,
        max,
        procs,
        restarts,
        run: &run,
    }
    .finish(log)
    .map(|job| job.of_groups(["worker"]))
}
