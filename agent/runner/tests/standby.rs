//! Ranks that have their GPU open before their generation exists. A library stands in for the driver
//! (`tests/fake-cuda`), and torch has no CUDA here: what torch itself does on a GPU is seen by
//! `bench/gpu.py`.
#![allow(clippy::unwrap_used)]

mod rig;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use muster_runner::record::STANDBYS;
use muster_runner::wire::{
    Command, Exit, Hold, Lane, Order, ParkSpec, StandbyMode, StandbySpec, StandbysShown, StartSpec,
    Status,
};
use rig::{Client, Living, PATIENCE, Rig, lives};

/// What each rank does first: it opens the GPU, as torch would, and shows what it sees.
const SCRIPT: &str = "
import ctypes, json, os, random, sys, threading, time
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
def shown(value):
    return value if isinstance(value, (int, str, bool, type(None))) else len(value) if hasattr(value, '__len__') else type(value).__name__
sees = {
    'env': {k: v for k, v in os.environ.items() if k.startswith(('CUDA_', 'NCCL_', 'RANK', 'LOCAL_RANK', 'MUSTER_', 'PYTORCH_'))},
    'argv': sys.argv, 'orig_argv': sys.orig_argv[1:], 'cwd': os.getcwd(), 'path': sys.path[0], 'nice': os.getpriority(os.PRIO_PROCESS, 0),
    'nices': sorted({os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir('/proc/self/task')}),
    'threads': [t.name for t in threading.enumerate()], 'next thread': threading.Thread(target=print).name,
    'initialized': dist.is_initialized(), 'world': {k: shown(v) for k, v in vars(c10d._world).items()},
    'c10d': {k: shown(v) for k, v in vars(c10d).items() if k.startswith('_') and not callable(v) and k not in ('__builtins__',)},
    'default dtype': str(torch.get_default_dtype()), 'grad': torch.is_grad_enabled(), 'threads of torch': torch.get_num_threads(),
    'signals': [str(__import__('signal').getsignal(s)) for s in (15, 2, 17)], 'main': sorted(k for k in globals() if k.startswith('__')),
}
chances = [random.random(), torch.rand(1).item(), torch.initial_seed()]
cuda = ctypes.CDLL('libcuda.so.1')
free, total, context = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
opened = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuMemAlloc_v2(None, 1 << 20)]
print(json.dumps({'sees': sees, 'chances': chances, 'opened': opened, 'pid': os.getpid()}), flush=True)
print('step 1', flush=True)
time.sleep(1000)
";

fn python() -> String {
    std::env::var("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON names a Python with torch; `make test` sets it")
}

/// A launcher whose ranks find the fake driver.
struct Node {
    rig: Rig,
    client: Client,
    gpu: PathBuf,
    generations: u64,
}

struct Generation {
    dir: PathBuf,
    client: Client,
}

impl Node {
    fn new() -> Node {
        let mut rig = Rig::new();
        rig.hold.launcher = true;
        let gpu = rig.dir.join("gpu");
        // `make test` names the folder of programs, where this library is beside them.
        let programs = std::env::var_os("MUSTER_BIN_DIR").expect("MUSTER_BIN_DIR is set");
        let built = Path::new(&programs).join("libmuster_fake_cuda.so");
        fs::create_dir_all(gpu.join("state")).unwrap();
        fs::copy(built, gpu.join("libcuda.so.1")).unwrap();
        let mut client = rig.ready();
        client.ok(Command::Park(ParkSpec {
            program: python(),
            options: vec![],
            env: environment(&gpu, &rig.dir.join("launcher-with-a-long-name")),
            cwd: rig.dir.clone(),
            background: false,
            ranks: 2,
        }));
        Node {
            rig,
            client,
            gpu,
            generations: 0,
        }
    }

    fn launcher(&self) -> Living {
        let runner = self.rig.identity().pid;
        let children = format!("/proc/{runner}/task/{runner}/children");
        let children = fs::read_to_string(children).unwrap();
        Living::of(children.split_whitespace().next().unwrap().parse().unwrap())
    }

    fn fork(&mut self) -> Generation {
        self.generations += 1;
        let dir = self.rig.dir.join(format!("g{}", self.generations));
        fs::create_dir(&dir).unwrap();
        let hold = Hold {
            generation: self.generations,
            world_size: 2,
            launcher: false,
            ..self.rig.hold.clone()
        };
        muster_runner::record::write_atomic(&dir, muster_runner::record::HOLD, &hold).unwrap();
        self.client.ok(Command::Fork { dir: dir.clone() });
        let client = Client::new(muster_runner::connect(&dir).unwrap());
        Generation { dir, client }
    }

    /// Forks a generation and starts two ranks in it.
    fn train(&mut self, changed: &[(&str, &str)]) -> (Generation, Status) {
        let mut generation = self.fork();
        let status = self.start(&mut generation, changed);
        (generation, status)
    }

    fn start(&self, generation: &mut Generation, changed: &[(&str, &str)]) -> Status {
        let script = self.rig.dir.join("train.py");
        fs::write(&script, SCRIPT).unwrap();
        let argv = [script.to_str().unwrap(), "--lr", "0.1"];
        let mut env = environment(&self.gpu, &generation.dir);
        env.extend(changed.iter().map(|(n, v)| ((*n).into(), (*v).into())));
        generation.client.start(StartSpec {
            env_files: BTreeMap::new(),
            program: python(),
            args: vec!["-c".into(), "print('torchrun in its place')".into()],
            env,
            cwd: self.rig.dir.clone(),
            ranks: 2,
            first_rank: 0,
            order: Some(Order {
                lane: Lane::Fork,
                options: vec![],
                argv: argv.map(str::to_owned).to_vec(),
                command: vec![],
                run_id: "r".into(),
                peer_lost: vec![],
                lacks: Vec::new(),
                inspect: false,
                collectives: false,
            }),
            mpi: None,
            members: Vec::new(),
            restartable: false,
        });
        let status = generation.client.until_stepping(2);
        assert!(!status.fell_back);
        status
    }

    /// Asks for standbys beside these ranks.
    fn ask(&mut self, mode: StandbyMode, beside: &Status) {
        self.client.ok(Command::Standbys(StandbySpec {
            mode,
            env: environment(&self.gpu, Path::new("/")),
            ranks: pids(beside),
        }));
    }

    /// Asks for standbys, and returns them once each is in this state.
    fn standbys(&mut self, mode: StandbyMode, beside: &Status, state: &str) -> Vec<Living> {
        self.ask(mode, beside);
        let is = |shown: &StandbysShown| {
            shown.ranks.len() == 2 && shown.ranks.iter().all(|rank| rank.state == state)
        };
        let shown = until_shown(&self.rig.dir, is);
        shown
            .ranks
            .iter()
            .map(|rank| Living::of(rank.pid))
            .collect()
    }

    fn fail(&self, calls: &str) {
        fs::write(self.gpu.join("state/fail"), calls).unwrap();
    }

    /// What the driver holds of a process: its state and its bytes.
    fn driver_of(&self, pid: i32) -> String {
        fs::read_to_string(self.gpu.join("state").join(pid.to_string())).unwrap()
    }
}

impl Generation {
    fn end(mut self) {
        self.client.stop(std::time::Duration::ZERO);
        let dead = self.client.until_dead();
        assert!(dead.ranks.iter().all(|rank| rank.exit.is_some()));
        assert!(dead.ranks.iter().all(|rank| !lives(rank.pid)));
        self.client.ok(Command::Release);
    }

    /// What a rank has printed about itself.
    fn said(&self, rank: u32) -> serde_json::Value {
        let log = fs::read_to_string(self.dir.join(format!("logs/rank-{rank}.log"))).unwrap();
        // Each line has its time and stream in front.
        let mut lines = log.lines().filter_map(|line| line.split_once(" F "));
        let line = lines.find_map(|(_, said)| said.starts_with('{').then_some(said));
        serde_json::from_str(line.unwrap_or_else(|| panic!("{log}"))).unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("logs/launcher.log")).unwrap_or_default()
    }
}

/// Its runner does not end with the launcher's.
impl Drop for Generation {
    fn drop(&mut self) {
        if let Ok(muster_runner::Record {
            runner: Some(runner),
            ..
        }) = muster_runner::Record::read(&self.dir)
            && muster_runner::alive(&runner)
        {
            Living::of(runner.pid).kill();
        }
    }
}

fn environment(gpu: &Path, run_dir: &Path) -> BTreeMap<String, String> {
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let env = [
        ("PATH", std::env::var("PATH").unwrap()),
        ("MUSTER_RUN_DIR", text(run_dir.to_owned())),
        ("OMP_NUM_THREADS", "1".into()),
        ("GLOO_SOCKET_IFNAME", "lo".into()),
        ("LD_LIBRARY_PATH", text(gpu.to_owned())),
        ("MUSTER_FAKE_CUDA", text(gpu.join("state"))),
        ("CUDA_VISIBLE_DEVICES", "0,1".into()),
    ];
    env.map(|(name, value)| (name.to_owned(), value)).into()
}

fn pids(status: &Status) -> Vec<i32> {
    status.ranks.iter().map(|rank| rank.pid).collect()
}

fn until_shown(dir: &Path, wish: impl Fn(&StandbysShown) -> bool) -> StandbysShown {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(dir.join(STANDBYS)).unwrap_or_default();
        if let Some(shown) = serde_json::from_str(&text).ok().filter(&wish) {
            return shown;
        }
        assert!(Instant::now() < until, "{STANDBYS}: {text}");
        std::thread::yield_now();
    }
}

fn used(generation: &Generation) -> StandbysShown {
    until_shown(&generation.dir, |_| true)
}

#[test]
fn standbys_become_the_next_generations_ranks_and_look_like_forked_ones() {
    let mut node = Node::new();
    let (first, forked) = node.train(&[]);
    let standbys = node.standbys(StandbyMode::Open, &forked, "open");
    for standby in &standbys {
        assert!(
            node.driver_of(standby.pid).starts_with("0 "),
            "its GPU is open"
        );
        let line = fs::read_to_string(format!("/proc/{}/cmdline", standby.pid)).unwrap();
        assert!(
            line.starts_with("muster-standby-rank\0"),
            "what ps shows: {line:?}"
        );
        let environ = fs::read_to_string(format!("/proc/{}/environ", standby.pid)).unwrap();
        let mark = format!("MUSTER_RUN_DIR={}", node.rig.dir.display());
        assert!(environ.contains(&mark), "by which senses know it as ours");
    }
    let plain = first.said(0);
    first.end();
    let (mut second, status) = node.train(&[]);
    assert_eq!(
        pids(&status),
        standbys.iter().map(|s| s.pid).collect::<Vec<_>>(),
        "{}",
        second.log()
    );
    let shown = used(&second);
    assert_eq!((shown.used, shown.why), (vec![0, 1], None));
    assert!(
        !node.rig.dir.join(STANDBYS).exists(),
        "the launcher has none any more"
    );
    let (mut one, other) = (second.said(0), second.said(1));
    assert_eq!(one["opened"], serde_json::json!([0, 0, 0]));
    for chance in 0..3 {
        let of = |said: &serde_json::Value| said["chances"][chance].to_string();
        assert!(of(&one) != of(&other) && of(&one) != of(&plain));
    }
    // Everything else is what the forked rank saw, but for its own folder.
    assert_eq!(
        one["sees"]["env"]["MUSTER_RUN_DIR"].as_str(),
        second.dir.to_str()
    );
    one["sees"]["env"]["MUSTER_RUN_DIR"] = plain["sees"]["env"]["MUSTER_RUN_DIR"].clone();
    assert_eq!(one["sees"], plain["sees"]);
    for (rank, pid) in pids(&status).into_iter().enumerate() {
        let environ = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        let mark = format!("MUSTER_RUN_DIR={}\0", second.dir.display());
        assert!(environ.contains(&mark), "by which leftovers are found");
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(line.contains("train.py"), "rank {rank}: {line:?}");
    }
    // A killed rank is a failure of its generation, seen by the runner as any other.
    Living::of(status.ranks[1].pid).kill();
    let killed = Exit::Signal {
        signal: 9,
        core: false,
    };
    second
        .client
        .until(|status| status.ranks[1].exit == Some(killed));
    second.end();
    // The next generation has none, and is forked.
    let (third, status) = node.train(&[]);
    assert!(!third.dir.join(STANDBYS).exists());
    assert!(standbys.iter().all(Living::is_gone) && status.ranks.len() == 2);
}

#[test]
fn parked_standbys_hold_no_memory_and_come_back_as_ranks() {
    let mut node = Node::new();
    let (first, forked) = node.train(&[]);
    let standbys = node.standbys(StandbyMode::Parked, &forked, "parked");
    for standby in &standbys {
        assert!(
            node.driver_of(standby.pid).starts_with("2 "),
            "its memory is given back"
        );
    }
    first.end();
    let (second, status) = node.train(&[]);
    let wanted: Vec<i32> = standbys.iter().map(|s| s.pid).collect();
    assert_eq!(pids(&status), wanted, "{}", second.log());
    assert_eq!(second.said(0)["opened"], serde_json::json!([0, 0, 0]));
}

#[test]
fn each_failure_of_the_driver_ends_in_a_fork() {
    let mut node = Node::new();
    let (mut generation, mut status) = node.train(&[]);
    for (call, mode) in [
        ("cuInit", StandbyMode::Open),
        ("cuDevicePrimaryCtxRetain", StandbyMode::Open),
        ("cuCheckpointProcessLock", StandbyMode::Parked),
        ("cuCheckpointProcessCheckpoint", StandbyMode::Parked),
    ] {
        node.fail(&format!("{call}=999"));
        node.ask(mode, &status);
        let shown = until_shown(&node.rig.dir, |shown| shown.why.is_some());
        assert!(
            shown.why.as_ref().unwrap().contains(call) && shown.ranks.is_empty(),
            "{shown:?}"
        );
        fs::remove_file(node.rig.dir.join(STANDBYS)).unwrap();
    }
    for (fault, said) in [
        (
            "cuCheckpointProcessRestore=999",
            "cuCheckpointProcessRestore: the driver's error 999",
        ),
        (
            "cuCheckpointProcessRestore=hang",
            "the driver did not bring it back within",
        ),
        (
            "cuCheckpointProcessUnlock=999",
            "cuCheckpointProcessUnlock: the driver's error 999",
        ),
        (
            "cuCheckpointProcessGetState=999",
            "cuCheckpointProcessGetState: the driver's error 999",
        ),
    ] {
        node.fail("");
        let standbys = node.standbys(StandbyMode::Parked, &status, "parked");
        generation.end();
        node.fail(fault);
        (generation, status) = node.train(&[]);
        let shown = used(&generation);
        assert!(shown.used.is_empty(), "{fault}: {shown:?}");
        assert!(
            shown.why.as_ref().unwrap().contains(said),
            "{fault}: {shown:?}"
        );
        standbys.iter().for_each(Living::gone);
    }
}

#[test]
fn standbys_that_were_opened_otherwise_are_not_taken() {
    let mut node = Node::new();
    let (mut generation, mut status) = node.train(&[]);
    for name in [
        "CUDA_VISIBLE_DEVICES",
        "PYTORCH_CUDA_ALLOC_CONF",
        "NCCL_SOCKET_IFNAME",
    ] {
        let standbys = node.standbys(StandbyMode::Open, &status, "open");
        generation.end();
        (generation, status) = node.train(&[(name, "another")]);
        let shown = used(&generation);
        assert_eq!(
            shown.why.as_deref(),
            Some(format!("they were opened with another {name}").as_str())
        );
        assert_eq!(generation.said(0)["sees"]["env"][name], "another");
        standbys.iter().for_each(Living::gone);
    }
    // How much NCCL prints is not read for that.
    node.standbys(StandbyMode::Open, &status, "open");
    generation.end();
    let (generation, _) = node.train(&[("NCCL_DEBUG_FILE", "/tmp/g5")]);
    assert_eq!(used(&generation).used, [0, 1]);
}

#[test]
fn no_standby_outlives_what_it_waits_for() {
    let mut node = Node::new();
    let (_generation, status) = node.train(&[]);
    // It is not wanted any more.
    let standbys = node.standbys(StandbyMode::Open, &status, "open");
    node.ask(StandbyMode::Off, &status);
    standbys.iter().for_each(Living::gone);
    until_shown(&node.rig.dir, |shown| {
        shown.mode == StandbyMode::Off && shown.ranks.is_empty()
    });
    // One dies: the others go, and the training ranks notice nothing.
    let standbys = node.standbys(StandbyMode::Open, &status, "open");
    standbys[1].kill();
    standbys.iter().for_each(Living::gone);
    let shown = until_shown(&node.rig.dir, |shown| shown.why.is_some());
    assert!(shown.why.unwrap().contains("it has ended"));
    assert!(pids(&status).into_iter().all(lives));
    // Its generation is stopped before it starts.
    let standbys = node.standbys(StandbyMode::Parked, &status, "parked");
    let mut stopped = node.fork();
    stopped.client.stop(std::time::Duration::ZERO);
    stopped.client.until_dead();
    standbys.iter().for_each(Living::gone);
    // The runner of its generation is killed before it starts.
    let standbys = node.standbys(StandbyMode::Open, &status, "open");
    drop(node.fork());
    standbys.iter().for_each(Living::gone);
    // The launcher ends.
    let standbys = node.standbys(StandbyMode::Open, &status, "open");
    node.launcher().kill();
    standbys.iter().for_each(Living::gone);
    assert!(pids(&status).into_iter().all(lives));
}

#[test]
fn none_is_made_where_the_rank_itself_has_no_gpu_open() {
    let mut node = Node::new();
    let (_generation, status) = node.train(&[]);
    let mut without = status.clone();
    without.ranks[1].pid = std::process::id() as i32;
    node.ask(StandbyMode::Open, &without);
    let shown = until_shown(&node.rig.dir, |shown| shown.why.is_some());
    assert!(shown.ranks.is_empty());
    assert!(shown.why.unwrap().contains("has not opened a GPU itself"));
}

#[test]
fn the_least_of_all_memory_limits_counts() {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("launcher/launcher.py");
    let left = |groups: &str, files: &[(&str, &str)]| {
        let root = dir.path().join("root");
        let _ = fs::remove_dir_all(&root);
        for (file, text) in files {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        fs::write(dir.path().join("groups"), groups).unwrap();
        let code =
            "import os, sys\nexec(open(sys.argv[1]).read())\nprint(memory_left(*sys.argv[2:]))";
        let output = std::process::Command::new(python())
            .args(["-c", code])
            .arg(&source)
            .args([dir.path().join("groups"), root])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let v2 = [
        ("memory.stat", "anon 5\n"),
        ("pod/memory.max", "1000\n"),
        ("pod/memory.current", "900\n"),
        ("pod/memory.stat", "anon 600\ninactive_file 250\n"),
        ("pod/ranks/memory.max", "max\n"),
        ("pod/ranks/memory.current", "800\n"),
    ];
    assert_eq!(left("0::/pod/ranks\n", &v2), "350");
    assert_eq!(left("0::/\n", &v2), "None", "the root has no limit");
    let own = [("memory.max", "700\n"), ("memory.current", "900\n")];
    assert_eq!(
        left("0::/../../elsewhere\n", &own),
        "0",
        "a container's root"
    );
    let v1 = [
        ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("memory/memory.usage_in_bytes", "5000\n"),
        ("memory/pod/memory.limit_in_bytes", "4000\n"),
        ("memory/pod/memory.usage_in_bytes", "3000\n"),
        (
            "memory/pod/memory.stat",
            "cache 9\ntotal_inactive_file 100\n",
        ),
    ];
    assert_eq!(left("11:cpu,memory:/pod\n4:pids:/x\n", &v1), "1100");
    assert_eq!(left("", &[]), "None");
}
