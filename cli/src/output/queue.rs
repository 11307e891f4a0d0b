//! Jobs that wait for nodes, in their order, and those that may not start yet.

use std::cmp::Reverse;

use muster_proto::v1;
use serde::Serialize;

use super::{
    after::{self, NotEligible},
    start::{self, Estimate},
    table::plain,
    words,
};

/// A job that waits. It is also the form of `-o json` and `-o yaml`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Waiting {
    /// From 1, in all namespaces. None: it is not eligible, because it waits for other jobs or for its time.
    position: Option<usize>,
    pub(crate) namespace: String,
    pub(crate) name: String,
    priority: i64,
    /// Members that it wants, and without which it does not start.
    wants: u32,
    least: u32,
    gpus_per_member: u32,
    /// One word. Empty: it is not known yet.
    lacks: String,
    /// Its state's reason: Preempted, if it had nodes before.
    reason: String,
    message: String,
    since: Option<String>,
    /// NAMESPACE/NAME of the job before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<String>,
    /// What it waits for, if it is not eligible.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_eligible: Option<NotEligible>,
    /// When it will start.
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<Estimate>,
    #[serde(skip)]
    start_said: Option<v1::StartEstimate>,
    /// The same in short.
    #[serde(skip)]
    after: String,
    #[serde(skip)]
    since_us: u64,
}

/// Those of these jobs that wait, the first to get nodes in front. Those that are not eligible follow.
pub(crate) fn waiting(jobs: &[v1::Job]) -> Vec<Waiting> {
    let mut all = in_order(jobs);
    let status = |job: &v1::Job| job.status.clone().unwrap_or_default();
    let mut others: Vec<(&v1::Job, v1::JobStatus)> = jobs
        .iter()
        .map(|job| (job, status(job)))
        .filter(|(_, status)| status.not_eligible.is_some() && !status.suspended)
        .collect();
    others.sort_by_key(|(job, _)| (job.created_unix_us, job.uid.clone()));
    all.extend(
        others
            .into_iter()
            .map(|(job, status)| not_eligible(job, status)),
    );
    all
}

/// Adds when they will start.
pub(crate) fn add_starts(waiting: &mut [Waiting], starts: &[v1::JobStart]) {
    for job in waiting {
        let said = start::of(starts, &job.namespace, &job.name);
        job.start = said.map(Estimate::of);
        job.start_said = said.cloned();
    }
}

/// A job that waits for other jobs or for its time.
fn not_eligible(job: &v1::Job, status: v1::JobStatus) -> Waiting {
    let named = job.r#ref.clone().unwrap_or_default();
    let spec = job.spec.as_ref();
    let waits = status.not_eligible.unwrap_or_default();
    Waiting {
        position: None,
        namespace: named.namespace,
        name: named.name,
        priority: spec.and_then(|spec| spec.priority).unwrap_or_default(),
        wants: status.replicas,
        least: spec
            .and_then(|spec| spec.min_replicas)
            .and_then(|least| u32::try_from(least).ok())
            .unwrap_or(status.replicas),
        gpus_per_member: spec
            .and_then(|spec| spec.gpus_per_node)
            .and_then(|gpus| u32::try_from(gpus).ok())
            .unwrap_or_default(),
        lacks: status.reason.clone(),
        reason: status.reason,
        message: status.message,
        since: Some(words::utc(waits.since_unix_us)),
        ahead: None,
        since_us: waits.since_unix_us,
        after: after::names(&waits),
        not_eligible: Some(NotEligible::from(&waits)),
        start: None,
        start_said: None,
    }
}

/// Those that wait for nodes.
fn in_order(jobs: &[v1::Job]) -> Vec<Waiting> {
    let rank = |job: &&v1::Job| {
        let spec = job.spec.as_ref();
        let priority = spec.and_then(|spec| spec.priority).unwrap_or_default();
        (Reverse(priority), job.created_unix_us, job.uid.clone())
    };
    let waits = |job: &&v1::Job| {
        let status = job.status.as_ref();
        status.is_some_and(|status| status.waits_for_room.is_some() && !status.suspended)
    };
    let mut all: Vec<&v1::Job> = jobs.iter().filter(waits).collect();
    all.sort_by_cached_key(rank);
    let mut ahead = None;
    let all = all.into_iter().enumerate().filter_map(|(at, job)| {
        let named = job.r#ref.clone().unwrap_or_default();
        let status = job.status.as_ref()?;
        let waits = status.waits_for_room.as_ref()?;
        let since_us = waits.since_unix_us;
        let own = format!("{}/{}", named.namespace, named.name);
        Some(Waiting {
            position: Some(at + 1),
            namespace: named.namespace,
            name: named.name,
            priority: job
                .spec
                .as_ref()
                .and_then(|spec| spec.priority)
                .unwrap_or_default(),
            wants: status.replicas,
            least: waits.least,
            gpus_per_member: waits.gpus_per_member,
            lacks: waits.lacks.clone(),
            reason: status.reason.clone(),
            message: status.message.clone(),
            since: (since_us > 0).then(|| words::utc(since_us)),
            ahead: ahead.replace(own),
            not_eligible: None,
            start: None,
            start_said: None,
            after: String::new(),
            since_us,
        })
    });
    all.collect()
}

pub(crate) fn heads(wide: bool, namespaced: bool) -> Vec<&'static str> {
    let mut heads = vec!["POSITION"];
    heads.extend(namespaced.then_some("NAMESPACE"));
    heads.extend([
        "NAME", "PRIORITY", "WANTS", "GPUS", "WAITS", "START", "LACKS", "AHEAD",
    ]);
    if wide {
        heads.extend(["BASIS", "REASON", "MESSAGE"]);
    }
    heads
}

impl Waiting {
    pub(crate) fn row(&self, now_us: u64, wide: bool, namespaced: bool) -> Vec<String> {
        // Such a job has no place until it may start.
        let position = self.position.map(|at| at.to_string());
        let mut row = vec![position.unwrap_or_else(|| "not eligible".into())];
        row.extend(namespaced.then(|| self.namespace.clone()));
        let wants = match self.least == self.wants {
            true => self.wants.to_string(),
            false => format!("{}-{}", self.least, self.wants),
        };
        let dash = |text: &str| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text.to_owned()
            }
        };
        row.extend([
            self.name.clone(),
            self.priority.to_string(),
            wants,
            self.gpus_per_member.to_string(),
            words::age(self.since_us, now_us),
            dash(
                &{ self.start_said.as_ref() }
                    .map_or(String::new(), |said| start::when(said, now_us)),
            ),
            dash(&self.lacks),
            dash(self.ahead.as_deref().unwrap_or(&self.after)),
        ]);
        if wide {
            let basis = self.start_said.as_ref().map(|said| plain(&said.basis));
            row.extend([
                dash(&basis.unwrap_or_default()),
                self.reason.clone(),
                plain(&self.message),
            ]);
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, priority: i64, created: u64, waits: bool) -> v1::Job {
        v1::Job {
            r#ref: Some(v1::JobRef {
                namespace: "team-a".into(),
                name: name.into(),
            }),
            created_unix_us: created,
            spec: Some(v1::JobSpec {
                priority: Some(priority),
                ..v1::JobSpec::default()
            }),
            status: Some(v1::JobStatus {
                replicas: 4,
                reason: "BelowMinimum".into(),
                waits_for_room: waits.then(|| v1::WaitsForRoom {
                    lacks: "NodesReserved".into(),
                    since_unix_us: 1_000_000,
                    gpus_per_member: 8,
                    least: 2,
                }),
                ..v1::JobStatus::default()
            }),
            ..v1::Job::default()
        }
    }

    #[test]
    fn the_higher_priority_goes_first_and_then_the_older() {
        let jobs = [
            job("young", 0, 9, true),
            job("runs", 9, 1, false),
            job("old", 0, 2, true),
            job("urgent", 5, 10, true),
        ];
        let mut waiting = waiting(&jobs);
        let start = v1::JobStart {
            r#ref: jobs[3].r#ref.clone(),
            start: Some(v1::StartEstimate {
                at_unix_us: 7_261_000_000,
                basis: "after job team-a/runs (at its deadline)".into(),
                ..v1::StartEstimate::default()
            }),
        };
        add_starts(&mut waiting, &[start]);
        let rows: Vec<Vec<String>> = waiting
            .iter()
            .map(|one| one.row(61_000_000, false, false))
            .collect();
        let table = super::super::table::Table::new(heads(false, false)).render(&rows, true);
        assert_eq!(
            table,
            "\
POSITION   NAME     PRIORITY   WANTS   GPUS   WAITS   START             LACKS           AHEAD
1          urgent   5          2-4     8      60s     ~02:01Z in 120m   NodesReserved   -
2          old      0          2-4     8      60s     -                 NodesReserved   team-a/urgent
3          young    0          2-4     8      60s     -                 NodesReserved   team-a/old
"
        );
        let wide = waiting[0].row(61_000_000, true, false);
        assert_eq!(wide[9], "after job team-a/runs (at its deadline)");
    }

    #[test]
    fn a_job_that_may_not_start_yet_has_no_place() {
        let mut later = job("later", 99, 1, false);
        let status = later.status.as_mut().unwrap();
        status.reason = "Dependency".into();
        status.not_eligible = Some(v1::NotEligible {
            jobs: vec![v1::AwaitedJob {
                name: "prepare".into(),
                condition: "succeeded".into(),
                ..v1::AwaitedJob::default()
            }],
            since_unix_us: 1_000_000,
            ..v1::NotEligible::default()
        });
        let mut held = later.clone();
        held.status.as_mut().unwrap().suspended = true;
        let waiting = waiting(&[later, held, job("old", 0, 2, true)]);
        let rows: Vec<Vec<String>> = waiting
            .iter()
            .map(|one| one.row(61_000_000, false, false))
            .collect();
        let table = super::super::table::Table::new(heads(false, false)).render(&rows, true);
        assert_eq!(
            table,
            "\
POSITION       NAME    PRIORITY   WANTS   GPUS   WAITS   START   LACKS           AHEAD
1              old     0          2-4     8      60s     -       NodesReserved   -
not eligible   later   99         4       0      60s     -       Dependency      prepare
"
        );
    }
}
