//! The TCPStore that a runner serves: where it listens, and its state.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

/// Where the TCPStore listens, as `ip:port`; port 0 lets the kernel choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreSpec {
    pub bind: String,
    /// Take a free port of this range instead of `bind`'s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
    /// The generation's `--rdzv-id`, which is part of the keys of torchrun's exit barrier.
    #[serde(default)]
    pub run_id: String,
    /// The addresses of all members. Connections from elsewhere are refused. Empty: anyone may
    /// connect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<IpAddr>,
}

/// Ports from the first to the last, as `20000-20999`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = text.split_once('-').and_then(|(first, last)| {
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first >= 1024 && first <= last).then_some(Self { first, last })
        });
        range.ok_or_else(|| {
            format!("{text:?} is no range of ports from 1024 to 65535, such as 20000-20999")
        })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl PortRange {
    /// Each port once, starting at a place that `chance` picks.
    pub fn from_any(self, chance: u64) -> impl Iterator<Item = u16> {
        let count = u64::from(self.last - self.first) + 1;
        (0..count).map(move |n| self.first + ((chance % count + n) % count) as u16)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStatus {
    pub addr: String,
    pub clients: usize,
    pub joined_ranks: Vec<u32>,
    pub missing_ranks: Vec<u32>,
    /// How many torchruns and ranks have announced themselves, up to one more than there are nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced: Option<u32>,
    #[serde(default)]
    pub all_joined_us: Option<u64>,
    /// When NCCL's first communicator was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communicator_us: Option<u64>,
    /// How many connections the TCPStore has refused, for any reason.
    #[serde(default)]
    pub refused: u64,
    /// Why it refused the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_why: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::PortRange;

    #[test]
    fn a_range_is_read_and_gone_through_once() {
        let range: PortRange = "2007-2009".parse().unwrap();
        assert_eq!(range.from_any(1).collect::<Vec<_>>(), [2008, 2009, 2007]);
        let all: PortRange = "1024-65535".parse().unwrap();
        assert_eq!(all.from_any(u64::MAX).count(), 64_512);
        for wrong in [
            "",
            "2007",
            "2009-2007",
            "80-2009",
            "2007-65536",
            "2007-9-11",
            "a-b",
        ] {
            let error = wrong.parse::<PortRange>().unwrap_err();
            assert!(error.contains("is no range of ports"), "{error}");
        }
    }
}
