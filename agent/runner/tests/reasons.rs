//! Why a rank failed, with real Python: ranks that were forked from a launcher write the exception down
//! themselves, and of the others it is read in what they print.
//!
//! `make test` names the interpreter in MUSTER_TEST_PYTHON.
#![allow(clippy::unwrap_used)]

mod rig;

use std::os::unix::fs::PermissionsExt;

use muster_runner::wire::{Exit, Lane, Order, RankStatus, StartSpec, StoreSpec};
use rig::Rig;

fn python() -> String {
    std::env::var("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON names a Python with torch; `make test` sets it")
}

/// Each rank fails in its own way. None of them hears that another one has failed.
const SCRIPT: &str = r#"
import argparse, atexit, faulthandler, io, logging, os, queue, resource, signal, sys, threading, time, traceback, zipfile

signal.signal(signal.SIGTERM, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
logging.basicConfig(format="%(message)s")


def summary():
    for n in range(50):
        print(f"metric_{n} min 0.1 max 0.9", file=sys.stderr)


def summary_after():
    atexit.register(summary)
    zipfile.ZipFile(io.BytesIO(b"x"))


def handled():
    try:
        {}["cache"]
    except KeyError:
        traceback.print_exc()


def steps():
    for step in range(3):
        print(f"step {step} loss 0.5", file=sys.stderr)


def handled_then_left():
    handled()
    steps()
    os._exit(4)


def exit_text():
    handled()
    steps()
    sys.exit("no data in /data")


def arguments():
    argparse.ArgumentParser(prog="train.py").parse_args(["--lr"])


def long_text():
    raise RuntimeError("CUDA error: unknown\n\n" + "".join(f"frame #{n}: c10::f\n" for n in range(50)))


def killed_at_exit():
    atexit.register(os.kill, os.getpid(), signal.SIGKILL)
    queue.Queue().get_nowait()


def group():
    raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])


def logged():
    try:
        1 / 0
    except ZeroDivisionError:
        logging.exception("training failed")
        sys.exit(1)


def crash():
    handled()
    faulthandler.enable()
    signal.raise_signal(signal.SIGSEGV)


def child_first():
    pid = os.fork()
    if pid == 0:
        raise OSError("of the child")
    os.waitpid(pid, 0)
    steps()
    raise LookupError("of the rank")


def exit_code():
    logging.error("tokenizer not found")
    sys.exit(3)


def at_exit_too():
    def upload():
        raise OSError("no uplink")
    def late():
        threading.main_thread().join()
        raise OSError("too late")
    atexit.register(upload)
    threading.Thread(target=late).start()
    raise StopIteration


def cut_off():
    raise ValueError("x" * 100_000)


def strange():
    class Odd(Exception):
        def __str__(self):
            raise ValueError
    raise Odd


WAYS = [summary_after, handled_then_left, exit_text, arguments, long_text, killed_at_exit, group, logged, crash, child_first, exit_code, at_exit_too, cut_off, strange]
WAYS[int(os.environ["RANK"])]()
"#;

/// For each rank, how it ends, and the reason: of a forked rank, and of any other.
fn expected() -> Vec<(Exit, String, String)> {
    let code = |code| Exit::Code { code };
    let signal = |signal| Exit::Signal {
        signal,
        core: false,
    };
    let same = |exit, why: &str| (exit, why.to_owned(), why.to_owned());
    vec![
        same(code(1), "zipfile.BadZipFile: File is not a zip file"),
        same(code(4), "last output: step 2 loss 0.5"),
        (
            code(1),
            "no data in /data".into(),
            "last output: no data in /data".into(),
        ),
        same(code(2), "train.py: error: unrecognized arguments: --lr"),
        same(code(1), "RuntimeError: CUDA error: unknown"),
        same(signal(9), "_queue.Empty"),
        same(
            code(1),
            "ExceptionGroup: two (2 sub-exceptions): ValueError: a; KeyError: 'b'",
        ),
        same(code(1), "ZeroDivisionError: division by zero"),
        same(signal(11), "Fatal Python error: Segmentation fault"),
        same(code(1), "LookupError: of the rank"),
        same(code(3), "last output: tokenizer not found"),
        same(code(1), "StopIteration"),
        same(code(1), &format!("ValueError: {}…", "x".repeat(688))),
        same(code(1), "strange.<locals>.Odd: <exception str() failed>"),
    ]
}

fn shown(rank: &RankStatus) -> String {
    match (&rank.first_error, &rank.last_output) {
        (Some(error), None) => error.clone(),
        (None, Some(last)) => format!("last output: {last}"),
        both => format!("{both:?}"),
    }
}

fn frames(rank: &RankStatus) -> Vec<&str> {
    let frames = rank.exception.iter().flat_map(|e| &e.frames);
    let short = frames.map(|frame| frame.rsplit('/').next().unwrap());
    short
        .map(|frame| frame.split_once(' ').unwrap().1)
        .collect()
}

#[test]
fn a_forked_rank_writes_down_the_exception_with_which_it_leaves_its_script() {
    let mut rig = Rig::new();
    let ways = expected();
    rig.hold.world_size = ways.len() as u32;
    let mut client = rig.ready();
    let path = rig.dir.join("train.py");
    std::fs::write(&path, SCRIPT).unwrap();
    let mut spec = rig.program(&python(), &[], ways.len() as u32);
    spec.env.insert("OMP_NUM_THREADS".into(), "1".into());
    spec.order = Some(Order {
        lane: Lane::Fork,
        options: vec![],
        argv: vec![path.to_str().unwrap().into()],
        command: vec![],
        run_id: "r".into(),
        peer_lost: vec![],
        lacks: Vec::new(),
        inspect: false,
        collectives: false,
    });
    client.start(spec);
    let status = client.until_dead();
    assert!(!status.fell_back, "{}", rig.log("launcher.log"));
    for (rank, (exit, forked, _)) in status.ranks.iter().zip(&ways) {
        assert_eq!(
            (rank.exit, &shown(rank)),
            (Some(*exit), forked),
            "rank {}: {}",
            rank.rank,
            rig.log(&format!("rank-{}.log", rank.rank))
        );
    }
    let all = &status.ranks;
    let written = |rank: u32| all[rank as usize].exception.as_ref().map(|e| e.left_script);
    for rank in [0, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13] {
        assert_eq!(written(rank), Some(true), "rank {rank}");
    }
    for rank in [1, 8] {
        assert_eq!(written(rank), None, "rank {rank} left no script");
    }
    assert_eq!(
        frames(&all[5]),
        [
            "in <module>",
            "in killed_at_exit",
            "in get_nowait",
            "in get"
        ]
    );
    assert_eq!(frames(&all[2]), ["in <module>", "in exit_text"]);
    let exited = all[10].exception.as_ref().unwrap();
    assert_eq!((&*exited.name, &*exited.text), ("SystemExit", "3"));
    let note = std::fs::metadata(rig.dir.join("errors/0/left.json")).unwrap();
    assert_eq!(note.permissions().mode() & 0o777, 0o600);
    assert!(note.len() < 20 << 10);
    assert_eq!(frames(&all[10]), ["in <module>", "in exit_code"]);
}

#[test]
fn of_any_other_rank_the_reason_is_read_in_what_it_prints() {
    let mut rig = Rig::new();
    let ways = expected();
    rig.hold.world_size = ways.len() as u32;
    let mut client = rig.ready();
    let mut spec = rig.ranks(ways.len() as u32, SCRIPT);
    spec.env.insert("MUSTER_SHIM_PROGRAM".into(), python());
    client.start(spec);
    let status = client.until_dead();
    for (rank, (exit, _, read)) in status.ranks.iter().zip(&ways) {
        assert_eq!(
            (rank.exit, &shown(rank)),
            (Some(*exit), read),
            "rank {}: {}",
            rank.rank,
            rig.log(&format!("rank-{}.log", rank.rank))
        );
        assert!(rank.exception.as_ref().is_none_or(|e| !e.left_script));
    }
    assert_eq!(
        frames(&status.ranks[5]),
        [
            "in <module>",
            "in killed_at_exit",
            "in get_nowait",
            "in get"
        ]
    );
}

/// A rank that loses what it prints, as one whose output is a file, is known by `@record` alone.
const RECORDED: &str = r#"
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record
class Diverged(Exception):
    pass
Diverged.__module__ = "trainer.errors"
@record
def main():
    os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
    raise Diverged("loss is nan")
main()
"#;

fn torchrun(rig: &Rig, script: &str) -> StartSpec {
    let python = python();
    let path = rig.dir.join("train.py");
    std::fs::write(&path, script).unwrap();
    let port = rig.identity().store_port.unwrap().to_string();
    let port_arg = format!("--master-port={port}");
    let args = [
        "-m",
        "torch.distributed.run",
        "--rdzv-backend=static",
        "--master-addr=127.0.0.1",
        &port_arg,
        "--rdzv-id=gen-3",
        "--nnodes=1",
        "--node-rank=0",
        "--nproc-per-node=1",
        "--max-restarts=0",
        path.to_str().unwrap(),
    ];
    let mut spec = rig.program(&python, &args, 1);
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

#[test]
fn torchs_error_file_says_why_a_rank_below_torchrun_failed() {
    let mut rig = Rig::new();
    (rig.hold.nnodes, rig.hold.world_size) = (1, 1);
    rig.hold.store = Some(StoreSpec {
        bind: "127.0.0.1:0".into(),
        ports: None,
        run_id: "gen-3".into(),
        clients: Vec::new(),
    });
    let mut client = rig.ready();
    client.start(torchrun(&rig, RECORDED));
    let rank = client.until_dead().ranks.remove(0);
    assert_eq!(rank.exit, Some(Exit::Code { code: 1 }));
    assert_eq!(rank.tail, [""; 0], "{}", rig.log("launcher.log"));
    assert_eq!(
        rank.first_error.as_deref(),
        Some("trainer.errors.Diverged: loss is nan")
    );
    assert_eq!(frames(&rank).last(), Some(&"in main"));
}
