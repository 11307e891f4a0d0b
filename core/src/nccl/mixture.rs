//! Decides which nodes go together in one generation. A difference that is listed here ends in an
//! error of NCCL or CUDA at the first collective, or in a job that is as slow as its slowest GPU.
//! [`super::stack`] decides which interpreters go together.

use std::{collections::BTreeMap, fmt};

use super::{
    environment::socket_interface,
    profile::{Member, compute_devices, cuda_of},
};
use crate::{
    id::NodeName,
    node_report::{NodeReport, network::LinkLayer},
};

/// A property that must be the same on all members.
struct Aspect {
    /// Roles of one job may differ in it.
    by_role: bool,
    what: &'static str,
    /// `None`: not known, which counts against nobody.
    of: fn(&Member<'_>) -> Option<String>,
    consequence: &'static str,
}

/// The differences that keep nodes apart in a job that refuses a mixture.
const ASPECTS: [Aspect; 3] = [
    Aspect {
        by_role: false,
        what: "what the driver can run",
        of: |member| Some(format!("CUDA {}", cuda_of(member.report)?.0)),
        consequence: "one torch build needs one CUDA major on all nodes (driver 525 or later for 12, 580 for 13)",
    },
    Aspect {
        by_role: false,
        what: "the GPU model",
        of: |member| member.given().next().map(|gpu| gpu.model.clone()),
        consequence: "every step waits for the slowest, and NCCL may choose algorithms that not all of them have",
    },
    Aspect {
        by_role: true,
        what: "the number of GPUs",
        of: |member| Some(member.gpus.len().to_string()),
        consequence: "all nodes of a job run the same number of ranks",
    },
];

/// Differences that are only reported. They end badly on one network and well on another, and
/// Muster cannot know which kind the network is.
const TOLD: [Aspect; 1] = [Aspect {
    by_role: false,
    what: "the MTU of its network",
    of: |member| Some(format!("MTU {}", mtu(member.report)?)),
    consequence: "where nothing between them sends the larger packets in parts, they are lost: connections stand up and transfers hang",
}];

/// The smallest MTU of the interfaces of its RoCE devices. Without RoCE devices, the MTU of the
/// interface that its sockets use.
fn mtu(report: &NodeReport) -> Option<u32> {
    let devices = compute_devices(report);
    let roce = devices.iter().filter(|device| {
        device
            .ports
            .iter()
            .any(|port| port.link_layer == LinkLayer::Ethernet)
    });
    let mut names: Vec<&str> = roce
        .flat_map(|device| &device.interfaces)
        .map(String::as_str)
        .collect();
    if names.is_empty() {
        names.extend(socket_interface(report).map(|(name, _)| name));
    }
    let used = report
        .network
        .interfaces
        .iter()
        .filter(|interface| names.contains(&interface.name.as_str()));
    used.map(|interface| interface.mtu)
        .filter(|mtu| *mtu > 0)
        .min()
}

/// A difference between members of one generation that is known to end badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub what: &'static str,
    /// The nodes with each value.
    pub values: BTreeMap<String, Vec<NodeName>>,
    pub consequence: &'static str,
}

impl Mismatch {
    /// Makes a mismatch of the values that were found. `None`: all are the same.
    pub(super) fn of<'a>(
        what: &'static str,
        consequence: &'static str,
        found: impl Iterator<Item = (String, &'a NodeName)>,
    ) -> Option<Self> {
        let mut values: BTreeMap<String, Vec<NodeName>> = BTreeMap::new();
        found.for_each(|(value, node)| values.entry(value).or_default().push(node.clone()));
        (values.len() > 1).then_some(Mismatch {
            what,
            values,
            consequence,
        })
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} differs: ", self.what)?;
        for (i, (value, nodes)) in self.values.iter().enumerate() {
            let others = if nodes.len() > 1 {
                format!(" and {} more", nodes.len() - 1)
            } else {
                String::new()
            };
            write!(
                f,
                "{}{value} on {}{others}",
                if i == 0 { "" } else { ", " },
                nodes[0]
            )?;
        }
        write!(f, "; {}", self.consequence)
    }
}

/// The differences among these members, and their consequences. `one_role`: all of them run the same.
pub fn mismatches(members: &[Member<'_>], one_role: bool) -> Vec<Mismatch> {
    let compared = |aspect: &&Aspect| one_role || !aspect.by_role;
    let aspects = ASPECTS.iter().chain(&TOLD).filter(compared);
    let found = aspects.map(|aspect| {
        let values = members
            .iter()
            .filter_map(|member| Some(((aspect.of)(member)?, member.node)));
        Mismatch::of(aspect.what, aspect.consequence, values)
    });
    found.flatten().collect()
}

/// The values of a node for all properties that must be the same. Only nodes of the same kind are
/// sure to go together. A node that does not tell a value is of another kind than one that does.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind([Option<String>; ASPECTS.len()]);

impl Kind {
    pub fn of(member: &Member<'_>) -> Self {
        Kind(ASPECTS.each_ref().map(|aspect| (aspect.of)(member)))
    }

    /// How it differs from the others, for people: `CUDA 12, not CUDA 13`.
    pub fn beside(&self, others: &Kind) -> String {
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        let differing = ASPECTS
            .iter()
            .zip(self.0.iter().zip(&others.0))
            .filter(|(_, (own, others))| own != others);
        let said = differing.map(|(aspect, (own, others))| {
            // "unknown" alone would not tell which property is meant.
            let what = if own.is_none() || others.is_none() {
                format!("{} ", aspect.what)
            } else {
                String::new()
            };
            format!("{what}{}, not {}", word(own), word(others))
        });
        said.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nccl::profile::tests::dgx;

    impl Kind {
        /// The kind of a node with this GPU model. All else is the same.
        pub(crate) fn of_model(model: &str) -> Self {
            kind(&with_model(model))
        }
    }

    fn with_model(model: &str) -> NodeReport {
        let mut report = dgx();
        report.gpus[0].model = model.into();
        report
    }

    fn kind(report: &NodeReport) -> Kind {
        Kind::of(&Member {
            node: &"n".into(),
            report,
            gpus: &["GPU-0".into()],
        })
    }

    #[test]
    fn an_mtu_that_differs_is_told_and_keeps_nobody_apart() {
        let told = |reports: [&NodeReport; 2]| {
            let (names, gpus) = (["a".into(), "b".into()], ["GPU-0".to_owned()]);
            let member = |(node, report)| Member {
                node,
                report,
                gpus: &gpus,
            };
            mismatches(
                &names.iter().zip(reports).map(member).collect::<Vec<_>>(),
                true,
            )
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
        };
        let (mut small, mut large) = (dgx(), dgx());
        assert_eq!(
            told([&small, &large]),
            [""; 0],
            "where it is not known nothing is said"
        );
        (
            small.network.interfaces[0].mtu,
            large.network.interfaces[0].mtu,
        ) = (1_500, 9_000);
        let [said] = &told([&small, &large])[..] else {
            panic!("{:?}", told([&small, &large]))
        };
        assert!(
            said.starts_with("the MTU of its network differs: MTU 1500 on a, MTU 9000 on b; "),
            "{said}"
        );
        assert_eq!(kind(&small), kind(&large));
        // The interfaces of RoCE devices are the ones that count.
        for report in [&mut small, &mut large] {
            let device = &mut report.network.rdma[0];
            (device.interfaces, device.ports[0].link_layer) =
                (vec!["eth1".into()], LinkLayer::Ethernet);
            report.network.interfaces[1].mtu = 4_200;
        }
        assert_eq!(told([&small, &large]), [""; 0]);
    }

    #[test]
    fn kinds_say_how_they_differ() {
        let (mut old, mut silent) = (with_model("A100"), dgx());
        old.driver.as_mut().unwrap().cuda = "11.8".into();
        silent.driver = None;
        let well = kind(&dgx());
        assert_eq!(
            kind(&old).beside(&well),
            "CUDA 11, not CUDA 12; A100, not NVIDIA H100 80GB HBM3"
        );
        assert_eq!(
            kind(&silent).beside(&well),
            "what the driver can run unknown, not CUDA 12"
        );
        assert_eq!(well, kind(&dgx()));
    }
}
