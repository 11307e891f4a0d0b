//! A disk without room: a limit on the size of files fails in the middle of a write, as a full disk does.
#![allow(clippy::unwrap_used)]

mod rig;

use std::process::Command as Process;

use muster_runner::wire::{Command, Exit};
use muster_runner::{ReadError, Record, Salvage};
use rig::{RUNNER, Rig};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

#[test]
fn exits_that_found_no_room_are_written_once_there_is_some() {
    let mut rig = Rig::new();
    rig.hold.world_size = 12;
    rig.write_hold();
    // 1 KiB: six or seven lines of the journal. Ignored, the signal of the limit is an error.
    let script = "trap '' XFSZ; ulimit -Sf 1; exec \"$0\" hold --no-cgroup --dir \"$1\"";
    let output = Process::new("bash").args(["-c", script, RUNNER]).arg(&rig.dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut client = rig.client();
    client.start(rig.ranks(12, "if [ $RANK = 11 ]; then while [ ! -e $DIR/go ]; do sleep 0.01; done; fi; exit 3"));
    client.until(|s| s.ranks.iter().filter(|r| r.exit.is_some()).count() == 11);
    let runner = Pid::from_raw(rig.identity().pid).unwrap();
    prlimit(Some(runner), Resource::Fsize, Rlimit { current: None, maximum: None }).unwrap();
    std::fs::write(rig.dir.join("go"), "").unwrap();
    client.until_dead();
    client.ok(Command::Release);
    let record = rig.record();
    let mut ranks: Vec<_> = record.exits.iter().filter_map(|e| e.rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..12).collect::<Vec<u32>>());
    assert!(record.exits.iter().filter(|e| e.rank.is_some()).all(|e| e.exit == Exit::Code { code: 3 }));
    let log = std::fs::read_to_string(rig.dir.join("runner.log")).unwrap();
    assert!(log.contains("exits.jsonl: File too large"), "else this test shows nothing: {log}");
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
    assert!(matches!(Record::read(&rig.dir), Err(ReadError::Damaged { .. })));
    let kept = Salvage::of(&rig.dir);
    assert_eq!((kept.runner, kept.outcome), (whole.runner, whole.outcome));
    let others: Vec<_> = whole.exits.iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, exit)| exit.clone()).collect();
    assert_eq!(kept.exits, others);
}
