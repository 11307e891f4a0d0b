//! How worker groups of real processes end: exact exit statuses, stops, kills, and no survivors.
#![allow(clippy::unwrap_used)]

mod rig;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use muster_runner::leftovers::{self, Leftovers};
use muster_runner::record::Swept;
use muster_runner::wire::{Command, Exit, Phase, ProofKind, RankStatus};
use rig::{Living, PATIENCE, Rig, lives};
use rustix::process::Signal;

const LONG: Duration = Duration::from_secs(600);

fn exits(ranks: &[RankStatus]) -> Vec<Option<Exit>> {
    ranks.iter().map(|r| r.exit).collect()
}

fn signal(signal: i32) -> Option<Exit> {
    Some(Exit::Signal {
        signal,
        core: false,
    })
}

fn code(code: i32) -> Option<Exit> {
    Some(Exit::Code { code })
}

/// Leaves a grandchild that leads a session, has lost its parent and ignores TERM. It writes its
/// pid.
const STRAY: &str = r#"
setsid sh -c '(trap "" TERM; sh -c "echo \$PPID > $DIR/stray.$RANK.tmp"; mv $DIR/stray.$RANK.tmp $DIR/stray.$RANK; while :; do sleep 1000; done) & exit' &
while [ ! -e $DIR/stray.$RANK ]; do sleep 0.01; done
"#;

#[test]
fn exit_statuses_are_exact_everywhere() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(4, "ulimit -c 0; case $RANK in 0) exit 0;; 1) exit 7;; 2) kill -SEGV $$;; 3) kill -KILL $$;; esac"));
    let status = client.until_dead();
    let expected = [code(0), code(7), signal(11), signal(9)];
    assert_eq!(exits(&status.ranks), expected);
    assert_eq!(status.launcher.unwrap().exit, code(0));
    let log = rig.log("launcher.log");
    for line in [
        "rank 0 ended as 0",
        "rank 1 ended as 7",
        "rank 2 ended as 139",
        "rank 3 ended as 137",
    ] {
        assert!(log.contains(line), "{line} is not in {log}");
    }
    let record = rig.record();
    let mut written: Vec<_> = record
        .exits
        .iter()
        .map(|e| (e.rank, Some(e.exit)))
        .collect();
    written.sort_unstable_by_key(|e| e.0);
    let mut all = vec![(None, code(0))];
    all.extend(
        expected
            .into_iter()
            .enumerate()
            .map(|(rank, exit)| (Some(rank as u32), exit)),
    );
    assert_eq!(written, all);
    let outcome = record.outcome.unwrap();
    assert_eq!(exits(&outcome.ranks), expected);
    assert_eq!(outcome.phase, Phase::Dead);
}

#[test]
fn ranks_run_on_the_cpus_they_are_given() {
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = own
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap()
        .trim()
        .to_owned();
    let last = allowed.rsplit([',', '-']).next().unwrap().to_owned();
    let rig = Rig::new();
    let mut client = rig.ready();
    let mut spec = rig.ranks(4, "grep Cpus_allowed_list /proc/self/status");
    spec.env
        .insert("MUSTER_RANK_CPUS".into(), format!("{allowed};{last};;1023"));
    client.start(spec);
    client.until_dead();
    let log = |rank: u32| rig.log(&format!("rank-{rank}.log"));
    for (rank, cpus) in [(0, &allowed), (1, &last), (2, &allowed), (3, &allowed)] {
        assert!(
            log(rank).contains(&format!("Cpus_allowed_list:\t{cpus}\n")),
            "rank {rank}, {cpus}: {}",
            log(rank)
        );
        assert_eq!(log(rank).contains("not pinned"), rank == 3, "{}", log(rank));
    }
}

#[test]
fn a_failed_rank_is_told_at_once_with_its_last_words_and_the_others_go_on() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let script = r#"if [ $RANK = 1 ]; then
        seq 12000 >&2; for i in 1 2 3; do echo "noise $i" >&2; done
        echo "[rank1]: ValueError: bad luck" >&2; printf "no newline" >&2; exit 3
    fi; echo step 1; while :; do sleep 1000; done"#;
    client.start(rig.ranks(2, script));
    let status = client.until(|s| s.ranks.iter().any(|r| r.exit.is_some()) && s.ranks.len() == 2);
    let failed = &status.ranks[1];
    assert_eq!(failed.exit, code(3));
    assert_eq!(failed.tail.len(), 20);
    assert_eq!(
        failed.tail[14..],
        [
            "12000",
            "noise 1",
            "noise 2",
            "noise 3",
            "[rank1]: ValueError: bad luck",
            "no newline"
        ]
    );
    assert_eq!(failed.first_error.as_deref(), Some("ValueError: bad luck"));
    assert_eq!(status.phase, Phase::Stopping);
    assert_eq!((status.stop, status.dead), (None, None));
    let other = client.until_stepping(1).ranks[0].clone();
    assert!(lives(other.pid));
    client.stop(LONG);
    assert_eq!(exits(&client.until_dead().ranks), [signal(15), code(3)]);
}

#[test]
fn a_stop_gives_time_to_a_handler_and_every_rank_hears_term_once() {
    let rig = Rig::new();
    let mut client = rig.ready();
    // The rank goes on for a while after the launcher, too, has passed TERM on, so that it would
    // hear a second TERM.
    let script = "trap 'echo got term; termed=1' TERM; echo step 1
        while [ -z \"$termed\" ] || [ ! -e $DIR/termed ]; do sleep 0.01; done
        for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.02; done; touch $DIR/saved.$RANK; exit 5";
    client.start(rig.ranks(2, script));
    let launcher = client.until_stepping(2).launcher.unwrap();
    client.stop(LONG);
    // torchrun passes one on if somebody else tells it to end.
    Living::of(launcher.pid).signal(Signal::TERM);
    let status = client.until_dead();
    assert_eq!(exits(&status.ranks), [code(5), code(5)]);
    assert_eq!(
        status.stop.clone().unwrap().killed_us,
        None,
        "{status:?} {}",
        rig.log("launcher.log")
    );
    for rank in 0..2 {
        assert!(rig.dir.join(format!("saved.{rank}")).exists());
        // The stand-in for torchrun passes TERM on as well. The shim lets only one through.
        assert_eq!(
            rig.log(&format!("rank-{rank}.log"))
                .matches("got term")
                .count(),
            1
        );
    }
}

#[test]
fn who_ignores_term_is_killed_when_the_grace_is_over() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(2, "trap '' TERM; echo step 1; while :; do sleep 1000; done"));
    client.until_stepping(2);
    let grace = Duration::from_millis(700);
    client.stop(grace);
    let status = client.until_dead();
    assert_eq!(exits(&status.ranks), [signal(9), signal(9)]);
    let stop = status.stop.unwrap();
    let waited = Duration::from_micros(stop.killed_us.unwrap() - stop.asked_us);
    assert!(waited >= grace, "killed after {waited:?}");
    assert_eq!(stop.grace_ms, 700);
}

#[test]
fn a_second_stop_can_only_shorten_the_grace() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(1, "trap '' TERM; echo step 1; while :; do sleep 1000; done"));
    client.until_stepping(1);
    client.stop(LONG);
    client.stop(LONG * 2);
    let stop = client.status().stop.unwrap();
    assert!(
        stop.grace_ms.abs_diff(LONG.as_millis() as u64) < 1,
        "{stop:?}"
    );
    client.stop(Duration::ZERO);
    assert_eq!(exits(&client.until_dead().ranks), [signal(9)]);
}

#[test]
fn nothing_gets_away_from_a_stop_by_setsid_and_double_fork() {
    for cgroup in [true, false] {
        nothing_gets_away_from_a_stop_by_setsid_and_double_fork_with(cgroup);
    }
}

fn nothing_gets_away_from_a_stop_by_setsid_and_double_fork_with(cgroup: bool) {
    let mut rig = Rig::new();
    rig.cgroup = cgroup;
    let mut client = rig.ready();
    client.start(rig.ranks(
        2,
        &format!("{STRAY} echo step 1; while :; do sleep 1000; done"),
    ));
    client.until_stepping(2);
    let strays: Vec<Living> = (0..2)
        .map(|r| Living::of(rig.pid_in(&format!("stray.{r}"))))
        .collect();
    client.stop(LONG);
    let begun = Instant::now();
    let status = client.until_dead();
    assert!(
        strays.iter().all(Living::is_gone),
        "dead was said while a stray lived"
    );
    assert_eq!(exits(&status.ranks), [signal(15), signal(15)]);
    let made = rig.identity().cgroup.is_some();
    assert!(cgroup || !made);
    assert_eq!(
        status.dead.unwrap().how,
        if made {
            ProofKind::Cgroup
        } else {
            ProofKind::Reaped
        }
    );
    // Nothing that matters was left, so the stop did not wait for the whole grace.
    assert!(begun.elapsed() < PATIENCE);
}

#[test]
fn a_launcher_that_is_killed_takes_everything_with_it() {
    for cgroup in [true, false] {
        a_launcher_that_is_killed_takes_everything_with_it_with(cgroup);
    }
}

fn a_launcher_that_is_killed_takes_everything_with_it_with(cgroup: bool) {
    let mut rig = Rig::new();
    rig.cgroup = cgroup;
    let mut client = rig.ready();
    client.start(rig.ranks(
        2,
        &format!("{STRAY} trap '' TERM; echo step 1; while :; do sleep 1000; done"),
    ));
    let status = client.until_stepping(2);
    let strays: Vec<Living> = (0..2)
        .map(|r| Living::of(rig.pid_in(&format!("stray.{r}"))))
        .collect();
    Living::of(status.launcher.unwrap().pid).kill();
    let status = client.until_dead();
    assert!(strays.iter().all(Living::is_gone));
    assert_eq!(status.launcher.unwrap().exit, signal(9));
    assert_eq!(exits(&status.ranks), [signal(9), signal(9)]);
    assert_eq!(
        status.stop.unwrap().reason,
        "the launcher has ended while others lived"
    );
}

#[test]
fn a_runner_that_is_killed_leaves_no_worker() {
    for cgroup in [true, false] {
        a_runner_that_is_killed_leaves_no_worker_with(cgroup);
    }
}

fn a_runner_that_is_killed_leaves_no_worker_with(cgroup: bool) {
    let mut rig = Rig::new();
    rig.cgroup = cgroup;
    let mut client = rig.ready();
    client.start(rig.ranks(
        2,
        &format!("{STRAY} trap '' TERM; echo step 1; while :; do sleep 1000; done"),
    ));
    let status = client.until_stepping(2);
    let mut all: Vec<Living> = (0..2)
        .map(|r| Living::of(rig.pid_in(&format!("stray.{r}"))))
        .collect();
    all.extend(status.ranks.iter().map(|r| Living::of(r.pid)));
    all.push(Living::of(status.launcher.unwrap().pid));
    Living::of(rig.identity().pid).kill();
    all.iter().for_each(Living::gone);
    assert!(!muster_runner::alive(&rig.identity()));
    assert_eq!(rig.record().outcome, None);
}

#[test]
fn the_keeper_ends_what_has_no_shim_and_writes_it_down() {
    let mut rig = Rig::new();
    rig.cgroup = false;
    let mut client = rig.ready();
    // The process leaves its parent, its session and its environment.
    let script = r#"setsid env -i /bin/sh -c "sleep 1000 & echo \$! > $DIR/stray"; while :; do sleep 1000; done"#;
    client.start(rig.program("/bin/sh", &["-c", script], 1));
    rig::until_written(&rig.dir.join("stray"));
    let stray = Living::of(rig.pid_in("stray"));
    let identity = rig.identity();
    let keeper = Living::of(identity.keeper.as_ref().unwrap().pid);
    Living::of(identity.pid).kill();
    keeper.gone();
    assert!(stray.is_gone());
    assert_eq!(
        Swept::read(&rig.dir).unwrap().unwrap().boot_id,
        identity.boot_id
    );
}

#[test]
fn a_keeper_hears_no_signal_that_can_be_blocked_and_goes_with_its_runner() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(1, "echo step 1; exec sleep 1000"));
    client.until_stepping(1);
    let keeper = Living::of(rig.identity().keeper.unwrap().pid);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        keeper.signal(signal);
    }
    client.stop(Duration::ZERO);
    client.until_dead();
    assert!(!keeper.is_gone());
    client.ok(Command::Release);
    keeper.gone();
    assert_eq!(
        Swept::read(&rig.dir).unwrap(),
        None,
        "the outcome says more"
    );
}

#[test]
fn a_runner_that_is_refused_the_directory_leaves_no_proof_in_it() {
    let rig = Rig::new();
    let _client = rig.ready();
    assert_eq!(rig.hold().status.code(), Some(3));
    let other = rig.identity();
    assert!(muster_runner::alive(&other) && muster_runner::kept(&other));
    assert_eq!(Swept::read(&rig.dir).unwrap(), None);
}

#[test]
fn a_shim_that_is_killed_takes_its_rank_with_it_and_the_end_is_known() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(
        1,
        "echo $PPID > $DIR/shim; echo step 1; trap '' TERM; while :; do sleep 1000; done",
    ));
    client.until_stepping(1);
    Living::of(rig.pid_in("shim")).kill();
    let status = client.until_dead();
    assert_eq!(exits(&status.ranks), [signal(9)]);
    assert_eq!(status.launcher.unwrap().exit, code(0));
}

#[test]
fn a_program_that_cannot_be_started_ends_as_in_a_shell() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let mut spec = rig.ranks(1, "");
    spec.env
        .insert("MUSTER_SHIM_PROGRAM".into(), "/nowhere/python".into());
    client.start(spec);
    let status = client.until_dead();
    assert_eq!(exits(&status.ranks), [code(127)]);
    assert_eq!(
        status.ranks[0].tail,
        ["muster-shim: /nowhere/python: No such file or directory (os error 2)"]
    );
}

/// Each command, how it ends, and what names the reason.
#[test]
fn what_cannot_be_run_is_named_in_the_reason() {
    let rig = Rig::new();
    let file = |name: &str, text: &str, mode| {
        let path = rig.dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let missing = rig.dir.join("nothing").to_str().unwrap().to_owned();
    let old = file("old.sh", "#!/opt/nowhere/python3 -u\nprint(1)\n", 0o755);
    let dos = file("dos.sh", "#!/bin/sh\r\nexit 0\r\n", 0o755);
    let plain = file("plain.sh", "exit 0\n", 0o644);
    let env = file("env.sh", "#!/usr/bin/env python9\n", 0o755);
    let calls = file("calls.sh", "#!/bin/sh\ntrian --lr 1\n", 0o755);
    let bash = "set -e; echo starts >&2; ./trian";
    let cases: [(&[&str], i32, &str); 9] = [
        (
            &["trian"],
            127,
            "muster-shim: trian: command not found on PATH: No such file or directory (os error 2)",
        ),
        (
            &[&missing],
            127,
            "nothing: No such file or directory (os error 2)",
        ),
        (
            &[&old],
            127,
            "old.sh: its interpreter /opt/nowhere/python3 is not there: No such file or directory (os error 2)",
        ),
        (
            &["./here.sh"],
            127,
            "muster-shim: ./here.sh: its interpreter /opt/nowhere/python3 is not there: No such file or directory (os error 2)",
        ),
        (
            &[&dos],
            127,
            "dos.sh: its interpreter /bin/sh\\r is not there: No such file or directory (os error 2)",
        ),
        (&[&plain], 126, "plain.sh: Permission denied (os error 13)"),
        (&[&env], 127, "env: ‘python9’: No such file or directory"),
        (&[&calls], 127, "calls.sh: 2: trian: not found"),
        (
            &["bash", "-c", bash],
            127,
            "bash: line 1: ./trian: No such file or directory",
        ),
    ];
    for (command, exit, reason) in cases {
        let rig = Rig::new();
        std::fs::write(rig.dir.join("here.sh"), "#!/opt/nowhere/python3\n").unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(rig.dir.join("here.sh"), executable).unwrap();
        let mut client = rig.ready();
        let mut spec = rig.direct(command);
        spec.env.insert("LC_ALL".into(), "C.UTF-8".into());
        client.start(spec);
        let status = client.until_dead();
        assert_eq!(exits(&status.ranks), [code(exit)], "{command:?}");
        let found = status.ranks[0].first_error.as_deref().unwrap_or_default();
        assert!(found.ends_with(reason), "{command:?}: {found}");
    }
}

#[test]
fn a_launcher_without_shims_is_stopped_with_its_children() {
    let rig = Rig::new();
    let mut client = rig.ready();
    // The child leads its own session, so TERM to the launcher's group does not reach it.
    let script = r#"setsid sh -c 'trap "echo saved > $DIR/saved; exit" TERM; echo $$ > $DIR/child; while :; do sleep 0.05; done' & wait"#;
    client.start(rig.program("/bin/sh", &["-c", script], 1));
    rig::until_written(&rig.dir.join("child"));
    let child = Living::of(rig.pid_in("child"));
    client.stop(LONG);
    let status = client.until_dead();
    assert!(child.is_gone());
    assert_eq!(
        std::fs::read_to_string(rig.dir.join("saved")).unwrap(),
        "saved\n"
    );
    assert_eq!(status.launcher.unwrap().exit, signal(15));
    assert_eq!(status.stop.unwrap().killed_us, None);
}

#[test]
fn an_agent_can_clear_what_a_killed_runner_left() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(
        1,
        "echo $PPID > $DIR/shim; echo step 1; while :; do sleep 1000; done",
    ));
    let rank = Living::of(client.until_stepping(1).ranks[0].pid);
    let identity = rig.identity();
    assert_eq!(leftovers::clear(&identity).unwrap(), Leftovers::Held);
    // A stopped shim cannot see that its runner is gone.
    let shim = Living::of(rig.pid_in("shim"));
    shim.signal(Signal::STOP);
    Living::of(identity.keeper.as_ref().unwrap().pid).kill();
    Living::of(identity.pid).kill();
    assert!(!rank.is_gone());
    if identity.cgroup.is_none() {
        assert_eq!(leftovers::clear(&identity).unwrap(), Leftovers::Unknown);
        shim.kill();
    } else {
        let until = Instant::now() + PATIENCE;
        while leftovers::clear(&identity).unwrap() != Leftovers::Empty {
            assert!(Instant::now() < until, "never empty");
        }
        assert!(shim.is_gone());
    }
    rank.gone();
    assert!(identity.cgroup.is_none_or(|c| !c.exists()));
}
