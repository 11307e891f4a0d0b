//! What an interpreter starts while it imports, as `sitecustomize` may: it belongs to the launcher and
//! ends with it, however the launcher ends. The generations that were forked from it go on.
//!
//! `make test` names the interpreter in MUSTER_TEST_PYTHON.
#![allow(clippy::unwrap_used)]

mod rig;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use muster_runner::place::{Left, Remains};
use muster_runner::record::{self, Swept};
use muster_runner::wire::{Command, Hold, ParkSpec};
use muster_runner::{RunnerIdentity, connect};
use rig::{Client, Living, Rig, until_written};
use rustix::process::Signal;

/// Starts a process that leaves all that it is known by: its parent, its session, its environment.
const SITE: &str = r#"import os, subprocess
script = 'echo $$ > "$0"; exec sleep 100000'
subprocess.Popen(["env", "-i", "setsid", "/bin/sh", "-c", script, os.environ["STRAY"]], stdin=-3, stdout=-3, stderr=-3)
"#;

struct Launcher {
    rig: Rig,
    client: Client,
    stray: Living,
    generation: PathBuf,
    of_generation: Client,
}

impl Launcher {
    /// A launcher with a stray, from which a generation was forked.
    fn new() -> Self {
        let mut rig = Rig::new();
        rig.hold.launcher = true;
        let mut client = rig.ready();
        let stray = rig.dir.join("stray");
        fs::create_dir(rig.dir.join("site")).unwrap();
        fs::write(rig.dir.join("site/sitecustomize.py"), SITE).unwrap();
        let variables = [
            ("PATH", std::env::var("PATH").unwrap()),
            (
                "PYTHONPATH",
                rig.dir.join("site").to_str().unwrap().to_owned(),
            ),
            ("STRAY", stray.to_str().unwrap().to_owned()),
            // As long as the name of a generation's folder.
            ("MUSTER_RUN_DIR", format!("{}/launcher", rig.dir.display())),
        ];
        client.ok(Command::Park(ParkSpec {
            program: std::env::var("MUSTER_TEST_PYTHON")
                .expect("MUSTER_TEST_PYTHON names a Python with torch; `make test` sets it"),
            options: vec![],
            env: variables
                .map(|(name, value)| (name.to_owned(), value))
                .into_iter()
                .collect::<BTreeMap<_, _>>(),
            cwd: rig.dir.clone(),
            background: false,
            ranks: 1,
        }));
        let stray = Living::of(until_written(&stray).trim().parse().unwrap());
        let generation = rig.dir.join("g1");
        fs::create_dir(&generation).unwrap();
        let hold = Hold {
            launcher: false,
            world_size: 1,
            ..rig.hold.clone()
        };
        record::write_atomic(&generation, record::HOLD, &hold).unwrap();
        client.ok(Command::Fork {
            dir: generation.clone(),
        });
        let of_generation = Client::new(connect(&generation).unwrap());
        Self {
            rig,
            client,
            stray,
            generation,
            of_generation,
        }
    }

    /// Asks until nothing of the launcher is left.
    fn until_proven(dir: &Path, runner: &RunnerIdentity, with_runner: bool) {
        let remains = Remains {
            dir,
            was: None,
            runner: Some(runner),
            with_runner,
        };
        loop {
            match remains.kill_all().unwrap() {
                Left::Nothing => return,
                Left::Living(_) => std::thread::yield_now(),
                Left::Unproven(why) => panic!("{why}"),
            }
        }
    }

    /// The generation lives and ends as any other.
    fn end_generation(mut self) {
        assert!(muster_runner::alive(
            &RunnerIdentity::read(&self.generation).unwrap().unwrap()
        ));
        self.of_generation.stop(std::time::Duration::ZERO);
        self.of_generation.until_dead();
    }
}

#[test]
fn what_a_launcher_has_started_ends_with_it() {
    let mut it = Launcher::new();
    let runner = it.rig.identity();
    it.client.stop(std::time::Duration::ZERO);
    while it.client.line().is_some() {}
    Launcher::until_proven(&it.rig.dir, &runner, false);
    assert!(it.stray.is_gone());
    it.end_generation();
}

#[test]
fn what_a_launcher_has_started_ends_when_its_runner_is_killed() {
    let it = Launcher::new();
    let runner = it.rig.identity();
    Living::of(runner.pid).kill();
    Launcher::until_proven(&it.rig.dir, &runner, false);
    assert!(it.stray.is_gone());
    assert!(Swept::read(&it.rig.dir).unwrap().is_some());
    it.end_generation();
}

#[test]
fn a_launcher_whose_runner_does_not_obey_is_ended_all_the_same() {
    let it = Launcher::new();
    let runner = it.rig.identity();
    let keeper = runner.keeper.clone().expect("it has a keeper");
    Living::of(runner.pid).signal(Signal::STOP);
    Living::of(keeper.pid).signal(Signal::STOP);
    Launcher::until_proven(&it.rig.dir, &runner, true);
    assert!(it.stray.is_gone());
    it.end_generation();
}
