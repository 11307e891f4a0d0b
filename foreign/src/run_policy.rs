//! What is to happen to a job as a whole: its end, its limits, whether it may start. Kubeflow's kinds
//! have it in `spec.runPolicy`, older ones directly in `spec`.

use crate::{
    fields::{Object, Rule, Rules},
    options::Cluster,
    tree::{Field, Value},
    verdict::Verdicts,
};

/// The value of `managedBy` that names us.
pub const MANAGER: &str = "muster.dev/coordinator";

/// The names in `spec.runPolicy`. Kinds of the old shape have them in their own table, too.
const RUN_POLICY: Rules = &[
    ("cleanPodPolicy", Rule::Read),
    ("ttlSecondsAfterFinished", Rule::Read),
    ("activeDeadlineSeconds", Rule::Read),
    ("backoffLimit", Rule::Read),
    ("suspend", Rule::Read),
    ("schedulingPolicy", Rule::Read),
    ("managedBy", Rule::Read),
];

const SCHEDULING: Rules = &[
    (
        "minAvailable",
        Rule::Note("is not needed: Muster starts all nodes of a job together, from minReplicas on"),
    ),
    (
        "queue",
        Rule::Warn("has no effect: Muster has no queues yet"),
    ),
    (
        "minResources",
        Rule::Note("is not needed: Muster starts all nodes of a job together, from minReplicas on"),
    ),
    ("priorityClass", Rule::Read),
    (
        "scheduleTimeoutSeconds",
        Rule::Warn("has no effect: a job waits for its nodes until it is cancelled"),
    ),
];

/// What a kind needs of the policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunPolicy<'t> {
    pub(crate) backoff_limit: Option<(i64, Field<'t>)>,
    pub(crate) priority: Option<(i64, Field<'t>)>,
    pub(crate) deadline: Option<(i64, Field<'t>)>,
    pub(crate) ttl: Option<(i64, Field<'t>)>,
    pub(crate) suspend: bool,
}

/// Reads the policy of a job. `own` are the names under which its operator takes a job as its own.
pub(crate) fn read<'t>(
    spec: &Object<'t>,
    own: &[&str],
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> RunPolicy<'t> {
    // Some ElasticJobs spell it with a capital letter.
    let block = spec.get("runPolicy").or_else(|| spec.get("RunPolicy"));
    let block = block.map(|field| Object::walk(field, RUN_POLICY, log));
    let found = |name: &str, log: &mut Verdicts| -> Option<Field<'t>> {
        let direct = spec.get(name);
        let inside = block.as_ref().and_then(|block| block.get(name));
        match (direct, inside) {
            (Some(one), Some(two)) if one.node.says_the_same(two.node) => {
                log.note(two, format!("says the same as {}", one.path));
                Some(one.clone())
            }
            (Some(one), Some(two)) => {
                log.refuse(two, format!("differs from {}", one.path));
                None
            }
            (one, two) => one.or(two).cloned(),
        }
    };
    if let Some(field) = found("cleanPodPolicy", log) {
        match field.text(log) {
            Some("" | "None" | "Running" | "All") => log.note(
                &field,
                "is not needed: processes end with the job, and logs stay until it is deleted",
            ),
            Some(other) => log.refuse(
                &field,
                format!("is {other:?}, must be None, Running or All"),
            ),
            None => {}
        }
    }
    let seconds = |name: &str, log: &mut Verdicts| {
        let field = found(name, log)?;
        let seconds = field.whole(log)?;
        log.taken(&field, format!("spec.{name}"));
        Some((seconds, field))
    };
    let ttl = seconds("ttlSecondsAfterFinished", log);
    let deadline = seconds("activeDeadlineSeconds", log);
    let mut suspend = false;
    if let Some(field) = found("suspend", log) {
        match field.flag(log) {
            Some(true) => {
                log.taken(&field, "spec.suspend");
                suspend = true;
            }
            Some(false) => log.note(&field, "is so"),
            None => {}
        }
    }
    if let Some(field) = found("managedBy", log) {
        match field.text(log) {
            Some(MANAGER) => log.note(&field, "names Muster"),
            Some(_) if cluster.adopted => log.note(&field, "is not needed: a label names Muster"),
            Some(manager) if !manager.is_empty() && !own.contains(&manager) => {
                log.refuse(&field, format!("hands the job to {manager}"));
            }
            Some(_) => log.note(&field, "is so"),
            None => {}
        }
    }
    let backoff_limit =
        found("backoffLimit", log).and_then(|field| Some((field.whole(log)?, field)));
    let mut priority = None;
    if let Some(field) = found("schedulingPolicy", log)
        && field.node.value != Value::Null
    {
        let scheduling = Object::walk(&field, SCHEDULING, log);
        priority = scheduling
            .text("priorityClass", log)
            .filter(|(_, class)| !class.is_empty())
            .and_then(|(at, class)| Some((cluster.priority(class, at, log)?, at.clone())));
    }
    RunPolicy {
        backoff_limit,
        priority,
        deadline,
        ttl,
        suspend,
    }
}
