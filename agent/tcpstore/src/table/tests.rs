use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const C: ClientId = ClientId(3);

fn key(text: &str) -> Key {
    text.as_bytes().into()
}

/// A table and its effects, in words short enough for a test to read.
struct Bench {
    table: Table,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(Limits::default())
    }

    fn with(limits: Limits) -> Bench {
        Bench {
            table: Table::new(limits),
        }
    }

    fn say(&mut self, client: ClientId, request: Request) -> Result<Vec<Outcome>, Denied> {
        let mut out = Vec::new();
        self.table.apply(client, request, &mut out).map(|()| out)
    }

    fn set(&mut self, client: ClientId, k: &str, v: &str) -> Vec<ClientId> {
        self.freed_by(
            client,
            Request::Set {
                key: key(k),
                value: v.into(),
            },
        )
    }

    /// Obeys a request and returns the clients that were told to stop waiting.
    fn freed_by(&mut self, client: ClientId, request: Request) -> Vec<ClientId> {
        let out = self.say(client, request).expect("within the limits");
        out.into_iter()
            .filter_map(|o| match o {
                Outcome::Reply(to, Reply::StopWaiting) => Some(to),
                _ => None,
            })
            .collect()
    }

    /// The one answer that the client itself gets.
    fn answer(&mut self, client: ClientId, request: Request) -> Reply {
        let out = self.say(client, request).expect("within the limits");
        let mut own = out.into_iter().filter_map(|o| match o {
            Outcome::Reply(to, reply) if to == client => Some(reply),
            _ => None,
        });
        let answer = own.next().expect("an answer");
        assert_eq!(own.next(), None, "one answer");
        answer
    }

    fn awaited_by(&self, client: ClientId) -> Vec<Key> {
        self.table
            .waiting()
            .find(|(c, _)| *c == client)
            .map(|(_, keys)| keys)
            .unwrap_or_default()
    }

    fn get(&self, k: &str) -> Option<&str> {
        self.table
            .get(k.as_bytes())
            .map(|v| std::str::from_utf8(v).expect("text"))
    }

    fn compare_set(&mut self, k: &str, expected: &str, desired: &str) -> String {
        let request = Request::CompareSet {
            key: key(k),
            expected: expected.into(),
            desired: desired.into(),
        };
        match self.answer(A, request) {
            Reply::Value(Some(value)) => String::from_utf8(value.to_vec()).expect("text"),
            Reply::Echo(bytes) => String::from_utf8(bytes).expect("text"),
            other => panic!("{other:?}"),
        }
    }

    fn add(&mut self, k: &str, by: i64) -> Result<Vec<Outcome>, Denied> {
        self.say(A, Request::Add { key: key(k), by })
    }
}

fn wait(keys: &[&str]) -> Request {
    Request::Wait {
        keys: keys.iter().map(|k| key(k)).collect(),
    }
}

fn push(k: &str, v: &str) -> Request {
    Request::QueuePush {
        key: key(k),
        value: v.into(),
    }
}

fn pop(k: &str) -> Request {
    Request::QueuePop { key: key(k) }
}

fn barrier(k: &str, world_size: i64) -> Request {
    Request::Barrier {
        key: key(k),
        world_size,
    }
}

#[test]
fn compare_set_follows_torchs_rules() {
    let mut b = Bench::new();
    assert_eq!(
        b.compare_set("k", "old", "new"),
        "old",
        "missing and expected: the expectation comes back"
    );
    assert_eq!(b.get("k"), None);
    assert_eq!(
        b.compare_set("k", "", "new"),
        "new",
        "missing and not expected: written"
    );
    assert_eq!(
        b.compare_set("k", "", "other"),
        "new",
        "present and not expected: not written"
    );
    assert_eq!(b.compare_set("k", "old", "other"), "new");
    assert_eq!(b.compare_set("k", "new", "newer"), "newer");
    assert_eq!(b.get("k"), Some("newer"));
    assert_eq!(b.freed_by(B, wait(&["fresh"])), []);
    let request = Request::CompareSet {
        key: key("fresh"),
        expected: vec![],
        desired: b"v".to_vec(),
    };
    assert_eq!(b.freed_by(A, request), [B], "it is a write like any other");
}

#[test]
fn add_reads_numbers_as_cpp_does() {
    let mut b = Bench::new();
    for (text, by, want) in [
        ("12abc", 1, 13),
        (" \n\t7", 0, 7),
        ("+5", 1, 6),
        ("-5", 1, -4),
        ("1 2", 1, 2),
        ("9223372036854775807", 1, i64::MIN),
    ] {
        b.set(A, "k", text);
        let got = b.add("k", by).expect("a number");
        assert_eq!(
            got,
            [
                Outcome::Added(key("k"), want),
                Outcome::Reply(A, Reply::Number(want))
            ],
            "{text:?}"
        );
    }
    for text in ["", "x", "-", "+-1", "9223372036854775808", "\u{a0}1"] {
        b.set(A, "k", text);
        assert_eq!(
            b.add("k", 1),
            Err(Denied::NotANumber { key: key("k") }),
            "{text:?}"
        );
        assert_eq!(b.get("k"), Some(text), "nothing was written");
        assert!(b.say(A, barrier("k", 2)).is_err());
    }
    b.add("new", 4).expect("a missing key is 0");
    assert_eq!(b.get("new"), Some("4"));
}

#[test]
fn missing_keys_read_as_empty() {
    let mut b = Bench::new();
    assert_eq!(
        b.answer(A, Request::Get { key: key("k") }),
        Reply::Value(None)
    );
    assert_eq!(
        b.answer(
            A,
            Request::MultiGet {
                keys: vec![key("k"), key("l")]
            }
        ),
        Reply::Values(vec![None, None])
    );
    assert_eq!(
        b.answer(A, Request::DeleteKey { key: key("k") }),
        Reply::Number(0)
    );
    assert_eq!(
        b.answer(A, Request::QueueLen { key: key("k") }),
        Reply::Number(0)
    );
    assert_eq!(b.answer(A, pop("k")), Reply::Popped(0, None));
    assert_eq!(
        b.answer(A, Request::Check { keys: vec![] }),
        Reply::Ready(true)
    );
    assert_eq!(b.answer(A, wait(&[])), Reply::StopWaiting);
}

#[test]
fn a_wait_ends_with_its_last_key() {
    let mut b = Bench::new();
    b.set(A, "x", "");
    assert_eq!(b.freed_by(B, wait(&["x", "y", "z", "y"])), []);
    assert_eq!(b.freed_by(C, wait(&["z"])), []);
    assert_eq!(b.awaited_by(B), [key("y"), key("z")]);
    assert_eq!(b.set(A, "z", "1"), [C]);
    assert_eq!(
        b.answer(A, Request::DeleteKey { key: key("z") }),
        Reply::Number(1)
    );
    assert_eq!(
        b.awaited_by(B),
        [key("y")],
        "it has come, even if it is gone again"
    );
    assert_eq!(b.set(A, "y", "1"), [B]);
    assert_eq!(b.set(A, "y", "2"), [], "once");
    assert_eq!(b.table.waiting().count(), 0);
}

#[test]
fn every_way_to_write_ends_a_wait() {
    let writes: [fn() -> Request; 6] = [
        || Request::Set {
            key: key("k"),
            value: vec![],
        },
        || Request::MultiSet {
            pairs: vec![(key("j"), vec![]), (key("k"), vec![])],
        },
        || Request::Append {
            key: key("k"),
            value: b"a".to_vec(),
        },
        || Request::Add {
            key: key("k"),
            by: 0,
        },
        || Request::CompareSet {
            key: key("k"),
            expected: vec![],
            desired: vec![],
        },
        || push("k", "item"),
    ];
    for write in writes {
        let mut b = Bench::new();
        b.freed_by(B, wait(&["k"]));
        assert_eq!(b.freed_by(A, write()), [B], "{:?}", write());
    }
}

#[test]
fn a_cancelled_wait_is_forgotten() {
    let mut b = Bench::new();
    b.freed_by(B, wait(&["k"]));
    assert_eq!(b.answer(B, Request::CancelWait), Reply::WaitCanceled);
    assert_eq!(b.set(A, "k", ""), []);
    assert_eq!(
        b.answer(B, Request::CancelWait),
        Reply::WaitCanceled,
        "also where there was none"
    );

    b.freed_by(B, wait(&["l"]));
    b.freed_by(B, wait(&["m"]));
    assert_eq!(
        b.set(A, "l", ""),
        [],
        "another wait takes the place of the first"
    );
    assert_eq!(b.set(A, "m", ""), [B]);

    b.freed_by(B, wait(&["n"]));
    b.table.leave(B);
    assert_eq!(b.table.waiting().count(), 0);
    assert_eq!(b.set(A, "n", ""), []);
}

#[test]
fn an_item_frees_one_waiter() {
    let mut b = Bench::new();
    b.freed_by(B, wait(&["q"]));
    b.freed_by(C, wait(&["q"]));
    assert_eq!(
        b.freed_by(A, push("q", "1")),
        [B],
        "first come, first served"
    );
    assert_eq!(b.freed_by(A, push("q", "2")), [C]);
    assert_eq!(
        b.answer(A, Request::QueueLen { key: key("q") }),
        Reply::Number(2)
    );
    assert_eq!(
        b.answer(A, Request::NumKeys),
        Reply::Number(0),
        "queues are no keys"
    );
    assert_eq!(b.answer(B, wait(&["q"])), Reply::StopWaiting);
    for (len, item) in [(2, "1"), (1, "2")] {
        let Reply::Popped(n, Some(got)) = b.answer(B, pop("q")) else {
            panic!("an item")
        };
        assert_eq!((n, &*got), (len, item.as_bytes()));
    }
    assert_eq!(b.answer(B, pop("q")), Reply::Popped(0, None));
    assert_eq!(
        b.answer(
            B,
            Request::Check {
                keys: vec![key("q")]
            }
        ),
        Reply::Ready(false)
    );

    // B waits for the queue and for another key, so C gets the item.
    b.freed_by(B, wait(&["q", "k"]));
    b.freed_by(C, wait(&["q"]));
    assert_eq!(b.freed_by(A, push("q", "3")), [C]);
    assert_eq!(b.set(A, "k", ""), [B]);
}

#[test]
fn a_barrier_frees_all_when_it_is_full() {
    let mut b = Bench::new();
    assert_eq!(b.freed_by(A, barrier("b", 3)), []);
    assert_eq!(b.freed_by(B, barrier("b", 3)), []);
    assert_eq!(b.answer(A, Request::CancelWait), Reply::WaitCanceled);
    assert_eq!(b.freed_by(C, barrier("b", 3)), [B, C]);
    assert_eq!(
        b.get("b"),
        Some("3"),
        "the counter is a key, and who gave up stays counted"
    );
    assert_eq!(b.freed_by(A, barrier("b", 3)), [A]);
}

#[test]
fn append_and_delete() {
    let mut b = Bench::new();
    for part in ["a", "bc", ""] {
        b.say(
            A,
            Request::Append {
                key: key("k"),
                value: part.into(),
            },
        )
        .expect("room");
    }
    let kept = b.answer(B, Request::Get { key: key("k") });
    b.say(
        A,
        Request::Append {
            key: key("k"),
            value: b"d".to_vec(),
        },
    )
    .expect("room");
    assert_eq!(b.get("k"), Some("abcd"));
    let Reply::Value(Some(kept)) = kept else {
        panic!("a value")
    };
    assert_eq!(&*kept, b"abc", "an answer not yet sent stays as it was");

    b.set(A, "j", "");
    assert_eq!(
        b.answer(A, Request::ListKeys),
        Reply::Keys(vec![key("j"), key("k")])
    );
    assert_eq!(
        b.answer(A, Request::DeleteKey { key: key("k") }),
        Reply::Number(1)
    );
    assert_eq!(b.answer(A, Request::NumKeys), Reply::Number(1));
}

#[test]
fn the_limits_hold() {
    let mut b = Bench::with(Limits {
        keys: 2,
        pending_out_bytes: 40,
        ..Limits::default()
    });
    b.set(A, "a", "0123456789");
    b.say(A, push("q", "x")).expect("the second key");
    for request in [
        Request::Set {
            key: key("b"),
            value: vec![],
        },
        Request::Add {
            key: key("b"),
            by: 1,
        },
        Request::Append {
            key: key("b"),
            value: vec![],
        },
        Request::CompareSet {
            key: key("b"),
            expected: vec![],
            desired: vec![],
        },
        Request::MultiSet {
            pairs: vec![(key("b"), vec![])],
        },
        push("q", "y"),
        barrier("b", 1),
    ] {
        assert_eq!(b.say(A, request), Err(Denied::TooManyKeys { limit: 2 }));
    }
    b.set(A, "a", "9876543210");
    let thrice = Request::MultiGet {
        keys: vec![key("a"); 3],
    };
    assert_eq!(
        b.say(A, thrice),
        Err(Denied::ReplyTooLong {
            bytes: 54,
            limit: 40
        })
    );
    let more = Request::Append {
        key: key("a"),
        value: vec![0; 31],
    };
    assert_eq!(
        b.say(A, more),
        Err(Denied::ReplyTooLong {
            bytes: 41,
            limit: 40
        })
    );

    let limit = 4096;
    let mut b = Bench::with(Limits {
        total_bytes: limit,
        ..Limits::default()
    });
    assert_eq!(
        b.say(
            A,
            Request::Set {
                key: key("k"),
                value: vec![0; 5000]
            }
        ),
        Err(Denied::StoreFull { limit })
    );
    for n in 0.. {
        let request = match n % 3 {
            0 => Request::Set {
                key: key(&n.to_string()),
                value: vec![0; 10],
            },
            1 => push(&n.to_string(), "item"),
            _ => wait(&[&format!("missing{n}")]),
        };
        match b.say(ClientId(n), request) {
            Ok(_) => assert!(
                b.table.held() <= limit,
                "{} bytes after {n}",
                b.table.held()
            ),
            Err(denied) => {
                assert_eq!(denied, Denied::StoreFull { limit });
                assert!(n > 10, "some of it fits");
                break;
            }
        }
    }
}

#[test]
fn the_host_writes_without_limits_and_wakes() {
    let mut b = Bench::with(Limits {
        keys: 0,
        ..Limits::default()
    });
    b.freed_by(B, wait(&["k", "n"]));
    let mut out = Vec::new();
    b.table.set(b"k", b"not a number", &mut out);
    assert_eq!(out, []);
    assert_eq!(b.table.add(b"n", 2, &mut out), 2);
    assert!(out.contains(&Outcome::Reply(B, Reply::StopWaiting)));
    assert_eq!(b.table.add(b"k", 2, &mut out), 2);
}

/// The oracle: the same rules over plain sets, without sharing or counting.
#[derive(Default)]
struct Model {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    queues: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// Waits in the order in which they began.
    waits: Vec<(ClientId, BTreeSet<Vec<u8>>)>,
}

impl Model {
    fn write(&mut self, key: &[u8], value: Vec<u8>, wake: bool) -> BTreeSet<ClientId> {
        self.values.insert(key.to_vec(), value);
        if wake {
            self.came(key, usize::MAX)
        } else {
            BTreeSet::new()
        }
    }

    /// Removes a key from the waits until `most` waits have ended.
    fn came(&mut self, key: &[u8], most: usize) -> BTreeSet<ClientId> {
        let mut freed = BTreeSet::new();
        for (client, missing) in &mut self.waits {
            if freed.len() < most && missing.remove(key) && missing.is_empty() {
                freed.insert(*client);
            }
        }
        self.waits.retain(|(_, missing)| !missing.is_empty());
        freed
    }

    fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.get(key).is_some_and(|q| !q.is_empty())
    }

    /// The number before the letter, since the strategy writes digits, a letter and negative sums.
    fn number(&self, key: &[u8]) -> Option<i64> {
        let Some(value) = self.values.get(key) else {
            return Some(0);
        };
        let text = std::str::from_utf8(value).ok()?;
        text.split('x')
            .next()
            .and_then(|number| number.parse().ok())
    }

    /// The value that a client reads back, if any, and the clients that are released. `None` if the
    /// request is denied.
    fn apply(
        &mut self,
        client: ClientId,
        request: &Request,
    ) -> Option<(Vec<Vec<u8>>, BTreeSet<ClientId>)> {
        let read = |m: &Model, k: &Key| m.values.get(&**k).cloned().unwrap_or_default();
        let (mut seen, mut freed) = (Vec::new(), BTreeSet::new());
        match request {
            Request::Set { key, value } => freed = self.write(key, value.clone(), true),
            Request::MultiSet { pairs } => {
                pairs
                    .iter()
                    .for_each(|(key, value)| freed.extend(self.write(key, value.clone(), true)));
            }
            Request::Append { key, value } => {
                let value = [read(self, key), value.clone()].concat();
                freed = self.write(key, value, true);
            }
            Request::CompareSet {
                key,
                expected,
                desired,
            } => {
                let now = self.values.get(&**key).cloned();
                if now.clone().unwrap_or_default() == *expected {
                    freed = self.write(key, desired.clone(), true);
                    seen.push(desired.clone());
                } else {
                    seen.push(now.unwrap_or(expected.clone()));
                }
            }
            Request::Add { key, by } => {
                let sum = self.number(key)?.wrapping_add(*by).to_string();
                freed = self.write(key, sum.clone().into(), true);
                seen.push(sum.into());
            }
            Request::Barrier { key, world_size } => {
                self.waits.retain(|(c, _)| *c != client);
                let count = self.number(key)?.wrapping_add(1);
                freed = self.write(key, count.to_string().into(), count >= *world_size);
                if count >= *world_size {
                    freed.insert(client);
                } else {
                    self.waits.push((client, BTreeSet::from([key.to_vec()])));
                }
            }
            Request::Wait { keys } => {
                self.waits.retain(|(c, _)| *c != client);
                let missing: BTreeSet<_> = keys
                    .iter()
                    .filter(|k| !self.has(k))
                    .map(|k| k.to_vec())
                    .collect();
                if missing.is_empty() {
                    freed.insert(client);
                } else {
                    self.waits.push((client, missing));
                }
            }
            Request::CancelWait => self.waits.retain(|(c, _)| *c != client),
            Request::Get { key } => seen.push(read(self, key)),
            Request::MultiGet { keys } => seen.extend(keys.iter().map(|k| read(self, k))),
            Request::Check { keys } => seen.push(vec![u8::from(keys.iter().all(|k| self.has(k)))]),
            Request::DeleteKey { key } => {
                let deleted = self.values.remove(&**key).is_some();
                seen.push(i64::from(deleted).to_string().into());
            }
            Request::NumKeys => seen.push(self.values.len().to_string().into()),
            Request::ListKeys => seen.extend(self.values.keys().cloned()),
            Request::QueuePush { key, value } => {
                self.queues
                    .entry(key.to_vec())
                    .or_default()
                    .push_back(value.clone());
                freed = self.came(key, 1);
            }
            Request::QueuePop { key } => {
                seen.extend(self.queues.entry(key.to_vec()).or_default().pop_front())
            }
            Request::QueueLen { key } => seen.push(
                self.queues
                    .get(&**key)
                    .map_or(0, VecDeque::len)
                    .to_string()
                    .into(),
            ),
            Request::Ping { nonce } => seen.push(nonce.to_string().into()),
        }
        Some((seen, freed))
    }
}

/// A reply in the words of the model.
fn seen(reply: Reply) -> Vec<Vec<u8>> {
    let text = |v: Option<Value>| v.map(|v| v.to_vec()).unwrap_or_default();
    match reply {
        Reply::Nonce(n) => vec![n.to_string().into()],
        Reply::Number(n) => vec![n.to_string().into()],
        Reply::Ready(ready) => vec![vec![u8::from(ready)]],
        Reply::StopWaiting | Reply::WaitCanceled => vec![],
        Reply::Value(v) => vec![text(v)],
        Reply::Echo(bytes) => vec![bytes],
        Reply::Values(values) => values.into_iter().map(text).collect(),
        Reply::Popped(_, item) => item.map(|v| v.to_vec()).into_iter().collect(),
        Reply::Keys(keys) => keys.iter().map(|k| k.to_vec()).collect(),
    }
}

fn any_request() -> impl Strategy<Value = Request> {
    // Few keys and values, so that requests meet.
    let k = || prop::sample::select(vec!["a", "b", "c"]).prop_map(key);
    let ks = || prop::collection::vec(k(), 0..4);
    let v = || prop::sample::select(vec!["", "1", "7", "x"]).prop_map(|v| v.as_bytes().to_vec());
    prop_oneof![
        (k(), v()).prop_map(|(key, value)| Request::Set { key, value }),
        (k(), v(), v()).prop_map(|(key, expected, desired)| Request::CompareSet {
            key,
            expected,
            desired
        }),
        (k(), -2i64..3).prop_map(|(key, by)| Request::Add { key, by }),
        (k(), v()).prop_map(|(key, value)| Request::Append { key, value }),
        prop::collection::vec((k(), v()), 0..3).prop_map(|pairs| Request::MultiSet { pairs }),
        (k(), 1i64..4).prop_map(|(key, world_size)| Request::Barrier { key, world_size }),
        ks().prop_map(|keys| Request::Wait { keys }),
        ks().prop_map(|keys| Request::Wait { keys }),
        Just(Request::CancelWait),
        k().prop_map(|key| Request::Get { key }),
        ks().prop_map(|keys| Request::MultiGet { keys }),
        ks().prop_map(|keys| Request::Check { keys }),
        k().prop_map(|key| Request::DeleteKey { key }),
        k().prop_map(|key| Request::DeleteKey { key }),
        Just(Request::NumKeys),
        Just(Request::ListKeys),
        (k(), v()).prop_map(|(key, value)| Request::QueuePush { key, value }),
        k().prop_map(|key| Request::QueuePop { key }),
        k().prop_map(|key| Request::QueueLen { key }),
    ]
}

proptest! {
    #[test]
    fn the_table_does_what_the_model_does(steps in prop::collection::vec((0u64..4, any_request()), 1..80)) {
        let mut table = Table::new(Limits::default());
        let mut model = Model::default();
        for (n, request) in steps {
            let client = ClientId(n);
            let mut out = Vec::new();
            let applied = table.apply(client, request.clone(), &mut out);
            let want = model.apply(client, &request);
            prop_assert_eq!(applied.is_ok(), want.is_some(), "{:?}", &request);

            let (mut got_seen, mut got_freed) = (Vec::new(), BTreeSet::new());
            for outcome in out {
                match outcome {
                    Outcome::Reply(to, Reply::StopWaiting) => prop_assert!(got_freed.insert(to), "freed twice"),
                    Outcome::Reply(to, reply) => {
                        prop_assert_eq!(to, client);
                        got_seen.extend(seen(reply));
                    }
                    _ => {}
                }
            }
            let (want_seen, want_freed) = want.unwrap_or_default();
            prop_assert_eq!((got_seen, got_freed), (want_seen, want_freed), "{:?}", &request);

            let got: BTreeMap<_, BTreeSet<Vec<u8>>> =
                table.waiting().map(|(c, keys)| (c, keys.iter().map(|k| k.to_vec()).collect())).collect();
            prop_assert_eq!(got, model.waits.iter().cloned().collect::<BTreeMap<_, _>>());
        }

        // Everything that was counted must be given back.
        for n in 0..4 {
            table.leave(ClientId(n));
        }
        for k in ["a", "b", "c"] {
            let mut out = Vec::new();
            while table.apply(ClientId(0), pop(k), &mut out).is_ok() && out.last() != Some(&Outcome::Reply(ClientId(0), Reply::Popped(0, None))) {}
            table.apply(ClientId(0), Request::DeleteKey { key: key(k) }, &mut Vec::new()).expect("a delete");
            drop(out);
        }
        prop_assert_eq!(table.held(), 0);
    }

    #[test]
    fn whatever_is_asked_the_limits_hold(steps in prop::collection::vec((0u64..6, any_request(), 0usize..2000), 1..200)) {
        let limits = Limits { total_bytes: 8192, keys: 5, pending_out_bytes: 3000, ..Limits::default() };
        let mut table = Table::new(limits.clone());
        for (n, request, pad) in steps {
            let request = match request {
                Request::Append { key, .. } => Request::Append { key, value: vec![0; pad] },
                Request::Set { key, .. } => Request::Set { key: [&*key, &n.to_le_bytes()[..]].concat().into(), value: vec![0; pad] },
                other => other,
            };
            let mut out = Vec::new();
            let applied = table.apply(ClientId(n), request, &mut out);
            if let Err(Denied::StoreFull { .. }) = applied {
                table.leave(ClientId(n));
            }
            for outcome in &out {
                if let Outcome::Reply(_, reply) = outcome {
                    prop_assert!(reply.wire_len() <= limits.pending_out_bytes.max(8 + limits.value_bytes));
                }
            }
            // A value that is appended to keeps spare room of its own size.
            prop_assert!(table.held() <= limits.total_bytes + limits.pending_out_bytes, "{} bytes", table.held());
            prop_assert!(table.values.len() + table.queued <= limits.keys);
        }
    }
}
