//! Who uses the GPUs of a node, and how much: columns of its table.

use muster_proto::v1;

use super::words::{self, or_dash};

const HEADS: [&str; 3] = ["JOB", "BUSY", "USED"];

/// Adds the job that holds each GPU, how busy it is and how much of its memory is used, before the last
/// column, which has the UUIDs.
pub(super) fn with_columns(
    node: &v1::Node,
    mut heads: Vec<&'static str>,
    mut rows: Vec<Vec<String>>,
) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let last = heads.len() - 1;
    heads.splice(last..last, HEADS);
    for row in &mut rows {
        let uuid = row.last().cloned().unwrap_or_default();
        row.splice(last..last, cells(node, &uuid));
    }
    (heads, rows)
}

fn cells(node: &v1::Node, uuid: &str) -> [String; 3] {
    let used = node.usage.as_ref().map(|usage| &usage.gpus);
    let used = used.and_then(|gpus| gpus.iter().find(|gpu| gpu.uuid == uuid));
    let busy = used.and_then(|gpu| gpu.busy_percent);
    let memory = used.and_then(|gpu| gpu.memory);
    let memory = memory.map(|space| words::in_use(&space));
    [
        or_dash(held_by(node, uuid)),
        or_dash(busy.map(|percent| format!("{percent} %"))),
        or_dash(memory.map(words::bytes)),
    ]
}

/// A job in a namespace in which the caller has no role has no name here. While one generation takes the place
/// of another, both are of the same job.
fn held_by(node: &v1::Node, uuid: &str) -> Option<String> {
    let mut runs = node.runs.iter();
    let run = runs.find(|run| run.gpus.iter().any(|gpu| gpu == uuid))?;
    Some(match run.job.as_str() {
        "" => "(a job)".to_owned(),
        job => format!("{}/{job}", run.namespace),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What a run in this phase holds of the node's one GPU.
    pub(crate) fn held(phase: &str) -> Vec<String> {
        let lives = (phase != "Dead").then(|| "GPU-1".to_owned());
        lives.into_iter().collect()
    }

    pub(crate) fn used() -> Vec<v1::GpuUsage> {
        let memory = v1::Space {
            available: 9 << 30,
            total: 80 << 30,
        };
        vec![v1::GpuUsage {
            uuid: "GPU-1".into(),
            memory: Some(memory),
            busy_percent: Some(97),
        }]
    }

    #[test]
    fn what_is_not_known_is_a_dash_and_a_hidden_job_is_a_job() {
        let run = v1::NodeRun {
            gpus: held("Running"),
            ..v1::NodeRun::default()
        };
        let node = v1::Node {
            runs: vec![run],
            ..v1::Node::default()
        };
        assert_eq!(cells(&node, "GPU-1"), ["(a job)", "-", "-"]);
        assert_eq!(cells(&node, "GPU-2"), ["-", "-", "-"]);
        let rows = vec![vec!["0".to_owned(), "GPU-1".to_owned()]];
        let (heads, rows) = with_columns(&node, vec!["INDEX", "UUID"], rows);
        assert_eq!(heads, ["INDEX", "JOB", "BUSY", "USED", "UUID"]);
        assert_eq!(rows, [["0", "(a job)", "-", "-", "GPU-1"]]);
    }
}
