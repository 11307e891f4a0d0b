//! The runtime of a TrainJob: the object of the cluster that has the template of its pods. Where it is, is
//! said here; `deeds` reads it, once, before the job begins. What is changed of it later is for later jobs.

use muster_foreign::adopt::Adoptable;
use serde_json::Value;

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
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(format!(
            "spec.runtimeRef.name: {name:?} is no name of an object"
        ));
    }
    Ok(Runtime {
        called: format!("{of_kind} {name}"),
        path: format!("{}/{place}/{name}", kind.path()),
    })
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
        path(json!({ "name": "../pods" })).unwrap_err();
        path(json!({})).unwrap_err();
    }
}
