//! The fields of a `MusterJob` document and their types: a table that is walked over a [`Node`].
//!
//! The types of `muster_core::spec` decide, and a test compares this table with them. The table
//! exists because serde stops at the first error and knows no lines, but a user with three mistakes
//! wants to see three lines.

use muster_foreign::{
    spelling::nearest,
    tree::{Node, Value},
};
use serde_json::{Map, Value as Json};

use super::Findings;

pub(super) enum Shape {
    Text,
    /// A text that must not be missing.
    NeededText,
    Whole,
    List(&'static Shape),
    Object(&'static [(&'static str, Shape)]),
}

const TEXTS: Shape = Shape::List(&Shape::Text);

pub(super) const DOCUMENT: Shape = Shape::Object(&[
    ("apiVersion", Shape::Text),
    ("kind", Shape::Text),
    (
        "metadata",
        Shape::Object(&[("name", Shape::Text), ("namespace", Shape::Text)]),
    ),
    (
        "spec",
        Shape::Object(&[
            ("replicas", Shape::Whole),
            ("minReplicas", Shape::Whole),
            ("maxReplicas", Shape::Whole),
            ("procPerNode", Shape::Whole),
            ("gpusPerNode", Shape::Whole),
            ("command", TEXTS),
            ("args", TEXTS),
            (
                "env",
                Shape::List(&Shape::Object(&[
                    ("name", Shape::NeededText),
                    ("value", Shape::Text),
                    ("valueFrom", Shape::Object(&[("file", Shape::Text)])),
                ])),
            ),
            ("workingDir", Shape::Text),
            ("priority", Shape::Whole),
            (
                "restartPolicy",
                Shape::Object(&[("maxRestarts", Shape::Whole), ("window", Shape::Text)]),
            ),
            ("stopGracePeriod", Shape::Text),
            ("scaleUpCooldown", Shape::Text),
            ("fenceAfter", Shape::Text),
            ("progress", Shape::Text),
            ("launch", Shape::Text),
            ("stepPattern", Shape::Text),
            ("checkpointPattern", Shape::Text),
            ("nodeMix", Shape::Text),
        ]),
    ),
]);

/// Reads a node as this shape. Wrong parts are added to `findings` and left out of the answer.
/// `null` is left out too: it means "not set", as in Kubernetes.
pub(super) fn read(
    node: &Node,
    shape: &Shape,
    path: &str,
    findings: &mut Findings,
) -> Option<Json> {
    match (shape, &node.value) {
        (_, Value::Null) => None,
        (Shape::Text | Shape::NeededText, Value::Text(text)) => Some(Json::from(text.as_str())),
        (Shape::Whole, Value::Whole(number)) => Some(Json::from(*number)),
        (Shape::List(item), Value::List(nodes)) => Some(read_list(nodes, item, path, findings)),
        (Shape::Object(fields), Value::Object(_)) => {
            Some(read_object(node, fields, path, findings))
        }
        (shape, value) => {
            findings.add(node.place, path, mismatch(shape, value));
            None
        }
    }
}

fn read_list(nodes: &[Node], item: &Shape, path: &str, findings: &mut Findings) -> Json {
    let read_item = |(i, node): (usize, &Node)| {
        let path = format!("{path}[{i}]");
        if node.value == Value::Null {
            findings.add(
                node.place,
                &path,
                "is empty; leave it out, or write \"\" for an empty text",
            );
        }
        // A placeholder keeps the positions of the items behind a wrong one.
        read(node, item, &path, findings).unwrap_or_else(|| placeholder(item))
    };
    Json::Array(nodes.iter().enumerate().map(read_item).collect())
}

fn read_object(
    node: &Node,
    fields: &[(&'static str, Shape)],
    path: &str,
    findings: &mut Findings,
) -> Json {
    let Value::Object(entries) = &node.value else {
        return Json::Null;
    };
    let below = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    let mut object = Map::new();
    for entry in entries {
        match fields.iter().find(|(name, _)| *name == entry.key) {
            Some((name, shape)) => {
                if let Some(value) = read(&entry.node, shape, &below(name), findings) {
                    object.insert((*name).into(), value);
                }
            }
            None => {
                let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
                let meant = nearest(&entry.key, &names);
                findings.add(entry.key_place, &below(&entry.key), unknown(meant, &names));
                findings.covered.extend(meant.map(below));
            }
        }
    }
    for (name, shape) in fields {
        if matches!(shape, Shape::NeededText) && !object.contains_key(*name) {
            let path = below(name);
            if !findings.covers(&path) {
                findings.add(node.place, &path, "is missing");
            }
            object.insert((*name).into(), Json::from("placeholder"));
        }
    }
    Json::Object(object)
}

fn placeholder(shape: &Shape) -> Json {
    match shape {
        Shape::Object(_) => {
            Json::Object(Map::from_iter([("name".into(), Json::from("placeholder"))]))
        }
        _ => Json::from("placeholder"),
    }
}

fn unknown(meant: Option<&str>, names: &[&str]) -> String {
    match meant {
        Some(name) => format!("unknown field; did you mean {name}?"),
        None => format!("unknown field; the fields here are {}", names.join(", ")),
    }
}

fn mismatch(shape: &Shape, value: &Value) -> String {
    match shape {
        Shape::Text | Shape::NeededText => value.must_be_text(),
        Shape::Whole => value.must_be_whole(),
        Shape::List(_) => format!("{}, must be a list", value.is()),
        Shape::Object(_) => format!("{}, must be a mapping of fields", value.is()),
    }
}

#[cfg(test)]
mod tests {
    use muster_core::spec::{EnvVar, JobDocument, RestartPolicyDocument, SpecDocument, ValueFrom};

    use super::*;

    /// Sets every field without `..default()`, so a new field in core does not compile here until
    /// it has a value.
    fn full() -> JobDocument {
        let text = || Some("x".to_owned());
        JobDocument {
            api_version: "x".into(),
            kind: "x".into(),
            metadata: muster_core::spec::Metadata {
                name: "x".into(),
                namespace: text(),
            },
            spec: SpecDocument {
                replicas: Some(1),
                min_replicas: Some(1),
                max_replicas: Some(1),
                proc_per_node: Some(1),
                gpus_per_node: Some(1),
                command: vec!["x".into()],
                args: vec!["x".into()],
                env: vec![EnvVar {
                    name: "x".into(),
                    value: "x".into(),
                    value_from: Some(ValueFrom { file: "x".into() }),
                }],
                working_dir: text(),
                priority: Some(1),
                restart_policy: Some(RestartPolicyDocument {
                    max_restarts: Some(1),
                    window: text(),
                }),
                stop_grace_period: text(),
                scale_up_cooldown: text(),
                fence_after: text(),
                progress: text(),
                launch: text(),
                step_pattern: text(),
                checkpoint_pattern: text(),
                node_mix: text(),
            },
        }
    }

    fn same(shape: &Shape, value: &Json, path: &str) {
        match (shape, value) {
            (Shape::Text | Shape::NeededText, Json::String(_))
            | (Shape::Whole, Json::Number(_)) => {}
            (Shape::List(item), Json::Array(items)) => same(item, &items[0], path),
            (Shape::Object(fields), Json::Object(object)) => {
                let mut names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
                names.sort_unstable();
                assert_eq!(
                    names,
                    object.keys().map(String::as_str).collect::<Vec<_>>(),
                    "fields of {path:?}"
                );
                for (name, shape) in *fields {
                    same(shape, &object[*name], &format!("{path}.{name}"));
                }
            }
            _ => panic!("{path} has another type in core: {value}"),
        }
    }

    #[test]
    fn the_table_is_what_core_reads() {
        same(&DOCUMENT, &serde_json::to_value(full()).unwrap(), "");
    }
}
