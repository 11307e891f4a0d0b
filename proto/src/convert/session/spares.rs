//! What an agent reports about the launchers that it was asked to have ready.

use muster_core::{
    id::JobUid,
    run::{SpareReport, SpareState},
};

use super::{
    bounds::{NAME_MAX, SENTENCE_MAX, count, malformed, required_text, sentence},
    run_report::RUNS_MAX,
};
use crate::{convert::Malformed, v1, v1::spare::State};

pub fn spares_to_wire(spares: &[SpareReport]) -> v1::Spares {
    let one = |spare: &SpareReport| {
        let state = match &spare.state {
            SpareState::Ready => State::Ready(v1::Ready {}),
            SpareState::Without(why) => State::Without(sentence(why)),
            SpareState::Refused(why) => State::Refused(sentence(why)),
        };
        v1::Spare {
            job_uid: spare.job.to_string(),
            state: Some(state),
        }
    };
    v1::Spares {
        spares: spares.iter().map(one).collect(),
    }
}

/// A launcher whose state this build does not know counts as still being made.
pub fn spares_from_wire(wire: v1::Spares) -> Result<Vec<SpareReport>, Malformed> {
    count("spares", wire.spares.len(), RUNS_MAX)?;
    let mut spares: Vec<SpareReport> = Vec::with_capacity(wire.spares.len());
    for (i, spare) in wire.spares.into_iter().enumerate() {
        let field = |part: &str| format!("spares[{i}].{part}");
        let job = JobUid::from(required_text(&field("job_uid"), spare.job_uid, NAME_MAX)?);
        if spares.iter().any(|known| known.job == job) {
            return Err(malformed(field("job_uid"), "is listed before"));
        }
        let state = match spare.state {
            Some(State::Ready(v1::Ready {})) => SpareState::Ready,
            Some(State::Without(why)) => {
                SpareState::Without(required_text(&field("without"), why, SENTENCE_MAX)?)
            }
            Some(State::Refused(why)) => {
                SpareState::Refused(required_text(&field("refused"), why, SENTENCE_MAX)?)
            }
            None => continue,
        };
        spares.push(SpareReport { job, state });
    }
    Ok(spares)
}
