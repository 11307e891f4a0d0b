//! Where a job's time has gone: shares of one bar, and the same as rows of a table.

use muster_proto::v1::TimeAccount;

use crate::{
    account::{self, Row},
    words,
};

pub(crate) struct Spent {
    pub(crate) state: String,
    pub(crate) time: String,
    pub(crate) share: String,
    pub(crate) gpu_time: String,
    /// What it was spent on, the longest first.
    pub(crate) on: String,
    /// Place and width in a bar of 1000.
    pub(crate) x: u64,
    pub(crate) width: u64,
    pub(crate) class: &'static str,
}

/// The longest first; a bar of the same order.
pub(crate) fn rows(account: &TimeAccount) -> Vec<Spent> {
    let all = account.spent.iter().map(|one| one.us).sum::<u64>().max(1);
    let mut x = 0;
    let row = |row: Row<'_>| {
        let on = row.on.iter();
        let on: Vec<String> = on
            .map(|on| format!("{} {}", on.name, words::span(on.us)))
            .collect();
        let width = scaled(row.us, all);
        x += width;
        Spent {
            state: row.state.to_owned(),
            time: row.time(),
            share: row.share(),
            gpu_time: row.gpu_time(),
            on: on.join(", "),
            x: x - width,
            width,
            class: class(row.state),
        }
    };
    account::by_state(account).into_iter().map(row).collect()
}

fn scaled(us: u64, all: u64) -> u64 {
    (u128::from(us) * 1000 / u128::from(all)) as u64
}

/// The class that a state has in the style.
pub(crate) fn class(state: &str) -> &'static str {
    match state {
        "training" => "training",
        "repeating" => "repeating",
        "recovering" => "recovering",
        "resizing" => "resizing",
        "starting" => "starting",
        "queued" | "waiting" => "waiting",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::TimeSpent;

    use super::*;

    #[test]
    fn a_bar_has_a_part_for_each_state_and_the_longest_is_first() {
        let spent = |state: &str, cause: &str, us| TimeSpent {
            state: state.into(),
            cause: cause.into(),
            us,
            ..TimeSpent::default()
        };
        let account = TimeAccount {
            spent: vec![
                spent("recovering", "NodeLost", 1_000_000),
                spent("recovering", "WorkerKilled", 3_000_000),
                spent("training", "", 16_000_000),
            ],
            ..TimeAccount::default()
        };
        let rows = rows(&account);
        let seen: Vec<_> = rows
            .iter()
            .map(|r| (&*r.state, r.x, r.width, &*r.on))
            .collect();
        assert_eq!(
            seen,
            [
                ("training", 0, 800, ""),
                ("recovering", 800, 200, "WorkerKilled 3.0s, NodeLost 1.0s"),
            ]
        );
    }
}
