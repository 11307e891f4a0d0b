//! `values.schema.json`, by which Helm refuses a value that the chart does not have: it knows all of values.yaml, and nothing else.

use std::fs;

use muster_architecture::root;
use serde_json::{Map, Value, json};

use crate::{NAMESPACE, chart, choices, rendered, set, values, with, with_components};

fn schema() -> Value {
    let text = fs::read_to_string(chart().join("values.schema.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// What is wrong with the value. As much of JSON Schema as the file uses; another keyword is a panic.
fn wrong(value: &Value, schema: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (keyword, word) in schema.as_object().unwrap() {
        match keyword.as_str() {
            "$schema" | "title" | "description" => {}
            "type" => {
                let kind = match value {
                    Value::Bool(_) => "boolean",
                    Value::Number(_) => "integer",
                    Value::String(_) => "string",
                    Value::Array(_) => "array",
                    Value::Object(_) => "object",
                    Value::Null => "null",
                };
                let kinds = word.as_array().cloned().unwrap_or(vec![word.clone()]);
                if !kinds.contains(&json!(kind)) {
                    found.push(format!("{at} is {kind}"));
                }
            }
            "minLength" => {
                assert_eq!(*word, 1);
                if value == "" {
                    found.push(format!("{at} is empty"));
                }
            }
            "enum" if !word.as_array().unwrap().contains(value) => {
                found.push(format!("{at} is {value}"));
            }
            "enum" | "additionalProperties" => {}
            "items" => {
                let items = value.as_array().into_iter().flatten();
                found.extend(items.flat_map(|item| wrong(item, word, &format!("{at}[]"))));
            }
            "properties" => {
                for (name, inner) in value.as_object().unwrap_or(&Map::new()) {
                    let at = format!("{at}.{name}");
                    match word.get(name) {
                        Some(schema) => found.extend(wrong(inner, schema, &at)),
                        None => found.push(format!("{at} is unknown")),
                    }
                }
            }
            other => panic!("{at}: this test does not know {other}"),
        }
    }
    found
}

/// Every name below `properties` whose value is not in values.yaml, and every object that lets unknown names pass.
fn too_much(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let Some(properties) = schema["properties"].as_object() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    if schema["additionalProperties"] != false {
        found.push(format!("{at} takes unknown names"));
    }
    for (name, inner) in properties {
        // Helm's own, which every chart is given.
        if at.is_empty() && name == "global" {
            continue;
        }
        let at = format!("{at}.{name}");
        match value.get(name) {
            Some(value) => found.extend(too_much(inner, value, &at)),
            None => found.push(format!("{at} is not in values.yaml")),
        }
    }
    found
}

#[test]
fn the_schema_knows_the_values_of_the_chart_and_no_others() {
    let schema = schema();
    assert_eq!(too_much(&schema, &values(), ""), [""; 0]);
    assert_eq!(wrong(&values(), &schema, ""), [""; 0]);
    for chosen in choices() {
        assert_eq!(wrong(&with_components(&chosen), &schema, ""), [""; 0]);
    }
}

#[test]
fn a_mistake_in_a_value_is_named() {
    let mut values = with("images.agent", json!(""));
    set(&mut values, "cordon.dryRun", json!("yes"));
    set(&mut values, "service.type", json!("Loadbalancer"));
    set(
        &mut values,
        "coordinator.serverNames",
        json!("train.example.org"),
    );
    values["agent"]["nodeSelektor"] = json!({});
    let mut found = wrong(&values, &schema(), "");
    found.sort();
    assert_eq!(
        found,
        [
            ".agent.nodeSelektor is unknown",
            ".coordinator.serverNames is string",
            ".cordon.dryRun is string",
            ".images.agent is empty",
            ".service.type is \"Loadbalancer\"",
        ]
    );
}

#[test]
fn images_may_be_named_by_digest() {
    let digest = |name: &str| {
        format!(
            "registry.example.org/{name}:0.1.0@sha256:{}",
            "0a".repeat(32)
        )
    };
    let mut values = values();
    for name in ["coordinator", "agent", "workers"] {
        set(&mut values, &format!("images.{name}"), json!(digest(name)));
    }
    assert_eq!(wrong(&values, &schema(), ""), [""; 0]);
    let objects = rendered(&values, NAMESPACE);
    let mut images = Vec::new();
    for object in objects.values() {
        let spec = &object["spec"]["template"]["spec"];
        for kind in ["initContainers", "containers"] {
            let containers = spec[kind].as_array().into_iter().flatten();
            images.extend(containers.map(|one| one["image"].as_str().unwrap().to_owned()));
        }
    }
    images.sort();
    images.dedup();
    assert_eq!(images, ["agent", "coordinator", "workers"].map(digest));
    // The guide shows the same to those who take an overlay.
    let guide = fs::read_to_string(root().join("docs/kubernetes.md")).unwrap();
    assert!(guide.contains("@sha256:"));
}
