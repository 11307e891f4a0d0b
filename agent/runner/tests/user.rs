//! `muster-runner as`: a runner and all below it are a user that is not root, for good.
//!
//! Only root can become somebody else. Without root these tests say so, and test nothing.
#![allow(clippy::unwrap_used)]

mod rig;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use muster_runner::as_user::ask_as;
use muster_runner::place::{Become, Program, Wanted};
use muster_runner::pod::Question;

use rig::RUNNER;

/// Users that no machine has.
const ANN: &str = "70007:70008:70010,70011";
const BOB: &str = "70009:70009:";

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("NOT TESTED: only root can become another user");
    }
    root
}

/// A folder that every user can enter, with the runner in it: that of the build may be in a home.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // A copy that this process writes could not be executed while a child that another test forks has it open.
        let copied = Command::new("cp")
            .arg(RUNNER)
            .arg(dir.path().join("muster-runner"))
            .status();
        assert!(copied.unwrap().success());
        Self { dir }
    }

    fn runner(&self) -> PathBuf {
        self.dir.path().join("muster-runner")
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(self.runner()).args(args).output().unwrap()
    }
}

fn user(numbers: &str) -> Become {
    Become {
        numbers: numbers.into(),
        cgroup: None,
    }
}

#[test]
fn nothing_of_root_is_left() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let program = Program {
        program: "/bin/sh".into(),
        args: vec![
            "-c".into(),
            "grep -E '^(Uid|Gid|Groups|CapPrm|CapEff|CapAmb):' /proc/self/status".into(),
        ],
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        dir: "/".into(),
        timeout_ms: 60_000,
    };
    let mut child = Program::asker(&bench.runner(), Some(&user(ANN)))
        .spawn()
        .unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), &program.request()).unwrap();
    let mut heard = Vec::new();
    std::io::Read::read_to_end(child.stdout.as_mut().unwrap(), &mut heard).unwrap();
    child.wait().unwrap();
    let said = program.answer(&heard).unwrap().stdout;
    let lines: Vec<String> = said
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        lines,
        [
            "Uid: 70007 70007 70007 70007",
            "Gid: 70008 70008 70008 70008",
            "Groups: 70010 70011",
            "CapPrm: 0000000000000000",
            "CapEff: 0000000000000000",
            "CapAmb: 0000000000000000",
        ]
    );
}

#[test]
fn root_is_nobody_to_become_and_only_root_becomes_somebody() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    for numbers in ["0:0:", "4294967295:70008:", "70007:4294967295:", "ann", ""] {
        let output = bench.run(&["as", numbers, "--version"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains("is not UID:GID"),
            "{numbers}: {said}"
        );
    }
    let good = bench.run(&["as", ANN, "--version"]);
    assert!(good.status.success(), "{good:?}");
    let twice = bench.run(&["as", ANN, "as", BOB, "--version"]);
    let said = String::from_utf8_lossy(&twice.stderr).into_owned();
    assert!(
        !twice.status.success() && said.contains("become user 70009"),
        "{said}"
    );
}

#[test]
fn a_program_that_the_user_cannot_reach_is_named() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    fs::set_permissions(bench.dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let output = bench.run(&["as", ANN, "--version"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("user 70007 cannot execute") && said.contains("enter the folders"),
        "{said}"
    );
}

fn find(bench: &Bench, numbers: &str, script: &Path) -> Result<PathBuf, String> {
    let wanted = Wanted {
        dir: bench.dir.path().into(),
        env_files: Default::default(),
        path: None,
        program: "/bin/sh".into(),
        script: Some(script.into()),
        ranks: None,
    };
    ask_as(&bench.runner(), &user(numbers), &Question::Find { wanted })
}

#[test]
fn a_look_sees_what_the_user_sees() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let home = bench.dir.path().join("home");
    fs::create_dir(&home).unwrap();
    let script = home.join("train.py");
    fs::write(&script, "").unwrap();
    // As root's view of a file server that squashes it, the other way round: the folder is Ann's alone.
    std::os::unix::fs::chown(&home, Some(70_007), Some(70_008)).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(find(&bench, ANN, &script), Ok("/bin/sh".into()));
    let why = find(&bench, BOB, &script).unwrap_err();
    assert_eq!(why, format!("script {} not found", script.display()));
    let saved = |numbers: &str| -> std::collections::BTreeMap<PathBuf, u64> {
        let question = Question::Saved {
            dir: home.clone(),
            pattern: "*.py".into(),
        };
        ask_as(&bench.runner(), &user(numbers), &question).unwrap()
    };
    assert_eq!(
        (saved(ANN).len(), saved(BOB).len()),
        (1, 0),
        "names of files are private, too"
    );
    // What is for an init process alone is not answered.
    let refused = ask_as::<()>(&bench.runner(), &user(ANN), &Question::Start { dir: home });
    assert_eq!(refused.unwrap_err(), "only an init process answers that");
}

#[test]
fn what_a_user_writes_into_his_records_kills_nobody_else() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let dir = bench.dir.path().join("runs/a-g1");
    fs::create_dir_all(&dir).unwrap();
    // A process of root, as any daemon of the machine is.
    let mut daemon = Command::new("sleep").arg("1000000").spawn().unwrap();
    let stat = muster_runner::procfs::Stat::of(daemon.id() as i32).unwrap();
    let mut forged = muster_runner::RunnerIdentity::own("forged".into()).unwrap();
    (forged.pid, forged.start_time, forged.keeper) = (stat.pid, stat.start_time, None);
    muster_runner::record::write_atomic(&dir, muster_runner::record::RUNNER, &forged).unwrap();
    muster_runner::Folder::give(&dir, 70_007, 70_008).unwrap();
    let sweep = Question::Sweep {
        dir: dir.clone(),
        was: None,
        runner: Some(forged),
        with_runner: true,
    };
    let left: Result<muster_runner::place::Left, String> =
        ask_as(&bench.runner(), &user(ANN), &sweep);
    assert_eq!(daemon.try_wait().unwrap(), None, "it lives on: {left:?}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn a_user_gets_a_cgroup_of_his_own_where_one_can_be_made() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let name = format!("musterowner-test-{}", std::process::id());
    let become_in = Become {
        numbers: ANN.into(),
        cgroup: Some(name.clone()),
    };
    let program = Program {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), "cat /proc/self/cgroup".into()],
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        dir: "/".into(),
        timeout_ms: 60_000,
    };
    let mut child = Program::asker(&bench.runner(), Some(&become_in))
        .spawn()
        .unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), &program.request()).unwrap();
    let mut heard = Vec::new();
    std::io::Read::read_to_end(child.stdout.as_mut().unwrap(), &mut heard).unwrap();
    child.wait().unwrap();
    let said = program.answer(&heard).unwrap().stdout;
    let Some(own) = said.lines().find_map(|line| line.strip_prefix("0::")) else {
        eprintln!("NOT TESTED: this machine has no cgroup v2");
        return;
    };
    if !own.contains(&name) {
        eprintln!("NOT TESTED: no cgroup can be made here");
        return;
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts
        .lines()
        .find(|line| line.contains(" - cgroup2 "))
        .unwrap();
    let mount = mount.split(' ').nth(4).unwrap();
    let path = Path::new(mount).join(own.trim_start_matches('/'));
    let about = fs::metadata(&path).unwrap();
    assert_eq!((about.uid(), about.gid()), (70_007, 70_008));
    // The next one removes those in which nothing lives, and leaves the others with what is in them.
    let living = path.with_file_name(format!("{name}-living"));
    let below = living.join("empty");
    fs::create_dir_all(&below).unwrap();
    let mut lives = Command::new("sleep").arg("1000000").spawn().unwrap();
    fs::write(living.join("cgroup.procs"), lives.id().to_string()).unwrap();
    let next = Command::new(bench.runner())
        .args(["as", ANN, "--cgroup", "musterowner-next", "--version"])
        .output()
        .unwrap();
    assert!(next.status.success(), "{next:?}");
    assert!(!path.exists() && below.exists());
    lives.kill().unwrap();
    lives.wait().unwrap();
    fs::remove_dir(&below).unwrap();
    fs::remove_dir(&living).unwrap();
}
