//! A node takes no work before the interface and the peer that it must wait for are there.

use std::{
    fs::OpenOptions,
    io::Write,
    net::{Ipv4Addr, TcpListener},
};

use muster_core::health::{Severity, Subject, TERMINATION_NOTICE};
use muster_fake_nvml::machine;
use muster_senses::Machine;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interface_must_have_an_address() {
    let machine = Machine::new("laptop");
    let mut eyes = machine.look(&["--wait-interface=wg0"]).await;
    let found = eyes.finding("awaited-interface").await;
    assert_eq!(
        (found.severity, &found.subject),
        (Severity::Drain, &Subject::Nic("wg0".into()))
    );
    assert_eq!(
        found.reason,
        "waits for interface wg0, which has no address"
    );
    assert!(eyes.report.health.withholds_node().is_some());
    machine.inject("wg0", "down");
    eyes.until("it is down", |report| {
        report
            .health
            .findings
            .iter()
            .any(|f| f.reason.ends_with("which is down"))
    })
    .await;
    machine.inject("wg0", "up");
    let routes = machine.dir().join(machine::SYSROOT).join("proc/net/route");
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(routes)
        .unwrap();
    file.write_all(b"wg0\t0000080A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n")
        .unwrap();
    eyes.no_finding("awaited-interface").await;
    machine.inject("wg0", "gone");
    assert_eq!(
        eyes.finding("awaited-interface").await.reason,
        "waits for interface wg0, which is not there"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_must_answer_once() {
    let machine = Machine::new("laptop");
    // The address belongs to this test only, so no other program takes the port in between.
    let pid = std::process::id();
    let host = Ipv4Addr::new(127, 77, (pid >> 8) as u8, pid as u8);
    let held = TcpListener::bind((host, 0)).unwrap();
    let address = held.local_addr().unwrap();
    drop(held);
    let mut eyes = machine
        .look(&[
            &format!("--wait-peer={address}"),
            &format!("--wait-peer={host}"),
        ])
        .await;
    let found = eyes.finding("awaited-peer").await;
    assert_eq!(
        (found.severity, found.subject),
        (Severity::Drain, Subject::Node)
    );
    let text = eyes
        .until("one was asked", |report| {
            report.health.findings[0].reason.contains("refused")
        })
        .await;
    assert!(
        !text.health.findings[0]
            .reason
            .contains(&format!("{host} (")),
        "a host that refuses is there: {:?}",
        text.health
    );
    let listener = TcpListener::bind(address).unwrap();
    eyes.no_finding("awaited-peer").await;
    drop(listener);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_will_be_taken_away_says_so() {
    let machine = Machine::new("laptop");
    let file = machine.dir().join("notice");
    let mut eyes = machine
        .look(&[&format!("--notice-file={}", file.display())])
        .await;
    assert!(
        eyes.report
            .health
            .findings
            .iter()
            .all(|finding| finding.check != TERMINATION_NOTICE)
    );
    std::fs::write(
        &file,
        "spot interruption: terminate at 2026-11-21T10:02:00Z\x1b[2J\nand more\n",
    )
    .unwrap();
    let found = eyes.finding(TERMINATION_NOTICE).await;
    assert_eq!(
        (found.severity, &found.subject),
        (Severity::Drain, &Subject::Node)
    );
    assert_eq!(
        found.reason,
        "spot interruption: terminate at 2026-11-21T10:02:00Z[2J"
    );
    assert!(eyes.report.health.withholds_node().is_some());
    std::fs::remove_file(&file).unwrap();
    eyes.no_finding(TERMINATION_NOTICE).await;
    std::fs::create_dir(&file).unwrap();
    assert_eq!(
        eyes.finding(TERMINATION_NOTICE).await.reason,
        "this machine will be taken away",
        "whatever it is, it is there"
    );
}
