//! The limit on open files. It is raised for the runner and restored for the workers, and never
//! makes the control socket fail.
#![allow(clippy::unwrap_used)]

mod rig;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command as Process;

use muster_runner::wire::StoreSpec;
use muster_tcpstore::protocol::{Request, hello};
use rig::{Client, PATIENCE, RUNNER, Rig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A ready runner that serves a store, started with these limits.
fn serving(soft: u32, hard: u32) -> (Rig, Client, String) {
    // This process needs many descriptors for its side of the connections.
    let own = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: own.maximum,
            ..own
        },
    )
    .unwrap();
    let mut rig = Rig::new();
    rig.hold.store = Some(StoreSpec {
        bind: "127.0.0.1:0".into(),
        ports: None,
        run_id: "r".into(),
        clients: Vec::new(),
    });
    rig.write_hold();
    let script = format!("ulimit -Sn {soft}; ulimit -Hn {hard}; exec \"$0\" hold --dir \"$1\"");
    let output = Process::new("bash")
        .args(["-c", &script, RUNNER])
        .arg(&rig.dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let client = rig.client();
    let address = format!("127.0.0.1:{}", rig.identity().store_port.unwrap());
    (rig, client, address)
}

/// Connects this many clients to the store. Returns them, and how many of them the store serves.
fn join(address: &str, count: u32) -> (Vec<TcpStream>, usize) {
    let mut clients: Vec<TcpStream> = (0..count)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for (nonce, client) in clients.iter_mut().enumerate() {
        let mut bytes = hello().to_vec();
        Request::Ping {
            nonce: nonce as u32,
        }
        .write_to(&mut bytes);
        // The store may have closed a connection that it refused.
        let _ = client.write_all(&bytes);
    }
    let mut answered = 0;
    for (nonce, client) in clients.iter_mut().enumerate() {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut pong = [0; 4];
        answered += usize::from(
            client.read_exact(&mut pong).is_ok() && u32::from_le_bytes(pong) == nonce as u32,
        );
    }
    (clients, answered)
}

#[test]
fn a_low_soft_limit_is_raised_for_the_store_and_restored_for_workers() {
    let (rig, mut control, address) = serving(256, 4_096);
    let (_clients, answered) = join(&address, 1_500);
    assert_eq!(answered, 1_500, "{:?}", control.status().store);
    control.start(rig.ranks(1, "echo limit $(ulimit -Sn) $(ulimit -Hn); exit 0"));
    control.until_dead();
    assert!(
        rig.log("rank-0.log").contains("limit 256 4096"),
        "{}",
        rig.log("rank-0.log")
    );
}

#[test]
fn a_full_store_says_so_and_leaves_the_runner_what_it_needs() {
    let (rig, _control, address) = serving(256, 256);
    let (_clients, answered) = join(&address, 400);
    assert!((100..200).contains(&answered), "{answered}");
    let mut control = rig.client();
    control.start(rig.ranks(8, "echo step 1; while :; do sleep 1000; done"));
    let status = control.until_stepping(8);
    let store = status.store.unwrap();
    assert_eq!(
        (store.clients, store.refused),
        (answered, (400 - answered) as u64)
    );
    assert_eq!(
        store.refused_why,
        Some(format!("{answered} clients are connected, the limit"))
    );
    control.stop(std::time::Duration::ZERO);
    control.until_dead();
    let log = std::fs::read_to_string(rig.dir.join("runner.log")).unwrap();
    assert!(
        log.contains("TCPStore: connections refused so far: "),
        "{log}"
    );
}
