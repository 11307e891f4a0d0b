//! `MPIJob` of `kubeflow.org/v1` and `/v2beta1`. The launcher's group becomes the role launcher, which
//! runs `mpirun`, and the workers' the role worker, which lends its nodes. Without workers the launcher
//! is a program like others.

use muster_core::spec::{Framework, LAUNCHER, PEERS_MAX, WORKER};

use super::Job;
use crate::{
    draft::Converted,
    fields::{Object, Rule, Rules},
    framework_draft::{FrameworkDraft, Group},
    launch::{self, Launch},
    lends,
    mpirun::{self, Hosts},
    options::Cluster,
    pod::{Main, Pod},
    roles::{self, Policy, Role, Style},
    run_policy,
    variables::Told,
    verdict::Verdicts,
};

const V1: Rules = &[
    ("mpiReplicaSpecs", Rule::Read),
    ("slotsPerWorker", Rule::Read),
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
    ("slotsPerWorker", Rule::Read),
    ("runPolicy", Rule::Read),
    (
        "sshAuthMountPath",
        Rule::Note("is not needed: there is no ssh here"),
    ),
    (
        "launcherCreationPolicy",
        Rule::Note("is not needed: the launcher starts when its workers answer"),
    ),
    ("mpiImplementation", Rule::Read),
    ("runLauncherAsWorker", Rule::Read),
];

const STYLE: Style = Style {
    main: Main::First,
    told: Told {
        // What the operators set, and what Muster does.
        names: &[
            "K_MPI_JOB_ROLE",
            "OMPI_MCA_plm_rsh_agent",
            "OMPI_MCA_plm_rsh_args",
            "OMPI_MCA_orte_default_hostfile",
            "OMPI_MCA_orte_keep_fqdn_hostnames",
            "OMPI_MCA_orte_set_default_slots",
            "PRTE_MCA_plm_ssh_agent",
            "PRTE_MCA_prte_default_hostfile",
            "HYDRA_LAUNCHER",
            "HYDRA_LAUNCHER_EXEC",
            "HYDRA_LAUNCH_EXTRA_ARGS",
            "HYDRA_HOST_FILE",
            "I_MPI_HYDRA_BOOTSTRAP",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
            "I_MPI_HYDRA_HOST_FILE",
            "I_MPI_PERHOST",
        ],
        prefixes: &[],
    },
    entrypoint: None,
    as_is: true,
};

const GROUPS: &[&str] = &["Launcher", "Worker"];

pub(super) fn read(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let is_v1 = job.version == "v1";
    let spec = Object::walk(&job.spec, if is_v1 { V1 } else { V2 }, log);
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
        log.lacks(&job.spec, "mpiReplicaSpecs");
        return None;
    };
    let slots = spec.whole("slotsPerWorker", log);
    let as_worker = spec.flag("runLauncherAsWorker", log);
    let hydra = implementation(&spec, log);
    let before = log.refused();
    let (mut launcher, mut worker) = (None, None);
    for (key, field) in specs.entries(log) {
        let (group, role) = match roles::named(key, GROUPS, specs, &field, log) {
            Some("Launcher") => (
                &mut launcher,
                roles::read_by(&field, "Launcher", 1, STYLE, start_launcher, cluster, log),
            ),
            // No number of workers is none.
            Some(_) => (
                &mut worker,
                roles::read_by(&field, "Worker", 0, STYLE, lends::must_lend, cluster, log),
            ),
            None => continue,
        };
        match group {
            None => *group = Some(role),
            Some(_) => log.refuse(&field, format!("{} is there twice", role.name)),
        }
    }
    for role in launcher.iter().chain(&worker).filter(|_| !is_v1) {
        of_second_version(role, log);
    }
    let Some(mut launcher) = launcher else {
        log.lacks(specs, "Launcher");
        return None;
    };
    if launcher.replicas != 1 {
        let message = format!("is {}, must be 1", launcher.replicas);
        log.refuse(&launcher.replicas_at, message);
    }
    if !hydra {
        mpirun::two_dashes(&launcher.pod, &mut launcher.launch, log);
    }
    let default = match is_v1 {
        true => Policy::Never,
        false => Policy::OnFailure,
    };
    // The launcher is a Job of Kubernetes. It tries again 6 times unless it is told, and also when the
    // kubelet is not to restart its pod.
    let own = (!is_v1).then_some(6);
    if let (Some((policy, _)), false) = (&mut launcher.policy, is_v1)
        && *policy == Policy::Never
    {
        *policy = Policy::OnFailure;
    }
    let ends = roles::restarts(
        launcher.policy.as_ref(),
        default,
        &run,
        own,
        roles::RETRIED,
        log,
    );
    let workers_in_doubt = log.is_settled(&specs.below("Worker"))
        || log.is_settled(&job.spec.below("slotsPerWorker"))
        || worker
            .as_ref()
            .is_some_and(|worker| log.is_settled(&worker.replicas_at.path));
    let worker = worker.filter(|worker| worker.replicas > 0 || workers_in_doubt);
    let per_node = slots.map_or(1, |(_, slots)| slots);
    // The first version counts a launcher that asks for a GPU as a host, the second one that is told.
    let launches_here = match is_v1 {
        true => launcher.pod.gpus > 0,
        false => as_worker.is_some_and(|(_, is)| is),
    };
    if worker.is_none() && workers_in_doubt {
        return None;
    }
    let Some(worker) = worker else {
        let for_workers = [slots.map(|(at, _)| at), as_worker.map(|(at, _)| at)];
        for at in for_workers.into_iter().flatten() {
            log.note(at, "is not needed: there are no workers");
        }
        if launcher.launch.mentions("discover_hosts.sh") {
            log.refuse(
                &launcher.pod.container,
                "asks for hosts (discover_hosts.sh), and there are no workers",
            );
            return None;
        }
        if let Some(starter) = mpirun::starter(&launcher.pod) {
            starter.say_alone(log);
        }
        log.taken(&launcher.replicas_at, "spec.replicas");
        let groups = vec![Group {
            role: &launcher,
            name: LAUNCHER.into(),
            service: None,
            procs: Some(1),
            sizes: None,
            restarts_alone: false,
        }];
        return FrameworkDraft {
            kind: job.kind,
            meta: job.meta,
            framework: Framework::Plain,
            groups,
            ends,
            run: &run,
        }
        .finish(log);
    };
    log.taken(&launcher.replicas_at, "spec.roles[0].replicas");
    log.taken(&worker.replicas_at, "spec.roles[1].replicas");
    let mut starter = mpirun::starter(&launcher.pod);
    if let Some(starter) = starter.as_mut().filter(|_| hydra) {
        starter.is_of_hydra();
    }
    let told = starter.as_ref().and_then(|starter| starter.slots(log));
    if let Some((at, slots)) = slots {
        match ((1..=256).contains(&slots), &told) {
            (false, _) => log.refuse(at, format!("is {slots}, must be between 1 and 256")),
            (true, Some(_)) if !is_v1 => {
                log.note(at, "is not used, as upstream: --slots-per-host says it");
            }
            (true, _) => log.taken(at, "procPerNode of the roles"),
        }
    }
    let per_node = match &told {
        // The discovery script of the first version names the slots, that of the second does not.
        Some((told, at)) if is_v1 && *told != per_node => {
            log.warn(
                at,
                "--slots-per-host has no effect, as upstream: slotsPerWorker counts",
            );
            per_node
        }
        Some((told, at)) => {
            log.taken(
                at,
                format!("procPerNode of the roles, from --slots-per-host {told}"),
            );
            *told
        }
        None => per_node,
    };
    if let Some((at, is)) = as_worker {
        match is {
            true => log.taken(at, "spec.roles[0].procPerNode"),
            false => log.note(at, "is so"),
        }
    }
    if let Some((_, at)) = &worker.policy {
        log.note(at, "is not needed: the launcher's decides");
    }
    let hosts = Hosts {
        nodes: worker.replicas,
        per_node,
        of_launcher: if launches_here { per_node } else { 0 },
    };
    let sizes = match &starter {
        Some(starter) if starter.is_elastic() && !workers_in_doubt => {
            starter.range(hosts, log).map(|range| {
                // All members are told of each other.
                let most = range.most.map(|most| most.min(PEERS_MAX - 1));
                let most = most.map_or(worker.replicas, |most| most.max(worker.replicas));
                starter.say_least(&range, hosts, log);
                starter.say_most(most, log);
                starter.say_restarts(log);
                (range.least, most)
            })
        }
        Some(starter) if !workers_in_doubt => {
            starter.fits(hosts, log);
            None
        }
        _ => None,
    };
    if hydra {
        // hydra wants another form than Open MPI.
        let words = launcher.launch.command.iter_mut();
        for word in words.chain(&mut launcher.launch.args) {
            *word = word.replace("/etc/mpi/hostfile", "/etc/mpi/hostfile.hydra");
        }
    }
    if log.refused() == before {
        mpirun::say_in_memory(&launcher.pod, &launcher.launch, starter.as_ref(), log);
    }
    let ends = match starter.is_some_and(|starter| starter.is_elastic()) {
        true => ends.of_launcher(LAUNCHER, WORKER, None),
        false => ends,
    };
    let groups = vec![
        Group {
            role: &launcher,
            name: LAUNCHER.into(),
            service: None,
            procs: Some(hosts.of_launcher),
            sizes: None,
            restarts_alone: false,
        },
        Group {
            role: &worker,
            name: WORKER.into(),
            service: None,
            procs: Some(per_node),
            sizes,
            restarts_alone: false,
        },
    ];
    FrameworkDraft {
        kind: job.kind,
        meta: job.meta,
        framework: Framework::Mpi,
        groups,
        ends,
        run: &run,
    }
    .finish(log)
}

/// What the operator of the second version refuses (its `validation.go`).
fn of_second_version(role: &Role<'_>, log: &mut Verdicts) {
    if let Some((Policy::Always | Policy::ExitCode, at)) = &role.policy {
        log.refuse(at, "must be Never or OnFailure, upstream as well");
    }
    if role.name == "Worker" && role.replicas < 1 && !log.is_settled(&role.replicas_at.path) {
        let is = match role.replicas_at.path.ends_with(".replicas") {
            true => format!("is {}, must be at least 1", role.replicas),
            false => {
                "has no replicas, which are 0 if nobody says, and must be at least 1".to_owned()
            }
        };
        log.refuse(
            &role.replicas_at,
            format!("{is}, upstream as well; leave Worker out if the launcher works alone"),
        );
    }
}

/// Whether the launcher is hydra: MPICH's or Intel's.
fn implementation(spec: &Object<'_>, log: &mut Verdicts) -> bool {
    match spec.text("mpiImplementation", log) {
        None => false,
        Some((at, name @ ("OpenMPI" | "Intel" | "MPICH"))) => {
            log.note(at, "is that of the nodes: each finds its own variables");
            name != "OpenMPI"
        }
        Some((at, other)) => {
            log.refuse(at, format!("is {other:?}, must be OpenMPI, Intel or MPICH"));
            false
        }
    }
}

/// What the launcher's container starts. Images for MPI have a program of their own that prepares the
/// container and then executes what it is given, so a file may have arguments only.
fn start_launcher(pod: &Pod<'_>, log: &mut Verdicts) -> Option<Launch> {
    let first = pod.words.first();
    match first.is_some_and(|first| mpirun::is_starter(&first.text)) && !pod.names_program {
        true => {
            log.warn(
                &pod.container,
                "has arguments only; they are run as they are, without the image's own program",
            );
            Some(launch::program(&pod.words))
        }
        false => roles::start(pod, STYLE, log),
    }
}
