//! Whether the kernel has killed a process for want of memory. The kernel counts such kills by the cgroup
//! of the killed process, and else tells only its log, which a container does not see. It may be the
//! cgroup's own limit, one above it, or the whole machine's memory that had been reached.
//!
//! cgroup v2 counts in `memory.events`, with those of all cgroups below; v1 counts in
//! `memory.oom_control`, in the cgroup of the killed process alone. Only the process's own cgroup is
//! looked at: one above it may hold other jobs. Both name the count `oom_kill`,
//! v1 since Linux 4.13.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel counts the kills in one cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kills {
    file: PathBuf,
}

impl Kills {
    /// The count of the cgroup that a process is in. `None`: no file is there that this process can
    /// read, as in the root of cgroup v2, which has no limit.
    pub fn of(pid: i32) -> Option<Self> {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let found = candidates(&cgroups)
            .into_iter()
            .find(|file| fs::read_to_string(file).is_ok_and(|text| counted(&text).is_some()));
        Some(Self { file: found? })
    }

    /// How many processes were killed so far.
    pub fn count(&self) -> Option<u64> {
        counted(&fs::read_to_string(&self.file).ok()?)
    }

    /// The cgroup's directory.
    pub fn cgroup(&self) -> &Path {
        self.file.parent().unwrap_or(&self.file)
    }
}

/// The files that may have the count, by the text of `/proc/PID/cgroup`. A container may see its own
/// cgroup as the root of the mount, and its path from outside.
fn candidates(cgroups: &str) -> Vec<PathBuf> {
    let path = |prefix: &str| {
        cgroups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let is_it = controllers.split(',').any(|name| name == prefix);
            is_it.then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let mut files = Vec::new();
    // With v1 the memory is v1's, even if there is a mount of v2 as well.
    if let Some(path) = path("memory") {
        for path in [path.as_str(), ""] {
            let root = Path::new("/sys/fs/cgroup/memory");
            files.push(root.join(path).join("memory.oom_control"));
        }
        return files;
    }
    if let Some(path) = path("") {
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            files.push(Path::new(root).join(&path).join("memory.events"));
        }
    }
    files
}

fn counted(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_counted_and_other_events_are_not() {
        let v2 = "low 0\nhigh 3\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(counted(v2), Some(1));
        assert_eq!(
            counted("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"),
            Some(4)
        );
        // Linux before 4.13.
        assert_eq!(counted("oom_kill_disable 0\nunder_oom 0\n"), None);
    }

    #[test]
    fn the_count_is_looked_for_where_the_memory_is_accounted() {
        let files = |text: &str| -> Vec<String> {
            let files = candidates(text).into_iter();
            files.map(|file| file.display().to_string()).collect()
        };
        assert_eq!(
            files("9:name=systemd:/\n4:memory:/box/7\n0::/\n"),
            [
                "/sys/fs/cgroup/memory/box/7/memory.oom_control",
                "/sys/fs/cgroup/memory/memory.oom_control"
            ]
        );
        assert_eq!(
            files("0::/pod/run\n"),
            [
                "/sys/fs/cgroup/pod/run/memory.events",
                "/sys/fs/cgroup/unified/pod/run/memory.events"
            ]
        );
        assert_eq!(files("9:pids:/\n"), [""; 0]);
    }
}
