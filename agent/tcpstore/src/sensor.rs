//! What the keys mean: which node has arrived, which rank has joined, which launcher has finished.
//! The module is pure: its input is [`Event`]s.
//!
//! It reads what torch and torchrun write for themselves. A training script need not do anything.
//! These are the keys on the wire with torch 2.15 (`RUN` is `--rdzv-id`, and the TCPStore client
//! adds the leading `/`):
//!
//! | key | written by | source in torch |
//! |---|---|---|
//! | `init/` | every launcher and every rank, one ADD when its TCPStore connects | `TCPStore.cpp`, `waitForWorkers` |
//! | `/RUN/torchelastic/role_info/N` | launcher of node rank N; not with `TORCH_ELASTIC_WORKER_IDENTICAL=1` | `elastic/agent/server/api.py`, `_assign_worker_ranks` |
//! | `/default_pg/0//DEVICE//0/R` | rank R in `init_process_group` with gloo | `distributed_c10d.py` (prefixes), `ProcessGroupGloo.cpp` (`0/`), gloo `rendezvous/context.cc` (R) |
//! | `/default_pg/0//DEVICE//0` | rank 0 at the first NCCL communicator; other ranks wait for it | `ProcessGroupNCCL.cpp`, `broadcastUniqueNCCLID` |
//! | `/RUN/torchelastic/agent/terminal_state/num_members` | each launcher whose workers have ended, one ADD | `elastic/utils/store.py`, `_barrier_nonblocking` |
//! | `/RUN/torchelastic/agent/terminal_state/last_member` | the launcher that finds the count full; all wait for it | the same |
//! | `/RUN/torchelastic/agent/terminal_stateN` | launcher of node rank N, in torch before that barrier had a counter | `elastic/utils/store.py`, `synchronize` |
//!
//! With gloo (also together with NCCL, if a script names no backend) the joined ranks are known by
//! number. With NCCL alone a rank writes nothing that names it. Then only two things are known: how
//! many ranks have entered ([`Sensor::entered`]), and from which addresses
//! ([`Sensor::entered_from`]), which identifies the missing node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::{ClientId, Event, Key, Store};

const INIT: &[u8] = b"init/";
const DEFAULT_GROUP: &str = "/default_pg/0//";
const ROLE_INFO: &str = "/torchelastic/role_info/";
const TERMINAL_STATE: &str = "/torchelastic/agent/terminal_state";
const NUM_MEMBERS: &str = "/num_members";
const LAST_MEMBER: &str = "/last_member";

/// What one generation's store has shown so far.
#[derive(Debug, Clone)]
pub struct Sensor {
    world_size: u32,
    nnodes: u32,
    peers: BTreeMap<ClientId, IpAddr>,
    /// The connections of launchers and ranks that have announced themselves.
    announced: Vec<(ClientId, Option<IpAddr>)>,
    launchers: BTreeMap<u32, ClientId>,
    joined: BTreeSet<u32>,
    communicator: bool,
    finished: BTreeSet<ClientId>,
    finished_nodes: BTreeSet<u32>,
    completed: BTreeSet<u32>,
}

/// The meaning of one key.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    NodeArrived(u32),
    RankJoined(u32),
    NodeFinished(u32),
    LauncherFinished,
}

impl Sensor {
    /// Makes a sensor for a generation of `world_size` ranks on `nnodes` nodes.
    pub fn new(world_size: u32, nnodes: u32) -> Sensor {
        Sensor {
            world_size,
            nnodes,
            peers: BTreeMap::new(),
            announced: Vec::new(),
            launchers: BTreeMap::new(),
            joined: BTreeSet::new(),
            communicator: false,
            finished: BTreeSet::new(),
            finished_nodes: BTreeSet::new(),
            completed: BTreeSet::new(),
        }
    }

    /// Takes one event of the store. Events must come in their order.
    pub fn observe(&mut self, event: &Event) {
        match event {
            Event::Connected { client, peer } => {
                self.peers.insert(*client, peer.ip());
            }
            Event::Closed { client, .. } => {
                self.peers.remove(client);
            }
            Event::Added { client, key, .. } if **key == *INIT => {
                // A job announces each launcher and rank once. Further announcements come from the
                // script and need no memory.
                if self.announced.len() < (self.nnodes + self.world_size) as usize {
                    self.announced
                        .push((*client, self.peers.get(client).copied()));
                }
            }
            Event::Set { client, key } | Event::Added { client, key, .. } => {
                self.learn(*client, key)
            }
            Event::Waiting { .. } | Event::Refused { .. } => {}
        }
    }

    /// Global ranks that have joined the default process group, if the backend names them.
    pub fn joined_ranks(&self) -> &BTreeSet<u32> {
        &self.joined
    }

    /// The other ranks, in order. With NCCL alone this means nothing; see [`Sensor::entered`].
    pub fn missing_ranks(&self) -> Vec<u32> {
        (0..self.world_size)
            .filter(|rank| !self.joined.contains(rank))
            .collect()
    }

    /// Whether NCCL's first communicator was begun, of whichever group. As a rule that is at the first
    /// collective.
    pub fn communicator(&self) -> bool {
        self.communicator
    }

    /// How many ranks have reached `init_process_group`. Launchers and ranks announce themselves
    /// alike, so this may be too low until every launcher has announced itself. At the end it is
    /// exact, because no node's ranks come before its launcher.
    pub fn entered(&self) -> u32 {
        let counted = (self.announced.len() as u32).saturating_sub(self.nnodes);
        counted.max(self.joined.len() as u32)
    }

    /// How many launchers and ranks have announced themselves, up to one more than there can be
    /// launchers. If there are more than launchers, a rank is among them.
    pub fn announced(&self) -> u32 {
        (self.announced.len() as u32).min(self.nnodes + 1)
    }

    /// How many launchers and ranks have connected from each address. If every node has its own
    /// address, a complete node has one more than its ranks.
    pub fn entered_from(&self) -> BTreeMap<IpAddr, u32> {
        let mut from = BTreeMap::new();
        for peer in self.announced.iter().filter_map(|(_, peer)| *peer) {
            *from.entry(peer).or_default() += 1;
        }
        from
    }

    /// Whether every rank has joined, or has entered if the backend names no ranks.
    pub fn all_joined(&self) -> bool {
        self.joined.len() as u32 == self.world_size || self.entered() == self.world_size
    }

    /// Node ranks whose launcher has arrived, if launchers say so (`TORCH_ELASTIC_WORKER_IDENTICAL`
    /// unset).
    pub fn arrived_nodes(&self) -> BTreeSet<u32> {
        self.launchers.keys().copied().collect()
    }

    /// How many launchers have reached torchrun's exit barrier: all their workers have ended, with
    /// or without success.
    pub fn finished_launchers(&self) -> u32 {
        self.finished.len().max(self.finished_nodes.len()) as u32
    }

    /// Their node ranks, so far as the launchers' node ranks are known.
    pub fn finished_nodes(&self) -> BTreeSet<u32> {
        let known = self
            .launchers
            .iter()
            .filter(|(_, client)| self.finished.contains(client));
        known
            .map(|(node, _)| *node)
            .chain(self.finished_nodes.iter().copied())
            .collect()
    }

    /// Arrives at torchrun's exit barrier for a lost node, so that the other launchers do not wait
    /// 300 s for it. It acts once per node, and does nothing for a node that has arrived itself.
    /// `run_id` is the value of `--rdzv-id`.
    pub fn complete_exit_barrier(&mut self, store: &mut Store, run_id: &str, node_rank: u32) {
        if self.finished_nodes().contains(&node_rank) || !self.completed.insert(node_rank) {
            return;
        }
        let prefix = format!("/{run_id}{TERMINAL_STATE}");
        let members = store.add(format!("{prefix}{NUM_MEMBERS}").as_bytes(), 1);
        if members >= i64::from(self.nnodes) {
            // The lost launcher would have been the last.
            store.set(format!("{prefix}{LAST_MEMBER}").as_bytes(), b"1");
        }
        store.set(format!("{prefix}{node_rank}").as_bytes(), b"1");
    }

    fn learn(&mut self, client: ClientId, key: &Key) {
        self.communicator |= is_communicator(key);
        match meaning(key) {
            Some(Meaning::NodeArrived(node)) if node < self.nnodes => {
                self.launchers.insert(node, client);
            }
            Some(Meaning::RankJoined(rank)) if rank < self.world_size => {
                self.joined.insert(rank);
            }
            Some(Meaning::NodeFinished(node)) if node < self.nnodes => {
                self.finished_nodes.insert(node);
            }
            Some(Meaning::LauncherFinished) if self.finished.len() < self.nnodes as usize => {
                self.finished.insert(client);
            }
            _ => {}
        }
    }
}

fn meaning(key: &[u8]) -> Option<Meaning> {
    let key = std::str::from_utf8(key).ok()?;
    if let Some(rest) = key.strip_prefix(DEFAULT_GROUP) {
        let (device, rest) = rest.split_once("//")?;
        // Where the default group has the device, a sub-group has its name, a number or a hash.
        if !device.bytes().all(|b| b.is_ascii_lowercase()) {
            return None;
        }
        // Gloo writes a device number and the rank. NCCL writes only a communicator's number, and
        // rank 0 sets the first one.
        return match rest.split_once('/') {
            Some(("0", rank)) => {
                number(rank.strip_prefix("rank_").unwrap_or(rank)).map(Meaning::RankJoined)
            }
            None if rest == "0" => Some(Meaning::RankJoined(0)),
            _ => None,
        };
    }
    if let Some((_, node)) = key.split_once(ROLE_INFO) {
        return number(node).map(Meaning::NodeArrived);
    }
    match key.split_once(TERMINAL_STATE)?.1 {
        NUM_MEMBERS => Some(Meaning::LauncherFinished),
        node => number(node).map(Meaning::NodeFinished),
    }
}

/// Whether a key is that of an NCCL communicator: of a group, or of two ranks.
fn is_communicator(key: &[u8]) -> bool {
    let last = std::str::from_utf8(key)
        .ok()
        .and_then(|key| key.rsplit_once("//cuda//"));
    last.is_some_and(|(group, name)| {
        let mut numbers = name.splitn(2, ':');
        group.starts_with('/') && numbers.all(|part| !part.is_empty() && number(part).is_some())
    })
}

/// A plain decimal number, as torch writes it.
fn number(text: &str) -> Option<u32> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Closed;

    fn client(n: u64) -> ClientId {
        ClientId(n)
    }

    fn set(n: u64, key: &str) -> Event {
        Event::Set {
            client: client(n),
            key: key.as_bytes().into(),
        }
    }

    fn added(n: u64, key: &str, value: i64) -> Event {
        Event::Added {
            client: client(n),
            key: key.as_bytes().into(),
            value,
        }
    }

    fn connected(n: u64, ip: [u8; 4]) -> Event {
        Event::Connected {
            client: client(n),
            peer: (ip, 5000).into(),
        }
    }

    fn fed(events: &[Event]) -> Sensor {
        let mut sensor = Sensor::new(4, 2);
        events.iter().for_each(|e| sensor.observe(e));
        sensor
    }

    #[test]
    fn gloo_names_the_missing_rank() {
        let sensor = fed(&[
            set(2, "/default_pg/0//cpu//0/3"),
            set(3, "/default_pg/0//cpu//0/0"),
            set(4, "/default_pg/0//cuda//0/rank_1"),
            // Sub-groups, later communicators, point to point, foreign keys: none of them is a
            // rank.
            set(4, "/default_pg/0//1//cpu//0/2"),
            set(4, "/default_pg/0//cuda//2"),
            set(4, "/default_pg/0//cuda//0:2"),
            set(4, "/default_pg/0//cpu//1/2"),
            set(4, "/default_pg/0//cpu//0/+2"),
            set(4, "/default_pg/0//cpu//0/9"),
            set(4, "/mine/2"),
        ]);
        assert_eq!(sensor.joined_ranks(), &BTreeSet::from([0, 1, 3]));
        assert_eq!(sensor.missing_ranks(), [2]);
        assert!(!sensor.all_joined());
    }

    #[test]
    fn nccl_is_counted_by_connection_and_address() {
        let mut events = vec![connected(0, [10, 0, 0, 1]), added(0, "init/", 1)];
        for n in 1..=2 {
            events.extend([connected(n, [10, 0, 0, 1]), added(n, "init/", n as i64 + 1)]);
        }
        events.extend([connected(3, [10, 0, 0, 2]), added(3, "init/", 4)]);
        events.push(set(1, "/default_pg/0//cuda//0"));
        let mut sensor = fed(&events);
        assert_eq!(sensor.joined_ranks(), &BTreeSet::from([0]));
        assert_eq!(
            sensor.entered(),
            2,
            "two of four announcements are the launchers'"
        );
        let from: Vec<u32> = sensor.entered_from().into_values().collect();
        assert_eq!(from, [3, 1], "the second node's ranks are missing");

        for n in 4..=5 {
            sensor.observe(&connected(n, [10, 0, 0, 2]));
            sensor.observe(&added(n, "init/", n as i64 + 1));
        }
        assert!(sensor.all_joined());
        for n in 6..100 {
            sensor.observe(&added(n, "init/", n as i64 + 1));
        }
        assert_eq!(sensor.entered(), 4, "a script's own stores do not count");
    }

    #[test]
    fn the_first_communicator_of_any_group_is_seen() {
        for key in [
            "/default_pg/0//cuda//0",
            "/default_pg/0//1//cuda//0",
            "/default_pg/0//cuda//0:1",
        ] {
            assert!(fed(&[set(1, key)]).communicator(), "{key}");
        }
        let others = [
            "/default_pg/0//cpu//0/1",
            "/default_pg/0//cuda//0/rank_1",
            "/default_pg/0//cuda//",
            "/default_pg/0//cuda//x",
            "mine//cuda//0",
            "/mine/0",
        ];
        assert!(!fed(&others.map(|key| set(1, key))).communicator());
    }

    #[test]
    fn launchers_arrive_and_finish() {
        let sensor = fed(&[
            set(7, "/job-g1/torchelastic/role_info/1"),
            set(8, "/job-g1/torchelastic/role_info/0"),
            added(
                7,
                "/job-g1/torchelastic/agent/terminal_state/num_members",
                1,
            ),
            Event::Closed {
                client: client(7),
                why: Closed::ByPeer,
            },
        ]);
        assert_eq!(sensor.arrived_nodes(), BTreeSet::from([0, 1]));
        assert_eq!(sensor.finished_nodes(), BTreeSet::from([1]));
        assert_eq!(sensor.finished_launchers(), 1);

        let old = fed(&[set(7, "/job-g1/torchelastic/agent/terminal_state0")]);
        assert_eq!(old.finished_nodes(), BTreeSet::from([0]));
    }

    #[test]
    fn a_lost_nodes_part_is_taken_once() {
        let mut store =
            Store::bind(([127, 0, 0, 1], 0).into(), crate::Limits::default()).expect("bind");
        let mut sensor = fed(&[
            set(8, "/j/torchelastic/role_info/0"),
            set(7, "/j/torchelastic/role_info/1"),
        ]);
        let (members, last) = (
            b"/j/torchelastic/agent/terminal_state/num_members",
            b"/j/torchelastic/agent/terminal_state/last_member",
        );

        sensor.complete_exit_barrier(&mut store, "j", 1);
        sensor.complete_exit_barrier(&mut store, "j", 1);
        assert_eq!(store.get(members), Some(&b"1"[..]));
        assert_eq!(store.get(last), None, "node 0 still works");

        let mut late = sensor.clone();
        late.observe(&added(
            8,
            "/j/torchelastic/agent/terminal_state/num_members",
            2,
        ));
        late.complete_exit_barrier(&mut store, "j", 0);
        assert_eq!(
            store.get(members),
            Some(&b"1"[..]),
            "node 0 took its part itself"
        );

        sensor.complete_exit_barrier(&mut store, "j", 0);
        assert_eq!(store.get(members), Some(&b"2"[..]));
        assert!(store.get(last).is_some());
    }
}
