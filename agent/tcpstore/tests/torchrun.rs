//! Unmodified torchrun with static rendezvous, two nodes on this host: what the sensor reads from
//! its keys, and how a lost node's part in the exit barrier is taken.

mod wire;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use muster_tcpstore::{Limits, Sensor};
use wire::{PATIENCE, Served};

/// A launcher. It is killed at the end of the test. Its rank ends with the pipe that this test
/// holds, or with the store.
struct Launcher(Child);

impl Launcher {
    fn start(python: &OsString, served: &Served, node: u32) -> Launcher {
        let (host, port) = (served.addr.ip().to_string(), served.addr.port().to_string());
        let mut command = Command::new(python);
        command
            .args([
                "-m",
                "torch.distributed.run",
                "--rdzv-backend=static",
                "--nnodes=2",
                "--nproc-per-node=1",
            ])
            .args([
                "--max-restarts=0",
                "--rdzv-id=job-g1",
                "--master-addr",
                &host,
                "--master-port",
                &port,
            ])
            .arg(format!("--node-rank={node}"))
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/torchrun_rank.py"
            ));
        // Node rank 0 tries to serve the port itself. These variables make torch (2.7 and later)
        // use ours instead.
        command
            .env("TORCHELASTIC_USE_AGENT_STORE", "True")
            .env("MASTER_ADDR", &host)
            .env("MASTER_PORT", &port);
        command
            .env("OMP_NUM_THREADS", "1")
            .env_remove("TORCH_ELASTIC_WORKER_IDENTICAL");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Launcher(command.spawn().expect("start torchrun"))
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Feeds the sensor until it shows what the test waits for.
fn observe(served: &Served, sensor: &mut Sensor, what: &str, seen: impl Fn(&Sensor) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !seen(sensor) {
        let event = served
            .events
            .recv_timeout(end.saturating_duration_since(Instant::now()));
        sensor.observe(&event.unwrap_or_else(|_| panic!("{what} was not seen: {sensor:?}")));
    }
}

#[test]
fn the_sensor_follows_torchrun_and_a_lost_node_holds_up_nobody() {
    let python = std::env::var_os("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON is not set: this test needs a Python with torch; run `make test`, which prepares one");
    let served = Served::new(Limits::default());
    let mut sensor = Sensor::new(2, 2);

    let mut first = Launcher::start(&python, &served, 0);
    observe(&served, &mut sensor, "the first node", |s| {
        s.arrived_nodes() == BTreeSet::from([0])
    });
    assert_eq!(
        sensor.missing_ranks(),
        [0, 1],
        "its rank starts when all nodes are there"
    );

    let mut second = Launcher::start(&python, &served, 1);
    observe(&served, &mut sensor, "all ranks", Sensor::all_joined);
    observe(&served, &mut sensor, "each rank by number", |s| {
        s.missing_ranks().is_empty()
    });
    assert_eq!(sensor.entered(), 2);
    assert_eq!(sensor.arrived_nodes(), BTreeSet::from([0, 1]));

    observe(&served, &mut sensor, "the first node's end", |s| {
        s.finished_nodes() == BTreeSet::from([0])
    });
    second.0.kill().unwrap();
    second.0.wait().unwrap();
    assert!(
        first.0.try_wait().unwrap().is_none(),
        "it waits for the other node"
    );

    let done = served.with(move |store| {
        sensor.complete_exit_barrier(store, "job-g1", 1);
        store
            .get(b"/job-g1/torchelastic/agent/terminal_state/last_member")
            .is_some()
    });
    assert!(done);
    assert!(first.0.wait().unwrap().success(), "it ends well");
}
