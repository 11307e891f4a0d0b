//! Where ranks are: real ranks over gloo that sleep, are stopped, or hold their interpreter's lock. `make test` names the interpreter, which has torch, in
//! MUSTER_TEST_PYTHON.
#![allow(clippy::unwrap_used)]

mod rig;

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use muster_runner::procfs::Stat;
use muster_runner::wire::{
    ArrivalsStatus, Exit, Lane, Order, RankStacks, StartSpec, Status, worker_server,
};
use rig::{Client, PATIENCE, Rig};
use rustix::process::{Pid, Signal, kill_process};

/// Three ranks make three steps. Then rank 1 does what the argument says, and the others wait for it. At
/// last all wait for the file `go`, and end.
const SCRIPT: &str = r#"import ctypes, os, sys, time, torch, torch.distributed as dist
rank, folder, way = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]
first = os.open("/dev/null", os.O_RDONLY)
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3)
data = torch.ones(4)
for step in range(3):
    dist.all_reduce(data)
def wait():
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.01)  # at 10
def hold():
    libc = ctypes.PyDLL(None)
    while not os.path.exists(f"{folder}/go"):
        libc.poll(None, 0, 200_000)  # at 14
print("step 3 first file", first, flush=True)
if rank == 1:
    {"wait": wait, "hold": hold, "none": lambda: None}[way]()
dist.all_reduce(data)  # at 18
if way == "none":
    wait()
dist.destroy_process_group()
pid = os.fork()
if pid == 0:
    sys.exit(7)
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"#;

struct Ranks {
    rig: Rig,
    client: Client,
    pids: Vec<i32>,
}

impl Ranks {
    /// Ranks that have made their steps and go `way`.
    fn start(way: &str, inspect: bool) -> Ranks {
        // Longer than a socket's address.
        let mut rig = Rig::below(&"long/".repeat(40));
        rig.hold.world_size = 3;
        let mut client = rig.ready();
        client.start(spec(&rig, way, inspect));
        let status = client.until_stepping(3);
        let pids = status.ranks.iter().map(|rank| rank.pid).collect();
        assert!(!status.fell_back, "{status:?}");
        Ranks { rig, client, pids }
    }

    /// Asks until the answer is as wished.
    fn until(&mut self, wish: impl Fn(&[RankStacks]) -> bool) -> Vec<RankStacks> {
        let until = Instant::now() + PATIENCE;
        loop {
            let stacks = self.client.stacks(&[0, 1, 2]);
            if wish(&stacks) {
                return stacks;
            }
            assert!(Instant::now() < until, "never as wished: {stacks:#?}");
        }
    }

    /// The others wait in the fourth all-reduce, which rank 1 has not called.
    fn until_others_wait(&mut self) -> Vec<RankStacks> {
        // A stack may be older than what the rank says of its collectives.
        let is_there = |rank: &RankStacks| {
            let first = rank
                .threads
                .first()
                .and_then(|thread| thread.frames.first());
            waits(rank) && first.is_some_and(|frame| frame.function == "all_reduce")
        };
        let stacks = self.until(|stacks| [0, 2].iter().all(|rank| is_there(&stacks[*rank])));
        for waiting in [&stacks[0], &stacks[2]] {
            let frames = &waiting.threads[0].frames;
            assert!(
                frames
                    .iter()
                    .any(|frame| frame.file.ends_with("train.py") && frame.line == 18)
            );
        }
        stacks
    }

    /// Lets the ranks end, and returns their logs.
    fn end(&mut self) -> Vec<String> {
        fs::write(self.rig.dir.join("go"), "").unwrap();
        let status = self.client.until_dead();
        for rank in &status.ranks {
            assert_eq!(rank.exit, Some(Exit::Code { code: 0 }), "{rank:#?}");
        }
        let log = |rank: u32| {
            let file = self.rig.dir.join(format!("logs/rank-{rank}.log"));
            fs::read_to_string(file).unwrap()
        };
        (0..3).map(log).collect()
    }
}

fn spec(rig: &Rig, way: &str, inspect: bool) -> StartSpec {
    let script: PathBuf = rig.dir.join("train.py");
    fs::write(&script, SCRIPT).unwrap();
    let python = std::env::var("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON names a Python with torch; `make test` sets it");
    let argv = [&script, &rig.dir].map(|path| path.to_str().unwrap().to_owned());
    let order = Order {
        lane: Lane::Fork,
        options: vec![],
        argv: argv.into_iter().chain([way.to_owned()]).collect(),
        command: vec![],
        run_id: "r".into(),
        peer_lost: vec![],
        lacks: Vec::new(),
        inspect,
        collectives: inspect,
    };
    let mut spec = rig.program(&python, &[], 3);
    spec.env.insert("OMP_NUM_THREADS".into(), "1".into());
    spec.order = Some(order);
    spec
}

fn waits(stacks: &RankStacks) -> bool {
    let position = stacks.positions.first();
    position
        .is_some_and(|p| (p.called, p.completed, p.call.as_deref()) == (4, 3, Some("all_reduce")))
}

/// Its innermost line.
fn line(stacks: &RankStacks) -> Option<(&str, u32)> {
    let frame = stacks.threads.first()?.frames.first()?;
    Some((frame.function.as_str(), frame.line))
}

#[test]
fn what_ranks_have_called_is_told_within_ten_seconds() {
    let mut ranks = Ranks::start("wait", true);
    let of = |status: &Status| {
        let found = status.ranks.iter().map(|rank| rank.arrivals.clone());
        found.collect::<Option<Vec<_>>>()
    };
    // A look may come before the last call.
    let marks = |all: &[ArrivalsStatus]| {
        let marks = all
            .iter()
            .map(|one| one.groups.first().map(|group| group.marks.len()));
        marks.collect::<Vec<_>>()
    };
    let status = ranks
        .client
        .until(|status| of(status).is_some_and(|all| marks(&all) == [Some(4), Some(3), Some(4)]));
    let all = of(&status).unwrap();
    assert_eq!((all[0].look, all[2].look), (all[1].look, all[1].look));
    let group = &all[1].groups[0];
    assert_eq!(
        (&*group.group, group.calls, group.inside_us, group.sends),
        ("0", 1, None, false)
    );
    assert!(
        group
            .marks
            .iter()
            .zip(1..)
            .all(|(mark, call)| mark.0 == call),
        "{group:?}"
    );
    ranks.end();
}

#[test]
fn a_rank_that_sleeps_is_found_at_its_line() {
    let mut ranks = Ranks::start("wait", true);
    ranks.until_others_wait();
    // It may still be on its way there.
    let stacks = ranks.until(|stacks| line(&stacks[1]) == Some(("wait", 10)));
    let [_, sleeps, _] = &stacks[..] else {
        panic!("three ranks")
    };
    assert_eq!(line(sleeps), Some(("wait", 10)), "{sleeps:#?}");
    let position = &sleeps.positions[0];
    assert_eq!((position.called, position.completed), (3, 3));
    assert_eq!(sleeps.why, None);
    assert_eq!(sleeps.process.as_ref().unwrap().pid, ranks.pids[1]);
    let mode = fs::metadata(ranks.rig.dir.join(worker_server(1))).unwrap();
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    // One rank alone.
    assert_eq!(ranks.client.stacks(&[1])[0].rank, 1);
    for log in ranks.end() {
        assert!(
            log.contains("step 3 first file 3\n"),
            "as after a plain start: {log}"
        );
        assert!(log.contains("child 7\n"), "a child ends as it likes: {log}");
        assert!(
            !log.contains("WorkerServer") && !log.contains("Server"),
            "{log}"
        );
    }
    let sockets = (0..3).filter(|rank| ranks.rig.dir.join(worker_server(*rank)).exists());
    assert_eq!(sockets.count(), 0, "they are gone");
    let why = &ranks.client.stacks(&[0])[0].why;
    assert_eq!(why.as_deref(), Some("it has ended"));
}

#[test]
fn a_stopped_rank_is_told_from_one_that_holds_its_lock() {
    let mut ranks = Ranks::start("wait", true);
    ranks.until_others_wait();
    let pid = Pid::from_raw(ranks.pids[1]).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // One that was asked before it stopped only writes nothing.
    let is_told = |stacks: &[RankStacks]| {
        stacks[1].why.as_deref() == Some("it is stopped, so it cannot answer")
    };
    let stacks = ranks.until(is_told);
    let stopped = &stacks[1];
    assert!(stopped.threads.is_empty(), "{stopped:#?}");
    assert_eq!(stopped.process.as_ref().unwrap().state, "T");
    assert!(waits(&stacks[0]), "the others answer: {stacks:#?}");
    kill_process(pid, Signal::CONT).unwrap();
    let again = ranks.until(|stacks| line(&stacks[1]) == Some(("wait", 10)));
    assert_eq!(again[1].positions[0].completed, 3);
    ranks.end();

    let mut ranks = Ranks::start("hold", true);
    // It may still be on its way there.
    ranks.until(|stacks| line(&stacks[1]) == Some(("hold", 14)));
    // It is asked more often than its server has threads.
    for _ in 0..10 {
        let stacks = ranks.until(|stacks| waits(&stacks[0]));
        assert_eq!(line(&stacks[1]), Some(("hold", 14)), "{:#?}", stacks[1]);
        let position = &stacks[1].positions[0];
        assert_eq!((position.called, position.completed), (3, 3));
    }
    fs::write(ranks.rig.dir.join("go"), "").unwrap();
    // The signal also ends its sleep.
    ranks.client.stacks(&[1]);
    ranks.end();
}

#[test]
fn a_rank_without_server_is_described_by_the_kernel() {
    let mut ranks = Ranks::start("wait", false);
    let stacks = ranks.client.stacks(&[0, 1, 2, 7]);
    let described = &stacks[1];
    assert!(described.threads.is_empty() && described.positions.is_empty());
    let why = described.why.as_deref().unwrap();
    assert!(
        why.starts_with("only ranks that Muster forks can be asked"),
        "{why}"
    );
    let process = described.process.as_ref().unwrap();
    assert_eq!(process.pid, ranks.pids[1]);
    assert!(
        process.over_us >= 200_000 && process.threads >= 1,
        "{process:?}"
    );
    assert_eq!(stacks[3].why.as_deref(), Some("it has not started yet"));
    ranks.end();
}

/// A question that meets an interpreter at its end must not change how it ends.
#[test]
fn ranks_end_well_however_often_they_are_asked() {
    let mut ranks = Ranks::start("none", true);
    let mut other = ranks.rig.client();
    let dir = ranks.rig.dir.clone();
    let pids = ranks.pids.clone();
    let asking = std::thread::spawn(move || {
        let mut asked = 0;
        fs::write(dir.join("go"), "").unwrap();
        while pids
            .iter()
            .any(|pid| Stat::of(*pid).is_ok_and(|stat| !stat.is_dead()))
        {
            asked += other.stacks(&[0, 1, 2]).len();
        }
        asked
    });
    ranks.end();
    assert!(asking.join().unwrap() >= 3);
}
