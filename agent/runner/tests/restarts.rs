//! Ranks that are started again by themselves: the failure of one ends nobody else, and its next attempt
//! goes on under the same name, in the same log.
#![allow(clippy::unwrap_used)]

mod rig;

use std::time::{Duration, Instant};

use muster_runner::record::{Swept, rank_log};
use muster_runner::wire::{
    Command, Exit, Lane, MemberSpec, MpiSpec, Phase, RankStatus, RefusalKind, StartSpec, Status,
};
use muster_runner::{Record, Salvage};
use rig::{Client, Living, PATIENCE, Rig, lives};
use rustix::process::Signal;

const LONG: Duration = Duration::from_secs(600);

/// Says who it is, and lives.
const LIVES: &str = "echo I am $RANK of $WORLD_SIZE; echo step 1; exec sleep 1000";

fn code(code: i32) -> Option<Exit> {
    Some(Exit::Code { code })
}

fn signal(signal: i32) -> Option<Exit> {
    Some(Exit::Signal {
        signal,
        core: false,
    })
}

fn restart(rank: u32, attempt: u32) -> Command {
    Command::Restart { rank, attempt }
}

/// A node's only member, which can be restarted.
fn alone(rig: &Rig, script: &str) -> StartSpec {
    StartSpec {
        restartable: true,
        ..rig.direct(&["/bin/sh", "-c", script])
    }
}

fn restartable(member: MemberSpec) -> MemberSpec {
    MemberSpec {
        restartable: true,
        ..member
    }
}

/// Two members of one rank each. Only rank 0 can be restarted.
fn two(rig: &Rig, restarts: &str, stays: &str) -> StartSpec {
    rig.members(vec![
        restartable(rig.member(0, 0, 1, restarts)),
        rig.member(1, 1, 1, stays),
    ])
}

fn rank(status: &Status, number: u32) -> &RankStatus {
    status.ranks.iter().find(|r| r.rank == number).unwrap()
}

fn until_failed(client: &mut Client, attempt: u32) -> Status {
    client.until(|s| {
        s.ranks
            .first()
            .is_some_and(|r| r.attempt == attempt && r.exit.is_some())
    })
}

/// Waits until the first rank prints steps in this attempt.
fn until_attempt(client: &mut Client, attempt: u32) -> Status {
    client.until(|s| {
        s.ranks
            .first()
            .is_some_and(|r| r.attempt == attempt && r.first_step.is_some())
    })
}

/// The lines of a log without stamps and streams.
fn said(rig: &Rig, rank: u32) -> Vec<String> {
    let log = rig.log(&rank_log(rank));
    log.lines()
        .map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn a_rank_that_was_killed_is_started_again_and_the_other_lives_on() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(two(&rig, LIVES, LIVES));
    let status = client.until_stepping(2);
    let other = Living::of(rank(&status, 1).pid);
    let attendant = Living::of(status.launcher.as_ref().unwrap().pid);
    let mut pids = vec![rank(&status, 0).pid];
    for attempt in 2..=3 {
        Living::of(*pids.last().unwrap()).kill();
        let status = until_failed(&mut client, attempt - 1);
        assert_eq!(rank(&status, 0).exit, signal(9));
        assert_eq!((status.phase, status.stop), (Phase::Running, None));
        // The same order is one start, before it and after.
        attendant.signal(Signal::STOP);
        for _ in 0..2 {
            client.ok(restart(0, attempt));
        }
        let refusal = client.refused(restart(0, attempt + 1));
        assert_eq!(refusal.text, "rank: 0 is being started");
        attendant.signal(Signal::CONT);
        let status = until_attempt(&mut client, attempt);
        client.ok(restart(0, attempt));
        client.ok(restart(0, attempt - 1));
        let now = rank(&status, 0);
        assert_eq!(
            (now.exit, now.exited_us, now.last_step),
            (None, None, Some(1))
        );
        assert!(!pids.contains(&now.pid) && lives(now.pid));
        pids.push(now.pid);
    }
    assert!(!other.is_gone());
    client.stop(LONG);
    let status = client.until_dead();
    let ends: Vec<_> = status.ranks.iter().map(|r| (r.attempt, r.exit)).collect();
    assert_eq!(ends, [(3, signal(15)), (1, signal(15))]);
    assert_eq!(rank(&status, 0).pid, pids[2]);
    assert_eq!(said(&rig, 0), ["I am 0 of 8", "step 1"].repeat(3));
    assert_eq!(said(&rig, 1).len(), 2);
    // Only the newest attempt's exit counts.
    let mut exits: Vec<_> = rig.record().exits;
    exits.retain(|exit| exit.rank == Some(0));
    assert_eq!(
        (exits.len(), exits[0].attempt, exits[0].pid),
        (1, 3, pids[2])
    );
}

#[test]
fn the_next_attempt_knows_nothing_of_the_one_before_and_may_end_well() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let script = r#"[ -e $DIR/third ] && { echo step 7; exit 0; }
        [ -e $DIR/second ] && { touch $DIR/third; echo again >&2; exit 4; }
        touch $DIR/second; echo step 1; echo "ValueError: bad luck" >&2; printf "no newline" >&2; exit 3"#;
    client.start(alone(&rig, script));
    let status = until_failed(&mut client, 1);
    let failed = rank(&status, 0);
    assert_eq!(failed.exit, code(3));
    assert_eq!(failed.first_error.as_deref(), Some("ValueError: bad luck"));
    assert_eq!((failed.tail.len(), failed.first_step), (2, Some(1)));
    client.ok(restart(0, 2));
    let status = until_failed(&mut client, 2);
    let failed = rank(&status, 0);
    assert_eq!((failed.exit, failed.first_step), (code(4), None));
    assert_eq!(failed.tail, ["again"]);
    client.ok(restart(0, 3));
    let status = client.until_dead();
    let ended = rank(&status, 0);
    assert_eq!((ended.attempt, ended.exit), (3, code(0)));
    assert_eq!((ended.first_step, ended.last_step), (Some(7), Some(7)));
    assert_eq!((ended.tail.len(), ended.first_error.as_ref()), (0, None));
    assert_eq!(ended.log_bytes, "step 7\n".len() as u64);
    // Nothing has failed in the end.
    assert_eq!(
        (status.launcher.unwrap().exit, status.stop),
        (code(0), None)
    );
    let mut lines = said(&rig, 0);
    // Its two streams are read one after the other.
    lines[..3].sort();
    assert_eq!(
        lines,
        [
            "ValueError: bad luck",
            "no newline",
            "step 1",
            "again",
            "step 7"
        ]
    );
}

#[test]
fn what_a_failed_rank_leaves_in_its_process_group_is_killed() {
    let rig = Rig::new();
    let mut client = rig.ready();
    // The second process has a session of its own, and keeps the first attempt's output open.
    let script = r#"sleep 1000 & echo $! > $DIR/child
        setsid sh -c 'echo $$ > $DIR/away.tmp; mv $DIR/away.tmp $DIR/away; exec sleep 1000' &
        while [ ! -e $DIR/away ]; do sleep 0.01; done
        echo step 1; [ -e $DIR/second ] && exec sleep 1000; touch $DIR/second; printf "cut off"; exit 1"#;
    client.start(alone(&rig, script));
    until_failed(&mut client, 1);
    let away = Living::of(rig.pid_in("away"));
    if let Some(child) = Living::find(rig.pid_in("child")) {
        child.gone();
    }
    assert!(!away.is_gone());
    client.ok(restart(0, 2));
    until_attempt(&mut client, 2);
    client.stop(Duration::ZERO);
    client.until_dead();
    assert!(away.is_gone());
    let mut lines = said(&rig, 0);
    // On a slow machine the line that was cut off has an end of its own.
    lines.retain(|line| !line.is_empty());
    assert_eq!(lines, ["step 1", "cut off", "step 1"]);
}

#[test]
fn a_program_that_cannot_be_started_can_be_tried_again() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(StartSpec {
        restartable: true,
        ..rig.direct(&["/nowhere/python"])
    });
    for attempt in 1..=2 {
        let status = until_failed(&mut client, attempt);
        assert_eq!(rank(&status, 0).exit, code(127));
        assert_eq!(status.phase, Phase::Running);
        client.ok(restart(0, attempt + 1));
    }
}

#[test]
fn a_restart_that_makes_no_sense_is_refused() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let refuses = |client: &mut Client, (rank, attempt), kind, text: &str| {
        let refusal = client.refused(restart(rank, attempt));
        assert_eq!((refusal.kind, refusal.text.as_str()), (kind, text));
    };
    let (invalid, conflict, stopped) = (
        RefusalKind::Invalid,
        RefusalKind::Conflict,
        RefusalKind::Stopped,
    );
    refuses(&mut client, (0, 2), conflict, "nothing was started");
    let ends_well = "while [ ! -e end ]; do sleep 0.01; done";
    client.start(rig.members(vec![
        restartable(rig.member(0, 0, 1, LIVES)),
        rig.member(1, 1, 1, LIVES),
        restartable(rig.member(2, 2, 1, ends_well)),
    ]));
    let status = client.until_stepping(2);
    let outside = "rank: 7 is not one of 0..1, 1..2, 2..3";
    refuses(&mut client, (7, 2), invalid, outside);
    let stays = "rank: 1 was not started as restartable";
    refuses(&mut client, (1, 2), invalid, stays);
    let lives = "rank: 0 has not ended";
    refuses(&mut client, (0, 2), conflict, lives);
    let skips = "attempt: 3 is not the next one, which is 2";
    refuses(&mut client, (0, 3), invalid, skips);
    std::fs::write(rig.dir.join("of-2/end"), "").unwrap();
    client.until(|s| s.ranks.iter().any(|r| r.exit == code(0)));
    refuses(&mut client, (2, 2), conflict, "rank: 2 has ended well");
    Living::of(rank(&status, 0).pid).kill();
    until_failed(&mut client, 1);
    refuses(&mut client, (0, 3), invalid, skips);
    client.stop(LONG);
    let over = "this worker group ends or has ended, and starts nothing more";
    refuses(&mut client, (0, 2), stopped, over);
    client.ok(restart(0, 1));
    client.until_dead();
    refuses(&mut client, (0, 2), stopped, over);
}

#[test]
fn members_that_cannot_be_restarted_alone_are_refused() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let with = |change: fn(&mut StartSpec)| {
        let mut spec = alone(&rig, LIVES);
        change(&mut spec);
        spec
    };
    let lane = "restartable: is only possible in the direct lane, and not for MPI";
    let mpi = |spec: &mut StartSpec| {
        let part = r#"{"part":"lender","listen":"127.0.0.1:0","key":"k"}"#;
        spec.mpi = Some(serde_json::from_str::<MpiSpec>(part).unwrap());
    };
    let cases = [
        (with(|spec| spec.order = None), lane),
        (
            with(|spec| spec.order.as_mut().unwrap().lane = Lane::Fork),
            lane,
        ),
        (with(mpi), lane),
        (
            with(|spec| spec.ranks = 2),
            "restartable: a member must have one rank, and this one has 2",
        ),
        (
            rig.members(vec![
                rig.member(0, 0, 1, LIVES),
                restartable(rig.member(4, 1, 3, LIVES)),
            ]),
            "restartable: a member must have one rank, and member 4 has 3",
        ),
        (
            StartSpec {
                restartable: true,
                ..two(&rig, LIVES, LIVES)
            },
            "restartable: of several members, each says it for itself",
        ),
    ];
    for (spec, why) in cases {
        let refusal = client.refused(Command::Start(Box::new(spec)));
        assert_eq!(
            (refusal.kind, refusal.text.as_str()),
            (RefusalKind::Invalid, why)
        );
    }
}

#[test]
fn a_stop_ends_a_group_in_which_all_ranks_wait_for_a_restart() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(alone(&rig, "echo step 1; exit 3"));
    let attendant = client.until(|s| s.launcher.is_some()).launcher.unwrap().pid;
    until_failed(&mut client, 1);
    assert!(lives(attendant));
    client.stop(LONG);
    let status = client.until_dead();
    assert_eq!(rank(&status, 0).exit, code(3));
    // The attendant has ended by itself.
    assert_eq!(status.stop.unwrap().killed_us, None);
    assert_eq!(status.launcher.unwrap().exit, code(1));
}

/// Gets TERM, and ends well.
const SAVES: &str = "trap 'echo saved; exit 0' TERM; echo step 1; while :; do sleep 0.01; done";

#[test]
fn a_stop_that_comes_after_the_order_keeps_the_rank_from_starting() {
    // The attendant finds either both the order and the stop, or the stop once it has said hello.
    for greets in [false, true] {
        let rig = Rig::new();
        let mut client = rig.ready();
        client.start(two(&rig, LIVES, SAVES));
        let status = client.until_stepping(2);
        let attendant = Living::of(status.launcher.unwrap().pid);
        Living::of(status.ranks[0].pid).kill();
        until_failed(&mut client, 1);
        let runner = Living::of(rig.identity().pid);
        let fds = || {
            let fds = std::fs::read_dir(format!("/proc/{}/fd", attendant.pid));
            fds.unwrap().count()
        };
        let before = fds();
        attendant.signal(Signal::STOP);
        client.ok(restart(0, 2));
        if greets {
            runner.signal(Signal::STOP);
            attendant.signal(Signal::CONT);
            // It has a new connection and four ends of pipes.
            let until = Instant::now() + PATIENCE;
            while fds() < before + 5 {
                assert!(Instant::now() < until, "it never began");
                std::thread::yield_now();
            }
            client.send_raw(
                b"{\"v\":1,\"id\":99,\"cmd\":\"stop\",\"grace_ms\":600000,\"reason\":\"t\"}\n",
            );
            runner.signal(Signal::CONT);
        } else {
            client.stop(LONG);
            attendant.signal(Signal::CONT);
        }
        let status = client.until_dead();
        assert_eq!(
            (rank(&status, 0).attempt, rank(&status, 0).exit),
            (1, signal(9)),
            "{greets}"
        );
        assert_eq!(said(&rig, 0), ["I am 0 of 8", "step 1"], "{greets}");
        // The other had its grace.
        assert_eq!(rank(&status, 1).exit, code(0), "{greets}");
        assert_eq!(said(&rig, 1).last().unwrap(), "saved", "{greets}");
        assert_eq!(status.stop.unwrap().killed_us, None, "{greets}");
    }
}

#[test]
fn a_runner_that_is_killed_leaves_nothing_alive_and_the_exits_that_count() {
    for restarted in [false, true] {
        let rig = Rig::new();
        let mut client = rig.ready();
        client.start(two(&rig, LIVES, LIVES));
        let mut status = client.until_stepping(2);
        Living::of(rank(&status, 0).pid).kill();
        until_failed(&mut client, 1);
        if restarted {
            client.ok(restart(0, 2));
            status = until_attempt(&mut client, 2);
        }
        let mut all = vec![
            Living::of(rank(&status, 1).pid),
            Living::of(status.launcher.unwrap().pid),
        ];
        all.extend(Living::find(status.ranks[0].pid));
        assert_eq!(all.len(), 2 + usize::from(restarted));
        let identity = rig.identity();
        let keeper = Living::of(identity.keeper.as_ref().unwrap().pid);
        Living::of(identity.pid).kill();
        keeper.gone();
        assert!(all.iter().all(Living::is_gone));
        assert!(Swept::read(&rig.dir).unwrap().is_some());
        // A rank that was started again has no exit yet.
        let Record { exits, outcome, .. } = rig.record();
        let written: Vec<_> = exits.iter().map(|e| (e.rank, e.attempt, e.exit)).collect();
        let failed = (Some(0), 1, signal(9).unwrap());
        assert_eq!(written, if restarted { vec![] } else { vec![failed] });
        assert_eq!((Salvage::of(&rig.dir).exits, outcome), (exits, None));
    }
}

#[test]
fn a_rank_that_cannot_be_restarted_ends_all() {
    for waits in [false, true] {
        let rig = Rig::new();
        let mut client = rig.ready();
        client.start(two(&rig, LIVES, LIVES));
        let status = client.until_stepping(2);
        if waits {
            Living::of(rank(&status, 0).pid).kill();
            until_failed(&mut client, 1);
        }
        Living::of(rank(&status, 1).pid).kill();
        let status = client.until_dead();
        let exits: Vec<_> = status.ranks.iter().map(|r| r.exit).collect();
        assert_eq!(exits, [signal(if waits { 9 } else { 15 }), signal(9)]);
        assert_eq!(
            (status.launcher.unwrap().exit, status.stop),
            (code(1), None)
        );
    }
}
