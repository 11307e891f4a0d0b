//! What the loops about jobs, pods and Workloads tell each other about queues. Each part has one writer and
//! is a whole state, so a reader that was busy misses nothing.
//!
//! | part | written by | read by |
//! |---|---|---|
//! | the queue that each object names | `jobs` | Workloads, pods |
//! | how many pods each job has | `pods` | Workloads |
//! | where each job stands in its queue | Workloads | jobs, pods |

use std::collections::BTreeMap;

use muster_core::id::{JobName, JobUid};
use serde_json::Value;
use tokio::sync::watch;

use crate::{follow::Crowded, owner::JobKey, rules::queue::Admission};

/// The label of an object that names its queue, as for all jobs of Kueue.
pub(super) const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// What one object with pods of its own asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) job: JobName,
    pub(super) queue: Option<String>,
    pub(super) suspend: bool,
}

/// Where one job stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Standing {
    pub(super) admission: Admission,
    pub(super) placement: Placement,
    /// The version of Kueue's objects.
    pub(super) version: &'static str,
}

/// What an admission says of the pods of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Placement {
    /// The ResourceFlavors that were assigned: the nodes on which the job has quota.
    pub(super) flavors: Vec<String>,
    /// What admission checks add to the pods.
    pub(super) updates: Vec<Value>,
}

pub(super) type Places = BTreeMap<JobUid, Place>;
/// How many pods jobs have. Those that are not named have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) of_jobs: BTreeMap<JobKey, usize>,
    /// Jobs of these namespaces may have more.
    pub(super) crowded: Crowded,
}

impl Counts {
    /// `None`: that is not known.
    pub(super) fn of(&self, job: &JobKey) -> Option<usize> {
        let is_known = !self.crowded.contains(&job.namespace);
        is_known.then(|| self.of_jobs.get(job).copied().unwrap_or(0))
    }
}

pub(super) type Standings = BTreeMap<JobUid, Standing>;

#[derive(Debug, Default)]
pub struct Desk {
    /// `None`: the objects were not read yet.
    places: watch::Sender<Option<Places>>,
    /// `None`: the pods were not read yet.
    counts: watch::Sender<Option<Counts>>,
    standings: watch::Sender<Standings>,
}

impl Desk {
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn places(&self) -> watch::Receiver<Option<Places>> {
        self.places.subscribe()
    }

    pub(super) fn counts(&self) -> watch::Receiver<Option<Counts>> {
        self.counts.subscribe()
    }

    pub(super) fn standings(&self) -> watch::Receiver<Standings> {
        self.standings.subscribe()
    }

    /// All objects were read. Those of which `is_job` says that their job is there are kept, as a list may
    /// lack an object by mistake.
    pub(super) fn list(&self, all: Places, is_job: impl Fn(&JobUid) -> bool) {
        self.places.send_if_modified(|places| {
            let before = places.take().unwrap_or_default();
            let kept = before.iter().filter(|(uid, _)| is_job(uid));
            let kept = kept.map(|(uid, place)| (uid.clone(), place.clone()));
            let now: Places = kept.chain(all).collect();
            let changed = now != before;
            *places = Some(now);
            changed || before.is_empty()
        });
    }

    /// `None`: the object is gone.
    pub(super) fn put(&self, uid: &JobUid, place: Option<Place>) {
        self.places.send_if_modified(|places| {
            let Some(places) = places else { return false };
            match place {
                Some(place) if places.get(uid) == Some(&place) => false,
                Some(place) => {
                    places.insert(uid.clone(), place);
                    true
                }
                None => places.remove(uid).is_some(),
            }
        });
    }

    pub(super) fn count(&self, now: Counts) {
        self.counts.send_if_modified(|counts| {
            let changed = counts.as_ref() != Some(&now);
            *counts = Some(now);
            changed
        });
    }

    /// `None`: the job is in no queue, and never was.
    pub(super) fn stands(&self, uid: &JobUid, now: Option<Standing>) {
        self.standings.send_if_modified(|standings| {
            if standings.get(uid) == now.as_ref() {
                return false;
            }
            match now {
                Some(now) => drop(standings.insert(uid.clone(), now)),
                None => drop(standings.remove(uid)),
            }
            true
        });
    }

    /// Where a job stands whose object names a queue.
    pub(super) fn admission(&self, uid: &JobUid) -> Admission {
        let standings = self.standings.borrow();
        let standing = standings.get(uid);
        standing.map_or(Admission::Unknown, |standing| standing.admission.clone())
    }

    /// The additions to the next pod of a job, with the version of Kueue's objects. `None`: the job is to get
    /// none now.
    pub(super) fn placement(&self, uid: &JobUid) -> Option<(&'static str, Placement)> {
        let places = self.places.borrow();
        let place = places.as_ref()?.get(uid)?;
        if place.queue.is_none() {
            return Some(Default::default());
        }
        let standings = self.standings.borrow();
        let standing = standings.get(uid)?;
        let is_admitted = matches!(standing.admission, Admission::Admitted(_));
        is_admitted.then(|| (standing.version, standing.placement.clone()))
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::queue::Said;

    use super::*;

    fn uid(uid: &str) -> JobUid {
        JobUid::from(uid.to_owned())
    }

    fn place(queue: Option<&str>) -> Place {
        Place {
            job: JobName {
                namespace: "team-a".into(),
                name: "digits".into(),
            },
            queue: queue.map(str::to_owned),
            suspend: false,
        }
    }

    fn standing(admission: Admission) -> Option<Standing> {
        Some(Standing {
            admission,
            placement: Placement {
                flavors: vec!["spot".into()],
                updates: Vec::new(),
            },
            version: "v1beta2",
        })
    }

    #[test]
    fn a_pod_is_made_for_a_job_without_a_queue_or_with_an_admission() {
        let (desk, a) = (Desk::new(), uid("a"));
        assert_eq!(desk.placement(&a), None, "the objects are not read yet");
        desk.list([(a.clone(), place(None))].into(), |_| false);
        assert_eq!(desk.placement(&a), Some(("", Placement::default())));
        assert_eq!(desk.placement(&uid("b")), None);
        desk.put(&a, Some(place(Some("gpus"))));
        assert_eq!(
            (desk.placement(&a), desk.admission(&a)),
            (None, Admission::Unknown)
        );
        desk.stands(&a, standing(Admission::Waits(Said::new("Pending", ""))));
        assert_eq!(desk.placement(&a), None);
        desk.stands(&a, standing(Admission::Admitted(2)));
        assert_eq!(desk.placement(&a).unwrap().1.flavors, ["spot"]);
        desk.stands(&a, standing(Admission::Unknown));
        assert_eq!(desk.placement(&a), None);
    }

    #[test]
    fn a_list_that_lacks_an_object_takes_nothing_from_its_job() {
        let (desk, a, b) = (Desk::new(), uid("a"), uid("b"));
        let all: Places = [(a.clone(), place(None)), (b.clone(), place(None))].into();
        desk.list(all, |_| false);
        desk.list(BTreeMap::new(), |uid| *uid == a);
        assert!(desk.placement(&a).is_some() && desk.placement(&b).is_none());
        desk.put(&a, None);
        assert!(desk.placement(&a).is_none());
    }

    #[test]
    fn the_pods_of_a_crowded_namespace_are_not_counted() {
        let key = JobKey::new(&place(None).job, &uid("a"));
        let mut counts = Counts::default();
        assert_eq!(counts.of(&key), Some(0));
        counts.of_jobs.insert(key.clone(), 2);
        assert_eq!(counts.of(&key), Some(2));
        counts.crowded.insert("team-a".into());
        assert_eq!(counts.of(&key), None);
    }

    #[test]
    fn nobody_is_woken_for_what_is_not_new() {
        let (desk, a) = (Desk::new(), uid("a"));
        let key = JobKey::new(&place(None).job, &a);
        let counted = |count| Counts {
            of_jobs: [(key.clone(), count)].into(),
            crowded: Crowded::new(),
        };
        let (mut places, mut counts, mut standings) =
            (desk.places(), desk.counts(), desk.standings());
        desk.list([(a.clone(), place(None))].into(), |_| false);
        desk.count(counted(1));
        desk.stands(&a, standing(Admission::Unknown));
        places.borrow_and_update();
        counts.borrow_and_update();
        standings.borrow_and_update();
        desk.put(&a, Some(place(None)));
        desk.list([(a.clone(), place(None))].into(), |_| false);
        desk.count(counted(1));
        desk.stands(&a, standing(Admission::Unknown));
        let woken = |changed: Result<bool, _>| {
            changed.unwrap_or_else(|e: watch::error::RecvError| panic!("{e}"))
        };
        assert!(!woken(places.has_changed()) && !woken(counts.has_changed()));
        assert!(!woken(standings.has_changed()));
    }
}
