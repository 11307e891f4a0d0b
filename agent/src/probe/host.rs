//! What the kernel says about the machine: processors, memory, limits, device files.
//!
//! sysinfo reads a real machine, as far as it can. A tree that only looks like a machine is read by
//! hand ([`Hardware`]).

use std::{collections::BTreeSet, fs};

use muster_core::node_report::host::{Host, NumaNode};

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, System};

use super::roots::Roots;

/// The machine's own facts in the report, together with [`Host`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) kernel: String,
    pub(super) cpus: u32,
    pub(super) memory_bytes: u64,
    pub(super) host: Host,
}

/// A tmpfs that was mounted without a size gets one part in this many of the memory, which is half
/// (kernel documentation of tmpfs).
const TMPFS_SHARE: u64 = 2;

/// The facts about a machine that sysinfo can read.
trait Hardware {
    fn name(&self) -> Option<String>;
    fn kernel(&self) -> Option<String>;
    /// Empty if it is not known.
    fn cpu_model(&self) -> String;
    fn physical_cores(&self) -> Option<usize>;
    /// How many CPUs workers may use.
    fn cpus(&self) -> usize;
    fn memory_bytes(&self) -> u64;
}

/// The machine itself.
struct Real(Option<System>);

impl Real {
    fn look() -> Self {
        let mut system = System::new().ok();
        if let Some(system) = &mut system {
            system.refresh_cpu_list(CpuRefreshKind::nothing());
            system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        }
        Self(system)
    }
}

impl Hardware for Real {
    fn name(&self) -> Option<String> {
        System::host_name().ok()
    }

    fn kernel(&self) -> Option<String> {
        System::kernel_version().ok()
    }

    fn cpu_model(&self) -> String {
        self.0
            .as_ref()
            .and_then(|system| system.cpus().first())
            .map(|cpu| cpu.brand().trim().to_owned())
            .unwrap_or_default()
    }

    fn physical_cores(&self) -> Option<usize> {
        System::physical_core_count().ok()
    }

    /// Unlike sysinfo, this respects a cpuset and a quota.
    fn cpus(&self) -> usize {
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
    }

    fn memory_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, System::total_memory)
    }
}

/// A tree that only looks like a machine. sysinfo cannot read it, since it reads only the machine's
/// own `/proc`.
struct Tree<'a> {
    roots: &'a Roots,
    cpuinfo: &'a str,
}

impl Hardware for Tree<'_> {
    fn name(&self) -> Option<String> {
        self.roots.text("proc/sys/kernel/hostname")
    }

    fn kernel(&self) -> Option<String> {
        self.roots.text("proc/sys/kernel/osrelease")
    }

    fn cpu_model(&self) -> String {
        values(self.cpuinfo, "model name")
            .next()
            .unwrap_or_default()
            .to_owned()
    }

    fn physical_cores(&self) -> Option<usize> {
        let cores: BTreeSet<_> = values(self.cpuinfo, "physical id")
            .zip(values(self.cpuinfo, "core id"))
            .collect();
        (!cores.is_empty()).then_some(cores.len())
    }

    fn cpus(&self) -> usize {
        values(self.cpuinfo, "processor").count()
    }

    fn memory_bytes(&self) -> u64 {
        kib(
            &self.roots.text("proc/meminfo").unwrap_or_default(),
            "MemTotal:",
        )
        .unwrap_or(0)
    }
}

/// All values of `KEY : VALUE` lines.
fn values<'a>(cpuinfo: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    cpuinfo.lines().filter_map(move |line| {
        line.split_once(':')
            .filter(|(name, _)| name.trim() == key)
            .map(|(_, value)| value.trim())
    })
}

pub(super) fn read(roots: &Roots) -> Machine {
    let cpuinfo = roots.text("proc/cpuinfo").unwrap_or_default();
    if roots.is_real() {
        machine(roots, &cpuinfo, &Real::look())
    } else {
        machine(
            roots,
            &cpuinfo,
            &Tree {
                roots,
                cpuinfo: &cpuinfo,
            },
        )
    }
}

/// Sockets and the mark of a virtual machine come from `cpuinfo`, since sysinfo knows neither.
fn machine(roots: &Roots, cpuinfo: &str, hardware: &impl Hardware) -> Machine {
    let threads = values(cpuinfo, "processor").count();
    let sockets: BTreeSet<&str> = values(cpuinfo, "physical id").collect();
    let memory_bytes = hardware.memory_bytes();
    let mounts = roots.text("proc/self/mounts").unwrap_or_default();
    let limits = roots.text("proc/self/limits").unwrap_or_default();
    let host = Host {
        boot_id: roots
            .text("proc/sys/kernel/random/boot_id")
            .unwrap_or_default(),
        cpu_model: hardware.cpu_model(),
        sockets: sockets.len().max(1) as u32,
        physical_cores: hardware
            .physical_cores()
            .filter(|cores| *cores > 0)
            .unwrap_or(threads) as u32,
        numa: numa(roots),
        shm_bytes: shm(&mounts, memory_bytes),
        memlock_bytes: limit(&limits, "Max locked memory"),
        open_files: limit(&limits, "Max open files"),
        peermem: roots.exists("sys/module/nvidia_peermem")
            || roots.exists("sys/kernel/mm/memory_peers/nv_mem"),
        gpu_device_files: roots
            .names("dev")
            .into_iter()
            .filter(|name| name.starts_with("nvidia"))
            .collect(),
        imex_channels: roots.names("dev/nvidia-caps-imex-channels"),
        topology_file: topology_file(roots),
        nccl_conf: nccl_conf(&roots.text("etc/nccl.conf").unwrap_or_default()),
        virtual_machine: values(cpuinfo, "flags")
            .next()
            .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
    };
    Machine {
        name: hardware.name().unwrap_or_default(),
        kernel: hardware.kernel().unwrap_or_default(),
        cpus: u32::try_from(hardware.cpus()).unwrap_or(u32::MAX),
        memory_bytes,
        host,
    }
}

/// Reads `MemTotal:  1024 kB` from anywhere in a line.
fn kib(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.split_once(key))?.1;
    rest.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib << 10)
}

fn numa(roots: &Roots) -> Vec<NumaNode> {
    let folder = "sys/devices/system/node";
    let mut nodes: Vec<NumaNode> = roots
        .names(folder)
        .iter()
        .filter_map(|name| {
            let id = name.strip_prefix("node")?.parse().ok()?;
            Some(NumaNode {
                id,
                cpus: roots.text(&format!("{folder}/{name}/cpulist"))?,
                memory_bytes: kib(
                    &roots
                        .text(&format!("{folder}/{name}/meminfo"))
                        .unwrap_or_default(),
                    "MemTotal:",
                )
                .unwrap_or(0),
            })
        })
        .collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

/// The size of /dev/shm from its mount options. A mount without a size has the kernel's default.
fn shm(mounts: &str, memory: u64) -> Option<u64> {
    let options = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        (words.next()? == "/dev/shm")
            .then(|| words.nth(1))
            .flatten()
    })?;
    let size = options
        .split(',')
        .find_map(|option| option.strip_prefix("size="));
    match size {
        None => Some(memory / TMPFS_SHARE),
        Some(size) => {
            let digits = size.trim_end_matches(|c: char| !c.is_ascii_digit());
            let unit = match &size[digits.len()..] {
                "k" | "K" => 10,
                "m" | "M" => 20,
                "g" | "G" => 30,
                _ => 0,
            };
            digits.parse::<u64>().ok().map(|number| number << unit)
        }
    }
}

/// The soft limit of a line of `/proc/PID/limits`. "unlimited" becomes the largest number.
fn limit(limits: &str, name: &str) -> Option<u64> {
    let value = limits
        .lines()
        .find_map(|line| line.strip_prefix(name))?
        .split_whitespace()
        .next()?;
    if value == "unlimited" {
        Some(u64::MAX)
    } else {
        value.parse().ok()
    }
}

/// The file in which vendors of virtual machines put NCCL's topology. NCCL finds it by itself.
fn topology_file(roots: &Roots) -> Option<String> {
    const PLACE: &str = "/var/run/nvidia-topologyd/virtualTopology.xml";
    roots.exists(&PLACE[1..]).then(|| PLACE.to_owned())
}

/// Names of the variables that a configuration file of NCCL sets. Each line is `NAME=VALUE`, and
/// `#` begins a comment.
fn nccl_conf(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// The name that a process gives itself. It is empty if it cannot be read from here.
pub(super) fn process_name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

/// Whether the fabric manager of an NVSwitch machine has left its pid file while its process is
/// gone. None: it cannot be determined from here.
pub(super) fn fabric_manager_gone(roots: &Roots) -> Option<bool> {
    let pid: u32 = roots.number("run/nvidia-fabricmanager/nv-fabricmanager.pid")?;
    let name = roots.text(&format!("proc/{pid}/comm")).unwrap_or_default();
    Some(!name.starts_with("nv-fabricmanage"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn agrees_with_proc() {
        let machine = read(&Roots::new(Path::new("/")));
        let proc = |path: &str| fs::read_to_string(path).unwrap();
        assert_eq!(machine.kernel, proc("/proc/sys/kernel/osrelease").trim());
        assert_eq!(machine.name, proc("/proc/sys/kernel/hostname").trim());
        assert!(machine.memory_bytes > 0 && machine.cpus >= 1 && machine.host.physical_cores >= 1);
        assert!(machine.host.open_files.is_some());
    }

    #[test]
    fn sysinfo_and_a_tree_s_reader_say_the_same_of_one_machine() {
        let roots = Roots::new(Path::new("/"));
        let cpuinfo = roots.text("proc/cpuinfo").unwrap();
        let (real, tree) = (
            Real::look(),
            Tree {
                roots: &roots,
                cpuinfo: &cpuinfo,
            },
        );
        let of = |hardware: &dyn Hardware| {
            (
                hardware.name(),
                hardware.kernel(),
                hardware.cpu_model(),
                hardware.memory_bytes(),
            )
        };
        assert_eq!(of(&real), of(&tree));
        assert!(tree.physical_cores().is_none() || tree.physical_cores() == real.physical_cores());
    }

    #[test]
    fn the_size_of_shm_is_in_the_mount() {
        let mounts =
            |options: &str| format!("proc /proc proc rw 0 0\nshm /dev/shm tmpfs rw{options} 0 0");
        assert_eq!(shm(&mounts(",size=65536k"), 8 << 30), Some(64 << 20));
        assert_eq!(shm(&mounts(",size=1073741824"), 8 << 30), Some(1 << 30));
        assert_eq!(shm(&mounts(""), 8 << 30), Some(4 << 30));
        assert_eq!(shm("proc /proc proc rw 0 0", 8 << 30), None);
    }

    #[test]
    fn names_of_nccl_s_configuration() {
        assert_eq!(
            nccl_conf("# site\nNCCL_IB_TC=106\n #NCCL_X=1\nNCCL_DEBUG = WARN # why\nnonsense\n"),
            ["NCCL_IB_TC", "NCCL_DEBUG"]
        );
    }

    #[test]
    fn limits_are_soft_ones() {
        let limits = "Max locked memory         8388608              unlimited            bytes";
        assert_eq!(limit(limits, "Max locked memory"), Some(8_388_608));
        assert_eq!(
            limit(&limits.replace("8388608", "unlimited"), "Max locked memory"),
            Some(u64::MAX)
        );
        assert_eq!(limit(limits, "Max open files"), None);
    }
}
