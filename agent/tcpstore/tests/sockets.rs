//! The store over real sockets: ordinary use by many clients, and every mistake a client can make.

mod wire;

use std::net::Shutdown;
use std::time::Duration;

use muster_tcpstore::{Closed, Event, Limits, Sensor};
use wire::{Client, PATIENCE, Served, field};

fn served() -> Served {
    Served::new(Limits::default())
}

#[test]
fn a_wait_ends_when_the_key_comes() {
    let served = served();
    let (mut a, mut b) = (Client::new(served.addr), Client::new(served.addr));
    a.ping();
    a.start_wait(&[b"/k"]);
    let (client, keys) = served.event(|e| match e {
        Event::Waiting { client, keys } => Some((*client, keys.clone())),
        _ => None,
    });
    assert_eq!(keys, [(*b"/k").into()]);
    let waiting = served.with(|store| {
        store
            .waiting()
            .map(|(c, keys)| (c, keys.len()))
            .collect::<Vec<_>>()
    });
    assert_eq!(waiting, [(client, 1)]);

    b.set(b"/k", b"value");
    a.stop_waiting();
    assert_eq!(a.get(b"/k"), b"value");
    assert_eq!(
        served.with(|store| store.get(b"/k").map(<[u8]>::to_vec)),
        Some(b"value".to_vec())
    );
}

#[test]
fn the_host_writes_and_wakes_without_a_turn() {
    let served = served();
    let mut client = Client::new(served.addr);
    client.start_wait(&[b"/last_member"]);
    served.event(|e| matches!(e, Event::Waiting { .. }).then_some(()));
    served.with(|store| store.set(b"/last_member", b"1"));
    client.stop_waiting();
    assert_eq!(served.with(|store| store.add(b"/n", 3)), 3);
    assert_eq!(client.add(b"/n", 1), 4);
}

#[test]
fn requests_may_come_byte_by_byte_and_many_at_once() {
    let served = served();
    let mut client = Client::silent(served.addr);
    for byte in [
        &[0, 0xce, 0xf7, 0x85, 0x3c, 4][..],
        &field(b"n"),
        &5i64.to_le_bytes(),
    ]
    .concat()
    {
        client.send(&[byte]);
    }
    assert_eq!(client.number(), 5);

    let one = [&[4][..], &field(b"n"), &1i64.to_le_bytes()].concat();
    client.send(&one.repeat(10_000));
    for n in 6..10_006 {
        assert_eq!(client.number(), n);
    }
}

#[test]
fn a_request_is_obeyed_though_its_client_leaves_at_once() {
    let served = served();
    let mut client = Client::new(served.addr);
    client.set(b"/k", b"v");
    drop(client);
    let why = served.event(|e| match e {
        Event::Closed { why, .. } => Some(*why),
        _ => None,
    });
    assert_eq!(why, Closed::ByPeer);
    assert_eq!(
        served.with(|store| (store.get(b"/k").is_some(), store.clients())),
        (true, 0)
    );
}

#[test]
fn what_is_not_the_protocol_is_refused_by_reason() {
    let served = served();
    let huge = u64::MAX.to_le_bytes();
    let mut fields = Vec::new();
    for _ in 0..9 {
        fields.extend(field(b"k"));
        fields.extend((8u64 << 20).to_le_bytes());
        fields.extend(vec![0; 8 << 20]);
    }
    let greeting = [0u8, 0xce, 0xf7, 0x85, 0x3c];
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        (
            "http",
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            "not a torch client: it did not begin with VALIDATE",
        ),
        (
            "tls",
            vec![0x16, 3, 1, 0, 0],
            "not a torch client: it did not begin with VALIDATE",
        ),
        (
            "early torch",
            [&[3][..], &field(b"init/")].concat(),
            "not a torch client: it did not begin with VALIDATE",
        ),
        (
            "magic",
            vec![0, 1, 2, 3, 4],
            "not a torch client: magic number 0x04030201",
        ),
        ("unknown", vec![99], "unknown opcode 99"),
        ("validate twice", greeting.to_vec(), "unknown opcode 0"),
        (
            "key",
            [&[3][..], &huge].concat(),
            "Get: a key of 18446744073709551615 bytes, at most 8192",
        ),
        (
            "key by one",
            [&[3][..], &8193u64.to_le_bytes()].concat(),
            "Get: a key of 8193 bytes, at most 8192",
        ),
        (
            "value",
            [&[1][..], &field(b"k"), &(1u64 << 40).to_le_bytes()].concat(),
            "Set: a value of 1099511627776 bytes, at most 8388608",
        ),
        (
            "keys",
            [&[6][..], &huge].concat(),
            "Wait: 18446744073709551615 keys in one request, at most 131072",
        ),
        (
            "request",
            [&[11][..], &9u64.to_le_bytes(), &fields].concat(),
            "MultiSet: a request of more than 67108864 bytes",
        ),
        (
            "number",
            [
                &[1][..],
                &field(b"k"),
                &field(b"x"),
                &[4],
                &field(b"k"),
                &[0; 8],
            ]
            .concat(),
            "k is not a number",
        ),
    ];
    for (name, bytes, want) in cases {
        let strange = ["http", "tls", "early torch", "magic"].contains(&name);
        let mut client = if strange {
            Client::silent(served.addr)
        } else {
            Client::new(served.addr)
        };
        // The store may close the connection while this test still sends.
        let _ = std::io::Write::write_all(&mut client.0, &bytes);
        assert_eq!(served.refusal(), want, "{name}");
        let why = served.event(|e| match e {
            Event::Closed { why, .. } => Some(*why),
            _ => None,
        });
        assert_eq!(why, Closed::Refused, "{name}");
        client.closed();
        Client::new(served.addr).ping();
    }
    let held = served.with(|store| store.held_bytes());
    assert!(held < 4096, "{held} bytes left after all are gone");
}

#[test]
fn who_does_not_validate_in_time_is_closed() {
    let served = Served::new(Limits {
        handshake: Duration::from_millis(50),
        ..Limits::default()
    });
    let mut served_client = Client::new(served.addr);
    served_client.ping();
    let mut silent = Client::silent(served.addr);
    let mut slow = Client::silent(served.addr);
    slow.send(&[0, 0xce]);
    for _ in 0..2 {
        assert_eq!(served.refusal(), "not validated within 50ms");
    }
    silent.closed();
    slow.closed();
    served_client.ping();
}

#[test]
fn what_a_client_left_open_goes_with_it() {
    let served = served();
    let mut torn = Client::new(served.addr);
    torn.send(
        &[
            &[1][..],
            &field(b"/k"),
            &1000u64.to_le_bytes(),
            b"only this",
        ]
        .concat(),
    );
    let mut other = Client::new(served.addr);
    other.ping();
    torn.0.shutdown(Shutdown::Write).unwrap();
    served.event(|e| {
        matches!(
            e,
            Event::Closed {
                why: Closed::ByPeer,
                ..
            }
        )
        .then_some(())
    });

    let mut waiter = Client::new(served.addr);
    waiter.start_wait(&[b"/k"]);
    served.event(|e| matches!(e, Event::Waiting { .. }).then_some(()));
    drop(waiter);
    served.event(|e| {
        matches!(
            e,
            Event::Closed {
                why: Closed::ByPeer,
                ..
            }
        )
        .then_some(())
    });
    assert_eq!(
        served.with(|store| store.waiting().count()),
        0,
        "who left waits no more"
    );
    assert_eq!(other.get(b"/k"), b"");
}

#[test]
fn there_is_a_last_client() {
    let served = Served::new(Limits {
        clients: 2,
        ..Limits::default()
    });
    let (mut a, mut b) = (Client::new(served.addr), Client::new(served.addr));
    a.ping();
    b.ping();
    let mut third = Client::silent(served.addr);
    assert_eq!(served.refusal(), "2 clients are connected, the limit");
    third.closed();
    drop(a);
    served.event(|e| {
        matches!(
            e,
            Event::Closed {
                why: Closed::ByPeer,
                ..
            }
        )
        .then_some(())
    });
    Client::new(served.addr).ping();
    b.ping();
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let served = served();
    let mut slow = Client::new(served.addr);
    let value = vec![7; 1 << 20];
    slow.set(b"/k", &value);
    let get = [&[3][..], &field(b"/k")].concat();
    let asked = 200;
    slow.send(&get.repeat(asked));

    // The slow client asked for 200 MiB of answers. Others are served meanwhile, and little is
    // kept.
    let mut other = Client::new(served.addr);
    other.start_wait(&[b"/k"]);
    other.stop_waiting();
    assert_eq!(other.get(b"/k").len(), value.len());
    let held = served.with(|store| store.held_bytes());
    assert!(held < 2 << 20, "{held} bytes are held");

    for _ in 0..asked {
        assert_eq!(slow.value().len(), value.len());
    }
    slow.ping();
}

#[test]
fn the_memory_of_all_together_is_bounded() {
    let limit = 4 << 20;
    let served = Served::new(Limits {
        total_bytes: limit,
        ..Limits::default()
    });
    let mut ordinary = Client::new(served.addr);
    ordinary.set(b"/k", b"v");
    // Each client sends most of a 1 MiB value. Together they would be 16 MiB.
    let mut greedy: Vec<Client> = (0..16).map(|_| Client::new(served.addr)).collect();
    let part = [
        &[1][..],
        &field(b"/g"),
        &(1u64 << 20).to_le_bytes(),
        &vec![0; 1_000_000],
    ]
    .concat();
    for client in &mut greedy {
        let _ = std::io::Write::write_all(&mut client.0, &part);
    }
    assert_eq!(
        served.refusal(),
        format!("the store holds {limit} bytes, its limit")
    );
    assert_eq!(ordinary.get(b"/k"), b"v", "others go on");
    let held = served.with(|store| store.held_bytes());
    assert!(held <= limit + (1 << 20), "{held}");
}

#[test]
fn a_thousand_clients_join() {
    const RANKS: usize = 1024;
    let served = served();
    let addr = served.addr;
    let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files).unwrap();

    // Every rank connects, announces itself, publishes its address, waits for its neighbour's and
    // reads it. One thread does all that. It reads the answers after all have asked, so that all of
    // them wait at the same time.
    let mut ranks: Vec<Client> = (0..RANKS).map(|_| Client::new(addr)).collect();
    for (rank, client) in ranks.iter_mut().enumerate() {
        assert_eq!(client.add(b"init/", 1), rank as i64 + 1);
    }
    let key = |rank: usize| format!("/default_pg/0//cpu//0/{rank}").into_bytes();
    for (rank, client) in ranks.iter_mut().enumerate() {
        client.start_wait(&[&key(rank), &key((rank + 1) % RANKS)]);
    }
    let mut writer = Client::new(addr);
    let mut sensor = Sensor::new(RANKS as u32, 1);
    for rank in (0..RANKS).filter(|r| *r != 700) {
        writer.set(&key(rank), format!("address {rank}").as_bytes());
    }
    while sensor.joined_ranks().len() < RANKS - 1 {
        sensor.observe(&served.events.recv_timeout(PATIENCE).unwrap());
    }
    assert_eq!(sensor.missing_ranks(), [700]);
    assert_eq!(
        served.with(|store| store.waiting().count()),
        2,
        "rank 700 itself and its neighbour"
    );
    writer.set(&key(700), b"address 700");

    for (rank, client) in ranks.iter_mut().enumerate() {
        client.stop_waiting();
        let next = (rank + 1) % RANKS;
        assert_eq!(client.get(&key(next)), format!("address {next}").as_bytes());
    }
    while !sensor.all_joined() {
        sensor.observe(&served.events.recv_timeout(PATIENCE).unwrap());
    }
    assert_eq!(served.with(|store| store.clients()), RANKS + 1);
    drop(ranks);
    drop(writer);
    for _ in 0..=RANKS {
        served.event(|e| matches!(e, Event::Closed { .. }).then_some(()));
    }
    assert_eq!(served.with(|store| store.clients()), 0);
}
