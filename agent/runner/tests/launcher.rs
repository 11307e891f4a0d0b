//! A launcher that stays: one interpreter from which the runners of all generations are forked. `make test` names the interpreter in MUSTER_TEST_PYTHON.
#![allow(clippy::unwrap_used)]

#[path = "launcher/fallback.rs"]
mod fallback;
#[path = "launcher/marks.rs"]
mod marks;
mod rig;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use muster_runner::procfs::Stat;
use muster_runner::wire::{
    AdoptSpec, Command, Exit, Hold, Lane, Order, ParkSpec, Phase, RefusalKind, StartSpec,
};
use rig::{Client, Living, PATIENCE, Rig, lives, until_written};

fn python() -> String {
    std::env::var("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON names a Python with torch; `make test` sets it")
}

/// A runner with a launcher that stays, and one directory below it for each generation.
struct Warm {
    rig: Rig,
    client: Client,
    generations: Vec<Generation>,
}

/// One generation. Its runner is killed at the end of the test.
struct Generation {
    dir: PathBuf,
    client: Client,
}

impl Warm {
    fn new() -> Warm {
        let mut rig = Rig::new();
        rig.hold.launcher = true;
        let mut client = rig.ready();
        let env = environment(rig.dir.join("launcher-with-a-long-name").to_str().unwrap());
        let (program, cwd) = (python(), rig.dir.clone());
        client.ok(Command::Park(ParkSpec {
            program,
            options: vec![],
            env,
            cwd,
            background: false,
            ranks: 2,
        }));
        Warm {
            rig,
            client,
            generations: Vec::new(),
        }
    }

    fn pid(&mut self) -> i32 {
        let runner = self.rig.identity().pid;
        let children =
            fs::read_to_string(format!("/proc/{runner}/task/{runner}/children")).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Makes the launcher fork a runner for the next generation.
    fn fork(&mut self) -> &mut Generation {
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
        let client = Client::new(muster_runner::connect(&dir).unwrap());
        self.generations.push(Generation { dir, client });
        self.generations.last_mut().unwrap()
    }

    /// Waits until a chain stands by for the next generation.
    fn standing(&self) -> Chain {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(chain) = Chain::of(&self.rig.dir) {
                return chain;
            }
            assert!(Instant::now() < until, "no chain was forked ahead");
            std::thread::yield_now();
        }
    }

    fn script(&self, text: &str) -> PathBuf {
        let path = self.rig.dir.join("train.py");
        fs::write(&path, text).unwrap();
        path
    }
}

/// What stands by below a launcher.
struct Chain {
    keeper: Living,
    runner: Living,
    copy: Living,
}

impl Chain {
    /// None while it is incomplete.
    fn of(launcher: &Path) -> Option<Chain> {
        let all = muster_runner::procfs::all().unwrap();
        let child = |parent: &Stat| all.iter().find(|stat| stat.ppid == parent.pid);
        let stands_by = |stat: &&Stat| {
            let line = fs::read(format!("/proc/{}/cmdline", stat.pid)).unwrap_or_default();
            line.starts_with(format!("muster-standby\0{}\0", launcher.display()).as_bytes())
        };
        // A chain that is just ending may have lost its runner.
        let keeper = all
            .iter()
            .filter(stands_by)
            .find(|stat| child(stat).is_some_and(|runner| stands_by(&runner)))?;
        let runner = child(keeper)?;
        let copy = child(runner)?;
        Some(Chain {
            keeper: Living::find(keeper.pid)?,
            runner: Living::find(runner.pid)?,
            copy: Living::find(copy.pid)?,
        })
    }

    fn gone(&self) {
        for part in [&self.keeper, &self.runner, &self.copy] {
            part.gone();
        }
    }
}

fn nice(pid: i32) -> i32 {
    rustix::process::getpriority_process(rustix::process::Pid::from_raw(pid)).unwrap()
}

/// What a generation's runner has recorded of itself.
fn runner_of(dir: &Path) -> muster_runner::RunnerIdentity {
    muster_runner::Record::read(dir).unwrap().runner.unwrap()
}

/// The launcher's copy below a generation's runner.
fn copy_of(dir: &Path) -> i32 {
    let runner = runner_of(dir).pid;
    let children = fs::read_to_string(format!("/proc/{runner}/task/{runner}/children")).unwrap();
    children.trim().parse().unwrap()
}

impl Drop for Warm {
    fn drop(&mut self) {
        for generation in &self.generations {
            if let Ok(muster_runner::Record {
                runner: Some(runner),
                ..
            }) = muster_runner::Record::read(&generation.dir)
                && muster_runner::alive(&runner)
            {
                Living::of(runner.pid).kill();
            }
        }
    }
}

fn environment(run_dir: &str) -> BTreeMap<String, String> {
    let env = [
        ("PATH", std::env::var("PATH").unwrap()),
        ("MUSTER_RUN_DIR", run_dir.to_owned()),
        ("OMP_NUM_THREADS", "1".into()),
    ];
    env.into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

impl Generation {
    fn start(&mut self, script: &std::path::Path) {
        let argv = vec![
            script.to_str().unwrap().to_owned(),
            "--lr".into(),
            "0.1".into(),
        ];
        let order = Order {
            lane: Lane::Fork,
            options: vec![],
            argv,
            command: vec![],
            run_id: "r".into(),
            peer_lost: vec![],
            lacks: Vec::new(),
            inspect: false,
            collectives: false,
        };
        self.client.start(StartSpec {
            env_files: BTreeMap::new(),
            program: python(),
            args: vec!["-c".into(), "print('torchrun in its place')".into()],
            env: environment(self.dir.to_str().unwrap()),
            cwd: self.dir.parent().unwrap().to_owned(),
            ranks: 2,
            first_rank: 0,
            order: Some(order),
            mpi: None,
            members: Vec::new(),
            restartable: false,
        });
    }
}

#[test]
fn the_ranks_of_every_generation_are_forked_from_one_launcher_that_is_none_of_them() {
    let mut warm = Warm::new();
    let launcher = warm.pid();
    let script = warm
        .script("import os, sys, time, torch\nprint('step 1', os.getpriority(os.PRIO_PROCESS, 0), flush=True)\ntime.sleep(1000)\n");
    let nice = rustix::process::getpriority_process(None).unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let generation = warm.fork();
        let dir = generation.dir.clone();
        generation.start(&script);
        let status = generation.client.until_stepping(2);
        assert!(!status.fell_back);
        for rank in &status.ranks {
            let line = fs::read(format!("/proc/{}/cmdline", rank.pid)).unwrap();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            let shown: Vec<&str> = words
                .iter()
                .map(|word| std::str::from_utf8(word).unwrap())
                .collect();
            assert_eq!(
                shown[1..],
                ["-u", script.to_str().unwrap(), "--lr", "0.1", ""],
                "what ps shows"
            );
            let environ = fs::read(format!("/proc/{}/environ", rank.pid)).unwrap();
            let mark = format!("MUSTER_RUN_DIR={}", dir.display());
            assert!(
                environ
                    .split(|byte| *byte == 0)
                    .any(|variable| variable == mark.as_bytes()),
                "by which leftovers are found"
            );
            let log = fs::read_to_string(dir.join(format!("logs/rank-{}.log", rank.rank))).unwrap();
            assert!(log.contains(&format!("step 1 {nice}\n")), "{log}");
        }
        let (runner, attendant) = (
            Stat::of(status.launcher.as_ref().unwrap().pid)
                .unwrap()
                .ppid,
            status.launcher.unwrap().pid,
        );
        assert_ne!(runner, launcher);
        assert_ne!(attendant, launcher);
        seen.extend(status.ranks.iter().map(|rank| rank.pid));
        // A killed rank is a failure of this generation only.
        Living::of(status.ranks[1].pid).kill();
        generation.client.until(|status| {
            status.ranks[1].exit
                == Some(Exit::Signal {
                    signal: 9,
                    core: false,
                })
        });
        generation.client.stop(std::time::Duration::ZERO);
        let dead = generation.client.until_dead();
        assert!(dead.ranks.iter().all(|rank| rank.exit.is_some()));
        assert!(seen.iter().all(|pid| !lives(*pid)));
        // The runner of an ended generation goes, and ends nothing else.
        let runner = Living::of(
            muster_runner::Record::read(&dir)
                .unwrap()
                .runner
                .unwrap()
                .pid,
        );
        generation.client.ok(Command::Release);
        runner.gone();
        assert!(lives(launcher), "it is there for the next");
    }
    assert_eq!(warm.pid(), launcher);
}

#[test]
fn the_next_generations_runner_stands_by_and_is_kept_like_any_other() {
    let mut warm = Warm::new();
    let script = warm.script("import time\nprint('step 1', flush=True)\ntime.sleep(1000)\n");
    warm.fork();
    let chain = warm.standing();
    let generation = warm.fork();
    let (dir, runner) = (generation.dir.clone(), runner_of(&generation.dir));
    assert_eq!(runner.pid, chain.runner.pid);
    assert_eq!(runner.keeper.unwrap().pid, chain.keeper.pid);
    generation.start(&script);
    let status = generation.client.until_stepping(2);
    assert!(!status.fell_back);
    assert_eq!(status.launcher.unwrap().pid, chain.copy.pid);
    let mark = format!("MUSTER_RUN_DIR={}\0", dir.display());
    // Workers do not inherit the low priority of what is forked ahead.
    let own = nice(std::process::id() as i32);
    assert_eq!(nice(chain.runner.pid), own);
    for pid in status
        .ranks
        .iter()
        .map(|rank| rank.pid)
        .chain([chain.copy.pid])
    {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let shown = String::from_utf8_lossy(&environ).into_owned();
        assert!(shown.contains(&mark), "{shown}");
        assert_eq!((nice(pid), Stat::of(pid).unwrap().session), (own, pid));
    }
    // The keeper proves the worker group of a killed runner dead.
    let ranks = status.ranks.iter().map(|rank| Living::of(rank.pid));
    let ranks: Vec<Living> = ranks.collect();
    chain.runner.kill();
    ranks.iter().for_each(Living::gone);
    chain.gone();
    assert!(dir.join(muster_runner::record::SWEPT).exists());
}

#[test]
fn what_stands_by_ends_with_its_launcher() {
    let mut warm = Warm::new();
    warm.fork();
    let chain = warm.standing();
    Living::of(warm.pid()).kill();
    chain.gone();
}

#[test]
fn a_chain_that_lost_a_part_is_replaced_when_it_is_needed() {
    let mut warm = Warm::new();
    warm.fork();
    let parts: [fn(&Chain) -> &Living; 3] = [
        |chain| &chain.keeper,
        |chain| &chain.runner,
        |chain| &chain.copy,
    ];
    for part in parts {
        let chain = warm.standing();
        part(&chain).kill();
        let generation = warm.fork();
        let runner = runner_of(&generation.dir);
        assert_ne!(runner.pid, chain.runner.pid);
        assert_ne!(runner.keeper.unwrap().pid, chain.keeper.pid);
        assert!(generation.client.status().phase == Phase::Holding);
        chain.gone();
    }
}

#[test]
fn a_chain_from_before_an_adoption_or_an_import_is_not_used() {
    let mut warm = Warm::new();
    let cwd = warm.rig.dir.join("elsewhere");
    fs::create_dir(&cwd).unwrap();
    warm.fork();
    let chain = warm.standing();
    let mut env = environment(warm.rig.dir.to_str().unwrap());
    env.insert("WANDB_PROJECT".into(), "another".into());
    warm.client.ok(Command::Adopt(AdoptSpec { env, cwd }));
    chain.gone();
    let adopted = runner_of(&warm.fork().dir).pid;
    assert_ne!(adopted, chain.runner.pid);

    let chain = warm.standing();
    fs::write(warm.rig.dir.join("preload.txt"), "").unwrap();
    warm.client.ok(Command::Preload);
    chain.gone();
    // The copy with the imports has one of its own, which also ends with the launcher.
    let chain = warm.standing();
    assert_eq!(runner_of(&warm.fork().dir).pid, chain.runner.pid);
    let chain = warm.standing();
    Living::of(warm.pid()).kill();
    chain.gone();
}

#[test]
fn what_stands_by_executes_its_one_command_or_ends() {
    let stand_by = |said: &str| {
        let mut process = std::process::Command::new(rig::RUNNER)
            .arg0("muster-standby")
            .args(["/a/launcher", "0", &nice(0).to_string(), "--help"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = process.stdin.take().unwrap();
        stdin.write_all(said.as_bytes()).unwrap();
        drop(stdin);
        let output = process.wait_with_output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let nothing = |code| (Some(code), String::new());
    assert_eq!(stand_by(""), nothing(0));
    assert_eq!(stand_by("[\"muster-runner\"]"), nothing(0), "half a line");
    assert_eq!(stand_by("[]\n"), nothing(1));
    let (code, text) = stand_by("[\"muster-runner\"]\n");
    assert!(
        code == Some(0) && text.contains("Usage:"),
        "{code:?} {text}"
    );
}

#[test]
fn a_copy_imports_what_ranks_have_imported_and_nothing_that_would_change_them() {
    let mut warm = Warm::new();
    // Only packages in the interpreter's own folder are imported ahead. The standard library has
    // enough such modules for this test.
    let script = warm.script(
        "import os, sys\nos.environ['A_NAME'] = 'x'\nloaded = [n for n in ('curses', 'wave', 'chunk', 'colorsys') if n in sys.modules]\n\
         import curses, wave, time\nprint('step 1', loaded, curses.__file__, flush=True)\ntime.sleep(1000)\n",
    );
    let generation = warm.fork();
    generation.start(&script);
    generation.client.until_stepping(2);
    let journal = fs::read_to_string(generation.dir.join("modules.txt")).unwrap();
    let line = |name: &str| {
        journal
            .lines()
            .find(|line| line.starts_with(&format!("{name}\t")))
            .map(str::to_owned)
    };
    let (curses, wave) = (
        line("curses").expect("curses was imported"),
        line("wave").expect("wave was imported"),
    );
    assert!(
        journal.lines().any(|line| line == "=A_NAME\t\"x\""),
        "the script changed it before an import: {journal}"
    );
    assert!(line("colorsys").is_none());
    // Give the second module another file, as if the job had imported it from elsewhere.
    let (name, _) = wave.split_once('\t').unwrap();
    let others: Vec<&str> = journal
        .lines()
        .filter(|line| !line.starts_with("wave\t"))
        .collect();
    fs::write(
        warm.rig.dir.join("preload.txt"),
        format!("{}\n{name}\t/elsewhere/wave.py\n", others.join("\n")),
    )
    .unwrap();
    warm.client.ok(Command::Preload);
    let preloaded = until_written(&warm.rig.dir.join("preloaded.txt"));
    assert!(preloaded.lines().any(|line| line == curses), "{preloaded}");
    assert!(
        !preloaded.lines().any(|line| line.starts_with("wave\t")),
        "{preloaded}"
    );

    let second = warm.fork();
    second.start(&script);
    second.client.until_stepping(2);
    let log = fs::read_to_string(second.dir.join("logs/rank-0.log")).unwrap();
    assert!(log.contains("step 1 ['curses'] "), "{log}");
}

#[test]
fn a_launcher_that_dies_refuses_and_leaves_its_runners_alone() {
    let mut warm = Warm::new();
    let script = warm.script("import time\nprint('step 1', flush=True)\ntime.sleep(1000)\n");
    let generation = warm.fork();
    generation.start(&script);
    generation.client.until_stepping(2);
    let launcher = Living::of(warm.pid());
    launcher.kill();
    let dir = warm.rig.dir.join("g2");
    fs::create_dir(&dir).unwrap();
    let refusal = warm.client.refused(Command::Fork { dir });
    assert_eq!(refusal.kind, RefusalKind::Spawn, "{}", refusal.text);
    let status = warm.generations[0].client.status();
    assert_eq!(status.phase, Phase::Running);
    assert!(status.ranks.iter().all(|rank| rank.exit.is_none()));
}

#[test]
fn a_rank_that_can_be_restarted_is_not_forked() {
    let mut warm = Warm::new();
    let generation = warm.fork();
    let copy = Living::of(copy_of(&generation.dir));
    let mut spec = warm.rig.direct(&["/bin/sh", "-c", "echo step 1; exit 3"]);
    spec.restartable = true;
    let client = &mut warm.generations[0].client;
    client.start(spec);
    for attempt in 1..=2 {
        client.until(|s| {
            s.ranks
                .iter()
                .any(|r| r.attempt == attempt && r.exit.is_some())
        });
        client.ok(Command::Restart {
            rank: 0,
            attempt: attempt + 1,
        });
    }
    copy.gone();
}

/// Some releases of torch read the whole environment during their import.
#[test]
fn a_launcher_is_adopted_although_torch_read_a_variable_that_no_rank_has() {
    let mut rig = Rig::new();
    rig.hold.launcher = true;
    let torch = rig.dir.join("packages/torch");
    fs::create_dir_all(&torch).unwrap();
    fs::write(
        torch.join("__init__.py"),
        "import os\nseen = dict(os.environ)\ndef get_rng_state(): pass\n",
    )
    .unwrap();
    fs::write(torch.join("distributed.py"), "").unwrap();
    let env = |changed: &[(&str, &str)]| {
        let mut env = environment(rig.dir.to_str().unwrap());
        let path = rig.dir.join("packages").display().to_string();
        let all = [
            ("PYTHONPATH", path.as_str()),
            ("PYTHON_EXEC", "/runs/pool/muster-shim"),
            ("TORCH_HOME", "/a"),
        ];
        env.extend(
            all.iter()
                .chain(changed)
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        env
    };
    let (program, cwd) = (python(), rig.dir.clone());
    let park = ParkSpec {
        program,
        options: vec![],
        env: env(&[]),
        cwd: cwd.clone(),
        background: false,
        ranks: 1,
    };
    let adopt = |changed: &[(&str, &str)]| {
        Command::Adopt(AdoptSpec {
            env: env(changed),
            cwd: cwd.clone(),
        })
    };
    let (ours, theirs) = (
        adopt(&[("PYTHON_EXEC", "/runs/job/muster-shim")]),
        adopt(&[("TORCH_HOME", "/b")]),
    );
    let mut client = rig.ready();
    client.ok(Command::Park(park));
    client.ok(ours);
    let why = client.refused(theirs).text;
    assert!(
        why.contains("torch read TORCH_HOME when it was imported"),
        "{why}"
    );
}
