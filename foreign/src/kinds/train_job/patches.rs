//! The patches of a TrainJob: what others, such as Kueue, lay over the pods of its runtime when they admit
//! it.
//!
//! Mappings are laid one into the other. Of the lists, containers, variables, volumes, pull secrets and
//! scheduling gates are laid item by item, by their names, and mounts by their paths. Any other list, such as
//! tolerations, takes the place of the one that is there. This is what Kubernetes' strategic merge patch does with
//! the fields that a patch of the kind can have (kubeflow/trainer 2.3, `PodSpecPatch`). Its directives (`$patch`) are
//! not known here, its keys of other lists are not either, and null takes nothing away.

use super::runtime::{entry, put};
use crate::{
    fields::{Object, Rule, Rules},
    tree::{Field, Node, Value},
    verdict::Verdicts,
};

const NOT_OF_PODS: Rule = Rule::Note("is not of the pods, and there is nothing else");

const PATCH: Rules = &[
    ("manager", Rule::Note("says whose the patch is")),
    ("time", Rule::Note("says when it was written")),
    ("trainingRuntimeSpec", Rule::Read),
];
const TEMPLATE: Rules = &[("template", Rule::Read)];
const SPEC: Rules = &[("metadata", NOT_OF_PODS), ("spec", Rule::Read)];
const STEPS: Rules = &[("replicatedJobs", Rule::Read)];
const STEP: Rules = &[
    ("name", Rule::Note("says for which step it is")),
    ("template", Rule::Read),
];

/// Each patch of a pod template, beside the step that it is for, in the order in which they are laid.
pub(super) fn read<'t>(
    field: Option<&Field<'t>>,
    log: &mut Verdicts,
) -> Vec<(Field<'t>, Field<'t>)> {
    let mut found = Vec::new();
    for patch in field.map(|field| field.items(log)).unwrap_or_default() {
        let mut at = Some(patch);
        for (rules, next) in [
            (PATCH, "trainingRuntimeSpec"),
            (TEMPLATE, "template"),
            (SPEC, "spec"),
            (STEPS, "replicatedJobs"),
        ] {
            let object = at.map(|at| Object::walk(&at, rules, log));
            at = object.and_then(|object| object.get(next).cloned());
        }
        for step in at.map(|at| at.items(log)).unwrap_or_default() {
            let mut at = Some(step.clone());
            for (rules, next) in [(STEP, "template"), (SPEC, "spec"), (TEMPLATE, "template")] {
                let object = at.map(|at| Object::walk(&at, rules, log));
                at = object.and_then(|object| object.get(next).cloned());
            }
            found.extend(at.map(|pod| (step, pod)));
        }
    }
    found
}

/// By what an item of a list is known, if its list is not replaced as a whole.
fn key(list: &str) -> Option<&'static str> {
    match list {
        "containers" | "initContainers" | "env" | "volumes" | "imagePullSecrets"
        | "schedulingGates" => Some("name"),
        "volumeMounts" => Some("mountPath"),
        _ => None,
    }
}

/// Lays a mapping over another. What is null in it says nothing.
pub(super) fn lay(node: &mut Node, patch: &Node) {
    let Value::Object(entries) = &patch.value else {
        return;
    };
    for says in entries.iter().filter(|says| says.node.value != Value::Null) {
        match (entry(node, &says.key), &says.node.value) {
            (Some(there), Value::Object(_)) if matches!(there.value, Value::Object(_)) => {
                lay(there, &says.node);
            }
            (Some(there), Value::List(items)) => match (key(&says.key), &mut there.value) {
                (Some(key), Value::List(all)) => lay_items(all, items, key),
                _ => *there = says.node.clone(),
            },
            _ => put(node, &says.key, says.node.clone()),
        }
    }
}

fn lay_items(all: &mut Vec<Node>, items: &[Node], key: &str) {
    for item in items {
        let same = |other: &&mut Node| other.text_at(&[key]) == item.text_at(&[key]);
        match all.iter_mut().find(same) {
            Some(there) => lay(there, item),
            None => all.push(item.clone()),
        }
    }
}
