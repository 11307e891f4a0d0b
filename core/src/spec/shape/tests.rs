//! The table and the types say the same.

use serde_json::Value;

use super::*;
use crate::spec::{
    AfterDocument, EnvVar, JobDocument, Metadata, NotifyDocument, Origin, RestartPolicyDocument,
    RoleDocument, RuleDocument, SpecDocument, Toleration, ValueFrom, selection,
};

fn variable() -> EnvVar {
    EnvVar {
        name: "x".into(),
        value: "x".into(),
        value_from: Some(ValueFrom { file: "x".into() }),
    }
}

/// A document with every field set.
fn full() -> JobDocument {
    let text = || Some("x".to_owned());
    JobDocument {
        api_version: "x".into(),
        kind: "x".into(),
        metadata: Metadata {
            name: "x".into(),
            namespace: text(),
        },
        spec: SpecDocument {
            replicas: Some(1),
            min_replicas: Some(1),
            max_replicas: Some(1),
            multiple_of: Some(1),
            proc_per_node: Some(1),
            gpus_per_node: Some(1),
            command: vec!["x".into()],
            args: vec!["x".into()],
            env: vec![variable()],
            working_dir: text(),
            image: text(),
            priority: Some(1),
            preemption: text(),
            queue: text(),
            restart_policy: Some(RestartPolicyDocument {
                max_restarts: Some(1),
                window: text(),
                max_same_failures: Some(4),
            }),
            stop_grace_period: text(),
            scale_up_cooldown: text(),
            fence_after: text(),
            progress: text(),
            launch: text(),
            standbys: text(),
            inspect: text(),
            on_stall: text(),
            on_slow_rank: text(),
            stall_after: text(),
            step_pattern: text(),
            checkpoint_pattern: text(),
            node_mix: text(),
            placement: text(),
            node_selector: [("x".to_owned(), "x".to_owned())].into(),
            affinity: Some(selection::tests::full()),
            node_list: vec!["x".into()],
            exclude_nodes: vec!["x".into()],
            required_topology: text(),
            preferred_topology: vec!["x".into()],
            tolerations: vec![Toleration::read("x=x:NoSchedule")],
            rules: vec![RuleDocument {
                when: "x".into(),
                role: text(),
                codes: text(),
                signals: vec!["x".into()],
                of: text(),
                then: "x".into(),
                limit: Some(1),
                within: text(),
            }],
            suspend: Some(true),
            after: vec![AfterDocument::read("a:ended")],
            start_after: Some("2026-11-30T18:00:00Z".into()),
            active_deadline_seconds: Some(1),
            start_deadline_seconds: Some(1),
            ttl_seconds_after_finished: Some(1),
            notify: vec![NotifyDocument {
                kinds: vec!["x".into()],
                receivers: vec!["x".into()],
                mail: vec!["x".into()],
            }],
            framework: text(),
            roles: vec![RoleDocument {
                name: "x".into(),
                replicas: Some(1),
                min_replicas: Some(1),
                max_replicas: Some(1),
                multiple_of: Some(1),
                proc_per_node: Some(1),
                gpus_per_node: Some(1),
                command: vec!["x".into()],
                args: vec!["x".into()],
                env: vec![variable()],
                working_dir: text(),
                service: Some(true),
                restart_scope: text(),
            }],
            origin: Some(Origin {
                api_version: "x".into(),
                kind: "x".into(),
                groups: vec!["x".into()],
            }),
        },
    }
}

fn same(shape: &Shape, value: &Value, path: &str) {
    match (shape, value) {
        (Shape::Text(_), Value::String(_)) | (Shape::Whole(..), Value::Number(_)) => {}
        (Shape::Choice, Value::Bool(_)) => {}
        (Shape::List(item, _) | Shape::Ordered(item, _), Value::Array(items)) => {
            same(item, &items[0], path);
        }
        (Shape::Map(item, _), Value::Object(entries)) => {
            same(item, entries.values().next().unwrap(), path);
        }
        (Shape::Object(fields), Value::Object(object)) => {
            let mut names: Vec<&str> = fields.iter().map(|field| field.name).collect();
            names.sort_unstable();
            assert_eq!(
                names,
                object.keys().map(String::as_str).collect::<Vec<_>>(),
                "fields of {path:?}"
            );
            for field in *fields {
                let path = format!("{path}.{}", field.name);
                same(&field.shape, &object[field.name], &path);
                assert!(field.about.ends_with('.'), "{path}: {:?}", field.about);
            }
        }
        _ => panic!("{path} has another type: {value}"),
    }
}

#[test]
fn the_table_is_what_the_types_read() {
    same(&DOCUMENT, &serde_json::to_value(full()).unwrap(), "");
}

/// The message of the check about one field, if that field is wrong.
fn refusal(field: &str, value: &Value) -> Option<String> {
    let mut document = serde_json::json!({
        "apiVersion": API_VERSION, "kind": KIND, "metadata": { "name": "a" },
        "spec": { "args": ["train.py"], "minReplicas": 1, "maxReplicas": NODES_MAX },
    });
    document["spec"][field] = value.clone();
    let document: JobDocument = serde_json::from_value(document).unwrap();
    let errors = document.check().err()?;
    let path = format!("spec.{field}");
    errors
        .into_iter()
        .find(|error| error.path == path)
        .map(|error| error.message)
}

#[test]
fn its_bounds_are_those_of_the_check() {
    for field in SPEC_FIELDS {
        let (good, bad) = match field.shape {
            Shape::Whole(low, high) => (
                vec![low.into(), high.into()],
                vec![(low - 1).into(), (high + 1).into()],
            ),
            Shape::Text(Text::OneOf(words)) => (
                words().into_iter().map(Value::from).collect(),
                vec!["other".into()],
            ),
            Shape::Text(Text::Path) => (vec!["/a".into()], vec!["a".into()]),
            Shape::Text(Text::Period) => (vec!["1m".into()], vec!["soon".into()]),
            Shape::List(_, most) if !matches!(field.name, "env" | "roles") => {
                let of = |count: usize| Value::from(vec!["a"; count]);
                (vec![of(most)], vec![of(most + 1)])
            }
            _ => continue,
        };
        for value in good {
            // The ends of the range have rules about each other, and a slow rank is found only with `inspect`.
            let is_bound = field.name.ends_with("Replicas") || field.name == "replicas";
            let is_bound = is_bound || field.name == "onSlowRank";
            let wrong = refusal(field.name, &value).filter(|_| !is_bound);
            assert_eq!(wrong, None, "{}: {value}", field.name);
        }
        for value in bad {
            let wrong = refusal(field.name, &value);
            assert!(wrong.is_some(), "{}: {value} must be refused", field.name);
        }
    }
}
