//! `TrainJob` of `trainer.kubeflow.org/v1alpha1`: torch jobs, whose runtime is the well-known one or
//! stands in the same file. In pods of its own a job has those of its runtime (`runtime`).
//!
//! Source: kubeflow/trainer, pkg/runtime/framework/plugins/torch.

use super::Job;
use crate::{
    draft::{Converted, Draft},
    fields::{Object, Rule, Rules},
    launch::{Launch, Procs},
    options::Cluster,
    pod::{Main, Pod},
    procs,
    roles::{self, Ends, Policy, Style},
    run_policy::{self, RunPolicy},
    tree::{Field, Node, Value},
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
    match cluster.pods {
        true => in_pods(job, &spec, trainer, &run, cluster, log),
        false => on_machines(job, &spec, trainer, &run, cluster, log),
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
    only_torch(spec, job, log);
    if let Some(at) = spec.get("runtimePatches").filter(|at| !at.is_bare()) {
        log.refuse(at, "change the pods of the runtime, and machines have none");
    }
    let Some((field, trainer)) = trainer else {
        log.refuse(
            &job.spec,
            "has no trainer, so it runs what its runtime's image starts, which is not known here",
        );
        return None;
    };
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
        return None;
    };
    let runtime = runtime::read(own, name, log)?;
    log.note(&at, "has the template of the pods");
    let mut merged = runtime.pod_of(trainer.as_ref().map(|(field, _)| field.node));
    for (step, patch) in patches::read(spec.get("runtimePatches"), log) {
        match step.node.text_at(&["name"]) == Some(runtime.step) || cluster.runtime_later {
            true => patches::lay(&mut merged, patch.node),
            false => log.refuse(
                &step,
                format!("is for a step that {} {name} does not have", kind_of(spec)),
            ),
        }
    }
    let merged_at = Field {
        node: &merged,
        ..runtime.pod.clone()
    };
    let from = log.remarks.len();
    let main = Main::Named(runtime::CONTAINER);
    let pod = Pod::read(&merged_at, main, STYLE.told, cluster, log)?;
    if let Some((trainer_at, trainer)) = &trainer {
        said_by(
            trainer_at,
            trainer,
            &pod.container.path,
            &mut log.remarks[from..],
        );
    }
    let world = World {
        pod: &pod,
        trainer: trainer.as_ref().map(|(_, trainer)| trainer),
        nodes: runtime.nodes,
        procs: runtime.procs,
        restarts: runtime.restarts,
        step: runtime.step,
    };
    world.job(job, run, log)
}

/// What the trainer says is told at its own fields, not at those of the runtime that it replaces.
fn said_by(at: &Field<'_>, trainer: &Object<'_>, container: &str, remarks: &mut [Remark]) {
    for name in ["image", "command", "args"] {
        let Some(field) = trainer.get(name) else {
            continue;
        };
        let replaced = format!("{container}.{name}");
        for remark in remarks.iter_mut() {
            let rest = remark.path.strip_prefix(&replaced);
            let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with('['));
            if let Some(rest) = rest {
                remark.path = format!("{}{rest}", at.below(name));
                remark.place = field.place;
            }
        }
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
        } = self;
        let count = |name: &str, log: &mut Verdicts| trainer.and_then(|all| all.whole(name, log));
        if let Some((at, count)) = count("numNodes", log) {
            log.taken(at, "spec.replicas");
            nodes = (count, at.clone());
        }
        let mut words = pod.words.iter().map(|word| &*word.text);
        if (words.next(), words.next()) == (Some("tune"), Some("run")) {
            log.refuse(
                &pod.container,
                "is torchtune, for which the operator makes up arguments that Muster does not know",
            );
        }
        let launch = roles::start(pod, STYLE, log).unwrap_or_else(Launch::unknown);
        let at = &pod.container;
        let said = match (count("numProcPerNode", log), procs) {
            (Some((at, count)), _) => (Procs::Count(count), at.clone()),
            (None, Some((Procs::Count(count), at))) => (Procs::Count(count), at),
            (None, _) if pod.gpus > 0 => (Procs::Gpu, at.clone()),
            // The operator counts the CPUs of the node by what is asked for.
            (None, _) => (Procs::Count(pod.cpus.unwrap_or(1).max(1)), at.clone()),
        };
        let procs = match launch.procs.is_none() && launch.by == crate::launch::By::Itself {
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
    let reference = Object::walk(reference, RUNTIME, log);
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

/// Only a runtime that does nothing but start torch's processes means the same here.
fn only_torch(spec: &Object<'_>, job: &Job<'_, '_>, log: &mut Verdicts) {
    let Some((at, name)) = named(spec, job, log) else {
        return;
    };
    match (in_file(job, kind_of(spec), name), name) {
        (Some(own), _) => match more_than_torch(own) {
            None => log.note(&at, "starts torch's processes, as Muster does"),
            Some(what) => log.refuse(
                &at,
                format!("its runtime has {what}, which Muster does not do"),
            ),
        },
        (None, "torch-distributed") => log.note(&at, "starts torch's processes, as Muster does"),
        (
            None,
            "deepspeed-distributed" | "jax-distributed" | "xgboost-distributed" | "mlx-distributed",
        ) => {
            log.refuse(&at, "is no runtime of torch, and Muster has only that yet");
        }
        (None, _) => log.refuse(
            &at,
            "is a runtime that Muster does not know; put it into the same file",
        ),
    }
}

/// What a runtime has beyond an image in which torch's processes are started.
fn more_than_torch(runtime: &Node) -> Option<&'static str> {
    let at = |keys: &[&str]| {
        let mut node = runtime;
        for key in keys {
            node = &node.entry(key)?.node;
        }
        Some(node)
    };
    if at(&["spec", "mlPolicy", "torch"]).is_none() {
        return Some("no policy for torch");
    }
    let Some(Value::List(jobs)) =
        at(&["spec", "template", "spec", "replicatedJobs"]).map(|node| &node.value)
    else {
        return Some("no job");
    };
    let [only] = &jobs[..] else {
        return Some("a step before the training");
    };
    let mut pod = only;
    for key in ["template", "spec", "template", "spec"] {
        match pod.entry(key) {
            Some(entry) => pod = &entry.node,
            None => return Some("no pod"),
        }
    }
    let Value::Object(fields) = &pod.value else {
        return Some("no pod");
    };
    if fields.iter().any(|entry| entry.key != "containers") {
        return Some("settings of its pods");
    }
    let Some(Value::List(containers)) = pod.entry("containers").map(|entry| &entry.node.value)
    else {
        return Some("no container");
    };
    let [container] = &containers[..] else {
        return Some("several containers");
    };
    let Value::Object(fields) = &container.value else {
        return Some("no container");
    };
    let plain = |name: &str| matches!(name, "name" | "image" | "imagePullPolicy");
    let more = fields.iter().any(|entry| !plain(&entry.key));
    more.then_some("settings of its container")
}
