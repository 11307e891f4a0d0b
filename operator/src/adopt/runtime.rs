//! The runtime of a TrainJob: the object of the cluster that has the template of its pods. Where it is, is
//! said here, and what of the job changes it; `deeds` reads it, once, before the job begins. What is
//! changed of it later is for later jobs.

use muster_foreign::adopt::Adoptable;
use ring::digest::{SHA256, digest};
use serde_json::Value;

/// The objection to patches that differ from those with which the job began.
pub(super) const PATCHED: &str = "spec.runtimePatches: have no effect on a job that was started; to run it with them, delete it and create it again";

/// A runtime that a job names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Runtime {
    /// As people call it: `ClusterTrainingRuntime torch`.
    pub(super) called: String,
    /// Its path on the API server.
    pub(super) path: String,
}

/// The runtime that this spec names. The definition of the kind has a default for all but the name.
pub(super) fn of(kind: &Adoptable, namespace: &str, spec: &Value) -> Result<Runtime, String> {
    let reference = &spec["runtimeRef"];
    let text = |field: &str, default: &'static str| match &reference[field] {
        Value::String(text) => text.clone(),
        _ => default.to_owned(),
    };
    let (group, of_kind) = (
        text("apiGroup", kind.group),
        text("kind", "ClusterTrainingRuntime"),
    );
    let name = text("name", "");
    let place = match (&*group == kind.group, &*of_kind) {
        (true, "ClusterTrainingRuntime") => "clustertrainingruntimes".to_owned(),
        (true, "TrainingRuntime") => format!("namespaces/{namespace}/trainingruntimes"),
        _ => {
            return Err(format!(
                "spec.runtimeRef: names a {of_kind} of {group}, and Muster reads the ClusterTrainingRuntimes and TrainingRuntimes of {}",
                kind.group
            ));
        }
    };
    if !is_name(&name) {
        return Err(format!(
            "spec.runtimeRef.name: {name:?} is no name of an object"
        ));
    }
    Ok(Runtime {
        called: format!("{of_kind} {name}"),
        path: format!("{}/{place}/{name}", kind.path()),
    })
}

/// Whether objects can have this name: a DNS subdomain.
fn is_name(text: &str) -> bool {
    let is_plain = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-');
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.chars().all(is_plain)
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

/// A digest of the patches of a spec, whenever they were written. `None`: it has none.
pub(super) fn patches(spec: &Value) -> Option<String> {
    let mut all = spec["runtimePatches"].as_array()?.clone();
    for patch in &mut all {
        if let Some(patch) = patch.as_object_mut() {
            patch.remove("time");
        }
    }
    let digest = (!all.is_empty()).then(|| of_json(&Value::Array(all)))?;
    let hex = digest.iter().map(|byte| format!("{byte:02x}"));
    Some(hex.collect())
}

/// A number that another spec hardly has, too.
pub(super) fn number_of(spec: &Value) -> i64 {
    let digest = of_json(spec);
    let (first, _) = digest.split_first_chunk().expect("it has 32 bytes");
    i64::from_be_bytes(*first)
}

/// The names in a mapping are in their order, whoever wrote them.
fn of_json(value: &Value) -> Vec<u8> {
    digest(&SHA256, value.to_string().as_bytes())
        .as_ref()
        .to_vec()
}

#[cfg(test)]
mod tests {
    use muster_foreign::adopt::adoptable;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_runtime_is_of_the_cluster_unless_it_says_otherwise() {
        let kind = adoptable("trainjobs").unwrap();
        let path = |reference: Value| {
            let found = of(&kind, "team-a", &json!({ "runtimeRef": reference }));
            found.map(|runtime| runtime.path)
        };
        assert_eq!(
            path(json!({ "name": "torch" })).unwrap(),
            "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes/torch"
        );
        assert_eq!(
            path(json!({ "name": "own", "kind": "TrainingRuntime", "apiGroup": "trainer.kubeflow.org" })).unwrap(),
            "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team-a/trainingruntimes/own"
        );
        let other = path(json!({ "name": "x", "kind": "Workflow" })).unwrap_err();
        assert!(
            other.contains("names a Workflow of trainer.kubeflow.org"),
            "{other}"
        );
        path(json!({ "name": "torch-2.9" })).unwrap();
        for wrong in [
            "../pods", ".", "..", "a..b", "-a", "a-", "A", "a_b", "a/b", "",
        ] {
            path(json!({ "name": wrong })).unwrap_err();
        }
        path(json!({ "name": "a".repeat(254) })).unwrap_err();
        path(json!({})).unwrap_err();
    }

    #[test]
    fn the_time_of_a_patch_is_not_part_of_it() {
        let of = |time: &str, pool: &str| {
            let spec = json!({ "nodeSelector": { "pool": pool } });
            patches(
                &json!({ "runtimePatches": [{ "manager": "a/b", "time": time, "trainingRuntimeSpec": spec }] }),
            )
        };
        assert_eq!(of("then", "x"), of("now", "x"));
        assert_ne!(of("then", "x"), of("then", "y"));
        assert_eq!(of("then", "x").unwrap().len(), 64);
        assert_eq!(patches(&json!({ "runtimePatches": [] })), None);
        assert_eq!(patches(&json!({})), None);
    }
}
