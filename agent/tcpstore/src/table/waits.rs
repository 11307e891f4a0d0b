//! Which clients wait for which keys. This module knows nothing of values: it is told when a key
//! has come.
//!
//! A wait holds the keys that were missing when it began, and how many are still missing. Each
//! missing key holds the places of the clients that wait for it. So a key's arrival costs one
//! look-up per waiter, however many other keys they wait for. Thousands of ranks that wait for
//! thousands of addresses are ordinary.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::meter::{ENTRY_BYTES, Meter};
use crate::{ClientId, Key};

/// The cost of one waiting (client, key) pair: the key's reference in the client's list, and the
/// client's place in the key's queue, whose tree nodes are at worst half full.
pub(super) const WAIT_BYTES: usize = size_of::<Key>() + 2 * size_of::<Place>();

/// A client's place in a key's queue: the number of its wait, and the client.
type Place = (u64, ClientId);

#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The clients that wait for a key, in the order in which they began.
    awaited: BTreeMap<Key, BTreeSet<Place>>,
    waiting: BTreeMap<ClientId, Wait>,
    /// Number of the next wait.
    ticket: u64,
}

#[derive(Debug)]
struct Wait {
    ticket: u64,
    /// The keys that were missing when the wait began, each once.
    keys: Vec<Key>,
    /// How many of them are still missing. Never 0.
    left: usize,
}

impl Waits {
    /// The cost of a wait for these keys, if no other client waits for any of them.
    pub(super) fn cost(keys: &[Key]) -> usize {
        keys.iter()
            .map(|k| k.len() + ENTRY_BYTES + WAIT_BYTES)
            .sum()
    }

    /// Makes a free client wait for these keys, each named once. Returns the keys as they are
    /// shared with all their waiters.
    pub(super) fn begin(&mut self, client: ClientId, keys: Vec<Key>, meter: &Meter) -> Vec<Key> {
        let (ticket, left) = (self.ticket, keys.len());
        self.ticket += 1;
        meter.charge(left * WAIT_BYTES);
        let mut own = Vec::with_capacity(left);
        for key in keys {
            let entry = self.awaited.entry(key);
            own.push(entry.key().clone());
            if let Entry::Vacant(entry) = &entry {
                meter.charge(entry.key().len() + ENTRY_BYTES);
            }
            entry.or_default().insert((ticket, client));
        }
        self.waiting.insert(
            client,
            Wait {
                ticket,
                keys: own.clone(),
                left,
            },
        );
        own
    }

    /// Notes that a key came. Returns the clients for which it was the last missing key, in the
    /// order in which they began to wait.
    pub(super) fn came(&mut self, key: &[u8], meter: &Meter) -> Vec<ClientId> {
        let Some(places) = self.awaited.remove(key) else {
            return Vec::new();
        };
        meter.release(key.len() + ENTRY_BYTES);
        places
            .into_iter()
            .map(|(_, client)| client)
            .filter(|client| self.is_last_for(*client, meter))
            .collect()
    }

    /// Notes that one item came under this key. Returns the first client for which it was the last
    /// missing key. For clients before that one the key has come too; for clients behind it, it has
    /// not.
    pub(super) fn one_came(&mut self, key: &Key, meter: &Meter) -> Option<ClientId> {
        while let Some(place) = self
            .awaited
            .get(key)
            .and_then(|places| places.first().copied())
        {
            self.give_up_place(key, place, meter);
            if self.is_last_for(place.1, meter) {
                return Some(place.1);
            }
        }
        None
    }

    /// Ends the client's wait, if it has one.
    pub(super) fn end(&mut self, client: ClientId, meter: &Meter) {
        let Some(wait) = self.waiting.remove(&client) else {
            return;
        };
        meter.release(wait.keys.len() * WAIT_BYTES);
        for key in wait.keys {
            self.give_up_place(&key, (wait.ticket, client), meter);
        }
    }

    /// All waiting clients, each with the keys that are still missing.
    pub(super) fn all(&self) -> impl Iterator<Item = (ClientId, Vec<Key>)> {
        self.waiting.iter().map(|(client, wait)| {
            let place = (wait.ticket, *client);
            let missing = |key: &&Key| {
                self.awaited
                    .get(*key)
                    .is_some_and(|places| places.contains(&place))
            };
            (*client, wait.keys.iter().filter(missing).cloned().collect())
        })
    }

    /// Counts off a key whose queue this client has just left. True if it was the last key, so that
    /// the wait is over.
    fn is_last_for(&mut self, client: ClientId, meter: &Meter) -> bool {
        let wait = self
            .waiting
            .get_mut(&client)
            .expect("a client with a place waits");
        wait.left -= 1;
        if wait.left > 0 {
            return false;
        }
        meter.release(wait.keys.len() * WAIT_BYTES);
        self.waiting.remove(&client);
        true
    }

    fn give_up_place(&mut self, key: &Key, place: Place, meter: &Meter) {
        let Some(places) = self.awaited.get_mut(key) else {
            return;
        };
        places.remove(&place);
        if places.is_empty() {
            self.awaited.remove(key);
            meter.release(key.len() + ENTRY_BYTES);
        }
    }
}
