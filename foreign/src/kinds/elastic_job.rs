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
    tree::Value,
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

/// The container whose exit codes the controller sees. It runs all, whatever their names are.
const NAME: &str = "elasticjob-worker";

const STYLE: Style = Style {
    main: Main::Only(NAME),
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
        log.lacks(&job.spec, "replicaSpecs");
        return None;
    };
    let size = |name: &str, log: &mut Verdicts| {
        let (at, size) = spec.whole(name, log)?;
        Some((size, at.clone()))
    };
    let (min, max) = (size("minReplicas", log), size("maxReplicas", log));
    let roles = roles::read(specs, &["Worker"], 1, STYLE, cluster, log);
    let Some(worker) = roles.first() else {
        log.lacks(specs, "Worker");
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
    );
    let given = [
        (
            spec.get("minReplicas").filter(|_| min.is_some()),
            "spec.minReplicas",
        ),
        (
            spec.get("maxReplicas").filter(|_| max.is_some()),
            "spec.maxReplicas",
        ),
    ];
    let sizes = super::Sizes { replicas, min, max };
    // The user's flags come after the controller's, and win.
    let super::Sizes { replicas, min, max } = super::nodes(&worker.launch, sizes, &given, log);
    let name = worker.pod.container.node.entry("name");
    if let (Some((Policy::ExitCode, _)), Some(name)) = (&worker.policy, name)
        && !matches!(&name.node.value, Value::Text(name) if name == NAME)
    {
        log.note(
            &worker.pod.container,
            format!("counts for ExitCode here; upstream sees the exit codes of a container named {NAME} only"),
        );
    }
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
        procs: procs.unwrap_or(1),
        restarts,
        run: &run,
    }
    .finish(log)
    .map(|job| job.of_groups(["worker"]))
}
