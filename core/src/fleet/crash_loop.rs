//! Judges whether a job seems unable to start at all, because of a wrong path, a missing package or
//! an argument that it does not take.
//!
//! The answer is a sentence for people. It stops nothing: a file system that is not mounted yet
//! looks the same, and then a restart helps.

use std::time::Duration;

use crate::fleet::{job::CrashLoop, job::JobRecord};

/// This many like failures in a row are reported. It is two, because the first failure may be
/// chance and the restart budget is small.
const ALIKE_MIN: u32 = 2;

/// A program that fails later than this did start. Importing a large environment from a network
/// disk takes half of it.
pub(crate) const EARLY: Duration = Duration::from_secs(120);

impl CrashLoop {
    /// What to tell people, once it is likely enough.
    pub(crate) fn sentence(&self) -> Option<String> {
        let Self { times, within, .. } = self;
        let seconds = within.as_secs() + 1;
        (*times >= ALIKE_MIN).then(|| {
            format!(
                "the last {times} starts failed alike within {seconds} s, and no step was ever seen: it may not be able to start"
            )
        })
    }

    /// Whether it has just become likely enough.
    pub(crate) fn is_new(&self) -> bool {
        self.times == ALIKE_MIN
    }
}

/// Notes a failure that is charged to the job. `symptom`: how its program ended, if a program did.
/// `lasted`: how long that, or the whole generation, had run.
pub(crate) fn note(record: &mut JobRecord, symptom: Option<&str>, lasted: Duration) {
    let early = record.furthest_step.is_none() && !record.has_trained && lasted < EARLY;
    let before = record.crash_loop.take();
    let Some(symptom) = symptom.filter(|_| early) else {
        return;
    };
    let before = before.filter(|before| similar(&before.symptom, symptom));
    let (times, longest) =
        before.map_or((0, Duration::ZERO), |before| (before.times, before.within));
    record.crash_loop = Some(CrashLoop {
        times: times + 1,
        within: longest.max(lasted),
        symptom: symptom.to_owned(),
    });
}

/// Whether two symptoms are the same without their digits: addresses, ports and times differ each
/// time.
pub(crate) fn similar(one: &str, other: &str) -> bool {
    fn words(text: &str) -> impl Iterator<Item = char> {
        text.chars().filter(|c| !c.is_ascii_digit())
    }
    words(one).eq(words(other))
}
