//! A `TrainingRuntime` or `ClusterTrainingRuntime`: what of it a job takes, and its pod template with what
//! the `TrainJob` says laid over it.
//!
//! One step with torch's processes is all that is taken. Sources: kubeflow/trainer 2.3,
//! `pkg/runtime/framework/plugins/jobset/builder.go` for what wins over what, and kubernetes-sigs/jobset,
//! `pkg/webhooks/jobset_webhook.go` for what pods get that do not say.

use crate::{
    fields::{Object, Rule, Rules},
    launch::Procs,
    tree::{Entry, Field, Node, Value, parse_all},
    verdict::Verdicts,
};

/// The container in which the training runs.
pub(super) const CONTAINER: &str = "node";

/// Where a step says what it is for.
const STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";

/// The value of that label on the step that trains. The others are initializers (`pkg/constants/constants.go`).
const TRAINS: &str = "trainer";
const INITIALIZERS: [&str; 2] = ["dataset-initializer", "model-initializer"];

/// How often a Job of Kubernetes starts its pods again, if it does not say (`backoffLimit`).
pub(super) const BACKOFF_LIMIT: i64 = 6;

const RUNTIME: Rules = &[
    ("apiVersion", Rule::Note("says which kind it is")),
    ("kind", Rule::Note("says which kind it is")),
    ("metadata", Rule::Note("names it")),
    ("spec", Rule::Read),
];

const SPEC: Rules = &[
    ("mlPolicy", Rule::Read),
    (
        "podGroupPolicy",
        Rule::Note("is not needed: Muster starts all nodes of a job together"),
    ),
    ("template", Rule::Read),
];

/// Those that stand for a framework may be empty, and are looked at one by one.
const POLICY: Rules = &[
    ("numNodes", Rule::Read),
    ("torch", Rule::Read),
    ("mpi", Rule::Read),
    ("jax", Rule::Read),
    ("xgboost", Rule::Read),
    ("flux", Rule::Read),
];

const TORCH: Rules = &[
    ("numProcPerNode", Rule::Read),
    (
        "envInjection",
        Rule::Refuse(
            "tells other containers of the world, and Muster tells only the one that trains",
        ),
    ),
];

const TEMPLATE: Rules = &[
    ("metadata", Rule::Note("is the JobSet's, and there is none")),
    ("spec", Rule::Read),
];

const NOT_NEEDED: Rule =
    Rule::Note("is not needed: Muster places, starts and ends the nodes of a job");

const JOB_SET: Rules = &[
    ("replicatedJobs", Rule::Read),
    ("failurePolicy", Rule::Read),
    ("successPolicy", NOT_NEEDED),
    ("startupPolicy", NOT_NEEDED),
    ("network", NOT_NEEDED),
    ("coordinator", NOT_NEEDED),
    ("suspend", NOT_NEEDED),
    ("managedBy", NOT_NEEDED),
    (
        "ttlSecondsAfterFinished",
        Rule::Note("is not needed: pods go when the job is over"),
    ),
    (
        "volumeClaimPolicies",
        Rule::Refuse("makes volumes, and Muster makes none; mount claims that exist"),
    ),
];

const FAILURES: Rules = &[
    ("maxRestarts", Rule::Read),
    ("restartStrategy", NOT_NEEDED),
    (
        "rules",
        Rule::Refuse(
            "are not read; say with backoffLimit and maxRestarts how often the job starts again",
        ),
    ),
];

const STEP_JOB: Rules = &[
    ("name", Rule::Read),
    ("template", Rule::Read),
    ("replicas", Rule::Note("is one, as upstream")),
    ("groupName", NOT_NEEDED),
    (
        "dependsOn",
        Rule::Refuse("waits for another step, and there is only one here"),
    ),
];

const JOB: Rules = &[("metadata", Rule::Read), ("spec", Rule::Read)];

const JOB_SPEC: Rules = &[
    ("template", Rule::Read),
    ("backoffLimit", Rule::Read),
    (
        "parallelism",
        Rule::Note("is the number of nodes, as upstream"),
    ),
    (
        "completions",
        Rule::Note("is the number of nodes, as upstream"),
    ),
    ("completionMode", NOT_NEEDED),
    ("suspend", NOT_NEEDED),
    ("selector", NOT_NEEDED),
    ("manualSelector", NOT_NEEDED),
    ("podReplacementPolicy", NOT_NEEDED),
    ("managedBy", NOT_NEEDED),
    (
        "ttlSecondsAfterFinished",
        Rule::Note("is not needed: pods go when the job is over"),
    ),
    (
        "activeDeadlineSeconds",
        Rule::Refuse("is of one step; set that of the TrainJob"),
    ),
    (
        "podFailurePolicy",
        Rule::Refuse("is not read; say with backoffLimit how often the job starts again"),
    ),
    (
        "successPolicy",
        Rule::Refuse("is not read: the job succeeds when all its nodes have"),
    ),
    (
        "backoffLimitPerIndex",
        Rule::Refuse("is not read; set backoffLimit"),
    ),
    (
        "maxFailedIndexes",
        Rule::Refuse("is not read; set backoffLimit"),
    ),
];

/// A runtime that a job can take.
#[derive(Debug)]
pub(super) struct Runtime<'t> {
    /// The name of its only step, after which the members are called.
    pub(super) step: &'t str,
    /// The nodes of a job that does not say.
    pub(super) nodes: (i64, Field<'t>),
    pub(super) procs: Option<(Procs, Field<'t>)>,
    /// How often the job may start again, and what says so.
    pub(super) restarts: (i64, Option<Field<'t>>),
    /// The template of its pods.
    pub(super) pod: Field<'t>,
    /// The only container trains, whatever its name is.
    lenient: bool,
}

/// An empty runtime in place of one that is not read yet.
pub(super) fn later() -> Option<Node> {
    let text = format!(
        "kind: ClusterTrainingRuntime
spec: {{mlPolicy: {{torch: {{}}}}, template: {{spec: {{replicatedJobs: [{{name: {CONTAINER}, template: {{
  metadata: {{labels: {{{STEP}: {TRAINS}}}}},
  spec: {{template: {{spec: {{containers: [{{name: {CONTAINER}, command: ['true']}}]}}}}}}}}}}]}}}}}}
"
    );
    parse_all(&text).ok()?.pop()
}

/// Reads the runtime of this name. `None`: it is refused. `lenient`: its only step trains, whatever labels and
/// names it has, as in the first versions of Trainer.
pub(super) fn read<'t>(
    node: &'t Node,
    name: &str,
    lenient: bool,
    log: &mut Verdicts,
) -> Option<Runtime<'t>> {
    let kind = node.text_at(&["kind"]).unwrap_or("TrainingRuntime");
    let root = Field {
        path: format!("{kind} {name}"),
        ..Field::root(node)
    };
    let before = log.refused();
    let runtime = Object::walk(&root, RUNTIME, log);
    let spec = inside(&root, &runtime, "spec", SPEC, log)?;
    let at = runtime.get("spec").unwrap_or(&root);
    let mut nodes = (1, at.clone());
    let policy = spec.get("mlPolicy").map(|at| Object::walk(at, POLICY, log));
    for other in ["mpi", "jax", "xgboost", "flux"] {
        if let Some(at) = policy.as_ref().and_then(|policy| policy.get(other)) {
            log.refuse(
                at,
                format!("is a runtime of {other}, and Muster takes those of torch"),
            );
        }
    }
    let torch = policy.as_ref().and_then(|policy| policy.get("torch"));
    let Some(torch) = torch else {
        if log.refused() == before {
            log.refuse(
                at,
                "has no mlPolicy.torch, and Muster takes runtimes of torch",
            );
        }
        return None;
    };
    let torch = Object::walk(torch, TORCH, log);
    // Trainer 2.0 had it here.
    let procs = torch.get("numProcPerNode").and_then(|at| {
        let procs = match &at.node.value {
            Value::Text(text) => match Procs::read(text) {
                Ok(procs) => procs,
                Err(why) => {
                    log.refuse(at, why);
                    return None;
                }
            },
            _ => Procs::Count(at.whole(log)?),
        };
        Some((procs, at.clone()))
    });
    if let Some((at, count)) = policy
        .as_ref()
        .and_then(|policy| policy.whole("numNodes", log))
    {
        nodes = (count, at.clone());
    }
    let template = inside(at, &spec, "template", TEMPLATE, log)?;
    let jobs = inside(at, &template, "spec", JOB_SET, log)?;
    let again = jobs
        .get("failurePolicy")
        .map(|at| Object::walk(at, FAILURES, log));
    let again = again.and_then(|policy| {
        let (at, count) = policy.whole("maxRestarts", log)?;
        Some((at.clone(), count))
    });
    let steps = jobs.get("replicatedJobs").map(|at| at.items(log));
    let mut steps = steps.unwrap_or_default();
    if steps.is_empty() {
        log.lacks(at, "replicatedJobs");
        return None;
    }
    let trains = steps.iter().position(|step| of_step(step) == Some(TRAINS));
    let step = steps.remove(trains.unwrap_or_default());
    let is_only = steps.is_empty();
    for other in steps {
        log.refuse(&other, not_run(&other));
    }
    let step_job = Object::walk(&step, STEP_JOB, log);
    let job = inside(&step, &step_job, "template", JOB, log)?;
    if trains.is_none() && lenient && is_only {
        log.note(&step, "is the only step, so it trains");
    } else if trains.is_none() {
        log.refuse(
            &step,
            format!("is no training: its template has no label {STEP}: {TRAINS}"),
        );
    }
    let job = inside(&step, &job, "spec", JOB_SPEC, log)?;
    let limit = job.whole("backoffLimit", log);
    let limit = limit.map(|(at, limit)| (at.clone(), limit));
    let restarts = restarts(limit, again, log);
    let Some(pod) = job.get("template") else {
        log.refuse(&step, "has no pod");
        return None;
    };
    let name = step_job
        .text("name", log)
        .map_or(CONTAINER, |(_, name)| name);
    (log.refused() == before).then(|| Runtime {
        step: name,
        nodes,
        procs,
        restarts,
        pod: pod.clone(),
        lenient,
    })
}

/// The purpose of a step, by its label.
fn of_step<'t>(step: &Field<'t>) -> Option<&'t str> {
    let labels = ["template", "metadata", "labels", STEP];
    step.node.text_at(&labels)
}

/// Why a step beside the training cannot be.
fn not_run(step: &Field<'_>) -> String {
    let name = step.node.text_at(&["name"]).unwrap_or_default();
    match of_step(step) {
        Some(own) if INITIALIZERS.contains(&own) => format!(
            "is the {own}, which downloads before the training, and Muster runs nothing before it; put the data on the nodes, and name a runtime \
             without it"
        ),
        Some(TRAINS) => format!("is a second training, {name:?}, and a job has one"),
        _ => format!("is another step, {name:?}, and Muster runs only the training"),
    }
}

/// The JobSet starts its Job anew, and each Job has its own limit.
fn restarts<'t>(
    limit: Option<(Field<'t>, i64)>,
    again: Option<(Field<'t>, i64)>,
    log: &mut Verdicts,
) -> (i64, Option<Field<'t>>) {
    let each = limit.as_ref().map_or(BACKOFF_LIMIT, |(_, limit)| *limit);
    let times = again.as_ref().map_or(0, |(_, times)| *times);
    let all = (each.saturating_add(1)).saturating_mul(times.saturating_add(1));
    let at = match (limit, again) {
        (Some((at, _)), Some((other, _))) => {
            log.note(
                &other,
                "starts the Job anew, and each Job has its own backoffLimit, as upstream",
            );
            Some(at)
        }
        (one, other) => one.or(other).map(|(at, _)| at),
    };
    (all.saturating_sub(1), at)
}

/// A mapping that must be there.
fn inside<'t>(
    at: &Field<'t>,
    outer: &Object<'t>,
    name: &str,
    rules: Rules,
    log: &mut Verdicts,
) -> Option<Object<'t>> {
    match outer.get(name) {
        Some(field) => Some(Object::walk(field, rules, log)),
        None => {
            log.lacks(at, name);
            None
        }
    }
}

impl Runtime<'_> {
    /// The pod template with what the trainer says: image, command and arguments take the place of the
    /// runtime's, variables and resources are laid over them one by one.
    pub(super) fn pod_of(&self, trainer: Option<&Node>) -> Node {
        let mut pod = self.pod.node.clone();
        let container = entry(&mut pod, "spec")
            .and_then(|spec| entry(spec, "containers"))
            .and_then(|containers| match &mut containers.value {
                Value::List(all) => {
                    let is_only = all.len() == 1 && self.lenient;
                    all.iter_mut()
                        .find(|one| is_only || one.text_at(&["name"]) == Some(CONTAINER))
                }
                _ => None,
            });
        let (Some(container), Some(trainer)) = (container, trainer) else {
            return pod;
        };
        let said = |name: &str| trainer.entry(name).map(|entry| &entry.node);
        for name in ["image", "command", "args"] {
            if let Some(said) = said(name).filter(|said| said.value != Value::Null) {
                put(container, name, said.clone());
            }
        }
        if let Some(said) = said("env") {
            overlay_list(container, "env", said);
        }
        if let Some(said) = said("resourcesPerNode") {
            for part in ["limits", "requests"] {
                if let Some(amounts) = said.entry(part) {
                    overlay(container, part, &amounts.node);
                }
            }
        }
        pod
    }
}

pub(super) fn entry<'n>(node: &'n mut Node, key: &str) -> Option<&'n mut Node> {
    let Value::Object(entries) = &mut node.value else {
        return None;
    };
    let found = entries.iter_mut().find(|entry| entry.key == key);
    found.map(|entry| &mut entry.node)
}

/// Sets an entry of a mapping.
pub(super) fn put(node: &mut Node, key: &str, value: Node) {
    if let Some(there) = entry(node, key) {
        *there = value;
    } else if let Value::Object(entries) = &mut node.value {
        entries.push(Entry {
            key: key.to_owned(),
            key_place: value.place,
            node: value,
        });
    }
}

/// The entry, which is made if it is not there.
fn made<'n>(node: &'n mut Node, key: &str, empty: Value) -> Option<&'n mut Node> {
    let place = node.place;
    if entry(node, key).is_none_or(|there| there.value == Value::Null) {
        let value = empty;
        put(node, key, Node::made(place, value));
    }
    entry(node, key)
}

/// Lays amounts over those of the container's `resources`.
fn overlay(container: &mut Node, part: &str, amounts: &Node) {
    let resources = made(container, "resources", Value::Object(Vec::new()));
    let there = resources.and_then(|all| made(all, part, Value::Object(Vec::new())));
    if let (Some(there), Value::Object(amounts)) = (there, &amounts.value) {
        for amount in amounts {
            put(there, &amount.key, amount.node.clone());
        }
    }
}

/// Lays a list of named things over another.
fn overlay_list(container: &mut Node, name: &str, said: &Node) {
    let there = made(container, name, Value::List(Vec::new()));
    if let (Some(there), Value::List(said)) = (there, &said.value)
        && let Value::List(there) = &mut there.value
    {
        for one in said {
            let same = |other: &&mut Node| other.text_at(&["name"]) == one.text_at(&["name"]);
            match there.iter_mut().find(same) {
                Some(other) => *other = one.clone(),
                None => there.push(one.clone()),
            }
        }
    }
}
