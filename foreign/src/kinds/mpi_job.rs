//! `MPIJob` of `kubeflow.org/v1` and `/v2beta1`. The launcher's group becomes the role launcher, which
//! runs `mpirun`, and the workers' the role worker, which lends its nodes. Without workers the launcher
//! is a program like others.

use muster_core::spec::{Framework, LAUNCHER, WORKER};

use super::Job;
use crate::{
    draft::Converted,
    fields::{Object, Rule, Rules},
    framework_draft::{FrameworkDraft, Group},
    launch::{self, Launch},
    options::Cluster,
    pod::{Main, Pod},
    roles::{self, Policy, Role, Style},
    run_policy, shell,
    variables::Told,
    verdict::Verdicts,
    words::Known,
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

/// Programs that start as many ranks as they are told, and their options that tell it.
const STARTERS: [&str; 6] = [
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "prterun",
    "horovodrun",
];
const COUNTS: [&str; 4] = ["-np", "-n", "--np", "--n"];

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
        log.refuse(&job.spec, "has no mpiReplicaSpecs");
        return None;
    };
    let slots = spec.whole("slotsPerWorker", log);
    let as_worker = spec.flag("runLauncherAsWorker", log);
    let hydra = implementation(&spec, log);
    let before = log.refused();
    let (mut launcher, mut worker) = (None, None);
    for (key, field) in specs.entries(log) {
        let name = GROUPS.iter().find(|name| name.eq_ignore_ascii_case(key));
        let (group, role) = match name {
            Some(&"Launcher") => (
                &mut launcher,
                roles::read_by(&field, "Launcher", 1, STYLE, start_launcher, cluster, log),
            ),
            // No number of workers is none.
            Some(_) => (
                &mut worker,
                roles::read_by(&field, "Worker", 0, STYLE, start_worker, cluster, log),
            ),
            None => {
                log.refuse(
                    &field,
                    "is no role of this kind; its roles are Launcher, Worker",
                );
                continue;
            }
        };
        match role {
            Some(role) if group.is_none() => *group = Some(role),
            Some(role) => log.refuse(&field, format!("{} is there twice", role.name)),
            None => {}
        }
    }
    if log.refused() > before {
        return None;
    }
    let Some(mut launcher) = launcher else {
        log.refuse(specs, "has no Launcher");
        return None;
    };
    if launcher.replicas != 1 {
        let message = format!("is {}, must be 1", launcher.replicas);
        log.refuse(&launcher.replicas_at, message);
        return None;
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
    let worker = worker.filter(|worker| worker.replicas > 0);
    let per_node = slots.map_or(1, |(_, slots)| slots);
    // The first version counts a launcher that asks for a GPU as a host, the second one that is told.
    let launches_here = match is_v1 {
        true => launcher.pod.gpus > 0,
        false => as_worker.is_some_and(|(_, is)| is),
    };
    let Some(worker) = worker else {
        let for_workers = [slots.map(|(at, _)| at), as_worker.map(|(at, _)| at)];
        for at in for_workers.into_iter().flatten() {
            log.note(at, "is not needed: there are no workers");
        }
        log.taken(&launcher.replicas_at, "spec.replicas");
        let groups = vec![Group {
            role: &launcher,
            name: LAUNCHER.into(),
            service: None,
            procs: Some(1),
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
    if let Some((at, slots)) = slots {
        match (1..=256).contains(&slots) {
            true => log.taken(at, "procPerNode of the roles"),
            false => log.refuse(at, format!("is {slots}, must be between 1 and 256")),
        }
    }
    if let Some((at, is)) = as_worker {
        match is {
            true => log.taken(at, "spec.roles[0].procPerNode"),
            false => log.note(at, "is so"),
        }
    }
    if let Some((_, at)) = &worker.policy {
        log.note(at, "is not needed: the launcher's decides");
    }
    let hosts = worker.replicas + i64::from(launches_here);
    fits(&launcher, hosts, per_node, log);
    if hydra {
        // hydra wants another form than Open MPI.
        let words = launcher.launch.command.iter_mut();
        for word in words.chain(&mut launcher.launch.args) {
            *word = word.replace("/etc/mpi/hostfile", "/etc/mpi/hostfile.hydra");
        }
    }
    if launcher.launch.mentions("discover_hosts.sh") {
        log.refuse(
            &launcher.pod.container,
            "asks for hosts that come and go (discover_hosts.sh), which Muster does not offer yet",
        );
    }
    if log.refused() > before {
        return None;
    }
    let groups = vec![
        Group {
            role: &launcher,
            name: LAUNCHER.into(),
            service: None,
            procs: Some(if launches_here { per_node } else { 0 }),
        },
        Group {
            role: &worker,
            name: WORKER.into(),
            service: None,
            procs: Some(per_node),
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
    let first = pod.words.first().map(|word| stem(&word.text));
    match first.is_some_and(|first| STARTERS.contains(&first)) && !pod.names_program {
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

/// What the workers' containers start: nothing, until they are asked.
fn start_worker(pod: &Pod<'_>, log: &mut Verdicts) -> Option<Launch> {
    let words: Vec<String> = pod.words.iter().map(|word| word.text.clone()).collect();
    if pod.names_program && !is_idle(&words) {
        log.refuse(
            &pod.container,
            format!(
                "runs {:?} in the workers, whose nodes only lend themselves to the launcher here",
                words.join(" ")
            ),
        );
        return None;
    }
    Some(launch::program(&[]))
}

fn stem(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or_default()
}

/// Whether a command only waits: `sleep`, `sshd`, `tail -f /dev/null`, also as the text of a shell.
fn is_idle(words: &[String]) -> bool {
    let Some((first, rest)) = words.split_first() else {
        return true;
    };
    match (stem(first), rest) {
        ("sleep" | "sshd", _) => true,
        ("tail", [follow, file]) => follow.starts_with('-') && file == "/dev/null",
        ("sh" | "bash", [option, text]) if option.ends_with('c') => {
            let simple = shell::simple(text, &Known::new());
            let words = simple.map(|simple| simple.words.into_iter().map(|word| word.text));
            words.is_some_and(|words| is_idle(&words.collect::<Vec<_>>()))
        }
        _ => false,
    }
}

/// Refuses a launcher that asks for more ranks than there are slots.
fn fits(launcher: &Role<'_>, hosts: i64, per_node: i64, log: &mut Verdicts) {
    let words = launcher.launch.command.iter().chain(&launcher.launch.args);
    // The text of a shell is one argument.
    let words: Vec<&str> = words.flat_map(|word| word.split_whitespace()).collect();
    let stem = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let start = words
        .iter()
        .position(|word| STARTERS.contains(&&*stem(word)));
    let Some(start) = start else { return };
    let mut after = words[start..].iter();
    let asked = after
        .find(|word| COUNTS.contains(*word))
        .and_then(|_| after.next()?.parse::<i64>().ok());
    if let Some(asked) = asked
        && asked > hosts * per_node
    {
        log.refuse(
            &launcher.pod.container,
            format!(
                "asks {} for {asked} ranks, and {hosts} nodes with {per_node} slots each have {}",
                stem(words[start]),
                hosts * per_node
            ),
        );
    }
}
