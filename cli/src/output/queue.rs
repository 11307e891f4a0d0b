//! Jobs that wait for nodes, in their order, and those that may not start yet: as a table and as documents. Their order and
//! their words are those of the page.

use muster_page::waiting::{Place, Waiting};
use serde::Serialize;

use super::{after::NotEligible, start::Estimate, table::plain, words};

/// A job that waits, in the form of `-o json` and `-o yaml`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document<'j> {
    /// From 1, in all namespaces. None: it is not eligible, because it waits for other jobs or for its time.
    position: Option<usize>,
    namespace: &'j str,
    name: &'j str,
    priority: i64,
    /// Members that it wants, and without which it does not start.
    wants: u32,
    least: u32,
    gpus_per_member: u32,
    /// One word. Empty: it is not known yet.
    lacks: &'j str,
    /// Its state's reason: Preempted, if it had nodes before.
    reason: &'j str,
    message: &'j str,
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
}

/// The documents of these jobs.
pub(crate) fn documents<'j>(waiting: &[Waiting<'j>]) -> Vec<Document<'j>> {
    waiting.iter().map(Document::from).collect()
}

impl<'j> From<&Waiting<'j>> for Document<'j> {
    fn from(job: &Waiting<'j>) -> Self {
        let (position, ahead, not_eligible) = match job.place {
            Place::InQueue { position, ahead } => (Some(position), ahead, None),
            Place::NotEligible(waits) => (None, None, Some(NotEligible::from(waits))),
            Place::HeldBack => (None, None, None),
        };
        Self {
            position,
            namespace: job.namespace,
            name: job.name,
            priority: job.priority,
            wants: job.wants,
            least: job.least,
            gpus_per_member: job.gpus_per_member,
            lacks: job.lacks,
            reason: job.reason,
            message: job.message,
            since: (job.since_us > 0).then(|| words::utc(job.since_us)),
            ahead: ahead.map(|(namespace, name)| format!("{namespace}/{name}")),
            not_eligible,
            start: job.start.map(Estimate::of),
        }
    }
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

/// The cells of a job below these heads.
pub(crate) fn row(job: &Waiting<'_>, now_us: u64, wide: bool, namespaced: bool) -> Vec<String> {
    let dash = |text: &str| match text {
        "" => "-".to_owned(),
        text => text.to_owned(),
    };
    let mut row = vec![job.position()];
    row.extend(namespaced.then(|| job.namespace.to_owned()));
    let ahead: Vec<String> = job.ahead().into_iter().map(|one| one.text).collect();
    row.extend([
        job.name.to_owned(),
        job.priority.to_string(),
        job.nodes(),
        job.gpus_per_member.to_string(),
        words::age(job.since_us, now_us),
        dash(&job.starts(now_us)),
        dash(job.lacks),
        dash(&ahead.join(",")),
    ]);
    if wide {
        row.extend([
            plain(job.basis()),
            job.reason.to_owned(),
            plain(job.message),
        ]);
    }
    row
}

#[cfg(test)]
mod tests {
    use muster_page::waiting::{add_starts, in_order};
    use muster_proto::v1;

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
        let mut waiting = in_order(&jobs, &[], "");
        let start = v1::JobStart {
            r#ref: jobs[3].r#ref.clone(),
            start: Some(v1::StartEstimate {
                at_unix_us: 7_261_000_000,
                basis: "after job team-a/runs (at its deadline)".into(),
                ..v1::StartEstimate::default()
            }),
        };
        let starts = [start];
        add_starts(&mut waiting, &starts);
        let rows: Vec<Vec<String>> = waiting
            .iter()
            .map(|one| row(one, 61_000_000, false, false))
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
        let wide = row(&waiting[0], 61_000_000, true, false);
        assert_eq!(wide[9], "after job team-a/runs (at its deadline)");
    }

    #[test]
    fn the_coordinators_order_goes_before_priority_and_age() {
        let jobs = [
            job("old", 0, 2, true),
            job("young", 0, 9, true),
            job("new", 5, 10, true),
        ];
        let order = [1, 0].map(|place: usize| jobs[place].r#ref.clone().unwrap());
        let waiting = in_order(&jobs, &order, "");
        let names: Vec<&str> = waiting.iter().map(|one| one.name).collect();
        assert_eq!(
            names,
            ["young", "old", "new"],
            "it has not heard of the last"
        );
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
        let jobs = [later, held, job("old", 0, 2, true)];
        let waiting = in_order(&jobs, &[], "");
        let rows: Vec<Vec<String>> = waiting
            .iter()
            .map(|one| row(one, 61_000_000, false, false))
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
