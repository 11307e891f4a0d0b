//! `PyTorchJob` of `kubeflow.org/v1`.
//!
//! Master and workers are one world; the master is rank 0 of it and nothing else. Sources: the types,
//! webhook and controller of training-operator 1.9.

use super::Job;
use crate::{
    draft::{Converted, Draft, Size},
    fields::{Object, Rule, Rules},
    launch::{By, Procs},
    options::Cluster,
    pod::{Chosen, Main, Pod},
    procs,
    roles::{self, Policy, Role, Style},
    run_policy,
    tree::Field,
    variables::Told,
    verdict::Verdicts,
};

const SPEC: Rules = &[
    ("pytorchReplicaSpecs", Rule::Read),
    ("elasticPolicy", Rule::Read),
    ("nprocPerNode", Rule::Read),
    ("runPolicy", Rule::Read),
    // Before runPolicy these were here.
    ("cleanPodPolicy", Rule::Read),
    ("ttlSecondsAfterFinished", Rule::Read),
    ("activeDeadlineSeconds", Rule::Read),
    ("backoffLimit", Rule::Read),
];

const MEETS: Rule = Rule::Note("is not needed: Muster brings the nodes together");

const ELASTIC: Rules = &[
    ("minReplicas", Rule::Read),
    ("maxReplicas", Rule::Read),
    ("maxRestarts", Rule::Read),
    ("rdzvBackend", Rule::Read),
    ("rdzvHost", MEETS),
    ("rdzvPort", MEETS),
    ("rdzvId", MEETS),
    ("rdzvConf", MEETS),
    ("standalone", Rule::Read),
    ("nProcPerNode", Rule::Read),
    (
        "metrics",
        Rule::Warn(
            "have no effect: the job keeps its replicas; muster scale changes them, up to maxReplicas",
        ),
    ),
];

/// What the operator sets in every container if there is a master.
const WITH_MASTER: Told = Told {
    names: &[
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "PYTHONUNBUFFERED",
        "PET_MASTER_ADDR",
        "PET_MASTER_PORT",
        "PET_NODE_RANK",
        "PET_NNODES",
        "PET_NPROC_PER_NODE",
    ],
    prefixes: &["PET_"],
};

/// What it sets without one. Such workers find each other by torchrun alone.
const WITHOUT_MASTER: Told = Told {
    names: &[
        "PYTHONUNBUFFERED",
        "PET_NNODES",
        "PET_NPROC_PER_NODE",
        "PET_RDZV_ENDPOINT",
        "PET_RDZV_BACKEND",
        "PET_RDZV_ID",
        "PET_RDZV_CONF",
        "PET_MAX_RESTARTS",
    ],
    prefixes: &["PET_"],
};

pub(crate) fn read(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, SPEC, log);
    let run = run_policy::read(&spec, &["kubeflow.org/training-operator"], cluster, log);
    let Some(specs) = spec.get("pytorchReplicaSpecs") else {
        log.lacks(&job.spec, "pytorchReplicaSpecs");
        return None;
    };
    let has_master = specs
        .entries(log)
        .iter()
        .any(|(key, _)| key.eq_ignore_ascii_case("master"));
    let style = Style {
        main: Main::Named("pytorch"),
        told: match has_master {
            true => WITH_MASTER,
            false => WITHOUT_MASTER,
        },
        entrypoint: None,
        as_is: false,
    };
    let elastic = elastic(spec.get("elasticPolicy"), log);
    let said = procs_of(&spec, &elastic, log);
    let roles = roles::read(specs, &["Master", "Worker"], 1, style, cluster, log);
    let role = |name: &str| roles.iter().find(|role| role.name == name);
    let (master, worker) = (role("Master"), role("Worker"));
    let main = master.or(worker);
    if let Some(master) = master
        && master.replicas != 1
    {
        log.refuse(
            &master.replicas_at,
            format!("is {}, must be 1", master.replicas),
        );
    }
    if let Some(worker) = worker
        && worker.replicas < 1
    {
        log.refuse(
            &worker.replicas_at,
            format!("is {}, must be at least 1, upstream as well; leave Worker out if the master works alone", worker.replicas),
        );
    }
    if let (Some(master), Some(worker)) = (master, worker) {
        one_world(master, worker, log);
    }
    let Some(main) = main else {
        if !["Master", "Worker"]
            .map(|name| log.is_settled(&specs.below(name)))
            .contains(&true)
        {
            log.refuse(specs, "has neither Master nor Worker");
        }
        return None;
    };
    let replicas = total(master, worker, main, log);
    let sizes = range(&elastic, specs, worker, master.is_some(), replicas, log);
    let sizes = sizes_after_flags(main, &elastic, sizes, log);
    let procs = procs::count(
        &main.launch,
        said,
        Procs::Auto,
        main.pod.gpus,
        &main.pod.container,
        log,
    );
    let own = own_restarts(main, &elastic, log);
    let policy = main
        .policy
        .as_ref()
        .or(worker.and_then(|worker| worker.policy.as_ref()));
    let mut restarts = roles::restarts(policy, Policy::OnFailure, &run, own, roles::RETRIED, log);
    // Ranks of one world end within moments of each other. Upstream does not wait for the others
    // either.
    let decides = match (master, &elastic.field) {
        (Some(_), _) => Some("first"),
        (None, Some(_)) => Some("any"),
        (None, None) => None,
    };
    let super::Sizes { replicas, min, max } = sizes;
    let most = max.as_ref().map_or(replicas.0, |(max, _)| *max);
    if let Some(of) = decides.filter(|_| most > 1) {
        restarts.rules.push(roles::success_of(of));
    }
    other_policy(main, worker, log);
    let pods = master.iter().chain(&worker).map(|role| &role.pod.nodes);
    let pod = Pod {
        nodes: Chosen::of(pods, log),
        ..main.pod.clone()
    };
    let converted = Draft {
        kind: job.kind,
        meta: job.meta,
        pod: &pod,
        launch: &main.launch,
        replicas,
        min,
        max,
        procs: procs.unwrap_or(1),
        restarts,
        run: &run,
    }
    .finish(log)?;
    // The master is first.
    let groups = master.iter().chain(&worker).map(|role| role.name);
    Some(converted.of_groups(groups))
}

/// `elasticPolicy`, as far as it is more than a verdict.
#[derive(Debug, Default)]
struct Elastic<'t> {
    field: Option<Field<'t>>,
    min: Option<Size<'t>>,
    max: Option<Size<'t>>,
    max_restarts: Option<Size<'t>>,
    standalone: Option<Field<'t>>,
    procs: Option<(i64, Field<'t>)>,
}

fn elastic<'t>(field: Option<&Field<'t>>, log: &mut Verdicts) -> Elastic<'t> {
    let Some(field) = field else {
        return Elastic::default();
    };
    let object = Object::walk(field, ELASTIC, log);
    let number =
        |name: &str, log: &mut Verdicts| object.whole(name, log).map(|(at, n)| (n, at.clone()));
    let elastic = Elastic {
        field: Some(field.clone()),
        min: number("minReplicas", log),
        max: number("maxReplicas", log),
        max_restarts: number("maxRestarts", log),
        procs: number("nProcPerNode", log),
        standalone: object
            .flag("standalone", log)
            .filter(|(_, on)| *on)
            .map(|(at, _)| at.clone()),
    };
    if let Some((at, backend)) = object.text("rdzvBackend", log) {
        match backend {
            "c10d" | "etcd" | "etcd-v2" => {
                log.note(at, "is not needed: Muster brings the nodes together");
            }
            other => log.refuse(at, format!("is {other:?}, must be c10d, etcd or etcd-v2")),
        }
    }
    elastic
}

/// What the job says about ranks beside the command. The operator gives it to torchrun, and says
/// `auto` itself.
fn procs_of<'t>(
    spec: &Object<'t>,
    elastic: &Elastic<'t>,
    log: &mut Verdicts,
) -> Option<(Procs, Field<'t>)> {
    let said = spec
        .text("nprocPerNode", log)
        .and_then(|(at, text)| match Procs::read(text) {
            Ok(procs) => Some((procs, at.clone())),
            Err(message) => {
                log.refuse(at, message);
                None
            }
        });
    match (said, &elastic.procs) {
        (Some(_), Some((_, old))) => {
            log.refuse(old, "is given beside nprocPerNode; give one of them");
            None
        }
        (Some(said), None) => Some(said),
        (None, Some((count, old))) => Some((Procs::Count(*count), old.clone())),
        (None, None) => None,
    }
}

/// Master and workers must run the same: Muster's world has one kind of member.
fn one_world(master: &Role<'_>, worker: &Role<'_>, log: &mut Verdicts) {
    let differs = |what: &str| {
        format!(
            "{what} differs from that of the master, and Muster has no roles yet: all nodes of a job run the same"
        )
    };
    let at = &worker.pod.container;
    let variables = |role: &Role<'_>| {
        let list = role.pod.variables.list.iter();
        list.map(|(var, _)| var.clone()).collect::<Vec<_>>()
    };
    let dir = |role: &Role<'_>| role.pod.working_dir.as_ref().map(|(dir, _)| dir.clone());
    // Where a flag stands says nothing.
    let flags = |role: &Role<'_>| {
        let launch = &role.launch;
        (
            launch.by,
            launch.procs.as_ref().map(|given| given.value),
            launch.nodes.as_ref().map(|given| given.value),
            launch.max_restarts,
        )
    };
    let launch = (&master.launch, &worker.launch);
    // What was refused cannot be compared.
    if launch.0.broken || launch.1.broken {
        return;
    }
    if launch.0.command != launch.1.command
        || launch.0.args != launch.1.args
        || flags(master) != flags(worker)
    {
        log.refuse(at, differs("the command"));
    }
    if variables(master) != variables(worker) || launch.0.env != launch.1.env {
        log.refuse(at, differs("the environment"));
    }
    if dir(master) != dir(worker) || launch.0.dir != launch.1.dir {
        log.refuse(at, differs("the working directory"));
    }
    if let (Some(ours), Some(theirs)) = (&master.pod.template, &worker.pod.template)
        && !ours.says_the_same(theirs)
    {
        log.refuse(at, differs("the template"));
    }
    if master.pod.gpus != worker.pod.gpus {
        log.refuse(
            at,
            format!(
                "the number of GPUs, {}, differs from that of the master, {}, and Muster has no roles yet: all nodes of a job are equal",
                worker.pod.gpus, master.pod.gpus
            ),
        );
    }
}

/// How many nodes the job wants.
fn total<'t>(
    master: Option<&Role<'t>>,
    worker: Option<&Role<'t>>,
    main: &Role<'t>,
    log: &mut Verdicts,
) -> Size<'t> {
    let count = |role: Option<&Role<'t>>| role.map_or(0, |role| role.replicas);
    let counted = worker.unwrap_or(main);
    for role in [master, worker].into_iter().flatten() {
        log.taken(&role.replicas_at, "part of spec.replicas");
    }
    let sum = count(master).saturating_add(count(worker));
    (sum, counted.replicas_at.clone())
}

/// The least and the most nodes.
fn range<'t>(
    elastic: &Elastic<'t>,
    specs: &Field<'t>,
    worker: Option<&Role<'t>>,
    has_master: bool,
    replicas: Size<'t>,
    log: &mut Verdicts,
) -> super::Sizes<'t> {
    let mut sizes = super::Sizes {
        replicas,
        min: None,
        max: None,
    };
    let Some(field) = &elastic.field else {
        return sizes;
    };
    if worker.is_none() {
        if !log.is_settled(&specs.below("Worker")) {
            log.refuse(field, "needs a Worker, upstream as well");
        }
        return sizes;
    }
    if has_master {
        log.warn(
            field,
            "counts the master as one of the nodes; upstream a master beside it gets ranks that contradict torchrun's",
        );
    }
    if let Some(at) = &elastic.standalone {
        match sizes.replicas.0 {
            1 => log.note(at, "is not needed: Muster brings the nodes together"),
            _ => log.refuse(
                at,
                "makes each node a world of its own; submit one job for each",
            ),
        }
    }
    // The operator's defaults: one that is missing is as the other.
    sizes.min = elastic.min.clone().or_else(|| elastic.max.clone());
    sizes.max = elastic.max.clone().or_else(|| elastic.min.clone());
    sizes
}

/// torchrun's flags win over what the operator tells it.
fn sizes_after_flags<'t>(
    main: &Role<'t>,
    elastic: &Elastic<'t>,
    sizes: super::Sizes<'t>,
    log: &mut Verdicts,
) -> super::Sizes<'t> {
    let is_elastic = sizes.min.is_some();
    let at = |size: &'_ Option<Size<'t>>| size.as_ref().map(|(_, at)| at.clone());
    let (min, max) = (at(&elastic.min), at(&elastic.max));
    let given = [
        (min.as_ref(), "spec.minReplicas"),
        (max.as_ref(), "spec.maxReplicas"),
    ];
    let sizes = super::nodes(&main.launch, sizes, &given, log);
    if main.launch.by == By::Itself && !main.launch.broken && is_elastic {
        log.note(
            &main.pod.container,
            "starts no torchrun: Muster starts each new world by itself",
        );
    }
    sizes
}

/// How many failures torchrun itself survives. Its flag wins over what the operator tells it.
fn own_restarts(main: &Role<'_>, elastic: &Elastic<'_>, log: &mut Verdicts) -> Option<i64> {
    let flag = main.launch.max_restarts;
    if let Some((said, at)) = &elastic.max_restarts {
        match flag {
            None => log.taken(at, "part of spec.restartPolicy.maxRestarts"),
            Some(flag) if flag == *said => log.note(at, "says the same as the command"),
            Some(flag) => log.note(
                at,
                format!("is not used: --max-restarts {flag} in the command wins, upstream as well"),
            ),
        }
    }
    flag.or(elastic.max_restarts.as_ref().map(|(max, _)| *max))
}

/// One world has one policy.
fn other_policy(main: &Role<'_>, worker: Option<&Role<'_>>, log: &mut Verdicts) {
    let (Some((first, _)), Some(worker)) = (&main.policy, worker) else {
        return;
    };
    let Some((policy, at)) = worker.policy.as_ref().filter(|_| worker.name != main.name) else {
        return;
    };
    match policy == first {
        true => log.note(at, format!("says the same as {}", main.name)),
        false => log.warn(
            at,
            format!(
                "has no effect: the policy of {} holds for all nodes, which restart together",
                main.name
            ),
        ),
    }
}
