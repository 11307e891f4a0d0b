//! Which pods hold the GPUs of a node, as the node's kubelet says it.
//!
//! A kubelet gives GPUs to pods without asking Muster. A GPU may have several holders, because a device
//! plugin can share it. Pods are known by namespace and name, since the kubelet's API tells no more.

use serde::{Deserialize, Serialize};

use super::{Gpu, NodeReport};

/// The most holders in a report. A kubelet runs 110 pods by default and rarely more than 250, and few of
/// them hold more than one GPU that others share. With the longest names that is 200 KiB.
pub const HOLDERS_MAX: usize = 512;

/// A pod that holds a GPU or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The UUID of a GPU or of a MIG instance.
    pub gpu: String,
    pub namespace: String,
    pub pod: String,
}

/// What is known of the holders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Holders {
    /// The agent asks no kubelet. Nobody but Muster gives GPUs away on this node.
    #[default]
    NotAsked,
    /// The agent asks, and has had no answer yet.
    Unknown,
    /// In order, each once.
    Known(Vec<Holder>),
}

impl Holders {
    pub fn is_not_asked(&self) -> bool {
        *self == Self::NotAsked
    }

    /// All that are known.
    pub fn all(&self) -> &[Holder] {
        match self {
            Self::Known(all) => all,
            Self::NotAsked | Self::Unknown => &[],
        }
    }

    /// What this pod holds.
    pub fn of_pod<'a>(&'a self, namespace: &'a str, pod: &'a str) -> impl Iterator<Item = &'a str> {
        let held = move |holder: &&Holder| holder.namespace == namespace && holder.pod == pod;
        self.all()
            .iter()
            .filter(held)
            .map(|holder| holder.gpu.as_str())
    }
}

impl NodeReport {
    /// The holders of this GPU and of its parts.
    pub fn holders_of<'a>(&'a self, gpu: &'a Gpu) -> impl Iterator<Item = &'a Holder> {
        let all = self.holders.all().iter();
        all.filter(move |holder| gpu.has(&holder.gpu))
    }

    /// What of this node can be placed and has no holder, as [`NodeReport::placeable_ids`] gives it. A
    /// holder of a whole GPU holds all its MIG instances. `counts`: whether this holder exists. Nothing
    /// is free while the holders are not known.
    pub fn unheld_ids(&self, counts: impl Fn(&Holder) -> bool) -> Vec<(u32, &str)> {
        let holders = match &self.holders {
            Holders::NotAsked => return self.placeable_ids().collect(),
            Holders::Unknown => return Vec::new(),
            Holders::Known(holders) => holders.iter().filter(|holder| counts(holder)),
        };
        // Of each holder the index of its GPU, and whether it holds the whole.
        let held: Vec<(&str, Option<u32>, bool)> = holders
            .map(|holder| {
                let gpu = self.gpu_of(&holder.gpu);
                let is_whole = gpu.is_some_and(|gpu| gpu.uuid == holder.gpu);
                (holder.gpu.as_str(), gpu.map(|gpu| gpu.index), is_whole)
            })
            .collect();
        let is_free = |(index, uuid): &(u32, &str)| {
            let takes = |(id, of, is_whole): &(&str, Option<u32>, bool)| {
                id == uuid || *is_whole && *of == Some(*index)
            };
            !held.iter().any(takes)
        };
        self.placeable_ids().filter(is_free).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_report::gpu::{Mig, MigInstance};

    fn holder(gpu: &str, pod: &str) -> Holder {
        Holder {
            gpu: gpu.into(),
            namespace: "team-a".into(),
            pod: pod.into(),
        }
    }

    /// GPU-0 and GPU-1 are whole, and GPU-2 is cut in two.
    fn report(holders: Holders) -> NodeReport {
        let gpu = |index: u32| Gpu {
            uuid: format!("GPU-{index}"),
            index,
            ..Gpu::default()
        };
        let part = |uuid: &str| MigInstance {
            uuid: uuid.into(),
            ..MigInstance::default()
        };
        let mut gpus: Vec<Gpu> = (0..3).map(gpu).collect();
        gpus[2].mig = Some(Mig {
            enabled: true,
            pending: true,
            instances: vec![part("MIG-a"), part("MIG-b")],
        });
        NodeReport {
            gpus,
            holders,
            ..NodeReport::default()
        }
    }

    fn free(holders: Holders) -> Vec<String> {
        let report = report(holders);
        let ids = report.unheld_ids(|holder| holder.pod != "over");
        ids.into_iter().map(|(_, uuid)| uuid.to_owned()).collect()
    }

    #[test]
    fn what_somebody_holds_is_not_free() {
        let all = ["GPU-0", "GPU-1", "MIG-a", "MIG-b"];
        assert_eq!(free(Holders::NotAsked), all);
        assert_eq!(free(Holders::Unknown), [""; 0]);
        assert_eq!(free(Holders::Known(Vec::new())), all);
        let known = |ids: &[&str]| {
            let held = ids.iter().map(|gpu| holder(gpu, "p"));
            free(Holders::Known(held.collect()))
        };
        assert_eq!(known(&["GPU-1", "MIG-a"]), ["GPU-0", "MIG-b"]);
        assert_eq!(known(&["GPU-2"]), ["GPU-0", "GPU-1"]);
        assert_eq!(known(&["GPU-9"]), all, "of another machine");
        let over = holder("GPU-0", "over");
        assert_eq!(free(Holders::Known(vec![over])), all);
    }

    #[test]
    fn holders_are_found_by_pod_and_by_gpu() {
        let known = Holders::Known(vec![
            holder("GPU-0", "p"),
            holder("GPU-1", "p"),
            holder("MIG-b", "q"),
        ]);
        let held: Vec<&str> = known.of_pod("team-a", "p").collect();
        assert_eq!(held, ["GPU-0", "GPU-1"]);
        assert_eq!(known.of_pod("team-b", "p").count(), 0);
        let report = report(known.clone());
        let of = |gpu: usize| report.holders_of(&report.gpus[gpu]).collect::<Vec<_>>();
        assert_eq!(of(2), [&holder("MIG-b", "q")]);
        assert_eq!(of(1), [&holder("GPU-1", "p")]);
    }
}
