//! What a pod says about its nodes: labels that they must have, and what stands beside it on them.
//!
//! Muster does not choose nodes by label yet. What all nodes have or lack, says the site map, so a demand that
//! every node meets is met. It does not know a label that the map does not name.

use crate::{
    fields::{Object, Rule, Rules},
    options::Cluster,
    site::Site,
    tree::Field,
    verdict::Verdicts,
};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
/// Of an alpha version of Kubernetes, which samples still have.
const REQUIRED_ALWAYS: &str = "requiredDuringSchedulingRequiredDuringExecution";

const AFFINITY: Rules = &[
    ("nodeAffinity", Rule::Read),
    ("podAffinity", Rule::Read),
    ("podAntiAffinity", Rule::Read),
];

const NODES: Rules = &[
    (REQUIRED, Rule::Read),
    (
        PREFERRED,
        Rule::Note("is not needed: it is a wish, and Muster takes any node that is free"),
    ),
];

const APART: Rules = &[
    (REQUIRED, Rule::Note(APART_HERE)),
    (PREFERRED, Rule::Note(APART_HERE)),
    (REQUIRED_ALWAYS, Rule::Note(APART_HERE)),
];
const APART_HERE: &str = "a node has at most one worker group of a job";

const BESIDE: Rules = &[
    (
        REQUIRED,
        Rule::Warn("has no effect: Muster does not choose nodes by what runs on them"),
    ),
    (
        PREFERRED,
        Rule::Note("is not needed: it is a wish, and Muster takes any node that is free"),
    ),
];

const SELECTOR: Rules = &[("nodeSelectorTerms", Rule::Read)];
const TERM: Rules = &[
    ("matchExpressions", Rule::Read),
    ("matchFields", Rule::Read),
];
const EXPRESSION: Rules = &[
    ("key", Rule::Read),
    ("operator", Rule::Read),
    ("values", Rule::Read),
];

const OPERATORS: [&str; 6] = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];

/// Whether all nodes meet a demand.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Met {
    Yes,
    /// No node does. Why not.
    No(String),
    /// The site map says nothing of these labels.
    Unknown(Vec<String>),
    /// What is asked was refused.
    Refused,
}

/// Judges what the pod says about its nodes.
pub(super) fn placing(pod: &Object<'_>, cluster: &Cluster<'_>, log: &mut Verdicts) {
    if let Some(selector) = pod.get("nodeSelector") {
        for (label, at) in selector.entries(log) {
            let Some(wanted) = at.text(log) else { continue };
            let met = is_one_of(cluster.site, label, &[wanted.to_owned()]);
            match met {
                Met::Yes => log.note(&at, "every node has this label, says the site map"),
                Met::No(why) => log.refuse(&at, format!("asks for nodes with this label, and {why}")),
                Met::Unknown(_) | Met::Refused => log.refuse(
                    &at,
                    format!("asks for nodes with this label, and Muster does not choose nodes by label yet; if every node has it, say so with `nodeLabels: {{{label}: {wanted}}}` in the site map"),
                ),
            }
        }
    }
    let Some(affinity) = pod.get("affinity") else {
        return;
    };
    let affinity = Object::walk(affinity, AFFINITY, log);
    for (name, rules) in [("podAntiAffinity", APART), ("podAffinity", BESIDE)] {
        if let Some(at) = affinity.get(name) {
            Object::walk(at, rules, log);
        }
    }
    if let Some(nodes) = affinity.get("nodeAffinity") {
        let nodes = Object::walk(nodes, NODES, log);
        if let Some(required) = nodes.get(REQUIRED) {
            required_of_nodes(required, cluster.site, log);
        }
    }
}

/// A node must meet one of the terms (Kubernetes' `NodeSelector`).
fn required_of_nodes(at: &Field<'_>, site: &Site, log: &mut Verdicts) {
    let selector = Object::walk(at, SELECTOR, log);
    let Some(list) = selector.get("nodeSelectorTerms") else {
        log.lacks(at, "nodeSelectorTerms");
        return;
    };
    let terms = list.items(log);
    if terms.is_empty() {
        log.refuse(list, "is empty, and must have a term");
        return;
    }
    let met: Vec<Met> = terms.iter().map(|each| term(each, site, log)).collect();
    if met.contains(&Met::Refused) {
        return;
    }
    if met.contains(&Met::Yes) {
        log.note(at, "is met by every node, says the site map");
        return;
    }
    let unknown = met.iter().find_map(|met| match met {
        Met::Unknown(labels) => Some(labels),
        _ => None,
    });
    let why = met.iter().find_map(|met| match met {
        Met::No(why) => Some(why),
        _ => None,
    });
    match (unknown, why) {
        (Some(labels), _) => {
            let said: Vec<String> = labels
                .iter()
                .map(|label| format!("{label}: VALUE"))
                .collect();
            log.refuse(
                at,
                format!(
                    "asks for certain nodes, and Muster does not choose nodes by label yet; if all nodes are alike in this, say so with `nodeLabels: {{{}}}` in the site map, with null for a label that none has",
                    said.join(", ")
                ),
            );
        }
        (None, Some(why)) => log.refuse(at, format!("asks for certain nodes, and {why}")),
        (None, None) => log.refuse(at, "names nodes, and Muster cannot place a job by node yet"),
    }
}

/// A node must meet all of a term. One that asks for nothing fits no node.
fn term(at: &Field<'_>, site: &Site, log: &mut Verdicts) -> Met {
    let term = Object::walk(at, TERM, log);
    let mut all = Vec::new();
    if let Some(list) = term.get("matchExpressions") {
        for one in list.items(log) {
            all.push(expression(&one, site, log));
        }
    }
    if let Some(list) = term.get("matchFields").filter(|list| !list.is_bare()) {
        let _ = list.items(log);
        all.push(Met::No(
            "Muster cannot place a job by the name of a node yet".to_owned(),
        ));
    }
    if all.is_empty() {
        return Met::No("a term that asks for nothing fits no node".to_owned());
    }
    let first = |wanted: fn(&Met) -> bool| all.iter().find(|met| wanted(met)).cloned();
    first(|met| *met == Met::Refused)
        .or_else(|| first(|met| matches!(met, Met::No(_))))
        .unwrap_or_else(|| {
            let mut labels: Vec<String> = Vec::new();
            for met in &all {
                if let Met::Unknown(more) = met {
                    labels.extend(more.iter().cloned());
                }
            }
            labels.sort();
            labels.dedup();
            match labels.is_empty() {
                true => Met::Yes,
                false => Met::Unknown(labels),
            }
        })
}

fn expression(at: &Field<'_>, site: &Site, log: &mut Verdicts) -> Met {
    let object = Object::walk(at, EXPRESSION, log);
    for name in ["key", "operator"] {
        if object.get(name).is_none() {
            log.lacks(at, name);
        }
    }
    let key = object.text("key", log).map(|(_, key)| key);
    let values: Option<Vec<String>> = object.get("values").map_or(Some(Vec::new()), |list| {
        let values = list.items(log);
        let values = values
            .iter()
            .map(|value| value.text(log).map(str::to_owned));
        // Each has its refusal.
        let values: Vec<Option<String>> = values.collect();
        values.into_iter().collect()
    });
    let Some((operator_at, operator)) = object.text("operator", log) else {
        return Met::Refused;
    };
    if !OPERATORS.contains(&operator) {
        log.refuse(
            operator_at,
            format!("is {operator:?}, must be one of {}", OPERATORS.join(", ")),
        );
        return Met::Refused;
    }
    let (Some(key), Some(values)) = (key, values) else {
        return Met::Refused;
    };
    let wants = match operator {
        "In" | "NotIn" => (!values.is_empty(), "needs values"),
        "Gt" | "Lt" => (
            values.len() == 1 && values[0].parse::<i64>().is_ok(),
            "needs one whole number, in quotes, as its values",
        ),
        _ => (values.is_empty(), "takes no values"),
    };
    if let (false, why) = wants {
        log.refuse(
            object.get("values").unwrap_or(at),
            format!("{operator} {why}"),
        );
        return Met::Refused;
    }
    match operator {
        "In" => is_one_of(site, key, &values),
        // A node without the label is none of these as well.
        "NotIn" => match site.node_labels.get(key) {
            None => Met::Unknown(vec![key.to_owned()]),
            Some(Some(has)) if values.contains(has) => is_said(key, Some(has)),
            Some(_) => Met::Yes,
        },
        "Exists" | "DoesNotExist" => match site.node_labels.get(key) {
            None => Met::Unknown(vec![key.to_owned()]),
            Some(has) if has.is_some() == (operator == "Exists") => Met::Yes,
            Some(has) => is_said(key, has.as_ref()),
        },
        _ => match site.node_labels.get(key) {
            None => Met::Unknown(vec![key.to_owned()]),
            Some(has) => {
                let number = |text: &String| text.parse::<i64>().ok();
                let pair = has.as_ref().and_then(number).zip(number(&values[0]));
                match pair {
                    Some((has, than))
                        if (operator == "Gt" && has > than) || (operator == "Lt" && has < than) =>
                    {
                        Met::Yes
                    }
                    _ => is_said(key, has.as_ref()),
                }
            }
        },
    }
}

fn is_one_of(site: &Site, key: &str, values: &[String]) -> Met {
    match site.node_labels.get(key) {
        None => Met::Unknown(vec![key.to_owned()]),
        Some(Some(has)) if values.contains(has) => Met::Yes,
        Some(has) => is_said(key, has.as_ref()),
    }
}

/// No node meets it, because all have this value.
fn is_said(key: &str, has: Option<&String>) -> Met {
    Met::No(match has {
        Some(has) => format!("every node has {key}: {has}, says the site map"),
        None => format!("no node has {key}, says the site map"),
    })
}

#[cfg(test)]
mod tests;
