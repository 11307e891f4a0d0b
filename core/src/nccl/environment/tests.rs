use super::*;
use crate::nccl::profile::{Member, decide, tests::dgx};
use crate::node_report::network::Network;

fn env(text: &str) -> BTreeMap<String, String> {
    text.split_whitespace()
        .map(|word| word.split_once('=').unwrap())
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .collect()
}

fn of(report: &NodeReport, gpus: usize, own: &str) -> Environment {
    let gpus: Vec<String> = (0..gpus).map(|i| format!("GPU-{i}")).collect();
    let node = "n1".into();
    let member = Member {
        node: &node,
        report,
        gpus: &gpus,
    };
    let profile = if gpus.is_empty() {
        Profile::default()
    } else {
        decide(&[member])
    };
    let ranks = gpus.len().max(1) as u32;
    environment(
        &profile,
        Share {
            report,
            gpus: &gpus,
            hides_gpus: false,
            ranks,
            nodes: 2,
            env: &env(own),
        },
    )
}

fn get<'a>(environment: &'a Environment, name: &str) -> &'a Variable {
    environment
        .variables
        .iter()
        .find(|variable| variable.name == name)
        .unwrap_or_else(|| panic!("no {name}"))
}

fn value(environment: &Environment, name: &str) -> String {
    get(environment, name).value.clone().unwrap_or_default()
}

/// A worker pod: its agent sees the pod's interface, and neither GPUs nor RDMA devices.
#[test]
fn a_pod_whose_kubelet_gave_it_gpus_gets_the_names_of_its_interface() {
    let eth0 = Interface {
        name: "eth0".into(),
        up: true,
        ipv4: true,
        default_route: true,
        addresses: vec!["10.244.1.7".into()],
        ..Interface::default()
    };
    let report = NodeReport {
        address: "10.244.1.7".into(),
        network: Network {
            interfaces: vec![eth0],
            ..Network::default()
        },
        ..NodeReport::default()
    };
    let node = "one-bcdfg.team-a.pod".into();
    let member = Member {
        node: &node,
        report: &report,
        gpus: &[],
    };
    let names = |with_gpus: bool| {
        let profile = if with_gpus {
            decide(&[member, member])
        } else {
            Profile::default()
        };
        let share = Share {
            report: &report,
            gpus: &[],
            hides_gpus: false,
            ranks: 8,
            nodes: 2,
            env: &BTreeMap::new(),
        };
        let given = environment(&profile, share);
        let names = [
            "NCCL_SOCKET_IFNAME",
            "GLOO_SOCKET_IFNAME",
            "CUDA_VISIBLE_DEVICES",
        ];
        names.map(|name| {
            let mut set = given.set().filter(|(set, _)| *set == name);
            set.next().map(|(_, value)| value.to_owned())
        })
    };
    let (nccl, gloo) = (Some("=eth0".to_owned()), Some("eth0".to_owned()));
    // An empty CUDA_VISIBLE_DEVICES would hide the GPUs that the kubelet gave.
    assert_eq!(names(true), [nccl, gloo.clone(), None]);
    assert_eq!(names(false), [None, gloo, None]);
}

#[test]
fn ranks_that_take_no_gpu_see_none_where_there_are_some() {
    let visible = |report: &NodeReport, gpus: &[String], hides_gpus| {
        let share = Share {
            report,
            gpus,
            hides_gpus,
            ranks: 1,
            nodes: 1,
            env: &BTreeMap::new(),
        };
        let given = environment(&Profile::default(), share);
        let mut set = given.set();
        let found = set.find(|(name, _)| *name == "CUDA_VISIBLE_DEVICES");
        found.map(|(_, value)| value.to_owned())
    };
    assert_eq!(visible(&dgx(), &[], true).as_deref(), Some(""));
    assert_eq!(visible(&dgx(), &[], false), None);
    let one = ["GPU-1".to_owned()];
    assert_eq!(visible(&dgx(), &one, true).as_deref(), Some("GPU-1"));
    // Nothing is known of GPUs that the agent does not find, such as another vendor's.
    assert_eq!(visible(&NodeReport::default(), &[], true), None);
}

#[test]
fn a_node_fills_in_its_own_names() {
    let given = of(&dgx(), 8, "");
    assert_eq!(value(&given, "NCCL_SOCKET_IFNAME"), "=eth0");
    assert_eq!(value(&given, "GLOO_SOCKET_IFNAME"), "eth0");
    assert_eq!(value(&given, "TP_SOCKET_IFNAME"), "eth0");
    assert_eq!(
        value(&given, "NCCL_IB_HCA"),
        "=mlx5_7,mlx5_6,mlx5_5,mlx5_4,mlx5_3,mlx5_2,mlx5_1,mlx5_0"
    );
    assert_eq!(value(&given, "NCCL_IGNORE_NET_MISMATCH"), "0");
    assert_eq!(value(&given, "OMP_NUM_THREADS"), "14");
    assert_eq!(
        get(&given, "OMP_NUM_THREADS").why,
        "56 cores of 1 NUMA node for 4 ranks"
    );
    assert_eq!(
        value(&of(&dgx(), 5, ""), "OMP_NUM_THREADS"),
        "14",
        "the busier of two NUMA nodes has four of them"
    );
    assert_eq!(
        value(&of(&dgx(), 4, ""), "OMP_NUM_THREADS"),
        "14",
        "four GPUs of one NUMA node get its half of the cores"
    );
    assert!(
        !given
            .variables
            .iter()
            .any(|v| v.name == "NCCL_IB_GID_INDEX" || v.name == "NCCL_TOPO_FILE"),
        "only when needed"
    );
    assert!(given.remarks.is_empty());
}

#[test]
fn the_interface_is_the_one_that_carries_the_address() {
    let mut report = dgx();
    report.network.interfaces[1].addresses = vec!["192.168.7.1".into()];
    report.address = "192.168.7.1".into();
    assert_eq!(value(&of(&report, 8, ""), "NCCL_SOCKET_IFNAME"), "=eth1");
    report.address = "203.0.113.9".into();
    assert_eq!(
        value(&of(&report, 8, ""), "NCCL_SOCKET_IFNAME"),
        "=eth0",
        "the default route, if nobody carries it"
    );
    report.address = "127.0.0.1".into();
    assert_eq!(value(&of(&report, 0, ""), "GLOO_SOCKET_IFNAME"), "lo");
}

#[test]
fn without_gpus_nothing_of_nccl_is_set() {
    let given = of(&dgx(), 0, "");
    let names: Vec<&str> = given.set().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        ["GLOO_SOCKET_IFNAME", "NODE_GPU_COUNT", "NODE_GPU_MODEL"]
    );
}

#[test]
fn the_user_s_value_wins_and_is_reported() {
    let given = of(
        &dgx(),
        8,
        "NCCL_SOCKET_IFNAME==eth1 NCCL_ALGO=Ring NCCL_IB_DISABLE=true NCCL_IGNORE_NET_MISMATCH=0",
    );
    let own = get(&given, "NCCL_SOCKET_IFNAME");
    assert_eq!(
        (own.value.as_deref(), &own.source),
        (Some("=eth1"), &Source::Override("=eth0".into()))
    );
    assert_eq!(get(&given, "NCCL_ALGO").source, Source::Job);
    assert_eq!(get(&given, "NCCL_IGNORE_NET_MISMATCH").source, Source::Job);
    assert_eq!(given.remarks.len(), 1, "{:?}", given.remarks);
    assert!(given.fatal().is_none());
    let wrong = of(&dgx(), 8, "NCCL_SOCKET_IFNAME==bond0");
    assert!(wrong.fatal().unwrap().contains("bond0"));
}

#[test]
fn ranks_are_pinned_unless_the_job_says_off() {
    let mut report = dgx();
    let unpinned = of(&report, 2, "");
    assert_eq!(
        get(&unpinned, "MUSTER_RANK_CPUS").value,
        None,
        "dgx() gives its NUMA nodes no CPUs"
    );
    for (id, cpus) in [(0, "0-3"), (1, "4-7")] {
        (
            report.host.numa[id as usize].id,
            report.host.numa[id as usize].cpus,
        ) = (id, cpus.to_owned());
    }
    assert_eq!(value(&of(&report, 2, ""), "MUSTER_RANK_CPUS"), "0-3;0-3");
    let off = of(&report, 2, "MUSTER_RANK_CPUS=off");
    let variable = get(&off, "MUSTER_RANK_CPUS");
    assert_eq!(
        (variable.value.as_deref(), &variable.source),
        (Some("off"), &Source::Override("0-3;0-3".into()))
    );
}

#[test]
fn what_a_configuration_file_sets_is_left_to_it() {
    let mut report = dgx();
    report.host.nccl_conf = vec!["NCCL_IB_HCA".into()];
    let left = of(&report, 8, "");
    assert_eq!(
        (
            get(&left, "NCCL_IB_HCA").value.as_deref(),
            &get(&left, "NCCL_IB_HCA").source
        ),
        (None, &Source::File)
    );
    assert!(!left.set().any(|(name, _)| name == "NCCL_IB_HCA"));
    assert_eq!(
        value(&of(&report, 8, "NCCL_IB_HCA==mlx5_0"), "NCCL_IB_HCA"),
        "=mlx5_0",
        "the job is stronger than the file"
    );
}

#[test]
fn what_all_ranks_agree_on_is_not_left_to_a_file() {
    let mut report = dgx();
    report.host.nccl_conf = vec!["NCCL_IGNORE_NET_MISMATCH".into()];
    let given = of(&report, 8, "");
    let agreed = get(&given, "NCCL_IGNORE_NET_MISMATCH");
    assert_eq!(
        (agreed.value.as_deref(), &agreed.source),
        (Some("0"), &Source::Profile)
    );
}

#[test]
fn labels_arrive_and_missing_ones_say_so() {
    let mut report = dgx();
    report.labels = [("topology.kubernetes.io/region", "eu-1"), ("rack", "r7")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    let given = of(&report, 8, "");
    assert_eq!(
        (value(&given, "NODE_REGION"), value(&given, "NODE_RACK")),
        ("eu-1".into(), "r7".into())
    );
    assert_eq!(value(&given, "NODE_GPU_MODEL"), "NVIDIA H100 80GB HBM3");
    let zone = get(&given, "NODE_ZONE");
    assert_eq!(
        (zone.value.as_ref(), zone.why.as_str()),
        (None, "this node has no label topology.kubernetes.io/zone")
    );
    assert_eq!(
        value(&of(&report, 8, "NODE_REGION=mars"), "NODE_REGION"),
        "mars"
    );
}

#[test]
fn an_agent_that_is_told_of_its_object_sets_what_the_coordinator_explains() {
    let label = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let object = [
        ("topology.kubernetes.io/zone", "a"),
        ("nvidia.com/gpu.clique", "c.1"),
        ("beta.kubernetes.io/os", "linux"),
        ("rack", "r1"),
    ];
    let object = Labels::bounded(object.map(label));
    let told = told(&object);
    assert_eq!(
        told.keys().collect::<Vec<_>>(),
        [
            "nvidia.com/gpu.clique",
            "rack",
            "topology.kubernetes.io/zone"
        ]
    );
    let report = NodeReport {
        labels: [label(("rack", "r7"))].into(),
        ..dgx()
    };
    let at_coordinator = of(
        &NodeReport {
            object_labels: object,
            ..report.clone()
        },
        8,
        "",
    );
    let at_agent = of(
        &NodeReport {
            object_labels: told,
            ..report
        },
        8,
        "",
    );
    assert_eq!(at_agent, at_coordinator);
    let values =
        ["NODE_ZONE", "NODE_NVLINK_DOMAIN", "NODE_RACK"].map(|name| value(&at_agent, name));
    assert_eq!(values, ["a", "c.1", "r7"]);
}

#[test]
fn a_topology_file_beside_nccl_s_own_place_is_named() {
    let mut report = dgx();
    report.host.topology_file = Some("/opt/microsoft/ndv5-topo.xml".into());
    assert_eq!(
        value(&of(&report, 8, ""), "NCCL_TOPO_FILE"),
        "/opt/microsoft/ndv5-topo.xml"
    );
    report.host.topology_file = Some(DEFAULT_TOPOLOGY_FILE.into());
    assert!(
        !of(&report, 8, "")
            .variables
            .iter()
            .any(|v| v.name == "NCCL_TOPO_FILE")
    );
}
