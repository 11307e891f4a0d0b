//! What the engine has published for everybody to read: jobs, nodes, events, and what is left of jobs that are
//! over.
//!
//! The engine is the only writer, through one `watch` channel for each collection. Readers look, clone
//! what they need, and wait for the next change. Every item has a revision, so a slow reader finds
//! what has changed since its last look: each item once, in its latest state. Nothing is queued for
//! anybody.

use std::{collections::BTreeMap, sync::Arc};

use muster_core::{
    fleet::{
        Event,
        history::HistoryRecord,
        view::{JobView, NodeView},
    },
    id::{JobName, JobUid, NodeName},
};

use crate::kept::Kept;

/// Jobs by namespace and name.
pub type Jobs = Collection<JobName, JobView>;
/// Nodes by name.
pub type Nodes = Collection<NodeName, NodeView>;

/// Items by key, each in its latest state.
#[derive(Clone, Debug)]
pub struct Collection<K, V> {
    revision: u64,
    items: BTreeMap<K, Item<V>>,
    /// Every key once, at the revision of its latest change.
    changes: BTreeMap<u64, K>,
    /// The revision of the last removal.
    removed: u64,
}

#[derive(Clone, Debug)]
struct Item<V> {
    revision: u64,
    value: Arc<V>,
}

impl<K, V> Default for Collection<K, V> {
    fn default() -> Self {
        Self {
            revision: 0,
            items: BTreeMap::new(),
            changes: BTreeMap::new(),
            removed: 0,
        }
    }
}

impl<K: Ord + Clone, V: PartialEq> Collection<K, V> {
    /// Puts or replaces an item. False: the same value is there already, so nobody needs to be
    /// told.
    pub fn put(&mut self, key: K, value: V) -> bool {
        if let Some(item) = self.items.get(&key) {
            if *item.value == value {
                return false;
            }
            self.changes.remove(&item.revision);
        }
        self.revision += 1;
        self.changes.insert(self.revision, key.clone());
        self.items.insert(
            key,
            Item {
                revision: self.revision,
                value: Arc::new(value),
            },
        );
        true
    }

    /// Changes a detail in place, without a new revision. Readers find it at their next look, and
    /// nobody is told.
    pub fn amend(&mut self, key: &K, change: impl FnOnce(&mut V))
    where
        V: Clone,
    {
        if let Some(item) = self.items.get_mut(key) {
            change(Arc::make_mut(&mut item.value));
        }
    }

    /// Removes an item. False: it was not there.
    pub fn remove(&mut self, key: &K) -> bool {
        let Some(item) = self.items.remove(key) else {
            return false;
        };
        self.changes.remove(&item.revision);
        self.revision += 1;
        self.removed = self.revision;
        true
    }

    pub fn get(&self, key: &K) -> Option<&Arc<V>> {
        self.items.get(key).map(|item| &item.value)
    }

    /// All items after the key `after`, in the order of keys.
    pub fn after(&self, after: Option<&K>) -> impl Iterator<Item = (&K, &Arc<V>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.items
            .range((after.map_or(Unbounded, Excluded), Unbounded))
            .map(|(key, item)| (key, &item.value))
    }

    /// The revision of the last change or removal.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The items that have changed after `revision`, oldest change first.
    pub fn since(&self, revision: u64) -> impl Iterator<Item = (&K, &Arc<V>)> {
        self.changes
            .range(revision + 1..)
            .map(|(_, key)| (key, &self.items[key].value))
    }

    /// Whether an item was removed after `revision`. A reader finds out which one by comparing.
    pub fn removed_since(&self, revision: u64) -> bool {
        self.removed > revision
    }
}

/// The events that are kept, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Events {
    events: BTreeMap<u64, Arc<Event>>,
    kept: Kept,
}

impl Events {
    /// The events as they are after a start. `exists` tells whether a job still exists.
    pub fn loaded(events: Vec<Event>, exists: impl Fn(&JobUid) -> bool) -> Events {
        let kept = Kept::of(&events, exists);
        let mut all = Events {
            events: events
                .into_iter()
                .map(|event| (event.sequence, Arc::new(event)))
                .collect(),
            kept,
        };
        all.drop_surplus();
        all
    }

    pub fn push(&mut self, event: Event) {
        self.kept.add(&event);
        self.events.insert(event.sequence, Arc::new(event));
        self.drop_surplus();
    }

    /// The job was deleted, so its events may be dropped like those of no job.
    pub fn release(&mut self, job: &JobUid) {
        self.kept.release(job);
        self.drop_surplus();
    }

    fn drop_surplus(&mut self) {
        for number in self.kept.take_dropped() {
            self.events.remove(&number);
        }
    }

    /// One job's events, oldest first.
    pub fn story(&self, job: &JobUid) -> impl DoubleEndedIterator<Item = &Arc<Event>> {
        self.kept
            .story(job)
            .filter_map(|number| self.events.get(&number))
    }

    /// Events with a number greater than `sequence`, oldest first.
    pub fn after(&self, sequence: u64) -> impl DoubleEndedIterator<Item = &Arc<Event>> {
        self.events
            .range(sequence.saturating_add(1)..)
            .map(|(_, event)| event)
    }

    /// The number of the newest event that is kept. 0: none is kept.
    pub fn last(&self) -> u64 {
        self.events
            .last_key_value()
            .map_or(0, |(sequence, _)| *sequence)
    }
}

/// What is left of jobs that are over, by number.
#[derive(Clone, Debug, Default)]
pub struct History(BTreeMap<u64, Arc<HistoryRecord>>);

impl History {
    pub fn loaded(records: &[Arc<HistoryRecord>]) -> Self {
        let numbered = records.iter().map(|record| (record.number, record.clone()));
        Self(numbered.collect())
    }

    pub fn put(&mut self, record: Arc<HistoryRecord>) {
        self.0.insert(record.number, record);
    }

    /// Drops the records up to this number.
    pub fn drop_to(&mut self, number: u64) {
        self.0 = self.0.split_off(&number.saturating_add(1));
    }

    /// All records with a number below `before`, the newest first. `None`: all.
    pub fn before(&self, before: Option<u64>) -> impl Iterator<Item = &Arc<HistoryRecord>> {
        let before = before.unwrap_or(u64::MAX);
        self.0.range(..before).rev().map(|(_, record)| record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn since(collection: &Collection<u8, char>, revision: u64) -> Vec<(u8, char)> {
        collection
            .since(revision)
            .map(|(key, value)| (*key, **value))
            .collect()
    }

    #[test]
    fn a_slow_reader_finds_each_thing_once_in_its_latest_state() {
        let mut collection = Collection::default();
        assert!(collection.put(1, 'a') && collection.put(2, 'a'));
        let seen = collection.revision();
        assert!(since(&collection, seen).is_empty());
        assert!(collection.put(1, 'b') && collection.put(3, 'a') && collection.put(1, 'c'));
        assert_eq!(since(&collection, seen), [(3, 'a'), (1, 'c')]);
        assert_eq!(since(&collection, 0), [(2, 'a'), (3, 'a'), (1, 'c')]);
    }

    #[test]
    fn what_did_not_change_is_no_change() {
        let mut collection = Collection::default();
        collection.put(1, 'a');
        let seen = collection.revision();
        assert!(!collection.put(1, 'a'));
        assert_eq!(collection.revision(), seen);
    }

    #[test]
    fn a_removal_is_noticed_and_leaves_nothing_behind() {
        let mut collection = Collection::default();
        collection.put(1, 'a');
        collection.put(2, 'a');
        let seen = collection.revision();
        assert!(!collection.removed_since(seen));
        assert!(collection.remove(&1) && !collection.remove(&1));
        assert!(collection.removed_since(seen) && !collection.removed_since(collection.revision()));
        assert_eq!(since(&collection, 0), [(2, 'a')]);
        assert_eq!((collection.items.len(), collection.changes.len()), (1, 1));
    }

    #[test]
    fn an_amended_detail_is_found_and_not_told() {
        let mut collection = Collection::default();
        collection.put(1, 'a');
        let (seen, before) = (collection.revision(), collection.get(&1).cloned());
        collection.amend(&1, |value| *value = 'b');
        assert_eq!(
            (collection.get(&1).map(|value| **value), before.as_deref()),
            (Some('b'), Some(&'a'))
        );
        assert_eq!(collection.revision(), seen);
    }

    #[test]
    fn pages_follow_the_keys() {
        let mut collection = Collection::default();
        for key in [3, 1, 2] {
            collection.put(key, 'a');
        }
        let keys = |after: Option<u8>| {
            collection
                .after(after.as_ref())
                .map(|(key, _)| *key)
                .collect::<Vec<_>>()
        };
        assert_eq!(keys(None), [1, 2, 3]);
        assert_eq!(keys(Some(1)), [2, 3]);
        assert_eq!(keys(Some(9)), [0_u8; 0]);
    }
}
