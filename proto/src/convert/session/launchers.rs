//! What an agent reports about the launchers that it was asked to have ready.

use muster_core::{
    id::JobUid,
    run::{LauncherReport, LauncherState},
};

use super::{
    bounds::{NAME_MAX, SENTENCE_MAX, count, malformed, required_text, sentence},
    run_report::RUNS_MAX,
};
use crate::{convert::Malformed, v1, v1::launcher::State};

pub fn launchers_to_wire(launchers: &[LauncherReport]) -> v1::Launchers {
    let one = |launcher: &LauncherReport| {
        let state = match &launcher.state {
            LauncherState::Ready => State::Ready(v1::Ready {}),
            LauncherState::Without(why) => State::Without(sentence(why)),
            LauncherState::Refused(why) => State::Refused(sentence(why)),
        };
        v1::Launcher {
            job_uid: launcher.job.to_string(),
            state: Some(state),
        }
    };
    v1::Launchers {
        launchers: launchers.iter().map(one).collect(),
    }
}

/// A launcher whose state this build does not know counts as still being made.
pub fn launchers_from_wire(wire: v1::Launchers) -> Result<Vec<LauncherReport>, Malformed> {
    count("launchers", wire.launchers.len(), RUNS_MAX)?;
    let mut launchers: Vec<LauncherReport> = Vec::with_capacity(wire.launchers.len());
    for (i, launcher) in wire.launchers.into_iter().enumerate() {
        let field = |part: &str| format!("launchers[{i}].{part}");
        let job = JobUid::from(required_text(
            &field("job_uid"),
            launcher.job_uid,
            NAME_MAX,
        )?);
        if launchers.iter().any(|known| known.job == job) {
            return Err(malformed(field("job_uid"), "is listed before"));
        }
        let state = match launcher.state {
            Some(State::Ready(v1::Ready {})) => LauncherState::Ready,
            Some(State::Without(why)) => {
                LauncherState::Without(required_text(&field("without"), why, SENTENCE_MAX)?)
            }
            Some(State::Refused(why)) => {
                LauncherState::Refused(required_text(&field("refused"), why, SENTENCE_MAX)?)
            }
            None => continue,
        };
        launchers.push(LauncherReport { job, state });
    }
    Ok(launchers)
}
