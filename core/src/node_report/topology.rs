//! Distances between devices, in the words of `nvidia-smi topo -m`.
//!
//! The place of a PCIe device is its chain of bridges below a root complex, as sysfs resolves it. A
//! switch has an upstream and a downstream port, so one physical switch is two components of the
//! chain. In most virtual machines every device is under its own root and the chain tells nothing:
//! the distance is then unknown, never "far".

use std::fmt;

use serde::{Deserialize, Serialize};

/// A distance. The order is from near to far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Path {
    /// The device itself.
    X,
    /// This many NVLinks, direct or through NVSwitch.
    Nv(u32),
    /// At most one PCIe switch is between the devices.
    Pix,
    /// Several switches are between them, but no host bridge.
    Pxb,
    /// A host bridge is between them.
    Phb,
    /// Host bridges of the same NUMA node are between them.
    Node,
    /// The devices are on different NUMA nodes.
    Sys,
    #[default]
    Unknown,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::X => f.write_str("X"),
            Path::Nv(links) => write!(f, "NV{links}"),
            Path::Pix => f.write_str("PIX"),
            Path::Pxb => f.write_str("PXB"),
            Path::Phb => f.write_str("PHB"),
            Path::Node => f.write_str("NODE"),
            Path::Sys => f.write_str("SYS"),
            Path::Unknown => f.write_str("?"),
        }
    }
}

/// A word that is not a distance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a distance")]
pub struct NoPath(pub String);

impl std::str::FromStr for Path {
    type Err = NoPath;

    fn from_str(word: &str) -> Result<Self, NoPath> {
        let fixed = [
            Path::X,
            Path::Pix,
            Path::Pxb,
            Path::Phb,
            Path::Node,
            Path::Sys,
            Path::Unknown,
        ];
        if let Some(path) = fixed.into_iter().find(|path| path.to_string() == word) {
            return Ok(path);
        }
        let links = word.strip_prefix("NV").and_then(|links| links.parse().ok());
        links.map(Path::Nv).ok_or_else(|| NoPath(word.to_owned()))
    }
}

/// The distance of every device to every other device: first GPUs by UUID, then RDMA devices and
/// interfaces with a device of their own, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Topology {
    pub devices: Vec<String>,
    /// One row for each device, and one column for each device.
    pub paths: Vec<Vec<Path>>,
    /// The PCIe tree is that of a virtual machine and tells nothing.
    pub flat: bool,
}

impl Topology {
    /// The distance between two devices. `Unknown` also if one of them is not in the matrix.
    pub fn between(&self, one: &str, other: &str) -> Path {
        let at = |name: &str| self.devices.iter().position(|device| device == name);
        let path = at(one)
            .zip(at(other))
            .and_then(|(row, column)| self.paths.get(row)?.get(column));
        path.copied().unwrap_or_default()
    }
}

/// The place of a device in the PCIe tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciPlace {
    /// The root complex: `pci0000:15`.
    pub root: String,
    /// Bridges from the root to the device, without the device: `0000:15:01.0`, ...
    pub bridges: Vec<String>,
    /// The device's own address. Functions of one card differ only in the last digit.
    pub address: String,
    pub numa_node: Option<u32>,
}

impl PciPlace {
    /// Reads the resolved path of `/sys/bus/pci/devices/ADDRESS`. The part before the root is
    /// dropped.
    pub fn parse(resolved: &str, numa_node: Option<u32>) -> Option<Self> {
        let at = resolved.find("/pci")? + 1;
        let mut parts = resolved[at..].split('/');
        let root = parts.next()?.to_owned();
        let mut bridges: Vec<String> = parts.map(str::to_owned).collect();
        let address = bridges.pop()?;
        Some(Self {
            root,
            bridges,
            address,
            numa_node,
        })
    }

    /// Whether the tree tells nothing about this device: no bridge between it and its root, and no
    /// NUMA node.
    fn is_flat(&self) -> bool {
        self.bridges.is_empty() && self.numa_node.is_none()
    }
}

/// Whether no device of the tree tells its place.
pub fn is_flat(places: &[PciPlace]) -> bool {
    !places.is_empty() && places.iter().all(PciPlace::is_flat)
}

/// The distance through PCIe alone.
pub fn pcie_path(one: &PciPlace, other: &PciPlace) -> Path {
    if one.address == other.address {
        return Path::X;
    }
    if one.root != other.root {
        return match (one.numa_node, other.numa_node) {
            (Some(a), Some(b)) if a == b => Path::Node,
            (Some(_), Some(_)) => Path::Sys,
            _ => Path::Unknown,
        };
    }
    let shared = one
        .bridges
        .iter()
        .zip(&other.bridges)
        .take_while(|(a, b)| a == b)
        .count();
    // The root port is the first bridge. If two devices share it, the path between them does not
    // pass the host bridge.
    if shared == 0 {
        return if one.bridges.is_empty() && other.bridges.is_empty() && one.numa_node.is_none() {
            Path::Unknown
        } else {
            Path::Phb
        };
    }
    let below = |place: &PciPlace| place.bridges.len() - shared;
    // Each way has at most a downstream port of the shared switch, or the devices are two functions
    // of one card.
    if below(one) <= 1 && below(other) <= 1 {
        Path::Pix
    } else {
        Path::Pxb
    }
}

/// The number of NVLinks between two GPUs: the links that connect them directly. If there are none
/// and both lead into switches, the number that the GPU with fewer links has.
pub fn nvlinks(one: &super::Gpu, other: &super::Gpu) -> u32 {
    use super::gpu::{Gpu, NvLinkPeer};
    let direct = |from: &Gpu, to: &Gpu| {
        from.nvlinks
            .iter()
            .filter(|link| {
                link.active && matches!(&link.peer, NvLinkPeer::Gpu(pci) if *pci == to.pci)
            })
            .count()
    };
    let switched = |gpu: &Gpu| {
        gpu.nvlinks
            .iter()
            .filter(|link| link.active && matches!(link.peer, NvLinkPeer::Switch(_)))
            .count()
    };
    let links = match direct(one, other) {
        0 => switched(one).min(switched(other)),
        direct => direct,
    };
    links as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, numa: Option<u32>) -> PciPlace {
        PciPlace::parse(&format!("/sys/devices/{path}"), numa).unwrap()
    }

    #[test]
    fn distances_follow_the_bridges() {
        let gpu = place(
            "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0",
            Some(0),
        );
        let sibling = place(
            "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0",
            Some(0),
        );
        let cascaded = place(
            "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0",
            Some(0),
        );
        let other_port = place("pci0000:15/0000:15:02.0/0000:20:00.0", Some(0));
        let same_numa = place("pci0000:37/0000:37:01.0/0000:38:00.0", Some(0));
        let far = place("pci0000:97/0000:97:01.0/0000:98:00.0", Some(1));
        let lost = place("pci0000:a7/0000:a7:01.0/0000:a8:00.0", None);
        for (other, path) in [
            (&gpu, Path::X),
            (&sibling, Path::Pix),
            (&cascaded, Path::Pxb),
            (&other_port, Path::Phb),
            (&same_numa, Path::Node),
            (&far, Path::Sys),
            (&lost, Path::Unknown),
        ] {
            assert_eq!(pcie_path(&gpu, other), path, "{other:?}");
            assert_eq!(
                pcie_path(other, &gpu),
                path,
                "{other:?}, the other way round"
            );
        }
    }

    #[test]
    fn two_functions_of_one_card_are_near() {
        let one = place("pci0000:15/0000:15:01.0/0000:29:00.0", Some(0));
        let two = place("pci0000:15/0000:15:01.0/0000:29:00.1", Some(0));
        assert_eq!(pcie_path(&one, &two), Path::Pix);
    }

    #[test]
    fn a_flat_tree_says_unknown() {
        let (one, two) = (
            place("pci0000:00/0000:00:05.0", None),
            place("pci0000:00/0000:00:06.0", None),
        );
        assert_eq!(pcie_path(&one, &two), Path::Unknown);
        assert!(is_flat(&[one.clone(), two]));
        assert!(!is_flat(&[
            one,
            place("pci0000:15/0000:15:01.0/0000:29:00.0", Some(0))
        ]));
        assert!(!is_flat(&[]), "no device, no tree");
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for path in [
            Path::X,
            Path::Nv(18),
            Path::Pix,
            Path::Pxb,
            Path::Phb,
            Path::Node,
            Path::Sys,
            Path::Unknown,
        ] {
            assert_eq!(path.to_string().parse(), Ok(path));
        }
        for wrong in ["", "NV", "NVx", "pix"] {
            assert!(wrong.parse::<Path>().is_err(), "{wrong:?}");
        }
    }
}
