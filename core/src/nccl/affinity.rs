//! Chooses the CPUs of each rank of a node: those of the NUMA node of its GPU. A rank that moves to
//! the other socket feeds its GPU through the link between the sockets, while its memory stays
//! where it was first touched.
//!
//! This module only chooses. The starter of a rank pins it between fork and exec (`agent/runner`),
//! the same way in all lanes. torchrun's own `--numa-binding` (2.9) needs numactl on the node, and
//! needs torchrun.

use std::collections::BTreeMap;

use super::environment::Share;

/// One list of CPUs for each local rank, as sysfs writes lists, separated by `;`. A rank with an
/// empty list is not pinned.
pub const RANK_CPUS: &str = "MUSTER_RANK_CPUS";
/// The value of [`RANK_CPUS`] with which a job leaves its ranks unpinned.
pub const OFF: &str = "off";
/// Bytes of the value. Linux takes 128 KiB for one variable; 56 MIG instances that each name every
/// second of 1,024 CPUs would not be far from that.
const BYTES_MAX: usize = 64 << 10;

/// The lists, and the reason for the reader. The error says why nothing is pinned.
pub(super) fn rank_cpus(share: Share<'_>) -> Result<(String, String), String> {
    let nodes: BTreeMap<u32, &str> = share
        .report
        .host
        .numa
        .iter()
        .map(|node| (node.id, node.cpus.as_str()))
        .collect();
    if nodes.len() < 2 {
        return Err("not pinned: this node has one NUMA node, or does not say how many".into());
    }
    let near: Option<Vec<u32>> = share
        .gpus
        .iter()
        .map(|uuid| share.report.gpu_of(uuid)?.numa_node)
        .collect();
    let Some(near) = near else {
        return Err("not pinned: not all GPUs say on which NUMA node they are".into());
    };
    let one_each = share.ranks as usize == share.gpus.len();
    // If there are not as many ranks as GPUs, nobody knows which GPU a rank uses. It may be any of
    // the given ones.
    if !one_each && near.iter().any(|node| *node != near[0]) {
        return Err(format!(
            "not pinned: {} ranks for {} GPUs on several NUMA nodes",
            share.ranks,
            share.gpus.len()
        ));
    }
    let of_rank = |rank: usize| {
        nodes
            .get(&near[if one_each { rank } else { 0 }])
            .copied()
            .unwrap_or_default()
    };
    let lists = (0..share.ranks as usize)
        .map(of_rank)
        .collect::<Vec<_>>()
        .join(";");
    if lists.len() > BYTES_MAX || lists.bytes().all(|byte| byte == b';') {
        return Err("not pinned: the CPUs of the NUMA nodes cannot be told".into());
    }
    Ok((
        lists,
        format!(
            "each rank on the CPUs of its GPU's NUMA node; {RANK_CPUS}={OFF} in the job's env leaves them free"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{nccl::profile::tests::dgx, node_report::NodeReport};

    fn two_sockets() -> NodeReport {
        let mut report = dgx();
        for (id, cpus) in [(0, "0-55,112-167"), (1, "56-111,168-223")] {
            let node = &mut report.host.numa[id as usize];
            (node.id, node.cpus) = (id, cpus.to_owned());
        }
        report
    }

    fn of(report: &NodeReport, gpus: &[u32], ranks: u32) -> Result<String, String> {
        let gpus: Vec<String> = gpus.iter().map(|i| format!("GPU-{i}")).collect();
        rank_cpus(Share {
            report,
            gpus: &gpus,
            hides_gpus: false,
            ranks,
            nodes: 1,
            env: &BTreeMap::new(),
        })
        .map(|(lists, _)| lists)
    }

    #[test]
    fn each_rank_stays_near_its_gpu() {
        let report = two_sockets();
        assert_eq!(
            of(&report, &[0, 3, 4], 3).unwrap(),
            "0-55,112-167;0-55,112-167;56-111,168-223"
        );
        assert_eq!(
            of(&report, &[4, 5], 1).unwrap(),
            "56-111,168-223",
            "one rank with two GPUs of one side"
        );
    }

    #[test]
    fn what_is_not_known_is_not_pinned() {
        let mut report = two_sockets();
        assert_eq!(
            of(&report, &[0, 7], 1).unwrap_err(),
            "not pinned: 1 ranks for 2 GPUs on several NUMA nodes"
        );
        report.gpus[1].numa_node = None;
        assert!(
            of(&report, &[0, 1], 2)
                .unwrap_err()
                .contains("not all GPUs")
        );
        report.host.numa.truncate(1);
        assert!(of(&report, &[0], 1).unwrap_err().contains("one NUMA node"));
        report.host.numa = vec![
            crate::node_report::host::NumaNode::default(),
            report.host.numa[0].clone(),
        ];
        report.host.numa[1].id = 7;
        assert!(
            of(&report, &[0], 1).unwrap_err().contains("cannot be told"),
            "without a list"
        );
    }
}
