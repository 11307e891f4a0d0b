//! A `MusterJob` object as it is read. Fields that are not needed are dropped here.

use std::{borrow::Cow, time::Duration};

use kube::{
    Resource,
    core::{NamespaceResourceScope, ObjectMeta},
};
use muster_core::{
    id::{JobName, JobUid},
    spec::{
        API_VERSION, GangScheduler, KIND, SpecDocument,
        shape::{
            DISRUPTION_BUDGET, DISRUPTION_BUDGET_MINIMUM, NETWORK_POLICY, NETWORK_POLICY_JOB, NONE,
            POD_GROUP, SUSPEND, TEMPLATE, TTL,
        },
    },
    time::Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::dependents;
use crate::{
    crd::{GROUP, JOBS},
    desk::{Place, QUEUE},
    gang,
    pods::check_template,
    rules::{dependents::Asked, job_object::JobObject},
};

/// Keeps a deleted object until the workers of its job have stopped.
pub(super) const FINALIZER: &str = "muster.dev/coordinated-stop";

/// The phases of a job that is over.
const OVER: [&str; 3] = ["Succeeded", "Failed", "Cancelled"];

/// Bytes of the largest spec that is kept, as JSON, without its template. Arguments and environment of a
/// job may have 96 KiB together, and the schema bounds each of them alone. The largest template, too: each
/// pod of the job has it.
const SPEC_MAX: usize = 256 << 10;

/// Characters of the longest text that says what is wrong with a spec. It may repeat what the spec has.
const WRONG_MAX: usize = 1_024;

/// The object as the API server has it. Spec and status are read later, so that one bad object does
/// not spoil a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MusterJob {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

impl Resource for MusterJob {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group(_: &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version(_: &()) -> Cow<'_, str> {
        let version = API_VERSION.split('/').nth(1);
        version.unwrap_or_default().into()
    }

    fn plural(_: &()) -> Cow<'_, str> {
        JOBS.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What is kept of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(super) object: JobObject,
    /// Its resourceVersion.
    pub(super) version: String,
    /// Counts the versions of its spec.
    pub(super) generation: i64,
    pub(super) finalizers: Vec<String>,
    pub(super) status: Value,
    /// The bytes of its spec and its template. Of a spec that is wrong nothing is kept.
    pub(super) bytes: usize,
    /// There was no room for its spec.
    pub(super) shed: bool,
}

impl Seen {
    /// `None`: it is no object of an API server.
    pub(super) fn of(object: MusterJob) -> Option<Self> {
        let MusterJob {
            metadata,
            mut spec,
            status,
        } = object;
        // Workers' directories are named by the uid.
        let plain = |uid: &String| {
            let is_plain = |c: char| c.is_ascii_hexdigit() || c == '-';
            (1..=64).contains(&uid.len()) && uid.chars().all(is_plain)
        };
        let finalizers = metadata.finalizers.unwrap_or_default();
        let queue = metadata.labels.as_ref().and_then(|all| all.get(QUEUE));
        let queue = queue.filter(|queue| !queue.is_empty()).cloned();
        let mut own = |field: &str| spec.as_object_mut()?.remove(field);
        let mut template = own(TEMPLATE).filter(|template| !template.is_null());
        let asks = asked(
            own(NETWORK_POLICY),
            own(DISRUPTION_BUDGET),
            own(POD_GROUP),
            template.as_ref(),
        );
        // A job that was accepted is held back, and goes after its time, also if the rest is wrong now.
        let suspend = spec[SUSPEND] == true;
        let ttl = spec[TTL].as_u64().map(Duration::from_secs);
        let name = JobName {
            namespace: metadata.namespace?,
            name: metadata.name?,
        };
        let uid = JobUid::from(metadata.uid.filter(plain)?);
        let group = asks.as_ref().ok().and_then(|asks| asks.group);
        if let Some((template, scheduler)) = template.as_mut().zip(group) {
            gang::join(template, scheduler, &dependents::name(&name, &uid));
        }
        let (queue, own) = (queue.filter(|_| template.is_some()), spec.to_string().len());
        let text = template.as_ref().map(Value::to_string);
        let bytes = own + text.as_ref().map_or(0, String::len);
        let spec = document(spec, own, template.as_ref(), text.as_deref())
            .and_then(|document| asks.as_ref().map(|_| document).map_err(String::clone));
        let object = JobObject {
            name,
            uid,
            spec,
            queue,
            template: text,
            suspend,
            deleting: metadata.deletion_timestamp.is_some(),
            held: finalizers.iter().any(|name| name == FINALIZER),
            over: over(&status),
            ttl,
            asks: asks.unwrap_or_default(),
        };
        let mut seen = Self {
            object,
            version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            finalizers,
            status,
            bytes,
            shed: false,
        };
        if let Err(why) = &seen.object.spec {
            let why = cut(why);
            seen.refuse(why);
        }
        Some(seen)
    }

    /// Takes the spec for wrong, and keeps nothing of it: nothing is made of it, and it may be large.
    pub(super) fn refuse(&mut self, why: String) {
        let object = &mut self.object;
        (object.spec, self.bytes) = (Err(why), 0);
        // That there is one is still known.
        object.template = object.template.take().map(|_| String::new());
    }

    /// Whether this state is older than the other. The versions of an object are numbers that
    /// grow. If a server's versions are no numbers, the order of its answers counts.
    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        let number = |seen: &Self| seen.version.parse::<u64>();
        match (number(self), number(other)) {
            (Ok(own), Ok(others)) => own < others,
            _ => false,
        }
    }

    /// The reason of a condition, as it was written.
    pub(super) fn reason(&self, kind: &str) -> Option<Value> {
        let known = self.status["conditions"].as_array().into_iter().flatten();
        let mut known = known.filter(|known| known["type"] == kind);
        known.next().map(|known| known["reason"].clone())
    }

    /// What an object with pods of its own says of its queue.
    pub(super) fn place(&self) -> Option<Place> {
        let object = &self.object;
        object.template.as_ref()?;
        Some(Place {
            job: object.name.clone(),
            queue: object.queue.clone(),
            suspend: object.suspend,
        })
    }

    /// The finalizers with ours, or without it.
    pub(super) fn finalizers_with(&self, held: bool) -> Vec<&str> {
        let others = self.finalizers.iter().map(String::as_str);
        let others = others.filter(|name| *name != FINALIZER);
        others.chain(held.then_some(FINALIZER)).collect()
    }
}

/// Which dependents the spec asks for, or why it cannot.
fn asked(
    policy: Option<Value>,
    budget: Option<Value>,
    group: Option<Value>,
    template: Option<&Value>,
) -> Result<Asked, String> {
    let needs = |field: &str| {
        format!("spec.{field}: needs a template: only a job with pods of its own has it")
    };
    let asks = |field: &str, value: Option<Value>, word: &str| match value {
        Some(value) if value == word && template.is_none() => Err(needs(field)),
        Some(value) if value == word => Ok(true),
        None => Ok(false),
        Some(value) if value == NONE => Ok(false),
        Some(value) => Err(format!(
            "spec.{field}: is {value}, must be {NONE} or {word}"
        )),
    };
    let policy = asks(NETWORK_POLICY, policy, NETWORK_POLICY_JOB)?;
    let budget = asks(DISRUPTION_BUDGET, budget, DISRUPTION_BUDGET_MINIMUM)?;
    if policy && template.is_some_and(|template| template["spec"]["hostNetwork"] == true) {
        return Err(format!(
            "spec.{NETWORK_POLICY}: does not hold for pods in the network of their node (spec.template.spec.hostNetwork)"
        ));
    }
    let group = match group {
        None => None,
        Some(value) if value == NONE => None,
        Some(value) => {
            let all = GangScheduler::ALL;
            let found = all.into_iter().find(|(word, _)| value == *word);
            let (_, scheduler) = found.ok_or_else(|| {
                let words = all.map(|(word, _)| word).join(", ");
                format!("spec.{POD_GROUP}: is {value}, must be {NONE} or one of {words}")
            })?;
            Some(scheduler)
        }
    };
    if group.is_some() && template.is_none() {
        return Err(needs(POD_GROUP));
    }
    Ok(Asked {
        budget,
        policy,
        group,
    })
}

/// The spec, or why that is no document. `bytes`: its length as JSON. `text`: the template as JSON.
fn document(
    spec: Value,
    bytes: usize,
    template: Option<&Value>,
    text: Option<&str>,
) -> Result<SpecDocument, String> {
    let template_bytes = text.map_or(0, str::len);
    for (field, bytes) in [("spec", bytes), ("spec.template", template_bytes)] {
        if bytes > SPEC_MAX {
            return Err(format!(
                "{field}: has {bytes} bytes; at most {SPEC_MAX} are allowed"
            ));
        }
    }
    let document: SpecDocument = serde_json::from_value(spec).map_err(|e| format!("spec: {e}"))?;
    if let Some(template) = template {
        let gpus = document.gpus_per_node.unwrap_or(0);
        let mut of_roles = document.roles.iter().filter_map(|role| role.gpus_per_node);
        if of_roles.any(|own| own != gpus) {
            return Err(
                "spec.roles: have different gpusPerNode, and all pods of a template are alike; give it once, at the top of the spec".to_owned(),
            );
        }
        let chosen = [
            ("nodeSelector", !document.node_selector.is_empty()),
            ("affinity", document.affinity.is_some()),
            ("nodeList", !document.node_list.is_empty()),
            ("excludeNodes", !document.exclude_nodes.is_empty()),
            ("requiredTopology", document.required_topology.is_some()),
            ("preferredTopology", !document.preferred_topology.is_empty()),
            ("tolerations", !document.tolerations.is_empty()),
        ];
        if let Some((field, _)) = chosen.iter().find(|(_, given)| *given) {
            let there = match *field {
                "tolerations" => "tolerations",
                _ => "nodeSelector or affinity",
            };
            return Err(format!(
                "spec.{field}: the cluster's scheduler chooses the nodes of a job with a template: say it there (spec.template.spec.{there})"
            ));
        }
        if document.queue.is_some() {
            return Err("spec.queue: Muster's queues do not count the jobs that have a template: use a queue of Kueue (the label kueue.x-k8s.io/queue-name)".to_owned());
        }
        if document.image.is_some() {
            return Err(
                "spec.image: is for hosts; the pods of a job with a template run their own image: name it there (spec.template.spec.containers[].image)".to_owned(),
            );
        }
        check_template(template, gpus)?;
    }
    Ok(document)
}

fn cut(text: &str) -> String {
    let mut cut: String = text.chars().take(WRONG_MAX).collect();
    if cut.len() < text.len() {
        cut.push_str("...");
    }
    cut
}

/// Since when the job is over, as the status says. `None`: it is not over.
fn over(status: &Value) -> Option<Timestamp> {
    let phase = status["phase"].as_str()?;
    OVER.contains(&phase).then_some(())?;
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let ends = |condition: &&Value| {
        let kind = &condition["type"];
        condition["status"] == "True" && (kind == "Complete" || kind == "Failed")
    };
    let end = conditions.filter(ends).find_map(|condition| {
        let time: jiff::Timestamp = condition["lastTransitionTime"].as_str()?.parse().ok()?;
        u64::try_from(time.as_microsecond()).ok()
    });
    // Such a status does not say when the job ended, so its time never comes.
    Some(Timestamp(end.unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(object: Value) -> Option<Seen> {
        Seen::of(serde_json::from_value(object).unwrap())
    }

    fn metadata() -> Value {
        json!({ "name": "digits", "namespace": "team-a", "uid": "0b4e-11", "resourceVersion": "7", "generation": 2 })
    }

    #[test]
    fn an_object_is_read_and_a_bad_spec_spoils_only_itself() {
        let seen = read(json!({ "metadata": metadata(), "spec": { "replicas": 2 } })).unwrap();
        let spec = seen.object.spec.as_ref().unwrap();
        assert_eq!(
            (spec.replicas, seen.generation, seen.object.over),
            (Some(2), 2, None)
        );
        let bad = read(json!({ "metadata": metadata(), "spec": { "replicas": "two" } })).unwrap();
        assert!(
            bad.object
                .spec
                .unwrap_err()
                .starts_with("spec: invalid type")
        );
        let mut odd = metadata();
        odd["uid"] = json!("../x");
        assert_eq!(read(json!({ "metadata": odd })), None);
    }

    #[test]
    fn a_template_says_itself_which_nodes_its_pods_want() {
        let spec = json!({ "template": { "spec": {} }, "nodeSelector": { "pool": "a" } });
        let seen = read(json!({ "metadata": metadata(), "spec": spec })).unwrap();
        let why = seen.object.spec.unwrap_err();
        assert!(
            why.starts_with("spec.nodeSelector: the cluster's scheduler"),
            "{why}"
        );
    }

    #[test]
    fn a_template_names_the_image_itself() {
        let spec = json!({ "template": { "spec": {} }, "image": "quay.io/me/train:1" });
        let seen = read(json!({ "metadata": metadata(), "spec": spec })).unwrap();
        let why = seen.object.spec.unwrap_err();
        assert!(
            why.starts_with("spec.image: is for hosts") && why.contains("spec.template"),
            "{why}"
        );
    }

    #[test]
    fn little_is_kept_of_an_object_that_is_refused() {
        let long = "x".repeat(1 << 20);
        let wrong = [
            json!({ "replicas": long }),
            json!({ "args": [long] }),
            json!({ "template": { "metadata": { "annotations": { "a": long } } } }),
            json!({ "replicas": "two", "template": { "metadata": { "annotations": { "a": long } } } }),
        ];
        for spec in wrong {
            let has_template = spec["template"].is_object();
            let seen = read(json!({ "metadata": metadata(), "spec": spec })).unwrap();
            let why = seen.object.spec.unwrap_err();
            assert!(why.len() < 1_100, "{} bytes", why.len());
            let template = seen.object.template;
            assert_eq!(template, has_template.then(String::new), "{why}");
            assert_eq!(seen.bytes, 0);
        }
        let large = json!({ "template": { "metadata": { "annotations": { "a": long } } } });
        let seen = read(json!({ "metadata": metadata(), "spec": large })).unwrap();
        let why = seen.object.spec.unwrap_err();
        let said = why.starts_with("spec.template: has ") && why.ends_with("262144 are allowed");
        assert!(said, "{why}");
    }

    #[test]
    fn other_finalizers_stay() {
        let mut metadata = metadata();
        metadata["finalizers"] = json!(["a.example/x", FINALIZER]);
        metadata["deletionTimestamp"] = json!("2026-11-23T10:00:00Z");
        let seen = read(json!({ "metadata": metadata, "status": { "phase": "Failed" } })).unwrap();
        assert!(seen.object.held && seen.object.deleting && seen.object.over.is_some());
        assert_eq!(seen.finalizers_with(false), ["a.example/x"]);
        assert_eq!(seen.finalizers_with(true), ["a.example/x", FINALIZER]);
    }

    #[test]
    fn the_life_of_an_object_s_job_is_read() {
        let spec = json!({ "replicas": 2, "suspend": true, "ttlSecondsAfterFinished": 5, "activeDeadlineSeconds": 60 });
        let done = json!({ "type": "Complete", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z" });
        let status = json!({ "phase": "Succeeded", "conditions": [done] });
        let seen = read(json!({ "metadata": metadata(), "spec": spec, "status": status })).unwrap();
        let object = seen.object;
        assert!(object.spec.is_ok() && object.suspend, "{:?}", object.spec);
        assert_eq!(
            (object.ttl, object.over),
            (Some(Duration::from_secs(5)), Some(Timestamp(7_000_000)))
        );
        let document = object.spec.unwrap();
        assert_eq!(document.active_deadline_seconds, Some(60));
        assert_eq!(document.suspend, Some(true));
    }

    #[test]
    fn dependents_are_for_jobs_with_pods_of_their_own() {
        let of = |policy: &str, budget: &str, template: Value| {
            let spec = json!({
                "replicas": 2, "networkPolicy": policy, "disruptionBudget": budget, "template": template,
            });
            let seen = read(json!({ "metadata": metadata(), "spec": spec })).unwrap();
            (seen.object.asks, seen.object.spec.err())
        };
        let template = json!({ "spec": { "containers": [{ "name": "train" }] } });
        let both = Asked {
            budget: true,
            policy: true,
            group: None,
        };
        assert_eq!(of("Job", "Minimum", template.clone()), (both, None));
        let nothing = (Asked::default(), None);
        assert_eq!(of("None", "None", template.clone()), nothing);
        assert_eq!(of("None", "None", Value::Null), nothing);
        let mut on_the_node = template.clone();
        on_the_node["spec"]["hostNetwork"] = json!(true);
        for (policy, budget, template, says) in [
            (
                "Job",
                "None",
                Value::Null,
                "spec.networkPolicy: needs a template",
            ),
            (
                "None",
                "Minimum",
                Value::Null,
                "spec.disruptionBudget: needs a template",
            ),
            ("All", "None", template, "must be None or Job"),
            (
                "Job",
                "None",
                on_the_node,
                "does not hold for pods in the network",
            ),
        ] {
            let (asks, why) = of(policy, budget, template);
            assert_eq!(asks, Asked::default());
            assert!(why.as_ref().unwrap().contains(says), "{why:?}");
        }
    }

    #[test]
    fn the_pods_of_a_job_with_a_group_name_it() {
        let of = |group: &str, template: Value| {
            let spec = json!({ "podGroup": group, "template": template, "args": ["a.py"] });
            let seen = read(json!({ "metadata": metadata(), "spec": spec })).unwrap();
            let name = dependents::name(&seen.object.name, &seen.object.uid);
            (seen.object, name)
        };
        let template = json!({ "spec": { "containers": [{ "name": "train" }] } });
        let (object, name) = of("Kubernetes", template.clone());
        assert_eq!(object.asks.group, Some(GangScheduler::Kubernetes));
        let joined: Value = serde_json::from_str(&object.template.unwrap()).unwrap();
        assert_eq!(joined["spec"]["schedulingGroup"]["podGroupName"], name);
        let (object, _) = of("None", template.clone());
        assert_eq!(object.template.unwrap(), template.to_string());
        for (group, template, says) in [
            (
                "Volcano",
                Value::Null,
                "spec.podGroup: needs a template: only a job with pods of its own has it",
            ),
            (
                "volcano",
                template,
                "spec.podGroup: is \"volcano\", must be None or one of Kubernetes, Coscheduling, Volcano",
            ),
        ] {
            let (object, _) = of(group, template);
            assert_eq!(object.asks, Asked::default());
            assert_eq!(object.spec.unwrap_err(), says);
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let of = |version: &str| {
            let mut metadata = metadata();
            metadata["resourceVersion"] = json!(version);
            read(json!({ "metadata": metadata })).unwrap()
        };
        assert!(of("9").is_older_than(&of("10")));
        assert!(!of("10").is_older_than(&of("9")) && !of("9").is_older_than(&of("9")));
        assert!(!of("a").is_older_than(&of("b")));
    }
}
