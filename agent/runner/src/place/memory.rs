//! How much memory a launcher takes.

use std::{fs, path::Path};

use crate::Record;

/// The memory in bytes that the launcher below the runner in `dir` takes with its copies, as
/// proportional set size (Pss), because ranks share its pages. None if it is gone.
pub fn memory(dir: &Path) -> Option<u64> {
    let runner = Record::read(dir).ok()?.runner?.pid;
    let launchers = children(runner)?;
    let copies = launchers
        .iter()
        .filter_map(|pid| children(*pid))
        .flatten()
        .collect::<Vec<_>>();
    let kib = |pid: &i32| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        rollup.lines().find_map(|line| {
            line.strip_prefix("Pss:")?
                .trim()
                .strip_suffix(" kB")?
                .trim()
                .parse::<u64>()
                .ok()
        })
    };
    Some(launchers.iter().chain(&copies).filter_map(kib).sum::<u64>() * 1_024)
}

fn children(pid: i32) -> Option<Vec<i32>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Some(
        children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect(),
    )
}
