//! Whether a node is one that a job's `nodeSelector`, `affinity`, `nodeList` and `excludeNodes` select, and how much the
//! job would like it. The operators mean what they mean in Kubernetes.

use std::{borrow::Cow, fmt};

use crate::{
    container::{self, NoImage},
    fleet::registry::Node,
    id::NodeName,
    node_report::{NodeReport, taint::Taint},
    spec::{
        Selection,
        selection::{Expression, Operator, Term, WEIGHT_MAX},
        toleration,
    },
};

/// A node as a selection sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selectable<'a> {
    name: &'a NodeName,
    report: &'a NodeReport,
}

impl<'a> From<&'a Node> for Selectable<'a> {
    fn from(node: &'a Node) -> Self {
        Selectable {
            name: &node.record.name,
            report: &node.report,
        }
    }
}

/// Why the job may not have a node, as a value: a turn asks ten thousand nodes, and shows eight reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Misfit<'a> {
    InExcludeNodes,
    NotInNodeList,
    NoLabel(&'a str),
    Label {
        key: &'a str,
        has: Cow<'a, str>,
        wants: &'a str,
    },
    /// The one term of its affinity does not hold, for this expression.
    Unmet {
        expression: &'a Expression,
        has: Option<Cow<'a, str>>,
    },
    /// None of so many terms of its affinity holds.
    NoTerm(usize),
    /// It has this taint, which the job does not tolerate.
    Tainted(&'a Taint),
    /// It cannot run the job's image.
    Image(NoImage),
}

impl fmt::Display for Misfit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::InExcludeNodes => f.write_str("is in excludeNodes"),
            Misfit::NotInNodeList => f.write_str("is not in nodeList"),
            Misfit::NoLabel(key) => write!(f, "has no label {key}"),
            Misfit::Label { key, has, wants } => write!(f, "has {key}={has}, not {wants}"),
            Misfit::Unmet {
                expression,
                has: Some(has),
            } => write!(f, "does not meet {expression}: has {has:?}"),
            Misfit::Unmet {
                expression,
                has: None,
            } => write!(f, "does not meet {expression}: has no such label"),
            Misfit::NoTerm(terms) => write!(f, "meets none of the {terms} terms of its affinity"),
            Misfit::Image(why) => why.fmt(f),
            Misfit::Tainted(taint) => {
                write!(f, "has taint {taint}, which the job does not tolerate")
            }
        }
    }
}

/// Why the job may not have the node. `None`: it may.
pub(crate) fn misfit<'a>(selection: &'a Selection, node: Selectable<'a>) -> Option<Misfit<'a>> {
    if selection.exclude_nodes.binary_search(node.name).is_ok() {
        return Some(Misfit::InExcludeNodes);
    }
    let listed = &selection.node_list;
    if !listed.is_empty() && listed.binary_search(node.name).is_err() {
        return Some(Misfit::NotInNodeList);
    }
    for (key, wants) in &selection.node_selector {
        match node.report.label_or_fact(key) {
            None => return Some(Misfit::NoLabel(key)),
            Some(has) if has != wants.as_str() => return Some(Misfit::Label { key, has, wants }),
            Some(_) => {}
        }
    }
    let terms = selection.required();
    if terms.is_empty() || terms.iter().any(|term| node.fits(term)) {
        return None;
    }
    // Of several terms none is the one that should have held.
    let unmet = match terms {
        [term] => term.expressions().find(|one| !node.meets(one)),
        _ => None,
    };
    Some(match unmet {
        Some(unmet) => Misfit::Unmet {
            expression: unmet.expression,
            has: node.value(&unmet),
        },
        None => Misfit::NoTerm(terms.len()),
    })
}

/// Why the node cannot run the job's image. An agent that does not know what an image is reports no runtime.
pub(crate) fn imageless(image: Option<&str>, report: &NodeReport) -> Option<Misfit<'static>> {
    container::no_image(&report.container_runtime, image?).map(Misfit::Image)
}

/// Why a taint of the node keeps the job away. `gpus`: it asks for GPUs.
pub(crate) fn tainted<'a>(
    selection: &Selection,
    report: &'a NodeReport,
    gpus: bool,
) -> Option<Misfit<'a>> {
    let mut left = toleration::untolerated(report.all_taints(), &selection.tolerations, gpus);
    left.find(|taint| taint.refuses()).map(Misfit::Tainted)
}

/// The weights of all preferences that hold of the node, minus [`WEIGHT_MAX`] for each taint `PreferNoSchedule` that the job
/// does not tolerate. `gpus`: it asks for GPUs.
pub(crate) fn liking(selection: &Selection, node: Selectable<'_>, gpus: bool) -> i64 {
    let preferred = selection.preferred().iter();
    let held = preferred.filter(|preferred| node.fits(&preferred.preference));
    let weights: i64 = held.map(|preferred| preferred.weight).sum();
    let taints = node.report.all_taints();
    let left = toleration::untolerated(taints, &selection.tolerations, gpus);
    let rather_not = left.filter(|taint| !taint.refuses()).count();
    weights - WEIGHT_MAX * rather_not as i64
}

/// One expression, and whether it is about the node's name.
#[derive(Clone, Copy)]
struct Asked<'a> {
    expression: &'a Expression,
    of_name: bool,
}

impl Term {
    fn expressions(&self) -> impl Iterator<Item = Asked<'_>> {
        let of_labels = self.match_expressions.iter().map(|expression| Asked {
            expression,
            of_name: false,
        });
        let of_fields = self.match_fields.iter().map(|expression| Asked {
            expression,
            of_name: true,
        });
        of_labels.chain(of_fields)
    }
}

impl<'a> Selectable<'a> {
    fn fits(&self, term: &Term) -> bool {
        let mut asked = term.expressions();
        !term.is_empty() && asked.all(|one| self.meets(&one))
    }

    fn value(&self, asked: &Asked<'_>) -> Option<Cow<'a, str>> {
        match asked.of_name {
            true => Some(self.name.as_str().into()),
            false => self.report.label_or_fact(&asked.expression.key),
        }
    }

    fn meets(&self, asked: &Asked<'_>) -> bool {
        let value = self.value(asked);
        let values = &asked.expression.values;
        let is_one = || {
            let value = value.as_deref();
            value.is_some_and(|value| values.iter().any(|one| one == value))
        };
        let compared = |greater: bool| {
            let number = |text: &str| text.parse::<i64>().ok();
            let (Some(has), Some(bound)) = (
                value.as_deref().and_then(number),
                values.first().and_then(|one| number(one)),
            ) else {
                return false;
            };
            if greater { has > bound } else { has < bound }
        };
        match Operator::of(&asked.expression.operator) {
            Some(Operator::In) => is_one(),
            Some(Operator::NotIn) => !is_one(),
            Some(Operator::Exists) => value.is_some(),
            Some(Operator::DoesNotExist) => value.is_none(),
            Some(Operator::Gt) => compared(true),
            Some(Operator::Lt) => compared(false),
            // No check has let it pass.
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::Affinity;

    fn report(labels: &[(&str, &str)]) -> NodeReport {
        let label = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        NodeReport {
            hostname: "host-1".into(),
            labels: labels.iter().map(label).collect(),
            ..NodeReport::default()
        }
    }

    fn asked(selection: &serde_json::Value) -> Selection {
        let mut selection = selection.clone();
        let affinity = selection["affinity"].take();
        let affinity: Option<Affinity> = serde_json::from_value(affinity).unwrap();
        let mut read: Selection = serde_json::from_value(selection).unwrap();
        read.affinity = affinity.and_then(|all| all.node_affinity);
        read
    }

    fn why(selection: &serde_json::Value, report: &NodeReport) -> Option<String> {
        let name = "n1".into();
        let node = Selectable {
            name: &name,
            report,
        };
        misfit(&asked(selection), node).map(|why| why.to_string())
    }

    fn required(terms: &serde_json::Value) -> serde_json::Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    #[test]
    fn operators_mean_what_they_mean_in_kubernetes() {
        let report = report(&[("gpu", "h100"), ("memory", "80"), ("odd", "x7")]);
        let holds = |key: &str, operator: &str, values: &[&str]| {
            let terms = json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
            why(&required(&terms), &report).is_none()
        };
        for (key, operator, values, expected) in [
            ("gpu", "In", &["a100", "h100"][..], true),
            ("gpu", "In", &["a100"], false),
            ("none", "In", &["h100"], false),
            ("gpu", "NotIn", &["h100"], false),
            ("gpu", "NotIn", &["a100"], true),
            ("none", "NotIn", &["a100"], true),
            ("gpu", "Exists", &[], true),
            ("none", "Exists", &[], false),
            ("gpu", "DoesNotExist", &[], false),
            ("none", "DoesNotExist", &[], true),
            ("memory", "Gt", &["79"], true),
            ("memory", "Gt", &["80"], false),
            ("memory", "Lt", &["81"], true),
            ("memory", "Lt", &["80"], false),
            ("odd", "Gt", &["1"], false),
            ("none", "Lt", &["1"], false),
            ("kubernetes.io/hostname", "In", &["host-1"], true),
        ] {
            assert_eq!(
                holds(key, operator, values),
                expected,
                "{key} {operator} {values:?}"
            );
        }
    }

    #[test]
    fn a_node_that_is_not_selected_says_why() {
        let report = report(&[("gpu", "h100"), ("zone", "b")]);
        let says = |selection: serde_json::Value| why(&selection, &report).unwrap_or_default();
        assert_eq!(says(json!({"nodeSelector": {"gpu": "h100"}})), "");
        assert_eq!(
            says(json!({"nodeSelector": {"gpu": "h100", "zone": "a"}})),
            "has zone=b, not a"
        );
        assert_eq!(
            says(json!({"nodeSelector": {"rack": "a"}})),
            "has no label rack"
        );
        assert_eq!(says(json!({"nodeList": ["n0", "n1"]})), "");
        assert_eq!(says(json!({"nodeList": ["n0"]})), "is not in nodeList");
        assert_eq!(
            says(json!({"nodeList": ["n1"], "excludeNodes": ["n1"]})),
            "is in excludeNodes"
        );
        let zone = json!({"matchExpressions": [{"key": "gpu", "operator": "Exists"}, {"key": "zone", "operator": "In", "values": ["a", "c"]}]});
        assert_eq!(
            says(required(&json!([zone]))),
            "does not meet zone In (a, c): has \"b\""
        );
        let rack = json!({"matchExpressions": [{"key": "rack", "operator": "Exists"}]});
        assert_eq!(
            says(required(&json!([rack]))),
            "does not meet rack Exists: has no such label"
        );
        assert_eq!(
            says(required(&json!([zone, rack]))),
            "meets none of the 2 terms of its affinity"
        );
        let name =
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]});
        assert_eq!(says(required(&json!([zone, name]))), "");
        // As in Kubernetes a term that asks for nothing fits no node, and the others decide.
        assert_eq!(says(required(&json!([{}, name]))), "");
        assert_eq!(
            says(required(&json!([{}, zone]))),
            "meets none of the 2 terms of its affinity"
        );
    }

    #[test]
    fn weights_of_what_holds_are_added() {
        let report = report(&[("gpu", "h100"), ("zone", "b")]);
        let preferred = |key: &str, weight: u32| json!({"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "Exists"}]}});
        let affinity = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
            [preferred("gpu", 10), preferred("zone", 1), preferred("rack", 100)]}}});
        let name = "n1".into();
        let node = Selectable {
            name: &name,
            report: &report,
        };
        assert_eq!(liking(&asked(&affinity), node, false), 11);
    }
}
