//! What an agent may ask of a runner, when, and what it hears: starting once, stopping before the
//! start, coming back after a restart, one runner per directory, directories with paths of any
//! length.
#![allow(clippy::unwrap_used)]

mod rig;

use std::time::Duration;

use muster_runner::wire::{Command, Exit, Phase, ProofKind, RefusalKind};
use rig::{Client, Living, RUNNER, Rig};

const FOREVER: &str = "echo step 1; while :; do sleep 1000; done";

#[test]
fn the_same_start_again_is_fine_and_another_is_a_conflict() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let spec = rig.ranks(1, FOREVER);
    client.start(spec.clone());
    let pid = client.until_stepping(1).launcher.unwrap().pid;
    client.start(spec.clone());
    assert_eq!(client.status().launcher.unwrap().pid, pid);
    let mut other = spec.clone();
    other.env.insert("X".into(), "1".into());
    let refusal = client.refused(Command::Start(Box::new(other)));
    assert_eq!(
        (refusal.kind, refusal.text.as_str()),
        (
            RefusalKind::Conflict,
            "this worker group was started with other content"
        )
    );
    client.stop(Duration::ZERO);
    client.until_dead();
    let refusal = client.refused(Command::Start(Box::new(spec)));
    assert_eq!(
        (refusal.kind, refusal.text.as_str()),
        (
            RefusalKind::Stopped,
            "this worker group was stopped and never starts again"
        )
    );
}

#[test]
fn a_stop_before_the_start_means_never() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.stop(Duration::from_secs(10));
    let status = client.until_dead();
    assert_eq!((status.launcher, status.ranks.len()), (None, 0));
    assert_eq!(status.dead.unwrap().how, ProofKind::Reaped);
    assert_eq!(
        client
            .refused(Command::Start(Box::new(rig.ranks(1, FOREVER))))
            .kind,
        RefusalKind::Stopped
    );
    assert_eq!(rig.record().outcome.unwrap().phase, Phase::Dead);
}

#[test]
fn what_cannot_be_started_leaves_the_runner_holding() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let refusal = client.refused(Command::Start(Box::new(rig.program(
        "/nowhere/torchrun",
        &[],
        1,
    ))));
    assert_eq!(refusal.kind, RefusalKind::Spawn);
    let expected = format!(
        "start \"/nowhere/torchrun\" in {:?}: No such file or directory (os error 2)",
        rig.dir
    );
    assert_eq!(refusal.text, expected);
    assert_eq!(client.status().phase, Phase::Holding);
    client.start(rig.ranks(1, "exit 0"));
    assert_eq!(
        client.until_dead().ranks[0].exit,
        Some(Exit::Code { code: 0 })
    );
}

#[test]
fn wrong_starts_are_refused_by_field() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let spec = || rig.ranks(1, FOREVER);
    let cases = [
        (
            {
                let mut s = spec();
                s.program.clear();
                s
            },
            "program: is empty",
        ),
        (
            {
                let mut s = spec();
                s.ranks = 257;
                s
            },
            "ranks: 257 is above 256",
        ),
        (
            {
                let mut s = spec();
                s.first_rank = 8;
                s
            },
            "first_rank: 8 and 1 ranks do not fit a world of 8",
        ),
        (
            {
                let mut s = spec();
                s.first_rank = u32::MAX;
                s
            },
            "first_rank: 4294967295 and 1 ranks do not fit a world of 8",
        ),
        (
            {
                let mut s = spec();
                s.cwd = "here".into();
                s
            },
            "cwd: \"here\" is not an absolute path",
        ),
        (
            {
                let mut s = spec();
                s.env.insert("A=B".into(), String::new());
                s
            },
            "env: \"A=B\" cannot be a variable's name",
        ),
        (
            {
                let mut s = spec();
                s.args.push("\0".into());
                s
            },
            "args: a NUL byte cannot be passed to a program",
        ),
    ];
    for (spec, text) in cases {
        let refusal = client.refused(Command::Start(Box::new(spec)));
        assert_eq!(
            (refusal.kind, refusal.text.as_str()),
            (RefusalKind::Invalid, text)
        );
    }
    assert_eq!(client.status().phase, Phase::Holding);
}

#[test]
fn an_agent_that_comes_back_finds_everything_as_it_is() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(
        2,
        "if [ $RANK = 1 ]; then while [ ! -e $DIR/go ]; do sleep 0.01; done; exit 9; fi; echo step 4; while :; do sleep 1000; done",
    ));
    let before = client.until_stepping(1);
    let failing = Living::of(client.until(|s| s.ranks.len() == 2).ranks[1].pid);
    drop(client);
    // A rank ends while no agent is connected.
    std::fs::write(rig.dir.join("go"), "").unwrap();
    failing.gone();
    let identity = rig.identity();
    assert!(muster_runner::alive(&identity));
    let mut client = rig.client();
    let status = client.until(|s| s.ranks[1].exit.is_some());
    assert_eq!(status.ranks[1].exit, Some(Exit::Code { code: 9 }));
    assert_eq!(status.ranks[0].pid, before.ranks[0].pid);
    assert_eq!(
        (status.ranks[0].exit, status.ranks[0].last_step),
        (None, Some(4))
    );
    assert_eq!(rig.record().exits.len(), 1);
}

#[test]
fn release_ends_a_runner_only_when_its_group_is_dead() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(1, FOREVER));
    assert_eq!(
        client.refused(Command::Release).text,
        "the worker group is not dead: stop it first"
    );
    let runner = Living::of(rig.identity().pid);
    client.stop(Duration::ZERO);
    client.until_dead();
    assert!(!runner.is_gone());
    client.ok(Command::Release);
    runner.gone();
    assert!(!muster_runner::alive(&rig.identity()));
    let cgroup = rig.identity().cgroup;
    assert!(
        cgroup.is_none_or(|c| !c.exists()),
        "the cgroup is left behind"
    );
}

#[test]
fn a_dead_groups_runner_goes_when_nobody_asks_and_the_outcome_stays() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let runner = Living::of(rig.identity().pid);
    client.start(rig.ranks(1, "exit 4"));
    client.until_dead();
    drop(client);
    runner.gone();
    assert_eq!(
        rig.record().outcome.unwrap().ranks[0].exit,
        Some(Exit::Code { code: 4 })
    );
}

#[test]
fn a_runner_that_nobody_uses_ends_by_itself() {
    let mut rig = Rig::new();
    rig.hold.idle_timeout_ms = 50;
    rig.write_hold();
    assert!(rig.hold().status.success());
    let until = std::time::Instant::now() + rig::PATIENCE;
    while muster_runner::alive(&rig.identity()) {
        assert!(std::time::Instant::now() < until, "it stays");
        std::thread::yield_now();
    }
}

#[test]
fn one_directory_serves_one_runner_once() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let second = rig.hold();
    assert_eq!(second.status.code(), Some(3));
    let text = format!(
        "muster-runner: {}: another runner holds this directory\n",
        rig.dir.display()
    );
    assert_eq!(String::from_utf8(second.stderr).unwrap(), text);
    assert_eq!(client.status().phase, Phase::Holding);
    Living::of(rig.identity().pid).kill();
    let third = rig.hold();
    assert_eq!(third.status.code(), Some(3));
    let text = String::from_utf8(third.stderr).unwrap();
    assert!(
        text.ends_with("an earlier runner has left its record here; each worker group needs a directory of its own\n"),
        "{text}"
    );
}

#[test]
fn a_directory_may_have_a_long_path() {
    let rig = Rig::below(&format!("{}/{}", "a".repeat(120), "b".repeat(120)));
    assert!(rig.dir.as_os_str().len() > 240);
    let mut client = rig.ready();
    client.start(rig.ranks(1, "echo step 1; exit 6"));
    let status = client.until_dead();
    assert_eq!(
        (status.ranks[0].exit, status.ranks[0].last_step),
        (Some(Exit::Code { code: 6 }), Some(1))
    );
}

#[test]
fn wrong_hold_files_are_refused_by_field() {
    let cases = [
        (
            "",
            "it is cut off, or was written by something else: its end is no checksum",
        ),
        (r#"{"v":1}"#, "missing field `job` at line 1 column 24"),
        (
            r#"{"v":2,HEAD}"#,
            "v: 2 is not a version this runner knows (1)",
        ),
        (
            r#"{"v":1,HEAD,"node_rank":3}"#,
            "node_rank: 3 is not below nnodes 1",
        ),
        (
            r#"{"v":1,HEAD,"log_bytes":5}"#,
            "log_bytes: 5 is below 131072",
        ),
        (
            r#"{"v":1,HEAD,"store":{"bind":"here"}}"#,
            "store.bind: \"here\": invalid socket address syntax",
        ),
        (
            r#"{"v":1,HEAD,"step_pattern":"x"}"#,
            "step_pattern: the pattern has no capture group",
        ),
    ];
    let head = r#""job":"j","name":"n","namespace":"d","generation":1,"node":"a","nnodes":1,"world_size":1"#;
    for (text, expected) in cases {
        let rig = Rig::new();
        let head = if text.contains("node_rank") {
            head.to_owned()
        } else {
            format!("{head},\"node_rank\":0")
        };
        let text = text.replace("HEAD", &head).into_bytes();
        let text = if text.is_empty() {
            text
        } else {
            muster_sealed::seal(text)
        };
        std::fs::write(rig.dir.join("hold.json"), text).unwrap();
        let output = rig.hold();
        let expected = format!(
            "muster-runner: {}: hold.json: {expected}\n",
            rig.dir.display()
        );
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
        assert_eq!(output.status.code(), Some(1));
        assert!(!rig.dir.join("runner.json").exists());
    }
}

#[test]
fn a_worker_sees_a_plain_environment() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let mut spec = rig.ranks(
        1,
        r#"env | sort; echo "fds: $(ls -m /proc/$$/fd)"; pwd; exec grep SigBlk /proc/self/status"#,
    );
    spec.env.insert("MINE".into(), "yes".into());
    client.start(spec);
    client.until_dead();
    let log = rig.log("rank-0.log");
    let lines: Vec<&str> = log
        .lines()
        .filter_map(|l| l.splitn(4, ' ').nth(3))
        .collect();
    assert!(lines.contains(&"MINE=yes") && lines.contains(&"RANK=0"));
    let foreign = |l: &&&str| {
        l.starts_with("MUSTER_") || l.starts_with("PYTHON_EXEC") || l.starts_with("CARGO")
    };
    assert_eq!(lines.iter().find(foreign), None);
    // Descriptor 3 is the pipe of `$(..)`. Some shells keep 10 for themselves.
    let fds = lines.iter().find_map(|l| l.strip_prefix("fds: ")).unwrap();
    assert!(
        fds.split(", ")
            .all(|fd| ["0", "1", "2", "3", "10"].contains(&fd)),
        "{fds}"
    );
    assert!(lines.contains(&"SigBlk:\t0000000000000000"), "{lines:?}");
    assert!(lines.contains(&rig.dir.to_str().unwrap()));
}

#[test]
fn the_command_line_has_a_version_and_help() {
    let run = |args: &[&str]| {
        std::process::Command::new(RUNNER)
            .args(args)
            .output()
            .unwrap()
    };
    let version = String::from_utf8(run(&["--version"]).stdout).unwrap();
    assert!(version.starts_with("muster-runner 0.1.0 ("), "{version}");
    assert!(
        String::from_utf8(run(&["--help"]).stdout)
            .unwrap()
            .contains("muster-runner hold --dir DIR")
    );
    let wrong = run(&["hold"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(wrong.stderr).unwrap(),
        "muster-runner: --dir is missing\nSee muster-runner --help.\n"
    );
}

#[test]
fn the_ninth_client_is_told_and_the_eight_go_on() {
    let rig = Rig::new();
    let first = rig.ready();
    let mut clients: Vec<Client> = (0..7).map(|_| rig.client()).collect();
    clients.push(first);
    for client in &mut clients {
        assert_eq!(client.status().phase, Phase::Holding);
    }
    let mut ninth = rig.client();
    let line = ninth.line().unwrap();
    assert_eq!(
        line,
        "{\"v\":1,\"error\":{\"kind\":\"busy\",\"text\":\"8 clients are connected, the most there may be\"}}\n"
    );
    assert_eq!(ninth.line(), None);
    clients.pop();
    assert_eq!(clients[0].status().phase, Phase::Holding);
}

#[test]
fn as_pid_1_sigterm_is_a_stop_and_agents_of_other_namespaces_are_heard() {
    const UNSHARE: [&str; 5] = [
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
    ];
    let possible = std::process::Command::new("unshare")
        .args(UNSHARE)
        .arg("true")
        .status();
    if !possible.is_ok_and(|s| s.success()) {
        eprintln!("not tested: this machine lets nobody make PID namespaces");
        return;
    }
    let rig = Rig::new();
    rig.write_hold();
    let mut pod = std::process::Command::new("unshare");
    let mut pod = pod
        .args(UNSHARE)
        .args(["--kill-child", RUNNER, "hold", "--dir"])
        .arg(&rig.dir)
        .spawn()
        .unwrap();
    rig::until_written(&rig.dir.join("runner.json"));
    assert_eq!(rig.identity().pid, 1);
    let mut client = rig.client();
    client.start(rig.ranks(1, FOREVER));
    client.until_stepping(1);
    let children =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", pod.id())).unwrap();
    Living::of(children.trim().parse().unwrap()).signal(rustix::process::Signal::TERM);
    let status = client.until_dead();
    assert_eq!(
        status.stop.unwrap().reason,
        "the runner, PID 1, got SIGTERM"
    );
    assert_eq!(
        status.ranks[0].exit,
        Some(Exit::Signal {
            signal: 15,
            core: false
        })
    );
    client.ok(Command::Release);
    assert!(pod.wait().unwrap().success());
}
