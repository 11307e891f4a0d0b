//! Everything that can break is broken while the probes look, and mended where that is possible.

use std::time::Duration;

use muster_agent::probe::Pace;
use muster_core::{
    health::{Finding, Remedy, Severity, Subject},
    id::NodeName,
    nccl::profile::{Member, Transport, decide},
    node_report::{NodeReport, topology::Path},
};
use muster_fake_nvml::hardware::Hardware;
use muster_senses::{Eyes, Machine, QUICK};

fn uuid(report: &NodeReport, index: usize) -> String {
    report.gpus[index].uuid.clone()
}

fn verdict(finding: &Finding) -> (Severity, Remedy) {
    (finding.severity, finding.remedy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_matrix_of_a_server_is_as_written_by_hand() {
    // There are two sockets. GPU 1's root also has the NIC, on another port.
    const EXPECTED: [&str; 5] = [
        "X NODE SYS SYS NODE",
        "NODE X SYS SYS PHB",
        "SYS SYS X NODE SYS",
        "SYS SYS NODE X SYS",
        "NODE PHB SYS SYS X",
    ];
    let eyes = Machine::new("4xl40s").look(&[]).await;
    let rows: Vec<String> = eyes
        .report
        .topology
        .paths
        .iter()
        .map(|row| {
            row.iter()
                .map(Path::to_string)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    assert_eq!(rows, EXPECTED);
    let dgx = Machine::new("8xh100").look(&[]).await.report;
    for (gpu, nic) in [
        (0, "mlx5_0"),
        (1, "mlx5_3"),
        (2, "mlx5_4"),
        (3, "mlx5_5"),
        (4, "mlx5_6"),
        (5, "mlx5_9"),
        (6, "mlx5_10"),
        (7, "mlx5_11"),
    ] {
        assert_eq!(dgx.topology.between(&uuid(&dgx, gpu), nic), Path::Pxb);
        let rail = dgx
            .network
            .rdma
            .iter()
            .find(|device| device.name == nic)
            .unwrap()
            .rail;
        assert_eq!(rail, Some(gpu as u32), "{nic}");
    }
    assert_eq!(
        dgx.topology.between(&uuid(&dgx, 0), &uuid(&dgx, 7)),
        Path::Nv(18)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_xid_is_seen_once_though_told_twice_and_withholds_its_gpu_alone() {
    let machine = Machine::new("8xh100");
    let mut eyes = machine.look(&[]).await;
    let third = uuid(&eyes.report, 3);
    machine.inject("gpu3", "xid=48");
    let found = eyes.finding("xid:48").await;
    assert_eq!(
        (verdict(&found), &found.subject),
        (
            (Severity::FailNow, Remedy::GpuReset),
            &Subject::Gpu(third.clone())
        )
    );
    // The log's text comes with the second message, and the fault is not counted again.
    let told = eyes
        .until("the log was read too", |report| {
            report
                .health
                .findings
                .iter()
                .any(|f| f.reason.contains("python3"))
        })
        .await;
    assert_eq!(told.health.findings.len(), 1);
    assert!(
        !told.health.findings[0].reason.contains("times"),
        "{:?}",
        told.health.findings[0]
    );
    assert_eq!(told.placeable().len(), 7);
    assert!(!told.placeable().iter().any(|gpu| gpu.uuid == third));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_off_the_bus_leaves_the_others_in_sight() {
    let machine = Machine::new("8xh100");
    let mut eyes = machine.look(&[]).await;
    let fifth = uuid(&eyes.report, 5);
    machine.inject("gpu5", "xid=79");
    let xid = eyes.finding("xid:79").await;
    assert_eq!(
        (verdict(&xid), xid.subject),
        ((Severity::FailNow, Remedy::NodeReboot), Subject::Node)
    );
    let lost = eyes.finding("gpu-lost").await;
    assert_eq!(lost.subject, Subject::Gpu(fifth));
    assert_eq!(
        eyes.report.gpus.len(),
        8,
        "it is shown, with what is wrong with it"
    );
    assert!(
        eyes.report
            .gpu_error
            .as_ref()
            .is_some_and(|error| error.contains("GPU 5")),
        "{:?}",
        eyes.report.gpu_error
    );
    assert!(
        !eyes
            .report
            .health
            .findings
            .iter()
            .any(|f| f.check == "gpu-missing"),
        "once is enough"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_missing_from_the_start_is_missed() {
    let machine = Machine::new("8xh100,gpu2:lost");
    let mut eyes = machine.look(&[]).await;
    let missing = eyes.finding("gpu-missing").await;
    assert_eq!(
        (missing.severity, missing.reason.as_str()),
        (Severity::Drain, "7 of 8 GPUs"),
        "PCI shows all eight"
    );
    let mut expecting = Machine::new("4xl40s").look(&["--expect-gpus=8"]).await;
    assert_eq!(expecting.finding("gpu-missing").await.reason, "4 of 8 GPUs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_driver_s_own_verdict_comes_and_goes() {
    let machine = Machine::new("4xl40s");
    let mut eyes = machine.look(&[]).await;
    for (action, check, severity) in [
        (2, "recovery-reboot", Severity::FailNow),
        (4, "recovery-drain-reset", Severity::Drain),
        (1, "recovery-reset", Severity::FailNow),
    ] {
        machine.inject("gpu0", &format!("recovery={action}"));
        assert_eq!(eyes.finding(check).await.severity, severity);
    }
    machine.inject("gpu0", "recovery=0");
    eyes.no_finding("recovery-reset").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_links_lanes_and_ports_each_have_their_verdict() {
    let machine = Machine::new("8xh100");
    let mut eyes = machine.look(&[]).await;
    for (target, fault, check, severity) in [
        (
            "gpu0",
            "remap=pending",
            "row-remap-pending",
            Severity::Drain,
        ),
        (
            "gpu0",
            "remap=failed",
            "row-remap-failure",
            Severity::FailNow,
        ),
        ("gpu1", "ecc=1", "ecc-uncorrectable", Severity::FailNow),
        ("gpu2", "corrected=5000", "ecc-corrected", Severity::Warn),
        (
            "gpu2",
            "corrected=20000001",
            "dram-corrected-many",
            Severity::Warn,
        ),
        (
            "gpu7",
            "sram-corrected=10001",
            "sram-corrected-many",
            Severity::Warn,
        ),
        ("gpu3", "link=7:down", "nvlink-down", Severity::FailNow),
        ("gpu4", "crc=3:20", "nvlink-errors", Severity::Warn),
        ("gpu5", "width=8", "pcie-width", Severity::Drain),
        ("gpu6", "error=16", "gpu-reset-required", Severity::FailNow),
        (
            "mlx5_10",
            "errors=1000000",
            "port-receive-errors",
            Severity::Warn,
        ),
        (
            "kernel",
            "log=mlx5_core 0000:5e:00.0: temp_warn: High temperature on sensors",
            "nic-heat",
            Severity::Warn,
        ),
        (
            "kernel",
            "log=nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30",
            "sxid-fatal",
            Severity::FailNow,
        ),
    ] {
        machine.inject(target, fault);
        let found = eyes.finding(check).await;
        assert_eq!(found.severity, severity, "{target} {fault}: {found:?}");
    }
    let heat = eyes.finding("nic-heat").await;
    assert_eq!(
        heat.subject,
        Subject::Nic("mlx5_5".into()),
        "the NIC at that address"
    );
    let sram = eyes.finding("sram-corrected-many").await;
    assert_eq!(sram.subject, Subject::Gpu(uuid(&eyes.report, 7)));
    let of_seventh = eyes
        .report
        .health
        .findings
        .iter()
        .filter(|found| found.subject == sram.subject);
    assert!(
        !of_seventh
            .into_iter()
            .any(|found| found.check == "dram-corrected-many"),
        "counted apart"
    );
    machine.inject("gpu3", "link=7:up");
    eyes.no_finding("nvlink-down").await;
    machine.inject("gpu1", "healthy");
    eyes.no_finding("ecc-uncorrectable").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heat_and_a_clock_below_its_peers_are_warned_of() {
    let machine = Machine::new("8xh100");
    let rules = machine.state_dir().join("rules");
    std::fs::write(&rules, "memory-hot warn none\nclocks-low warn support\n").unwrap();
    for gpu in 0..8 {
        machine.inject(&format!("gpu{gpu}"), "busy=97");
        machine.inject(&format!("gpu{gpu}"), "clock=1755");
    }
    machine.inject("gpu2", "heat=96");
    machine.inject("gpu6", "clock=1200");
    let mut eyes = machine
        .look(&["--health-rules", rules.to_str().unwrap()])
        .await;
    let slow = eyes.finding("clocks-low").await;
    assert_eq!(
        slow.subject,
        Subject::Gpu(uuid(&eyes.report, 6)),
        "{}",
        slow.reason
    );
    let hot = eyes.finding("memory-hot").await;
    assert_eq!(
        hot.subject,
        Subject::Gpu(uuid(&eyes.report, 2)),
        "{}",
        hot.reason
    );
    machine.inject("gpu2", "heat=95");
    machine.inject("gpu6", "throttle=on");
    eyes.no_finding("memory-hot").await;
    eyes.no_finding("clocks-low").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_was_up_is_missed_when_it_is_down() {
    let machine = Machine::new("hgx-roce");
    // The finding must come at once, so that the test need not wait as long as the rule does.
    let rules = machine.state_dir().join("rules");
    std::fs::write(
        &rules,
        "port-down drain support\nport-rate-low drain support\nnic-missing drain node_reboot\n",
    )
    .unwrap();
    let mut eyes = machine
        .look(&["--health-rules", rules.to_str().unwrap()])
        .await;
    machine.inject("mlx5_2", "down");
    let down = eyes.finding("port-down").await;
    assert_eq!(
        (down.subject, down.reason.as_str()),
        (
            Subject::Nic("mlx5_2".into()),
            "mlx5_2 port 1: DOWN, Polling"
        )
    );
    assert!(
        eyes.report.health.withholds_node().is_some(),
        "a node with a rail less hangs NCCL"
    );
    machine.inject("mlx5_2", "up");
    eyes.no_finding("port-down").await;
    machine.inject("mlx5_3", "rate=100");
    assert_eq!(
        eyes.finding("port-rate-low").await.reason,
        "mlx5_3 port 1: 100 of 400 Gb/s"
    );
    (0..3).for_each(|_| machine.inject("mlx5_4", "flap"));
    assert_eq!(eyes.finding("port-flaps").await.severity, Severity::Drain);
    machine.inject("mlx5_5", "gone");
    assert_eq!(
        eyes.finding("nic-missing").await.subject,
        Subject::Nic("mlx5_5".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_hangs_is_noticed_and_forgiven() {
    let machine = Machine::new("8xh100");
    let mut eyes = machine.look(&[]).await;
    machine.inject("driver", "hang");
    let hung = eyes.finding("nvml-hung").await;
    assert_eq!(
        (hung.severity, hung.subject),
        (Severity::Drain, Subject::Node)
    );
    assert_eq!(eyes.report.gpus.len(), 8, "what was known is still said");
    // Ports are still watched.
    machine.inject("mlx5_0", "errors=1000000");
    eyes.finding("port-receive-errors").await;
    machine.inject("driver", "resume");
    eyes.no_finding("nvml-hung").await;
    assert_eq!(eyes.report.gpu_error, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_hangs_from_the_start_does_not_hide_the_machine() {
    let machine = Machine::new("8xh100,driver:hang");
    let mut eyes = machine.look(&[]).await;
    eyes.finding("nvml-hung").await;
    assert_eq!(eyes.report.network.rdma.len(), 12);
    assert!(eyes.report.gpus.is_empty());
    machine.inject("driver", "resume");
    eyes.until("the GPUs are there", |report| report.gpus.len() == 8)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_xids_makes_few_reports() {
    let machine = Machine::new("4xl40s");
    let mut eyes = machine.look(&[]).await;
    for _ in 0..200 {
        machine.inject("gpu1", "xid=31");
    }
    let storm = eyes
        .until("most of the storm is counted", |report| {
            report
                .health
                .findings
                .iter()
                .any(|f| f.reason.contains("more than 100"))
        })
        .await;
    let xids: Vec<_> = storm
        .health
        .findings
        .iter()
        .filter(|f| f.check.starts_with("xid"))
        .collect();
    assert_eq!(
        (xids.len(), xids[0].severity),
        (1, Severity::Note),
        "an application's fault, whatever its number"
    );
    let gpus = |finding: &Finding| {
        matches!(finding.subject, Subject::Gpu(_)) && finding.severity >= Severity::Drain
    };
    assert!(!storm.health.findings.iter().any(gpus));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_restarts_forgets_no_fault_and_another_boot_does() {
    let machine = Machine::new("4xl40s");
    let mut eyes = machine.look(&[]).await;
    machine.inject("gpu1", "xid=62");
    eyes.finding("xid:62").await;
    drop(eyes);
    let mut again = machine.look(&[]).await;
    assert_eq!(
        again.finding("xid:62").await.severity,
        Severity::FailNow,
        "no event came twice, and it is still known"
    );
    let memory = std::fs::read_to_string(machine.state_dir().join("health.json")).unwrap();
    let boot = memory
        .split("\"bootId\":\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    // The threads of an agent that was dropped may still write to its directory. So each of these has another one.
    for (text, known) in [
        (memory.clone(), true),
        (memory.replace(boot, "another-boot"), false),
    ] {
        let after = Machine::new("4xl40s");
        std::fs::write(after.state_dir().join("health.json"), text).unwrap();
        let report = after.look(&[]).await.report;
        let mut findings = report.health.findings.iter();
        assert_eq!(findings.any(|f| f.check == "xid:62"), known);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drivers_that_lack_functions_or_mismatch_are_told_apart_from_none() {
    let old = Machine::new("old-driver").look(&[]).await.report;
    assert_eq!((old.gpus.len(), old.gpu_error.clone()), (2, None));
    assert_eq!(
        (&old.gpus[0].fabric, old.gpus[0].module_id),
        (&None, None),
        "not supported is no failure"
    );
    assert!(
        old.health
            .findings
            .iter()
            .all(|f| f.check == "persistence-off"),
        "{:?}",
        old.health
    );
    let none = Machine::new("laptop").look(&[]).await.report;
    assert_eq!(
        (none.driver, none.gpu_error, none.gpus.len()),
        (None, None, 0)
    );
    const MISMATCH: &str = "4xl40s,driver:error=18";
    let mut mismatch = Machine::new(MISMATCH).look(&[]).await;
    assert_eq!(
        mismatch.finding("driver-mismatch").await.severity,
        Severity::Drain
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_are_given_out_in_place_of_their_gpu() {
    let report = Machine::new("mig").look(&[]).await.report;
    let given: Vec<String> = report
        .placeable()
        .into_iter()
        .map(|gpu| gpu.uuid[..4].to_owned())
        .collect();
    assert_eq!(given, ["MIG-", "MIG-", "MIG-", "MIG-", "GPU-"]);
    assert_eq!(
        report.gpus[0].mig.as_ref().unwrap().instances[0].profile,
        "3g.40gb"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_of_one_machine_share_its_gpus() {
    let machine = Machine::new("8xh100");
    let gpus = |which: String| {
        let config = machine.config(QUICK, &["--gpus", &which]);
        async move {
            Eyes::open(&config)
                .await
                .report
                .gpus
                .into_iter()
                .map(|gpu| gpu.index)
                .collect::<Vec<_>>()
        }
    };
    assert_eq!(gpus("1/3".into()).await, [0, 1]);
    assert_eq!(gpus("3/3".into()).await, [5, 6, 7]);
    assert!(gpus("none".into()).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_of_an_nvlink_domain_without_a_channel_to_it_is_warned_of() {
    let machine = Machine::new("8xh100");
    let rules = machine.state_dir().join("rules");
    // The finding must come at once, so that the test need not wait as long as the rule does.
    std::fs::write(&rules, "imex-channel warn support\n").unwrap();
    let mut hardware = Hardware::read(&machine.dir()).unwrap();
    let mut join = |cluster| {
        hardware
            .gpus
            .iter_mut()
            .filter_map(|gpu| gpu.fabric.as_mut())
            .for_each(|fabric| fabric.cluster = cluster);
        hardware.write(&machine.dir()).unwrap();
    };
    join([7; 16]);
    let mut eyes = machine
        .look(&["--health-rules", rules.to_str().unwrap()])
        .await;
    let closed = eyes.finding("imex-channel").await;
    assert_eq!(
        (verdict(&closed), closed.subject),
        ((Severity::Warn, Remedy::Support), Subject::Node),
        "{}",
        closed.reason
    );
    assert!(eyes.report.host.imex_channels.is_empty());
    let channels = machine.dir().join("sysroot/dev/nvidia-caps-imex-channels");
    std::fs::create_dir(&channels).unwrap();
    std::fs::write(channels.join("channel0"), "").unwrap();
    eyes.no_finding("imex-channel").await;
    assert_eq!(eyes.report.host.imex_channels, ["channel0"]);
    std::fs::remove_dir_all(&channels).unwrap();
    eyes.finding("imex-channel").await;
    // A machine that is a domain of its own needs no channel.
    join([0; 16]);
    eyes.no_finding("imex-channel").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_efa_device_that_leaves_commands_unanswered_is_drained() {
    let machine = Machine::new("efa");
    let mut eyes = machine.look(&[]).await;
    machine.inject("rdmap32s27", "unanswered=1");
    let found = eyes.finding("efa-unanswered").await;
    assert_eq!(
        (found.severity, found.subject),
        (Severity::Drain, Subject::Nic("rdmap32s27".into())),
        "{}",
        found.reason
    );
    assert!(eyes.report.health.withholds_node().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_glance_finds_what_no_event_tells_long_before_the_next_look() {
    let machine = Machine::new("8xh100");
    let hour = Duration::from_secs(3_600);
    let pace = Pace {
        glance: Duration::from_millis(20),
        fast: hour,
        counters: hour,
        slow: hour,
        usage: hour,
    };
    let mut eyes = Eyes::open(&machine.config(pace, &["--wait-interface=ibp0"])).await;
    let uuids: Vec<String> = (0..8).map(|index| uuid(&eyes.report, index)).collect();
    for (target, fault, check, subject) in [
        (
            "gpu1",
            "link=7:down",
            "nvlink-down",
            Subject::Gpu(uuids[1].clone()),
        ),
        (
            "gpu2",
            "recovery=1",
            "recovery-reset",
            Subject::Gpu(uuids[2].clone()),
        ),
        ("gpu3", "lost", "gpu-lost", Subject::Gpu(uuids[3].clone())),
        // This fault is counted, and an event reports it.
        (
            "gpu4",
            "ecc=1",
            "ecc-uncorrectable",
            Subject::Gpu(uuids[4].clone()),
        ),
        // A glance finds this fault, and looks at it until it has lasted.
        ("mlx5_3", "down", "port-down", Subject::Nic("mlx5_3".into())),
    ] {
        machine.inject(target, fault);
        assert_eq!(
            eyes.finding(check).await.subject,
            subject,
            "{target} {fault}"
        );
    }
    machine.inject("gpu1", "link=7:up");
    eyes.no_finding("nvlink-down").await;
    std::fs::write(machine.state_dir().join("termination-notice"), "spot").unwrap();
    eyes.finding("termination-notice").await;
    assert!(
        eyes.report
            .health
            .findings
            .iter()
            .all(|finding| finding.check != "nvml-hung"),
        "{:?}",
        eyes.report.health
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trays_use_nvlink_between_them_where_two_are_in_one_clique() {
    let nodes: Vec<NodeName> = ["a", "b", "c"].map(NodeName::from).into();
    let trays = [
        Machine::new("nvl72"),
        Machine::new("nvl72"),
        Machine::new("nvl72"),
    ];
    trays[2].inject("fabric", "rack=2");
    let mut reports = Vec::new();
    for tray in &trays {
        reports.push(tray.look(&[]).await.report);
    }
    assert!(
        reports
            .iter()
            .all(|report| report.health.findings.is_empty()),
        "{:?}",
        reports[0].health
    );
    let given: Vec<Vec<String>> = reports
        .iter()
        .map(|report| {
            report
                .placeable()
                .iter()
                .map(|gpu| gpu.uuid.clone())
                .collect()
        })
        .collect();
    let of = |which: &[usize]| {
        let member = |at: &usize| Member {
            node: &nodes[*at],
            report: &reports[*at],
            gpus: &given[*at],
        };
        let members: Vec<_> = which.iter().map(member).collect();
        let profile = decide(&members);
        let mismatches = muster_core::nccl::mixture::mismatches(&members, true);
        assert_eq!(
            (profile.transport, profile.rails, mismatches.len()),
            (Transport::Infiniband, 4, 0)
        );
        profile
            .shared
            .into_iter()
            .find(|shared| shared.name == "NCCL_MNNVL_ENABLE")
            .map(|shared| shared.value)
    };
    assert_eq!(of(&[0, 1]), None, "one clique: left to NCCL, which uses it");
    assert_eq!(of(&[0, 2]), Some("0".into()), "two racks");
    assert_eq!(
        of(&[0, 1, 2]),
        None,
        "within one clique, and the network to the third"
    );
    trays[1].inject("fabric", "channel=off");
    let mut eyes = trays[1].look(&[]).await;
    reports[1] = eyes
        .until("the channel is gone", |report| {
            report.host.imex_channels.is_empty()
        })
        .await
        .clone();
    let member = |at: usize| Member {
        node: &nodes[at],
        report: &reports[at],
        gpus: &given[at],
    };
    let profile = decide(&[member(0), member(1)]);
    let mut shared = profile.shared.iter();
    let off = shared.find(|shared| shared.name == "NCCL_MNNVL_ENABLE");
    let off = off.unwrap();
    assert_eq!(
        (off.value.as_str(), off.why.as_str()),
        ("0", "multi-node NVLink without an IMEX channel on b")
    );
}
