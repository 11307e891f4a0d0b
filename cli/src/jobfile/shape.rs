//! Reads a [`Node`] by the table of the fields of a `MusterJob` document and their types.
//!
//! The table is core's. It is walked here, because serde stops at the first error and knows no
//! lines, but a user with three mistakes wants to see three lines.

use muster_core::spec::shape::{Field, OBJECT_FIELDS, Shape};
use muster_foreign::{
    spelling::{misspelt, nearest},
    tree::{Entry, Node, Value},
};
use serde_json::{Map, Value as Json};

use super::Findings;

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
        (Shape::Text(_), Value::Text(text)) => Some(Json::from(text.as_str())),
        (Shape::Whole(..), Value::Whole(number)) => Some(Json::from(*number)),
        (Shape::Choice, Value::Bool(choice)) => Some(Json::from(*choice)),
        (Shape::List(item, _) | Shape::Ordered(item, _), Value::List(nodes)) => {
            Some(read_list(nodes, item, path, findings))
        }
        (Shape::Object(fields), Value::Object(_)) => {
            Some(read_object(node, fields, path, findings))
        }
        (Shape::Map(item, _), Value::Object(entries)) => {
            // A label may have an empty value.
            let mut read = |entry: &Entry| {
                let path = format!("{path}[{:?}]", entry.key);
                let value = read(&entry.node, item, &path, findings);
                (entry.key.clone(), value.unwrap_or_else(|| Json::from("")))
            };
            Some(Json::Object(entries.iter().map(&mut read).collect()))
        }
        (shape, _) => {
            findings.add(node.place, path, mismatch(shape, node));
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

fn read_object(node: &Node, fields: &'static [Field], path: &str, findings: &mut Findings) -> Json {
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
        match fields.iter().find(|field| field.name == entry.key) {
            Some(field) => {
                let path = below(field.name);
                if let Some(value) = read(&entry.node, &field.shape, &path, findings) {
                    object.insert(field.name.into(), value);
                }
            }
            None => {
                let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
                let meant = match is_of_cluster(path, &entry.key) {
                    true => Some("file"),
                    false => {
                        nearest(&entry.key, &names).filter(|_| !is_of_objects(path, &entry.key))
                    }
                };
                let message = match meant {
                    _ if is_of_cluster(path, &entry.key) => OF_CLUSTER.to_owned(),
                    Some(meant) => format!("unknown field; did you mean {meant}?"),
                    None if is_of_objects(path, &entry.key) => OF_OBJECTS.to_owned(),
                    None => unknown(&names.join(", "), findings),
                };
                findings.add(entry.key_place, &below(&entry.key), message);
                let misspelt = misspelt(&entry.key, &names).filter(|name| meant == Some(*name));
                let field = fields.iter().find(|field| Some(field.name) == misspelt);
                // It is read as it is meant, so that what is wrong in it is told as well.
                let field = field.filter(|field| {
                    node.entry(field.name).is_none() && !object.contains_key(field.name)
                });
                let value = field.and_then(|field| {
                    let path = below(&entry.key);
                    let covers = findings.covered.pop();
                    let value = read(&entry.node, &field.shape, &path, findings);
                    findings.covered.extend(covers);
                    Some((field.name, value?))
                });
                match value {
                    Some((name, value)) => {
                        object.insert(name.into(), value);
                        findings.misspelt.push((below(name), entry.key_place));
                    }
                    None => findings.covered.extend(meant.map(below)),
                }
            }
        }
    }
    for field in fields {
        if field.needed && !object.contains_key(field.name) {
            let path = below(field.name);
            if !findings.covers(&path) {
                findings.add(node.place, &path, "is missing");
            }
            object.insert(field.name.into(), Json::from("placeholder"));
        }
    }
    Json::Object(object)
}

fn placeholder(shape: &Shape) -> Json {
    match shape {
        Shape::Object(fields) => {
            let needed = fields.iter().filter(|field| field.needed);
            let needed = needed.map(|field| (field.name.into(), Json::from("placeholder")));
            Json::Object(needed.collect())
        }
        _ => Json::from("placeholder"),
    }
}

/// Whether a variable's value is to come from an object of a cluster, as in the container of a pod.
fn is_of_cluster(path: &str, name: &str) -> bool {
    let places = [
        "secretKeyRef",
        "configMapKeyRef",
        "fieldRef",
        "resourceFieldRef",
    ];
    path.ends_with(".valueFrom") && places.contains(&name)
}

const OF_CLUSTER: &str = "Muster reads no objects of a cluster for a job: name a file of the nodes (valueFrom.file), or give the job a template \
     whose container has the variable";

/// Whether only the `spec` of a Kubernetes object has this field.
fn is_of_objects(path: &str, name: &str) -> bool {
    path == "spec" && OBJECT_FIELDS.iter().any(|field| field.name == name)
}

const OF_OBJECTS: &str =
    "only MusterJob objects in Kubernetes have it: submit the file with kubectl apply -f";

/// What to say of a name that is none of these. Such a list stands once in the answer.
fn unknown(names: &str, findings: &mut Findings) -> String {
    match findings.listed.insert(names.to_owned()) {
        true => format!("unknown field; the fields here are {names}"),
        false => "unknown field".into(),
    }
}

fn mismatch(shape: &Shape, node: &Node) -> String {
    match shape {
        Shape::Text(_) => node.must_be_text(),
        Shape::Whole(..) => node.must_be_whole(),
        Shape::Choice => format!("{}, must be true or false", node.is()),
        Shape::List(..) | Shape::Ordered(..) => format!("{}, must be a list", node.is()),
        Shape::Object(_) | Shape::Map(..) | Shape::Foreign => {
            format!("{}, must be a mapping of fields", node.is())
        }
    }
}
