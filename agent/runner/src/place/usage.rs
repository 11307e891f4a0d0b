//! What trees of processes use: processor time and memory.
//!
//! Processor time includes that of processes which a member of the tree has reaped, so a worker that
//! starts a process for each batch is counted fully.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
};

use rustix::param::{clock_ticks_per_second, page_size};
use serde::{Deserialize, Serialize};

/// What one process uses, with all that descends from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeUsage {
    pub pid: i32,
    /// Clock ticks since boot. With the pid it names one process for ever.
    pub start_time: u64,
    /// Milliseconds since it began.
    pub cpu_ms: u64,
    /// Resident memory in bytes. Pages that processes share are counted once for each.
    pub memory_bytes: u64,
    /// How many processes the tree has. 0: an older runner looked, which did not count them.
    #[serde(default)]
    pub processes: u32,
}

/// Numbers of one process, from `/proc/PID/stat` (proc(5)).
struct Numbers {
    ppid: i32,
    start_time: u64,
    ticks: u64,
    pages: u64,
}

/// The usage of each tree whose topmost process is in `tops` and lives.
///
/// # Errors
/// `/proc` cannot be read.
pub fn usage(tops: &[i32]) -> io::Result<Vec<TreeUsage>> {
    let mut all = BTreeMap::new();
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process that has ended meanwhile, or one of another user.
        let Some(numbers) = numbers(pid) else {
            continue;
        };
        children.entry(numbers.ppid).or_default().push(pid);
        all.insert(pid, numbers);
    }
    let of = |top: &i32| {
        let start_time = all.get(top)?.start_time;
        let (mut tree, mut known) = (vec![*top], BTreeSet::from([*top]));
        let mut next = 0;
        while next < tree.len() {
            // A pid that was reused during the look may appear to be its own ancestor.
            let below = children.get(&tree[next]).into_iter().flatten();
            tree.extend(below.filter(|pid| known.insert(**pid)));
            next += 1;
        }
        let sum = |of: fn(&Numbers) -> u64| {
            tree.iter()
                .filter_map(|pid| all.get(pid))
                .map(of)
                .sum::<u64>()
        };
        Some(TreeUsage {
            pid: *top,
            start_time,
            cpu_ms: sum(|one| one.ticks) * 1_000 / clock_ticks_per_second().max(1),
            memory_bytes: sum(|one| one.pages) * page_size() as u64,
            processes: u32::try_from(tree.len()).unwrap_or(u32::MAX),
        })
    };
    Ok(tops.iter().filter_map(of).collect())
}

fn numbers(pid: i32) -> Option<Numbers> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(&text)
}

/// The command's name stands in parentheses and may hold any character, so fields are counted from
/// the last `)`. The first one after it is field 3.
fn parse(text: &[u8]) -> Option<Numbers> {
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> = std::str::from_utf8(&text[close + 1..])
        .ok()?
        .split_ascii_whitespace()
        .collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Numbers {
        ppid: fields.get(4 - 3)?.parse().ok()?,
        start_time: field(22)?,
        // Its own time in user and kernel mode, and that of the children that it has reaped.
        ticks: field(14)? + field(15)? + field(16)? + field(17)?,
        pages: field(24)?,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        process::{Command, Stdio},
    };

    use super::*;
    use crate::procfs;

    #[test]
    fn fields_are_counted_from_the_end_of_the_name() {
        let line = b"7 (a) 3 b) S 5 7 7 0 -1 4194560 100 0 0 0 1 2 30 40 20 0 1 0 999 1000 77 18446744073709551615 1 1";
        let numbers = parse(line).unwrap();
        assert_eq!(
            (
                numbers.ppid,
                numbers.start_time,
                numbers.ticks,
                numbers.pages
            ),
            (5, 999, 73, 77)
        );
        assert!(parse(b"7 (a) S 5").is_none() && parse(b"").is_none());
    }

    #[test]
    fn a_tree_is_charged_for_its_reaped_processes_too() {
        // It says a line when its child has spent time and was reaped.
        let script = "(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done); echo ready; read never";
        let mut shell = Command::new("/bin/sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = shell.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 6]).unwrap();
        let pid = shell.id() as i32;
        let own = procfs::Stat::of(pid).unwrap();

        let seen = usage(&[pid, i32::MAX]);
        shell.kill().unwrap();
        shell.wait().unwrap();
        let seen = seen.unwrap();
        assert_eq!(seen.len(), 1, "nothing is said of who is not there");
        assert_eq!((seen[0].pid, seen[0].start_time), (pid, own.start_time));
        assert!(
            seen[0].cpu_ms > 0 && seen[0].memory_bytes > 0 && seen[0].processes == 1,
            "{seen:?}"
        );
    }
}
