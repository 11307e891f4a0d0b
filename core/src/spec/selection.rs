//! Which nodes a job may have, and which it would rather have: `nodeSelector` and `affinity` as Kubernetes has them for a
//! pod, names as `nodeList` and `excludeNodes`, and labels in which all its nodes are alike, as the rack.
//!
//! [`crate::fleet`] asks a node for them before the job has it, and not again while it keeps it.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{SpecDocument, errors::Errors, toleration, toleration::Toleration};
use crate::{
    id::{NodeName, node_name_error},
    node_report::labels::{label_key_error, label_value_error},
};

/// The most labels of a `nodeSelector`, terms of an affinity, expressions of a term, and values of an expression.
pub const SELECTORS_MAX: usize = 64;
pub const TERMS_MAX: usize = 16;
pub const EXPRESSIONS_MAX: usize = 16;
pub const VALUES_MAX: usize = 64;
/// The most names of `nodeList` and of `excludeNodes`.
pub const NODE_NAMES_MAX: usize = 4_096;
/// The most expressions and values of an affinity in all: each is compared with each node.
pub const AFFINITY_MAX: usize = 512;
/// The most labels of `preferredTopology`.
pub const LEVELS_MAX: usize = 8;
/// The greatest weight of a preference, as in Kubernetes.
pub const WEIGHT_MAX: i64 = 100;

/// `affinity` of a document. Of a pod's affinities only the one to nodes has a meaning here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Affinity {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<NodeAffinity>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeAffinity {
    #[serde(
        default,
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        skip_serializing_if = "Option::is_none"
    )]
    pub required: Option<NodeSelectorTerms>,
    #[serde(
        default,
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub preferred: Vec<Preferred>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSelectorTerms {
    #[serde(default)]
    pub node_selector_terms: Vec<Term>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Preferred {
    #[serde(default)]
    pub weight: i64,
    #[serde(default)]
    pub preference: Term,
}

/// All of its expressions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Term {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Expression>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_fields: Vec<Expression>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expression {
    /// A label's key; in `matchFields` `metadata.name`.
    #[serde(default)]
    pub key: String,
    /// One of [`Operator::ALL`].
    #[serde(default)]
    pub operator: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

impl Operator {
    pub const ALL: [(&str, Operator); 6] = [
        ("In", Operator::In),
        ("NotIn", Operator::NotIn),
        ("Exists", Operator::Exists),
        ("DoesNotExist", Operator::DoesNotExist),
        ("Gt", Operator::Gt),
        ("Lt", Operator::Lt),
    ];

    pub fn of(word: &str) -> Option<Operator> {
        let mut all = Self::ALL.iter();
        all.find(|(name, _)| *name == word)
            .map(|(_, operator)| *operator)
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Expression {
            key,
            operator,
            values,
        } = self;
        let values = values.join(", ");
        match Operator::of(operator) {
            Some(Operator::In | Operator::NotIn) => write!(f, "{key} {operator} ({values})"),
            Some(Operator::Gt | Operator::Lt) => write!(f, "{key} {operator} {values}"),
            Some(Operator::Exists | Operator::DoesNotExist) | None => {
                write!(f, "{key} {operator}")
            }
        }
    }
}

impl Term {
    /// Whether it has no expression. As in Kubernetes it fits no node then, and the others beside it decide.
    pub fn is_empty(&self) -> bool {
        self.match_expressions.is_empty() && self.match_fields.is_empty()
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.match_expressions.iter().chain(&self.match_fields);
        for (at, expression) in all.enumerate() {
            write!(f, "{}{expression}", if at == 0 { "" } else { " and " })?;
        }
        Ok(())
    }
}

/// The key of `matchFields`: the node's name.
pub const NAME_FIELD: &str = "metadata.name";

/// What a job asks of its nodes, checked. Empty: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selection {
    /// Labels with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<NodeAffinity>,
    /// Only these nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_list: Vec<NodeName>,
    /// None of these nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude_nodes: Vec<NodeName>,
    /// The label in which all nodes of a generation are alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_topology: Option<String>,
    /// Labels in which they should be alike, the finest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred_topology: Vec<String>,
    /// Taints of nodes that do not keep the job away.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}

impl Selection {
    pub fn is_empty(&self) -> bool {
        *self == Selection::default()
    }

    /// Whether any node may be refused. A preference refuses none.
    pub fn requires(&self) -> bool {
        let required = self.affinity.as_ref().and_then(|all| all.required.as_ref());
        !self.node_selector.is_empty()
            || required.is_some()
            || !self.node_list.is_empty()
            || !self.exclude_nodes.is_empty()
    }

    /// The paths of its fields, and whether `other` differs in each.
    pub(super) fn differences(&self, other: &Selection) -> [(&'static str, bool); 7] {
        [
            (
                "spec.nodeSelector",
                self.node_selector != other.node_selector,
            ),
            ("spec.affinity", self.affinity != other.affinity),
            ("spec.nodeList", self.node_list != other.node_list),
            (
                "spec.excludeNodes",
                self.exclude_nodes != other.exclude_nodes,
            ),
            (
                "spec.requiredTopology",
                self.required_topology != other.required_topology,
            ),
            (
                "spec.preferredTopology",
                self.preferred_topology != other.preferred_topology,
            ),
            ("spec.tolerations", self.tolerations != other.tolerations),
        ]
    }

    /// Terms of which one must hold. None: all nodes will do.
    pub fn required(&self) -> &[Term] {
        let affinity = self.affinity.as_ref();
        affinity
            .and_then(|all| all.required.as_ref())
            .map_or(&[], |terms| &terms.node_selector_terms)
    }

    pub fn preferred(&self) -> &[Preferred] {
        self.affinity.as_ref().map_or(&[], |all| &all.preferred)
    }
}

pub(super) fn check(document: &SpecDocument, errors: &mut Errors) -> Selection {
    if document.node_selector.len() > SELECTORS_MAX {
        errors.too_many(
            "spec.nodeSelector",
            document.node_selector.len(),
            SELECTORS_MAX,
        );
    }
    for (key, value) in &document.node_selector {
        errors.label("spec.nodeSelector", key, Some(value));
    }
    let affinity = document.affinity.as_ref();
    let affinity = affinity.and_then(|affinity| affinity.node_affinity.clone());
    let affinity = affinity.filter(|affinity| *affinity != NodeAffinity::default());
    if let Some(affinity) = &affinity {
        errors.affinity(affinity);
    }
    toleration::check(&document.tolerations, errors);
    let levels = &document.preferred_topology;
    if levels.len() > LEVELS_MAX {
        errors.too_many("spec.preferredTopology", levels.len(), LEVELS_MAX);
    }
    if let Some(key) = &document.required_topology {
        errors.label("spec.requiredTopology", key, None);
    }
    for key in levels {
        errors.label("spec.preferredTopology", key, None);
    }
    let mut names = |path: &str, names: &[String]| -> Vec<NodeName> {
        if names.len() > NODE_NAMES_MAX {
            errors.too_many(path, names.len(), NODE_NAMES_MAX);
            return Vec::new();
        }
        for (at, name) in names.iter().enumerate() {
            if let Some(message) = node_name_error(name) {
                errors.add(format!("{path}[{at}]"), message);
            }
        }
        let mut names: Vec<NodeName> = names.iter().map(|name| name.as_str().into()).collect();
        names.sort();
        names.dedup();
        names
    };
    Selection {
        node_selector: document.node_selector.clone(),
        affinity,
        node_list: names("spec.nodeList", &document.node_list),
        exclude_nodes: names("spec.excludeNodes", &document.exclude_nodes),
        required_topology: document.required_topology.clone(),
        preferred_topology: levels.clone(),
        tolerations: document.tolerations.clone(),
    }
}

impl Errors {
    fn too_many(&mut self, path: &str, have: usize, most: usize) {
        self.add(
            path,
            format!("has {have} entries, at most {most} are allowed"),
        );
    }

    fn label(&mut self, path: &str, key: &str, value: Option<&str>) {
        if let Some(why) = label_key_error(key) {
            self.add(path, format!("the key {key:?}: {why}"));
        }
        if let Some(why) = value.and_then(label_value_error) {
            self.add(format!("{path}[{key:?}]"), why);
        }
    }

    fn affinity(&mut self, affinity: &NodeAffinity) {
        let required = affinity.required.iter();
        let required = required.flat_map(|terms| &terms.node_selector_terms);
        let preferred = affinity.preferred.iter().map(|wish| &wish.preference);
        let parts = required.chain(preferred).flat_map(|term| {
            let all = term.match_expressions.iter().chain(&term.match_fields);
            all.map(|expression| 1 + expression.values.len())
        });
        let parts: usize = parts.sum();
        if parts > AFFINITY_MAX {
            self.add(
                "spec.affinity",
                format!(
                    "has {parts} expressions and values in all, at most {AFFINITY_MAX} are allowed"
                ),
            );
        }
        let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        if let Some(required) = &affinity.required {
            let terms = &required.node_selector_terms;
            match terms.len() {
                0 => self.add(path, "must have a term: without one no node would do"),
                1..=TERMS_MAX if terms.iter().all(Term::is_empty) => {
                    self.add(
                        path,
                        "must have a term with an expression: a term without one fits no node",
                    );
                }
                1..=TERMS_MAX => {}
                have => self.too_many(path, have, TERMS_MAX),
            }
            for (at, term) in terms.iter().enumerate() {
                self.term(&format!("{path}[{at}]"), term);
            }
        }
        let path = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution";
        if affinity.preferred.len() > TERMS_MAX {
            self.too_many(path, affinity.preferred.len(), TERMS_MAX);
        }
        for (at, preferred) in affinity.preferred.iter().enumerate() {
            self.number(
                &format!("{path}[{at}].weight"),
                preferred.weight,
                1,
                WEIGHT_MAX,
            );
            self.term(&format!("{path}[{at}].preference"), &preferred.preference);
        }
    }

    fn term(&mut self, path: &str, term: &Term) {
        for (part, expressions) in [
            ("matchExpressions", &term.match_expressions),
            ("matchFields", &term.match_fields),
        ] {
            if expressions.len() > EXPRESSIONS_MAX {
                self.too_many(
                    &format!("{path}.{part}"),
                    expressions.len(),
                    EXPRESSIONS_MAX,
                );
            }
            for (at, expression) in expressions.iter().enumerate() {
                self.expression(
                    &format!("{path}.{part}[{at}]"),
                    expression,
                    part == "matchFields",
                );
            }
        }
    }

    fn expression(&mut self, path: &str, expression: &Expression, of_fields: bool) {
        let Expression {
            key,
            operator,
            values,
        } = expression;
        if of_fields && key != NAME_FIELD {
            self.add(
                format!("{path}.key"),
                format!("is {key:?}, must be {NAME_FIELD}"),
            );
        } else if let Some(why) = label_key_error(key).filter(|_| !of_fields) {
            self.add(format!("{path}.key"), format!("{key:?}: {why}"));
        }
        let Some(kind) = Operator::of(operator) else {
            let names: Vec<&str> = Operator::ALL.iter().map(|(name, _)| *name).collect();
            let message = format!("is {operator:?}, must be one of {}", names.join(", "));
            return self.add(format!("{path}.operator"), message);
        };
        if of_fields && !matches!(kind, Operator::In | Operator::NotIn) {
            self.add(
                format!("{path}.operator"),
                format!("is {operator}, must be In or NotIn for {NAME_FIELD}"),
            );
        }
        let path = &format!("{path}.values");
        if values.len() > VALUES_MAX {
            self.too_many(path, values.len(), VALUES_MAX);
        }
        let wrong = match kind {
            Operator::In | Operator::NotIn if values.is_empty() => Some("must have a value"),
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                Some("must be empty")
            }
            Operator::Gt | Operator::Lt
                if values.len() != 1 || values[0].parse::<i64>().is_err() =>
            {
                Some("must be one whole number")
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.add(path, format!("{wrong} for {operator}"));
        }
        for value in values {
            let why = match of_fields {
                true => node_name_error(value),
                false => label_value_error(value),
            };
            if let Some(why) = why {
                self.add(path, why);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::tests::document;

    /// One with every field set.
    pub(in crate::spec) fn full() -> Affinity {
        let expression = || Expression {
            key: "x".into(),
            operator: "In".into(),
            values: vec!["x".into()],
        };
        let term = || Term {
            match_expressions: vec![expression()],
            match_fields: vec![expression()],
        };
        Affinity {
            node_affinity: Some(NodeAffinity {
                required: Some(NodeSelectorTerms {
                    node_selector_terms: vec![term()],
                }),
                preferred: vec![Preferred {
                    weight: 1,
                    preference: term(),
                }],
            }),
        }
    }

    fn checked(spec: &serde_json::Value) -> Result<Selection, Vec<String>> {
        let mut document = document();
        let given: SpecDocument = serde_json::from_value(spec.clone()).unwrap();
        document.spec = SpecDocument {
            node_selector: given.node_selector,
            affinity: given.affinity,
            node_list: given.node_list,
            exclude_nodes: given.exclude_nodes,
            required_topology: given.required_topology,
            preferred_topology: given.preferred_topology,
            tolerations: given.tolerations,
            ..document.spec
        };
        let spec = document.check().map(|(_, spec)| spec.selection);
        spec.map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_pods_own_words_are_taken_as_they_are() {
        let selection = checked(&json!({
            "nodeSelector": {"topology.kubernetes.io/zone": "a", "pool": ""},
            "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100", "h200"]},
                                          {"key": "spot", "operator": "DoesNotExist"},
                                          {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["40000"]}]},
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1.example"]}]}]},
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 100, "preference": {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}}]}},
            "nodeList": ["n2", "n1", "n2"],
            "excludeNodes": ["n9"],
        }))
        .unwrap();
        assert_eq!(selection.required().len(), 2);
        assert_eq!(selection.preferred()[0].weight, 100);
        assert_eq!(selection.node_list, ["n1".into(), "n2".into()]);
        assert!(selection.requires() && !selection.is_empty());
        assert!(checked(&json!({})).unwrap().is_empty());
        let only_preferred = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}}]}}});
        assert!(!checked(&only_preferred).unwrap().requires());
    }

    #[test]
    fn what_would_fit_no_node_or_means_nothing_is_refused_with_its_path() {
        let term = |expression: serde_json::Value| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
        };
        for (spec, says) in [
            (json!({"nodeSelector": {"a b": "c"}}), "the key \"a b\""),
            (json!({"nodeSelector": {"A/b": "c"}}), "the key \"A/b\""),
            (
                json!({"nodeSelector": {"a": "b c"}}),
                "spec.nodeSelector[\"a\"]",
            ),
            (json!({"nodeList": ["N1"]}), "spec.nodeList[0]"),
            (
                json!({"requiredTopology": "a b"}),
                "spec.requiredTopology: the key",
            ),
            (
                json!({"preferredTopology": ["rack", ""]}),
                "spec.preferredTopology: the key",
            ),
            (
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}),
                "must have a term",
            ),
            (
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}}),
                "must have a term with an expression",
            ),
            (
                term(json!({"key": "a", "operator": "in", "values": ["b"]})),
                "must be one of In, NotIn",
            ),
            (
                term(json!({"key": "a", "operator": "In"})),
                "must have a value for In",
            ),
            (
                term(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
                "must be empty for Exists",
            ),
            (
                term(json!({"key": "a", "operator": "Gt", "values": ["many"]})),
                "must be one whole number for Gt",
            ),
            (
                json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 0, "preference": {"matchFields": [{"key": "spec.x", "operator": "Exists"}]}}]}}}),
                "weight: is 0, must be between 1 and 100",
            ),
        ] {
            let errors = checked(&spec).unwrap_err().join("\n");
            assert!(errors.contains(says), "{spec}: {errors}");
        }
    }
}
