//! The TCPStore's byte stream. It means the same in whatever pieces it arrives, it stays within its
//! limits, and every answer is as long as it says.

use muster_tcpstore::{
    ClientId, Key, Limits,
    protocol::{Decoder, Fault, Reply, Request, Sink, Value, hello},
    table::{Outcome, Table},
};

/// These limits are small, so that mutations reach them.
fn limits() -> Limits {
    Limits {
        clients: 4,
        keys: 16,
        key_bytes: 64,
        value_bytes: 256,
        request_keys: 8,
        request_bytes: 1_024,
        total_bytes: 4_096,
        pending_out_bytes: 512,
        ..Limits::default()
    }
}

struct Counted(usize);

impl Sink for Counted {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }

    fn value(&mut self, value: Value) {
        self.0 += value.len();
    }

    fn key(&mut self, key: Key) {
        self.0 += key.len();
    }
}

/// Everything that one decoder reads from these pieces.
fn decoded<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Request>, Option<Fault>) {
    let (limits, mut decoder, mut requests) = (limits(), Decoder::default(), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.next(&limits) {
                Ok(Some(request)) => requests.push(request),
                Ok(None) => break,
                Err(fault) => return (requests, Some(fault)),
            }
        }
    }
    (requests, None)
}

/// The first byte chooses the pieces in which the rest arrives.
pub(super) fn stream(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let (requests, fault) = decoded([bytes].into_iter());
    assert_eq!(
        decoded(bytes.chunks(1 + usize::from(*first) % 13)),
        (requests.clone(), fault),
        "in pieces it means something else"
    );

    let limits = limits();
    let mut table = Table::new(limits.clone());
    for (number, request) in requests.into_iter().enumerate() {
        let mut written = hello();
        request.write_to(&mut written);
        assert_eq!(
            decoded([written.as_slice()].into_iter()),
            (vec![request.clone()], None),
            "written again it means something else"
        );

        let (client, mut out) = (ClientId(number as u64 % 3), Vec::new());
        let denied = table.apply(client, request, &mut out).is_err();
        for outcome in out {
            if let Outcome::Reply(_, reply) = outcome {
                answered(reply, &limits);
            }
        }
        if denied {
            table.leave(client);
        }
        // The last request that is let in may be the one that reaches the limit.
        assert!(
            table.held() <= limits.total_bytes + limits.request_bytes + 1_024,
            "{} bytes are held",
            table.held()
        );
    }
}

fn answered(reply: Reply, limits: &Limits) {
    let said = reply.wire_len();
    let mut counted = Counted(0);
    reply.encode(&mut counted);
    assert_eq!(counted.0, said);
    assert!(said <= limits.pending_out_bytes.max(limits.total_bytes) + 64);
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let key = |name: &str| -> Key { name.as_bytes().into() };
    let set = Request::Set {
        key: key("/a"),
        value: b"1".to_vec(),
    };
    let conversations: [Vec<Request>; 4] = [
        vec![
            Request::Ping { nonce: 7 },
            set.clone(),
            Request::Get { key: key("/a") },
            Request::Add {
                key: key("/a"),
                by: -3,
            },
        ],
        vec![
            Request::Wait {
                keys: vec![key("/a"), key("/b")],
            },
            Request::MultiSet {
                pairs: vec![(key("/a"), vec![0; 40]), (key("/b"), Vec::new())],
            },
            Request::MultiGet {
                keys: vec![key("/a"), key("/b")],
            },
            Request::ListKeys,
            Request::DeleteKey { key: key("/a") },
        ],
        vec![
            Request::QueuePush {
                key: key("/q"),
                value: b"x".to_vec(),
            },
            Request::QueueLen { key: key("/q") },
            Request::QueuePop { key: key("/q") },
            Request::Barrier {
                key: key("/bar"),
                world_size: 2,
            },
            Request::CancelWait,
        ],
        vec![
            Request::CompareSet {
                key: key("/c"),
                expected: Vec::new(),
                desired: b"d".to_vec(),
            },
            Request::Append {
                key: key("/c"),
                value: b"e".to_vec(),
            },
            Request::Check {
                keys: vec![key("/c")],
            },
            Request::NumKeys,
        ],
    ];
    let written = |requests: &Vec<Request>| {
        let mut bytes = vec![3];
        bytes.extend(hello());
        requests
            .iter()
            .for_each(|request| request.write_to(&mut bytes));
        bytes
    };
    conversations.iter().map(written).collect()
}
