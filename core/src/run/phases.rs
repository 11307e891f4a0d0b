//! What the start of a run's ranks was spent on, as its node has seen it. For receipts only: a rank can
//! write what it likes into its own part, so no rule reads it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{period::micros, time::Timestamp};

/// Moments and times of a start. `None`: it was not seen, which does not mean that it took no time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhasesReport {
    /// When the last rank's script began. Only forked ranks say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script_at: Option<Timestamp>,
    /// When the last rank was first seen with a GPU open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_at: Option<Timestamp>,
    /// When NCCL's first communicator was begun, which is at the first collective as a rule. Only the node
    /// that serves the TCPStore knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communicator_at: Option<Timestamp>,
    /// What the ranks imported themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imports: Option<Imports>,
    /// What NCCL took for its communicators, by its own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl: Option<NcclTimes>,
}

/// Imports of one rank before its first step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Imports {
    #[serde(with = "micros")]
    pub time: Duration,
    /// The packages that cost most, the dearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<Import>,
}

/// One package and all that its import imported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Import {
    pub name: String,
    #[serde(with = "micros")]
    pub time: Duration,
    /// Why it was not imported ahead. Empty: not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// NCCL's own account of its initialization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NcclTimes {
    #[serde(with = "micros")]
    pub time: Duration,
    /// The longest first, by NCCL's names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<NcclPart>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NcclPart {
    pub name: String,
    #[serde(with = "micros")]
    pub time: Duration,
}

impl PhasesReport {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The same without times and names. If two are the same after this, nothing was seen between them for
    /// the first time.
    pub(super) fn seen(&self) -> Self {
        let at = |at: Option<Timestamp>| at.map(|_| Timestamp::default());
        Self {
            script_at: at(self.script_at),
            gpu_at: at(self.gpu_at),
            communicator_at: at(self.communicator_at),
            imports: self.imports.as_ref().map(|_| Imports::default()),
            nccl: self.nccl.as_ref().map(|_| NcclTimes::default()),
        }
    }

    /// The start of several nodes: the slowest counts, and what one of them has not seen was not seen. The
    /// first communicator is one node's to see.
    pub fn of_all<'a>(reports: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let last = |of: fn(&Self) -> Option<Timestamp>| {
            let all: Option<Vec<Timestamp>> = reports.clone().map(of).collect();
            all.and_then(|all| all.into_iter().max())
        };
        let imports: Option<Vec<&Imports>> =
            reports.clone().map(|of| of.imports.as_ref()).collect();
        let nccl: Option<Vec<&NcclTimes>> = reports.clone().map(|of| of.nccl.as_ref()).collect();
        Self {
            script_at: last(|of| of.script_at),
            gpu_at: last(|of| of.gpu_at),
            communicator_at: reports.clone().find_map(|of| of.communicator_at),
            imports: imports.and_then(|all| all.into_iter().max_by_key(|one| one.time).cloned()),
            nccl: nccl.and_then(|all| all.into_iter().max_by_key(|one| one.time).cloned()),
        }
    }

    /// Cut to what a receipt keeps. A hundred receipts of a job are in one record, so each has only the
    /// three dearest entries of 64 bytes.
    pub fn brief(mut self) -> Self {
        const ENTRIES: usize = 3;
        const BYTES: usize = 64;
        let cut = |text: &mut String| text.truncate(text.floor_char_boundary(BYTES));
        if let Some(imports) = &mut self.imports {
            imports.by.truncate(ENTRIES);
            for import in &mut imports.by {
                cut(&mut import.name);
                cut(&mut import.why);
            }
        }
        if let Some(nccl) = &mut self.nccl {
            nccl.parts.truncate(ENTRIES);
            nccl.parts.iter_mut().for_each(|part| cut(&mut part.name));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(ms: u64) -> Option<Imports> {
        Some(Imports {
            time: Duration::from_millis(ms),
            by: Vec::new(),
        })
    }

    #[test]
    fn the_slowest_node_counts_and_only_what_all_have_seen() {
        let a = PhasesReport {
            script_at: Some(Timestamp(5)),
            gpu_at: Some(Timestamp(7)),
            communicator_at: Some(Timestamp(9)),
            imports: imports(30),
            nccl: None,
        };
        let b = PhasesReport {
            script_at: Some(Timestamp(6)),
            gpu_at: None,
            communicator_at: None,
            imports: imports(20),
            nccl: Some(NcclTimes::default()),
        };
        let all = PhasesReport::of_all([&a, &b].into_iter());
        let must = PhasesReport {
            script_at: Some(Timestamp(6)),
            gpu_at: None,
            communicator_at: Some(Timestamp(9)),
            imports: imports(30),
            nccl: None,
        };
        assert_eq!(all, must);
        assert!(
            PhasesReport::of_all([&a, &PhasesReport::default()].into_iter())
                .script_at
                .is_none()
        );
    }

    #[test]
    fn a_receipt_keeps_little() {
        let import = |n: usize| Import {
            name: "ä".repeat(n * 40),
            time: Duration::from_secs(9),
            why: "w".repeat(5_000),
        };
        let long = PhasesReport {
            imports: Some(Imports {
                time: Duration::from_secs(9),
                by: (1..9).map(import).collect(),
            }),
            ..PhasesReport::default()
        };
        let by = long.brief().imports.expect("it is kept").by;
        assert_eq!(by.len(), 3);
        assert_eq!(
            (by[0].name.len(), by[1].name.len(), by[0].why.len()),
            (64, 64, 64)
        );
    }
}
