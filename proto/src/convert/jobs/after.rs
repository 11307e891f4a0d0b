//! What a job waits for before it may start.

use muster_core::{
    fleet::{
        job::{Awaited, Phase},
        view::JobView,
    },
    spec::AfterDocument,
};

use super::unix_us;
use crate::v1;

pub(super) fn after_document(after: v1::After) -> AfterDocument {
    AfterDocument {
        job: after.job,
        condition: after.condition,
    }
}

pub(super) fn after_to_wire(after: AfterDocument) -> v1::After {
    v1::After {
        job: after.job,
        condition: after.condition,
    }
}

pub(super) fn not_eligible(view: &JobView) -> Option<v1::NotEligible> {
    let record = &view.record;
    let waits = !record.is_eligible() && !record.ends();
    waits.then(|| v1::NotEligible {
        jobs: record.awaited.iter().map(awaited).collect(),
        start_after_unix_us: unix_us(record.spec.start.start_after),
        since_unix_us: record.created.0,
    })
}

fn awaited(awaited: &Awaited) -> v1::AwaitedJob {
    let end = awaited.end.map(|end| match end.phase {
        Some(Phase::Succeeded) => "Succeeded",
        Some(Phase::Failed) => "Failed",
        Some(Phase::Cancelled) => "Cancelled",
        _ => "Unknown",
    });
    v1::AwaitedJob {
        name: awaited.after.job.clone(),
        uid: awaited.uid.to_string(),
        condition: awaited.after.condition.name().into(),
        end: end.unwrap_or_default().into(),
        ended_unix_us: unix_us(awaited.end.map(|end| end.at)),
    }
}
