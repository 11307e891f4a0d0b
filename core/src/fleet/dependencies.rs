//! The jobs that other jobs wait for: found by name at a submission, and noted in the records of those that wait when they
//! have ended. What follows from it is decided by `eligible`.

use std::collections::BTreeSet;

use crate::{
    fleet::{
        job::{Awaited, AwaitedEnd, JobRecord, Stage},
        output::Refusal,
        scratch::Scratch,
        state::Fleet,
        word,
    },
    id::{JobName, JobUid},
    time::Timestamp,
};

impl Fleet {
    /// The jobs that this one waits for, with the ends that are known. Each must exist, or be in the history. So no job
    /// can wait for one that waits for it.
    ///
    /// For a job of an object the history does not count: objects of a pipeline that is applied again come in any order,
    /// and the first would take the end of the last time for that of its new neighbour.
    pub(crate) fn awaited_by(&self, job: &JobRecord) -> Result<Vec<Awaited>, Refusal> {
        let after = job.spec.start.after.iter().enumerate();
        let found = after.map(|(at, after)| {
            let name = JobName {
                namespace: job.name.namespace.clone(),
                name: after.job.clone(),
            };
            let awaited = |uid: &JobUid, end| Awaited {
                after: after.clone(),
                uid: uid.clone(),
                end,
            };
            if let Some(other) = self
                .uid_by_name
                .get(&name)
                .and_then(|uid| self.jobs.get(uid))
            {
                return Ok(awaited(&other.uid, end_of(other)));
            }
            let over = self.history.newest_of(&name);
            if let Some(over) = over.filter(|_| !job.is_of_object()) {
                let end = AwaitedEnd {
                    phase: Some(over.phase),
                    at: over.finished,
                };
                return Ok(awaited(&over.key.0, Some(end)));
            }
            let message = format!(
                "job {name} not found{}; submit it first (muster get jobs, muster history)",
                match job.is_of_object() {
                    true => "",
                    false => ", and it is not in the history of jobs that are over",
                }
            );
            Err(Refusal::Invalid {
                field: format!("spec.after[{at}].job"),
                message,
            })
        });
        found.collect()
    }

    /// Notes the ends of jobs in the records of those that wait for them, and returns whose records.
    pub(crate) fn note_ends_of_awaited(&mut self, scratch: &mut Scratch) -> BTreeSet<JobUid> {
        let mut noted = BTreeSet::new();
        let mut none_left = Vec::new();
        for uid in &self.awaiting {
            let Some(job) = self.jobs.get(uid).filter(|job| !job.ends()) else {
                none_left.push(uid.clone());
                continue;
            };
            if word::halted_by(&self.halted, &self.nodes, job).is_some() {
                continue;
            }
            let ends: Vec<Option<AwaitedEnd>> = {
                let end = |one: &Awaited| self.end_of_awaited(one, scratch.now);
                job.awaited.iter().map(end).collect()
            };
            let is_news = ends
                .iter()
                .zip(&job.awaited)
                .any(|(end, one)| *end != one.end);
            if ends.iter().all(Option::is_some) {
                none_left.push(uid.clone());
            }
            if is_news {
                scratch.changes.touch_job(job);
                let job = self.jobs.get_mut(uid).expect("it was just seen");
                let all = job.awaited.iter_mut().zip(ends);
                all.for_each(|(one, end)| one.end = end);
                noted.insert(uid.clone());
            }
        }
        none_left.iter().for_each(|uid| {
            self.awaiting.remove(uid);
        });
        noted
    }

    fn end_of_awaited(&self, awaited: &Awaited, now: Timestamp) -> Option<AwaitedEnd> {
        awaited.end.or_else(|| match self.jobs.get(&awaited.uid) {
            Some(other) => end_of(other),
            // A job is deleted only when it is over, and its end was noted then. This one went in another way.
            None => Some(AwaitedEnd {
                phase: None,
                at: now,
            }),
        })
    }
}

/// How a job ended, once none of its processes is left on a node that can be asked.
fn end_of(job: &JobRecord) -> Option<AwaitedEnd> {
    let Stage::Over(end) = job.stage() else {
        return None;
    };
    Some(AwaitedEnd {
        phase: Some(end.phase),
        at: job.finished.unwrap_or(job.created),
    })
}
