//! The operator's queues: a tree with quotas, and what their jobs hold.

use muster_page::tree::{Branch, tree};
use muster_proto::v1;
use serde::Serialize;

/// One queue. It is also the form of `-o json` and `-o yaml`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Shown {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// GPUs, as all that follow.
    quota: u32,
    held: u32,
    /// What it holds beyond its quota.
    borrowed: u32,
    /// What its jobs could have besides, by the quotas alone. None: queues below it have the jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    borrowing_limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lending_limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_priority: Option<i32>,
    namespaces: Vec<String>,
    /// Jobs that hold GPUs, and jobs that wait for some.
    jobs: u32,
    waiting: u32,
    /// How many queues are above it.
    #[serde(skip)]
    depth: usize,
}

/// All queues, each behind its parent.
pub(crate) fn all(queues: &[v1::Queue]) -> Vec<Shown> {
    tree(queues).into_iter().map(Shown::of).collect()
}

impl Shown {
    fn of(branch: Branch<'_>) -> Shown {
        let queue = branch.queue;
        Shown {
            name: queue.name.clone(),
            parent: Some(queue.parent.clone()).filter(|parent| !parent.is_empty()),
            quota: queue.quota,
            held: queue.held,
            borrowed: branch.borrowed(),
            available: queue.available,
            borrowing_limit: queue.borrowing_limit,
            lending_limit: queue.lending_limit,
            max_priority: queue.max_priority,
            namespaces: queue.namespaces.clone(),
            jobs: queue.jobs,
            waiting: queue.waiting,
            depth: branch.depth,
        }
    }

    pub(crate) fn row(&self, wide: bool) -> Vec<String> {
        let limit = |limit: Option<u32>| limit.map_or("-".to_owned(), |limit| limit.to_string());
        let mut row = vec![
            format!("{}{}", "  ".repeat(self.depth), self.name),
            self.quota.to_string(),
            self.held.to_string(),
            self.borrowed.to_string(),
            limit(self.available),
            self.jobs.to_string(),
            self.waiting.to_string(),
        ];
        if wide {
            row.extend([
                limit(self.borrowing_limit),
                limit(self.lending_limit),
                self.max_priority
                    .map_or("-".to_owned(), |most| most.to_string()),
                match self.namespaces.is_empty() {
                    true => "-".to_owned(),
                    false => self.namespaces.join(","),
                },
            ]);
        }
        row
    }
}

pub(crate) fn heads(wide: bool) -> Vec<&'static str> {
    let mut heads = vec![
        "NAME",
        "QUOTA",
        "HELD",
        "BORROWED",
        "AVAILABLE",
        "JOBS",
        "WAITING",
    ];
    if wide {
        heads.extend([
            "BORROWING-LIMIT",
            "LENDING-LIMIT",
            "MAX-PRIORITY",
            "NAMESPACES",
        ]);
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_shown_as_one() {
        let queue = |name: &str, parent: &str, held| v1::Queue {
            name: name.into(),
            parent: parent.into(),
            quota: 4,
            held,
            available: (!parent.is_empty()).then_some(2),
            jobs: 1,
            ..v1::Queue::default()
        };
        let all = [
            queue("all", "", 6),
            queue("a", "all", 5),
            v1::Queue {
                borrowing_limit: Some(3),
                namespaces: vec!["x".into(), "y".into()],
                max_priority: Some(-1),
                ..queue("b", "all", 1)
            },
        ];
        let shown = super::all(&all);
        let rows: Vec<String> = shown
            .iter()
            .map(|queue| queue.row(true).join(" "))
            .collect();
        assert_eq!(
            rows,
            [
                "all 4 6 2 - 1 0 - - - -",
                "  a 4 5 1 2 1 0 - - - -",
                "  b 4 1 0 2 1 0 3 - -1 x,y",
            ]
        );
        assert_eq!(heads(true).len(), 11);
        assert_eq!(heads(false).len(), shown[0].row(false).len());
    }
}
