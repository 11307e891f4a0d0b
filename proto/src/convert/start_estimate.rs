//! When a job that waits will start. Only the coordinator says it.

use muster_core::{
    fleet::{
        expected_end::Basis,
        start_estimate::{Before, NoEstimate, Start},
    },
    id::JobName,
    time::Timestamp,
};

use super::jobs::job_ref;
use crate::v1;

/// For a caller who may see these jobs.
pub fn start(start: &Start, sees: impl Fn(&JobName) -> bool) -> v1::StartEstimate {
    let after = match start {
        Start::Expected(estimate) => {
            let seen = estimate.after.iter().filter(|one| sees(&one.job));
            seen.map(end_before).collect()
        }
        Start::Unknown(NoEstimate::UnknownEnds { jobs, .. }) => {
            let unknown = |job| v1::EndBefore {
                r#ref: Some(job_ref(job)),
                ..v1::EndBefore::default()
            };
            jobs.iter().filter(|job| sees(job)).map(unknown).collect()
        }
        Start::Unknown(_) => Vec::new(),
    };
    let unknown = match start {
        Start::Expected(_) => "",
        Start::Unknown(why) => why.word(),
    };
    v1::StartEstimate {
        at_unix_us: start.at().map_or(0, |Timestamp(at)| at),
        basis: start.basis(&sees),
        unknown: unknown.into(),
        after,
    }
}

fn end_before(before: &Before) -> v1::EndBefore {
    let of = v1::EndBefore {
        r#ref: Some(job_ref(&before.job)),
        at_unix_us: before.end.at.0,
        ..v1::EndBefore::default()
    };
    match before.end.basis {
        Basis::Deadline => v1::EndBefore {
            basis: "deadline".into(),
            ..of
        },
        Basis::Measured(measured) => v1::EndBefore {
            basis: "measured".into(),
            jobs: measured.jobs,
            shortest_us: measured.shortest.as_micros() as u64,
            longest_us: measured.longest.as_micros() as u64,
            same_spec: measured.same_spec,
            ..of
        },
    }
}
