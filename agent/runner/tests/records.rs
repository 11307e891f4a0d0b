//! Reading a runner's directory after damage: torn and damaged files give what is certain, or a
//! clear error.
#![allow(clippy::unwrap_used)]

mod rig;

use muster_runner::{ReadError, Record, journal};
use rig::Rig;

/// A directory as a runner leaves it after three ranks.
fn finished() -> Rig {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(3, "exit $RANK"));
    client.until_dead();
    let runner = rig::Living::of(rig.identity().pid);
    client.ok(muster_runner::wire::Command::Release);
    runner.gone();
    rig
}

#[test]
fn exits_torn_at_every_byte_give_every_whole_line() {
    let rig = finished();
    let whole = rig.record();
    assert_eq!(whole.exits.len(), 4);
    let path = rig.dir.join("exits.jsonl");
    let text = std::fs::read(&path).unwrap();
    for cut in 0..=text.len() {
        std::fs::write(&path, &text[..cut]).unwrap();
        let lines = text[..cut].iter().filter(|b| **b == b'\n').count();
        assert_eq!(rig.record().exits, whole.exits[..lines], "cut at {cut}");
    }
}

#[test]
fn damage_is_named_with_file_offset_and_what_to_do() {
    let rig = finished();
    let write = |name: &str, bytes: &[u8]| {
        let path = rig.dir.join(name);
        let before = std::fs::read(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let error = Record::read(&rig.dir).unwrap_err().to_string();
        std::fs::write(&path, before).unwrap();
        error.replace(&format!("{}/", rig.dir.display()), "")
    };
    let todo = "make sure that nothing of this worker group runs, then move the directory away";
    let exits = std::fs::read(rig.dir.join("exits.jsonl")).unwrap();
    let second = exits.iter().position(|b| *b == b'\n').unwrap() + 1;
    let mut flipped = exits.clone();
    flipped[second + 20] ^= 4;
    let expected =
        format!("exits.jsonl: damaged at byte {second}: the checksum does not match; {todo}");
    assert_eq!(write("exits.jsonl", &flipped), expected);
    let no_end = "it is cut off, or was written by something else: its end is no checksum";
    let sealed = |text: &str| muster_sealed::seal(text.as_bytes().to_vec());
    let cases: [(&str, Vec<u8>, &str); 7] = [
        (
            "exits.jsonl",
            b"\n".to_vec(),
            "exits.jsonl: damaged at byte 0: the line does not begin with a checksum",
        ),
        (
            "runner.json",
            Vec::new(),
            &format!("runner.json: damaged at byte 0: {no_end}"),
        ),
        (
            "runner.json",
            b"{\"v\":1\n!".to_vec(),
            &format!("runner.json: damaged at byte 8: {no_end}"),
        ),
        (
            "outcome.json",
            b"{\"v\":2,\"sum\":\"00000000\"}\n".to_vec(),
            "outcome.json: damaged at byte 0: its checksum does not match",
        ),
        (
            "outcome.json",
            sealed("{\"v\":2}"),
            "outcome.json: damaged at byte 23: missing field `job` at line 1 column 24",
        ),
        (
            "hold.json",
            b"\x00".to_vec(),
            &format!("hold.json: damaged at byte 1: {no_end}"),
        ),
        (
            "hold.json",
            sealed(
                "{\"v\":1,\"job\":\"\",\"name\":\"\",\"namespace\":\"\",\"generation\":1,\"node\":\"\",\"node_rank\":0,\"nnodes\":1,\"world_size\":1}",
            ),
            "hold.json: damaged at byte 0: job: is empty",
        ),
    ];
    for (name, bytes, expected) in cases {
        assert_eq!(write(name, &bytes), format!("{expected}; {todo}"));
    }
    assert!(Record::read(&rig.dir).is_ok());
}

#[test]
fn a_directory_without_hold_json_is_no_runners() {
    let empty = tempfile::tempdir().unwrap();
    let error = Record::read(empty.path()).unwrap_err();
    assert!(matches!(error, ReadError::Missing { .. }));
    assert_eq!(
        error.to_string(),
        format!(
            "{}/hold.json: missing: this is not a runner's directory; remove the directory or restore the file",
            empty.path().display()
        )
    );
}

#[test]
fn before_the_runner_was_ready_nothing_was_started() {
    let rig = Rig::new();
    rig.write_hold();
    let record = rig.record();
    assert_eq!(
        (record.runner, record.exits.len(), record.outcome),
        (None, 0, None)
    );
}

#[test]
fn a_journal_of_a_newer_runner_with_more_fields_is_read() {
    let json = r#"{"v":1,"rank":0,"pid":1,"start_time":2,"started_us":3,"exit":{"code":0},"exited_us":4,"more":true}"#;
    let line = format!("{:08x} {json}\n", muster_sealed::crc32(json.as_bytes()));
    assert_eq!(journal::read(line.as_bytes()).unwrap().records.len(), 1);
}

/// Each file is cut at every byte, and every bit is flipped. The result is what was written, or an
/// error that names the file. The journal of exits is appended to, so a cut leaves the whole lines
/// before it.
#[test]
fn no_cut_and_no_flipped_bit_is_read_as_something_else() {
    let rig = finished();
    let whole = rig.record();
    let mut damages = 0;
    for name in ["hold.json", "runner.json", "outcome.json", "exits.jsonl"] {
        let path = rig.dir.join(name);
        let text = std::fs::read(&path).unwrap();
        let mut look = |damaged: &[u8], what: String| {
            std::fs::write(&path, damaged).unwrap();
            damages += 1;
            match Record::read(&rig.dir) {
                Err(error @ ReadError::Damaged { .. }) => {
                    let text = error.to_string();
                    assert!(
                        text.contains(name)
                            && text.contains("make sure that nothing of this worker group runs"),
                        "{what}: {text}"
                    );
                }
                Err(other) => panic!("{what}: {other:?}"),
                Ok(read) if name == "exits.jsonl" => {
                    assert_eq!(read.exits, whole.exits[..read.exits.len()], "{what}");
                    assert!(damaged.len() < text.len(), "{what}: a record is lost");
                }
                Ok(_) => panic!("{what}: read as if nothing were wrong"),
            }
        };
        for at in 0..text.len() {
            look(&text[..at], format!("{name} cut at {at}"));
            for bit in 0..8 {
                let mut flipped = text.clone();
                flipped[at] ^= 1 << bit;
                look(&flipped, format!("{name}: bit {bit} of byte {at}"));
            }
        }
        std::fs::write(&path, &text).unwrap();
    }
    assert!(damages > 10_000, "{damages}");
    assert_eq!(rig.record(), whole);
}
