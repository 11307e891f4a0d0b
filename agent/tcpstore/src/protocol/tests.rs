use proptest::prelude::*;

use super::*;
use crate::Limits;
use crate::meter::Meter;

fn small() -> Limits {
    Limits {
        key_bytes: 16,
        value_bytes: 32,
        request_keys: 4,
        request_bytes: 256,
        ..Limits::default()
    }
}

fn key(text: &str) -> Key {
    text.as_bytes().into()
}

/// Everything that the decoder makes of these pieces.
fn decode(pieces: &[&[u8]], limits: &Limits) -> (Vec<Request>, Option<Fault>) {
    let mut decoder = Decoder::default();
    let mut requests = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.next(limits) {
                Ok(Some(request)) => requests.push(request),
                Ok(None) => break,
                Err(fault) => return (requests, Some(fault)),
            }
        }
    }
    (requests, None)
}

/// A greeting, followed by these bytes.
fn greeted(bytes: &[u8]) -> Vec<u8> {
    [&[0, 0xce, 0xf7, 0x85, 0x3c], bytes].concat()
}

fn fault(bytes: &[u8]) -> Option<Fault> {
    let (requests, fault) = decode(&[bytes], &small());
    assert_eq!(requests, [], "nothing may be obeyed before the fault");
    fault
}

#[test]
fn requests_are_read_as_torch_writes_them() {
    let bytes = greeted(
        b"\x0d\x2a\0\0\0\
          \x01\x02\0\0\0\0\0\0\0/a\x01\0\0\0\0\0\0\0x\
          \x04\x05\0\0\0\0\0\0\0init/\xff\xff\xff\xff\xff\xff\xff\xff\
          \x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/a\
          \x0c\x07\
          \x12\x02\0\0\0\0\0\0\0/b\x04\0\0\0\0\0\0\0",
    );
    let want = [
        Request::Ping { nonce: 42 },
        Request::Set {
            key: key("/a"),
            value: b"x".to_vec(),
        },
        Request::Add {
            key: key("init/"),
            by: -1,
        },
        Request::Wait {
            keys: vec![key("/a")],
        },
        Request::CancelWait,
        Request::NumKeys,
        Request::Barrier {
            key: key("/b"),
            world_size: 4,
        },
    ];
    assert_eq!(decode(&[&bytes], &small()), (want.to_vec(), None));
}

#[test]
fn replies_are_written_as_torch_reads_them() {
    struct Flat(Vec<u8>);
    impl Sink for Flat {
        fn bytes(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }
        fn value(&mut self, value: Value) {
            self.0.extend_from_slice(&value);
        }
        fn key(&mut self, key: Key) {
            self.0.extend_from_slice(&key);
        }
    }
    let meter = Meter::default();
    let value = |text: &str| Value::new(text.as_bytes().to_vec(), &meter);
    for (reply, want) in [
        (Reply::Nonce(42), &b"\x2a\0\0\0"[..]),
        (Reply::Number(-2), b"\xfe\xff\xff\xff\xff\xff\xff\xff"),
        (Reply::Ready(true), b"\0"),
        (Reply::Ready(false), b"\x01"),
        (Reply::StopWaiting, b"\0"),
        (Reply::WaitCanceled, b"\x01"),
        (Reply::Value(Some(value("ab"))), b"\x02\0\0\0\0\0\0\0ab"),
        (Reply::Value(None), b"\0\0\0\0\0\0\0\0"),
        (Reply::Echo(b"c".to_vec()), b"\x01\0\0\0\0\0\0\0c"),
        (
            Reply::Values(vec![None, Some(value("d"))]),
            b"\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0d",
        ),
        (Reply::Popped(0, None), b"\0\0\0\0\0\0\0\0"),
        (
            Reply::Popped(2, Some(value("e"))),
            b"\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0e",
        ),
        (
            Reply::Keys(vec![key("/k")]),
            b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k",
        ),
    ] {
        let len = reply.wire_len();
        let shown = format!("{reply:?}");
        let mut out = Flat(Vec::new());
        reply.encode(&mut out);
        assert_eq!(out.0, want, "{shown}");
        assert_eq!(len, want.len(), "{shown}");
    }
}

#[test]
fn a_connection_begins_with_validate() {
    assert_eq!(fault(b"GET / HTTP/1.1\r\n"), Some(Fault::NotValidated));
    assert_eq!(
        fault(b"\x01"),
        Some(Fault::NotValidated),
        "early torch began with its first request"
    );
    assert_eq!(
        fault(b"\0\x01\x02\x03\x04"),
        Some(Fault::BadMagic { got: 0x0403_0201 })
    );
    assert_eq!(fault(b"\0\xce\xf7"), None, "more may come");
    assert_eq!(
        fault(&greeted(&hello())),
        Some(Fault::UnknownOpcode { opcode: 0 }),
        "only once"
    );
}

#[test]
fn an_opcode_torch_does_not_have_is_refused() {
    for opcode in 19..=255 {
        assert_eq!(
            fault(&greeted(&[opcode])),
            Some(Fault::UnknownOpcode { opcode })
        );
    }
}

#[test]
fn lengths_are_refused_before_their_bytes_come() {
    let opcode = Opcode::Set;
    let huge = u64::MAX.to_le_bytes();
    let set = |len: u64| greeted(&[&[1][..], &len.to_le_bytes()].concat());
    assert_eq!(fault(&set(16)), None);
    assert_eq!(
        fault(&set(17)),
        Some(Fault::KeyTooLong {
            opcode,
            bytes: 17,
            limit: 16
        })
    );
    assert_eq!(
        fault(&set(u64::MAX)),
        Some(Fault::KeyTooLong {
            opcode,
            bytes: u64::MAX,
            limit: 16
        })
    );

    let value = greeted(&[b"\x01\x01\0\0\0\0\0\0\0k", &huge[..]].concat());
    assert_eq!(
        fault(&value),
        Some(Fault::ValueTooLong {
            opcode,
            bytes: u64::MAX,
            limit: 32
        })
    );
    for opcode in [
        Opcode::Check,
        Opcode::Wait,
        Opcode::MultiGet,
        Opcode::MultiSet,
    ] {
        let many = greeted(&[&[opcode as u8][..], &huge].concat());
        assert_eq!(
            fault(&many),
            Some(Fault::TooManyKeys {
                opcode,
                keys: u64::MAX,
                limit: 4
            })
        );
    }

    let mut pairs = Vec::new();
    Request::MultiSet {
        pairs: vec![(key("k"), vec![0; 32]); 4],
    }
    .write_to(&mut pairs);
    let opcode = Opcode::MultiSet;
    assert_eq!(
        fault(&greeted(&pairs)),
        Some(Fault::RequestTooLong { opcode, limit: 256 })
    );
}

#[test]
fn a_fault_is_final_and_keeps_nothing() {
    let mut decoder = Decoder::default();
    decoder.push(&greeted(b"\xff"));
    assert!(decoder.next(&small()).is_err());
    let mut ping = Vec::new();
    Request::Ping { nonce: 1 }.write_to(&mut ping);
    decoder.push(&ping);
    assert_eq!(
        decoder.next(&small()),
        Err(Fault::UnknownOpcode { opcode: 255 })
    );
    assert_eq!(decoder.held(), 0);
}

fn any_key() -> impl Strategy<Value = Key> {
    prop::collection::vec(any::<u8>(), 0..=16).prop_map(Key::from)
}

fn any_value() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..=24)
}

fn any_request() -> impl Strategy<Value = Request> {
    let keys = || prop::collection::vec(any_key(), 0..=3);
    prop_oneof![
        (any_key(), any_value()).prop_map(|(key, value)| Request::Set { key, value }),
        (any_key(), any_value(), any_value()).prop_map(|(key, expected, desired)| {
            Request::CompareSet {
                key,
                expected,
                desired,
            }
        }),
        any_key().prop_map(|key| Request::Get { key }),
        (any_key(), any::<i64>()).prop_map(|(key, by)| Request::Add { key, by }),
        keys().prop_map(|keys| Request::Check { keys }),
        keys().prop_map(|keys| Request::Wait { keys }),
        Just(Request::NumKeys),
        any_key().prop_map(|key| Request::DeleteKey { key }),
        (any_key(), any_value()).prop_map(|(key, value)| Request::Append { key, value }),
        keys().prop_map(|keys| Request::MultiGet { keys }),
        prop::collection::vec((any_key(), any_value()), 0..=2)
            .prop_map(|pairs| Request::MultiSet { pairs }),
        Just(Request::CancelWait),
        any::<u32>().prop_map(|nonce| Request::Ping { nonce }),
        (any_key(), any_value()).prop_map(|(key, value)| Request::QueuePush { key, value }),
        any_key().prop_map(|key| Request::QueuePop { key }),
        any_key().prop_map(|key| Request::QueueLen { key }),
        Just(Request::ListKeys),
        (any_key(), any::<i64>())
            .prop_map(|(key, world_size)| Request::Barrier { key, world_size }),
    ]
}

/// Cuts `bytes` at these places. Each place is a share of 65,536.
fn cut<'a>(bytes: &'a [u8], places: &[u16]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = places
        .iter()
        .map(|&p| usize::from(p) * bytes.len() / 65_536)
        .collect();
    at.sort_unstable();
    let (mut pieces, mut rest, mut done) = (Vec::new(), bytes, 0);
    for place in at {
        let (piece, tail) = rest.split_at(place - done);
        pieces.push(piece);
        (rest, done) = (tail, place);
    }
    pieces.push(rest);
    pieces
}

proptest! {
    #[test]
    fn what_is_written_is_read_however_it_is_cut(
        requests in prop::collection::vec(any_request(), 0..12),
        places in prop::collection::vec(any::<u16>(), 0..20),
        bytewise in any::<bool>(),
    ) {
        let mut bytes = hello();
        requests.iter().for_each(|r| r.write_to(&mut bytes));
        let pieces = if bytewise { bytes.chunks(1).collect() } else { cut(&bytes, &places) };
        prop_assert_eq!(decode(&pieces, &small()), (requests, None));
    }

    #[test]
    fn any_bytes_give_the_same_result_however_they_are_cut_and_hold_no_more_than_came(
        tail in prop::collection::vec(prop_oneof![0u8..20, any::<u8>()], 0..400),
        places in prop::collection::vec(any::<u16>(), 0..20),
        valid in any::<bool>(),
    ) {
        let bytes = if valid { greeted(&tail) } else { tail };
        let whole = decode(&[&bytes], &small());
        prop_assert_eq!(decode(&cut(&bytes, &places), &small()), whole);

        let mut decoder = Decoder::default();
        for byte in &bytes {
            decoder.push(&[*byte]);
            while let Ok(Some(_)) = decoder.next(&small()) {}
            // One request, a field in the buffer besides it (vectors double), and the cost of each
            // key.
            prop_assert!(decoder.held() <= 256 + 8 * 48 + 2 * (32 + 8) + 64, "{} held", decoder.held());
        }
    }
}
