//! What the pods of a job leave behind when it is over: why it ended, and what broke it before.
//! Kubernetes shows it in the status of each pod's container.

use crate::{
    fleet::{
        job::{JobRecord, Phase},
        receipt::{Charged, Incident},
    },
    node_object::cut,
    run::LAST_WORDS_MAX,
};

/// A job has three restarts by default, so these are usually all failures that ended it.
const FAILURES: usize = 4;

/// Its first line says how the job ended. The failures that the job was charged with follow, the newest
/// first, because the end is what may be cut off.
pub(crate) fn of(job: &JobRecord) -> String {
    let Some(end) = &job.ending else {
        return String::new();
    };
    let how = match end.phase {
        Phase::Succeeded => "has succeeded",
        Phase::Cancelled => "ended",
        _ => "has failed",
    };
    let mut words = format!("job {} {how}: {}", job.name, end.message);
    if end.phase == Phase::Failed {
        let mine = |incident: &&Incident| incident.charged == Charged::Job;
        for incident in job.incidents.iter().rev().filter(mine).take(FAILURES) {
            let at = incident.event_at.rfc3339_seconds();
            let line = format!("\n{at} {:?}: {}", incident.cause, incident.message);
            words.push_str(&line);
        }
    }
    cut(&words, LAST_WORDS_MAX)
}
