//! `MPIJob` of `kubeflow.org/v1` and `/v2beta1`. A launcher alone runs; with workers it would have to
//! start processes on other nodes, which Muster cannot do yet.

use super::Job;
use crate::{
    draft::{Converted, Draft},
    fields::{Object, Rule, Rules},
    options::Cluster,
    pod::Main,
    roles::{self, Policy, Style},
    run_policy,
    variables::Told,
    verdict::Verdicts,
};

const V1: Rules = &[
    ("mpiReplicaSpecs", Rule::Read),
    ("slotsPerWorker", Rule::Note("is for the workers")),
    ("cleanPodPolicy", Rule::Read),
    ("runPolicy", Rule::Read),
    (
        "mainContainer",
        Rule::Note("is not needed: nothing is started from outside"),
    ),
    // Before runPolicy these were here.
    ("backoffLimit", Rule::Read),
    ("activeDeadlineSeconds", Rule::Read),
    ("ttlSecondsAfterFinished", Rule::Read),
];

const V2: Rules = &[
    ("mpiReplicaSpecs", Rule::Read),
    ("slotsPerWorker", Rule::Note("is for the workers")),
    ("runPolicy", Rule::Read),
    (
        "sshAuthMountPath",
        Rule::Note("is not needed: there is no ssh here"),
    ),
    (
        "launcherCreationPolicy",
        Rule::Note("is not needed: all nodes of a job start together"),
    ),
    ("mpiImplementation", Rule::Note("is that of the nodes")),
    (
        "runLauncherAsWorker",
        Rule::Note("is so: a launcher alone has its node for itself"),
    ),
];

const STYLE: Style = Style {
    main: Main::First,
    told: Told {
        names: &["K_MPI_JOB_ROLE"],
        prefixes: &["OMPI_MCA_", "I_MPI_HYDRA_"],
    },
    entrypoint: None,
    as_is: true,
};

pub(super) fn read(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let rules = match job.version {
        "v1" => V1,
        _ => V2,
    };
    let spec = Object::walk(&job.spec, rules, log);
    let run = run_policy::read(
        &spec,
        &[
            "kubeflow.org/mpi-operator",
            "kubeflow.org/training-operator",
        ],
        cluster,
        log,
    );
    let Some(specs) = spec.get("mpiReplicaSpecs") else {
        log.refuse(&job.spec, "has no mpiReplicaSpecs");
        return None;
    };
    let entries = specs.entries(log);
    let workers = entries
        .iter()
        .find(|(key, _)| key.eq_ignore_ascii_case("worker"));
    // No number of workers is none.
    let count = workers.and_then(|(_, field)| field.node.entry("replicas"));
    if let Some((_, field)) = workers {
        let none = count.is_none_or(|entry| entry.node.value == crate::tree::Value::Whole(0));
        match none {
            true => log.note(field, "has no replicas"),
            false => log.refuse(
                field,
                "are MPI's workers, and Muster cannot let mpirun start processes on other nodes yet",
            ),
        }
    }
    if let Some((_, field)) = entries
        .iter()
        .find(|(key, _)| !["launcher", "worker"].contains(&key.to_ascii_lowercase().as_str()))
    {
        log.refuse(
            field,
            "is no role of this kind; its roles are Launcher, Worker",
        );
    }
    let Some((_, launcher)) = entries
        .iter()
        .find(|(key, _)| key.eq_ignore_ascii_case("launcher"))
    else {
        log.refuse(specs, "has no Launcher");
        return None;
    };
    let role = roles::read_one(launcher, "Launcher", 1, STYLE, cluster, log)?;
    if role.replicas != 1 {
        log.refuse(
            &role.replicas_at,
            format!("is {}, must be 1", role.replicas),
        );
        return None;
    }
    log.taken(&role.replicas_at, "spec.replicas");
    let default = match job.version {
        "v1" => Policy::Never,
        _ => Policy::OnFailure,
    };
    // The launcher is a Job of Kubernetes, which tries again 6 times unless it is told.
    let own = (job.version != "v1").then_some(6);
    let restarts = roles::restarts(
        role.policy.as_ref(),
        default,
        &run,
        own,
        roles::RETRIED,
        log,
    );
    let mut launch = role.launch.clone();
    launch.without_torch();
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
