//! NCCL's own line about the time that a communicator took:
//!
//! ```text
//! HOST:PID:TID [0] NCCL INFO Init timings: rank 2 nranks 16 total 1.08 (kernels 0.51, bootstrap 0.22, ..., rest 0.01)
//! HOST:PID:TID [0] NCCL INFO Init timings - ncclCommInitAll: rank 0 nranks 1 total 0.22 (kernels 0.15, alloc 0.05, ...)
//! ```
//!
//! The second form, with the call and more parts, is that of later versions. All times are in seconds.
//! Whatever does not look like this is left out.

use std::collections::BTreeMap;

use muster_runner::wire::NcclStatus;

const LINE: &str = "NCCL INFO Init timings";
/// Parts of one line. There are eight today.
const PARTS_MAX: usize = 16;
const NAME_MAX: usize = 32;
/// Nobody waits longer than a day.
const SECONDS_MAX: f64 = 86_400.0;

/// The time of all communicators that a process has made, each part by its name. A process that drives
/// several GPUs makes one for each of them at once: then the slowest counts.
pub(super) fn timings(log: &[u8]) -> Option<NcclStatus> {
    let mut by_rank: BTreeMap<&str, NcclStatus> = BTreeMap::new();
    let log = String::from_utf8_lossy(log);
    for (rank, us, parts) in log.lines().filter_map(line) {
        let sum = by_rank.entry(rank).or_default();
        sum.us += us;
        for (name, us) in parts {
            match sum.parts.iter().position(|(known, _)| *known == name) {
                Some(at) => sum.parts[at].1 += us,
                None if sum.parts.len() < PARTS_MAX => sum.parts.push((name.to_owned(), us)),
                None => {}
            }
        }
    }
    let mut slowest = by_rank.into_values().max_by_key(|sum| sum.us)?;
    slowest.parts.retain(|(_, us)| *us > 0);
    slowest.parts.sort_by_key(|(_, us)| std::cmp::Reverse(*us));
    Some(slowest)
}

/// The parts of a line, in microseconds.
type Parts<'a> = Vec<(&'a str, u64)>;

/// The rank, the total and the parts of a line, in microseconds.
fn line(line: &str) -> Option<(&str, u64, Parts<'_>)> {
    let (_, line) = line.split_once(LINE)?;
    let (_, line) = line.split_once("rank ")?;
    let rank = line.split(' ').next()?;
    let (_, line) = line.split_once(" total ")?;
    let (total, parts) = line.split_once('(').unwrap_or((line, ""));
    let total = micros(total)?;
    let parts = parts.split_once(')').map_or("", |(parts, _)| parts);
    let part = |part: &'_ str| -> Option<(usize, u64)> {
        let (name, seconds) = part.trim().rsplit_once(' ')?;
        Some((name.len(), micros(seconds)?))
    };
    let parts = parts.split(',').take(PARTS_MAX).filter_map(|text| {
        let (name, us) = part(text)?;
        let name = &text.trim()[..name];
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_ ".contains(c);
        (name.len() <= NAME_MAX && name.chars().all(is_name)).then_some((name, us))
    });
    Some((rank, total, parts.collect()))
}

fn micros(seconds: &str) -> Option<u64> {
    let seconds: f64 = seconds.trim().parse().ok()?;
    (0.0..SECONDS_MAX)
        .contains(&seconds)
        .then_some((seconds * 1e6).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(status: NcclStatus) -> String {
        let parts = status
            .parts
            .iter()
            .map(|(name, us)| format!(" {name} {us}"));
        format!("{}{}", status.us, parts.collect::<String>())
    }

    /// Lines as people have posted them, with other names of hosts.
    #[test]
    fn lines_of_several_versions_are_read() {
        let first = "host-04:2017630:2017671 [2] NCCL INFO Init timings: rank 2 nranks 16 total 1.08 (kernels 0.51, bootstrap 0.22, \
                     allgathers 0.01, topo 0.28, graphs 0.04, connections 0.02, rest 0.01)\n";
        let later = "HOST-P:58239:58245 [0] NCCL INFO Init timings - ncclCommInitAll: rank 0 nranks 1 total 0.22 (kernels 0.15, alloc 0.05, \
                     bootstrap 0.00, allgathers 0.00, topo 0.00, graphs 0.00, connections 0.01, rest 0.00) \n";
        let read = |log: &str| timings(log.as_bytes()).map(words);
        let must = "1080000 kernels 510000 topo 280000 bootstrap 220000 graphs 40000 connections 20000 allgathers 10000 rest 10000";
        assert_eq!(read(first).as_deref(), Some(must));
        let must = "220000 kernels 150000 alloc 50000 connections 10000";
        assert_eq!(read(later).as_deref(), Some(must));
        // Two communicators after each other, with what else is in a log.
        let both = format!(
            "x NCCL INFO Bootstrap: Using eth0\n{later}\u{1b}\n{later}cut off NCCL INFO Init timi"
        );
        let must = "440000 kernels 300000 alloc 100000 connections 20000";
        assert_eq!(read(&both).as_deref(), Some(must));
        // One process with two GPUs.
        let other = later.replace("rank 0", "rank 1").replace("0.22", "0.30");
        assert_eq!(
            timings(format!("{later}{other}").as_bytes()).map(|sum| sum.us),
            Some(300_000)
        );
    }

    #[test]
    fn what_is_no_such_line_is_left_out() {
        for log in [
            "",
            "NCCL INFO Init timings",
            "NCCL INFO Init timings: rank 0 nranks 1 total soon (kernels 1)",
            "NCCL INFO Init timings: rank 0 nranks 1 total -1",
            "NCCL INFO Init timings: rank 0 nranks 1 total nan",
            "NCCL INFO Init timings: rank 0 nranks 1 total 1e99",
            "NCCL INFO Init COMPLETE total 1.0",
        ] {
            assert_eq!(timings(log.as_bytes()), None, "{log}");
        }
        assert_eq!(timings(&[0xff, 0xfe, b'\n']), None);
        let odd = "NCCL INFO Init timings: rank 0 total 1.5 (a\u{7} 1, , 2, kernels x, topo 0.5, and so on";
        assert_eq!(
            timings(odd.as_bytes()).map(words).as_deref(),
            Some("1500000")
        );
    }
}
