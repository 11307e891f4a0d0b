//! The rules of a job, and what they have decided.

use muster_core::{fleet::job::JobRecord, spec::RuleDocument};

use crate::v1;

pub(super) fn rule_document(rule: v1::Rule) -> RuleDocument {
    RuleDocument {
        when: rule.when,
        role: rule.role,
        codes: rule.codes,
        signals: rule.signals,
        of: rule.of,
        then: rule.then,
        limit: rule.limit,
        within: rule.within,
    }
}

pub(super) fn rule_to_wire(rule: RuleDocument) -> v1::Rule {
    v1::Rule {
        when: rule.when,
        role: rule.role,
        codes: rule.codes,
        signals: rule.signals,
        of: rule.of,
        then: rule.then,
        limit: rule.limit,
        within: rule.within,
    }
}

pub(super) fn rules_status(record: &JobRecord) -> Vec<v1::RuleStatus> {
    let spent = |index| {
        record
            .rule_restarts
            .get(&index)
            .map_or(0, |spent| spent.count)
    };
    let all = record.spec.rules.iter().enumerate();
    all.map(|(index, rule)| v1::RuleStatus {
        text: rule.named(index),
        restarts: spent(index),
    })
    .collect()
}
