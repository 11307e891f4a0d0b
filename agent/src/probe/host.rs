//! What the kernel says about the machine; it does not change while an agent runs.

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

pub(super) struct Host {
    pub(super) name: String,
    pub(super) kernel: String,
    pub(super) cpus: u32,
    pub(super) memory_bytes: u64,
}

impl Host {
    pub(super) fn read() -> Self {
        let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
        Self {
            name: System::host_name().unwrap_or_default(),
            kernel: System::kernel_version().unwrap_or_default(),
            // Those this process may use: a cpuset or a quota counts.
            cpus: std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            memory_bytes: System::new_with_specifics(memory).map_or(0, |system| system.total_memory()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_proc() {
        let host = Host::read();
        let proc = |path: &str| std::fs::read_to_string(path).unwrap();
        assert_eq!(host.kernel, proc("/proc/sys/kernel/osrelease").trim());
        assert_eq!(host.name, proc("/proc/sys/kernel/hostname").trim());
        let total = proc("/proc/meminfo")
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        assert_eq!(host.memory_bytes / 1_024, total.unwrap());
        assert!(host.cpus >= 1);
    }
}
