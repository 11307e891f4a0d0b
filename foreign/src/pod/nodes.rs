//! What a pod says about its nodes: labels that they must have, and what stands beside it on them.
//!
//! The job asks for the same. What all nodes have or lack, the site map may say: a demand that every node meets is met, and
//! one that none meets is refused here.

use std::collections::BTreeMap;

use muster_core::spec::{
    Affinity, SpecDocument, Toleration,
    selection::{
        Expression, NAME_FIELD, NodeAffinity, NodeSelectorTerms, Operator, Preferred, Term,
    },
};

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

const NODES: Rules = &[(REQUIRED, Rule::Read), (PREFERRED, Rule::Read)];

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

const WISH: Rules = &[("weight", Rule::Read), ("preference", Rule::Read)];

const TOLERATION: Rules = &[
    ("key", Rule::Read),
    ("operator", Rule::Read),
    ("value", Rule::Read),
    ("effect", Rule::Read),
    (
        "tolerationSeconds",
        Rule::Note("has no effect: a taint ends nothing that runs here"),
    ),
];

/// What the job asks of its nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen<'t> {
    node_selector: BTreeMap<String, String>,
    affinity: NodeAffinity,
    /// Where it stands.
    at: Option<Field<'t>>,
    tolerations: Vec<Toleration>,
    tolerations_at: Option<Field<'t>>,
}

impl<'t> Chosen<'t> {
    /// Writes it into a job.
    pub(crate) fn write(&self, spec: &mut SpecDocument) {
        spec.node_selector = self.node_selector.clone();
        spec.affinity = (self.affinity != NodeAffinity::default()).then(|| Affinity {
            node_affinity: Some(self.affinity.clone()),
        });
        spec.tolerations = self.tolerations.clone();
    }

    /// The demands of all pods of a job together: its members choose among the same nodes. A pod that asks for nothing
    /// goes where the others go. Two pods that ask for different nodes are refused. What one tolerates, all do.
    pub(crate) fn of<'a>(
        pods: impl Iterator<Item = &'a Chosen<'t>> + Clone,
        log: &mut Verdicts,
    ) -> Chosen<'t>
    where
        't: 'a,
    {
        let mut asking = pods.clone().filter(|chosen| chosen.requires());
        let mut all = asking.next().cloned().unwrap_or_default();
        for other in asking {
            let same = other.node_selector == all.node_selector
                && other.affinity.required == all.affinity.required;
            if let (false, Some(at)) = (same, &other.at) {
                log.refuse(
                    at,
                    "asks for other nodes than another pod of the job, and all members of a job choose among the same nodes here",
                );
            }
        }
        if let Some(at) = &all.at
            && pods.clone().any(|chosen| !chosen.requires())
            && all.requires()
        {
            log.warn(
                at,
                "holds for all members of the job here, also for those whose pods do not ask for it",
            );
        }
        for other in pods.clone() {
            all.tolerate(other);
        }
        if let Some(at) = all.tolerations_at.clone()
            && pods.clone().any(|pod| {
                !all.tolerations
                    .iter()
                    .all(|one| pod.tolerations.contains(one))
            })
        {
            log.warn(&at, "hold for all members of the job here");
        }
        let mut wishing = pods.filter(|chosen| !chosen.affinity.preferred.is_empty());
        if let Some(first) = wishing.next() {
            all.affinity.preferred = first.affinity.preferred.clone();
            for other in
                wishing.filter(|other| other.affinity.preferred != first.affinity.preferred)
            {
                if let Some(at) = &other.at {
                    log.note(
                        at,
                        "has other wishes than another pod of the job, whose wishes hold for all",
                    );
                }
            }
        }
        all
    }

    /// Adds what another pod tolerates.
    fn tolerate(&mut self, other: &Chosen<'t>) {
        for one in &other.tolerations {
            if !self.tolerations.contains(one) {
                self.tolerations.push(one.clone());
            }
        }
        if self.tolerations_at.is_none() {
            self.tolerations_at.clone_from(&other.tolerations_at);
        }
    }

    fn requires(&self) -> bool {
        !self.node_selector.is_empty() || self.affinity.required.is_some()
    }

    pub(crate) fn at(&self) -> Option<&Field<'t>> {
        self.at.as_ref()
    }

    pub(crate) fn tolerations_at(&self) -> Option<&Field<'t>> {
        self.tolerations_at.as_ref()
    }
}

/// Whether all nodes meet a demand.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Met {
    Yes,
    /// No node does. Why not.
    No(String),
    /// The site map says nothing of these labels.
    Unknown,
    /// What is asked was refused.
    Refused,
}

/// Judges what the pod says about its nodes.
pub(super) fn placing<'t>(
    pod: &Object<'t>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Chosen<'t> {
    let mut chosen = Chosen::default();
    if let Some(selector) = pod.get("nodeSelector") {
        for (label, at) in selector.entries(log) {
            let Some(wanted) = at.text(log) else { continue };
            match is_one_of(cluster.site, label, &[wanted.to_owned()]) {
                Met::Yes => log.note(&at, "every node has this label, says the site map"),
                Met::No(why) => {
                    log.refuse(&at, format!("asks for nodes with this label, and {why}"))
                }
                Met::Unknown | Met::Refused => {
                    log.taken(&at, "spec.nodeSelector");
                    chosen
                        .node_selector
                        .insert(label.to_owned(), wanted.to_owned());
                    chosen.at.get_or_insert_with(|| selector.clone());
                }
            }
        }
    }
    if let Some(list) = pod.get("tolerations") {
        let tolerations = list.items(log);
        for at in &tolerations {
            let object = Object::walk(at, TOLERATION, log);
            log.taken(at, "spec.tolerations");
            let mut text = |name| {
                object
                    .text(name, log)
                    .map_or("", |(_, text)| text)
                    .to_owned()
            };
            chosen.tolerations.push(Toleration {
                key: text("key"),
                operator: text("operator"),
                value: text("value"),
                effect: text("effect"),
            });
        }
        if !tolerations.is_empty() {
            chosen.tolerations_at = Some(list.clone());
        }
    }
    let Some(affinity) = pod.get("affinity") else {
        return chosen;
    };
    let affinity = Object::walk(affinity, AFFINITY, log);
    for (name, rules) in [("podAntiAffinity", APART), ("podAffinity", BESIDE)] {
        if let Some(at) = affinity.get(name) {
            Object::walk(at, rules, log);
        }
    }
    if let Some(at) = affinity.get("nodeAffinity") {
        let nodes = Object::walk(at, NODES, log);
        if let Some(required) = nodes.get(REQUIRED) {
            chosen.affinity.required = required_of_nodes(required, cluster.site, log);
        }
        if let Some(wishes) = nodes.get(PREFERRED) {
            chosen.affinity.preferred = preferred(wishes, cluster.site, log);
        }
        if chosen.affinity != NodeAffinity::default() {
            chosen.at.get_or_insert_with(|| at.clone());
        }
    }
    chosen
}

/// A node must meet one of the terms (Kubernetes' `NodeSelector`). `None`: nothing is left to ask for.
fn required_of_nodes(at: &Field<'_>, site: &Site, log: &mut Verdicts) -> Option<NodeSelectorTerms> {
    let selector = Object::walk(at, SELECTOR, log);
    let Some(list) = selector.get("nodeSelectorTerms") else {
        log.lacks(at, "nodeSelectorTerms");
        return None;
    };
    let terms = list.items(log);
    if terms.is_empty() {
        log.refuse(list, "is empty, and must have a term");
        return None;
    }
    let terms: Vec<(Met, Term)> = terms.iter().map(|each| term(each, site, log)).collect();
    let is = |wanted: &Met| terms.iter().any(|(met, _)| met == wanted);
    if is(&Met::Refused) {
        return None;
    }
    if is(&Met::Yes) {
        log.note(at, "is met by every node, says the site map");
        return None;
    }
    if !is(&Met::Unknown) {
        let why = terms.iter().find_map(|(met, _)| match met {
            Met::No(why) => Some(why),
            _ => None,
        });
        let why = why.map_or("", String::as_str);
        log.refuse(at, format!("asks for certain nodes, and {why}"));
        return None;
    }
    log.taken(at, "spec.affinity");
    // A term that no node meets changes nothing.
    let open = terms.into_iter().filter(|(met, _)| *met == Met::Unknown);
    Some(NodeSelectorTerms {
        node_selector_terms: open.map(|(_, term)| term).collect(),
    })
}

/// Nodes that the job would rather have.
fn preferred(list: &Field<'_>, site: &Site, log: &mut Verdicts) -> Vec<Preferred> {
    let mut wishes = Vec::new();
    for at in list.items(log) {
        let wish = Object::walk(&at, WISH, log);
        let weight = wish.whole("weight", log).map(|(_, weight)| weight);
        let (Some(weight), Some(preference)) = (weight, wish.get("preference")) else {
            log.note(&at, "is not needed: it says no preference, or no weight");
            continue;
        };
        let (met, term) = term(preference, site, log);
        match met {
            Met::Unknown if (1..=100).contains(&weight) => {
                log.taken(&at, "spec.affinity");
                wishes.push(Preferred {
                    weight,
                    preference: term,
                });
            }
            Met::Unknown => log.refuse(
                &at,
                format!("weight is {weight}, must be between 1 and 100"),
            ),
            Met::Refused => {}
            Met::Yes | Met::No(_) => {
                log.note(
                    &at,
                    "is not needed: all nodes are alike in it, says the site map",
                );
            }
        }
    }
    wishes
}

/// A node must meet all of a term. One that asks for nothing fits no node.
fn term(at: &Field<'_>, site: &Site, log: &mut Verdicts) -> (Met, Term) {
    let walked = Object::walk(at, TERM, log);
    let (mut all, mut term) = (Vec::new(), Term::default());
    for (name, of_name) in [("matchExpressions", false), ("matchFields", true)] {
        let Some(list) = walked.get(name) else {
            continue;
        };
        for one in list.items(log) {
            let (met, read) = expression(&one, of_name, site, log);
            // What every node meets need not be asked: the hosts may lack the label.
            let read = read.filter(|_| met != Met::Yes);
            all.push(met);
            match of_name {
                true => term.match_fields.extend(read),
                false => term.match_expressions.extend(read),
            }
        }
    }
    if all.is_empty() {
        let why = "a term that asks for nothing fits no node".to_owned();
        return (Met::No(why), term);
    }
    let first = |wanted: fn(&Met) -> bool| all.iter().find(|met| wanted(met)).cloned();
    let met = first(|met| *met == Met::Refused)
        .or_else(|| first(|met| matches!(met, Met::No(_))))
        .or_else(|| first(|met| *met == Met::Unknown));
    (met.unwrap_or(Met::Yes), term)
}

fn expression(
    at: &Field<'_>,
    of_name: bool,
    site: &Site,
    log: &mut Verdicts,
) -> (Met, Option<Expression>) {
    let refused = (Met::Refused, None);
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
        return refused;
    };
    if Operator::of(operator).is_none() {
        let names: Vec<&str> = Operator::ALL.iter().map(|(name, _)| *name).collect();
        log.refuse(
            operator_at,
            format!("is {operator:?}, must be one of {}", names.join(", ")),
        );
        return refused;
    }
    let (Some(key), Some(values)) = (key, values) else {
        return refused;
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
        return refused;
    }
    if of_name && (key != NAME_FIELD || !matches!(operator, "In" | "NotIn")) {
        log.refuse(
            at,
            format!(
                "must be In or NotIn of {NAME_FIELD}: no other field of a node can be asked for"
            ),
        );
        return refused;
    }
    let met = match of_name {
        // The nodes may have the same names here.
        true => Met::Unknown,
        false => met_by_all(site, key, operator, &values),
    };
    let expression = Expression {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values,
    };
    (met, Some(expression))
}

/// Whether all nodes meet an expression, by the site map.
fn met_by_all(site: &Site, key: &str, operator: &str, values: &[String]) -> Met {
    match operator {
        "In" => is_one_of(site, key, values),
        // A node without the label is none of these as well.
        "NotIn" => match site.node_labels.get(key) {
            None => Met::Unknown,
            Some(Some(has)) if values.contains(has) => is_said(key, Some(has)),
            Some(_) => Met::Yes,
        },
        "Exists" | "DoesNotExist" => match site.node_labels.get(key) {
            None => Met::Unknown,
            Some(has) if has.is_some() == (operator == "Exists") => Met::Yes,
            Some(has) => is_said(key, has.as_ref()),
        },
        _ => match site.node_labels.get(key) {
            None => Met::Unknown,
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
        None => Met::Unknown,
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
