//! The CustomResourceDefinition of `MusterJob` objects, made from core's table of the fields of a
//! job.
//!
//! Its rules (CEL) refuse at once what would be refused later anyway, with a sentence. They need not
//! see everything: the check of the document follows, and its answer is a condition. Every list and
//! text has a bound, because an API server refuses rules whose cost it cannot bound.

use muster_core::spec::{
    API_VERSION, KIND,
    shape::{CHANGING, Field, OBJECT_FIELDS, POD_GROUP, SPEC_FIELDS, Shape, Text},
};
use serde_json::{Map, Value, json};

use crate::rules::job_status::INCIDENTS_SHOWN;

/// The group of our kinds.
pub const GROUP: &str = "muster.dev";
/// The plural of `MusterJob`, as rules of access have it.
pub const JOBS: &str = "musterjobs";

/// The longest name of an object. The pods of a job will have its name and a suffix in one label of
/// at most 63 characters.
const NAME_MAX: usize = 52;

/// Conditions of one object. There are eight.
const CONDITIONS_MAX: usize = 16;

/// The rules' word for an object whose job was accepted before.
const ACCEPTED: &str = "has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'Accepted' && c.status == 'True')";

/// The definition, as an API server takes it.
fn definition() -> Value {
    let version = API_VERSION
        .strip_prefix(GROUP)
        .and_then(|rest| rest.strip_prefix('/'));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{JOBS}.{GROUP}"),
            "labels": { "app.kubernetes.io/part-of": "muster" },
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": format!("{KIND}List"),
                "plural": JOBS,
                "singular": "musterjob",
                "shortNames": ["mj"],
                "categories": ["all"],
            },
            "versions": [{
                "name": version.expect("the version is of the group"),
                "served": true,
                "storage": true,
                "additionalPrinterColumns": columns(),
                "selectableFields": [{ "jsonPath": ".status.phase" }],
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                "schema": { "openAPIV3Schema": root() },
            }],
        },
    })
}

/// The definition as a file.
pub fn yaml() -> String {
    let text = serde_saphyr::to_string(&definition()).expect("JSON has a YAML form");
    format!("# Made by `muster-coordinator crd`. Do not edit it.\n{text}")
}

fn columns() -> Value {
    let column = |name: &str, kind: &str, path: &str, wide: bool| {
        let mut column = json!({ "name": name, "type": kind, "jsonPath": path });
        if wide {
            column["priority"] = json!(1);
        }
        column
    };
    json!([
        column("State", "string", ".status.phase", false),
        column("Nodes", "string", ".status.nodes", false),
        column("Range", "string", ".status.range", true),
        column("Restarts", "integer", ".status.restarts", false),
        column("World", "integer", ".status.worldSize", true),
        column("Step", "integer", ".status.steps.last", true),
        column("Reason", "string", ".status.reason", false),
        column("Age", "date", ".metadata.creationTimestamp", false),
    ])
}

fn root() -> Value {
    let mut spec = schema(&Shape::Object(SPEC_FIELDS));
    let own = schema(&Shape::Object(OBJECT_FIELDS));
    for (name, field) in own["properties"].as_object().into_iter().flatten() {
        spec["properties"][name] = field.clone();
    }
    spec["description"] = json!("What to run, and how many nodes it gets.");
    spec["x-kubernetes-validations"] = rules_of_spec();
    json!({
        "type": "object",
        "description": "A training job that Muster runs on several nodes.",
        "required": ["spec"],
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": spec,
            "status": status(),
        },
        "x-kubernetes-validations": rules_of_object(),
    })
}

fn rule(rule: impl Into<String>, message: impl Into<String>) -> Value {
    json!({ "rule": rule.into(), "message": message.into() })
}

/// Rules about fields that belong together. The check has the same.
fn rules_of_spec() -> Value {
    let wanted = "(has(self.replicas) ? self.replicas : 1)";
    json!([
        // Each role may have a command of its own, whose check is not repeated here. A program needs
        // no arguments; an interpreter needs a script.
        rule(
            "has(self.args) && size(self.args) > 0 || has(self.roles) && size(self.roles) > 0 \
                || has(self.command) && (size(self.command) > 1 \
                || size(self.command) > 0 && !self.command[0].matches('(^|/)(python|pypy)[0-9.]*$'))",
            "names no script; give args, for example [train.py, --epochs, \"10\"] or [-m, package.module]",
        ),
        rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not be more than maxReplicas",
        ),
        rule(
            format!("!has(self.minReplicas) || self.minReplicas <= {wanted}"),
            "replicas (1 if left out) must not be less than minReplicas",
        ),
        rule(
            format!("!has(self.maxReplicas) || {wanted} <= self.maxReplicas"),
            "replicas (1 if left out) must not be more than maxReplicas",
        ),
    ])
}

fn rules_of_object() -> Value {
    let name = rule(
        format!(
            "size(self.metadata.name) <= {NAME_MAX} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')"
        ),
        format!(
            "metadata.name must have at most {NAME_MAX} characters: lower-case letters, digits and '-', a letter first, no '-' last"
        ),
    );
    let kept = SPEC_FIELDS
        .iter()
        .filter(|field| !CHANGING.contains(&field.name));
    let kept = kept.map(|field| field.name).chain([POD_GROUP]).map(fixed);
    let all: Vec<Value> = [name, range()].into_iter().chain(kept).collect();
    Value::Array(all)
}

/// A field keeps its value once the job is accepted.
fn fixed(name: &str) -> Value {
    let (new, old) = (format!("self.spec.{name}"), format!("oldSelf.spec.{name}"));
    let same = format!("has({new}) == has({old}) && (!has({new}) || {new} == {old})");
    let mut rule = rule(
        format!("!({ACCEPTED}) || ({same})"),
        format!("{name} cannot change in an accepted job; delete the job and apply it again"),
    );
    rule["fieldPath"] = json!(format!(".spec.{name}"));
    rule["reason"] = json!("FieldValueForbidden");
    rule
}

/// A change of `replicas` stays within the range that was accepted. The status knows it, also if the
/// spec does not say it.
fn range() -> Value {
    let (new, old) = ("self.spec.replicas", "oldSelf.spec.replicas");
    let (min, max) = ("oldSelf.status.minReplicas", "oldSelf.status.maxReplicas");
    let unchanged = format!("!has({new}) || (has({old}) && {new} == {old})");
    let unknown = format!("!({ACCEPTED}) || !has({min}) || !has({max})");
    let mut rule = rule(
        format!("{unchanged} || {unknown} || ({new} >= {min} && {new} <= {max})"),
        "must be between the minReplicas and maxReplicas of the accepted job",
    );
    // Numbers as text would have no bound for the API server's estimate.
    let range = "'must be in the range of the accepted job, which is ' + oldSelf.status.range";
    rule["messageExpression"] = json!(range);
    rule["fieldPath"] = json!(".spec.replicas");
    rule
}

/// The schema of a field's type.
fn schema(shape: &Shape) -> Value {
    match shape {
        Shape::Whole(low, high) => {
            json!({ "type": "integer", "format": "int64", "minimum": low, "maximum": high })
        }
        Shape::Choice => json!({ "type": "boolean" }),
        Shape::Text(text) => of_text(*text),
        Shape::List(item, most) => {
            let mut list = json!({ "type": "array", "maxItems": most, "items": schema(item) });
            if let Shape::Object(fields) = item {
                // An item is known by its name, as the variables of a container are.
                let key = fields.iter().find(|field| field.needed);
                let key = key.expect("an item of a list has a name");
                list["x-kubernetes-list-type"] = json!("map");
                list["x-kubernetes-list-map-keys"] = json!([key.name]);
                list["items"]["x-kubernetes-validations"] = rules_of_variable();
            }
            list
        }
        // The order of its items counts, and they have no names: the list is one value.
        Shape::Ordered(item, most) => {
            let mut list = json!({ "type": "array", "maxItems": most, "items": schema(item) });
            list["x-kubernetes-list-type"] = json!("atomic");
            let is_rule = |fields: &[Field]| fields.iter().any(|field| field.name == "when");
            if matches!(item, Shape::Object(fields) if is_rule(fields)) {
                list["items"]["x-kubernetes-validations"] = rules_of_rule();
            }
            list
        }
        Shape::Map(item, most) => {
            json!({ "type": "object", "maxProperties": most, "additionalProperties": schema(item) })
        }
        // Its own types would make the definition larger than kubectl apply takes.
        Shape::Foreign => json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true }),
        Shape::Object(fields) => {
            let property = |field: &Field| {
                let mut property = schema(&field.shape);
                property["description"] = json!(field.about);
                (field.name.to_owned(), property)
            };
            let properties: Map<String, Value> = fields.iter().map(property).collect();
            let mut object = json!({ "type": "object", "properties": properties });
            let needed = fields.iter().filter(|field| field.needed);
            let needed: Vec<&str> = needed.map(|field| field.name).collect();
            if !needed.is_empty() {
                object["required"] = json!(needed);
            }
            object
        }
    }
}

fn rules_of_variable() -> Value {
    json!([
        rule(
            "self.name.matches('^[A-Za-z_][A-Za-z0-9_]*$')",
            "name is not the name of an environment variable (letters, digits and '_', not starting with a digit)",
        ),
        rule(
            "!has(self.valueFrom) || !has(self.value) || self.value == ''",
            "valueFrom is given beside a value; give one of them",
        ),
    ])
}

/// What each of a job's rules may say. The check has the same, and more.
fn rules_of_rule() -> Value {
    json!([
        rule(
            "(self.when == 'exit') == has(self.codes)",
            "codes must be given with when: exit, and only there",
        ),
        rule(
            "self.when == 'signal' || !has(self.signals) || size(self.signals) == 0",
            "signals belongs to when: signal",
        ),
        rule(
            "self.when == 'success' || !has(self.of)",
            "of belongs to when: success"
        ),
        rule(
            "!has(self.limit) || (self.then == 'restart' && self.when in ['exit', 'signal', 'failure'])",
            "limit belongs to then: restart, of when: exit, signal or failure",
        ),
        rule(
            "!has(self.within) || has(self.limit)",
            "within is the window of a limit, and there is none"
        ),
        rule(
            "self.when != 'success' || self.then in ['succeed', 'ignore']",
            "then must be succeed or ignore with when: success",
        ),
        rule(
            "self.when != 'deadline' || self.then in ['fail', 'succeed']",
            "then must be fail or succeed with when: deadline",
        ),
        rule(
            "self.when != 'deadline' || !has(self.role)",
            "role belongs to the end of a member, and a deadline ends the whole job",
        ),
    ])
}

fn of_text(text: Text) -> Value {
    let mut schema = json!({ "type": "string", "maxLength": text.bytes_max() });
    match text {
        Text::Any(_) => {}
        Text::OneOf(words) => schema = json!({ "type": "string", "enum": words() }),
        Text::Period => {
            schema["x-kubernetes-validations"] = json!([rule(
                "self.matches('^([0-9]+(ms|s|m|h|d))+$|^[0-9]+$')",
                "is not a period; write for example 500ms, 10s, 1m30s or 2h",
            )]);
        }
        Text::Path => {
            schema["x-kubernetes-validations"] = json!([rule(
                "self.startsWith('/')",
                "must be an absolute path: it is opened on the nodes",
            )]);
        }
    }
    schema
}

/// The status. The coordinator alone writes it.
fn status() -> Value {
    let text = |about: &str| json!({ "type": "string", "maxLength": 1_024, "description": about });
    let time =
        |about: &str| json!({ "type": "string", "format": "date-time", "description": about });
    let number =
        |about: &str| json!({ "type": "integer", "format": "int64", "description": about });
    let incident = json!({
        "type": "object",
        "properties": {
            "time": time("When it happened."),
            "cause": text("What happened, in one word."),
            "message": text("The same as a sentence."),
            "culprit": text("The rank or node that broke first."),
            "from": number("The generation that it ended."),
            "to": number("The generation that replaced it."),
            "downtime": text("From the event to the first step after it, as 1250ms."),
        },
    });
    let condition = json!({
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            "type": { "type": "string", "maxLength": 64 },
            "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
            "observedGeneration": { "type": "integer", "format": "int64" },
            "lastTransitionTime": { "type": "string", "format": "date-time" },
            "reason": { "type": "string", "maxLength": 128 },
            "message": { "type": "string", "maxLength": 1_024 },
        },
    });
    json!({
        "type": "object",
        "description": "How the job is. The coordinator writes it.",
        "properties": {
            "observedGeneration": number("The generation of the object that was read last."),
            "phase": text("Pending, Forming, Running, Recovering, Stopping, Succeeded, Failed or Cancelled; or Rejected."),
            "reason": text("Why the job is in its phase, in one word."),
            "message": text("The same as a sentence, with the numbers."),
            "nodes": text("Nodes that train, over nodes wanted."),
            "range": text("The fewest and the most nodes of the job."),
            "replicas": number("Nodes of the current generation of the job."),
            "minReplicas": number("The fewest nodes, as accepted."),
            "maxReplicas": number("The most nodes, as accepted."),
            "selector": text("The labels of the pods of the job. There are none in this version."),
            "worldSize": number("Ranks of the current generation of the job."),
            "jobGeneration": number("The number of the last generation of the job: one membership, with one world. Not the generation of this object."),
            "restarts": number("How often workers were started again, for whatever reason."),
            "startTime": time("When the job was accepted."),
            "completionTime": time("When the job succeeded."),
            "steps": {
                "type": "object",
                "description": "How far training is, at most 30 s old.",
                "properties": {
                    "last": number("The highest step that a rank has shown."),
                    "total": number("The step at which training ends."),
                    "secondsLeft": number("About how long the rest takes."),
                    "loss": text("The newest loss, as it was printed."),
                },
            },
            "incidents": {
                "type": "array",
                "maxItems": INCIDENTS_SHOWN,
                "description": "What interrupted the job last, newest last. `muster explain` has all.",
                "items": incident,
            },
            "conditions": {
                "type": "array",
                "maxItems": CONDITIONS_MAX,
                "description": "Accepted, Running, Degraded, BelowMinimum, Suspended, Complete, Failed; Queued if the object names a queue of Kueue.",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_and_list_has_a_bound() {
        fn look(schema: &Value, path: &str) {
            let has = |key: &str| !schema[key].is_null();
            match schema["type"].as_str() {
                Some("string") => assert!(
                    has("maxLength") || has("enum") || has("format"),
                    "{path} has no bound"
                ),
                Some("array") => {
                    assert!(has("maxItems"), "{path} has no bound");
                    look(&schema["items"], &format!("{path}[]"));
                }
                Some("object") => {
                    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                        look(property, &format!("{path}.{name}"));
                    }
                }
                _ => {}
            }
        }
        let root = root();
        for part in ["spec", "status"] {
            look(&root["properties"][part], part);
        }
    }

    #[test]
    fn all_fields_but_the_number_of_nodes_and_the_life_are_fixed() {
        let rules = rules_of_object();
        let paths = rules.as_array().into_iter().flatten();
        let paths: Vec<&str> = paths
            .filter_map(|rule| rule["fieldPath"].as_str())
            .collect();
        // One rule is about the range of replicas, and one about the pod group.
        assert_eq!(paths.len(), SPEC_FIELDS.len() - CHANGING.len() + 2);
        assert!(paths.contains(&".spec.args") && paths.contains(&".spec.env"));
    }
}
