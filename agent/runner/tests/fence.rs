//! The dead-man's switch with real processes: workers stop when no news of the coordinator comes,
//! with or without an agent.
#![allow(clippy::unwrap_used)]

mod rig;

use std::time::{Duration, Instant};

use muster_runner::wire::{Command, Phase, RefusalKind, Status};
use rig::{Client, Living, PATIENCE, Rig, lives};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

const FENCE: Duration = Duration::from_secs(60);
const WORKER: &str = "echo step 1; while :; do sleep 1000; done";

fn boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The runner of a fenced job, and a client of it.
fn fenced() -> (Rig, Client) {
    let mut rig = Rig::new();
    rig.hold.fence_after_ms = Some(FENCE.as_millis() as u64);
    rig.hold.term_grace_ms = 200;
    let client = rig.ready();
    (rig, client)
}

/// Says that the coordinator was heard at such a time that `left` is left of the fence. Returns
/// when the fence is due.
fn renew(client: &mut Client, left: Duration) -> Duration {
    let due = boot() + left;
    client.ok(Command::Renew {
        heard_us: (due - FENCE).as_micros() as u64,
    });
    due
}

fn is_fenced(status: &Status) -> bool {
    status.stop.as_ref().is_some_and(|stop| stop.fenced)
}

#[test]
fn who_hears_nothing_more_dies_although_no_agent_is_there() {
    let (rig, mut client) = fenced();
    let due = renew(&mut client, Duration::from_secs(3));
    client.start(rig.ranks(2, &format!("trap '' TERM; {WORKER}")));
    let workers: Vec<Living> = client
        .until_stepping(2)
        .ranks
        .iter()
        .map(|rank| Living::of(rank.pid))
        .collect();
    drop(client);
    workers.iter().for_each(Living::gone);
    assert!(boot() >= due, "not before its time");
    let until = Instant::now() + PATIENCE;
    let outcome = loop {
        if let Some(outcome) = rig.record().outcome {
            break outcome;
        }
        assert!(Instant::now() < until, "no outcome was written");
        std::thread::yield_now();
    };
    assert!(
        is_fenced(&outcome) && outcome.phase == Phase::Dead,
        "{outcome:?}"
    );
    assert_eq!(outcome.dead.unwrap().survivors, 0);
}

#[test]
fn who_stood_still_beyond_its_grace_has_had_it() {
    let (rig, mut client) = fenced();
    let due = renew(&mut client, Duration::from_secs(4));
    client.start(rig.ranks(1, &format!("trap '' TERM; {WORKER}")));
    let worker = Living::of(client.until_stepping(1).ranks[0].pid);
    drop(client);
    let runner = Living::of(rig.identity().pid);
    runner.signal(Signal::STOP);
    while boot() < due + Duration::from_millis(rig.hold.term_grace_ms) {
        std::thread::yield_now();
    }
    runner.signal(Signal::CONT);
    worker.gone();
    let until = Instant::now() + PATIENCE;
    let stop = loop {
        if let Some(outcome) = rig.record().outcome {
            break outcome.stop.unwrap();
        }
        assert!(Instant::now() < until, "no outcome was written");
        std::thread::yield_now();
    };
    assert!(stop.fenced && stop.grace_ms == 0, "{stop:?}");
}

#[test]
fn who_is_told_in_time_lives_whoever_tells() {
    let (rig, mut client) = fenced();
    let first = renew(&mut client, Duration::from_secs(3));
    client.start(rig.ranks(1, WORKER));
    let worker = client.until_stepping(1).ranks[0].pid;
    drop(client);
    let mut client = rig.client();
    renew(&mut client, FENCE);
    // A late message of an earlier agent takes no time away.
    renew(&mut client, Duration::from_secs(1));
    while boot() < first + Duration::from_millis(500) {
        assert_eq!(client.status().phase, Phase::Running);
    }
    assert!(lives(worker));
    client.stop(Duration::ZERO);
    assert!(!is_fenced(&client.until_dead()), "this stop was asked for");
}

#[test]
fn nothing_is_started_on_an_old_word_or_none() {
    for heard in [None, Some(Duration::ZERO)] {
        let (rig, mut client) = fenced();
        if let Some(left) = heard {
            renew(&mut client, left);
        }
        assert_eq!(
            client
                .refused(Command::Start(Box::new(rig.ranks(1, WORKER))))
                .kind,
            RefusalKind::Stopped
        );
        let status = client.until_dead();
        assert!(
            is_fenced(&status) && status.launcher.is_none(),
            "{status:?}"
        );
    }
}

#[test]
fn a_group_that_failed_by_itself_is_not_called_fenced() {
    let (rig, mut client) = fenced();
    renew(&mut client, Duration::from_secs(3));
    client.start(rig.ranks(
        2,
        "if [ $RANK = 1 ]; then exit 3; fi; while :; do sleep 1000; done",
    ));
    let status = client.until(|status| status.phase == Phase::Dead);
    assert!(status.stop.is_some() && !is_fenced(&status), "{status:?}");
}
