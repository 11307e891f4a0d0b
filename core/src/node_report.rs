//! What a node says about itself: the one report into which all probes are merged.
//!
//! It holds facts that change rarely: inventory, and findings with reasons. Temperatures, clocks
//! and counters stay on the node, where they are judged ([`crate::health`]). If they were in the
//! report, it would be sent and stored with every reading.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};

use crate::health::Health;

pub mod devices;
pub mod gpu;
pub mod holders;
pub mod host;
pub mod labels;
pub mod network;
mod own_facts;
pub mod taint;
pub mod topology;
pub mod trial;

use gpu::Driver;
pub use gpu::Gpu;
use holders::Holders;
use host::Host;
use labels::Labels;
use network::Network;
use taint::Taint;
use topology::Topology;
use trial::Trial;

/// A node's facts as its agent sees them. The whole report is sent after a change; there are no
/// partial updates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// The IP address at which other members reach this node. The TCPStore and `MASTER_ADDR` use
    /// it.
    pub address: String,
    /// `version (commit)` of the agent.
    pub agent_version: String,
    pub hostname: String,
    pub kernel: String,
    /// The labels that the agent was given.
    pub labels: BTreeMap<String, String>,
    /// The labels of the node's Kubernetes Node object. The coordinator adds them; no agent sends
    /// them. Use [`NodeReport::label`] to read both kinds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub object_labels: Labels,
    /// The taints that the agent was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Those of its Kubernetes Node object. The coordinator adds them, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub object_taints: Vec<Taint>,
    /// How many worker groups that ask for no GPU the node takes at the same time.
    pub slots: u32,
    pub cpus: u32,
    pub memory_bytes: u64,
    pub gpus: Vec<Gpu>,
    /// Why the GPU list may be incomplete: NVML could not be read. `None`: it could, or the node
    /// has no driver.
    pub gpu_error: Option<String>,
    /// `None`: the node has no NVIDIA driver, or the driver has never answered.
    #[serde(default)]
    pub driver: Option<Driver>,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub topology: Topology,
    #[serde(default)]
    pub host: Host,
    #[serde(default)]
    pub health: Health,
    /// `None`: the node's operator allows no warm pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_pool: Option<WarmPool>,
    /// What the node has found out about interpreters by itself, newest last; at most
    /// [`trial::TRIALS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<Trial>,
    /// Which pods hold GPUs.
    #[serde(default, skip_serializing_if = "Holders::is_not_asked")]
    pub holders: Holders,
    /// The agent only looks at the node, and starts no worker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub senses_only: bool,
    /// The agent starts each job as its owner.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub run_as_owner: bool,
    /// The program that runs images here and its version, such as `podman 4.3.1`. Empty: there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container_runtime: String,
}

/// The launchers that a node keeps ready for jobs that have not come yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WarmPool {
    /// The most launchers that the operator allows.
    pub limit: u32,
    pub ready: u32,
    /// Memory of the ready launchers, in bytes.
    pub bytes: u64,
}

impl NodeReport {
    /// The label under the first of these keys that the node has. The node's own labels come before
    /// those of its Node object.
    pub fn label<'a>(&'a self, keys: &[&'a str]) -> Option<(&'a str, &'a str)> {
        let sources: [&BTreeMap<String, String>; 2] = [&self.labels, &self.object_labels];
        sources.into_iter().find_map(|labels| {
            keys.iter()
                .find_map(|key| Some((*key, labels.get(*key)?.as_str())))
        })
    }

    /// All its taints.
    pub fn all_taints(&self) -> impl Iterator<Item = &Taint> {
        self.taints.iter().chain(&self.object_taints)
    }

    /// The value of this label, of the agent, of the Node object, or of the node itself ([`own_facts`]).
    pub fn label_or_fact(&self, key: &str) -> Option<Cow<'_, str>> {
        let given = self.labels.get(key).or_else(|| self.object_labels.get(key));
        given.map(|value| Cow::from(value.as_str())).or_else(|| {
            let value = own_facts::value(self, key)?;
            Some(Cow::from(value))
        })
    }

    /// All labels by key. The node's own labels replace those of its Node object, and these what the node says of itself.
    pub fn all_labels(&self) -> BTreeMap<String, String> {
        self.labels_and_facts()
            .map(|(key, value)| (key.to_owned(), value.into_owned()))
            .collect()
    }

    /// The same, in no order.
    pub fn labels_and_facts(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let is_given = |key: &str| self.labels.contains_key(key);
        let objects = self
            .object_labels
            .iter()
            .filter(move |(key, _)| !is_given(key));
        let given = self.labels.iter().chain(objects);
        let given = given.map(|(key, value)| (key.as_str(), Cow::from(value.as_str())));
        let facts = own_facts::KEYS
            .into_iter()
            .filter(move |key| !is_given(key) && !self.object_labels.contains_key(*key))
            .filter_map(|key| Some((key, Cow::from(own_facts::value(self, key)?))));
        given.chain(facts)
    }

    /// What a job may be given: whole GPUs, and the MIG instances of a GPU that is cut up. GPUs
    /// that health withholds are left out.
    pub fn placeable(&self) -> Vec<Gpu> {
        let healthy = self
            .gpus
            .iter()
            .filter(|gpu| !self.health.withholds(&gpu.uuid));
        healthy.flat_map(Gpu::parts).collect()
    }

    /// The same as index and UUID, without a copy of everything that is known of each GPU, because
    /// placement asks ten thousand nodes at a time.
    pub fn placeable_ids(&self) -> impl Iterator<Item = (u32, &str)> {
        let healthy = self
            .gpus
            .iter()
            .filter(|gpu| !self.health.withholds(&gpu.uuid));
        healthy.flat_map(|gpu| {
            let parts = gpu
                .mig
                .as_ref()
                .filter(|mig| mig.enabled)
                .map(|mig| mig.instances.as_slice());
            let whole = parts.is_none().then_some(gpu.uuid.as_str());
            let uuids = whole.into_iter().chain(
                parts
                    .unwrap_or_default()
                    .iter()
                    .map(|part| part.uuid.as_str()),
            );
            uuids.map(|uuid| (gpu.index, uuid))
        })
    }

    /// The GPU with this UUID, or the GPU that has a MIG instance with this UUID.
    pub fn gpu_of(&self, uuid: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.has(uuid))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        gpu::{Mig, MigInstance},
        *,
    };
    use crate::health::{Finding, Remedy, Severity, Subject};

    fn report() -> NodeReport {
        let gpu = |uuid: &str| Gpu {
            uuid: uuid.into(),
            ..Gpu::default()
        };
        NodeReport {
            gpus: vec![gpu("GPU-a"), gpu("GPU-b")],
            ..NodeReport::default()
        }
    }

    fn finding(subject: Subject, severity: Severity) -> Finding {
        Finding {
            check: "x".into(),
            subject,
            severity,
            remedy: Remedy::None,
            reason: "why".into(),
            since_unix_us: 0,
            runs: Vec::new(),
        }
    }

    #[test]
    fn what_a_person_said_on_the_machine_comes_before_its_object() {
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let report = NodeReport {
            labels: [label("zone", "b"), label("rack", "r7")].into(),
            object_labels: Labels::bounded([
                label("topology.kubernetes.io/zone", "a"),
                label("rack", "r1"),
                label("pool", "gpu"),
            ]),
            ..NodeReport::default()
        };
        assert_eq!(
            report.label(&["topology.kubernetes.io/zone", "zone"]),
            Some(("zone", "b")),
            "by whichever key"
        );
        assert_eq!(
            (report.label(&["rack"]), report.label(&["pool"])),
            (Some(("rack", "r7")), Some(("pool", "gpu")))
        );
        assert_eq!(report.label(&["region"]), None);
        let all = [
            "kubernetes.io/os=linux",
            "pool=gpu",
            "rack=r7",
            "topology.kubernetes.io/zone=a",
            "zone=b",
        ]
        .map(|text| text.split_once('=').unwrap());
        assert_eq!(
            report.all_labels(),
            all.map(|(key, value)| label(key, value)).into()
        );
    }

    #[test]
    fn what_health_withholds_is_not_placeable() {
        let mut report = report();
        let uuids = |report: &NodeReport| {
            report
                .placeable()
                .into_iter()
                .map(|gpu| gpu.uuid)
                .collect::<Vec<_>>()
        };
        report.health.findings = vec![finding(Subject::Gpu("GPU-a".into()), Severity::Warn)];
        assert_eq!(
            uuids(&report),
            ["GPU-a", "GPU-b"],
            "a warning withholds nothing"
        );
        report.health.findings = vec![finding(Subject::Gpu("GPU-a".into()), Severity::Drain)];
        assert_eq!(uuids(&report), ["GPU-b"]);
    }

    #[test]
    fn a_gpu_cut_up_gives_its_instances_and_their_health_is_its_own() {
        let mut report = report();
        let part = |uuid: &str| MigInstance {
            uuid: uuid.into(),
            profile: "1g.10gb".into(),
            ..MigInstance::default()
        };
        report.gpus[0].mig = Some(Mig {
            enabled: true,
            pending: true,
            instances: vec![part("MIG-1"), part("MIG-2")],
        });
        let uuids = |report: &NodeReport| {
            let whole: Vec<(u32, String)> = report
                .placeable()
                .into_iter()
                .map(|gpu| (gpu.index, gpu.uuid))
                .collect();
            assert!(
                report
                    .placeable_ids()
                    .eq(whole.iter().map(|(index, uuid)| (*index, uuid.as_str())))
            );
            whole.into_iter().map(|(_, uuid)| uuid).collect::<Vec<_>>()
        };
        assert_eq!(uuids(&report), ["MIG-1", "MIG-2", "GPU-b"]);
        assert_eq!(report.gpu_of("MIG-2").unwrap().uuid, "GPU-a");
        report.health.findings = vec![finding(Subject::Gpu("GPU-a".into()), Severity::FailNow)];
        assert_eq!(uuids(&report), ["GPU-b"]);
    }
}
