//! The records of one API server: reading all of them, and writing them one after the other.
//!
//! Every write names the version of the object that it replaces, so a write of somebody else is a
//! conflict and never overwritten. A write without an answer is looked up and made again, for as long
//! as this coordinator is sure that it may decide.
//!
//! A node's session number and version change with every connection. They are in one object for all
//! nodes, so that ten thousand nodes that come back are not ten thousand writes. It is written before the
//! nodes' own objects: a number that nobody was told is skipped, and never given out twice.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use muster_core::{
    fleet::{
        Change, Event, NodeRecord, Stored,
        commit::{RecordKey, Version, Write, groups},
    },
    id::{JobUid, NodeEpoch, NodeName, Term},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};
use tracing::warn;

use super::{
    lease::Sure,
    object::{self, About, Object, Spec, Unreadable},
    story::Story,
};
use crate::{
    kept::Kept,
    kubernetes::{Server, Unanswered},
    store::{Loaded, StoreError, compare, deleted},
};

/// Objects in one answer of a list.
const PAGE: u32 = 250;
/// Writes of one group that are under way at a time.
const AT_ONCE: usize = 32;
/// After a write without an answer.
const AGAIN: Duration = Duration::from_millis(250);

/// Must grow when a record's shape changes so that an older build would misread it.
const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Coordinator {
    format: u32,
    term: Term,
}

/// Of one node: its epoch, and term and number of the record's version.
type Sessions = BTreeMap<NodeName, (u64, u64, u64)>;

/// A record as this coordinator knows it to be stored.
#[derive(Clone, Debug)]
struct Held {
    resource_version: String,
    version: Version,
    /// Of what is in the object itself.
    digest: u64,
}

/// Where the records are, and whether this process may still write them.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) server: Server,
    pub(super) namespace: String,
    pub(super) sure: Sure,
}

#[derive(Debug)]
pub(super) struct Books {
    place: Place,
    held: BTreeMap<RecordKey, Held>,
    coordinator: Option<String>,
    term: Term,
    sessions: Sessions,
    sessions_version: Option<String>,
    story: Story,
}

/// Why a write was not made.
#[derive(Debug)]
enum Failed {
    /// The object is another one than was expected.
    Conflict,
    Deposed,
    Refused(Unanswered),
}

#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("the objects {} cannot be read: {why}", object::PLURAL)]
    List { why: Unanswered },
    #[error(
        "the records in namespace {namespace} have format {found}, this build reads format {FORMAT}: use the build that wrote them"
    )]
    Format { namespace: String, found: u32 },
    #[error(
        "the object {0} is there, and the object `sessions` says nothing of it: somebody has changed these objects. Nothing was changed. Put \
         back a copy of them all"
    )]
    NoSession(String),
}

impl Books {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            held: BTreeMap::new(),
            coordinator: None,
            term: Term(0),
            sessions: Sessions::new(),
            sessions_version: None,
            story: Story::default(),
        }
    }

    pub(super) async fn load(&mut self) -> Result<Loaded, StoreError> {
        let objects = self.place.list().await?;
        *self = Self::new(self.place.clone());
        let (mut fleet, mut nodes, mut chunks) = (Stored::default(), Vec::new(), Vec::new());
        for object in &objects {
            let version = object.metadata.resource_version.clone().unwrap_or_default();
            let spec = &object.spec;
            match spec.about {
                About::Coordinator => {
                    let read: Coordinator = self.place.read(object)?;
                    if read.format != FORMAT {
                        let (namespace, found) = (self.place.namespace.clone(), read.format);
                        return Err(unusable(Unusable::Format { namespace, found }));
                    }
                    (self.coordinator, self.term) = (Some(version), read.term);
                }
                About::Sessions => {
                    self.sessions = self.place.read(object)?;
                    self.sessions_version = Some(version);
                }
                About::Job => {
                    let key = RecordKey::Job(spec.of.as_str().into());
                    self.hold(key, object, version)?;
                    fleet.jobs.push(self.place.read(object)?);
                }
                About::Tombstone => {
                    let key = RecordKey::Tombstone(spec.of.as_str().into());
                    self.hold(key, object, version)?;
                    fleet.tombstones.push(self.place.read(object)?);
                }
                About::Node => nodes.push((object, version)),
                About::Events => {
                    let events: Vec<Event> = self.place.read(object)?;
                    if let Some(first) = events.first() {
                        chunks.push((first.sequence, version, events));
                    }
                }
                About::Report => {
                    let of = spec.of.as_str().into();
                    fleet.reports.push((of, self.place.read(object)?));
                }
            }
        }
        for (object, resource_version) in nodes {
            fleet.nodes.push(self.node(object, resource_version)?);
        }
        // A node that was deleted, or whose first record was never written.
        let known = |key: NodeName| self.held.contains_key(&RecordKey::Node(key));
        fleet.reports.retain(|(name, _)| known(name.clone()));
        let is_there = |uid: &JobUid| self.held.contains_key(&RecordKey::Job(uid.clone()));
        let (story, events) = Story::loaded(chunks, |events| Kept::of(events, is_there));
        fleet.last_event = story.last();
        self.story = story;
        let versions = self.held.iter();
        Ok(Loaded {
            fleet,
            events,
            versions: versions
                .map(|(key, held)| (key.clone(), held.version))
                .collect(),
        })
    }

    fn hold(
        &mut self,
        key: RecordKey,
        object: &Object,
        resource_version: String,
    ) -> Result<(), StoreError> {
        let version = object.spec.read_version();
        let version = version.map_err(|why| self.place.unreadable(object, why))?;
        let held = Held {
            resource_version,
            version,
            digest: digest(&object.spec.data),
        };
        self.held.insert(key, held);
        Ok(())
    }

    fn node(
        &mut self,
        object: &Object,
        resource_version: String,
    ) -> Result<NodeRecord, StoreError> {
        let record: NodeRecord = self.place.read(object)?;
        let Some((epoch, term, write)) = self.sessions.get(&record.name).copied() else {
            let name = object.metadata.name.clone();
            return Err(unusable(Unusable::NoSession(name)));
        };
        let held = Held {
            resource_version,
            version: Version {
                term: Term(term),
                write,
            },
            digest: digest(&object.spec.data),
        };
        self.held.insert(RecordKey::Node(record.name.clone()), held);
        Ok(NodeRecord {
            epoch: NodeEpoch(epoch),
            ..record
        })
    }

    pub(super) async fn next_term(&mut self, at_least: Term) -> Result<Term, StoreError> {
        let stored = self.held.values().map(|held| held.version.term);
        let term = stored
            .max()
            .unwrap_or_default()
            .max(self.term)
            .next()
            .max(at_least);
        let record = Coordinator {
            format: FORMAT,
            term,
        };
        let spec = Spec::of(About::Coordinator, "", &record);
        let put = self.place.put(&spec, self.coordinator.as_deref()).await;
        self.coordinator = Some(put.map_err(|failed| failed.of("the term"))?);
        self.term = term;
        Ok(term)
    }

    pub(super) async fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        self.compare(writes)?;
        self.put_sessions(writes).await?;
        for group in groups(writes) {
            match group {
                [write] => self.make(write).await?,
                group => self.make_all(group).await?,
            }
        }
        self.tell(writes).await
    }

    /// Refuses what was decided on other records than are stored, as far as this process knows.
    fn compare(&self, writes: &[Write]) -> Result<(), StoreError> {
        let mut made: BTreeMap<RecordKey, Option<Version>> = BTreeMap::new();
        let mut last = self.story.last();
        for write in writes {
            let key = write.key();
            if let Change::Event(event) = &write.change {
                let is_told = event.sequence <= last;
                compare(write, is_told.then(Version::default))?;
                last = event.sequence;
                continue;
            }
            let found = match made.get(&key) {
                Some(version) => *version,
                None => self.held.get(&key).map(|held| held.version),
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
        let put = self.place.put(&spec, self.sessions_version.as_deref());
        let put = put
            .await
            .map_err(|failed| failed.of("the sessions of nodes"))?;
        self.sessions_version = Some(put);
        Ok(())
    }

    /// Makes the writes of one group, many at a time.
    async fn make_all(&mut self, group: &[Write]) -> Result<(), StoreError> {
        let mut under_way = JoinSet::new();
        for write in group {
            let Some((spec, before)) = self.record_of(write) else {
                continue;
            };
            if under_way.len() >= AT_ONCE {
                self.finish(under_way.join_next().await)?;
            }
            let (place, key, becomes) = (self.place.clone(), write.key(), write.becomes);
            under_way.spawn(async move {
                let put = place.put(&spec, before.as_deref()).await;
                (key, becomes, digest(&spec.data), put)
            });
        }
        while let Some(done) = under_way.join_next().await {
            self.finish(Some(done))?;
        }
        Ok(())
    }

    fn finish(
        &mut self,
        done: Option<Result<Done, tokio::task::JoinError>>,
    ) -> Result<(), StoreError> {
        let (key, version, digest, put) = done
            .expect("it was spawned")
            .expect("no write panics, and none is aborted");
        let resource_version = put.map_err(|failed| failed.of(&key))?;
        let held = Held {
            resource_version,
            version,
            digest,
        };
        self.held.insert(key, held);
        Ok(())
    }

    /// What is to be stored, and the version of the object that it replaces. `None`: the object has it
    /// already, and only what `sessions` says is new.
    fn record_of(&mut self, write: &Write) -> Option<(Spec, Option<String>)> {
        let key = write.key();
        let (about, of) = object::of_key(&key);
        let spec = match &write.change {
            Change::PutJob(job) => Spec::of(about, of, job).at(write.becomes),
            Change::PutTombstone(tombstone) => Spec::of(about, of, tombstone).at(write.becomes),
            Change::PutNode(node) => {
                let itself = NodeRecord {
                    epoch: NodeEpoch(0),
                    ..(**node).clone()
                };
                Spec::of(about, of, &itself)
            }
            _ => unreachable!("a deletion stores nothing, and events are stored together"),
        };
        let held = self.held.get_mut(&key);
        if let Some(held) = held
            && about == About::Node
            && held.digest == digest(&spec.data)
        {
            held.version = write.becomes;
            return None;
        }
        let before = self
            .held
            .get(&key)
            .map(|held| held.resource_version.clone());
        Some((spec, before))
    }

    async fn make(&mut self, write: &Write) -> Result<(), StoreError> {
        if matches!(write.change, Change::Event(_)) {
            return Ok(());
        }
        let key = write.key();
        if !write.change.deletes() {
            let Some((spec, before)) = self.record_of(write) else {
                return Ok(());
            };
            let put = self.place.put(&spec, before.as_deref()).await;
            let digest = digest(&spec.data);
            return self.finish(Some(Ok((key, write.becomes, digest, put))));
        }
        let Some(held) = self.held.remove(&key) else {
            return Ok(());
        };
        let (about, of) = object::of_key(&key);
        let deleted = self.place.delete(about, of, Some(&held.resource_version));
        deleted.await.map_err(|failed| failed.of(&key))?;
        if let RecordKey::Node(name) = &key {
            self.sessions.remove(name);
            let report = self.place.delete(About::Report, of, None);
            report.await.map_err(|failed| failed.of(&key))?;
        }
        Ok(())
    }

    /// Writes the events of a commit, and lets go of those that make room for them.
    async fn tell(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        let events = writes.iter().filter_map(|write| match &write.change {
            Change::Event(event) => Some((**event).clone()),
            _ => None,
        });
        if let Some(chunk) = self.story.add(events.collect()) {
            let spec = Spec::of(About::Events, chunk_name(chunk.first), &chunk.events);
            let put = self.place.put(&spec, chunk.resource_version.as_deref());
            let put = put.await.map_err(|failed| failed.of("events"))?;
            self.story.written(chunk.first, put);
        }
        // The event that tells of a deletion is committed together with it.
        deleted(writes).for_each(|uid| self.story.kept().release(uid));
        for (first, version) in self.story.take_empty() {
            let name = chunk_name(first);
            let deleted = self.place.delete(About::Events, &name, version.as_deref());
            deleted.await.map_err(|failed| failed.of("old events"))?;
        }
        Ok(())
    }
}

type Done = (RecordKey, Version, u64, Result<String, Failed>);

/// Names sort as numbers do.
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

impl Failed {
    fn of(self, what: impl ToString) -> StoreError {
        match self {
            Self::Deposed => StoreError::Deposed,
            Self::Conflict => StoreError::Overtaken(what.to_string()),
            Self::Refused(why) => StoreError::Write {
                store: format!("the API server ({})", what.to_string()),
                source: Box::new(why),
            },
        }
    }
}

impl Place {
    /// All records, as they are at one moment.
    async fn list(&self) -> Result<Vec<Object>, StoreError> {
        let mut told = false;
        loop {
            match self.pages().await {
                Ok(objects) => return Ok(objects),
                Err(_) if !self.sure.is_sure() => return Err(StoreError::Deposed),
                // 410: the list took so long that its moment is forgotten.
                Err(why) if why.is_open() || why.is_busy() || why.is_expired() => {
                    if !told {
                        warn!("the records cannot be read yet: {why}");
                    }
                    told = true;
                    sleep(AGAIN).await;
                }
                Err(why) => return Err(unusable(Unusable::List { why })),
            }
        }
    }

    async fn pages(&self) -> Result<Vec<Object>, Unanswered> {
        let (mut objects, mut next) = (Vec::new(), String::new());
        loop {
            // Without a resourceVersion the answer is what etcd's majority has.
            let mut path = format!("{}?limit={PAGE}", object::folder(&self.namespace));
            if !next.is_empty() {
                path = format!("{path}&continue={next}");
            }
            let page: Page = self.server.get(&path).await?;
            objects.extend(page.items);
            next = page.metadata.next.unwrap_or_default();
            if next.is_empty() {
                return Ok(objects);
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, object: &Object) -> Result<T, StoreError> {
        object
            .spec
            .read()
            .map_err(|why| self.unreadable(object, why))
    }

    fn unreadable(&self, object: &Object, why: Unreadable) -> StoreError {
        StoreError::Record {
            store: format!("namespace {}", self.namespace),
            record: format!("{} {}", object::KIND, object.metadata.name),
            source: Box::new(why),
        }
    }

    /// Stores a record in place of the object with this version. `None`: there is no such object.
    /// Returns the new version.
    async fn put(&self, spec: &Spec, before: Option<&str>) -> Result<String, Failed> {
        let name = spec.name();
        let path = object::path(&self.namespace, &name);
        let object = spec.object(before);
        let mut is_open = false;
        loop {
            if !self.sure.is_sure() {
                return Err(Failed::Deposed);
            }
            let answer: Result<Object, _> = match before {
                Some(_) => self.server.replace(&path, &object).await,
                None => {
                    self.server
                        .create(&object::folder(&self.namespace), &object)
                        .await
                }
            };
            let why = match answer {
                Ok(stored) => return Ok(stored.metadata.resource_version.unwrap_or_default()),
                Err(why) => why,
            };
            // An attempt without an answer may have been made.
            let is_refused = why.is_conflict() || why.is_missing();
            if is_refused && is_open {
                match self.server.get::<Object>(&path).await {
                    Ok(found) if found.spec == *spec => {
                        return Ok(found.metadata.resource_version.unwrap_or_default());
                    }
                    Err(why) if !why.is_missing() => {}
                    _ => return Err(Failed::Conflict),
                }
            } else if is_refused {
                return Err(Failed::Conflict);
            } else if !why.is_open() && !why.is_busy() {
                return Err(Failed::Refused(why));
            }
            is_open |= why.is_open();
            sleep(AGAIN).await;
        }
    }

    async fn delete(&self, about: About, of: &str, version: Option<&str>) -> Result<(), Failed> {
        let path = object::path(&self.namespace, &object::name(about, of));
        let preconditions = version.map(|version| json!({ "resourceVersion": version }));
        let options =
            json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions });
        loop {
            if !self.sure.is_sure() {
                return Err(Failed::Deposed);
            }
            match self.server.delete::<Value>(&path, &options).await {
                Ok(_) => return Ok(()),
                // Perhaps by an attempt of ours without an answer.
                Err(why) if why.is_missing() => return Ok(()),
                Err(why) if why.is_conflict() => return Err(Failed::Conflict),
                Err(why) if why.is_open() || why.is_busy() => sleep(AGAIN).await,
                Err(why) => return Err(Failed::Refused(why)),
            }
        }
    }

    /// Stores a node's report, whatever was there.
    pub(super) async fn put_report(
        &self,
        name: &NodeName,
        report: &Arc<muster_core::node_report::NodeReport>,
    ) -> Result<(), Unanswered> {
        let spec = Spec::of(About::Report, name.as_str(), &**report);
        let path = object::path(&self.namespace, &spec.name());
        let path = format!("{path}?fieldManager=muster-coordinator&force=true");
        self.server
            .apply::<Value>(&path, &spec.object(None))
            .await?;
        Ok(())
    }
}

#[derive(Deserialize)]
struct Page {
    metadata: PageMeta,
    items: Vec<Object>,
}

#[derive(Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}
