//! What is left of jobs that are over: as a row, as a document, as a page, and summed up.

use std::collections::BTreeMap;

use muster_core::fleet::history::{By, Sum, Total};
use muster_proto::v1;
use serde::Serialize;

use super::{listing::Listed, table::plain, words};

/// Nodes and causes that one cell names.
const NAMED: usize = 3;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document {
    kind: &'static str,
    namespace: String,
    name: String,
    uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    spec_hash: String,
    command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    submitted: Option<String>,
    started: Option<String>,
    /// None: the job is not over.
    ended: Option<String>,
    state: &'static str,
    reason: String,
    message: String,
    members: u32,
    gpus: u32,
    nodes_used: u32,
    nodes: Vec<String>,
    generations: u64,
    restarts: u32,
    incidents: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goodput: Option<f64>,
    gpu_seconds: f64,
    /// By state.
    time: BTreeMap<String, Seconds>,
    /// By cause.
    lost: BTreeMap<String, Seconds>,
    culprits: Vec<Culprit>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Seconds {
    seconds: f64,
    gpu_seconds: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Culprit {
    node: String,
    incidents: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<u32>,
    #[serde(flatten)]
    cost: Seconds,
}

impl From<v1::TimeSum> for Seconds {
    fn from(sum: v1::TimeSum) -> Self {
        Self {
            seconds: sum.us as f64 / 1e6,
            gpu_seconds: sum.gpu_us as f64 / 1e6,
        }
    }
}

impl From<v1::HistoryRecord> for Document {
    fn from(record: v1::HistoryRecord) -> Self {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let time = |us: u64| (us > 0).then(|| words::utc(us));
        let named = record.r#ref.clone().unwrap_or_default();
        let sums = |sums: BTreeMap<String, v1::TimeSum>| {
            let all = sums.into_iter();
            all.map(|(name, sum)| (name, Seconds::from(sum))).collect()
        };
        Self {
            kind: "HistoryRecord",
            namespace: named.namespace,
            name: named.name,
            owner: some(&record.owner),
            image: some(&record.image),
            submitted: time(record.created_unix_us),
            started: time(record.started_unix_us),
            ended: time(record.finished_unix_us),
            state: words::phase(record.phase),
            gpu_seconds: life(&record).gpu_us as f64 / 1e6,
            goodput: record.goodput,
            last_step: record.last_step,
            uid: record.uid,
            spec_hash: record.spec_hash,
            command: record.command,
            reason: record.reason,
            message: record.message,
            members: record.members,
            gpus: record.gpus,
            nodes_used: record.nodes_used,
            nodes: record.nodes,
            generations: record.generations,
            restarts: record.restarts,
            incidents: record.incidents,
            time: sums(record.states),
            lost: sums(record.lost),
            culprits: record.culprits.into_iter().map(Culprit::from).collect(),
        }
    }
}

impl From<v1::Culprit> for Culprit {
    fn from(culprit: v1::Culprit) -> Self {
        Self {
            node: culprit.node,
            incidents: culprit.incidents,
            ranks: culprit.ranks,
            cost: culprit.cost.unwrap_or_default().into(),
        }
    }
}

impl Listed for v1::HistoryRecord {
    type Document = Document;

    fn kind(&self) -> &'static str {
        "job"
    }

    fn heads(wide: bool, namespaced: bool) -> Vec<&'static str> {
        let mut heads = if namespaced {
            vec!["NAMESPACE"]
        } else {
            Vec::new()
        };
        heads.extend([
            "NAME", "OWNER", "STATE", "START", "END", "ELAPSED", "NODES", "GPUS",
        ]);
        heads.extend(["GPU-HOURS", "GOODPUT", "RESTARTS", "REASON"]);
        if wide {
            heads.extend(["SUBMIT", "LOST", "CAUSES", "CULPRITS", "UID", "COMMAND"]);
        }
        heads
    }

    fn row(&self, now_us: u64, wide: bool, namespaced: bool) -> Vec<String> {
        let named = self.r#ref.clone().unwrap_or_default();
        let mut row = if namespaced {
            vec![named.namespace]
        } else {
            Vec::new()
        };
        let end = match self.finished_unix_us {
            0 => now_us,
            at => at,
        };
        row.extend([
            named.name,
            self.owner.clone(),
            words::phase(self.phase).into(),
            seconds(self.started_unix_us),
            seconds(self.finished_unix_us),
            words::age(self.started_unix_us, end),
            self.members.to_string(),
            self.gpus.to_string(),
            hours(life(self).gpu_us),
            goodput(self.goodput),
            self.restarts.to_string(),
            self.reason.clone(),
        ]);
        if wide {
            row.extend([
                seconds(self.created_unix_us),
                span(lost(self).us),
                longest(&self.lost),
                culprits(self),
                self.uid.clone(),
                self.command.clone(),
            ]);
        }
        row
    }

    fn name(&self) -> String {
        self.r#ref.clone().unwrap_or_default().name
    }

    fn key(&self) -> String {
        self.uid.clone()
    }
}

fn sum<'a>(sums: impl Iterator<Item = &'a v1::TimeSum>) -> v1::TimeSum {
    sums.fold(v1::TimeSum::default(), |sum, more| v1::TimeSum {
        us: sum.us.saturating_add(more.us),
        gpu_us: sum.gpu_us.saturating_add(more.gpu_us),
    })
}

fn life(record: &v1::HistoryRecord) -> v1::TimeSum {
    sum(record.states.values())
}

fn lost(record: &v1::HistoryRecord) -> v1::TimeSum {
    sum(record.lost.values())
}

/// `NodeLost 14m, Scaled 12s`: what cost most.
fn longest(sums: &BTreeMap<String, v1::TimeSum>) -> String {
    let mut all: Vec<_> = sums.iter().collect();
    all.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.us));
    let named = all.iter().take(NAMED);
    let named: Vec<String> = named
        .map(|(name, sum)| format!("{name} {}", span(sum.us)))
        .collect();
    named.join(", ")
}

/// `node-7 (rank 3) 14m`: who cost most.
fn culprits(record: &v1::HistoryRecord) -> String {
    let one = |culprit: &v1::Culprit| {
        let ranks: Vec<String> = culprit.ranks.iter().map(u32::to_string).collect();
        let ranks = match ranks.len() {
            0 => String::new(),
            1 => format!(" (rank {})", ranks[0]),
            _ => format!(" (ranks {})", ranks.join(", ")),
        };
        let cost = culprit.cost.unwrap_or_default();
        format!("{}{ranks} {}", culprit.node, span(cost.us))
    };
    let named: Vec<String> = record.culprits.iter().take(NAMED).map(one).collect();
    named.join(", ")
}

fn seconds(unix_us: u64) -> String {
    match unix_us {
        0 => String::new(),
        at => words::utc_seconds(at),
    }
}

fn hours(gpu_us: u64) -> String {
    match gpu_us {
        0 => String::new(),
        us => format!("{:.1}", us as f64 / 3.6e9),
    }
}

/// `97.2 %`, and `100.0 %` only if nothing is missing.
fn goodput(part: Option<f64>) -> String {
    part.map_or_else(String::new, |part| {
        format!("{:.1} %", (part * 1_000.0).floor() / 10.0)
    })
}

fn span(us: u64) -> String {
    match us {
        0 => String::new(),
        us => words::age(1, us.saturating_add(1)),
    }
}

/// What is left of one job, for `muster describe`.
pub(crate) fn describe(record: &v1::HistoryRecord) -> String {
    let named = record.r#ref.clone().unwrap_or_default();
    let mut page = String::new();
    let mut field = |name: &str, value: &str| {
        if !value.is_empty() {
            page.push_str(&format!("{:20}{}\n", format!("{name}:"), plain(value)));
        }
    };
    let some = |number: u64| match number {
        0 => String::new(),
        number => number.to_string(),
    };
    field("Name", &named.name);
    field("Namespace", &named.namespace);
    field("UID", &record.uid);
    field("Owner", &record.owner);
    field("Submitted", &seconds(record.created_unix_us));
    field("Started", &seconds(record.started_unix_us));
    field("Ended", &seconds(record.finished_unix_us));
    field("State", words::phase(record.phase));
    field("Reason", &record.reason);
    field("Message", &record.message);
    field("Command", &record.command);
    field("Image", &record.image);
    field("Spec hash", &record.spec_hash);
    field("Nodes", &nodes(record));
    field("GPUs", &some(record.gpus.into()));
    field("Generations", &some(record.generations));
    field("Restarts", &record.restarts.to_string());
    field("Incidents", &record.incidents.to_string());
    field(
        "Last step",
        &record
            .last_step
            .map_or_else(String::new, |step| step.to_string()),
    );
    field("GPU hours", &hours(life(record).gpu_us));
    field("Goodput", &goodput(record.goodput));
    field("Time", &longest(&record.states));
    field("Lost", &longest(&record.lost));
    field("Culprits", &culprits(record));
    page
}

fn nodes(record: &v1::HistoryRecord) -> String {
    let more = (record.nodes_used as usize).saturating_sub(record.nodes.len());
    let named = record.nodes.join(", ");
    match more {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// The table of `muster history --by`.
pub(crate) struct Totals {
    pub(crate) by: By,
}

/// One row of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TotalRow {
    name: String,
    jobs: u32,
    failed: u32,
    /// None: the sum has losses only.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goodput: Option<f64>,
    lost_seconds: f64,
    lost_gpu_seconds: f64,
}

impl From<Total> for TotalRow {
    fn from(total: Total) -> Self {
        let goodput = total.goodput();
        let is_whole = total.life != Sum::default();
        Self {
            name: total.name,
            jobs: total.jobs,
            failed: total.failed,
            gpu_seconds: is_whole.then_some(total.life.gpu_time.as_secs_f64()),
            goodput,
            lost_seconds: total.lost.time.as_secs_f64(),
            lost_gpu_seconds: total.lost.gpu_time.as_secs_f64(),
        }
    }
}

impl TotalRow {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Totals {
    pub(crate) fn heads(&self) -> Vec<&'static str> {
        let (first, is_whole) = match self.by {
            By::Owner => ("OWNER", true),
            By::Namespace => ("NAMESPACE", true),
            By::Node => ("NODE", false),
            By::Cause => ("CAUSE", false),
        };
        let mut heads = vec![first, "JOBS", "FAILED"];
        if is_whole {
            heads.extend(["GPU-HOURS", "GOODPUT"]);
        }
        heads.extend(["LOST", "LOST-GPU-HOURS"]);
        heads
    }

    pub(crate) fn row(&self, row: &TotalRow) -> Vec<String> {
        let us = |seconds: f64| (seconds * 1e6) as u64;
        let mut cells = vec![
            row.name.clone(),
            row.jobs.to_string(),
            row.failed.to_string(),
        ];
        if matches!(self.by, By::Owner | By::Namespace) {
            cells.push(hours(us(row.gpu_seconds.unwrap_or_default())));
            cells.push(goodput(row.goodput));
        }
        cells.push(span(us(row.lost_seconds)));
        cells.push(hours(us(row.lost_gpu_seconds)));
        cells
    }
}

/// A job that is deleted, in the columns of a job.
pub(crate) fn as_job(record: v1::HistoryRecord) -> v1::Job {
    let members = i64::from(record.members.max(1));
    v1::Job {
        r#ref: record.r#ref,
        uid: record.uid,
        spec: Some(v1::JobSpec {
            replicas: Some(members),
            ..v1::JobSpec::default()
        }),
        status: Some(v1::JobStatus {
            phase: record.phase,
            reason: record.reason,
            message: record.message,
            generation: record.generations,
            restarts: record.restarts,
            last_step: record.last_step,
            finished_unix_us: record.finished_unix_us,
            replicas: record.members,
            ..v1::JobStatus::default()
        }),
        created_unix_us: record.created_unix_us,
        owner: record.owner,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{json, table::Table};

    const HOUR: u64 = 3_600_000_000;

    fn gpu_hours(hours: u64) -> Sum {
        let gpu_time = std::time::Duration::from_secs(hours * 3_600);
        Sum {
            time: gpu_time / 8,
            gpu_time,
        }
    }

    fn time(us: u64, gpus: u64) -> v1::TimeSum {
        v1::TimeSum {
            us,
            gpu_us: us * gpus,
        }
    }

    fn record() -> v1::HistoryRecord {
        v1::HistoryRecord {
            number: 7,
            r#ref: Some(v1::JobRef {
                namespace: "team-a".into(),
                name: "digits".into(),
            }),
            uid: "0197".into(),
            owner: "ann".into(),
            spec_hash: "00ff".into(),
            command: "python3 train.py".into(),
            created_unix_us: 1_795_260_928_000_000,
            started_unix_us: 1_795_260_988_000_000,
            finished_unix_us: 1_795_260_988_000_000 + 2 * HOUR,
            phase: v1::JobPhase::Failed.into(),
            reason: "RestartBudgetSpent".into(),
            message: "it has failed 4 times".into(),
            members: 2,
            gpus: 16,
            nodes_used: 40,
            nodes: vec!["n1".into(), "n2".into()],
            generations: 5,
            restarts: 4,
            incidents: 5,
            last_step: Some(4_000),
            states: [
                ("training".to_owned(), time(HOUR, 16)),
                ("recovering".to_owned(), time(HOUR, 16)),
            ]
            .into(),
            lost: [("NodeLost".to_owned(), time(HOUR, 16))].into(),
            culprits: vec![v1::Culprit {
                node: "n2".into(),
                incidents: 3,
                ranks: vec![8, 9],
                cost: Some(time(HOUR / 2, 16)),
            }],
            goodput: Some(0.5),
            ..v1::HistoryRecord::default()
        }
    }

    #[test]
    fn a_row_has_what_an_accountant_asks_for() {
        let heads = v1::HistoryRecord::heads(true, true);
        let row = record().row(0, true, true);
        let cells: BTreeMap<_, _> = heads
            .into_iter()
            .zip(row.iter().map(String::as_str))
            .collect();
        for (head, cell) in [
            ("NAMESPACE", "team-a"),
            ("OWNER", "ann"),
            ("STATE", "Failed"),
            ("START", "2026-11-21T11:36:28Z"),
            ("END", "2026-11-21T13:36:28Z"),
            ("ELAPSED", "120m"),
            ("GPU-HOURS", "32.0"),
            ("GOODPUT", "50.0 %"),
            ("LOST", "60m"),
            ("CAUSES", "NodeLost 60m"),
            ("CULPRITS", "n2 (ranks 8, 9) 30m"),
        ] {
            assert_eq!(cells[head], cell, "{head}");
        }
        let live = v1::HistoryRecord {
            finished_unix_us: 0,
            ..record()
        };
        let row = live.row(1_795_260_988_000_000 + HOUR, false, false);
        assert_eq!(
            (row[4].as_str(), row[5].as_str()),
            ("", "60m"),
            "its time so far"
        );
    }

    #[test]
    fn a_page_says_how_many_nodes_it_does_not_name() {
        let page = describe(&record());
        assert!(
            page.contains("Nodes:              n1, n2 and 38 more\n"),
            "{page}"
        );
        assert!(
            page.contains("Culprits:           n2 (ranks 8, 9) 30m\n"),
            "{page}"
        );
        assert!(
            !page.contains("Image"),
            "what is not known has no line: {page}"
        );
        let hostile = v1::HistoryRecord {
            command: "a\n\u{1b}[2Jb".into(),
            ..record()
        };
        assert!(describe(&hostile).contains("Command:            a  [2Jb\n"));
    }

    #[test]
    fn a_document_has_the_sums_in_seconds() {
        let text = json(&Document::from(record()));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["gpuSeconds"], 115_200.0);
        assert_eq!(value["time"]["training"]["seconds"], 3_600.0);
        assert_eq!(value["culprits"][0]["gpuSeconds"], 28_800.0);
        assert_eq!(
            (&value["state"], &value["lastStep"]),
            (&"Failed".into(), &4_000.into())
        );
    }

    #[test]
    fn sums_by_node_have_losses_only() {
        let total = |name: &str, hours| {
            TotalRow::from(Total {
                name: name.into(),
                jobs: 3,
                failed: 1,
                lost: gpu_hours(hours),
                ..Total::default()
            })
        };
        let totals = Totals { by: By::Node };
        let rows = [totals.row(&total("n7", 12)), totals.row(&total("", 2))];
        let text = Table::new(totals.heads()).render(&rows, true);
        assert_eq!(
            text,
            "NODE   JOBS   FAILED   LOST   LOST-GPU-HOURS\nn7     3      1        90m    12.0\n-      3      1        15m    2.0\n"
        );
    }

    #[test]
    fn a_deleted_job_fits_among_the_others() {
        let row = as_job(record()).row(1_795_260_928_000_000 + HOUR, false, false);
        assert_eq!(row[..5], ["digits", "Failed", "0/2", "2", "4"]);
    }
}
