//! What kustomize does with the patches of components, as far as they need it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Applies a patch: one that puts items at the ends of lists or gives fields their values, or a merge patch
/// (RFC 7386), which is as good here as kustomize's own. No component has another.
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

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        return into.clone_from(patch);
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
