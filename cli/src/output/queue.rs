//! Jobs that wait for nodes, in their order.

use std::cmp::Reverse;

use muster_proto::v1;
use serde::Serialize;

use super::{table::plain, words};

/// A job that waits. It is also the form of `-o json` and `-o yaml`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Waiting {
    /// From 1, in all namespaces.
    position: usize,
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
    #[serde(skip)]
    since_us: u64,
}

/// Those of these jobs that wait, the first to get nodes in front.
pub(crate) fn waiting(jobs: &[v1::Job]) -> Vec<Waiting> {
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
            position: at + 1,
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
            since_us,
        })
    });
    all.collect()
}

pub(crate) fn heads(wide: bool, namespaced: bool) -> Vec<&'static str> {
    let mut heads = vec!["POSITION"];
    heads.extend(namespaced.then_some("NAMESPACE"));
    heads.extend([
        "NAME", "PRIORITY", "WANTS", "GPUS", "WAITS", "LACKS", "AHEAD",
    ]);
    if wide {
        heads.extend(["REASON", "MESSAGE"]);
    }
    heads
}

impl Waiting {
    pub(crate) fn row(&self, now_us: u64, wide: bool, namespaced: bool) -> Vec<String> {
        let mut row = vec![self.position.to_string()];
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
            dash(&self.lacks),
            dash(self.ahead.as_deref().unwrap_or_default()),
        ]);
        if wide {
            row.extend([self.reason.clone(), plain(&self.message)]);
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
        let waiting = waiting(&jobs);
        let rows: Vec<Vec<String>> = waiting
            .iter()
            .map(|one| one.row(61_000_000, false, false))
            .collect();
        let table = super::super::table::Table::new(heads(false, false)).render(&rows, true);
        assert_eq!(
            table,
            "\
POSITION   NAME     PRIORITY   WANTS   GPUS   WAITS   LACKS           AHEAD
1          urgent   5          2-4     8      60s     NodesReserved   -
2          old      0          2-4     8      60s     NodesReserved   team-a/urgent
3          young    0          2-4     8      60s     NodesReserved   team-a/old
"
        );
    }
}
