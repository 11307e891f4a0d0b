//! What kustomize does with patches, as far as the manifests need it.

use serde_json::{Value, json};

use crate::kustomize::Objects;

/// Applies a patch to all objects that it is for: one that puts items at the ends of lists, gives fields
/// their values or takes fields away, or a strategic merge patch, in which items of a list have names.
/// The manifests have no other.
pub fn apply(patch: &Value, objects: &mut Objects) {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let target = &patch["target"];
    let kinds = text(&target["kind"]).expect("a patch names kinds");
    let named = text(&target["name"]);
    let steps = text(&patch["patch"]).expect("a patch is a text");
    let steps: Value = serde_saphyr::from_str(&steps).unwrap_or_else(|e| panic!("{e}: {steps}"));
    let mut found = 0;
    for (key, object) in objects.iter_mut() {
        let (kind, name) = key.split_once(' ').unwrap_or((key, ""));
        let is_meant = named.as_deref().is_none_or(|named| named == name);
        if !is_meant || !kinds.split('|').any(|one| one == kind) {
            continue;
        }
        found += 1;
        match steps.as_array() {
            Some(steps) => steps.iter().for_each(|step| take(step, object, key)),
            None => merge(object, &steps),
        }
    }
    assert!(found > 0, "no {target}");
}

/// One step of a patch by paths.
fn take(step: &Value, object: &mut Value, of: &str) {
    let path = step["path"].as_str().expect("a step has a path");
    let (parent, last) = path.rsplit_once('/').expect("a path begins with /");
    let last = last.replace("~1", "/");
    let parent = object.pointer_mut(parent);
    let parent = parent.unwrap_or_else(|| panic!("{of} has no {path}"));
    let value = || step["value"].clone();
    match (step["op"].as_str(), parent) {
        (Some("add"), Value::Array(list)) if last == "-" => list.push(value()),
        (Some("add"), Value::Object(fields)) => drop(fields.insert(last, value())),
        // What is not there is neither replaced nor taken away.
        (Some("replace"), Value::Object(fields)) => {
            let there = fields.insert(last, value());
            assert!(there.is_some(), "{of} has no {path} to replace");
        }
        (Some("remove"), Value::Object(fields)) => {
            let there = fields.remove(&last);
            assert!(there.is_some(), "{of} has no {path} to remove");
        }
        (_, other) => panic!("{of}: {step} in {other}"),
    }
}

/// By what an item of such a list is known.
const NAMES: [&str; 2] = ["mountPath", "name"];

fn name(item: &Value) -> Option<&Value> {
    NAMES.into_iter().find_map(|field| item.get(field))
}

/// As kustomize, it puts items that are new before those that are there.
fn merge_list(into: &mut Vec<Value>, patch: &[Value]) {
    let mut new = Vec::new();
    for item in patch {
        match into.iter_mut().find(|there| name(there) == name(item)) {
            Some(there) => merge(there, item),
            None => new.push(item.clone()),
        }
    }
    into.splice(0..0, new);
}

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        return match (into, patch) {
            (Value::Array(into), Value::Array(patch))
                if patch.iter().all(|i| name(i).is_some()) =>
            {
                merge_list(into, patch);
            }
            (into, patch) => into.clone_from(patch),
        };
    };
    if !into.is_object() {
        *into = json!({});
    }
    let fields = into.as_object_mut().expect("it is an object by now");
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), value);
        }
    }
}
