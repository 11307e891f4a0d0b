//! Finds mistakes in the variables that a user gives to NCCL and Gloo, before a run hangs on them.
//!
//! It asks two questions: does a value mean what its author thinks ([`values`], needs no node), and
//! does the node have what the value names ([`names`]).

use std::collections::BTreeMap;

use crate::node_report::NodeReport;

/// A remark on one variable, for its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    pub variable: String,
    /// True: a run with this value cannot work. False: the value does something else than it seems
    /// to say.
    pub fatal: bool,
    pub message: String,
}

/// Words that people write for a boolean. NCCL reads numbers by C's rules, and reads each of these
/// words as 0.
const BOOLEAN_WORDS: [&str; 8] = [
    "true", "false", "yes", "no", "on", "off", "enable", "disable",
];

/// Names of levels for `NCCL_P2P_LEVEL` and `NCCL_NET_GDR_LEVEL`. NCCL compares exactly. `NODE`,
/// which nvidia-smi prints, is not one of NCCL's names.
const LEVELS: [&str; 11] = [
    "LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NODE",
];

/// Variables of torch by their names before 2.2. Today's torch ignores them.
const RENAMED: [&str; 9] = [
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING",
    "NCCL_TRACE_BUFFER_SIZE",
    "NCCL_DUMP_ON_TIMEOUT",
    "NCCL_AVOID_RECORD_STREAMS",
    "NCCL_USE_COMM_NONBLOCKING",
    "NCCL_HIGH_PRIORITY",
];

/// Remarks on values that do not mean what they seem to say. `nodes`: the most nodes that the job
/// may have.
pub fn values(env: &BTreeMap<String, String>, nodes: u32) -> Vec<Remark> {
    env.iter()
        .filter_map(|(name, value)| {
            Some(Remark {
                variable: name.clone(),
                fatal: false,
                message: value_remark(name, value, nodes)?,
            })
        })
        .collect()
}

fn value_remark(name: &str, value: &str, nodes: u32) -> Option<String> {
    let lower = value.trim().to_ascii_lowercase();
    if RENAMED.contains(&name) {
        return Some(format!(
            "{name} is read by no torch of today; its name is TORCH_{name}"
        ));
    }
    if name.starts_with("NCCL_") && BOOLEAN_WORDS.contains(&lower.as_str()) {
        return Some(format!(
            "{name}={value} is 0 to NCCL, which reads numbers only; write {name}={}",
            number_meant(&lower)
        ));
    }
    match name {
        "NCCL_P2P_DISABLE" if value != "0" && value != "1" => Some(format!(
            "{name}={value} disables nothing: NCCL reacts to exactly 1"
        )),
        "NCCL_P2P_LEVEL" | "NCCL_NET_GDR_LEVEL" | "NCCL_NET_GDR_C2C" if value == "NODE" => {
            Some(format!(
                "{name}=NODE is dropped by NCCL without a word, and its default applies; PHB is the nearest level it knows"
            ))
        }
        "NCCL_P2P_LEVEL" | "NCCL_NET_GDR_LEVEL"
            if !LEVELS.contains(&value) && value.parse::<u8>().map_or(true, |level| level > 5) =>
        {
            Some(format!(
                "{name}={value} is no level NCCL knows ({}, or 0 to 5), and its default applies",
                LEVELS[..10].join(", ")
            ))
        }
        "GLOO_SOCKET_IFNAME" | "TP_SOCKET_IFNAME" if value.starts_with(['=', '^']) => {
            Some(format!(
                "{name} takes plain names; '=' and '^' are NCCL_SOCKET_IFNAME's, and become part of the name here"
            ))
        }
        "NCCL_IB_GID_INDEX" if nodes > 1 && value != "-1" => Some(format!(
            "{name}={value} fixes one index for all nodes, though it differs between hosts and pods; left out, NCCL finds each node's own"
        )),
        "NCCL_HOSTID" | "NCCL_COMM_ID" => Some(format!(
            "{name} given to all nodes makes NCCL take them for one; leave it out, torch and NCCL find it themselves"
        )),
        _ => None,
    }
}

/// The number that a boolean word stands for.
fn number_meant(word: &str) -> u8 {
    matches!(word, "true" | "yes" | "on" | "enable").into()
}

/// A list in the form of `NCCL_SOCKET_IFNAME` and `NCCL_IB_HCA`: `[^][=]name[:port],...`. `^`
/// excludes the names. Without `=` a name is a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameList {
    pub exclude: bool,
    pub exact: bool,
    pub names: Vec<String>,
}

impl NameList {
    pub fn parse(text: &str) -> Self {
        let (exclude, rest) = text
            .strip_prefix('^')
            .map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest
            .strip_prefix('=')
            .map_or((false, rest), |rest| (true, rest));
        let names = rest
            .split(',')
            .map(|name| name.split(':').next().unwrap_or_default().trim().to_owned());
        Self {
            exclude,
            exact,
            names: names.filter(|name| !name.is_empty()).collect(),
        }
    }

    /// The devices in `all` that the list leaves in use.
    pub fn of<'a>(&self, all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        let listed = |device: &str| {
            self.names.iter().any(|name| {
                if self.exact {
                    device == name
                } else {
                    device.starts_with(name.as_str())
                }
            })
        };
        all.filter(|device| listed(device) != self.exclude)
            .collect()
    }
}

/// Remarks on names that this node does not have, or that match more devices than meant. A part
/// that is missing in the report is not judged, because a node on which nothing could be read has
/// no interfaces either.
pub fn names(env: &BTreeMap<String, String>, report: &NodeReport) -> Vec<Remark> {
    let interfaces: Vec<&str> = report
        .network
        .interfaces
        .iter()
        .map(|interface| interface.name.as_str())
        .chain(["lo"])
        .collect();
    let adapters: Vec<&str> = report
        .network
        .rdma
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    let mut remarks = Vec::new();
    if !report.network.interfaces.is_empty() {
        if let Some(value) = env.get("NCCL_SOCKET_IFNAME") {
            remarks.extend(listed(
                "NCCL_SOCKET_IFNAME",
                "network interface",
                value,
                &interfaces,
            ));
        }
        for variable in ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"] {
            let Some(value) = env.get(variable) else {
                continue;
            };
            for name in value.split(',').filter(|name| !interfaces.contains(name)) {
                remarks.push(missing(variable, "network interface", name, &interfaces));
            }
        }
    }
    if !adapters.is_empty()
        && let Some(value) = env.get("NCCL_IB_HCA")
    {
        remarks.extend(listed("NCCL_IB_HCA", "RDMA device", value, &adapters));
    }
    remarks
}

fn listed(variable: &str, kind: &str, value: &str, have: &[&str]) -> Vec<Remark> {
    let list = NameList::parse(value);
    let mut remarks = Vec::new();
    if list.of(have.iter().copied()).is_empty() {
        let message = format!(
            "{variable}={value} leaves no {kind} in use; there are {}",
            have.join(", ")
        );
        return vec![Remark {
            variable: variable.to_owned(),
            fatal: true,
            message,
        }];
    }
    for name in &list.names {
        let hits: Vec<&&str> = have
            .iter()
            .filter(|device| {
                if list.exact {
                    *device == name
                } else {
                    device.starts_with(name.as_str())
                }
            })
            .collect();
        if hits.is_empty() && !list.exclude {
            remarks.push(missing(variable, kind, name, have));
        } else if !list.exact && hits.len() > 1 && have.contains(&name.as_str()) {
            let hits: Vec<&str> = hits.into_iter().copied().collect();
            let message = format!(
                "{variable}={value} takes every name that starts so: {}; write {variable}=={name} for that one",
                hits.join(", ")
            );
            remarks.push(Remark {
                variable: variable.to_owned(),
                fatal: false,
                message,
            });
        }
    }
    remarks
}

fn missing(variable: &str, kind: &str, name: &str, have: &[&str]) -> Remark {
    let message = format!(
        "{variable} names the {kind} {name:?}, which is not there; there are {}",
        have.join(", ")
    );
    Remark {
        variable: variable.to_owned(),
        fatal: true,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_report::network::{Interface, Network, RdmaDevice};

    fn env(text: &str) -> BTreeMap<String, String> {
        text.split_whitespace()
            .map(|word| word.split_once('=').unwrap())
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect()
    }

    fn said(text: &str) -> String {
        let remarks = values(&env(text), 2);
        assert!(
            remarks.len() <= 1 && remarks.iter().all(|remark| !remark.fatal),
            "{remarks:?}"
        );
        remarks.into_iter().map(|remark| remark.message).collect()
    }

    #[test]
    fn words_are_zero_to_nccl() {
        assert_eq!(
            said("NCCL_IB_DISABLE=true"),
            "NCCL_IB_DISABLE=true is 0 to NCCL, which reads numbers only; write NCCL_IB_DISABLE=1"
        );
        assert!(said("NCCL_NVLS_ENABLE=Off").ends_with("write NCCL_NVLS_ENABLE=0"));
        assert!(said("NCCL_P2P_DISABLE=2").contains("disables nothing"));
        for fine in [
            "NCCL_IB_DISABLE=1",
            "TORCH_NCCL_BLOCKING_WAIT=true",
            "NCCL_DEBUG=INFO",
            "MY_FLAG=true",
            "NCCL_P2P_DISABLE=1",
        ] {
            assert_eq!(said(fine), "");
        }
    }

    #[test]
    fn levels_lists_and_old_names() {
        assert!(said("NCCL_NET_GDR_LEVEL=NODE").contains("PHB"));
        assert!(said("NCCL_P2P_LEVEL=pix").contains("no level NCCL knows"));
        assert!(said("NCCL_P2P_LEVEL=9").contains("no level"));
        assert_eq!(said("NCCL_P2P_LEVEL=NVL") + &said("NCCL_P2P_LEVEL=5"), "");
        assert!(said("GLOO_SOCKET_IFNAME==eth0").contains("plain names"));
        assert!(said("NCCL_ASYNC_ERROR_HANDLING=1").contains("TORCH_NCCL_ASYNC_ERROR_HANDLING"));
        assert!(said("NCCL_IB_GID_INDEX=3").contains("NCCL finds each node's own"));
        assert!(
            values(&env("NCCL_IB_GID_INDEX=3"), 1).is_empty(),
            "one node has one index"
        );
    }

    #[test]
    fn lists_are_read_as_nccl_reads_them() {
        let have = ["mlx5_0", "mlx5_1", "mlx5_10"];
        let of = |text: &str| NameList::parse(text).of(have.into_iter()).join(" ");
        assert_eq!(of("mlx5_1"), "mlx5_1 mlx5_10");
        assert_eq!(of("=mlx5_1:1,mlx5_0:1:0:0"), "mlx5_0 mlx5_1");
        assert_eq!(of("^=mlx5_1"), "mlx5_0 mlx5_10");
        assert_eq!(of("^mlx5_1"), "mlx5_0");
    }

    #[test]
    fn names_are_held_against_the_node() {
        let interfaces = ["eth0", "eth1", "eth10"]
            .map(|name| Interface {
                name: name.into(),
                ..Interface::default()
            })
            .into();
        let rdma = ["mlx5_0"]
            .map(|name| RdmaDevice {
                name: name.into(),
                ..RdmaDevice::default()
            })
            .into();
        let report = NodeReport {
            network: Network {
                interfaces,
                rdma,
                ..Network::default()
            },
            ..NodeReport::default()
        };
        let said = |text: &str| {
            names(&env(text), &report)
                .into_iter()
                .map(|r| (r.fatal, r.message))
                .collect::<Vec<_>>()
        };
        assert_eq!(said("NCCL_SOCKET_IFNAME=bond0").len(), 1);
        assert!(said("NCCL_SOCKET_IFNAME=bond0")[0].0);
        assert_eq!(
            said("GLOO_SOCKET_IFNAME=eth0,ib0"),
            [(
                true,
                "GLOO_SOCKET_IFNAME names the network interface \"ib0\", which is not there; there are eth0, eth1, eth10, lo"
                    .into()
            )]
        );
        assert_eq!(
            said("NCCL_SOCKET_IFNAME=eth1"),
            [(
                false,
                "NCCL_SOCKET_IFNAME=eth1 takes every name that starts so: eth1, eth10; write NCCL_SOCKET_IFNAME==eth1 for that one"
                    .into()
            )]
        );
        assert!(
            said("NCCL_SOCKET_IFNAME==eth1 NCCL_IB_HCA==mlx5_0:1 GLOO_SOCKET_IFNAME=lo").is_empty()
        );
        assert!(
            said("NCCL_IB_HCA=^mlx5")[0]
                .1
                .contains("leaves no RDMA device in use")
        );
        assert!(
            names(&env("NCCL_SOCKET_IFNAME=bond0"), &NodeReport::default()).is_empty(),
            "nothing known, nothing said"
        );
    }
}
