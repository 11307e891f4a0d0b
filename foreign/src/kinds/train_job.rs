//! `TrainJob` of `trainer.kubeflow.org/v1alpha1`: torch jobs, whose runtime stands in the same file or is the
//! well-known one. In pods of its own a job has those of its runtime (`runtime`).
//!
//! Source: kubeflow/trainer, pkg/runtime/framework/plugins/torch.

use super::Job;
use crate::{
    draft::{Converted, Draft},
    fields::{Object, Rule, Rules},
    launch::{By, Launch, Procs},
    options::Cluster,
    pod::{Main, Pod},
    procs,
    roles::{self, Ends, Policy, Style},
    run_policy::{self, RunPolicy},
    tree::{Field, Node, Place, Value},
    variables::Told,
    verdict::{Remark, Verdicts},
};

mod patches;
mod runtime;

const SPEC: Rules = &[
    ("runtimeRef", Rule::Read),
    ("trainer", Rule::Read),
    ("suspend", Rule::Read),
    ("activeDeadlineSeconds", Rule::Read),
    ("managedBy", Rule::Read),
    (
        "initializer",
        Rule::Refuse(
            "downloads before the training, and Muster runs nothing before it; put the data on the nodes",
        ),
    ),
    ("runtimePatches", Rule::Read),
    (
        "podTemplateOverrides",
        Rule::Refuse("change the pods of the runtime, and Muster does not read such changes"),
    ),
    ("labels", Rule::Note("are not kept")),
    ("annotations", Rule::Note("are not kept")),
];

const RUNTIME: Rules = &[
    ("name", Rule::Read),
    ("apiGroup", Rule::Note("is that of the kind")),
    ("kind", Rule::Note("says where the runtime is found")),
];

const TRAINER: Rules = &[
    ("image", Rule::Read),
    ("command", Rule::Read),
    ("args", Rule::Read),
    ("env", Rule::Read),
    ("numNodes", Rule::Read),
    ("numProcPerNode", Rule::Read),
    ("resourcesPerNode", Rule::Read),
];

/// The kubelet's default, which a trainer cannot change.
const GRACE: &str = "30s";

const STYLE: Style = Style {
    main: Main::First,
    told: Told {
        names: &[
            "PET_NNODES",
            "PET_NPROC_PER_NODE",
            "PET_NODE_RANK",
            "PET_MASTER_ADDR",
            "PET_MASTER_PORT",
        ],
        prefixes: &["PET_"],
    },
    entrypoint: None,
    as_is: false,
};

pub(super) fn read(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, SPEC, log);
    let own = ["trainer.kubeflow.org/trainjob-controller"];
    let run = run_policy::read(&spec, &own, cluster, log);
    let trainer = spec.get("trainer");
    let trainer = trainer.map(|field| (field, Object::walk(field, TRAINER, log)));
    if let Some(env) = trainer.as_ref().and_then(|(_, trainer)| trainer.get("env")) {
        reserved(env, log);
    }
    match cluster.pods {
        true => in_pods(job, &spec, trainer, &run, cluster, log),
        false => on_machines(job, &spec, trainer, &run, cluster, log),
    }
}

/// What the operator sets in the trainer itself, and refuses there.
fn reserved(env: &Field<'_>, log: &mut Verdicts) {
    let Value::List(items) = &env.node.value else {
        return;
    };
    for (i, item) in items.iter().enumerate() {
        let name = item.text_at(&["name"]).unwrap_or_default();
        if STYLE.told.names.contains(&name) {
            let at = Field {
                place: item.place,
                path: format!("{}[{i}]", env.path),
                node: item,
            };
            log.refuse(
                &at,
                format!("{name} is the operator's to set, which refuses it; say numNodes and numProcPerNode"),
            );
        }
    }
}

fn on_machines(
    job: &Job<'_, '_>,
    spec: &Object<'_>,
    trainer: Option<(&Field<'_>, Object<'_>)>,
    run: &RunPolicy<'_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    if let Some(at) = spec.get("runtimePatches").filter(|at| !at.is_bare()) {
        log.refuse(at, "change the pods of the runtime, and machines have none");
    }
    let named = named(spec, job, log);
    let own = named
        .as_ref()
        .and_then(|(_, name)| in_file(job, kind_of(spec), name));
    if let (Some((at, name)), Some(own)) = (&named, own) {
        log.note(at, "is in this file, and says what the trainer does not");
        return with_runtime(job, own, name, Vec::new(), trainer, run, cluster, log);
    }
    let shipped = named.and_then(|(at, name)| shipped(&at, name, kind_of(spec), log).then_some(at));
    if trainer.is_none() && !log.is_settled(&job.spec.below("trainer")) {
        log.refuse(
            &job.spec,
            "has no trainer, so it runs what its runtime's image starts, which is not known here",
        );
    }
    alone(job, trainer?, shipped, run, cluster, log)
}

/// The job as the trainer says it alone.
fn alone(
    job: &Job<'_, '_>,
    (field, trainer): (&Field<'_>, Object<'_>),
    shipped: Option<Field<'_>>,
    run: &RunPolicy<'_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let pod = Pod {
        grace: Some((GRACE.to_owned(), field.clone())),
        ..Pod::container(field, &trainer, STYLE.told, cluster, log)
    };
    let world = World {
        pod: &pod,
        trainer: Some(&trainer),
        nodes: (1, field.clone()),
        procs: None,
        restarts: (runtime::BACKOFF_LIMIT, None),
        step: runtime::CONTAINER,
        lacks_runtime: shipped.is_none(),
        shipped,
    };
    world.job(job, run, log)
}

/// The job with the pods of its runtime.
fn in_pods(
    job: &Job<'_, '_>,
    spec: &Object<'_>,
    trainer: Option<(&Field<'_>, Object<'_>)>,
    run: &RunPolicy<'_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let (at, name) = named(spec, job, log)?;
    let later = runtime::later();
    let later = later.as_ref().filter(|_| cluster.runtime_later);
    let Some(own) = in_file(job, kind_of(spec), name).or(later) else {
        log.refuse(
            &at,
            format!(
                "is not here, and its pods are the job's; put it into the same file (kubectl get {} {name} -o yaml)",
                kind_of(spec).to_lowercase()
            ),
        );
        return alone(job, trainer?, None, run, cluster, log);
    };
    log.note(&at, "has the template of the pods");
    let patches = patches::read(spec.get("runtimePatches"), log);
    with_runtime(job, own, name, patches, trainer, run, cluster, log)
}

/// The job whose containers are those of its runtime, with what the trainer and patches lay over them.
#[allow(clippy::too_many_arguments, reason = "each is a part of the object")]
fn with_runtime(
    job: &Job<'_, '_>,
    own: &Node,
    name: &str,
    patches: Vec<(Field<'_>, Field<'_>)>,
    trainer: Option<(&Field<'_>, Object<'_>)>,
    run: &RunPolicy<'_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let Some(runtime) = runtime::read(own, name, !cluster.pods, log) else {
        // What the trainer says is judged all the same.
        return alone(job, trainer?, None, run, cluster, log);
    };
    let mut merged = runtime.pod_of(trainer.as_ref().map(|(field, _)| field.node));
    for (step, patch) in patches {
        match step.node.text_at(&["name"]) == Some(runtime.step) || cluster.runtime_later {
            true => patches::lay(&mut merged, patch.node),
            false => log.refuse(
                &step,
                format!(
                    "is for a step that {} {name} does not have",
                    own.text_at(&["kind"]).unwrap_or_default()
                ),
            ),
        }
    }
    let merged_at = Field {
        node: &merged,
        ..runtime.pod.clone()
    };
    let from = log.remarks.len();
    let main = match cluster.pods {
        true => Main::Named(runtime::CONTAINER),
        false => Main::Only(runtime::CONTAINER),
    };
    let pod = Pod::read(&merged_at, main, STYLE.told, cluster, log)?;
    let world = World {
        pod: &pod,
        trainer: trainer.as_ref().map(|(_, trainer)| trainer),
        nodes: runtime.nodes,
        procs: runtime.procs,
        restarts: runtime.restarts,
        step: runtime.step,
        shipped: None,
        lacks_runtime: false,
    };
    let converted = world.job(job, run, log);
    if let Some((trainer_at, trainer)) = &trainer {
        said_by(
            trainer_at,
            trainer,
            &pod.container,
            &mut log.remarks[from..],
        );
        for name in ["env", "resourcesPerNode"] {
            let path = trainer_at.below(name);
            if let Some(at) = trainer.get(name)
                && !log.remarks[from..].iter().any(|remark| remark.path == path)
            {
                log.note(at, "is laid over that of the runtime");
            }
        }
    }
    converted
}

/// Whether the runtime is one that Kubeflow ships, and does nothing but start torch's processes (Trainer 2.3,
/// `manifests/base/runtimes`). It has one node, and says nothing of ranks. Somebody may have changed it in a
/// cluster.
fn shipped(at: &Field<'_>, name: &str, kind: &str, log: &mut Verdicts) -> bool {
    let other = match name {
        _ if kind != "ClusterTrainingRuntime" => None,
        "torch-distributed" => return true,
        "deepspeed-distributed" | "mlx-distributed" => Some(
            "starts its ranks with mpirun, and Muster has only runtimes of torch yet; write an MPIJob",
        ),
        "jax-distributed" => {
            Some("is no runtime of torch, and Muster has only that yet; write a JAXJob")
        }
        "xgboost-distributed" => {
            Some("is no runtime of torch, and Muster has only that yet; write an XGBoostJob")
        }
        "torch-distributed-with-cache" => Some(
            "fills a cache before the training, and Muster runs nothing before it; put the data on the nodes and name torch-distributed",
        ),
        _ if name.starts_with("torchtune-") => Some(
            "downloads before the training and makes up arguments for torchtune, which Muster does not know; write them into a trainer of torch-distributed",
        ),
        _ => None,
    };
    match other {
        Some(why) => log.refuse(at, why),
        None => log.refuse(
            at,
            format!(
                "is a runtime that Muster does not know; put it into the same file (kubectl get {} {name} -o yaml)",
                kind.to_lowercase()
            ),
        ),
    }
    false
}

/// What the trainer says is told at its own fields, not at those of the runtime that it replaces.
fn said_by(at: &Field<'_>, trainer: &Object<'_>, container: &Field<'_>, remarks: &mut [Remark]) {
    let mut move_to =
        |replaced: String, by: String, place: Option<Place>, inside: Option<&[Place]>| {
            for remark in remarks.iter_mut() {
                let rest = remark.path.strip_prefix(&replaced);
                let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with(['[', '.']));
                let is_here = inside.is_none_or(|inside| inside.contains(&remark.place));
                if let Some(rest) = rest.filter(|_| is_here) {
                    remark.path = format!("{by}{rest}");
                    remark.place = place.unwrap_or(remark.place);
                }
            }
        };
    let container_at = &container.path;
    for name in ["image", "command", "args"] {
        if let Some(field) = trainer.get(name) {
            let replaced = format!("{container_at}.{name}");
            move_to(replaced, at.below(name), Some(field.place), None);
        }
    }
    // These are laid over one by one. What is from the trainer has kept its place.
    let items = |node: Option<&Node>| match node.map(|node| &node.value) {
        Some(Value::List(items)) => items.iter().map(|item| item.place).collect(),
        _ => Vec::new(),
    };
    let merged: Vec<Place> = items(container.node.entry("env").map(|entry| &entry.node));
    let said: Vec<Place> = items(trainer.get("env").map(|field| field.node));
    for (i, place) in said.iter().enumerate() {
        if let Some(at_merged) = merged.iter().position(|other| other == place) {
            let replaced = format!("{container_at}.env[{at_merged}]");
            move_to(replaced, format!("{}[{i}]", at.below("env")), None, None);
        }
    }
    if let Some(resources) = trainer.get("resourcesPerNode") {
        let mut inside = Vec::new();
        places(resources.node, &mut inside);
        let by = at.below("resourcesPerNode");
        move_to(format!("{container_at}.resources"), by, None, Some(&inside));
    }
}

/// The places of all values below a node.
fn places(node: &Node, found: &mut Vec<Place>) {
    found.push(node.place);
    match &node.value {
        Value::List(items) => items.iter().for_each(|item| places(item, found)),
        Value::Object(entries) => entries.iter().for_each(|entry| places(&entry.node, found)),
        _ => {}
    }
}

/// The nodes of a job, and what runs on them.
struct World<'a, 't> {
    pod: &'a Pod<'t>,
    trainer: Option<&'a Object<'t>>,
    /// What the runtime says, if the trainer does not.
    nodes: (i64, Field<'t>),
    procs: Option<(Procs, Field<'t>)>,
    /// How often the job may start again, and what says so.
    restarts: (i64, Option<Field<'t>>),
    step: &'a str,
    /// The name of a runtime that is taken as Kubeflow ships it.
    shipped: Option<Field<'t>>,
    /// The runtime, which may say the rest, is refused.
    lacks_runtime: bool,
}

impl World<'_, '_> {
    fn job(self, job: &Job<'_, '_>, run: &RunPolicy<'_>, log: &mut Verdicts) -> Option<Converted> {
        let World {
            pod,
            trainer,
            mut nodes,
            procs,
            restarts,
            step,
            shipped,
            lacks_runtime,
        } = self;
        let count = |name: &str, log: &mut Verdicts| trainer.and_then(|all| all.whole(name, log));
        if let Some((at, count)) = count("numNodes", log) {
            log.taken(at, "spec.replicas");
            nodes = (count, at.clone());
        } else if nodes.1.path.ends_with(".numNodes") {
            log.taken(&nodes.1, "spec.replicas");
        }
        let mut words = pod.words.iter().map(|word| &*word.text);
        if (words.next(), words.next()) == (Some("tune"), Some("run")) {
            log.refuse(
                &pod.words[0].field(),
                "is torchtune, for which the operator makes up arguments that Muster does not know",
            );
        }
        let launch = match !pod.names_program && lacks_runtime {
            // It may be that of the runtime.
            true => Launch::unknown(),
            false => roles::start(pod, STYLE, log).unwrap_or_else(Launch::unknown),
        };
        let at = &pod.container;
        if let Some(at) = &shipped {
            let is_said = |name: &str| trainer.is_some_and(|all| all.get(name).is_some());
            // A plain program is one rank, and resources say how many torchrun starts.
            let procs = is_said("numProcPerNode") || is_said("resourcesPerNode") || launch.broken;
            let procs = procs || launch.by == By::Itself || launch.procs.is_some();
            say_assumed(
                at,
                is_said("numNodes") || launch.nodes.is_some(),
                procs,
                log,
            );
        }
        let said = match (count("numProcPerNode", log), procs) {
            (Some((at, count)), _) => (Procs::Count(count), at.clone()),
            (None, Some((Procs::Count(count), at))) => (Procs::Count(count), at),
            (None, _) if pod.gpus > 0 => (Procs::Gpu, at.clone()),
            // The operator counts the CPUs of the node by what is asked for.
            (None, _) => (Procs::Count(pod.cpus.unwrap_or(1).max(1)), at.clone()),
        };
        let procs = match launch.procs.is_none() && launch.by == By::Itself {
            true => Some(1),
            false => procs::count(&launch, Some(said), Procs::Auto, pod.gpus, at, log),
        };
        let sizes = super::Sizes {
            replicas: nodes,
            min: None,
            max: None,
        };
        let super::Sizes { replicas, min, max } = super::nodes(&launch, sizes, &[], log);
        // A JobSet's pods start their container again, until their Job gives up.
        let restarts = match restarts {
            (limit, None) => Ends {
                policy: Some(roles::in_all(limit)),
                rules: Vec::new(),
            },
            (limit, Some(at)) => {
                let run = RunPolicy {
                    backoff_limit: Some((limit, at)),
                    ..run.clone()
                };
                let own = launch.max_restarts;
                roles::restarts(None, Policy::OnFailure, &run, own, "", log)
            }
        };
        Draft {
            kind: job.kind,
            meta: job.meta,
            pod,
            launch: &launch,
            replicas,
            min,
            max,
            procs: procs.unwrap_or(1),
            restarts,
            run,
        }
        .finish(log)
        .map(|job| job.of_groups([step]))
    }
}

/// Says what is taken from a runtime that is not in the file.
fn say_assumed(at: &Field<'_>, nodes: bool, procs: bool, log: &mut Verdicts) {
    let assumed = match (nodes, procs) {
        (true, true) => {
            log.note(at, "starts torch's processes, as Muster does");
            return;
        }
        (false, true) => "one node",
        (true, false) => "no GPUs and one rank on a node",
        (false, false) => "one node, without GPUs and with one rank",
    };
    log.warn(
        at,
        format!("is not in this file and taken as Kubeflow ships it: {assumed}. If yours says otherwise, put it into the file (kubectl get clustertrainingruntime torch-distributed -o yaml), or say numNodes, numProcPerNode and resourcesPerNode"),
    );
}

/// The name of the runtime.
fn named<'t>(
    spec: &Object<'t>,
    job: &Job<'_, 't>,
    log: &mut Verdicts,
) -> Option<(Field<'t>, &'t str)> {
    let Some(reference) = spec.get("runtimeRef") else {
        log.lacks(&job.spec, "runtimeRef");
        return None;
    };
    let at = reference;
    let reference = Object::walk(at, RUNTIME, log);
    if reference.get("name").is_none_or(Field::is_bare) {
        log.lacks(at, "name");
    }
    let (at, name) = reference.text("name", log)?;
    Some((at.clone(), name))
}

fn kind_of<'t>(spec: &Object<'t>) -> &'t str {
    let reference = spec.get("runtimeRef");
    let kind = reference.and_then(|at| at.node.text_at(&["kind"]));
    kind.unwrap_or("ClusterTrainingRuntime")
}

/// The runtime of this kind and name in the same file.
fn in_file<'t>(job: &Job<'_, 't>, kind: &str, name: &str) -> Option<&'t Node> {
    let mut all = job.documents.iter().copied();
    all.find(|node| {
        let of_kind = node.text_at(&["kind"]) == Some(kind);
        of_kind
            && kind.ends_with("TrainingRuntime")
            && node.text_at(&["metadata", "name"]) == Some(name)
    })
}
