//! All records of one coordinator: read from the API server, and written in groups, one group after
//! the other.
//!
//! A node's epoch and the version of its record change with every connection. The epochs and versions
//! of all nodes are in one object, `sessions`, so that ten thousand nodes that come back are not ten
//! thousand writes. `sessions` is written before the nodes' own objects. If the commit fails in between,
//! the new epoch was sent to no node and is never used.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use muster_core::{
    fleet::{
        Change, Event, NodeRecord, Stored,
        commit::{RecordKey, Version, Write, groups},
        history::HistoryRecord,
    },
    id::{JobUid, NodeEpoch, NodeName, Term},
};
use muster_handle::kept::Kept;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::{
    client::{Client, Failed},
    object::{self, About, Object, Spec},
    past::Past,
    story::Story,
};
use crate::store::{Loaded, StoreError, compare, deleted};

/// How many writes of one group are under way at a time.
const AT_ONCE: usize = 32;

/// The format of all records. It must grow when a record's shape changes in a way that an older build
/// would misread.
const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: u32,
    term: Term,
}

/// For each node its epoch, and the two parts of its record's version: term and number of the write.
type Sessions = BTreeMap<NodeName, (u64, u64, u64)>;

/// What this coordinator knows of a stored record.
#[derive(Clone, Debug)]
struct StoredObject {
    resource_version: String,
    version: Version,
    /// A digest of the object's data. A node's epoch and version are not part of it.
    digest: u64,
}

#[derive(Debug)]
pub(super) struct Records {
    client: Client,
    known: BTreeMap<RecordKey, StoredObject>,
    coordinator: Option<String>,
    term: Term,
    sessions: Sessions,
    sessions_version: Option<String>,
    story: Story,
    past: Past,
}

#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(
        "the records in namespace {namespace} have format {found}, this build reads format {FORMAT}: use the build that wrote them"
    )]
    Format { namespace: String, found: u32 },
    #[error(
        "the object `sessions` has no entry for the object {0}, so somebody has edited these objects. This coordinator wrote nothing. Restore \
         all of them from one backup"
    )]
    NoSession(String),
}

impl Records {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            known: BTreeMap::new(),
            coordinator: None,
            term: Term(0),
            sessions: Sessions::new(),
            sessions_version: None,
            story: Story::default(),
            past: Past::default(),
        }
    }

    pub(super) async fn load(&mut self) -> Result<Loaded, StoreError> {
        let objects = self.client.list().await?;
        *self = Self::new(self.client.clone());
        let (mut fleet, mut nodes, mut chunks) = (Stored::default(), Vec::new(), Vec::new());
        let mut past = Vec::new();
        for object in &objects {
            let version = object.metadata.resource_version.clone().unwrap_or_default();
            let spec = &object.spec;
            match spec.about {
                About::Coordinator => {
                    let read: Header = self.client.read(object)?;
                    if read.format != FORMAT {
                        let (namespace, found) = (self.client.namespace.clone(), read.format);
                        return Err(unusable(Unusable::Format { namespace, found }));
                    }
                    (self.coordinator, self.term) = (Some(version), read.term);
                }
                About::Sessions => {
                    self.sessions = self.client.read(object)?;
                    self.sessions_version = Some(version);
                }
                About::Job => {
                    let key = RecordKey::Job(spec.of.as_str().into());
                    self.remember_read(key, object, version)?;
                    fleet.jobs.push(self.client.read(object)?);
                }
                About::Tombstone => {
                    let key = RecordKey::Tombstone(spec.of.as_str().into());
                    self.remember_read(key, object, version)?;
                    fleet.tombstones.push(self.client.read(object)?);
                }
                About::Outbox => {
                    self.remember_read(RecordKey::Outbox, object, version)?;
                    fleet.outbox = self.client.read(object)?;
                }
                About::Node => nodes.push((object, version)),
                // The client has put them into the records that they are parts of.
                About::Part | About::Later => {}
                About::History => {
                    let records: Vec<HistoryRecord> = self.client.read(object)?;
                    past.push((version, records.into_iter().map(Arc::new).collect()));
                }
                About::Events => {
                    let events: Vec<Event> = self.client.read(object)?;
                    if let Some(first) = events.first() {
                        chunks.push((first.sequence, version, events));
                    }
                }
                About::Report => {
                    let of = spec.of.as_str().into();
                    fleet.reports.push((of, self.client.read(object)?));
                }
            }
        }
        for (object, resource_version) in nodes {
            fleet.nodes.push(self.read_node(object, resource_version)?);
        }
        // The rest are reports of nodes that were deleted, or whose first record was never written.
        let has_record = |key: NodeName| self.known.contains_key(&RecordKey::Node(key));
        fleet.reports.retain(|(name, _)| has_record(name.clone()));
        let is_there = |uid: &JobUid| self.known.contains_key(&RecordKey::Job(uid.clone()));
        let (story, events) = Story::loaded(chunks, |events| Kept::of(events, is_there));
        (self.past, fleet.history) = Past::loaded(past);
        fleet.last_event = story.last();
        self.story = story;
        let versions = self.known.iter();
        Ok(Loaded {
            fleet,
            events,
            versions: versions
                .map(|(key, known)| (key.clone(), known.version))
                .collect(),
        })
    }

    /// Remembers an object as it was read: the version that the next write of it expects.
    fn remember_read(
        &mut self,
        key: RecordKey,
        object: &Object,
        resource_version: String,
    ) -> Result<(), StoreError> {
        let version = object.spec.read_version();
        let version = version.map_err(|why| self.client.unreadable(object, why))?;
        let known = StoredObject {
            resource_version,
            version,
            digest: digest(&object.spec.data),
        };
        self.known.insert(key, known);
        Ok(())
    }

    /// Reads a node's record. Its epoch and version are in `sessions`.
    fn read_node(
        &mut self,
        object: &Object,
        resource_version: String,
    ) -> Result<NodeRecord, StoreError> {
        let record: NodeRecord = self.client.read(object)?;
        let Some((epoch, term, write)) = self.sessions.get(&record.name).copied() else {
            let name = object.metadata.name.clone();
            return Err(unusable(Unusable::NoSession(name)));
        };
        let known = StoredObject {
            resource_version,
            version: Version {
                term: Term(term),
                write,
            },
            digest: digest(&object.spec.data),
        };
        self.known
            .insert(RecordKey::Node(record.name.clone()), known);
        Ok(NodeRecord {
            epoch: NodeEpoch(epoch),
            ..record
        })
    }

    pub(super) async fn next_term(&mut self, at_least: Term) -> Result<Term, StoreError> {
        let stored = self.known.values().map(|known| known.version.term);
        let term = stored
            .max()
            .unwrap_or_default()
            .max(self.term)
            .next()
            .max(at_least);
        let record = Header {
            format: FORMAT,
            term,
        };
        let spec = Spec::of(About::Coordinator, "", &record);
        let put = self.client.put(&spec, self.coordinator.as_deref()).await;
        self.coordinator = Some(put.map_err(|failed| failed.of("the term"))?);
        self.term = term;
        Ok(term)
    }

    pub(super) async fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        self.compare(writes)?;
        self.put_sessions(writes).await?;
        for group in groups(writes) {
            match group {
                [write, ..] if matches!(write.change, Change::PutHistory(_)) => {
                    self.write_history(group).await?
                }
                [write] => self.write_one(write).await?,
                group => self.write_group(group).await?,
            }
        }
        self.write_events(writes).await
    }

    /// Refuses a commit that was decided on other versions of the records than the stored ones, as far
    /// as this process knows them.
    fn compare(&self, writes: &[Write]) -> Result<(), StoreError> {
        let mut made: BTreeMap<RecordKey, Option<Version>> = BTreeMap::new();
        let (mut last, mut last_history) = (self.story.last(), self.past.last());
        for write in writes {
            let key = write.key();
            if let Change::PutHistory(record) = &write.change {
                let is_written = record.number <= last_history;
                compare(write, is_written.then(Version::default))?;
                last_history = record.number;
                continue;
            }
            if matches!(write.change, Change::DropHistory(_)) {
                continue;
            }
            if let Change::Event(event) = &write.change {
                let is_told = event.sequence <= last;
                compare(write, is_told.then(Version::default))?;
                last = event.sequence;
                continue;
            }
            let found = match made.get(&key) {
                Some(version) => *version,
                None => self.known.get(&key).map(|known| known.version),
            };
            compare(write, found)?;
            made.insert(key, (!write.change.deletes()).then_some(write.becomes));
        }
        Ok(())
    }

    async fn put_sessions(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        let mut is_new = false;
        for write in writes {
            if let Change::PutNode(node) = &write.change {
                let Version { term, write } = write.becomes;
                let session = (node.epoch.0, term.0, write);
                self.sessions.insert(node.name.clone(), session);
                is_new = true;
            }
        }
        if !is_new {
            return Ok(());
        }
        let spec = Spec::of(About::Sessions, "", &self.sessions);
        let put = self.client.put(&spec, self.sessions_version.as_deref());
        let put = put
            .await
            .map_err(|failed| failed.of("the sessions of nodes"))?;
        self.sessions_version = Some(put);
        Ok(())
    }

    /// Makes the writes of one group, many at a time.
    async fn write_group(&mut self, group: &[Write]) -> Result<(), StoreError> {
        let mut under_way = JoinSet::new();
        for write in group {
            let Some((spec, before)) = self.record_of(write) else {
                continue;
            };
            if under_way.len() >= AT_ONCE {
                self.remember_written(under_way.join_next().await)?;
            }
            let (client, key, becomes) = (self.client.clone(), write.key(), write.becomes);
            under_way.spawn(async move {
                let put = client.put(&spec, before.as_deref()).await;
                (key, becomes, digest(&spec.data), put)
            });
        }
        while let Some(done) = under_way.join_next().await {
            self.remember_written(Some(done))?;
        }
        Ok(())
    }

    /// Remembers what the API server answered to a write. A refused write ends the commit.
    fn remember_written(
        &mut self,
        done: Option<Result<Done, tokio::task::JoinError>>,
    ) -> Result<(), StoreError> {
        let (key, version, digest, put) = done
            .expect("it was spawned")
            .expect("no write panics, and none is aborted");
        let resource_version = put.map_err(|failed| failed.of_record(&key, version))?;
        let known = StoredObject {
            resource_version,
            version,
            digest,
        };
        self.known.insert(key, known);
        Ok(())
    }

    /// The record to store, and the version of the object that it replaces. `None`: only the node's
    /// entry in `sessions` is new, and the object stays as it is.
    fn record_of(&mut self, write: &Write) -> Option<(Spec, Option<String>)> {
        let key = write.key();
        let (about, of) = object::of_key(&key);
        let spec = match &write.change {
            Change::PutJob(job) => Spec::of(about, of, job).at(write.becomes),
            Change::PutTombstone(tombstone) => Spec::of(about, of, tombstone).at(write.becomes),
            Change::PutOutbox(outbox) => Spec::of(about, of, &**outbox).at(write.becomes),
            Change::PutNode(node) => {
                let without_epoch = NodeRecord {
                    epoch: NodeEpoch(0),
                    ..(**node).clone()
                };
                Spec::of(about, of, &without_epoch)
            }
            _ => unreachable!("a deletion stores nothing, and events are stored together"),
        };
        let known = self.known.get_mut(&key);
        if let Some(known) = known
            && about == About::Node
            && known.digest == digest(&spec.data)
        {
            known.version = write.becomes;
            return None;
        }
        let before = self
            .known
            .get(&key)
            .map(|known| known.resource_version.clone());
        Some((spec, before))
    }

    /// Makes one write, or one deletion. Events are written together, by `write_events`.
    async fn write_one(&mut self, write: &Write) -> Result<(), StoreError> {
        if matches!(write.change, Change::Event(_)) {
            return Ok(());
        }
        if let Change::DropHistory(number) = write.change {
            return self.drop_history(number).await;
        }
        let key = write.key();
        if !write.change.deletes() {
            let Some((spec, before)) = self.record_of(write) else {
                return Ok(());
            };
            let put = self.client.put(&spec, before.as_deref()).await;
            let digest = digest(&spec.data);
            return self.remember_written(Some(Ok((key, write.becomes, digest, put))));
        }
        let Some(known) = self.known.remove(&key) else {
            return Ok(());
        };
        let (about, of) = object::of_key(&key);
        let deleted = self.client.delete(about, of, Some(&known.resource_version));
        deleted.await.map_err(|failed| failed.of(&key))?;
        if let RecordKey::Node(name) = &key {
            self.sessions.remove(name);
            let report = self.client.delete(About::Report, of, None);
            report.await.map_err(|failed| failed.of(&key))?;
        }
        Ok(())
    }

    /// Writes what is left of jobs that are over.
    async fn write_history(&mut self, group: &[Write]) -> Result<(), StoreError> {
        let records = group.iter().filter_map(|write| match &write.change {
            Change::PutHistory(record) => Some(record.clone()),
            _ => None,
        });
        for chunk in self.past.add(records) {
            let records: Vec<&HistoryRecord> = chunk.records.iter().map(|one| &**one).collect();
            let spec = Spec::of(About::History, chunk_name(chunk.first), &records);
            let put = self.client.put(&spec, chunk.resource_version.as_deref());
            let put = put.await.map_err(|failed| failed.of("history records"))?;
            self.past.written(chunk.first, put);
        }
        Ok(())
    }

    /// Deletes the objects whose records are all dropped. Those in an object with others stay there, and are
    /// dropped again after a start.
    async fn drop_history(&mut self, number: u64) -> Result<(), StoreError> {
        for (first, version) in self.past.take_dropped(number) {
            let name = chunk_name(first);
            let deleted = self
                .client
                .delete(About::History, &name, version.as_deref());
            let what = "old history records";
            deleted.await.map_err(|failed| failed.of(what))?;
        }
        Ok(())
    }

    /// Writes the events of a commit, and deletes those that make room for them.
    async fn write_events(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        let events = writes.iter().filter_map(|write| match &write.change {
            Change::Event(event) => Some((**event).clone()),
            _ => None,
        });
        if let Some(chunk) = self.story.add(events.collect()) {
            let spec = Spec::of(About::Events, chunk_name(chunk.first), &chunk.events);
            let put = self.client.put(&spec, chunk.resource_version.as_deref());
            let put = put.await.map_err(|failed| failed.of("events"))?;
            self.story.written(chunk.first, put);
        }
        // This commit also has the event of the deletion, so the events of a deleted job are released
        // only after that one was added.
        deleted(writes).for_each(|uid| self.story.kept().release(uid));
        for (first, version) in self.story.take_empty() {
            let name = chunk_name(first);
            let deleted = self.client.delete(About::Events, &name, version.as_deref());
            deleted.await.map_err(|failed| failed.of("old events"))?;
        }
        Ok(())
    }
}

type Done = (RecordKey, Version, u64, Result<String, Failed>);

/// The number is padded, so that names sort as numbers do.
fn chunk_name(first: u64) -> String {
    format!("{first:012}")
}

fn digest(data: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    hasher.finish()
}

fn unusable(why: Unusable) -> StoreError {
    StoreError::Unusable(Box::new(why))
}
