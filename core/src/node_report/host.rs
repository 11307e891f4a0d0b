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
    /// Size of `/dev/shm` as the agent, and so its workers, see it. NCCL's shared-memory transport
    /// lives there.
    pub shm_bytes: Option<u64>,
    /// How much memory a worker may lock, for RDMA; `u64::MAX` is unlimited.
    pub memlock_bytes: Option<u64>,
    pub open_files: Option<u64>,
    /// GPUDirect RDMA through the nvidia-peermem module.
    pub peermem: bool,
    /// `/dev/nvidia*` nodes, without their path: `nvidiactl`, `nvidia-uvm`, `nvidia0`,
    /// `nvidia-caps`.
    pub gpu_device_files: Vec<String>,
    /// Channels of multi-node NVLink (`/dev/nvidia-caps-imex-channels/`).
    pub imex_channels: Vec<String>,
    /// Variables that configuration files of NCCL set on this node (`/etc/nccl.conf`): whoever
    /// exports one of these overrules its owner.
    pub nccl_conf: Vec<String>,
    /// A topology file that a virtual machine's vendor put down for NCCL.
    pub topology_file: Option<String>,
    /// It says it is a virtual machine.
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
