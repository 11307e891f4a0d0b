//! What a launcher imports ahead, module by module, and what it leaves to the ranks.
//!
//! `make test` names the interpreter in MUSTER_TEST_PYTHON. The packages of this test lie in an
//! environment made with it, because only installed packages are imported ahead.
#![allow(clippy::unwrap_used)]

mod rig;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use muster_runner::wire::{Command, Hold, Lane, Order, ParkSpec, StartSpec};
use rig::{Client, Living, Rig, until_written};

/// Modules of one package. Each says when it is executed, so that a log shows who has imported it.
const PACKAGE: [(&str, &str); 8] = [
    ("__init__", ""),
    ("plain", ""),
    ("ranked", "RANK = os.environ['RANK']"),
    ("wants", "from . import ranked"),
    ("wants_too", "from . import ranked"),
    ("homed", "HOME = os.environ['STEADY_HOME']"),
    ("session", "import uuid\nSESSION = uuid.uuid4().hex"),
    ("counts", "import torch\nGPUS = torch.cuda.device_count()"),
];

/// It sets a variable before its imports, as scripts do for caches, and only looks for `absent`.
const SCRIPT: &str = "\
import importlib.util, os, time
os.environ['STEADY_HOME'] = open('home').read()
found = importlib.util.find_spec('absent') is not None
import steady.plain, steady.wants, steady.wants_too, steady.homed
from steady.session import SESSION
print('step 1', found, steady.homed.HOME, steady.wants.ranked.RANK, os.environ['RANK'], SESSION, flush=True)
time.sleep(1000)
";

/// A module of it asks at its import how many GPUs there are. NVML's library is in a process that has
/// asked it.
const COUNTS: &str = "\
import steady.counts, time
print('step 1', steady.counts.GPUS, 'libnvidia-ml' in open('/proc/self/maps').read(), flush=True)
time.sleep(1000)
";

/// It compiles nothing: the modules say that its job does. It prints which of the two digests are
/// there already, and whether what a compilation notes of itself is untouched.
const COMPILES: &str = "\
import torch._dynamo, torch._inductor.compile_fx, torch._inductor.codecache as codecache, sys, time
def is_there(function):
    if hasattr(function, 'cache_info'):
        return function.cache_info().currsize > 0
    kept = dict(zip(function.__code__.co_freevars, function.__closure__))['_cache'].cell_contents
    return isinstance(kept, (bytes, str))
torchs = codecache.torch_key
tritons = getattr(codecache, 'triton_key', None) or sys.modules['triton.compiler.compiler'].triton_key
utils = torch._dynamo.utils
plain = codecache.dynamo_timed is utils.dynamo_timed and not utils.compilation_time_metrics and not utils.chromium_event_log_active()
print('step 1', is_there(torchs), is_there(tritons), plain, flush=True)
time.sleep(1000)
";

struct Ahead {
    rig: Rig,
    client: Client,
    python: PathBuf,
    /// Where libraries are found first.
    libraries: PathBuf,
    generations: Vec<PathBuf>,
}

impl Ahead {
    /// With this file's packages.
    fn new(script: &str) -> Ahead {
        let rig = Rig::new();
        let python = environment_with_packages(&rig.dir.join("env"));
        Ahead::with(rig, python, script)
    }

    fn with(mut rig: Rig, python: PathBuf, script: &str) -> Ahead {
        rig.hold.launcher = true;
        fs::write(rig.dir.join("train.py"), script).unwrap();
        let libraries = rig.dir.join("machine");
        let mut client = rig.ready();
        client.ok(Command::Park(ParkSpec {
            program: python.to_str().unwrap().into(),
            options: vec![],
            env: environment(&rig.dir.join("launcher-with-a-long-name"), &libraries),
            cwd: rig.dir.clone(),
            background: false,
            ranks: 2,
        }));
        Ahead {
            rig,
            client,
            python,
            libraries,
            generations: Vec::new(),
        }
    }

    fn set_home(&self, home: &str) {
        fs::write(self.rig.dir.join("home"), home).unwrap();
    }

    /// Runs the next generation until both ranks have made a step. Returns its directory.
    fn run(&mut self) -> PathBuf {
        let number = self.generations.len() as u64 + 1;
        let dir = self.rig.dir.join(format!("g{number}"));
        fs::create_dir(&dir).unwrap();
        let hold = Hold {
            generation: number,
            world_size: 2,
            launcher: false,
            echo: None,
            ..self.rig.hold.clone()
        };
        muster_runner::record::write_atomic(&dir, muster_runner::record::HOLD, &hold).unwrap();
        self.client.ok(Command::Fork { dir: dir.clone() });
        self.generations.push(dir.clone());
        let mut client = Client::new(muster_runner::connect(&dir).unwrap());
        client.start(StartSpec {
            env_files: BTreeMap::new(),
            program: self.python.to_str().unwrap().into(),
            args: vec!["-c".into(), "print('torchrun in its place')".into()],
            env: environment(&dir, &self.libraries),
            cwd: self.rig.dir.clone(),
            ranks: 2,
            first_rank: 0,
            order: Some(Order {
                lane: Lane::Fork,
                options: vec![],
                argv: vec![self.rig.dir.join("train.py").to_str().unwrap().into()],
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
        client.until_stepping(2);
        dir
    }

    /// Makes the launcher import what this generation has imported. Returns the modules.
    fn import(&mut self, generation: &Path) -> Vec<String> {
        let preloaded = self.rig.dir.join("preloaded.txt");
        let _ = fs::remove_file(&preloaded);
        fs::copy(
            generation.join("modules.txt"),
            self.rig.dir.join("preload.txt"),
        )
        .unwrap();
        self.client.ok(Command::Preload);
        let text = until_written(&preloaded);
        let names = text.lines().map(|line| line.split_once('\t').unwrap().0);
        names
            .filter(|name| name.starts_with("steady") || *name == "absent")
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        for dir in &self.generations {
            if let Ok(muster_runner::Record {
                runner: Some(runner),
                ..
            }) = muster_runner::Record::read(dir)
                && muster_runner::alive(&runner)
            {
                Living::of(runner.pid).kill();
            }
        }
    }
}

fn tests_python() -> PathBuf {
    std::env::var("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON names a Python with torch; `make test` sets it")
        .into()
}

/// Makes an environment that has the tests' packages, and those of this file. Returns its
/// interpreter.
fn environment_with_packages(dir: &Path) -> PathBuf {
    let base = tests_python();
    let printed = |program: &Path, words: &[&str]| {
        let output = std::process::Command::new(program)
            .args(words)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let places = ["-c", "import site; print(site.getsitepackages()[0])"];
    let theirs = printed(&base, &places);
    let venv = ["-m", "venv", "--without-pip", dir.to_str().unwrap()];
    printed(&base, &venv);
    let python = dir.join("bin/python");
    let own = PathBuf::from(printed(&python, &places));
    fs::write(own.join("base.pth"), theirs).unwrap();
    fs::write(own.join("absent.py"), "").unwrap();
    fs::create_dir(own.join("steady")).unwrap();
    for (name, text) in PACKAGE {
        let text = format!("import os\nprint('executed:', __name__, flush=True)\n{text}\n");
        fs::write(own.join(format!("steady/{name}.py")), text).unwrap();
    }
    python
}

fn environment(run_dir: &Path, libraries: &Path) -> BTreeMap<String, String> {
    let env = [
        ("PATH", std::env::var("PATH").unwrap()),
        ("MUSTER_RUN_DIR", run_dir.to_str().unwrap().to_owned()),
        ("LD_LIBRARY_PATH", libraries.to_str().unwrap().to_owned()),
        ("OMP_NUM_THREADS", "1".into()),
    ];
    env.into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// What one rank has printed: the modules that it executed, and the words of its step.
fn printed(generation: &Path, rank: u32) -> (Vec<String>, Vec<String>) {
    let log = fs::read_to_string(generation.join(format!("logs/rank-{rank}.log"))).unwrap();
    let after = |mark: &'static str| {
        let lines = log.lines().filter_map(move |line| line.split_once(mark));
        lines.map(|(_, rest)| rest.trim().to_owned())
    };
    let step = after("step 1 ").next().unwrap_or_else(|| panic!("{log}"));
    (
        after("executed:").collect(),
        step.split_whitespace().map(str::to_owned).collect(),
    )
}

#[test]
fn one_module_that_is_unfit_costs_those_that_import_it_and_not_its_package() {
    let mut ahead = Ahead::new(SCRIPT);
    ahead.set_home("/first");
    let first = ahead.run();
    let imported = ahead.import(&first);
    assert_eq!(
        imported,
        ["steady", "steady.homed", "steady.plain", "steady.session"],
        "what was only looked for is not imported; what reads RANK, and what imports that, neither"
    );
    let journal = fs::read_to_string(first.join("modules.txt")).unwrap();
    assert!(
        journal
            .lines()
            .any(|line| line == "=STEADY_HOME\t\"/first\""),
        "{journal}"
    );
    assert!(!journal.contains("absent"), "{journal}");

    let second = ahead.run();
    let (ranks, mut sessions): (Vec<_>, Vec<_>) = [0, 1]
        .map(|rank| {
            let (executed, mut step) = printed(&second, rank);
            let session = step.pop().unwrap();
            assert_eq!(
                executed,
                ["steady.wants", "steady.ranked", "steady.wants_too"],
                "rank {rank}"
            );
            (step, session)
        })
        .into_iter()
        .unzip();
    assert_eq!(
        ranks,
        [["True", "/first", "0", "0"], ["True", "/first", "1", "1"]]
    );
    sessions.dedup();
    assert_eq!(sessions.len(), 2, "each rank has a session of its own");
}

#[test]
fn a_value_that_has_changed_is_noticed_before_a_module_that_read_the_old_one_is_used() {
    let mut ahead = Ahead::new(SCRIPT);
    ahead.set_home("/first");
    let first = ahead.run();
    assert!(ahead.import(&first).contains(&"steady.homed".to_owned()));
    ahead.set_home("/second");
    let second = ahead.run();
    for rank in [0, 1] {
        let (executed, step) = printed(&second, rank);
        assert_eq!(step[1], "/second", "rank {rank}");
        assert!(
            executed.contains(&"steady.plain".to_owned()),
            "a new interpreter: {executed:?}"
        );
    }
    // Nothing is assumed about the variable any more.
    let imported = ahead.import(&second);
    assert_eq!(imported, ["steady", "steady.plain", "steady.session"]);
    ahead.set_home("/third");
    let third = ahead.run();
    let (executed, step) = printed(&third, 0);
    assert_eq!(step[1], "/third");
    assert!(
        executed.contains(&"steady.homed".to_owned())
            && !executed.contains(&"steady.plain".to_owned()),
        "{executed:?}"
    );
}

#[test]
fn whoever_only_counts_gpus_is_imported_ahead_and_the_launcher_opens_none() {
    let rig = Rig::new();
    let programs = std::env::var_os("MUSTER_BIN_DIR").expect("MUSTER_BIN_DIR is set");
    let made = std::process::Command::new(Path::new(&programs).join("muster-hardware"))
        .args(["make", "8xh100"])
        .arg(rig.dir.join("machine"))
        .status();
    assert!(made.unwrap().success());
    let python = environment_with_packages(&rig.dir.join("env"));
    let mut ahead = Ahead::with(rig, python, COUNTS);
    let first = ahead.run();
    let (_, step) = printed(&first, 0);
    assert_eq!(step, ["8", "True"], "the rank has asked itself");
    assert!(ahead.import(&first).contains(&"steady.counts".to_owned()));
    let second = ahead.run();
    for rank in [0, 1] {
        let (executed, step) = printed(&second, rank);
        assert_eq!(executed, Vec::<String>::new(), "rank {rank}");
        assert_eq!(step, ["8", "False"], "rank {rank}");
    }
}

#[test]
fn the_files_of_torch_and_triton_are_read_ahead_for_a_job_that_compiles() {
    // torch must be installed with the interpreter itself.
    let mut ahead = Ahead::with(Rig::new(), tests_python(), COMPILES);
    let first = ahead.run();
    assert_eq!(printed(&first, 0).1, ["False", "False", "True"]);
    ahead.import(&first);
    let second = ahead.run();
    for rank in [0, 1] {
        assert_eq!(printed(&second, rank).1, ["True", "True", "True"]);
    }
}
