//! The machine around the GPUs: processors, memory, limits, routes.

use std::{fmt::Write, io};

use crate::tree::Tree;

pub(super) struct Host<'a> {
    pub(super) name: &'a str,
    pub(super) kernel: &'a str,
    pub(super) cpu: &'a str,
    pub(super) sockets: u32,
    /// Per socket.
    pub(super) cores: u32,
    /// Per core.
    pub(super) threads: u32,
    pub(super) memory_gib: u64,
    /// The number of NUMA nodes. 0: the kernel shows none.
    pub(super) numa: u32,
    pub(super) memlock: &'a str,
    pub(super) shm: &'a str,
    pub(super) vendor: &'a str,
    pub(super) product: &'a str,
    pub(super) default_route: &'a str,
}

impl Host<'_> {
    pub(super) fn put(&self, tree: &Tree) -> io::Result<()> {
        tree.files(
            "proc/sys/kernel",
            &[
                ("hostname", self.name),
                ("osrelease", self.kernel),
                ("random/boot_id", "7d0e1c55-0c0a-4a52-a4a3-2f6f2f1d9a11"),
            ],
        )?;
        tree.file("proc/cpuinfo", &self.cpuinfo())?;
        let total = self.memory_gib << 20;
        tree.file(
            "proc/meminfo",
            &format!(
                "MemTotal:       {total} kB\nMemFree:        {} kB",
                total / 2
            ),
        )?;
        tree.file(
            "proc/self/mounts",
            &format!(
                "proc /proc proc rw 0 0\ntmpfs /dev/shm tmpfs rw,nosuid,nodev{} 0 0",
                self.shm
            ),
        )?;
        tree.file(
            "proc/self/limits",
            &format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max open files            1048576              1048576              files     \n\
                 Max locked memory         {0:<20} {0:<20} bytes     ",
                self.memlock
            ),
        )?;
        for node in 0..self.numa {
            let folder = format!("sys/devices/system/node/node{node}");
            tree.file(&format!("{folder}/cpulist"), &self.cpulist(node))?;
            tree.file(
                &format!("{folder}/meminfo"),
                &format!(
                    "Node {node} MemTotal:       {} kB",
                    total / u64::from(self.numa)
                ),
            )?;
        }
        tree.files(
            "sys/class/dmi/id",
            &[("sys_vendor", self.vendor), ("product_name", self.product)],
        )?;
        let route = format!(
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
             {0}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n{0}\t0000000A\t00000000\t0001\t0\t0\t100\t0000FFFF\t0\t0\t0",
            self.default_route
        );
        tree.file("proc/net/route", &route)?;
        tree.file(
            "proc/net/fib_trie",
            "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL",
        )?;
        tree.file(
            "proc/net/if_inet6",
            "00000000000000000000000000000001 01 80 10 80       lo",
        )?;
        tree.file("dev/kmsg", "6,0,0,-;Linux version")
    }

    fn cpuinfo(&self) -> String {
        let mut text = String::new();
        let flags = if self.vendor.contains("Google") || self.vendor.contains("Amazon") {
            "fpu hypervisor"
        } else {
            "fpu"
        };
        let cores = self.sockets * self.cores;
        for cpu in 0..cores * self.threads {
            // On ARM the kernel shows neither a model nor the sockets.
            if self.cpu.is_empty() {
                let _ = write!(
                    text,
                    "processor\t: {cpu}\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\n"
                );
                continue;
            }
            let (socket, core) = ((cpu % cores) / self.cores, cpu % self.cores);
            let _ = write!(
                text,
                "processor\t: {cpu}\nmodel name\t: {}\nphysical id\t: {socket}\ncore id\t\t: {core}\nflags\t\t: {flags}\n\n",
                self.cpu
            );
        }
        text.trim_end().to_owned()
    }

    /// The first threads of all cores, and then the second ones, in Linux's order.
    fn cpulist(&self, node: u32) -> String {
        let cores = self.sockets * self.cores;
        let each = cores / self.numa.max(1);
        let first = node * each;
        let of_thread = |thread: u32| {
            format!(
                "{}-{}",
                thread * cores + first,
                thread * cores + first + each - 1
            )
        };
        (0..self.threads)
            .map(of_thread)
            .collect::<Vec<_>>()
            .join(",")
    }
}

/// The files that every machine has with the driver and all its services.
pub(super) fn driver_files(tree: &Tree) -> io::Result<()> {
    for name in ["nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"] {
        tree.file(&format!("dev/{name}"), "")?;
    }
    tree.file("sys/module/nvidia/version", "")
}

pub(super) fn fabric_manager(tree: &Tree) -> io::Result<()> {
    tree.file("dev/nvidia-nvswitchctl", "")?;
    tree.file("run/nvidia-fabricmanager/nv-fabricmanager.pid", "2211")?;
    tree.file("proc/2211/comm", "nv-fabricmanager")
}
