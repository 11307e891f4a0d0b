//! A job's template: what it may say, and the worker pod that is made of it. Both are pure.
//!
//! The template is the user's. Its first container is the worker, and keeps everything but its
//! command: that is Muster's runner, which starts the ranks as its children. Beside it come the
//! agent, as a container that starts before the worker and ends after it, and the volumes that they
//! share. Everything works under Kubernetes' strictest security level (*restricted*).

use std::time::Duration;

use muster_core::{
    fleet::{job::JobRecord, worker_pod},
    id::NodeName,
    spec::{API_VERSION, KIND},
};
use serde_json::{Map, Value, json};

use super::model::Site;
use crate::owner::{JOB_NAME, JOB_UID};

/// Names of containers and volumes that begin like this are Muster's.
const OURS: &str = "muster-";
/// Where Muster's volumes are, in all containers that have them.
const DIRECTORY: &str = "/muster";
const SHM: &str = "/dev/shm";
/// The resource that counts a node's GPUs.
const GPU: &str = "nvidia.com/gpu";
/// Who the containers are, if the template does not say. It is the user of Muster's images.
const USER: u64 = 65_532;
/// The longest that the agent takes to see the workers dead, beyond their own grace.
const END: Duration = Duration::from_secs(15);
/// Bytes of the longest template, as JSON. It is kept with the job.
const BYTES_MAX: usize = 64 << 10;
/// Hosts that a pod is kept from. More would make the pod too large.
const AVOIDED_MAX: usize = 64;

/// What is wrong with this template, with its path.
pub(crate) fn check(template: &Value, gpus_per_node: i64) -> Result<(), String> {
    let wrong = |path: &str, what: &str| Err(format!("spec.template{path}: {what}"));
    let bytes = template.to_string().len();
    if bytes > BYTES_MAX {
        return wrong(
            "",
            &format!("has {bytes} bytes; at most {BYTES_MAX} are allowed"),
        );
    }
    let spec = &template["spec"];
    let containers = spec["containers"].as_array();
    let Some(worker) = containers.and_then(|all| all.first()) else {
        return wrong(
            ".spec.containers",
            "is missing; its first container holds the workers",
        );
    };
    for field in ["command", "args"] {
        if !worker[field].is_null() {
            let what = "must not be set: what runs is spec.command and spec.args of the MusterJob";
            return wrong(&format!(".spec.containers[0].{field}"), what);
        }
    }
    for field in ["hostPID", "shareProcessNamespace"] {
        if spec[field] == true {
            let what = "must not be true: the workers need a process tree of their own";
            return wrong(&format!(".spec.{field}"), what);
        }
    }
    let restarts = &spec["restartPolicy"];
    if !restarts.is_null() && restarts != "OnFailure" {
        let what =
            "must be OnFailure or left out: Muster starts workers anew, Kubernetes their container";
        return wrong(".spec.restartPolicy", what);
    }
    for list in ["containers", "initContainers", "volumes"] {
        for (i, item) in items(spec, list).enumerate() {
            let path = format!(".spec.{list}[{i}]");
            if item["name"]
                .as_str()
                .is_none_or(|name| name.starts_with(OURS))
            {
                return wrong(
                    &format!("{path}.name"),
                    "must be set, and not begin with muster-",
                );
            }
            let mounts =
                items(item, "volumeMounts").filter_map(|mount| mount["mountPath"].as_str());
            if mounts.into_iter().any(is_ours) {
                return wrong(&format!("{path}.volumeMounts"), "/muster is Muster's own");
            }
            let names = items(item, "env").filter_map(|one| one["name"].as_str());
            if names.into_iter().any(|name| name.starts_with("MUSTER_")) {
                return wrong(
                    &format!("{path}.env"),
                    "names that begin with MUSTER_ are Muster's own",
                );
            }
        }
    }
    for map in ["labels", "annotations"] {
        let keys = template["metadata"][map].as_object().into_iter().flatten();
        if keys
            .into_iter()
            .any(|(key, _)| key.starts_with("muster.dev/"))
        {
            return wrong(
                &format!(".metadata.{map}"),
                "muster.dev/... is Muster's own",
            );
        }
    }
    match gpus(worker) {
        Some(limit) if limit != gpus_per_node => wrong(
            ".spec.containers[0].resources.limits",
            &format!(
                "{GPU} is {limit}, and spec.gpusPerNode {gpus_per_node}; leave one of them out, or make them the same"
            ),
        ),
        _ => Ok(()),
    }
}

fn is_ours(path: &str) -> bool {
    path == DIRECTORY || path.starts_with("/muster/")
}

fn items<'a>(of: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    of[list].as_array().into_iter().flatten()
}

/// How many GPUs the container's limits name. `None`: nothing of them, or no number.
fn gpus(container: &Value) -> Option<i64> {
    let limit = &container["resources"]["limits"][GPU];
    limit.as_i64().or_else(|| limit.as_str()?.parse().ok())
}

/// A worker pod of this job, under a name that no other pod has. `avoided`: hosts that should not
/// have it.
pub(super) fn pod(
    job: &JobRecord,
    template: &Value,
    name: &str,
    site: &Site,
    avoided: &[NodeName],
) -> Value {
    let namespace = &job.name.namespace;
    let mut metadata = template["metadata"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let own = json!({
        "name": name,
        "namespace": namespace,
        "labels": {
            "app.kubernetes.io/managed-by": "muster",
            JOB_NAME: job.name.name,
            JOB_UID: job.uid.as_str(),
        },
        "annotations": { "kubectl.kubernetes.io/default-container": worker_name(template) },
        "ownerReferences": [{
            "apiVersion": API_VERSION, "kind": KIND, "name": job.name.name, "uid": job.uid.as_str(), "controller": true,
        }],
    });
    merge(&mut metadata, own);
    // A program that makes room on nodes, such as an autoscaler, must not evict running jobs, unless
    // the template allows it.
    let annotations = metadata["annotations"]
        .as_object_mut()
        .expect("merged above");
    for (key, value) in [
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ("karpenter.sh/do-not-disrupt", "true"),
    ] {
        annotations.entry(key).or_insert_with(|| json!(value));
    }
    metadata.remove("generateName");
    let spec = spec(job, template, name, site, avoided);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec })
}

fn worker_name(template: &Value) -> &Value {
    &template["spec"]["containers"][0]["name"]
}

/// Puts what `own` says into `into`; objects are merged.
fn merge(into: &mut Map<String, Value>, own: Value) {
    let Value::Object(own) = own else { return };
    for (key, value) in own {
        match into.get_mut(&key) {
            Some(Value::Object(there)) if value.is_object() => merge(there, value),
            _ => drop(into.insert(key, value)),
        }
    }
}

/// Puts what `own` says where `into` says nothing.
fn default(into: &mut Value, own: Value) {
    match (into, own) {
        (Value::Object(there), Value::Object(own)) => {
            for (key, value) in own {
                default(there.entry(key).or_insert(Value::Null), value);
            }
        }
        (there, own) if there.is_null() => *there = own,
        _ => {}
    }
}

fn push(spec: &mut Value, list: &str, item: Value) {
    match &mut spec[list] {
        Value::Array(items) => items.push(item),
        other => *other = json!([item]),
    }
}

fn spec(job: &JobRecord, template: &Value, name: &str, site: &Site, avoided: &[NodeName]) -> Value {
    let mut spec = template["spec"].clone();
    let grace = (job.spec.stop_grace_period + END).as_secs();
    let asked = spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(0);
    spec["terminationGracePeriodSeconds"] = json!(asked.max(grace));
    spec["restartPolicy"] = json!("OnFailure");
    // A Service called muster would set variables that look like our flags.
    default(&mut spec["enableServiceLinks"], json!(false));
    // If the template names a user, it decides about root, too.
    let unnamed = spec["securityContext"]["runAsUser"].is_null();
    if unnamed && spec["containers"][0]["securityContext"]["runAsUser"].is_null() {
        let user =
            json!({ "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER });
        default(&mut spec["securityContext"], user);
    }
    default(
        &mut spec["securityContext"],
        json!({ "seccompProfile": { "type": "RuntimeDefault" } }),
    );
    for taint in ["not-ready", "unreachable"] {
        // The workers of a node that is only cut off go on: the coordinator decides who is lost.
        let key = format!("node.kubernetes.io/{taint}");
        push(
            &mut spec,
            "tolerations",
            json!({ "key": key, "operator": "Exists", "effect": "NoExecute" }),
        );
    }
    if job.spec.gpus_per_node > 0 {
        push(
            &mut spec,
            "tolerations",
            json!({ "key": GPU, "operator": "Exists" }),
        );
    }
    for host in &site.hosts {
        push(&mut spec, "hostAliases", host.clone());
    }
    keep_from(&mut spec, avoided);
    let guaranteed = is_guaranteed(&spec);
    let user = spec["containers"][0]["securityContext"]["runAsUser"].clone();
    for container in agent(job, name, site, &user, guaranteed) {
        push(&mut spec, "initContainers", container);
    }
    worker(&mut spec, job);
    show_shm(&mut spec);
    for volume in volumes(site) {
        push(&mut spec, "volumes", volume);
    }
    spec
}

/// Lets the agent see the worker's /dev/shm. The agent reports it if it is too small.
fn show_shm(spec: &mut Value) {
    let name = items(&spec["containers"][0], "volumeMounts")
        .find(|mount| mount["mountPath"] == SHM)
        .map(|mount| mount["name"].clone());
    let Some(name) = name else {
        return;
    };
    let agents = spec["initContainers"].as_array_mut();
    if let Some(agent) = agents.and_then(|all| all.last_mut()) {
        let mount = json!({ "name": name, "mountPath": SHM, "readOnly": true });
        push(agent, "volumeMounts", mount);
    }
}

/// The first container of the template, with the runner as its init process.
fn worker(spec: &mut Value, job: &JobRecord) {
    let worker = &mut spec["containers"][0];
    worker["command"] = json!([
        format!("{DIRECTORY}/bin/muster-runner"),
        "pod",
        "--dir",
        format!("{DIRECTORY}/run")
    ]);
    // The runner leaves its last words there. If it is killed before, what the ranks printed last is shown.
    let place = worker["terminationMessagePath"].clone();
    if !place.is_null() {
        push(
            worker,
            "env",
            json!({ "name": "MUSTER_TERMINATION_MESSAGE_PATH", "value": place }),
        );
    }
    default(
        &mut worker["terminationMessagePolicy"],
        json!("FallbackToLogsOnError"),
    );
    let closed = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    if worker["securityContext"].is_null() {
        worker["securityContext"] = closed;
    }
    let gpus = job.spec.gpus_per_node;
    if gpus > 0 {
        default(
            &mut worker["resources"],
            json!({ "limits": { GPU: gpus.to_string() } }),
        );
    }
    let has_shm = items(worker, "volumeMounts").any(|mount| mount["mountPath"] == SHM);
    for (name, path, read_only) in [("muster-bin", "bin", true), ("muster-run", "run", false)] {
        let mount = json!({ "name": name, "mountPath": format!("{DIRECTORY}/{path}"), "readOnly": read_only });
        push(worker, "volumeMounts", mount);
    }
    if !has_shm {
        // NCCL and data loaders need more than the usual 64 MiB.
        push(
            worker,
            "volumeMounts",
            json!({ "name": "muster-shm", "mountPath": SHM }),
        );
        push(
            spec,
            "volumes",
            json!({ "name": "muster-shm", "emptyDir": { "medium": "Memory" } }),
        );
    }
}

/// The containers with our programs: one copies the runner, one is the agent.
fn agent(job: &JobRecord, name: &str, site: &Site, user: &Value, guaranteed: bool) -> [Value; 2] {
    let mut closed = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
    });
    // Agent and worker share files that only their owner may read.
    if !user.is_null() {
        closed["runAsUser"] = user.clone();
    }
    let requests = json!({ "cpu": "100m", "memory": "128Mi" });
    let resources = match guaranteed {
        // Otherwise the pod would not be Guaranteed, and would lose its exclusive CPUs.
        true => {
            json!({ "requests": { "cpu": "500m", "memory": "256Mi" }, "limits": { "cpu": "500m", "memory": "256Mi" } })
        }
        false => json!({ "requests": requests, "limits": { "memory": "512Mi" } }),
    };
    let mount = |name: &str, path: &str, read_only: bool| json!({ "name": format!("muster-{name}"), "mountPath": format!("{DIRECTORY}/{path}"), "readOnly": read_only });
    let image = |mut container: Value| {
        container["image"] = json!(site.image);
        if let Some(policy) = &site.pull_policy {
            container["imagePullPolicy"] = json!(policy);
        }
        container["securityContext"] = closed.clone();
        container["resources"] = resources.clone();
        container
    };
    let node = worker_pod::node_of(&job.name.namespace, name);
    let install = json!({
        "name": "muster-install",
        "command": ["/usr/local/bin/muster-runner", "install", "--dir", format!("{DIRECTORY}/bin")],
        "volumeMounts": [mount("bin", "bin", false)],
    });
    let agent = json!({
        "name": "muster-agent",
        "restartPolicy": "Always",
        "env": [
            { "name": "MUSTER_COORDINATOR", "value": site.coordinator },
            { "name": "MUSTER_TOKEN_FILE", "value": format!("{DIRECTORY}/token/token") },
            { "name": "MUSTER_CA_FILE", "value": format!("{DIRECTORY}/ca/ca.crt") },
            { "name": "MUSTER_NODE_NAME", "value": node.as_str() },
            { "name": "MUSTER_ADDRESS", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
            { "name": "MUSTER_STATE_DIR", "value": format!("{DIRECTORY}/state") },
            { "name": "MUSTER_POD", "value": format!("{DIRECTORY}/run") },
        ],
        "volumeMounts": [
            mount("state", "state", false), mount("run", "run", false), mount("token", "token", true), mount("ca", "ca", true),
        ],
    });
    [image(install), image(agent)]
}

fn volumes(site: &Site) -> [Value; 5] {
    let token = json!({ "audience": site.audience, "expirationSeconds": 3600, "path": "token" });
    [
        // In memory, because a node may forbid programs on its disk (noexec).
        json!({ "name": "muster-bin", "emptyDir": { "medium": "Memory", "sizeLimit": "64Mi" } }),
        json!({ "name": "muster-state", "emptyDir": {} }),
        json!({ "name": "muster-run", "emptyDir": {} }),
        json!({ "name": "muster-token", "projected": { "sources": [{ "serviceAccountToken": token }] } }),
        json!({ "name": "muster-ca", "configMap": { "name": crate::bundle::NAME } }),
    ]
}

/// Whether every container asks for exactly the CPUs and the memory that it may have.
fn is_guaranteed(spec: &Value) -> bool {
    let exact = |container: &Value| {
        ["cpu", "memory"].iter().all(|resource| {
            let limit = &container["resources"]["limits"][resource];
            let request = &container["resources"]["requests"][resource];
            !limit.is_null() && (request.is_null() || request == limit)
        })
    };
    items(spec, "containers")
        .chain(items(spec, "initContainers"))
        .all(exact)
}

/// Keeps the pod from these hosts, in every alternative that the template has.
fn keep_from(spec: &mut Value, avoided: &[NodeName]) {
    let each = avoided.iter().take(AVOIDED_MAX);
    let fields: Vec<Value> = each
        .map(|host| json!({ "key": "metadata.name", "operator": "NotIn", "values": [host.as_str()] }))
        .collect();
    if fields.is_empty() {
        return;
    }
    let required =
        &mut spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    default(&mut required["nodeSelectorTerms"], json!([{}]));
    let terms = required["nodeSelectorTerms"].as_array_mut();
    for term in terms.into_iter().flatten() {
        for field in &fields {
            push(term, "matchFields", field.clone());
        }
    }
}

#[cfg(test)]
mod tests;
