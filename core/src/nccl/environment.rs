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
    // The kubelet gives a worker pod its GPUs, and nobody here knows which. The profile knows that there
    // are some.
    let uses_gpus = !share.gpus.is_empty() || *profile != Profile::default();
    let mut computed = Computed::default();
    for shared in &profile.shared {
        let (value, why) = (shared.value.clone(), shared.why.clone());
        computed.set(&shared.name, value, Source::Profile, why);
    }
    computed.interface(share.report, uses_gpus);
    computed.gpus(share);
    if uses_gpus && matches!(profile.transport, Transport::Infiniband | Transport::Roce) {
        computed.rails(profile, share.report);
    }
    if share.ranks > 1 {
        let (threads, why) = threads(share);
        computed.of_node("OMP_NUM_THREADS", threads.to_string(), why);
    }
    let labels = labels(share.report).into_iter();
    let mut variables: BTreeMap<String, Variable> = labels.map(|v| (v.name.clone(), v)).collect();
    if !share.gpus.is_empty() {
        match affinity::rank_cpus(share) {
            Ok((lists, why)) => computed.of_node(affinity::RANK_CPUS, lists, why),
            Err(why) => {
                let variable = without_value(affinity::RANK_CPUS, Source::Node, why);
                variables.insert(variable.name.clone(), variable);
            }
        }
    }
    let all = computed.into_variables(&share.report.host.nccl_conf);
    variables.extend(all.map(|v| (v.name.clone(), v)));
    override_by_job(&mut variables, share.env);
    let mut remarks = lint::values(share.env, share.nodes);
    remarks.extend(lint::names(share.env, share.report));
    Environment {
        variables: variables.into_values().collect(),
        remarks,
    }
}

fn without_value(name: &str, source: Source, why: String) -> Variable {
    Variable {
        name: name.to_owned(),
        value: None,
        source,
        why,
    }
}

/// What the profile and the node say, by name: value, source and reason.
#[derive(Default)]
struct Computed(BTreeMap<String, (String, Source, String)>);

impl Computed {
    fn set(&mut self, name: &str, value: String, source: Source, why: String) {
        self.0.insert(name.to_owned(), (value, source, why));
    }

    fn of_node(&mut self, name: &str, value: String, why: String) {
        self.set(name, value, Source::Node, why);
    }

    /// The interface over which other members reach this node.
    fn interface(&mut self, report: &NodeReport, uses_gpus: bool) {
        let Some((name, why)) = socket_interface(report) else {
            return;
        };
        // Gloo takes plain names. NCCL takes prefixes unless the value begins with `=`.
        self.of_node("GLOO_SOCKET_IFNAME", name.to_owned(), why.clone());
        if uses_gpus {
            self.of_node("TP_SOCKET_IFNAME", name.to_owned(), why.clone());
            self.of_node("NCCL_SOCKET_IFNAME", format!("={name}"), why);
        }
    }

    /// Which GPUs the ranks see, and where they are in the machine.
    fn gpus(&mut self, share: Share<'_>) {
        if share.gpus.is_empty() {
            if share.hides_gpus && !share.report.gpus.is_empty() {
                let why = "the job takes no GPU, and this node's may be another job's";
                self.of_node("CUDA_VISIBLE_DEVICES", String::new(), why.into());
            }
            return;
        }
        let why =
            "the GPUs given, by UUID: an index means another GPU after one has fallen off the bus";
        self.of_node("CUDA_VISIBLE_DEVICES", share.gpus.join(","), why.into());
        if let Some(file) = &share.report.host.topology_file
            && file != DEFAULT_TOPOLOGY_FILE
        {
            let why = "this virtual machine's tree tells nothing, its vendor's file does";
            self.of_node("NCCL_TOPO_FILE", file.clone(), why.into());
        }
    }

    fn rails(&mut self, profile: &Profile, report: &NodeReport) {
        let devices: Vec<String> = profile::compute_devices(report)
            .into_iter()
            .take(profile.rails as usize)
            .map(|device| device.name.clone())
            .collect();
        let why = format!(
            "{} of this node's RDMA devices, one a rail, near its GPUs and up",
            devices.len()
        );
        self.of_node("NCCL_IB_HCA", format!("={}", devices.join(",")), why);
    }

    /// All of them. A value on which all ranks have agreed is not left to a file of one node (`in_file`).
    fn into_variables(self, in_file: &[String]) -> impl Iterator<Item = Variable> {
        self.0.into_iter().map(|(name, (value, source, why))| {
            if source == Source::Node && in_file.contains(&name) {
                let why = format!("a configuration file of NCCL sets it; computed: {value}");
                return without_value(&name, Source::File, why);
            }
            Variable {
                name,
                value: Some(value),
                source,
                why,
            }
        })
    }
}

/// The job's own values win.
fn override_by_job(variables: &mut BTreeMap<String, Variable>, own: &BTreeMap<String, String>) {
    for (name, own) in own {
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
