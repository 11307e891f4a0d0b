//! PCI devices in a tree.

use std::io;

use crate::tree::Tree;

/// A device and the bridges above it: `pci0000:15/0000:15:01.0/0000:16:00.0`.
pub(crate) struct Device<'a> {
    pub(crate) path: &'a str,
    pub(crate) vendor: &'a str,
    pub(crate) class: &'a str,
    pub(crate) driver: &'a str,
    pub(crate) numa: Option<u32>,
    /// Speed and lanes, now and at best. The kernel writes `32.0 GT/s PCIe`.
    pub(crate) link: (&'a str, u32),
}

pub(crate) const NVIDIA: &str = "0x10de";
pub(crate) const MELLANOX: &str = "0x15b3";
pub(crate) const AMAZON: &str = "0x1d0f";
/// A 3D controller is a GPU without a display.
pub(crate) const GPU: &str = "0x030200";
pub(crate) const DISPLAY: &str = "0x030000";
pub(crate) const SWITCH: &str = "0x068000";
pub(crate) const ETHERNET: &str = "0x020000";
pub(crate) const INFINIBAND: &str = "0x020700";

impl Device<'_> {
    pub(crate) fn folder(&self) -> String {
        format!("sys/devices/{}", self.path)
    }

    pub(crate) fn address(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }

    pub(crate) fn put(&self, tree: &Tree) -> io::Result<()> {
        let folder = self.folder();
        let numa = self.numa.map_or("-1".to_owned(), |node| node.to_string());
        let width = self.link.1.to_string();
        tree.files(
            &folder,
            &[
                ("vendor", self.vendor),
                ("class", self.class),
                ("numa_node", &numa),
                ("current_link_speed", self.link.0),
                ("max_link_speed", self.link.0),
                ("current_link_width", &width),
                ("max_link_width", &width),
            ],
        )?;
        // The port above has the same capability.
        if let Some((above, _)) = folder
            .rsplit_once('/')
            .filter(|(above, _)| !above.rsplit('/').next().unwrap_or("").starts_with("pci"))
        {
            tree.files(
                above,
                &[
                    ("max_link_speed", self.link.0),
                    ("max_link_width", &width),
                    ("class", "0x060400"),
                    ("vendor", "0x1000"),
                ],
            )?;
        }
        if !self.driver.is_empty() {
            tree.folder(&format!("sys/bus/pci/drivers/{}", self.driver))?;
            tree.link(
                &format!("{folder}/driver"),
                &format!("sys/bus/pci/drivers/{}", self.driver),
            )?;
        }
        tree.link(&format!("sys/bus/pci/devices/{}", self.address()), &folder)
    }
}
