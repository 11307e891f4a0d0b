//! What `muster check nodes` has found, as a table, a document and names.

use muster_core::{
    check::{Standing, Subject, Verdict},
    id::NodeName,
    spec::API_VERSION,
};
use serde::Serialize;

use super::{table::Table, words};

/// Rows first of what is wrong, and each node's own row after those of networks.
pub(crate) fn text(verdicts: &[Verdict], wide: bool, with_heads: bool) -> String {
    let mut heads = vec!["WHAT", "VERDICT", "MATMUL", "ALL-REDUCE"];
    heads.extend(
        wide.then_some(["MEDIANS", "WORKS WITH", "FAILS WITH"])
            .into_iter()
            .flatten(),
    );
    heads.push("REASON");
    let row = |verdict: &&Verdict| {
        let evidence = &verdict.evidence;
        let millis = |time: std::time::Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let rate = |rate: u64| format!("{}/s", words::bytes(rate));
        let mut row = vec![
            subject(&verdict.subject),
            standing(verdict.standing).to_owned(),
            words::or_dash(evidence.matmul.map(millis)),
            words::or_dash(evidence.bytes_per_second.map(rate)),
        ];
        if wide {
            let medians = [
                evidence.matmul_median.map(millis),
                evidence.bytes_per_second_median.map(rate),
            ];
            let medians: Vec<String> = medians.into_iter().flatten().collect();
            row.extend([
                medians.join(", "),
                names_of(&evidence.works_with),
                names_of(&evidence.fails_with),
            ]);
        }
        row.push(verdict.reason.clone());
        row
    };
    let mut sorted: Vec<&Verdict> = verdicts.iter().collect();
    sorted.sort_by_key(|verdict| (verdict.standing, subject(&verdict.subject)));
    let rows: Vec<Vec<String>> = sorted.iter().map(row).collect();
    Table::new(heads).render(&rows, with_heads)
}

fn subject(subject: &Subject) -> String {
    match subject {
        Subject::All => "all nodes".to_owned(),
        Subject::Node(node) => node.to_string(),
        Subject::Pair(one, other) => format!("{one} + {other}"),
    }
}

/// Part of the JSON form.
fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Bad => "Bad",
        Standing::Slow => "Slow",
        Standing::NotChecked => "NotChecked",
        Standing::Good => "Good",
    }
}

fn names_of(nodes: &[NodeName]) -> String {
    let names: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
    names.join(",")
}

/// The nodes that are bad, with the reason.
pub(crate) fn bad_nodes(verdicts: &[Verdict]) -> Vec<(&str, &str)> {
    let bad = verdicts
        .iter()
        .filter_map(|verdict| match &verdict.subject {
            Subject::Node(node) if verdict.standing == Standing::Bad => {
                Some((node.as_str(), verdict.reason.as_str()))
            }
            _ => None,
        });
    bad.collect()
}

/// The nodes that are bad, as `-o name` prints them.
pub(crate) fn names(verdicts: &[Verdict]) -> String {
    let bad = bad_nodes(verdicts).into_iter();
    bad.map(|(node, _)| format!("node/{node}\n")).collect()
}

/// The form of `-o json` and `-o yaml`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document {
    api_version: &'static str,
    kind: &'static str,
    /// Nothing that was checked is bad or slow.
    well: bool,
    verdicts: Vec<One>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct One {
    /// One node, the two nodes of a pair, or nobody: all of them.
    nodes: Vec<String>,
    about: &'static str,
    verdict: &'static str,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    matmul_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    matmul_median_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_second_median: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    works_with: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fails_with: Vec<String>,
}

pub(crate) fn document(verdicts: &[Verdict]) -> Document {
    let texts = |nodes: &[NodeName]| nodes.iter().map(ToString::to_string).collect();
    let one = |verdict: &Verdict| {
        let (about, nodes) = match &verdict.subject {
            Subject::All => ("All", Vec::new()),
            Subject::Node(node) => ("Node", vec![node.to_string()]),
            Subject::Pair(one, other) => ("Pair", vec![one.to_string(), other.to_string()]),
        };
        let evidence = &verdict.evidence;
        One {
            nodes,
            about,
            verdict: standing(verdict.standing),
            reason: verdict.reason.clone(),
            matmul_seconds: evidence.matmul.map(|time| time.as_secs_f64()),
            matmul_median_seconds: evidence.matmul_median.map(|time| time.as_secs_f64()),
            bytes_per_second: evidence.bytes_per_second,
            bytes_per_second_median: evidence.bytes_per_second_median,
            works_with: texts(&evidence.works_with),
            fails_with: texts(&evidence.fails_with),
        }
    };
    let is_well =
        |verdict: &Verdict| matches!(verdict.standing, Standing::Good | Standing::NotChecked);
    Document {
        api_version: API_VERSION,
        kind: "NodeCheck",
        well: verdicts.iter().all(is_well),
        verdicts: verdicts.iter().map(one).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_core::check::Evidence;

    use super::*;

    #[test]
    fn what_is_wrong_comes_first() {
        let of = |subject, standing, reason: &str| Verdict {
            subject,
            standing,
            reason: reason.into(),
            evidence: Evidence {
                matmul: Some(Duration::from_micros(1_250)),
                bytes_per_second: Some(3 << 30),
                works_with: vec!["n1".into()],
                ..Evidence::default()
            },
        };
        let all = [
            of(Subject::Node("n1".into()), Standing::Good, ""),
            of(
                Subject::Node("n2".into()),
                Standing::Bad,
                "its matmul fails",
            ),
            of(
                Subject::Pair("n1".into(), "n3".into()),
                Standing::Slow,
                "half",
            ),
        ];
        assert_eq!(
            text(&all, false, true),
            "WHAT      VERDICT   MATMUL   ALL-REDUCE   REASON\n\
             n2        Bad       1.2 ms   3.0 GiB/s    its matmul fails\n\
             n1 + n3   Slow      1.2 ms   3.0 GiB/s    half\n\
             n1        Good      1.2 ms   3.0 GiB/s    -\n"
        );
        assert!(text(&all, true, true).contains("WORKS WITH"));
        assert_eq!(names(&all), "node/n2\n");
        let document = super::super::value(&document(&all));
        assert_eq!(document["well"], false);
        assert_eq!(document["verdicts"][1]["verdict"], "Bad");
        assert_eq!(document["verdicts"][2]["nodes"][1], "n3");
        assert_eq!(document["verdicts"][0]["matmulSeconds"], 0.00125);
    }
}
