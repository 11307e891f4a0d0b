//! `muster-runner pod`, asked as an agent in another container asks it.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

mod rig;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use muster_runner::Folder;
use muster_runner::place::{Left, Output, Program, Wanted};
use muster_runner::pod::{self, AskError, LEAVING, Look, Question, RUNS, SOCKET, Used};
use muster_runner::wire::Phase;
use rig::{PATIENCE, RUNNER, Rig};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

/// The init process of a container, without the container.
struct Pod {
    init: Child,
    volume: PathBuf,
}

impl Pod {
    /// Serves the folder above the runs of this rig.
    fn start(volume: &Path) -> Pod {
        Pod::start_with(volume, &[])
    }

    /// The same, with these variables of the pod's template.
    fn start_with(volume: &Path, env: &[(&str, &OsStr)]) -> Pod {
        let init = Command::new(RUNNER)
            .args(["pod", "--dir"])
            .arg(volume)
            .env("OF_THE_IMAGE", "yes")
            .envs(env.iter().copied())
            .current_dir("/usr")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pod = Pod {
            init,
            volume: volume.to_owned(),
        };
        until(|| pod.asked::<Look>(&Question::Look).is_ok());
        pod
    }

    fn asked<T: DeserializeOwned>(&self, question: &Question) -> Result<T, AskError> {
        pod::ask(&self.volume, question)
    }

    fn ask<T: DeserializeOwned>(&self, question: &Question) -> T {
        self.asked(question).unwrap()
    }

    /// One line to the socket as it is, and the answer.
    fn raw(&self, line: &[u8]) -> String {
        let mut stream = { Folder::trusted(&self.volume) }
            .and_then(|volume| volume.connect(SOCKET, PATIENCE))
            .unwrap();
        stream.write_all(line).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.init), signal).unwrap();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.init.kill();
        let _ = self.init.wait();
    }
}

fn until(mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "it never came true");
        std::thread::yield_now();
    }
}

fn volume(rig: &Rig) -> PathBuf {
    rig.dir.parent().unwrap().parent().unwrap().to_owned()
}

#[test]
fn it_answers_from_inside_and_survives_nonsense() {
    let rig = Rig::below("runs/a-g1");
    let pod = Pod::start(&volume(&rig));
    let look: Look = pod.ask(&Question::Look);
    assert_eq!(
        look.env.get("OF_THE_IMAGE").map(String::as_str),
        Some("yes")
    );
    let starts_in = look.env.get("PWD").map(String::as_str);
    assert_eq!(starts_in, Some("/usr"), "where the image's programs start");
    let mode = fs::metadata(pod.volume.join(SOCKET))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "only this user may ask");

    for nonsense in [&b"\n"[..], b"{}\n", b"{\"do\":\"dance\"}\n", b"\xff\xfe\n"] {
        let answer = pod.raw(nonsense);
        assert!(answer.contains("error") || answer.is_empty(), "{answer}");
    }
    let unknown = pod.raw(b"{\"do\":\"dance\"}\n");
    assert!(unknown.contains("unknown variant `dance`"), "{unknown}");

    let wanted = |program: &str| Question::Find {
        wanted: Wanted {
            dir: rig.dir.clone(),
            env_files: BTreeMap::new(),
            path: Some("/bin".into()),
            program: program.into(),
            script: Some("train.py".into()),
            ranks: None,
        },
    };
    let missing = pod.asked::<PathBuf>(&wanted("sh")).unwrap_err().to_string();
    assert_eq!(
        missing,
        format!("script {}/train.py not found", rig.dir.display())
    );
    fs::write(rig.dir.join("train.py"), "").unwrap();
    assert_eq!(pod.ask::<PathBuf>(&wanted("sh")), Path::new("/bin/sh"));
    let said: Output = pod.ask(&Question::Run {
        program: Program {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), "echo $A; exit 3".into()],
            env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
            dir: "/".into(),
            timeout_ms: 60_000,
        },
    });
    assert_eq!((said.stdout.as_str(), said.code), ("b\n", Some(3)));
    // A question that takes long holds up no other.
    let slow = Question::Run {
        program: Program {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), format!("exec cat {}/never", rig.dir.display())],
            env: BTreeMap::new(),
            dir: "/".into(),
            timeout_ms: 600_000,
        },
    };
    let fifo = rig.dir.join("never");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let (asked, volume) = (slow.clone(), pod.volume.clone());
    let waits = std::thread::spawn(move || pod::ask::<Output>(&volume, &asked));
    let _: Look = pod.ask(&Question::Look);
    assert!(!waits.is_finished());
    drop(fs::File::options().write(true).open(&fifo).unwrap());
    assert_eq!(waits.join().unwrap().unwrap().code, Some(0));
}

#[test]
fn it_ends_when_its_job_is_over() {
    let rig = Rig::below("runs/a-g1");
    let place = rig.dir.join("termination-log");
    // The kubelet makes the file. An earlier container of the pod may have left words in it.
    fs::write(&place, "these are the words of another container").unwrap();
    let variable = ("MUSTER_TERMINATION_MESSAGE_PATH", place.as_os_str());
    let mut pod = Pod::start_with(&volume(&rig), &[variable]);
    let () = pod.ask(&Question::End {
        why: "job a has failed: rank 1".into(),
    });
    // As Kubernetes sees it: the container has succeeded, and is not started again.
    assert!(pod.init.wait().unwrap().success());
    assert_eq!(
        fs::read_to_string(&place).unwrap(),
        "job a has failed: rank 1"
    );
}

#[test]
fn a_runner_is_started_and_found_and_swept_up() {
    let mut rig = Rig::below("runs/a-g1");
    rig.cgroup = false;
    let pod = Pod::start(&volume(&rig));
    rig.write_hold();
    let () = pod.ask(&Question::Start {
        dir: rig.dir.clone(),
    });
    // Started again, it is as started: an agent may have been killed before it heard of it.
    let () = pod.ask(&Question::Start {
        dir: rig.dir.clone(),
    });
    let runner = rig.identity();
    let lives = Question::Lives {
        dir: rig.dir.clone(),
        runner: Some(runner.clone()),
    };
    assert!(pod.ask::<bool>(&lives));
    let mut client = rig.client();
    // Not `exec`: in the middle of one, a process has no memory yet.
    client.start(rig.ranks(2, "echo $$ > $DIR/pid$RANK; sleep 600 & wait"));
    let told = |file| fs::read_to_string(rig.dir.join(file)).is_ok_and(|pid| pid.ends_with('\n'));
    until(|| told("pid0") && told("pid1"));
    let pids = [rig.pid_in("pid0"), rig.pid_in("pid1"), i32::MAX];
    let used: Used = pod.ask(&Question::Usage {
        pids: pids.to_vec(),
    });
    let trees: Vec<i32> = used.trees.iter().map(|tree| tree.pid).collect();
    assert_eq!(trees, pids[..2]);
    let ranks: u64 = used.trees.iter().map(|tree| tree.memory_bytes).sum();
    assert!(ranks > 0 && used.all.memory_bytes > ranks, "{used:?}");
    kill_process(Pid::from_raw(runner.pid).unwrap(), Signal::KILL).unwrap();
    until(|| !pod.ask::<bool>(&lives));
    let sweep = Question::Sweep {
        dir: rig.dir.clone(),
        was: None,
        runner: Some(runner),
        with_runner: false,
    };
    until(|| pod.ask::<Left>(&sweep) == Left::Nothing);
    let gone = |file| !Path::new(&format!("/proc/{}", rig.pid_in(file))).exists();
    until(|| gone("pid0") && gone("pid1"));
}

#[test]
fn told_to_end_it_says_so_and_ends_the_workers_with_their_grace() {
    let rig = Rig::below("runs/a-g1");
    let volume = volume(&rig);
    fs::write(volume.join(LEAVING), "an earlier container").unwrap();
    let mut pod = Pod::start(&volume);
    assert!(!volume.join(LEAVING).exists());
    rig.write_hold();
    let () = pod.ask(&Question::Start {
        dir: rig.dir.clone(),
    });
    let mut client = rig.client();
    client.start(rig.ranks(
        1,
        "trap 'echo saved > $DIR/saved; exit 0' TERM; touch $DIR/up; while :; do sleep 0.05; done",
    ));
    until(|| rig.dir.join("up").exists());
    pod.signal(Signal::TERM);
    until(|| volume.join(LEAVING).exists());
    // Nothing new begins. What lives may be asked for again.
    let late = volume.join(RUNS).join("b-g1");
    fs::create_dir(&late).unwrap();
    let refused = pod.asked::<()>(&Question::Start { dir: late.clone() });
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the workers' container was told to end"
    );
    fs::remove_dir(&late).unwrap();
    let () = pod.ask(&Question::Start {
        dir: rig.dir.clone(),
    });
    assert!(pod.init.wait().unwrap().success());
    assert_eq!(
        fs::read_to_string(rig.dir.join("saved")).unwrap(),
        "saved\n"
    );
    let outcome = rig.record().outcome.unwrap();
    assert_eq!(outcome.phase, Phase::Dead);
    let stop = outcome.stop.unwrap();
    assert_eq!(stop.reason, "the pod is being deleted or evicted");
    assert!(fs::read_dir(volume.join(RUNS)).unwrap().count() == 1);
}

#[test]
fn install_replaces_the_program_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let install = Command::new(RUNNER)
            .args(["install", "--dir"])
            .arg(dir.path())
            .status()
            .unwrap();
        assert!(install.success());
    }
    let names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["muster-runner"]);
    let version = Command::new(dir.path().join("muster-runner"))
        .arg("--version")
        .output()
        .unwrap();
    assert!(version.stdout.starts_with(b"muster-runner "));
}
