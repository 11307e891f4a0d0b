//! The promises behind which this node never goes back. The agent writes them to disk before it
//! executes the effects that follow from them. So an agent that is killed at any moment comes back
//! and knows at least what it has obeyed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    id::{Generation, JobUid, NodeEpoch, NodeName, Term},
    node::Digest,
    run::{Assignment, Endpoint, Obeyed, RunId},
};

/// How many jobs are remembered. Term and epoch fence whole sessions, so only messages in flight
/// can name an older generation. A node has a few jobs at a time, so 1,000 reach back for days, at
/// about 200 bytes each.
pub const JOBS_MAX: usize = 1_000;

/// The promises of one node. They only grow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    pub node: NodeName,
    pub term: Term,
    pub epoch: NodeEpoch,
    pub jobs: BTreeMap<JobUid, Seen>,
    /// Counts acceptances, to order `jobs` by age.
    #[serde(default)]
    pub clock: u64,
}

/// The newest generation of one job that this node has accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    pub generation: Generation,
    /// `None`: the run was ordered to be dead before it was ever described.
    pub digest: Option<Digest>,
    /// Where the workers meet. It is set before they are started, so from then on they may have
    /// run.
    pub store: Option<Endpoint>,
    /// The run has ended here, and must never be started again.
    pub over: bool,
    /// [`Ledger::clock`] at the last change.
    pub at: u64,
}

/// Why a message is not obeyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    #[error(
        "term {got} is older than {seen}, which this node has obeyed: the coordinator's store was restored from a backup, or an old coordinator still runs"
    )]
    OlderTerm { got: Term, seen: Term },
    #[error(
        "node epoch {got} is older than {seen}, which this node has obeyed: the message is of an older session"
    )]
    OlderEpoch { got: NodeEpoch, seen: NodeEpoch },
    #[error("generation {got} is older than {seen}, which this node has obeyed")]
    OlderGeneration { got: Generation, seen: Generation },
    /// This is an alarm, because every number is given out only once.
    #[error("generation {0} comes with other content than before")]
    OtherContent(Generation),
    /// This is an alarm, because the run's workers were given another address before.
    #[error("generation {generation} shall meet at {got}, was started to meet at {seen}")]
    OtherStore {
        generation: Generation,
        got: Endpoint,
        seen: Endpoint,
    },
    #[error("generation {0} has ended on this node and is not started twice")]
    Over(Generation),
}

impl Ledger {
    pub fn new(node: NodeName) -> Self {
        Self {
            node,
            term: Term(0),
            epoch: NodeEpoch(0),
            jobs: BTreeMap::new(),
            clock: 0,
        }
    }

    /// What this node has obeyed of each job, without details.
    pub fn jobs_seen(&self) -> BTreeMap<JobUid, Obeyed> {
        self.jobs
            .iter()
            .map(|(job, seen)| {
                (
                    job.clone(),
                    Obeyed {
                        generation: seen.generation,
                        over: seen.over,
                    },
                )
            })
            .collect()
    }

    /// Takes the stamp of a session. True: there is something new to persist.
    pub(super) fn accept_stamp(&mut self, term: Term, epoch: NodeEpoch) -> Result<bool, Objection> {
        if term < self.term {
            return Err(Objection::OlderTerm {
                got: term,
                seen: self.term,
            });
        }
        if epoch < self.epoch {
            return Err(Objection::OlderEpoch {
                got: epoch,
                seen: self.epoch,
            });
        }
        let new = (term, epoch) != (self.term, self.epoch);
        (self.term, self.epoch) = (term, epoch);
        Ok(new)
    }

    /// Takes an assignment as its job's newest. True: there is something new to persist.
    pub(super) fn accept(&mut self, assignment: &Assignment) -> Result<bool, Objection> {
        let run = &assignment.run;
        let digest = Digest::of(assignment);
        match self.jobs.get(&run.job) {
            Some(seen) if run.generation < seen.generation => Err(Objection::OlderGeneration {
                got: run.generation,
                seen: seen.generation,
            }),
            Some(seen) if run.generation == seen.generation => match &seen.digest {
                Some(known) if *known != digest => Err(Objection::OtherContent(run.generation)),
                _ if seen.over => Err(Objection::Over(run.generation)),
                _ => Ok(false),
            },
            _ => {
                self.put(
                    run,
                    Seen {
                        generation: run.generation,
                        digest: Some(digest),
                        store: None,
                        over: false,
                        at: 0,
                    },
                );
                Ok(true)
            }
        }
    }

    /// Checks the meeting place of an accepted assignment before its workers are started.
    pub(super) fn accept_store(&self, run: &RunId, store: &Endpoint) -> Result<(), Objection> {
        match self
            .jobs
            .get(&run.job)
            .filter(|seen| seen.generation == run.generation)
            .and_then(|seen| seen.store.as_ref())
        {
            Some(seen) if seen != store => Err(Objection::OtherStore {
                generation: run.generation,
                got: store.clone(),
                seen: seen.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Notes the meeting place of a run that is about to start. True: there is something new to
    /// persist.
    pub(super) fn started(&mut self, run: &RunId, store: &Endpoint) -> bool {
        match self.jobs.get_mut(&run.job) {
            Some(seen) if seen.generation == run.generation && seen.store.is_none() => {
                seen.store = Some(store.clone());
                true
            }
            _ => false,
        }
    }

    /// Notes that a run must never be started (again). True: there is something new to persist.
    pub(super) fn end(&mut self, run: &RunId) -> bool {
        match self.jobs.get_mut(&run.job) {
            Some(seen) if run.generation < seen.generation => false,
            Some(seen) if run.generation == seen.generation => {
                !std::mem::replace(&mut seen.over, true)
            }
            _ => {
                self.put(
                    run,
                    Seen {
                        generation: run.generation,
                        digest: None,
                        store: None,
                        over: true,
                        at: 0,
                    },
                );
                true
            }
        }
    }

    pub(super) fn is_ended(&self, run: &RunId) -> bool {
        self.jobs
            .get(&run.job)
            .is_some_and(|seen| seen.generation == run.generation && seen.over)
    }

    pub(super) fn is_newest(&self, run: &RunId) -> bool {
        self.jobs
            .get(&run.job)
            .is_some_and(|seen| seen.generation == run.generation)
    }

    /// Whether workers of this run may have been started.
    pub(super) fn was_started(&self, run: &RunId) -> bool {
        self.jobs
            .get(&run.job)
            .is_some_and(|seen| seen.generation == run.generation && seen.store.is_some())
    }

    fn put(&mut self, run: &RunId, seen: Seen) {
        self.clock += 1;
        self.jobs.insert(
            run.job.clone(),
            Seen {
                at: self.clock,
                ..seen
            },
        );
        if self.jobs.len() > JOBS_MAX
            && let Some(oldest) = self
                .jobs
                .iter()
                .min_by_key(|(_, seen)| seen.at)
                .map(|(job, _)| job.clone())
        {
            self.jobs.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::turn::tests::assignment;

    #[test]
    fn only_upward() {
        let mut ledger = Ledger::new("n1".into());
        assert_eq!(ledger.accept_stamp(Term(2), NodeEpoch(5)), Ok(true));
        assert_eq!(ledger.accept_stamp(Term(2), NodeEpoch(5)), Ok(false));
        let older = Objection::OlderTerm {
            got: Term(1),
            seen: Term(2),
        };
        assert_eq!(ledger.accept_stamp(Term(1), NodeEpoch(9)), Err(older));
        let older = Objection::OlderEpoch {
            got: NodeEpoch(4),
            seen: NodeEpoch(5),
        };
        assert_eq!(ledger.accept_stamp(Term(3), NodeEpoch(4)), Err(older));
        assert_eq!(
            (ledger.term, ledger.epoch),
            (Term(2), NodeEpoch(5)),
            "a refusal changes nothing"
        );

        assert_eq!(ledger.accept(&assignment("a", 2)), Ok(true));
        assert_eq!(ledger.accept(&assignment("a", 2)), Ok(false));
        let older = Objection::OlderGeneration {
            got: Generation(1),
            seen: Generation(2),
        };
        assert_eq!(ledger.accept(&assignment("a", 1)), Err(older));
        let other = Assignment {
            restart_count: 7,
            ..assignment("a", 2)
        };
        assert_eq!(
            ledger.accept(&other),
            Err(Objection::OtherContent(Generation(2)))
        );
    }

    #[test]
    fn one_meeting_place_per_generation() {
        let mut ledger = Ledger::new("n1".into());
        let run = assignment("a", 1).run;
        let store = |port| Endpoint {
            host: "127.0.0.1".into(),
            port,
        };
        ledger.accept(&assignment("a", 1)).unwrap();
        assert!(ledger.started(&run, &store(1)) && !ledger.started(&run, &store(1)));
        assert_eq!(ledger.accept_store(&run, &store(1)), Ok(()));
        let error = ledger
            .accept_store(&run, &store(2))
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "generation 1 shall meet at 127.0.0.1:2, was started to meet at 127.0.0.1:1"
        );
    }

    #[test]
    fn what_has_ended_stays_so() {
        let mut ledger = Ledger::new("n1".into());
        let run = assignment("a", 3).run;
        assert!(ledger.end(&run) && !ledger.end(&run));
        assert_eq!(
            ledger.accept(&assignment("a", 3)),
            Err(Objection::Over(Generation(3)))
        );
        assert_eq!(ledger.accept(&assignment("a", 4)), Ok(true));
        assert!(!ledger.end(&run), "an older one needs no note");
        assert_eq!(ledger.accept(&assignment("a", 4)), Ok(false));
    }

    #[test]
    fn forgets_the_oldest_beyond_its_bound() {
        let mut ledger = Ledger::new("n1".into());
        for i in 0..JOBS_MAX + 5 {
            ledger.accept(&assignment(&format!("job-{i}"), 1)).unwrap();
        }
        assert_eq!(ledger.jobs.len(), JOBS_MAX);
        assert!(
            !ledger.jobs.contains_key(&JobUid::from("job-4"))
                && ledger.jobs.contains_key(&JobUid::from("job-5"))
        );
    }
}
