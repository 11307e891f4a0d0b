//! Which nodes a job may have. It crosses the wire unchecked, as the rest of a document.

use muster_core::spec::{
    Affinity, Selection, Toleration,
    selection::{Expression, NodeAffinity, NodeSelectorTerms, Preferred, Term},
};

use crate::v1;

pub(super) fn affinity(affinity: v1::NodeAffinity) -> Affinity {
    let preferred = |preferred: v1::PreferredNodes| Preferred {
        weight: preferred.weight,
        preference: preferred.preference.map(term).unwrap_or_default(),
    };
    let required = affinity.required.map(|required| NodeSelectorTerms {
        node_selector_terms: required.terms.into_iter().map(term).collect(),
    });
    Affinity {
        node_affinity: Some(NodeAffinity {
            required,
            preferred: affinity.preferred.into_iter().map(preferred).collect(),
        }),
    }
}

pub(super) fn affinity_to_wire(affinity: NodeAffinity) -> v1::NodeAffinity {
    let preferred = |preferred: Preferred| v1::PreferredNodes {
        weight: preferred.weight,
        preference: Some(term_to_wire(preferred.preference)),
    };
    let required = affinity.required.map(|required| v1::NodeSelectorTerms {
        terms: required
            .node_selector_terms
            .into_iter()
            .map(term_to_wire)
            .collect(),
    });
    v1::NodeAffinity {
        required,
        preferred: affinity.preferred.into_iter().map(preferred).collect(),
    }
}

pub(super) fn tolerations(all: Vec<v1::Toleration>) -> Vec<Toleration> {
    all.into_iter().map(toleration).collect()
}

pub(super) fn tolerations_to_wire(all: Vec<Toleration>) -> Vec<v1::Toleration> {
    all.into_iter().map(toleration_to_wire).collect()
}

fn toleration(one: v1::Toleration) -> Toleration {
    Toleration {
        key: one.key,
        operator: one.operator,
        value: one.value,
        effect: one.effect,
    }
}

fn toleration_to_wire(one: Toleration) -> v1::Toleration {
    v1::Toleration {
        key: one.key,
        operator: one.operator,
        value: one.value,
        effect: one.effect,
    }
}

/// The document of a checked affinity.
pub(super) fn checked(selection: &Selection) -> Option<Affinity> {
    let node_affinity = selection.affinity.clone()?;
    Some(Affinity {
        node_affinity: Some(node_affinity),
    })
}

fn term(term: v1::NodeSelectorTerm) -> Term {
    let expression = |expression: v1::NodeExpression| Expression {
        key: expression.key,
        operator: expression.operator,
        values: expression.values,
    };
    Term {
        match_expressions: term.match_expressions.into_iter().map(expression).collect(),
        match_fields: term.match_fields.into_iter().map(expression).collect(),
    }
}

fn term_to_wire(term: Term) -> v1::NodeSelectorTerm {
    let expression = |expression: Expression| v1::NodeExpression {
        key: expression.key,
        operator: expression.operator,
        values: expression.values,
    };
    v1::NodeSelectorTerm {
        match_expressions: term.match_expressions.into_iter().map(expression).collect(),
        match_fields: term.match_fields.into_iter().map(expression).collect(),
    }
}
