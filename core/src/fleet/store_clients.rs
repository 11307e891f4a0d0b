//! Who may connect to a generation's TCPStore: a rule over its members' addresses. It opens no
//! socket; the runner that serves the TCPStore closes the connections of all others.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use crate::{fleet::members::Member, id::NodeName, run::STORE_CLIENTS_MAX};

/// Who may connect to a generation's TCPStore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreClients {
    /// Only who connects from one of these addresses, in their order.
    Members(Vec<IpAddr>),
    /// Everyone who can reach it.
    Anyone(Why),
}

/// Why a store cannot be kept to its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// These members do not tell all their addresses.
    Untold(Vec<NodeName>),
    /// The members have more addresses than one message can carry.
    TooMany(usize),
}

impl StoreClients {
    pub(crate) fn of(members: &[Member]) -> Self {
        let untold: Vec<_> = members
            .iter()
            .filter(|member| member.addresses.is_empty())
            .map(|member| member.node.clone())
            .collect();
        if !untold.is_empty() {
            return Self::Anyone(Why::Untold(untold));
        }
        let all: BTreeSet<IpAddr> = members
            .iter()
            .flat_map(|member| member.addresses.iter().copied())
            .collect();
        match all.len() > STORE_CLIENTS_MAX {
            true => Self::Anyone(Why::TooMany(all.len())),
            false => Self::Members(all.into_iter().collect()),
        }
    }

    /// The addresses that the TCPStore is told. Empty: it takes clients from every address.
    pub(crate) fn addresses(self) -> Vec<IpAddr> {
        match self {
            Self::Members(addresses) => addresses,
            Self::Anyone(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untold(nodes) => {
                let first = nodes.first().map(NodeName::as_str).unwrap_or_default();
                match nodes.len() {
                    0 | 1 => write!(f, "node {first} does not tell all its addresses"),
                    n => write!(
                        f,
                        "node {first} and {} more do not tell all their addresses",
                        n - 1
                    ),
                }
            }
            Self::TooMany(count) => write!(
                f,
                "its members have {count} addresses, and at most {STORE_CLIENTS_MAX} can be told"
            ),
        }
    }
}
