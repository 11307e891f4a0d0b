//! `muster logs` and `muster signal` beside a coordinator whose answers the test gives: what is printed
//! of ranks, byte for byte, and which exit code tells that something was not done.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod coordinator;

use std::sync::Mutex;

use coordinator::{Cardboard, muster, read, serve};
use muster_proto::v1::{LogsResponse, SignalResponse, SignalledRank};
use tonic::Status;

/// The only answer to a request.
fn answer<T>(answer: T) -> Mutex<std::collections::VecDeque<Result<T, Status>>> {
    Mutex::new([Ok(answer)].into())
}

/// Exit code, stdout, stderr and the requests that the coordinator received.
fn run(cardboard: Cardboard, args: &[&str]) -> (i32, String, String, Vec<String>) {
    let (_runtime, cardboard, address) = serve(cardboard);
    let (code, out, error) = read(muster(address, args).output().unwrap());
    let heard = cardboard.heard.lock().unwrap().clone();
    (code, out, error, heard)
}

#[test]
fn a_raw_log_is_printed_byte_for_byte_and_a_log_that_is_gone_is_no_success() {
    let awkward: [&[u8]; 3] = [
        b"T1 stdout F one\r",
        b"T2 stdout P \xff\xfe\0 caf\xc3",
        b"T3 stdout F:E \xa9",
    ];
    let part = LogsResponse {
        raw: awkward.map(<[u8]>::to_vec).to_vec(),
        generation: 1,
        ..LogsResponse::default()
    };
    let gone = LogsResponse {
        notice: "rank 0 of generation 1 on node-1: the logs of this generation were removed".into(),
        generation: 1,
        ended: true,
        ..LogsResponse::default()
    };
    let empty = LogsResponse {
        generation: 1,
        ended: true,
        ..LogsResponse::default()
    };
    let (exact, apart) = (
        b"one\r\n\xff\xfe\0 caf\xc3\xa9",
        b"one\r\n\xff\xfe\0 caf\xc3\xa9\n",
    );
    for (parts, args, code, bytes) in [
        (vec![part.clone()], &["--raw"][..], 0, exact.as_slice()),
        (vec![part.clone()], &[], 0, apart),
        (vec![part.clone(), gone.clone()], &["--raw"], 0, exact),
        (vec![gone.clone()], &[], 1, b""),
        (vec![gone.clone()], &["-f"], 1, b""),
        (vec![empty], &[], 0, b""),
    ] {
        let cardboard = Cardboard {
            logs: answer(parts.into_iter().map(Ok).collect()),
            ..Cardboard::default()
        };
        let args = [&["logs", "digits"], args].concat();
        let (_runtime, _cardboard, address) = serve(cardboard);
        let output = muster(address, &args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(output.stdout == bytes, "{args:?}: {:x?}", output.stdout);
        let says = error.contains("nothing of the log could be shown");
        assert_eq!(says, code == 1, "{args:?}: {error}");
    }
}

#[test]
fn a_signal_says_who_got_it_and_fails_if_anybody_did_not() {
    let sent = |error: &str| {
        let told = |rank, error: &str| SignalledRank {
            rank,
            node: "node-1".into(),
            error: error.into(),
        };
        let cardboard = Cardboard {
            signal: answer(SignalResponse {
                generation: 2,
                ranks: vec![told(0, ""), told(1, error)],
            }),
            ..Cardboard::default()
        };
        run(cardboard, &["signal", "digits", "usr1", "--node", "node-1"])
    };
    let (code, out, error, heard) = sent("");
    assert_eq!(
        (code, out.as_str()),
        (0, "job/digits: SIGUSR1 sent to 2 ranks\n"),
        "{error}"
    );
    assert!(error.contains("without a handler"), "{error}");
    assert_eq!(heard, ["signal 10 rank None node \"node-1\""]);
    let (code, out, error, _) = sent("rank 1 has ended");
    assert_eq!(
        (code, out.as_str()),
        (1, "job/digits: SIGUSR1 sent to rank 0 on node-1\n")
    );
    assert!(
        error.contains("error: rank 1 on node-1: not sent: rank 1 has ended"),
        "{error}"
    );
    let (code, _, error, heard) = run(Cardboard::default(), &["signal", "digits", "USR3"]);
    assert_eq!((code, heard.len()), (2, 0), "{error}");
}
