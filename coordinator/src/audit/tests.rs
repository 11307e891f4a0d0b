use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::symlink,
};

use muster_rpc::Identity;
use tonic::Code;

use super::{writer::Work, *};

const MINUTE: Duration = Duration::from_secs(60);

/// A trail whose files hold some ten entries each.
fn options(folder: &Path) -> Options {
    Options {
        file_bytes: 1_500,
        ..Options::of(folder)
    }
}

fn entry(who: &str, object: &str, code: Code) -> Entry {
    Entry::of_call(
        who.into(),
        "10.0.0.1:5".into(),
        "cancel",
        object.into(),
        code,
    )
}

/// An entry that is told from others by its time.
fn numbered(at_us: u64) -> Entry {
    Entry {
        at_us,
        ..entry("user/ann", "job/a/b", Code::Ok)
    }
}

fn numbers(entries: &[Entry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.at_us).collect()
}

#[test]
fn entries_come_back_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::new(&options(folder.path()));
    assert_eq!(files.read(0, 9).unwrap(), [], "nothing was ever written");
    let written = [
        entry("user/ann", "job/a/b", Code::Ok),
        entry("user 7", "", Code::NotFound),
        Entry::of_lost(3),
    ];
    files.append(&written).unwrap();
    assert_eq!(files.read(0, usize::MAX).unwrap(), written);
    let text = fs::read_to_string(folder.path().join("audit/audit.jsonl")).unwrap();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert!(first["time"].as_str().unwrap().ends_with('Z'), "{first}");
    assert_eq!(first["result"], "Allowed");
    assert!(first.get("code").is_none() && first.get("count").is_none());
}

#[test]
fn two_files_hold_the_newest_entries_and_never_more_than_their_bound() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let files = Files::new(&options);
    for number in 1..=100 {
        files.append(&[numbered(number)]).unwrap();
        for name in ["audit.jsonl", "audit.1.jsonl"] {
            let length = fs::metadata(options.folder.join(name)).map_or(0, |data| data.len());
            assert!(length <= options.file_bytes, "{name} has {length} bytes");
        }
    }
    let kept = numbers(&files.read(0, usize::MAX).unwrap());
    assert!(kept.len() > 8, "{kept:?}");
    let expected: Vec<u64> = (101 - kept.len() as u64..=100).collect();
    assert_eq!(kept, expected, "the newest, oldest first, none missing");
    assert_eq!(numbers(&files.read(0, 2).unwrap()), [99, 100]);
    assert_eq!(numbers(&files.read(98, 9).unwrap()), [98, 99, 100]);
    assert_eq!(files.read(0, 0).unwrap(), []);
}

#[test]
fn a_line_that_a_crash_cut_short_costs_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let files = Files::new(&options);
    files.append(&[numbered(1)]).unwrap();
    let path = options.folder.join("audit.jsonl");
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(br#"{"time":"2026-11-21T11:3"#).unwrap();
    assert_eq!(numbers(&files.read(0, 9).unwrap()), [1]);
    files.append(&[numbered(2)]).unwrap();
    file.write_all(&[b'x'; 20_000]).unwrap();
    files.append(&[numbered(3)]).unwrap();
    assert_eq!(numbers(&files.read(0, 9).unwrap()), [1, 2, 3]);
}

fn refusals() -> (Refusals, Instant) {
    (Refusals::new(MINUTE, 10 * MINUTE), Instant::now())
}

#[test]
fn strangers_are_counted_together_in_one_entry_a_minute() {
    let (mut refusals, now) = refusals();
    for identity in [Identity::Anonymous, Identity::Unknown] {
        for number in 0..1_000 {
            let stranger = entry(
                &identity.to_string(),
                &number.to_string(),
                Code::Unauthenticated,
            );
            assert!(!refusals.note(now, &stranger));
        }
    }
    assert_eq!(refusals.take(Some(now)), [], "the minute is not over");
    let [counted] = &refusals.take(Some(now + MINUTE))[..] else {
        panic!("one entry");
    };
    assert_eq!((counted.who.as_str(), counted.count), ("anonymous", 2_000));
    assert_eq!(
        (counted.what.as_str(), counted.object.as_str()),
        ("calls", "")
    );
    assert_eq!(refusals.take(None), [], "and only once");
}

#[test]
fn calls_alike_of_one_caller_are_counted_after_the_first() {
    let (mut refusals, now) = refusals();
    let denied = entry("host/n1", "", Code::PermissionDenied);
    let other = entry("host/n1", "node/n2", Code::PermissionDenied);
    assert!(refusals.note(now, &denied) && refusals.note(now, &other));
    for _ in 0..200 {
        assert!(!refusals.note(now, &denied));
    }
    assert!(refusals.note(now, &entry("host/n2", "", Code::PermissionDenied)));
    let counted = refusals.take(Some(now + 10 * MINUTE));
    assert_eq!(
        counted,
        [Entry {
            count: 200,
            ..denied.clone()
        }]
    );
    assert!(refusals.note(now + 10 * MINUTE, &denied), "the next period");
}

#[test]
fn who_is_refused_many_different_things_fills_nothing() {
    let (mut refusals, now) = refusals();
    let tries =
        (0..1_000).map(|number| entry("user/eve", &format!("job/a/{number}"), Code::NotFound));
    let written = tries.filter(|entry| refusals.note(now, entry)).count();
    assert_eq!(written, 20);
    for number in 0..5_000 {
        refusals.note(
            now,
            &entry(&format!("host/n{number}"), "", Code::PermissionDenied),
        );
    }
    let counted = refusals.take(None);
    let counted: Vec<(&str, u64)> = (counted.iter())
        .map(|entry| (entry.who.as_str(), entry.count))
        .collect();
    // Eve and 999 hosts are known by name.
    assert_eq!(counted, [("other callers", 4_001), ("user/eve", 980)]);
}

#[test]
fn what_finds_no_room_or_no_disk_is_counted_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let (trail, waiting) = Trail::new(&options);
    for number in 0..WAITING_MAX as u64 + 3 {
        trail.record(numbered(number));
    }
    assert_eq!(waiting.try_iter().count(), WAITING_MAX);
    let mut work = Work {
        files: Files::new(&options),
        shared: trail.shared.clone(),
        failing: false,
    };
    // A full disk.
    fs::create_dir(&options.folder).unwrap();
    let path = options.folder.join("audit.jsonl");
    symlink("/dev/full", &path).unwrap();
    work.write(vec![numbered(1), numbered(2)]);
    assert!(work.failing);
    work.write(Vec::new());
    work.write(vec![numbered(3)]);
    fs::remove_file(&path).unwrap();
    work.write(vec![numbered(4)]);
    let found = work.files.read(0, 9).unwrap();
    assert_eq!(found[0], numbered(4));
    assert_eq!((found[1].result, found[1].count), (Outcome::Lost, 6));
    work.write(Vec::new());
    assert_eq!(work.files.read(0, 9).unwrap().len(), 2, "it is told once");
}
