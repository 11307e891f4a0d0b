//! Whether a job may start: the jobs that it waits for have ended as asked, and its time has come.
//!
//! Until then it is not *eligible*: it waits for no room, keeps none, and gets no pods. Once it is, it stays so. If one of
//! the jobs has ended otherwise, it never will be, and it fails (as Slurm's `DependencyNeverSatisfied` with
//! `kill_invalid_depend`).

use std::fmt;

use crate::{
    fleet::job::{Awaited, Ending, JobRecord, Phase, Reason, Why},
    spec::AfterCondition,
    time::Timestamp,
};

/// Jobs named in one sentence. A few help a reader.
const NAMED: usize = 8;

impl JobRecord {
    /// Whether it may start, as far as other jobs and its time are concerned.
    pub fn is_eligible(&self) -> bool {
        self.eligible.is_some() || self.spec.start.is_empty()
    }

    /// Since when it could have started, and its deadlines count.
    pub fn counts_since(&self) -> Timestamp {
        let since = self.resumed.max(self.eligible);
        since.unwrap_or(self.created).max(self.created)
    }

    /// The jobs for whose end it still waits.
    pub fn unended(&self) -> impl Iterator<Item = &Awaited> {
        self.awaited.iter().filter(|awaited| awaited.end.is_none())
    }
}

/// Whether a job may start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eligibility {
    /// Nothing holds it back.
    Eligible,
    Waits(WaitsFor),
    /// It never may.
    Never(NeverSatisfied),
}

/// What a job still waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitsFor {
    pub jobs: Vec<Awaited>,
    pub until: Option<Timestamp>,
}

/// A job has ended in another way than one that waits for it asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeverSatisfied {
    pub job: Awaited,
}

/// Judges a job that was not eligible so far.
pub(crate) fn judge(job: &JobRecord, now: Timestamp) -> Eligibility {
    if job.is_eligible() {
        return Eligibility::Eligible;
    }
    let mut awaited = job.awaited.iter();
    if let Some(failed) = awaited.find(|awaited| awaited.holds() == Some(false)) {
        let job = failed.clone();
        return Eligibility::Never(NeverSatisfied { job });
    }
    let jobs: Vec<Awaited> = job.unended().cloned().collect();
    let until = job.spec.start.start_after.filter(|at| *at > now);
    match jobs.is_empty() && until.is_none() {
        true => Eligibility::Eligible,
        false => Eligibility::Waits(WaitsFor { jobs, until }),
    }
}

impl WaitsFor {
    pub(crate) fn why(&self) -> Why {
        match self.jobs.is_empty() {
            true => Why::BeginTime,
            false => Why::Dependency,
        }
    }

    pub(crate) fn reason(&self) -> Reason {
        match self.jobs.is_empty() {
            true => Reason::BeginTime,
            false => Reason::Dependency,
        }
    }
}

/// `waits for job prepare to succeed and until 2026-11-30T18:00:00Z`.
impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("waits ")?;
        let named = self.jobs.iter().take(NAMED).map(|awaited| {
            let after = &awaited.after;
            format!("job {} to {}", after.job, after.condition.verb())
        });
        let named: Vec<String> = named.collect();
        if !named.is_empty() {
            write!(f, "for {}", named.join(", "))?;
        }
        if self.jobs.len() > NAMED {
            write!(f, " and {} more jobs", self.jobs.len() - NAMED)?;
        }
        match (self.until, self.jobs.is_empty()) {
            (Some(at), true) => write!(f, "until {}", at.rfc3339_seconds()),
            (Some(at), false) => write!(f, ", and until {}", at.rfc3339_seconds()),
            (None, _) => Ok(()),
        }
    }
}

/// `it waits for job prepare to succeed, and that has Failed`.
impl fmt::Display for NeverSatisfied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Awaited { after, end, .. } = &self.job;
        let asked = match after.condition {
            AfterCondition::Ended => "end",
            other => other.verb(),
        };
        write!(f, "it waits for job {} to {asked}, and ", after.job)?;
        match end.and_then(|end| end.phase) {
            Some(Phase::Failed) => f.write_str("that has failed"),
            Some(Phase::Succeeded) => f.write_str("that has succeeded"),
            Some(Phase::Cancelled) => f.write_str("that was cancelled"),
            _ => f.write_str("that is gone, and nobody knows how it ended"),
        }
    }
}

impl NeverSatisfied {
    pub(crate) fn ending(&self) -> Ending {
        Ending {
            phase: Phase::Failed,
            reason: Reason::DependencyNeverSatisfied,
            message: format!(
                "{self}; submit {} again, and then this job",
                self.job.after.job
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fleet::job::{AwaitedEnd, tests::record},
        spec::After,
    };

    fn awaited(job: &str, condition: AfterCondition, end: Option<Phase>) -> Awaited {
        Awaited {
            after: After {
                job: job.into(),
                condition,
            },
            uid: job.into(),
            end: end.map(|phase| AwaitedEnd {
                phase: Some(phase),
                at: Timestamp(5),
            }),
        }
    }

    fn waiting(awaited: Vec<Awaited>, start_after: Option<u64>) -> JobRecord {
        let mut job = record();
        job.spec.start.after = awaited.iter().map(|one| one.after.clone()).collect();
        job.spec.start.start_after = start_after.map(Timestamp);
        job.awaited = awaited;
        job
    }

    #[test]
    fn each_condition_takes_the_ends_that_it_names() {
        use {AfterCondition as A, Phase as P};
        for (condition, end, holds) in [
            (A::Succeeded, P::Succeeded, true),
            (A::Succeeded, P::Failed, false),
            (A::Succeeded, P::Cancelled, false),
            (A::Failed, P::Succeeded, false),
            (A::Failed, P::Failed, true),
            (A::Failed, P::Cancelled, false),
            (A::Ended, P::Succeeded, true),
            (A::Ended, P::Failed, true),
            (A::Ended, P::Cancelled, true),
        ] {
            let one = awaited("a", condition, Some(end));
            assert_eq!(one.holds(), Some(holds), "{condition:?} {end:?}");
            let verdict = judge(&waiting(vec![one], None), Timestamp(9));
            match holds {
                true => assert_eq!(verdict, Eligibility::Eligible),
                false => assert!(matches!(verdict, Eligibility::Never(_))),
            }
        }
        assert_eq!(awaited("a", A::Ended, None).holds(), None);
    }

    #[test]
    fn a_job_that_is_gone_has_ended_and_in_no_known_way() {
        let gone = |condition| {
            let mut one = awaited("a", condition, None);
            one.end = Some(AwaitedEnd {
                phase: None,
                at: Timestamp(5),
            });
            one.holds()
        };
        assert_eq!(gone(AfterCondition::Ended), Some(true));
        assert_eq!(gone(AfterCondition::Succeeded), Some(false));
        assert_eq!(gone(AfterCondition::Failed), Some(false));
    }

    #[test]
    fn it_waits_for_all_of_it_and_one_wrong_end_is_enough() {
        use AfterCondition::{Failed, Succeeded};
        let open = awaited("a", Succeeded, None);
        let done = awaited("b", Succeeded, Some(Phase::Succeeded));
        let job = waiting(vec![open.clone(), done.clone()], Some(7_000_000));
        let Eligibility::Waits(waits) = judge(&job, Timestamp(6_000_000)) else {
            panic!("it waits");
        };
        assert_eq!(
            waits.to_string(),
            "waits for job a to succeed, and until 1970-01-01T00:00:07Z"
        );
        assert_eq!(waits.reason(), Reason::Dependency);
        let timed = waiting(vec![done.clone()], Some(7));
        let Eligibility::Waits(waits) = judge(&timed, Timestamp(6)) else {
            panic!("it waits");
        };
        assert_eq!(waits.reason(), Reason::BeginTime);
        assert_eq!(judge(&timed, Timestamp(7)), Eligibility::Eligible);
        let wrong = awaited("c", Failed, Some(Phase::Succeeded));
        let job = waiting(vec![open, done, wrong], None);
        let Eligibility::Never(never) = judge(&job, Timestamp(6)) else {
            panic!("it can never start");
        };
        assert_eq!(
            never.to_string(),
            "it waits for job c to fail, and that has succeeded"
        );
    }

    #[test]
    fn who_is_eligible_stays_so_when_a_clock_goes_back() {
        let mut job = waiting(Vec::new(), Some(7));
        assert!(!job.is_eligible());
        job.eligible = Some(Timestamp(8));
        assert_eq!(judge(&job, Timestamp(1)), Eligibility::Eligible);
        assert!(waiting(Vec::new(), None).is_eligible());
    }
}
