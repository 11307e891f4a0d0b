//! GPUs as NVML names them: inventory and links. Their health is `health`'s.

use std::{ops::Deref, sync::Arc};

use serde::{Deserialize, Serialize};

/// The driver as it was when the agent opened NVML.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Driver {
    /// `570.86.15`.
    pub version: String,
    /// The newest CUDA that the driver can run, as `12.8`.
    pub cuda: String,
    /// Version of the library.
    pub nvml: String,
}

/// One GPU. A field that could not be read, or that the GPU does not support, is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gpu {
    pub uuid: String,
    /// NVML's index. It changes when a GPU with a lower index falls off the bus, so no code uses it
    /// to address a GPU.
    pub index: u32,
    pub model: String,
    pub memory_bytes: u64,
    /// `0000:1b:00.0`: lower case, as sysfs writes it.
    pub pci: String,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    pub serial: String,
    /// The GPU's place on the baseboard.
    pub module_id: Option<u32>,
    pub numa_node: Option<u32>,
    /// CUDA compute capability, as `9.0`.
    pub compute_capability: String,
    pub compute_mode: ComputeMode,
    pub persistence: Option<bool>,
    pub ecc: Option<bool>,
    pub mig: Option<Mig>,
    pub pcie: Option<PcieLink>,
    pub nvlinks: NvLinks,
    pub fabric: Option<Fabric>,
    pub processes: Vec<GpuProcess>,
}

impl Gpu {
    /// The parts of the GPU that can be given to a job: the GPU itself, or its MIG instances.
    pub fn parts(&self) -> Vec<Gpu> {
        match &self.mig {
            Some(mig) if mig.enabled => mig
                .instances
                .iter()
                .map(|instance| self.part(instance))
                .collect(),
            _ => vec![self.clone()],
        }
    }

    fn part(&self, instance: &MigInstance) -> Gpu {
        Gpu {
            uuid: instance.uuid.clone(),
            index: self.index,
            model: format!("{} MIG {}", self.model, instance.profile),
            memory_bytes: instance.memory_bytes,
            pci: self.pci.clone(),
            numa_node: self.numa_node,
            ..Gpu::default()
        }
    }

    /// Whether this UUID is that of the GPU or of one of its MIG instances.
    pub fn has(&self, uuid: &str) -> bool {
        let mut instances = self.mig.iter().flat_map(|mig| &mig.instances);
        self.uuid == uuid || instances.any(|instance| instance.uuid == uuid)
    }

    pub fn active_links(&self) -> usize {
        self.nvlinks.iter().filter(|link| link.active).count()
    }
}

/// Which processes may use the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ComputeMode {
    #[default]
    Default,
    /// No process may make a compute context.
    Prohibited,
    /// Only one process at a time may use the GPU.
    ExclusiveProcess,
    /// A mode this version does not know.
    Other,
}

/// How a GPU is cut into MIG instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Mig {
    pub enabled: bool,
    /// The value that `enabled` will have after the next reset.
    pub pending: bool,
    pub instances: Vec<MigInstance>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigInstance {
    pub uuid: String,
    /// `1g.10gb`.
    pub profile: String,
    pub memory_bytes: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// PCIe generation and lanes: those in use now, and the best that both ends support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PcieLink {
    pub generation: u32,
    pub generation_max: u32,
    pub width: u32,
    pub width_max: u32,
}

/// One NVLink of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NvLink {
    pub link: u32,
    pub active: bool,
    pub peer: NvLinkPeer,
    /// Errors since the agent took its baseline in this boot.
    pub errors: u64,
}

/// The links of one GPU. Machines of one make have the same links, some 1.4 KB for each GPU, so a
/// holder of many reports may share them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Vec<NvLink>", into = "Vec<NvLink>")]
pub struct NvLinks(Arc<[NvLink]>);

impl NvLinks {
    /// Makes the links this GPU's own if they were shared, and returns them.
    pub fn make_mut(&mut self) -> &mut [NvLink] {
        Arc::make_mut(&mut self.0)
    }
}

impl Deref for NvLinks {
    type Target = [NvLink];

    fn deref(&self) -> &[NvLink] {
        &self.0
    }
}

impl From<Vec<NvLink>> for NvLinks {
    fn from(links: Vec<NvLink>) -> Self {
        Self(links.into())
    }
}

impl From<NvLinks> for Vec<NvLink> {
    fn from(links: NvLinks) -> Self {
        links.to_vec()
    }
}

impl FromIterator<NvLink> for NvLinks {
    fn from_iter<I: IntoIterator<Item = NvLink>>(links: I) -> Self {
        Self(links.into_iter().collect())
    }
}

/// The other end of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NvLinkPeer {
    /// A GPU, by its PCI address.
    Gpu(String),
    /// An NVSwitch, by its PCI address. Empty: a container or a virtual machine hides it.
    Switch(String),
    #[default]
    Unknown,
}

/// The GPU's registration with the NVLink fabric of a machine with NVSwitches.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Fabric {
    pub state: FabricState,
    /// NVML's return code of the registration; 0 is success.
    pub status: u32,
    /// UUID of the NVLink domain. Empty: the domain does not go beyond this machine (NVML gives
    /// zeroes).
    pub cluster: String,
    pub clique: u32,
    pub health: FabricHealth,
}

/// How far the registration has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FabricState {
    #[default]
    NotSupported,
    NotStarted,
    InProgress,
    Completed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FabricHealth {
    #[default]
    NotSupported,
    Healthy,
    Unhealthy,
    Limited,
}

/// A process that holds memory of the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuProcess {
    pub pid: u32,
    pub name: String,
    /// In steps of [`GpuProcess::STEP`], so that a growing cache does not make a new report.
    pub memory_bytes: u64,
}

impl GpuProcess {
    pub const STEP: u64 = 256 << 20;
}
