//! When a job that waits will start, as far as that can be said, and from what it is known. `foresee` finds it.
//!
//! It is an estimate: it holds if jobs end when they are [expected](crate::fleet::expected_end) to, no new one comes, and nothing fails. Where
//! it would be a guess there is none, and a reason instead.

use std::time::Duration;

use crate::{
    fleet::{
        expected_end::{Basis, ExpectedEnd, Measured},
        held_back::HeldBack,
    },
    id::JobName,
    time::Timestamp,
};

/// Jobs that an answer names. Beyond that it counts them.
pub const NAMED_MAX: usize = 8;

/// Jobs that a sentence names.
const SAID_MAX: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    Expected(StartEstimate),
    Unknown(NoEstimate),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartEstimate {
    pub at: Timestamp,
    /// The jobs for whose nodes it waits, and when each ends: those that end last, the last first. Empty: it waits only for its time.
    pub after: Vec<Before>,
    /// How many more there are.
    pub more: u32,
}

/// A job that ends before another starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    pub job: JobName,
    pub end: ExpectedEnd,
}

/// Why there is no estimate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoEstimate {
    /// It does not start as long as these jobs run, and nobody knows when they end. Some of them may still wait themselves.
    UnknownEnds {
        jobs: Vec<JobName>,
        more: u32,
    },
    /// It would not start even on an empty fleet.
    Never,
    HeldBack(HeldBack),
    /// Its own deadline comes first.
    TooLate {
        deadline: Timestamp,
    },
    /// So many others come before it that it was not looked for.
    TooFarBack,
    /// So many jobs end before it starts that the search was given up.
    TooManyEnds,
}

impl Start {
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Start::Expected(estimate) => Some(estimate.at),
            Start::Unknown(_) => None,
        }
    }

    /// On what it is based, or why there is none, for a reader who may see these jobs.
    pub fn basis(&self, sees: impl Fn(&JobName) -> bool) -> String {
        let named = |job: &JobName| match sees(job) {
            true => format!("job {job}"),
            false => "a job of another namespace".to_owned(),
        };
        match self {
            Start::Expected(estimate) if estimate.after.is_empty() => {
                "it waits for its time, or for workers that are being stopped".to_owned()
            }
            Start::Expected(estimate) => {
                let after = estimate.after.iter();
                let said = after.map(|one| format!("{} ({})", named(&one.job), because(&one.end)));
                format!("after {}", listed(said, estimate.more))
            }
            Start::Unknown(NoEstimate::UnknownEnds { jobs, .. }) if jobs.is_empty() => {
                "nobody knows when there is room".to_owned()
            }
            Start::Unknown(NoEstimate::UnknownEnds { jobs, more }) => format!(
                "nobody knows when {} will have ended: no deadline, and no job like it ran longer",
                listed(jobs.iter().map(named), *more)
            ),
            Start::Unknown(NoEstimate::Never) => {
                "it would not start even on an empty fleet".to_owned()
            }
            Start::Unknown(NoEstimate::HeldBack(held_back)) => held_back.to_string(),
            Start::Unknown(NoEstimate::TooLate { deadline }) => {
                format!("its deadline comes first: {}", deadline.rfc3339_seconds())
            }
            Start::Unknown(NoEstimate::TooFarBack) => "too many others come before it".to_owned(),
            Start::Unknown(NoEstimate::TooManyEnds) => "too many others end before it".to_owned(),
        }
    }
}

impl NoEstimate {
    /// The reason as one word.
    pub fn word(&self) -> &'static str {
        match self {
            NoEstimate::UnknownEnds { .. } => "UnknownEnds",
            NoEstimate::Never => "Never",
            NoEstimate::HeldBack(_) => "HeldBack",
            NoEstimate::TooLate { .. } => "TooLate",
            NoEstimate::TooFarBack => "TooFarBack",
            NoEstimate::TooManyEnds => "TooManyEnds",
        }
    }
}

/// `a`, `a and b`, or `a, b, c and 4 more jobs`. `more`: beside all of these.
fn listed(all: impl ExactSizeIterator<Item = String>, more: u32) -> String {
    let more = more as usize + all.len().saturating_sub(SAID_MAX);
    let mut said: Vec<String> = all.take(SAID_MAX).collect();
    match more {
        0 => {}
        1 => said.push("1 more job".to_owned()),
        _ => said.push(format!("{more} more jobs")),
    }
    let last = said.pop().unwrap_or_default();
    match said.is_empty() {
        true => last,
        false => format!("{} and {last}", said.join(", ")),
    }
}

/// From what an end is known.
fn because(end: &ExpectedEnd) -> String {
    let Measured {
        same_spec,
        jobs,
        shortest,
        longest,
    } = match end.basis {
        Basis::Deadline => return "at its deadline".to_owned(),
        Basis::Measured(measured) => measured,
    };
    let of = match same_spec {
        true => "of the same spec",
        false => "of this name",
    };
    let (shortest, longest) = (rough(shortest), rough(longest));
    match (jobs, shortest == longest) {
        (1, _) => format!("1 job {of} took {longest}"),
        (_, true) => format!("{jobs} jobs {of} took {longest}"),
        (_, false) => format!("{jobs} jobs {of} took {shortest} to {longest}"),
    }
}

/// `55s`, `41m`, `3h12m` or `5d`: a measure needs no more.
fn rough(time: Duration) -> String {
    let (seconds, minutes, hours) = (time.as_secs(), time.as_secs() / 60, time.as_secs() / 3_600);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{minutes}m"),
        7_200..172_800 if minutes % 60 > 0 => format!("{hours}h{}m", minutes % 60),
        7_200..172_800 => format!("{hours}h"),
        _ => format!("{}d", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> JobName {
        JobName {
            namespace: "team-a".into(),
            name: name.into(),
        }
    }

    fn before(name: &str, basis: Basis) -> Before {
        Before {
            job: named(name),
            end: ExpectedEnd {
                at: Timestamp(5),
                basis,
            },
        }
    }

    fn took(same_spec: bool, jobs: u32, shortest: u64, longest: u64) -> Basis {
        Basis::Measured(Measured {
            same_spec,
            jobs,
            shortest: Duration::from_secs(shortest),
            longest: Duration::from_secs(longest),
        })
    }

    #[test]
    fn an_estimate_says_on_what_it_is_based() {
        let start = |after: Vec<Before>, more| {
            let at = Timestamp(5);
            Start::Expected(StartEstimate { at, after, more }).basis(|job| job.name != "secret")
        };
        assert_eq!(
            start(Vec::new(), 0),
            "it waits for its time, or for workers that are being stopped"
        );
        let one = vec![before("a", took(true, 3, 2_460, 3_300))];
        assert_eq!(
            start(one, 0),
            "after job team-a/a (3 jobs of the same spec took 41m to 55m)"
        );
        let two = vec![
            before("secret", Basis::Deadline),
            before("b", took(false, 1, 11_520, 11_520)),
        ];
        assert_eq!(
            start(two.clone(), 0),
            "after a job of another namespace (at its deadline) and job team-a/b (1 job of this name took 3h12m)"
        );
        let many = [two.clone(), two].concat();
        assert!(start(many, 4).ends_with(" and 5 more jobs"));
    }

    #[test]
    fn without_an_estimate_it_says_why() {
        let why = |why| Start::Unknown(why).basis(|_| true);
        let jobs = vec![named("a"), named("b")];
        assert_eq!(
            why(NoEstimate::UnknownEnds { jobs, more: 1 }),
            "nobody knows when job team-a/a, job team-a/b and 1 more job will have ended: no deadline, and no job like it ran longer"
        );
        assert_eq!(
            why(NoEstimate::HeldBack(HeldBack::Suspended)),
            "it is suspended"
        );
        let deadline = Timestamp(1_000_000);
        assert_eq!(
            why(NoEstimate::TooLate { deadline }),
            "its deadline comes first: 1970-01-01T00:00:01Z"
        );
    }
}
