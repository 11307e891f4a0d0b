//! What kustomize does with the patches of components, as far as they need it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Applies a patch: one that puts items at the ends of lists or gives fields their values, or a strategic merge
/// patch, in which items of a list have names. No component has another.
pub(crate) fn apply(patch: &Value, objects: &mut BTreeMap<String, Value>) {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let target = &patch["target"];
    let target = format!("{} {}", text(&target["kind"]), text(&target["name"]));
    let object = objects
        .get_mut(&target)
        .unwrap_or_else(|| panic!("no {target}"));
    let steps: Value = serde_saphyr::from_str(&text(&patch["patch"])).unwrap();
    let Some(steps) = steps.as_array() else {
        return merge(object, &steps);
    };
    for step in steps {
        assert!(step["op"] == "add" || step["op"] == "replace", "{step}");
        let path = text(&step["path"]);
        let (parent, last) = path.rsplit_once('/').expect("a path");
        let last = last.replace("~1", "/");
        let parent = object.pointer_mut(parent);
        match parent.unwrap_or_else(|| panic!("{target} has no {path}")) {
            Value::Array(list) if last == "-" => list.push(step["value"].clone()),
            Value::Object(fields) => drop(fields.insert(last, step["value"].clone())),
            other => panic!("{target}: {path} in {other}"),
        }
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
    let fields = into.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), value);
        }
    }
}
