//! Bytes that are not a message, on both sockets. The runner gives an exact answer, closes that
//! connection and serves all others.
#![allow(clippy::unwrap_used)]

mod rig;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use muster_runner::wire::{Command, MAX_REQUEST, Phase};
use muster_runner::{Folder, socket};
use rig::{PATIENCE, Rig};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

#[test]
fn control_socket() {
    let rig = Rig::new();
    let mut good = rig.ready();
    let long = format!("{}\n", "x".repeat(1 << 20));
    let longer = "x".repeat(MAX_REQUEST + 20_000);
    let too_long = format!("a request is longer than {MAX_REQUEST} bytes");
    let deep = format!("{}\n", "[".repeat(100_000));
    // (bytes sent, kind, text, whether the connection is closed afterwards)
    let cases: [(&[u8], &str, &str, bool); 21] = [
        (
            b"\n",
            "malformed",
            "not a JSON line: EOF while parsing a value at line 1 column 0",
            true,
        ),
        (
            b"hello\n",
            "malformed",
            "not a JSON line: expected value at line 1 column 1",
            true,
        ),
        (
            b"\xff\xfe\x00\n",
            "malformed",
            "not a JSON line: expected value at line 1 column 1",
            true,
        ),
        (
            b"GET / HTTP/1.1\r\n",
            "malformed",
            "not a JSON line: expected value at line 1 column 1",
            true,
        ),
        (
            b"{\"v\":1\n",
            "malformed",
            "not a JSON line: EOF while parsing an object at line 1 column 6",
            true,
        ),
        (b"[1]\n", "malformed", "a request is a JSON object", true),
        (b"null\n", "malformed", "a request is a JSON object", true),
        (
            b"{}\n",
            "malformed",
            "v: the protocol version is missing",
            true,
        ),
        (
            b"{\"v\":\"1\",\"cmd\":\"status\"}\n",
            "malformed",
            "v: the protocol version is missing",
            true,
        ),
        (
            b"{\"v\":2,\"cmd\":\"status\"}\n",
            "version",
            "v: 2 is not a version this runner speaks (1)",
            true,
        ),
        (
            b"{\"v\":1}\n",
            "malformed",
            "cmd: the command is missing",
            true,
        ),
        (
            b"{\"v\":1,\"cmd\":7}\n",
            "malformed",
            "cmd: the command is missing",
            true,
        ),
        (
            b"{\"v\":1,\"cmd\":\"fly\"}\n",
            "unknown_command",
            "cmd: \"fly\" is not a command of this runner",
            false,
        ),
        (
            b"{\"v\":1,\"cmd\":\"stop\"}\n",
            "malformed",
            "stop: missing field `grace_ms`",
            true,
        ),
        (
            b"{\"v\":1,\"cmd\":\"stop\",\"grace_ms\":-1,\"reason\":\"\"}\n",
            "malformed",
            "stop: invalid value: integer `-1`, expected u64",
            true,
        ),
        (
            b"{\"v\":1,\"cmd\":\"stop\",\"grace_ms\":99999999999,\"reason\":\"\"}\n",
            "invalid",
            "grace_ms: 99999999999 is above 2678400000",
            false,
        ),
        (
            b"{\"v\":1,\"cmd\":\"restart\",\"rank\":0}\n",
            "malformed",
            "restart: missing field `attempt`",
            true,
        ),
        (
            b"{\"v\":1,\"cmd\":\"restart\",\"rank\":0,\"attempt\":2}\n",
            "conflict",
            "nothing was started",
            false,
        ),
        (
            deep.as_bytes(),
            "malformed",
            "not a JSON line: recursion limit exceeded at line 1 column 128",
            true,
        ),
        (
            long.as_bytes(),
            "malformed",
            "not a JSON line: expected value at line 1 column 1",
            true,
        ),
        (longer.as_bytes(), "malformed", &too_long, true),
    ];
    for (bytes, kind, text, closed) in cases {
        let mut client = rig.client();
        client.send_raw(bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]);
        let reply: serde_json::Value =
            serde_json::from_str(&client.line().expect("an answer")).unwrap();
        assert_eq!(
            (&reply["error"]["kind"], &reply["error"]["text"]),
            (&kind.into(), &text.into()),
            "{shown}"
        );
        if closed {
            assert_eq!(client.line(), None, "{shown}");
        } else {
            assert_eq!(client.status().phase, Phase::Holding, "{shown}");
        }
        assert_eq!(good.status().phase, Phase::Holding, "{shown}");
    }
    let refusal = good.refused(Command::StoreSet {
        key: "k".into(),
        value: "v".into(),
    });
    assert_eq!(refusal.text, "this runner serves no TCPStore");
    let refusal = good.refused(Command::CompleteExitBarrier { node_rank: 0 });
    assert_eq!(refusal.text, "this runner serves no TCPStore");
}

#[test]
fn requests_in_pieces_and_in_heaps_are_all_answered() {
    let rig = Rig::new();
    let mut client = rig.ready();
    for byte in b"{\"v\":1,\"id\":5,\"cmd\":\"subscribe\",\"new_field\":[1]}\n" {
        client.send_raw(&[*byte]);
    }
    assert_eq!(client.line().unwrap(), "{\"v\":1,\"id\":5,\"ok\":true}\n");
    let mut other = rig.client();
    let heap: String = (0..300)
        .map(|id| format!("{{\"v\":1,\"id\":{id},\"cmd\":\"status\"}}\n"))
        .collect();
    other.send_raw(heap.as_bytes());
    for id in 0..300 {
        assert!(
            other
                .line()
                .unwrap()
                .starts_with(&format!("{{\"v\":1,\"id\":{id},\"status\":"))
        );
    }
}

#[test]
fn a_client_that_never_reads_holds_up_nobody() {
    let rig = Rig::new();
    let mut good = rig.ready();
    let mut deaf = connected(&rig, socket::CONTROL);
    deaf.set_nonblocking(true).unwrap();
    let line = b"{\"v\":1,\"id\":1,\"cmd\":\"status\"}\n".repeat(1000);
    // Write until the runner stops reading from it.
    while deaf.write(&line).is_ok() {}
    let mut subscriber = connected(&rig, socket::CONTROL);
    subscriber
        .write_all(b"{\"v\":1,\"cmd\":\"subscribe\"}\n")
        .unwrap();
    good.start(rig.ranks(
        1,
        "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo step $i; done",
    ));
    good.until_dead();
    let status = std::fs::read_to_string(format!("/proc/{}/status", rig.identity().pid)).unwrap();
    let peak = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 16 << 10, "{peak} KiB");
}

fn connected(rig: &Rig, name: &str) -> UnixStream {
    let stream = { Folder::of_run(&rig.dir) }
        .and_then(|dir| dir.connect(name, PATIENCE))
        .unwrap();
    stream.set_read_timeout(Some(rig::PATIENCE)).unwrap();
    stream
}

/// Sends bytes with descriptors and returns every answer until the runner closes.
fn say(rig: &Rig, bytes: &[u8], fds: &[OwnedFd]) -> String {
    let mut stream = connected(rig, socket::RANKS);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let sent = rustix::net::sendmsg(
        &stream,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )
    .unwrap();
    // The rest fits only while the runner reads. It closes early when a line is too long.
    let _ = stream.write_all(&bytes[sent..]);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(e) if e.kind() != std::io::ErrorKind::ConnectionReset => panic!("not closed: {e}"),
        _ => {}
    }
    String::from_utf8(answer).unwrap()
}

fn pipes(n: usize) -> Vec<OwnedFd> {
    (0..n).map(|_| rustix::pipe::pipe().unwrap().0).collect()
}

#[test]
fn ranks_socket() {
    let rig = Rig::new();
    let mut good = rig.ready();
    let me = std::process::id();
    let hello = |rank: u32, local: u32, pid: u32| {
        format!(
            "{{\"say\":\"hello\",\"v\":1,\"rank\":{rank},\"local_rank\":{local},\"pid\":{pid}}}\n"
        )
    };
    let refused = |text: &str| format!("{{\"error\":{text:?}}}\n");
    assert_eq!(
        say(&rig, hello(0, 0, me).as_bytes(), &pipes(2)),
        refused("hello: nothing was started")
    );

    good.start(rig.ranks(2, "echo step 1; while :; do sleep 1000; done"));
    good.until_stepping(2);
    let files = || {
        vec![
            std::fs::File::open("/dev/null").unwrap().into(),
            std::fs::File::open("/dev/null").unwrap().into(),
        ]
    };
    let cases: [(String, Vec<OwnedFd>, String); 14] = [
        ("\n".into(), vec![], "not a line of a shim: EOF while parsing a value at line 1 column 0".into()),
        ("what\n".into(), vec![], "not a line of a shim: expected value at line 1 column 1".into()),
        ("{}\n".into(), vec![], "not a line of a shim: missing field `say` at line 1 column 2".into()),
        (
            "{\"say\":\"bye\"}\n".into(),
            vec![],
            "not a line of a shim: unknown variant `bye`, expected one of `hello`, `started`, `exited` at line 1 column 12".into(),
        ),
        ("x".repeat(8192), vec![], "a line is longer than 4096 bytes".into()),
        (hello(0, 0, me).replace("\"v\":1", "\"v\":9"), vec![], "hello: v: 9 is not a version this runner speaks".into()),
        (hello(2, 0, me), pipes(2), "hello: rank 2 is not one of 0..2".into()),
        (hello(1, 0, me), pipes(2), "hello: rank 1 cannot have local rank 0".into()),
        (hello(0, 0, 1), pipes(2), format!("hello: pid 1 is not the peer, which is {me}")),
        (hello(0, 0, me), pipes(1), "hello: two descriptors are missing".into()),
        (hello(0, 0, me), pipes(3), "more than two descriptors".into()),
        (hello(0, 0, me), files(), "hello: the descriptors are not pipes".into()),
        (hello(0, 0, me), pipes(2), format!("hello: pid {me} is not of this worker group")),
        ("{\"say\":\"exited\",\"exit\":{\"code\":0},\"at_us\":1}\n".into(), vec![], "exited: not now".into()),
    ];
    for (bytes, fds, text) in cases {
        assert_eq!(say(&rig, bytes.as_bytes(), &fds), refused(&text), "{bytes}");
    }
    let status = good.status();
    assert!(status.ranks.iter().all(|r| r.exit.is_none()));
    good.stop(Duration::ZERO);
    good.until_dead();
}

#[test]
fn a_rank_cannot_come_twice() {
    let rig = Rig::new();
    let mut client = rig.ready();
    // The first rank starts the second shim, so the shim belongs to the group.
    client.start(rig.ranks(
        1,
        "MUSTER_SHIM_DIR=$DIR MUSTER_SHIM_PROGRAM=/bin/true $SHIM 2> $DIR/second; echo step $?; while :; do sleep 1000; done",
    ));
    let status = client.until_stepping(1);
    assert_eq!(status.ranks[0].last_step, Some(1));
    let said = std::fs::read_to_string(rig.dir.join("second")).unwrap();
    assert_eq!(
        said,
        "muster-shim: refused by the runner: hello: rank 0 has been here before\n"
    );
}

#[test]
fn a_shim_without_its_place_says_what_is_missing() {
    let rig = Rig::new();
    let _client = rig.ready();
    let run = |env: &[(&str, &str)]| {
        let mut command = std::process::Command::new(rig.dir.join("muster-shim"));
        let output = command
            .arg("true")
            .env_clear()
            .envs(env.iter().copied())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let ranks = [("RANK", "0"), ("LOCAL_RANK", "0")];
    assert_eq!(run(&[]), "muster-shim: RANK is not set\n");
    assert_eq!(
        run(&[("RANK", "x")]),
        "muster-shim: RANK=\"x\" is not a rank\n"
    );
    assert_eq!(
        run(&[("RANK", "0")]),
        "muster-shim: LOCAL_RANK is not set\n"
    );
    assert_eq!(run(&ranks), "muster-shim: MUSTER_SHIM_DIR is not set\n");
    let nowhere = [&ranks[..], &[("MUSTER_SHIM_DIR", "/nowhere")]].concat();
    assert_eq!(
        run(&nowhere),
        "muster-shim: /nowhere/ranks.sock: No such file or directory (os error 2)\n"
    );
    let args = [&nowhere[..], &[("MUSTER_SHIM_ARGS", "-u")]].concat();
    assert_eq!(
        run(&args),
        "muster-shim: MUSTER_SHIM_ARGS: invalid number at line 1 column 2\n"
    );
}
