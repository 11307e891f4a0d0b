//! What the library answers, as data: `hardware.json`.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

pub const FILE: &str = "hardware.json";

/// Everything that NVML can be asked about one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hardware {
    pub driver: String,
    pub nvml: String,
    /// The CUDA version: 12080 is 12.8.
    pub cuda: i32,
    /// Every call sleeps until this is false again.
    pub hang: bool,
    /// What `nvmlInit` answers instead of success.
    pub init_error: Option<u32>,
    /// The highest known version of the fabric structure. 0: none is known.
    pub fabric_version: u32,
    pub gpus: Vec<Gpu>,
    /// Events, newest last. Those that come after the event set was made are delivered.
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub sequence: u64,
    pub gpu: usize,
    /// NVML's event bit: 8 is an XID.
    pub kind: u64,
    pub value: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    pub uuid: String,
    pub name: String,
    pub serial: String,
    pub minor: u32,
    pub module: Option<u32>,
    /// `00000000:1B:00.0`, as NVML writes it.
    pub pci: String,
    pub numa: Option<u32>,
    pub memory: u64,
    pub memory_used: u64,
    /// A screen, or X, uses memory of it.
    pub display: bool,
    pub compute_capability: (i32, i32),
    pub compute_mode: u32,
    pub persistence: bool,
    /// `None`: a card without ECC.
    pub ecc: Option<Ecc>,
    pub mig: Option<Mig>,
    /// Every call for it answers 15 (GPU is lost).
    pub lost: bool,
    /// Every call for it answers this.
    pub error: Option<u32>,
    /// Field 230. Drivers before R570 do not have it.
    pub recovery: Option<u32>,
    pub remap: Option<Remap>,
    pub retired: Option<(u32, bool)>,
    pub throttle: u64,
    pub temperature: u32,
    /// The temperature of the memory, now and at most. Cards before Ampere do not have it.
    pub memory_temperature: Option<(u32, u32)>,
    pub power: u32,
    pub power_limit: u32,
    pub utilization: u32,
    pub clock: (u32, u32),
    pub pcie: Pcie,
    pub links: Vec<Link>,
    pub fabric: Option<Fabric>,
    pub processes: Vec<(u32, u64)>,
    /// When it was reset, in milliseconds of the Unix time.
    pub reset_ms: u64,
}

impl Gpu {
    /// In millijoules since the last reset.
    pub fn energy(&self) -> u64 {
        now_ms().saturating_sub(self.reset_ms) * u64::from(self.power.max(1_000)) / 1_000
    }
}

pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ecc {
    /// Errors of the DRAM.
    pub corrected: u64,
    pub uncorrected: u64,
    pub sram_corrected: u64,
    pub sram_uncorrected: u64,
    pub sram_threshold: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mig {
    pub current: bool,
    pub pending: bool,
    pub instances: Vec<MigInstance>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MigInstance {
    pub uuid: String,
    pub name: String,
    pub memory: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remap {
    pub corrected: u32,
    pub uncorrected: u32,
    pub pending: bool,
    pub failure: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pcie {
    pub generation: u32,
    pub generation_max: u32,
    pub width: u32,
    pub width_max: u32,
    pub replays: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Link {
    pub active: bool,
    /// The PCI address of the other end. `None`: it is hidden, as in a virtual machine.
    pub remote: Option<String>,
    pub to_switch: bool,
    pub crc_errors: u64,
    pub recovery_failures: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fabric {
    /// 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    pub status: u32,
    pub clique: u32,
    pub cluster: [u8; 16],
    pub health_mask: u32,
    /// 1 healthy, 2 unhealthy, 3 limited.
    pub health: u8,
}

impl Hardware {
    pub fn read(dir: &Path) -> anyhow::Result<Self> {
        Ok(serde_json::from_str(&std::fs::read_to_string(
            dir.join(FILE),
        )?)?)
    }

    /// Writes the file as a whole or not at all, because programs read it at any moment.
    pub fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let next = dir.join(".hardware.next");
        std::fs::write(&next, serde_json::to_string_pretty(self)?)?;
        Ok(std::fs::rename(next, dir.join(FILE))?)
    }

    pub fn event(&mut self, gpu: usize, kind: u64, value: u64) {
        let sequence = self.events.last().map_or(0, |last| last.sequence) + 1;
        self.events.push(Event {
            sequence,
            gpu,
            kind,
            value,
        });
        // A storm of weeks must not fill the disk.
        const KEPT: usize = 256;
        let surplus = self.events.len().saturating_sub(KEPT);
        self.events.drain(..surplus);
    }
}
