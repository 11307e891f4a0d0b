//! How to look at the node: where, how often, and for which of its GPUs. The flags give it; the
//! probes know no flags.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_core::{health::Table, node_report::Gpu};

use super::awaited::Peer;

/// The time between glances. A change must be known within a second; the other half is for the
/// look, and for a machine that is busy.
const GLANCE: Duration = Duration::from_millis(500);
/// How to look at the node, checked.
#[derive(Clone, Debug)]
pub struct Probes {
    /// The directory below which sysfs, procfs and devices are looked for.
    pub sysroot: PathBuf,
    /// The file of libnvidia-ml. The loader finds it if none is given.
    pub nvml: Option<PathBuf>,
    /// The node's addresses as other nodes see them, besides those that it sees itself.
    pub outer_addresses: Vec<IpAddr>,
    pub gpus: Share,
    /// How many GPUs there should be, if a person has said so.
    pub expected_gpus: Option<u32>,
    pub table: Table,
    pub pace: Pace,
    /// Whether to keep what must outlive the agent in its state directory.
    pub remembers: bool,
    /// Interfaces and peers without which the node takes no work.
    pub wait_interfaces: Vec<String>,
    pub wait_peers: Vec<Peer>,
    /// The volume that the container for workers shares with the agent's.
    pub pod: Option<PathBuf>,
    /// Where to ask who holds GPUs. None: nobody is asked.
    pub kubelet: Option<Kubelet>,
    /// This file exists once the machine is about to be taken away.
    pub notice_file: Option<PathBuf>,
}

impl Default for Probes {
    fn default() -> Self {
        Self {
            sysroot: "/".into(),
            nvml: None,
            outer_addresses: Vec::new(),
            gpus: Share::All,
            expected_gpus: None,
            table: Table::standard(),
            pace: Pace::default(),
            remembers: true,
            wait_interfaces: Vec::new(),
            wait_peers: Vec::new(),
            pod: None,
            kubelet: None,
            notice_file: None,
        }
    }
}

/// The kubelet of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubelet {
    /// Its socket for the PodResources API.
    pub socket: PathBuf,
    /// The agent's own pod, as namespace and name. This node has the GPUs that the pod holds.
    pub own_pod: Option<(String, String)>,
}

/// How often the probes look. Events and the kernel log are heard at once, independently of this.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Compares handles, the driver's verdict, and the states of links, ports and interfaces with
    /// the last look.
    pub glance: Duration,
    /// Handles, the driver's verdict, remap flags, throttling, links, ports.
    pub fast: Duration,
    /// Counters.
    pub counters: Duration,
    /// Inventory.
    pub slow: Duration,
    /// How much of the machine is in use.
    pub usage: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self::every(Duration::from_secs(5))
    }
}

impl Pace {
    /// Derives all periods from the period of the fast looks.
    pub fn every(fast: Duration) -> Self {
        Self {
            glance: GLANCE.min(fast),
            fast,
            counters: fast * 3,
            slow: fast * 12,
            usage: fast * 2,
        }
    }

    /// NVML counts as hung after three missed looks, as in NVSentinel.
    pub(super) fn hung(self) -> Duration {
        self.fast * 3
    }
}

/// Which GPUs of the machine belong to this node. Several agents may share a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    All,
    /// The `number`-th (from 1) of `of` equal parts, in the order of the GPUs' index.
    Part {
        number: u32,
        of: u32,
    },
    /// By UUID or index.
    Listed(Vec<String>),
}

impl Share {
    pub(super) fn of(&self, gpus: &[Gpu]) -> Vec<Gpu> {
        let all = gpus.len();
        let part = |number: u32, of: u32| all * number as usize / of.max(1) as usize;
        match self {
            Share::All => gpus.to_vec(),
            Share::Part { number, of } => gpus[part(number - 1, *of)..part(*number, *of)].to_vec(),
            Share::Listed(wanted) => {
                let is_wanted = |gpu: &&Gpu| {
                    wanted
                        .iter()
                        .any(|word| *word == gpu.uuid || *word == gpu.index.to_string())
                };
                gpus.iter().filter(is_wanted).cloned().collect()
            }
        }
    }
}

impl std::str::FromStr for Share {
    type Err = String;

    /// `all`, `none`, `2/3`, or UUIDs and indices separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Share::All),
            "none" => return Ok(Share::Listed(Vec::new())),
            _ => {}
        }
        if let Some((number, of)) = text.split_once('/') {
            return match (number.parse(), of.parse()) {
                (Ok(number), Ok(of)) if (1..=of).contains(&number) => {
                    Ok(Share::Part { number, of })
                }
                _ => Err(format!("{text:?} is no part like 2/3")),
            };
        }
        let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
        if words.iter().any(String::is_empty) {
            return Err(format!(
                "{text:?} is none of all, none, N/M, and a list of UUIDs or indices"
            ));
        }
        Ok(Share::Listed(words))
    }
}

/// The standard rules, with those of an operator's file in place of the rules of the same name.
pub(crate) fn table(rules: Option<&Path>) -> Result<Table, String> {
    let Some(path) = rules else {
        return Ok(Table::standard());
    };
    let refuse = |message: String| format!("{}: {message}", path.display());
    let text = fs::read_to_string(path).map_err(|e| refuse(e.to_string()))?;
    Table::standard()
        .overridden(&text)
        .map_err(|e| refuse(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_shared_out_without_overlap() {
        let gpus: Vec<Gpu> = (0..8)
            .map(|index| Gpu {
                uuid: format!("GPU-{index}"),
                index,
                ..Gpu::default()
            })
            .collect();
        let given = |text: &str| {
            text.parse::<Share>()
                .unwrap()
                .of(&gpus)
                .into_iter()
                .map(|gpu| gpu.index)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            [given("1/3"), given("2/3"), given("3/3")].concat(),
            (0..8).collect::<Vec<_>>()
        );
        assert_eq!(given("1/3").len(), 2);
        assert_eq!(given("all").len(), 8);
        assert_eq!(given("none"), [0; 0]);
        assert_eq!(given("3,GPU-5"), [3, 5]);
        for wrong in ["0/3", "4/3", "x/y", "", "1,,2"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong:?}");
        }
    }
}
