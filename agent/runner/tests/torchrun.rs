//! Real torchrun and torch against the store that this runner serves.
//!
//! `make test` names the interpreter in MUSTER_TEST_PYTHON.
#![allow(clippy::unwrap_used)]

mod rig;

use std::time::Duration;

use muster_runner::wire::{Command, Exit, StartSpec, Status, StoreSpec};
use rig::{Client, Rig};

fn python() -> String {
    std::env::var("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON names a Python with torch; `make test` sets it")
}

/// A rig that serves a store for this many nodes with two ranks each.
fn serving(nnodes: u32) -> (Rig, Client) {
    let mut rig = Rig::new();
    rig.hold.nnodes = nnodes;
    rig.hold.world_size = 2 * nnodes;
    rig.hold.store = Some(StoreSpec {
        bind: "127.0.0.1:0".into(),
        ports: None,
        run_id: "gen-3".into(),
        clients: Vec::new(),
    });
    let client = rig.ready();
    (rig, client)
}

/// torchrun of node 0 with two ranks of `script`.
fn torchrun(rig: &Rig, nnodes: u32, script: &str) -> StartSpec {
    let python = python();
    let path = rig.dir.join("train.py");
    std::fs::write(&path, script).unwrap();
    let port = rig.identity().store_port.unwrap().to_string();
    let (port_arg, nnodes) = (
        format!("--master-port={port}"),
        format!("--nnodes={nnodes}"),
    );
    let args = [
        "-m",
        "torch.distributed.run",
        "--rdzv-backend=static",
        "--master-addr=127.0.0.1",
        &port_arg,
        "--rdzv-id=gen-3",
        &nnodes,
        "--node-rank=0",
        "--nproc-per-node=2",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        path.to_str().unwrap(),
    ];
    let mut spec = rig.program(&python, &args, 2);
    let env = [
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port),
        ("TORCH_ELASTIC_WORKER_IDENTICAL", "1"),
        ("MUSTER_SHIM_PROGRAM", &python),
        ("OMP_NUM_THREADS", "1"),
    ];
    spec.env
        .extend(env.map(|(k, v)| (k.to_owned(), v.to_owned())));
    spec
}

fn exits(status: &Status) -> Vec<Option<Exit>> {
    status.ranks.iter().map(|r| r.exit).collect()
}

#[test]
fn two_ranks_train_against_the_served_store_and_one_fails() {
    let (rig, mut client) = serving(1);
    let script = r#"
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(3):
    t = torch.ones(1)
    dist.all_reduce(t)
    print("step", step, "sum", int(t.item()), flush=True)
dist.destroy_process_group()
assert not [k for k in os.environ if k.startswith("MUSTER_SHIM") or k == "PYTHON_EXEC"]
assert os.path.realpath(sys.executable) != os.path.realpath(os.environ["SHIM"])
if os.environ["RANK"] == "1":
    raise ValueError("bad luck")
"#;
    client.start(torchrun(&rig, 1, script));
    let status = client.until_dead();
    let launcher = rig.log("launcher.log");
    assert_eq!(
        exits(&status)[1],
        Some(Exit::Code { code: 1 }),
        "{launcher}"
    );
    assert_eq!(
        status.ranks[1].first_error.as_deref(),
        Some("ValueError: bad luck"),
        "{:?}",
        status.ranks[1].tail
    );
    assert_eq!(status.launcher.unwrap().exit, Some(Exit::Code { code: 1 }));
    assert!(
        status
            .ranks
            .iter()
            .all(|r| (r.first_step, r.last_step) == (Some(0), Some(2)))
    );
    let store = status.store.unwrap();
    assert_eq!(
        (store.joined_ranks, store.missing_ranks),
        (vec![0, 1], vec![])
    );
    assert!(store.all_joined_us.is_some());
    for rank in 0..2 {
        assert!(
            rig.log(&format!("rank-{rank}.log"))
                .contains("stdout F step 2 sum 2")
        );
    }
}

/// The script of the tutorials, with something to clean up. The rank that fails has left its group by
/// the time at which its error ends it, and the other one is the first to end.
#[test]
fn a_rank_that_leaves_its_group_before_it_ends_keeps_its_own_error() {
    let (rig, mut client) = serving(1);
    let script = r#"
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
try:
    dist.all_reduce(torch.ones(1))
    print("step 1", flush=True)
    # Longer than the shim lets the other ranks go on.
    time.sleep(16)
    if dist.get_rank() == 1:
        raise ValueError("labels out of range")
    dist.all_reduce(torch.ones(1))
finally:
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 1:
        time.sleep(2)
"#;
    client.start(torchrun(&rig, 1, script));
    let status = client.until_dead();
    assert_eq!(exits(&status), [Some(Exit::Code { code: 1 }); 2]);
    let reason = |rank: usize| status.ranks[rank].first_error.as_deref().unwrap();
    assert!(reason(0).contains("by peer"), "{}", reason(0));
    assert_eq!(reason(1), "ValueError: labels out of range");
    let ended = |rank: usize| status.ranks[rank].exited_us.unwrap();
    assert!(ended(0) < ended(1), "the victim ends first");
}

#[test]
fn a_stop_reaches_the_script_once_and_a_lost_node_does_not_hold_up_the_end() {
    let (rig, mut client) = serving(2);
    // The ranks end by themselves. Their launcher then waits for the other node, which never comes.
    client.start(torchrun(&rig, 2, "print('step 1', flush=True)"));
    client.until(|s| s.ranks.len() == 2 && s.ranks.iter().all(|r| r.exit.is_some()));
    client.ok(Command::CompleteExitBarrier { node_rank: 1 });
    let refusal = client.refused(Command::CompleteExitBarrier { node_rank: 2 });
    assert_eq!(refusal.text, "node_rank: 2 is not below nnodes 2");
    let status = client.until_dead();
    assert_eq!(exits(&status), [Some(Exit::Code { code: 0 }); 2]);
    assert_eq!(
        status.launcher.unwrap().exit,
        Some(Exit::Code { code: 0 }),
        "{}",
        rig.log("launcher.log")
    );
    assert_eq!(status.stop, None);
}

#[test]
fn a_script_that_saves_on_term_hears_it_once() {
    let (rig, mut client) = serving(1);
    let script = r#"
import signal, sys, time
def save(*_):
    print("saving", flush=True)
    time.sleep(0.3)
    sys.exit(9)
signal.signal(signal.SIGTERM, save)
print("step 1", flush=True)
while True:
    time.sleep(60)
"#;
    client.start(torchrun(&rig, 1, script));
    client.until_stepping(2);
    client.stop(Duration::from_secs(600));
    let status = client.until_dead();
    assert_eq!(exits(&status), [Some(Exit::Code { code: 9 }); 2]);
    for rank in 0..2 {
        assert_eq!(
            rig.log(&format!("rank-{rank}.log"))
                .matches("saving")
                .count(),
            1
        );
    }
}

/// A script that starts torchrun itself, as an entry point does, and trains below it.
const NESTED: &str = r#"
import os, subprocess, sys
inner = os.path.join(os.path.dirname(__file__), "inner.py")
with open(inner + os.environ["RANK"], "w") as f:
    f.write("""
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
print("step 1", flush=True)
time.sleep(600)
""")
flags = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=2"]
for name in ["TORCHELASTIC_USE_AGENT_STORE", "PYTHON_EXEC"]:
    os.environ.pop(name, None)
sys.exit(subprocess.call([sys.executable, "-m", "torch.distributed.run", *flags, inner + os.environ["RANK"]]))
"#;

#[test]
fn a_torchrun_below_a_rank_is_noticed_and_none_of_its_ranks_has_come_to_the_store() {
    let (rig, mut client) = serving(1);
    client.start(torchrun(&rig, 1, NESTED));
    let status = client.until(|s| s.nested.is_some());
    let world = status.nested.unwrap();
    assert_eq!((world.launcher.as_str(), world.world_size), ("torchrun", 2));
    assert!(world.rank < 2, "{world:?}");
    // The steps of the other worlds are seen, and nobody has joined ours. Its torchrun has announced
    // itself.
    let status = client.until_stepping(2);
    let store = status.store.unwrap();
    assert_eq!((store.joined_ranks, store.announced), (vec![], Some(1)));
    assert_eq!(status.nested.unwrap(), world, "it is reported once");
    client.stop(Duration::ZERO);
    client.until_dead();
}

#[test]
fn data_loaders_below_a_rank_are_no_world() {
    let (rig, mut client) = serving(1);
    let script = r#"
import time, torch, torch.distributed as dist
from torch.utils.data import DataLoader
if __name__ == "__main__":
    dist.init_process_group("gloo")
    data = list(range(64))
    for epoch in range(3):
        for context in ["fork", "spawn"]:
            for batch in DataLoader(data, num_workers=2, multiprocessing_context=context):
                pass
        time.sleep(1.2)
    print("step 1", flush=True)
    time.sleep(600)
"#;
    client.start(torchrun(&rig, 1, script));
    let status = client.until_stepping(2);
    assert_eq!(status.nested, None);
    client.stop(Duration::ZERO);
    client.until_dead();
}
