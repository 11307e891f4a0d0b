//! `TrainJob` of `trainer.kubeflow.org/v1alpha1`: torch jobs, whose runtime is the well-known one or
//! stands in the same file.
//!
//! Source: kubeflow/trainer, pkg/runtime/framework/plugins/torch.

use super::Job;
use crate::{
    draft::{Converted, Draft},
    fields::{Object, Rule, Rules},
    launch::Procs,
    options::Cluster,
    pod::{Main, Pod},
    procs,
    roles::{self, Policy, Style},
    run_policy,
    tree::{Node, Value},
    variables::Told,
    verdict::Verdicts,
};

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
    (
        "runtimePatches",
        Rule::Refuse("change the pods of the runtime, and Muster does not read such changes"),
    ),
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
    runtime(&spec, job, log);
    let Some(field) = spec.get("trainer") else {
        log.refuse(
            &job.spec,
            "has no trainer, so it runs what its runtime's image starts, which is not known here",
        );
        return None;
    };
    let trainer = Object::walk(field, TRAINER, log);
    let mut nodes = (1, field.clone());
    if let Some((at, count)) = trainer.whole("numNodes", log) {
        log.taken(at, "spec.replicas");
        nodes = (count, at.clone());
    }
    let pod = Pod {
        grace: Some((GRACE.to_owned(), field.clone())),
        ..Pod::container(field, &trainer, STYLE.told, cluster, log)
    };
    let launch = roles::start(&pod, STYLE, log)?;
    let said = match trainer.whole("numProcPerNode", log) {
        Some((at, count)) => (Procs::Count(count), at.clone()),
        None if pod.gpus > 0 => (Procs::Gpu, field.clone()),
        // The operator counts the CPUs of the node by what is asked for.
        None => (Procs::Count(pod.cpus.unwrap_or(1)), field.clone()),
    };
    let procs = match launch.procs.is_none() && launch.by == crate::launch::By::Itself {
        true => 1,
        false => procs::count(&launch, Some(said), Procs::Auto, pod.gpus, field, log)?,
    };
    super::nodes_agree(&launch, (nodes.0, nodes.0), nodes.0, log);
    // The pods are never started again: the JobSet fails with the first.
    let restarts = roles::restarts(None, Policy::Never, &run, launch.max_restarts, "", log);
    Draft {
        kind: job.kind,
        meta: job.meta,
        pod: &pod,
        launch: &launch,
        replicas: nodes,
        min: None,
        max: None,
        procs,
        restarts,
        run: &run,
    }
    .finish(log)
    .map(|job| job.of_groups(["node"]))
}

/// Only a runtime that does nothing but start torch's processes means the same here.
fn runtime(spec: &Object<'_>, job: &Job<'_, '_>, log: &mut Verdicts) {
    let Some(reference) = spec.get("runtimeRef") else {
        log.refuse(&job.spec, "has no runtimeRef");
        return;
    };
    let Some((at, name)) = Object::walk(reference, RUNTIME, log)
        .text("name", log)
        .map(|(at, name)| (at.clone(), name))
    else {
        return;
    };
    let own = job.documents.iter().find(|node| {
        let kind = node.text_at(&["kind"]).unwrap_or_default();
        kind.ends_with("TrainingRuntime") && node.text_at(&["metadata", "name"]) == Some(name)
    });
    match (own, name) {
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
