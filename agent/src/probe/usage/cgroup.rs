//! The agent's own cgroup. In a container its memory limit is the one that counts, and the kernel
//! kills processes that exceed it.

use muster_core::{
    health::{Reading, Subject, Value, kernel_log::CGROUP_OOM},
    usage::Space,
};
use muster_runner::oom::Kills;
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

/// How many processes the kernel has killed in the agent's cgroup because it had reached its limit;
/// with cgroup v2 also below it. None: no count can be read, as in the root of v2, which has no limit.
pub(super) fn kills() -> Option<Reading> {
    let count = Kills::of(std::process::id() as i32)?.count()?;
    Some(Reading {
        check: CGROUP_OOM,
        subject: Subject::Node,
        value: Value::Counter(count),
        words: "processes killed because a cgroup had reached its memory limit".into(),
        runs: Vec::new(),
    })
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
}
