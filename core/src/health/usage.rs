//! Makes readings from a node's usage. The table decides what follows from them.

use super::{Reading, Subject, Value};
use crate::usage::{Disk, DiskRole, Usage};

/// The readings of one look. `training`: the workers of a run are at work.
pub fn readings(usage: &Usage, training: bool) -> Vec<Reading> {
    let mut all = Vec::new();
    let mut share = |check, part, of, words| {
        all.push(Reading {
            check,
            subject: Subject::Node,
            value: Value::Share { part, of },
            words,
            runs: Vec::new(),
        })
    };
    if let Some(memory) = usage.memory {
        share(
            "memory-low",
            memory.available,
            memory.total,
            format!("available memory of {}", gib(memory.total)),
        );
    }
    for Disk { role, path, space } in &usage.disks {
        let Some(space) = space else { continue };
        let (check, used_for) = match role {
            DiskRole::State => ("state-disk-full", "the agent's state"),
            DiskRole::Work => ("work-disk-full", "a run's working directory"),
        };
        share(
            check,
            space.available,
            space.total,
            format!("free space for {used_for} {path}, of {}", gib(space.total)),
        );
    }
    if let Some(cpu) = usage.cpu
        && let Some(others) = cpu.others_milli
        && training
    {
        let words = format!(
            "use of its {} CPUs by processes that are not Muster's, while a run trains",
            cpu.cpus
        );
        share(
            "other-load",
            others.into(),
            u64::from(cpu.cpus) * 1_000,
            words,
        );
    }
    all
}

/// Bytes for a person, where a tenth of a GiB is exact enough.
pub(super) fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        health::{Finding, Judge, Memory, Moment, Severity, Source, Table},
        time::Timestamp,
        usage::{CpuUsage, Space},
    };

    const GIB: u64 = 1 << 30;

    fn machine() -> Usage {
        let disk = |role, path: &str| Disk {
            role,
            path: path.into(),
            space: Some(Space {
                available: 50 * GIB,
                total: 100 * GIB,
            }),
        };
        Usage {
            memory: Some(Space {
                available: 8 * GIB,
                total: 16 * GIB,
            }),
            cpu: Some(CpuUsage {
                cpus: 8,
                all_milli: 7_900,
                others_milli: Some(900),
            }),
            disks: vec![
                disk(DiskRole::State, "/var/lib/muster"),
                disk(DiskRole::Work, "/data"),
            ],
            ..Usage::default()
        }
    }

    /// The findings after the usage has been the same for this many seconds.
    fn found(usage: &Usage, training: bool, seconds: u64) -> Vec<Finding> {
        let mut judge = Judge::new(Table::standard(), "boot", Memory::default());
        let at = |second: u64| Moment {
            now: Timestamp(second * 1_000_000),
            unix_us: second,
        };
        for second in (0..=seconds).step_by(10) {
            judge.look(Source::Usage, &readings(usage, training), at(second));
        }
        judge.health(at(seconds).now).findings
    }

    fn checks(usage: &Usage, training: bool, seconds: u64) -> Vec<String> {
        found(usage, training, seconds)
            .into_iter()
            .map(|finding| finding.check)
            .collect()
    }

    #[test]
    fn a_machine_with_room_has_no_finding() {
        assert_eq!(checks(&machine(), true, 600), [""; 0]);
        assert_eq!(
            checks(&Usage::default(), true, 600),
            [""; 0],
            "nothing is known, so nothing is wrong"
        );
    }

    #[test]
    fn memory_that_is_nearly_gone_is_told_when_it_lasts() {
        let low = Usage {
            memory: Some(Space {
                available: GIB / 2,
                total: 16 * GIB,
            }),
            ..machine()
        };
        assert_eq!(checks(&low, false, 20), [""; 0], "a spike");
        let finding = found(&low, false, 30).remove(0);
        assert_eq!(
            (finding.check.as_str(), finding.severity),
            ("memory-low", Severity::Warn)
        );
        assert_eq!(
            finding.reason,
            "available memory of 16.0 GiB: below 5 % and below 4.0 GiB"
        );
    }

    #[test]
    fn each_disk_that_is_nearly_full_is_named() {
        let mut usage = machine();
        usage.disks[1].space = Some(Space {
            available: GIB,
            total: 100 * GIB,
        });
        let finding = found(&usage, false, 0).remove(0);
        assert_eq!(
            (finding.check.as_str(), finding.severity),
            ("work-disk-full", Severity::Warn)
        );
        assert_eq!(
            finding.reason,
            "free space for a run's working directory /data, of 100.0 GiB: below 5 % and below 5.0 GiB"
        );
        usage.disks[0].space = usage.disks[1].space;
        usage.disks[1].space = None;
        assert_eq!(
            checks(&usage, false, 0),
            ["state-disk-full"],
            "a disk that does not answer is not full"
        );
        usage.disks[0].space = Some(Space {
            available: 20 * GIB,
            total: 1_000 * GIB,
        });
        assert_eq!(checks(&usage, false, 0), [""; 0], "2 %, but 20 GiB");
    }

    #[test]
    fn the_load_of_others_counts_while_a_run_trains() {
        let loaded = |others| Usage {
            cpu: Some(CpuUsage {
                cpus: 8,
                all_milli: 8_000,
                others_milli: others,
            }),
            ..machine()
        };
        assert_eq!(
            checks(&loaded(Some(4_100)), true, 50),
            [""; 0],
            "a build that is over within a minute"
        );
        let finding = found(&loaded(Some(4_100)), true, 60).remove(0);
        assert_eq!(
            (finding.check.as_str(), finding.severity),
            ("other-load", Severity::Warn)
        );
        assert_eq!(
            finding.reason,
            "use of its 8 CPUs by processes that are not Muster's, while a run trains: above 50 %"
        );
        assert_eq!(
            checks(&loaded(Some(4_000)), true, 60),
            [""; 0],
            "half of them"
        );
        assert_eq!(
            checks(&loaded(Some(8_000)), false, 60),
            [""; 0],
            "nothing trains that it could slow down"
        );
        assert_eq!(checks(&loaded(None), true, 60), [""; 0], "not known");
    }

    #[test]
    fn a_value_that_moves_around_its_limit_makes_one_finding() {
        let mut judge = Judge::new(Table::standard(), "boot", Memory::default());
        let mut seen = Vec::new();
        // 5 % of 100 GiB are 5 GiB, and the limit in bytes is the same.
        for (look, gib) in [4, 5, 4, 5, 4, 7].into_iter().enumerate() {
            let mut usage = machine();
            usage.disks[0].space = Some(Space {
                available: gib * GIB,
                total: 100 * GIB,
            });
            let at = Moment {
                now: Timestamp(look as u64 * 10_000_000),
                unix_us: look as u64,
            };
            judge.look(Source::Usage, &readings(&usage, false), at);
            seen.push(judge.health(at.now));
        }
        assert_eq!(seen[0].findings.len(), 1);
        assert!(
            seen[..5].iter().all(|health| health == &seen[0]),
            "one report, not five: {seen:?}"
        );
        assert!(seen[5].findings.is_empty());
    }
}
