//! The `MusterJob` object that is made for a foreign one. All of this is pure.

use muster_core::spec::{API_VERSION, KIND, shape::TEMPLATE};
use muster_foreign::adopt::Adoptable;
use serde_json::{Map, Value, json};

use super::runtime;
use crate::rules::adoption::{Adopted, Change, Wanted};

/// The label of a `MusterJob` that was made for a foreign object. It has the plural of its kind.
pub(super) const ADOPTED: &str = "muster.dev/adopted";

/// The annotation with the generation of the foreign object from which it was made.
pub(super) const GENERATION: &str = "muster.dev/adopted-generation";

/// The same for a kind whose generation also counts the writes of its status. It has a digest of the spec.
pub(super) const SPEC: &str = "muster.dev/adopted-spec";

/// The annotation with the digest of the patches with which a TrainJob began.
pub(super) const PATCHES: &str = "muster.dev/adopted-patches";

/// As whom the coordinator writes the status of foreign objects.
pub(super) const MANAGER_OF_FIELDS: &str = "muster-coordinator";

/// The object.
pub(super) fn object(kind: &Adoptable, object: &Adopted, wanted: &Wanted) -> Value {
    let mut spec = serde_json::to_value(&wanted.spec).expect("documents have a JSON form");
    let template = wanted.template.as_deref();
    if let Some(template) = template.and_then(|text| serde_json::from_str(text).ok()) {
        spec[TEMPLATE] = template;
    }
    let version = match kind.may_lack_status() {
        true => SPEC,
        false => GENERATION,
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": object.name.name,
            "namespace": object.name.namespace,
            "labels": { ADOPTED: kind.plural },
            "annotations": { version: object.generation.to_string() },
            "ownerReferences": [{
                "apiVersion": format!("{}/{}", kind.group, kind.version),
                "kind": kind.kind,
                "name": object.name.name,
                "uid": object.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": spec,
    })
}

/// The object of a job that was read with its runtime: `spec` is that of the foreign object.
pub(super) fn with_runtime(
    kind: &Adoptable,
    object_of: &Adopted,
    wanted: &Wanted,
    spec: &Value,
) -> Value {
    let mut made = object(kind, object_of, wanted);
    if let Some(digest) = runtime::patches(spec) {
        made["metadata"]["annotations"][PATCHES] = json!(digest);
    }
    made
}

/// The merge patch for what may change.
pub(super) fn patch(change: Change, uid: &str) -> Value {
    let mut spec = Map::new();
    if let Some(nodes) = change.replicas {
        spec.insert("replicas".to_owned(), json!(nodes));
    }
    spec.insert("suspend".to_owned(), json!(change.suspend));
    // Nothing takes a deadline away.
    let deadline = json!(change.active_deadline_seconds);
    spec.insert("activeDeadlineSeconds".to_owned(), deadline);
    json!({ "metadata": { "uid": uid }, "spec": spec })
}

/// The template with the labels that all pods of the kind's jobs have. The error says why it can have none.
pub(super) fn with_labels(
    mut template: Value,
    kind: &Adoptable,
    job: &str,
) -> Result<Value, String> {
    let labels = kind.labels.of_job(job);
    if labels.is_empty() {
        return Ok(template);
    }
    // Not every definition has a schema of its template.
    let mut at = &mut template;
    for part in ["metadata", "labels"] {
        at = match at {
            Value::Object(fields) => fields.entry(part).or_insert_with(|| json!({})),
            _ => break,
        };
    }
    let Value::Object(there) = at else {
        return Err("the metadata.labels of the pod template are no mapping".to_owned());
    };
    there.extend(labels.into_iter().map(|(name, value)| (name, json!(value))));
    Ok(template)
}

/// Fields that are null are as good as not there, and API servers drop some of them.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(_, value)| !value.is_null());
            let kept = kept.map(|(name, value)| (name, without_nulls(value)));
            Value::Object(kept.collect())
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_is_gone_is_taken_away() {
        let change = Change {
            replicas: None,
            suspend: true,
            active_deadline_seconds: None,
        };
        let expected = json!({ "metadata": { "uid": "u" }, "spec": { "suspend": true, "activeDeadlineSeconds": null } });
        assert_eq!(patch(change, "u"), expected);
    }

    #[test]
    fn what_is_null_is_not_there() {
        let value = json!({ "a": null, "b": [{ "c": null, "d": 1 }, null], "e": {} });
        assert_eq!(
            without_nulls(value),
            json!({ "b": [{ "d": 1 }, null], "e": {} })
        );
    }
}
