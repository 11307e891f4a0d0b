//! Where a job's time has gone, summed up by state: what pages and the command line show of it.

use std::{cmp::Reverse, collections::BTreeMap};

use muster_proto::v1::TimeAccount;

use crate::words;

/// The time in one state.
#[derive(Clone, Debug, PartialEq)]
pub struct Row<'a> {
    pub state: &'a str,
    pub us: u64,
    /// The same for each GPU that was held.
    pub gpu_us: u64,
    /// The part of all time, from 0 to 1.
    pub part: f64,
    /// What it was spent on, the longest first.
    pub on: Vec<On<'a>>,
}

/// The time that one cause or reason has taken in a state.
#[derive(Clone, Debug, PartialEq)]
pub struct On<'a> {
    pub name: &'a str,
    pub us: u64,
    /// Its longest phase, if it has phases.
    pub longest: Option<(&'a str, u64)>,
}

impl Row<'_> {
    pub fn time(&self) -> String {
        words::span(self.us)
    }

    pub fn share(&self) -> String {
        words::percent(self.part)
    }

    /// Empty: no GPU was held.
    pub fn gpu_time(&self) -> String {
        match self.gpu_us {
            0 => String::new(),
            us => words::span(us),
        }
    }
}

/// One row for each state, the longest first.
pub fn by_state(account: &TimeAccount) -> Vec<Row<'_>> {
    let all = account.spent.iter().map(|one| one.us).sum::<u64>().max(1);
    let mut rows: BTreeMap<&str, Row<'_>> = BTreeMap::new();
    for one in &account.spent {
        let row = rows.entry(&one.state).or_insert_with(|| Row {
            state: &one.state,
            us: 0,
            gpu_us: 0,
            part: 0.0,
            on: Vec::new(),
        });
        (row.us, row.gpu_us) = (row.us + one.us, row.gpu_us + one.gpu_us);
        row.part = row.us as f64 / all as f64;
        let name = match one.cause.as_str() {
            "" => one.reason.as_str(),
            cause => cause,
        };
        if name.is_empty() {
            continue;
        }
        let phase = Some((one.phase.as_str(), one.us)).filter(|(phase, _)| !phase.is_empty());
        match row.on.iter_mut().find(|on| on.name == name) {
            Some(on) => {
                on.us += one.us;
                on.longest = on
                    .longest
                    .into_iter()
                    .chain(phase)
                    .max_by_key(|(_, us)| *us);
            }
            None => row.on.push(On {
                name,
                us: one.us,
                longest: phase,
            }),
        }
    }
    let mut rows: Vec<Row<'_>> = rows.into_values().collect();
    rows.sort_by_key(|row| Reverse(row.us));
    for row in &mut rows {
        row.on.sort_by_key(|on| (Reverse(on.us), on.name));
    }
    rows
}
