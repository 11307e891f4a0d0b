//! A disk without room. A limit on file sizes makes a write fail in the middle, as a full disk
//! does.
#![allow(clippy::unwrap_used)]

mod rig;

use std::process::Command as Process;

use muster_runner::wire::{Command, Exit, Phase};
use muster_runner::{ReadError, Record, Salvage};
use rig::{RUNNER, Rig, until_written};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

#[test]
fn exits_that_found_no_room_are_written_once_there_is_some() {
    let mut rig = Rig::new();
    rig.hold.world_size = 12;
    rig.write_hold();
    // 1 KiB holds six or seven lines of the journal. With the limit's signal ignored, a write fails
    // with an error.
    let script = "trap '' XFSZ; ulimit -Sf 1; exec \"$0\" hold --no-cgroup --dir \"$1\"";
    let output = Process::new("bash")
        .args(["-c", script, RUNNER])
        .arg(&rig.dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut client = rig.client();
    client.start(rig.ranks(
        12,
        "if [ $RANK = 11 ]; then while [ ! -e $DIR/go ]; do sleep 0.01; done; fi; exit 3",
    ));
    client.until(|s| s.ranks.iter().filter(|r| r.exit.is_some()).count() == 11);
    let runner = Pid::from_raw(rig.identity().pid).unwrap();
    prlimit(
        Some(runner),
        Resource::Fsize,
        Rlimit {
            current: None,
            maximum: None,
        },
    )
    .unwrap();
    std::fs::write(rig.dir.join("go"), "").unwrap();
    client.until_dead();
    client.ok(Command::Release);
    let record = rig.record();
    let mut ranks: Vec<_> = record.exits.iter().filter_map(|e| e.rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..12).collect::<Vec<u32>>());
    assert!(
        record
            .exits
            .iter()
            .filter(|e| e.rank.is_some())
            .all(|e| e.exit == Exit::Code { code: 3 })
    );
    let log = std::fs::read_to_string(rig.dir.join("runner.log")).unwrap();
    assert!(
        log.contains("exits.jsonl: File too large"),
        "else this test shows nothing: {log}"
    );
}

#[test]
fn what_is_whole_in_a_damaged_directory_is_kept() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(3, "exit 7"));
    client.until_dead();
    client.ok(Command::Release);
    let whole = rig.record();
    let path = rig.dir.join("exits.jsonl");
    let mut text = std::fs::read(&path).unwrap();
    let second = text.iter().position(|b| *b == b'\n').unwrap() + 1;
    text[second + 20] ^= 1;
    std::fs::write(&path, text).unwrap();
    assert!(matches!(
        Record::read(&rig.dir),
        Err(ReadError::Damaged { .. })
    ));
    let kept = Salvage::of(&rig.dir);
    assert_eq!((kept.runner, kept.outcome), (whole.runner, whole.outcome));
    let others: Vec<_> = whole
        .exits
        .iter()
        .enumerate()
        .filter(|(at, _)| *at != 1)
        .map(|(_, exit)| exit.clone())
        .collect();
    assert_eq!(kept.exits, others);
}

/// Neither the rank's log nor the runner's own log accepts more bytes.
#[test]
fn a_flood_that_finds_no_room_costs_lines_and_nothing_else() {
    const FLOOD: u64 = 470_000;
    let rig = Rig::new();
    rig.write_hold();
    std::fs::write(rig.dir.join("runner.log"), "x".repeat(64 << 10)).unwrap();
    let script = "trap '' XFSZ; ulimit -Sf 64; exec \"$0\" hold --no-cgroup --dir \"$1\"";
    let output = Process::new("bash")
        .args(["-c", script, RUNNER])
        .arg(&rig.dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut client = rig.client();
    let flood = "trap '' XFSZ; echo step 1; yes 'a line of output' | head -n 470000; echo > $DIR/through; \
                 while [ ! -e $DIR/go ]; do sleep 0.01; done; echo last words; exit 5";
    client.start(rig.ranks(1, flood));
    // Nobody waits for room: the worker has written everything, and the runner answers and keeps
    // the steps.
    until_written(&rig.dir.join("through"));
    let status = client.until(|s| s.ranks[0].log_bytes >= FLOOD * 17);
    assert_eq!(
        (status.phase, status.ranks[0].first_step),
        (Phase::Running, Some(1))
    );
    let runner = Pid::from_raw(rig.identity().pid).unwrap();
    prlimit(
        Some(runner),
        Resource::Fsize,
        Rlimit {
            current: None,
            maximum: None,
        },
    )
    .unwrap();
    std::fs::write(rig.dir.join("go"), "").unwrap();
    assert_eq!(
        client.until_dead().ranks[0].exit,
        Some(Exit::Code { code: 5 })
    );
    let log = rig.log("rank-0.log");
    let mut last = log.lines().rev();
    assert!(
        last.next().unwrap().ends_with(" stdout F last words"),
        "{}",
        log.len()
    );
    let note = last.next().unwrap();
    let missing = note.split_once("[muster] ").unwrap().1;
    assert!(
        missing.ends_with(" bytes of this log are missing here: File too large (os error 27)"),
        "{note}"
    );
    // The bytes as the log would hold them. A time and a stream name add 40 bytes to each line's
    // 17.
    let missing: u64 = missing.split(' ').next().unwrap().parse().unwrap();
    let kept = log.lines().count() as u64 - 3;
    // A line that is read in two parts gets a time for each part, whether it is written or counted.
    assert!(
        missing.abs_diff((FLOOD - kept) * 57) < 41 * 1_000,
        "every line is kept or counted: {missing}, {kept} kept"
    );
}
