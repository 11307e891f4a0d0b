//! NICs in a tree: interfaces, and RDMA devices with their ports, GID tables and counters.

use std::io;

use crate::{pci::Device, tree::Tree};

/// One RDMA device with one port.
pub(crate) struct Rdma<'a> {
    pub(crate) name: &'a str,
    pub(crate) number: u32,
    pub(crate) firmware: &'a str,
    pub(crate) board: &'a str,
    pub(crate) rate: &'a str,
    pub(crate) link_layer: &'a str,
    pub(crate) lid: u32,
    /// Address, kind and interface. An entry with an empty kind cannot be read, like entries that
    /// are hidden from a container.
    pub(crate) gids: &'a [(String, &'a str, &'a str)],
}

const COUNTERS: [&str; 9] = [
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_data",
    "port_xmit_data",
];
const HW_COUNTERS: [&str; 4] = [
    "rnr_nak_retry_err",
    "local_ack_timeout_err",
    "roce_slow_restart",
    "out_of_sequence",
];

impl Rdma<'_> {
    pub(crate) fn put(&self, tree: &Tree, device: &Device<'_>) -> io::Result<()> {
        let folder = format!("{}/infiniband/{}", device.folder(), self.name);
        let guid = format!(
            "a088:c203:00{:02x}:{:04x}",
            self.number,
            0x1a00 + self.number
        );
        tree.files(
            &folder,
            &[
                ("node_guid", &guid),
                ("fw_ver", self.firmware),
                ("board_id", self.board),
            ],
        )?;
        tree.link(&format!("{folder}/device"), &device.folder())?;
        tree.link(&format!("sys/class/infiniband/{}", self.name), &folder)?;
        let port = format!("{folder}/ports/1");
        let lid = format!("0x{:x}", self.lid);
        tree.files(
            &port,
            &[
                ("state", "4: ACTIVE"),
                ("phys_state", "5: LinkUp"),
                ("rate", self.rate),
                ("link_layer", self.link_layer),
                ("lid", &lid),
            ],
        )?;
        for (i, (address, kind, interface)) in self.gids.iter().enumerate() {
            tree.file(&format!("{port}/gids/{i}"), address)?;
            if !kind.is_empty() {
                tree.file(&format!("{port}/gid_attrs/types/{i}"), kind)?;
                tree.file(&format!("{port}/gid_attrs/ndevs/{i}"), interface)?;
            }
        }
        tree.file(
            &format!("{port}/gids/{}", self.gids.len()),
            "0000:0000:0000:0000:0000:0000:0000:0000",
        )?;
        COUNTERS
            .iter()
            .try_for_each(|counter| tree.file(&format!("{port}/counters/{counter}"), "0"))?;
        HW_COUNTERS
            .iter()
            .try_for_each(|counter| tree.file(&format!("{port}/hw_counters/{counter}"), "0"))?;
        if device.driver == "efa" {
            tree.file(&format!("{folder}/hw_counters/no_completion_cmds"), "0")?;
        }
        let verbs = format!("{}/infiniband_verbs/uverbs{}", device.folder(), self.number);
        tree.file(&format!("{verbs}/ibdev"), self.name)?;
        tree.link(
            &format!("sys/class/infiniband_verbs/uverbs{}", self.number),
            &verbs,
        )?;
        tree.file(&format!("dev/infiniband/uverbs{}", self.number), "")
    }
}

pub(crate) struct Interface<'a> {
    pub(crate) name: &'a str,
    pub(crate) speed: Option<u32>,
    pub(crate) mtu: u32,
    /// ARPHRD: 1 Ethernet, 32 InfiniBand, 65534 none (tunnels).
    pub(crate) kind: u32,
    pub(crate) number: u32,
    pub(crate) up: bool,
}

impl Interface<'_> {
    /// An interface on a PCI device, or a virtual one. `kind_word`: the type in `uevent`, such as
    /// `DEVTYPE=wireguard`.
    pub(crate) fn put(
        &self,
        tree: &Tree,
        device: Option<&Device<'_>>,
        kind_word: &str,
    ) -> io::Result<()> {
        let folder = match device {
            Some(device) => format!("{}/net/{}", device.folder(), self.name),
            None => format!("sys/devices/virtual/net/{}", self.name),
        };
        let address = format!("b8:3f:d2:00:00:{:02x}", self.number);
        let speed = self
            .speed
            .map_or("-1".to_owned(), |speed| speed.to_string());
        tree.files(
            &folder,
            &[
                ("address", &address),
                ("mtu", &self.mtu.to_string()),
                ("type", &self.kind.to_string()),
                ("operstate", if self.up { "up" } else { "down" }),
                ("carrier", if self.up { "1" } else { "0" }),
                ("carrier_changes", "2"),
                ("speed", &speed),
                ("uevent", &format!("{kind_word}\nINTERFACE={}", self.name)),
            ],
        )?;
        if let Some(device) = device {
            tree.link(&format!("{folder}/device"), &device.folder())?;
        }
        tree.link(&format!("sys/class/net/{}", self.name), &folder)
    }
}
