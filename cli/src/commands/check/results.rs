//! From the lines that the processes of one job have printed, and its end, to what core judges.

use std::time::Duration;

use muster_core::{
    check::{Member, Own, Together, Trial},
    exit::Exit,
    id::NodeName,
};
use muster_proto::v1::JobStatus;
use serde::Deserialize;

use crate::commands::follow;

/// A line of `nodes.py`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    muster_check: Stage,
    node: String,
    rank: u32,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    why: String,
    #[serde(default)]
    seconds: f64,
    #[serde(default)]
    wrong: u64,
    #[serde(default)]
    of: u64,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    world: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Stage {
    Unknown,
    Matmul,
    AllReduce,
}

/// Reads a line of a log. `None`: something else has printed it.
pub(super) fn line(text: &str) -> Option<Line> {
    serde_json::from_str(text.trim()).ok()
}

/// How a job ended.
pub(super) struct End<'a> {
    pub(super) status: &'a JobStatus,
    /// It ran until its time was over.
    pub(super) out_of_time: bool,
}

/// What came of a job on these nodes, with so many processes on each.
pub(super) fn trial(nodes: &[NodeName], procs: u32, lines: &[Line], end: &End<'_>) -> Trial {
    let members = nodes.iter().map(|node| Member {
        node: node.clone(),
        own: own(node, nodes.len() == 1, procs, lines, end),
    });
    let together = match nodes.len() {
        1 => Together::NotTried,
        many => together(procs as usize * many, lines, end),
    };
    Trial {
        members: members.collect(),
        together,
    }
}

fn own(node: &NodeName, is_alone: bool, procs: u32, lines: &[Line], end: &End<'_>) -> Own {
    let of = |stage: Stage| {
        let lines = lines.iter();
        lines.filter(move |line| line.muster_check == stage && line.node == node.as_str())
    };
    if let Some(line) = of(Stage::Unknown).next() {
        return Own::Unknown(line.why.clone());
    }
    let result = judged(of(Stage::Matmul), procs);
    if let Some(Err(own)) = result {
        return own;
    }
    if let Some(Ok(time)) = result {
        // With several processes a node alone reduces too, over its own links.
        return match is_alone && procs > 1 {
            true => match together(procs as usize, lines, end) {
                Together::Wrong(how) => {
                    Own::Wrong(format!("all-reduce among its own processes, {how}"))
                }
                Together::Failed(how) => {
                    Own::Failed(format!("all-reduce among its own processes, {how}"))
                }
                Together::Silent => Own::Silent,
                Together::Right { .. } | Together::NotTried => Own::Right { time },
            },
            false => Own::Right { time },
        };
    }
    if end.out_of_time {
        return Own::Silent;
    }
    let culprit = follow::culprit(&end.status.ranks).filter(|rank| rank.node == node.as_str());
    if let Some(rank) = culprit {
        let error = Some(rank.first_error.as_str()).filter(|error| !error.is_empty());
        let error = error.map(|error| format!(" ({error})")).unwrap_or_default();
        return Own::Failed(format!(
            "rank {} ended with {}{error}",
            rank.rank, rank.state
        ));
    }
    Own::Unknown(ended(end.status))
}

/// The time of the slowest process, or what is wrong. `None`: not all have told.
fn judged<'a>(lines: impl Iterator<Item = &'a Line>, procs: u32) -> Option<Result<Duration, Own>> {
    let (mut told, mut slowest) = (0, 0.0_f64);
    for line in lines {
        if let Some(error) = &line.error {
            let how = format!("rank {}: {error}", line.rank);
            return Some(Err(Own::Failed(how)));
        }
        if line.wrong > 0 {
            return Some(Err(Own::Wrong(wrong(line))));
        }
        told += 1;
        slowest = slowest.max(line.seconds);
    }
    let time = Duration::try_from_secs_f64(slowest).unwrap_or_default();
    (told >= procs).then_some(Ok(time))
}

fn wrong(line: &Line) -> String {
    format!(
        "rank {} has {} of {} numbers wrong",
        line.rank, line.wrong, line.of
    )
}

fn together(procs: usize, lines: &[Line], end: &End<'_>) -> Together {
    let told: Vec<&Line> = { lines.iter() }
        .filter(|line| line.muster_check == Stage::AllReduce)
        .collect();
    if let Some(line) = told.iter().find(|line| line.wrong > 0) {
        return Together::Wrong(wrong(line));
    }
    // One that speaks of a lost peer is as a rule the other one's victim.
    let failed = { told.iter() }
        .filter_map(|line| Some((line, line.error.as_deref()?)))
        .min_by_key(|(_, error)| Exit::Code(1).class(Some(error)));
    if let Some((line, error)) = failed {
        return Together::Failed(format!("rank {} on {}: {error}", line.rank, line.node));
    }
    if told.len() >= procs {
        let slowest = told.iter().map(|line| bandwidth(line)).min();
        return Together::Right {
            bytes_per_second: slowest.unwrap_or_default(),
        };
    }
    match end.out_of_time {
        true => Together::Silent,
        false => Together::Failed(ended(end.status)),
    }
}

/// Bus bandwidth as nccl-tests counts it: each process sends and receives 2(n-1)/n of the tensor.
fn bandwidth(line: &Line) -> u64 {
    let world = f64::from(line.world.max(2));
    let moved = line.bytes as f64 * 2.0 * (world - 1.0) / world;
    (moved / line.seconds.max(1e-9)) as u64
}

fn ended(status: &JobStatus) -> String {
    match (status.reason.as_str(), status.message.as_str()) {
        ("", _) => "its job ended without a result".to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::RankStatus;

    use super::*;

    /// `a` and `b` with one process each.
    fn pair(lines: &[&str], out_of_time: bool, ranks: Vec<RankStatus>) -> (Own, Own, Together) {
        let status = JobStatus {
            reason: "FailedByRule".into(),
            message: "rule 1".into(),
            ranks,
            ..JobStatus::default()
        };
        let lines: Vec<Line> = lines.iter().filter_map(|text| line(text)).collect();
        let end = End {
            status: &status,
            out_of_time,
        };
        let mut trial = trial(&["a".into(), "b".into()], 1, &lines, &end);
        let b = trial.members.pop().unwrap().own;
        (trial.members.pop().unwrap().own, b, trial.together)
    }

    const A: &str = r#"{"musterCheck": "matmul", "node": "a", "rank": 0, "seconds": 0.02, "wrong": 0, "of": 9}"#;
    const B: &str = r#"{"musterCheck": "matmul", "node": "b", "rank": 1, "seconds": 0.01, "wrong": 0, "of": 9}"#;
    const A_SUM: &str = r#"{"musterCheck": "allReduce", "node": "a", "rank": 0, "seconds": 0.001, "wrong": 0, "of": 9, "bytes": 1000000, "world": 2}"#;
    const B_SUM: &str = r#"{"musterCheck": "allReduce", "node": "b", "rank": 1, "seconds": 0.002, "wrong": 0, "of": 9, "bytes": 1000000, "world": 2}"#;

    fn right(millis: u64) -> Own {
        Own::Right {
            time: Duration::from_millis(millis),
        }
    }

    #[test]
    fn lines_become_results() {
        let all = pair(&[A, "a warning", B, A_SUM, B_SUM], false, Vec::new());
        let bytes_per_second = 500_000_000;
        assert_eq!(
            all,
            (right(20), right(10), Together::Right { bytes_per_second })
        );
        let wrong = A.replace("\"wrong\": 0", "\"wrong\": 2");
        let (a, b, _) = pair(&[&wrong, B, A_SUM, B_SUM], false, Vec::new());
        assert_eq!(a, Own::Wrong("rank 0 has 2 of 9 numbers wrong".into()));
        assert_eq!(b, right(10));
        let wrong = B_SUM.replace("\"wrong\": 0", "\"wrong\": 2");
        let (_, b, together) = pair(&[A, B, A_SUM, &wrong], false, Vec::new());
        assert_eq!(b, right(10), "the sum is not its own");
        assert!(matches!(together, Together::Wrong(_)));
        let error = r#"{"musterCheck": "allReduce", "node": "b", "rank": 1, "error": "RuntimeError: its link is down"}"#;
        let victim = r#"{"musterCheck": "allReduce", "node": "a", "rank": 0, "error": "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.2]:5"}"#;
        for lines in [&[A, B, error][..], &[A, B, victim, error]] {
            let (_, _, together) = pair(lines, false, Vec::new());
            assert_eq!(
                together,
                Together::Failed("rank 1 on b: RuntimeError: its link is down".into())
            );
        }
    }

    #[test]
    fn what_was_not_said_is_told_apart() {
        // b hangs by itself; both wait in the all-reduce.
        let (a, b, together) = pair(&[A], true, Vec::new());
        assert_eq!((a, b, together), (right(20), Own::Silent, Together::Silent));
        let (a, b, together) = pair(&[A, B], true, Vec::new());
        assert_eq!((a, b, together), (right(20), right(10), Together::Silent));
        // b crashed, and a was stopped for that.
        let rank = |rank: u32, node: &str, state: &str| RankStatus {
            rank,
            node: node.into(),
            state: state.into(),
            ..RankStatus::default()
        };
        let ranks = vec![
            rank(0, "a", "signal 15 (SIGTERM)"),
            rank(1, "b", "signal 11 (SIGSEGV)"),
        ];
        let (a, b, _) = pair(&[], false, ranks);
        assert_eq!(a, Own::Unknown("FailedByRule: rule 1".into()));
        assert_eq!(
            b,
            Own::Failed("rank 1 ended with signal 11 (SIGSEGV)".into())
        );
        let why = r#"{"musterCheck": "unknown", "node": "b", "rank": 1, "why": "no torch"}"#;
        let (_, b, _) = pair(&[A, why], true, Vec::new());
        assert_eq!(b, Own::Unknown("no torch".into()));
    }

    #[test]
    fn a_node_alone_reduces_among_its_own_processes() {
        let status = JobStatus::default();
        let end = End {
            status: &status,
            out_of_time: true,
        };
        let second = A.replace("\"rank\": 0", "\"rank\": 1");
        let sums = [
            A_SUM.to_owned(),
            A_SUM.replace("\"wrong\": 0", "\"wrong\": 1"),
        ];
        let of = |texts: &[&str]| {
            let lines: Vec<Line> = texts.iter().filter_map(|text| line(text)).collect();
            trial(&["a".into()], 2, &lines, &end).members[0].own.clone()
        };
        assert_eq!(of(&[A, &second, &sums[0], &sums[0]]), right(20));
        assert!(matches!(
            of(&[A, &second, &sums[0], &sums[1]]),
            Own::Wrong(_)
        ));
        assert_eq!(of(&[A, &second, &sums[0]]), Own::Silent);
        assert_eq!(of(&[A]), Own::Silent, "one of two has told");
    }
}
