//! The machine around the GPUs, as far as a launch or NCCL depends on it.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Host {
    pub boot_id: String,
    pub cpu_model: String,
    pub sockets: u32,
    /// Cores, not hardware threads.
    pub physical_cores: u32,
    pub numa: Vec<NumaNode>,
    /// Size of `/dev/shm` as the agent sees it, and so its workers. NCCL's shared-memory transport
    /// needs it.
    pub shm_bytes: Option<u64>,
    /// How much memory a worker may lock for RDMA, in bytes. `u64::MAX` means no limit.
    pub memlock_bytes: Option<u64>,
    pub open_files: Option<u64>,
    /// Whether the nvidia-peermem module, through which GPUDirect RDMA works, is loaded.
    pub peermem: bool,
    /// Names of `/dev/nvidia*` without the directory: `nvidiactl`, `nvidia-uvm`, `nvidia0`,
    /// `nvidia-caps`.
    pub gpu_device_files: Vec<String>,
    /// Channels of multi-node NVLink (`/dev/nvidia-caps-imex-channels/`).
    pub imex_channels: Vec<String>,
    /// Names of the variables that NCCL's configuration files set on this node (`/etc/nccl.conf`).
    /// If Muster exported one of them, it would overrule the owner of the file.
    pub nccl_conf: Vec<String>,
    /// A topology file that the vendor of a virtual machine made for NCCL.
    pub topology_file: Option<String>,
    /// Whether the machine says that it is virtual.
    pub virtual_machine: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NumaNode {
    pub id: u32,
    /// As sysfs writes it: `0-55,112-167`.
    pub cpus: String,
    pub memory_bytes: u64,
}
