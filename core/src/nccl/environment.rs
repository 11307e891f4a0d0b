//! The variables of one node's ranks, each with its value, its origin and its reason.
//!
//! They are the values that NCCL, Gloo and torch's threads take from the environment, and the
//! labels of the node. torchrun's own variables are set by `node::torchrun`. The same function is
//! called by the agent before a launch and by `muster explain --env` afterwards.

use std::{collections::BTreeMap, fmt};

use crate::{
    nccl::{
        affinity,
        lint::{self, Remark},
        profile::{self, Profile, Transport},
    },
    node_report::{NodeReport, labels::Labels, network::Interface},
};

/// The origin of a value, from weak to strong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Facts about this node.
    Node,
    /// Agreed for all ranks of the generation.
    Profile,
    /// The job's own `env`.
    Job,
    /// The job's own `env`, instead of this computed value.
    Override(String),
    /// A configuration file of NCCL on the node sets the variable, so the computed value is not
    /// used.
    File,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Node => f.write_str("node"),
            Source::Profile => f.write_str("profile"),
            Source::Job => f.write_str("job"),
            Source::Override(computed) => write!(f, "job, over {computed}"),
            Source::File => f.write_str("nccl.conf"),
        }
    }
}

/// One variable of a node's ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: String,
    /// `None`: the variable is left unset, for the reason in `why`.
    pub value: Option<String>,
    pub source: Source,
    pub why: String,
}

/// The input: one node's share of a generation.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    pub report: &'a NodeReport,
    pub gpus: &'a [String],
    /// Ranks that get none must see none.
    pub hides_gpus: bool,
    /// Ranks on this node.
    pub ranks: u32,
    /// Nodes of the generation.
    pub nodes: u32,
    /// The job's own variables.
    pub env: &'a BTreeMap<String, String>,
}

/// All variables of a node's ranks, and remarks on those that the job sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// By name.
    pub variables: Vec<Variable>,
    pub remarks: Vec<Remark>,
}

impl Environment {
    /// The variables with a value, for the environment of each rank.
    pub fn set(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables
            .iter()
            .filter_map(|variable| Some((variable.name.as_str(), variable.value.as_deref()?)))
    }

    /// Why a run with this environment cannot work here. `None`: nothing is known against it.
    pub fn fatal(&self) -> Option<&str> {
        self.remarks
            .iter()
            .find(|remark| remark.fatal)
            .map(|remark| remark.message.as_str())
    }
}

/// The environment of one node's ranks in a generation with this profile.
pub fn environment(profile: &Profile, share: Share<'_>) -> Environment {
    let mut computed: BTreeMap<String, (String, Source, String)> = BTreeMap::new();
    let mut set = |name: &str, value: String, source: Source, why: String| {
        drop(computed.insert(name.to_owned(), (value, source, why)))
    };
    for shared in &profile.shared {
        set(
            &shared.name,
            shared.value.clone(),
            Source::Profile,
            shared.why.clone(),
        );
    }
    let with_gpus = !share.gpus.is_empty();
    // The kubelet gives a worker pod its GPUs, and nobody here knows which. The profile knows that there
    // are some.
    let uses_gpus = with_gpus || *profile != Profile::default();
    if let Some((name, why)) = socket_interface(share.report) {
        // Gloo takes plain names. NCCL takes prefixes unless the value begins with `=`.
        set(
            "GLOO_SOCKET_IFNAME",
            name.to_owned(),
            Source::Node,
            why.clone(),
        );
        if uses_gpus {
            set(
                "TP_SOCKET_IFNAME",
                name.to_owned(),
                Source::Node,
                why.clone(),
            );
            set("NCCL_SOCKET_IFNAME", format!("={name}"), Source::Node, why);
        }
    }
    if with_gpus {
        let why =
            "the GPUs given, by UUID: an index means another GPU after one has fallen off the bus"
                .to_owned();
        set(
            "CUDA_VISIBLE_DEVICES",
            share.gpus.join(","),
            Source::Node,
            why,
        );
    } else if share.hides_gpus && !share.report.gpus.is_empty() {
        set(
            "CUDA_VISIBLE_DEVICES",
            String::new(),
            Source::Node,
            "the job takes no GPU, and this node's may be another job's".into(),
        );
    }
    if uses_gpus && matches!(profile.transport, Transport::Infiniband | Transport::Roce) {
        let devices: Vec<String> = profile::compute_devices(share.report)
            .into_iter()
            .take(profile.rails as usize)
            .map(|device| device.name.clone())
            .collect();
        let why = format!(
            "{} of this node's RDMA devices, one a rail, near its GPUs and up",
            devices.len()
        );
        set(
            "NCCL_IB_HCA",
            format!("={}", devices.join(",")),
            Source::Node,
            why,
        );
    }
    if with_gpus
        && let Some(file) = &share.report.host.topology_file
        && file != DEFAULT_TOPOLOGY_FILE
    {
        set(
            "NCCL_TOPO_FILE",
            file.clone(),
            Source::Node,
            "this virtual machine's tree tells nothing, its vendor's file does".into(),
        );
    }
    if share.ranks > 1 {
        let (threads, why) = threads(share);
        set("OMP_NUM_THREADS", threads.to_string(), Source::Node, why);
    }
    let pinned = if with_gpus {
        affinity::rank_cpus(share)
    } else {
        Err(String::new())
    };
    if let Ok((lists, why)) = &pinned {
        set(
            affinity::RANK_CPUS,
            lists.clone(),
            Source::Node,
            why.clone(),
        );
    }
    let mut variables: BTreeMap<String, Variable> = labels(share.report)
        .into_iter()
        .map(|v| (v.name.clone(), v))
        .collect();
    if let Err(why) = pinned
        && with_gpus
    {
        let name = affinity::RANK_CPUS.to_owned();
        variables.insert(
            name.clone(),
            Variable {
                name,
                value: None,
                source: Source::Node,
                why,
            },
        );
    }
    let by_file = |name: &String, source: &Source| {
        *source == Source::Node && share.report.host.nccl_conf.contains(name)
    };
    for (name, (value, source, why)) in computed {
        // A value on which all ranks have agreed is not left to a file of one node.
        let variable = if by_file(&name, &source) {
            let why = format!("a configuration file of NCCL sets it; computed: {value}");
            Variable {
                name,
                value: None,
                source: Source::File,
                why,
            }
        } else {
            Variable {
                name,
                value: Some(value),
                source,
                why,
            }
        };
        variables.insert(variable.name.clone(), variable);
    }
    for (name, own) in share.env {
        let (source, why) = match variables.remove(name) {
            Some(Variable {
                value: Some(value),
                why,
                ..
            }) if value == *own => (Source::Job, why),
            Some(Variable {
                value: Some(value),
                why,
                ..
            }) => (Source::Override(value), why),
            _ => (Source::Job, "set by the job".to_owned()),
        };
        variables.insert(
            name.clone(),
            Variable {
                name: name.clone(),
                value: Some(own.clone()),
                source,
                why,
            },
        );
    }
    let mut remarks = lint::values(share.env, share.nodes);
    remarks.extend(lint::names(share.env, share.report));
    Environment {
        variables: variables.into_values().collect(),
        remarks,
    }
}

/// The file that NCCL reads by itself.
const DEFAULT_TOPOLOGY_FILE: &str = "/var/run/nvidia-topologyd/virtualTopology.xml";

/// The interface over which other members reach this node: the one with the advertised address,
/// else that of the default route.
pub(crate) fn socket_interface(report: &NodeReport) -> Option<(&str, String)> {
    let address = report.address.as_str();
    if address
        .parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback())
    {
        // Gloo would use the address of the host's name, which may not be reachable from a loopback
        // listener.
        return Some(("lo", format!("carries this node's address {address}")));
    }
    let interfaces = || report.network.interfaces.iter();
    let carries = |interface: &&Interface| interface.addresses.iter().any(|own| own == address);
    if let Some(interface) = interfaces().find(carries) {
        return Some((
            &interface.name,
            format!("carries this node's address {address}"),
        ));
    }
    let interface = interfaces().find(|interface| interface.default_route && interface.up)?;
    Some((
        &interface.name,
        format!("the default route; no interface carries the advertised address {address}"),
    ))
}

/// torchrun gives every rank one thread if a node runs several, because it knows nothing about the
/// machine. With GPUs, ranks only feed those, so each rank gets its share of the cores of its NUMA
/// nodes.
fn threads(share: Share<'_>) -> (u32, String) {
    let host = &share.report.host;
    if share.gpus.is_empty() || host.physical_cores == 0 {
        return (
            1,
            "as torchrun gives where a node runs several ranks".into(),
        );
    }
    let mut near: BTreeMap<Option<u32>, u32> = BTreeMap::new();
    share.gpus.iter().for_each(|uuid| {
        *near
            .entry(share.report.gpu_of(uuid).and_then(|gpu| gpu.numa_node))
            .or_default() += 1
    });
    let all = host.numa.len().max(1) as u32;
    // A GPU that does not tell its NUMA node may be anywhere.
    let used = if near.contains_key(&None) {
        all
    } else {
        (near.len() as u32).min(all)
    };
    let (cores, ranks) = match near.values().max() {
        // Each rank stays on its own NUMA node. All ranks get the same number, that of the busiest
        // node.
        Some(busiest) if used == near.len() as u32 && share.ranks as usize == share.gpus.len() => {
            (host.physical_cores / all, *busiest)
        }
        _ => (host.physical_cores / all * used, share.ranks),
    };
    let nodes = if cores == host.physical_cores / all {
        1
    } else {
        used
    };
    let threads = (cores / ranks).max(1);
    (
        threads,
        format!(
            "{cores} cores of {nodes} NUMA node{} for {ranks} ranks",
            if nodes == 1 { "" } else { "s" }
        ),
    )
}

/// Variables that come from labels, each with the keys of its labels.
const LABELS: [(&str, &[&str]); 5] = [
    ("NODE_REGION", &["topology.kubernetes.io/region", "region"]),
    ("NODE_ZONE", &["topology.kubernetes.io/zone", "zone"]),
    (
        "NODE_INSTANCE_TYPE",
        &["node.kubernetes.io/instance-type", "instance-type"],
    ),
    (
        "NODE_RACK",
        &[
            "topology.muster.dev/rack",
            "rack",
            "topology.gke.io/rack",
            "oci.oraclecloud.com/host.rack_id",
        ],
    ),
    ("NODE_NVLINK_DOMAIN", &["nvidia.com/gpu.clique"]),
];

/// The labels of a Node object that ranks get to see. An agent needs no others; all of them, a few
/// KiB, would have to travel with every order.
pub fn told(labels: &Labels) -> Labels {
    let told = |key: &String| LABELS.iter().any(|(_, keys)| keys.contains(&key.as_str()));
    Labels::bounded(
        labels
            .iter()
            .filter(|(key, _)| told(key))
            .map(|(key, value)| (key.clone(), value.clone())),
    )
}

/// What a script may want to know about its node: from labels if there are any, else from the
/// probes.
fn labels(report: &NodeReport) -> Vec<Variable> {
    let mut variables: Vec<Variable> = LABELS
        .iter()
        .map(|(name, keys)| {
            let found = report.label(keys);
            Variable {
                name: (*name).to_owned(),
                value: found.map(|(_, value)| value.to_owned()),
                source: Source::Node,
                why: found.map_or_else(
                    || format!("this node has no label {}", keys[0]),
                    |(key, _)| format!("label {key}"),
                ),
            }
        })
        .collect();
    let model = report.gpus.first().map(|gpu| gpu.model.clone());
    let why = if model.is_some() {
        "as its driver says"
    } else {
        "this node has no GPU"
    };
    variables.push(Variable {
        name: "NODE_GPU_MODEL".into(),
        value: model,
        source: Source::Node,
        why: why.into(),
    });
    let count = report.gpus.len().to_string();
    variables.push(Variable {
        name: "NODE_GPU_COUNT".into(),
        value: Some(count),
        source: Source::Node,
        why: "GPUs of the node, given to this job or not".into(),
    });
    variables
}

#[cfg(test)]
mod tests;
