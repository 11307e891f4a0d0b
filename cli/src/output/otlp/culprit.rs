//! Which rank, on which node, and how it ended: read from the words of a receipt, which has them nowhere else.

use muster_proto::v1::Incident;
use serde_json::Value;

use super::format::Attribute;

pub(super) fn attributes(incident: &Incident) -> Vec<Attribute> {
    let (rank, node) = place(&incident.culprit);
    let exit = exit(incident);
    let text = |key, text: Option<&str>| text.map(|text| Attribute::text(key, text));
    let number = |key, number: Option<u32>| number.map(|it| Attribute::of(key, Value::from(it)));
    let all = [
        number("muster.rank", rank),
        text("muster.node", node),
        text("muster.exit", exit),
        number("process.exit.code", exit.and_then(code)),
    ];
    all.into_iter().flatten().collect()
}

/// Of `rank 3 on b`, `rank 3 (worker 1) on b` or `b`.
fn place(culprit: &str) -> (Option<u32>, Option<&str>) {
    let Some(rank) = culprit.strip_prefix("rank ") else {
        let is_node = !culprit.is_empty() && !culprit.contains(' ');
        return (None, is_node.then_some(culprit));
    };
    let number = rank.split([' ', ',']).next().and_then(|it| it.parse().ok());
    (number, rank.rsplit_once(" on ").map(|(_, node)| node))
}

/// `exit code 1` or `signal 9 (SIGKILL)`, if the message says so of the culprit.
fn exit(incident: &Incident) -> Option<&str> {
    let (who, how) = incident.message.split_once(" ended with ")?;
    let is_culprit = who.strip_prefix("torchrun on ").unwrap_or(who) == incident.culprit;
    let is_exit = how.starts_with("exit code ") || how.starts_with("signal ");
    let end = [":", ";", " before "].map(|after| how.find(after).unwrap_or(how.len()));
    let end = end.into_iter().fold(how.len(), usize::min);
    (is_culprit && is_exit).then_some(&how[..end])
}

fn code(exit: &str) -> Option<u32> {
    exit.strip_prefix("exit code ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_culprit_has_a_rank_and_a_node() {
        for (culprit, rank, node) in [
            ("rank 3 on b", Some(3), Some("b")),
            ("rank 3 (worker 1) on b", Some(3), Some("b")),
            ("rank 3", Some(3), None),
            ("b", None, Some("b")),
            ("", None, None),
        ] {
            assert_eq!(place(culprit), (rank, node), "{culprit}");
        }
    }

    #[test]
    fn an_exit_is_the_culprits_own() {
        for (culprit, message, expected, number) in [
            (
                "rank 0 on a",
                "rank 0 on a ended with exit code 3: ValueError: 1",
                Some("exit code 3"),
                Some(3),
            ),
            (
                "rank 0 on a",
                "rank 0 on a ended with exit code 3; rule 2 (any: fail)",
                Some("exit code 3"),
                Some(3),
            ),
            (
                "rank 0 on a",
                "rank 0 on a ended with signal 9 (SIGKILL)",
                Some("signal 9 (SIGKILL)"),
                None,
            ),
            (
                "a",
                "torchrun on a ended with exit code 1 before any rank failed",
                Some("exit code 1"),
                Some(1),
            ),
            (
                "a",
                "a lost its connection: rank 0 on a ended with exit code 3",
                None,
                None,
            ),
            ("rank 0 on a", "rank 0 on a ended with a sigh", None, None),
        ] {
            let told = Incident {
                culprit: culprit.into(),
                message: message.into(),
                ..Incident::default()
            };
            let exit = exit(&told);
            assert_eq!((exit, exit.and_then(code)), (expected, number), "{message}");
        }
    }
}
