//! The agent's own cgroup. In a container its memory limit is the one that counts, and the kernel
//! kills processes that exceed it.

use std::fs;

use muster_core::{
    health::{Reading, Subject, Value, kernel_log::CGROUP_OOM},
    usage::Space,
};
use sysinfo::CGroupLimits;

/// The machine's memory, or what the cgroup leaves of it. A cgroup also counts its file cache
/// against its limit, but the kernel takes the cache back before it kills. So only anonymous memory
/// counts here.
pub(super) fn within(machine: Space, limits: Option<&CGroupLimits>) -> Space {
    let Some(limits) =
        limits.filter(|limits| limits.total_memory > 0 && limits.total_memory < machine.total)
    else {
        return machine;
    };
    let left = limits.total_memory.saturating_sub(limits.rss);
    Space {
        available: left.min(machine.available),
        total: limits.total_memory,
    }
}

/// How many processes the kernel has killed in the agent's cgroup and below because a cgroup had
/// reached its limit. None: there is no cgroup v2, or this is its root, which has no limit.
pub(super) fn kills() -> Option<Reading> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own
        .lines()
        .find_map(|line| line.strip_prefix("0::"))?
        .trim_start_matches('/');
    // The second path is for machines with both versions of cgroups.
    let mut roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter();
    let events =
        roots.find_map(|root| fs::read_to_string(format!("{root}/{path}/memory.events")).ok())?;
    Some(Reading {
        check: CGROUP_OOM,
        subject: Subject::Node,
        value: Value::Counter(killed(&events)?),
        words: "processes killed because a cgroup had reached its memory limit".into(),
        runs: Vec::new(),
    })
}

fn killed(events: &str) -> Option<u64> {
    events
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_above_the_machine_is_none() {
        let machine = Space {
            available: 100,
            total: 1_000,
        };
        let limits = |total_memory, rss| CGroupLimits {
            total_memory,
            rss,
            free_memory: 0,
            free_swap: 0,
        };
        assert_eq!(within(machine, None), machine);
        assert_eq!(within(machine, Some(&limits(1_000, 10))), machine);
        assert_eq!(
            within(machine, Some(&limits(400, 390))),
            Space {
                available: 10,
                total: 400
            }
        );
        assert_eq!(
            within(machine, Some(&limits(400, 10))),
            Space {
                available: 100,
                total: 400
            },
            "others have the rest"
        );
    }

    #[test]
    fn kills_are_counted_and_other_events_are_not() {
        assert_eq!(
            killed("low 0\nhigh 3\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n"),
            Some(1)
        );
        assert_eq!(killed("low 0\n"), None);
    }
}
