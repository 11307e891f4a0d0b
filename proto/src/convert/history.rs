//! What is left of jobs that are over, as users see it, and back.

use std::{collections::BTreeMap, time::Duration};

use muster_core::{
    fleet::{
        history::{Culprit, HistoryRecord, Sum, Wanted, Who},
        job::Phase,
    },
    id::{JobName, NodeName, label_error},
    time::Timestamp,
};

use super::{Malformed, jobs};
use crate::v1;

pub fn record(record: &HistoryRecord) -> v1::HistoryRecord {
    let unix_us = |at: Option<Timestamp>| at.map_or(0, |at| at.0);
    v1::HistoryRecord {
        number: record.number,
        r#ref: Some(jobs::job_ref(&record.name)),
        uid: record.uid.to_string(),
        owner: record.owner_in_words(),
        spec_hash: record.spec_hash.clone(),
        command: record.command.clone(),
        image: record.image.clone().unwrap_or_default(),
        created_unix_us: record.created.0,
        started_unix_us: unix_us(record.started),
        finished_unix_us: unix_us(record.finished),
        phase: jobs::phase(record.phase).into(),
        reason: record.reason.to_string(),
        message: record.message.clone(),
        members: record.members,
        gpus: record.gpus,
        nodes_used: record.nodes_used,
        nodes: record.nodes.iter().map(ToString::to_string).collect(),
        generations: record.generations,
        restarts: record.restarts,
        incidents: record.incidents,
        last_step: record.last_step,
        states: sums(&record.states),
        lost: sums(&record.lost),
        culprits: record.culprits.iter().map(culprit).collect(),
        goodput: record.goodput(),
    }
}

fn sums(sums: &BTreeMap<String, Sum>) -> BTreeMap<String, v1::TimeSum> {
    let all = sums.iter();
    all.map(|(name, sum)| (name.clone(), to_wire(*sum)))
        .collect()
}

fn to_wire(sum: Sum) -> v1::TimeSum {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    v1::TimeSum {
        us: us(sum.time),
        gpu_us: us(sum.gpu_time),
    }
}

fn culprit(culprit: &Culprit) -> v1::Culprit {
    v1::Culprit {
        node: culprit.node.to_string(),
        incidents: culprit.incidents,
        ranks: culprit.ranks.clone(),
        cost: Some(to_wire(culprit.sum)),
    }
}

/// What a request asks for. `now`: for periods that end now.
pub fn wanted(request: &v1::ListHistoryRequest, now: Timestamp) -> Result<Wanted, Malformed> {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    for (field, text) in [("namespace", &request.namespace), ("name", &request.name)] {
        if let Some(message) = given(text).and_then(|text| label_error(&text)) {
            return Err(Malformed {
                field: field.into(),
                message,
            });
        }
    }
    let at = |us: u64| (us > 0).then_some(Timestamp(us));
    let within = at(now.0.saturating_sub(request.within_us)).filter(|_| request.within_us > 0);
    let mut phases = Vec::new();
    for number in &request.phases {
        let phase = v1::JobPhase::try_from(*number).ok().and_then(phase);
        phases.push(phase.ok_or_else(|| Malformed {
            field: "phases".into(),
            message: format!("{number} is no phase of a job"),
        })?);
    }
    Ok(Wanted {
        namespace: given(&request.namespace),
        name: given(&request.name),
        uid: given(&request.uid).map(Into::into),
        owner: given(&request.owner),
        node: given(&request.node).map(NodeName::from),
        phases,
        since: at(request.since_unix_us).max(within),
        until: at(request.until_unix_us),
    })
}

fn phase(phase: v1::JobPhase) -> Option<Phase> {
    const ALL: [Phase; 8] = [
        Phase::Pending,
        Phase::Forming,
        Phase::Running,
        Phase::Recovering,
        Phase::Stopping,
        Phase::Succeeded,
        Phase::Failed,
        Phase::Cancelled,
    ];
    ALL.into_iter().find(|one| jobs::phase(*one) == phase)
}

/// What the sums over many jobs need of a record.
pub fn who(record: &v1::HistoryRecord) -> Who {
    let sum = |sum: &v1::TimeSum| Sum {
        time: Duration::from_micros(sum.us),
        gpu_time: Duration::from_micros(sum.gpu_us),
    };
    let sums = |sums: &BTreeMap<String, v1::TimeSum>| {
        let all = sums.iter();
        all.map(|(name, one)| (name.clone(), sum(one))).collect()
    };
    let culprits = record.culprits.iter();
    Who {
        name: record.r#ref.as_ref().map_or_else(
            || JobName {
                namespace: String::new(),
                name: String::new(),
            },
            |named| JobName {
                namespace: named.namespace.clone(),
                name: named.name.clone(),
            },
        ),
        owner: record.owner.clone(),
        failed: record.phase() == v1::JobPhase::Failed,
        states: sums(&record.states),
        lost: sums(&record.lost),
        culprits: culprits
            .map(|one| {
                (
                    one.node.clone(),
                    one.cost.as_ref().map_or(Sum::default(), sum),
                )
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_or_its_field_is_named() {
        let now = Timestamp(1_000_000);
        let ask = |change: fn(&mut v1::ListHistoryRequest)| {
            let mut request = v1::ListHistoryRequest::default();
            change(&mut request);
            wanted(&request, now)
        };
        let all = ask(|_| ()).unwrap();
        assert!(all.namespace.is_none() && all.since.is_none() && all.phases.is_empty());
        let some = ask(|request| {
            request.phases = vec![v1::JobPhase::Failed.into()];
            (request.since_unix_us, request.within_us) = (5, 999_000);
        });
        let some = some.unwrap();
        assert_eq!(
            (some.phases, some.since),
            (vec![Phase::Failed], Some(Timestamp(1_000)))
        );
        for (change, field) in [
            (
                (|request| request.namespace = "A/b".into()) as fn(&mut v1::ListHistoryRequest),
                "namespace",
            ),
            (|request| request.name = "../x".into(), "name"),
            (|request| request.phases = vec![99], "phases"),
            (|request| request.phases = vec![0], "phases"),
        ] {
            assert_eq!(ask(change).unwrap_err().field, field);
        }
    }
}
