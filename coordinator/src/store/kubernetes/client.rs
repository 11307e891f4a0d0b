//! Requests for the record objects of one namespace.
//!
//! Every write names the version of the object that it replaces, so what another process has written
//! is never overwritten: the write fails with a conflict. If the answer to a write is lost, the object
//! is read, and written again if needed, as long as this process is sure that it may decide. Reports
//! are written without a version and without that question, because nothing is decided from them.
//!
//! A record that is too large for one object is stored in several (`parts`).

use std::{sync::Arc, time::Duration};

use muster_core::{
    fleet::commit::{RecordKey, Version},
    id::NodeName,
    node_report::NodeReport,
};
use muster_operator::{Server, Unanswered};
use muster_runtime::chain::chain;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::sleep;
use tracing::warn;

use super::{
    lease::Sure,
    object::{self, About, Object, Spec, Unreadable},
    parts::{self, Parts},
};
use crate::store::StoreError;

/// How many objects one answer to a list has.
const PAGE: u32 = 250;
/// The pause before a request is repeated.
const AGAIN: Duration = Duration::from_millis(250);
/// The pause after a part that could not be deleted.
const WASTE_AGAIN: Duration = Duration::from_secs(5);

/// Reads and writes record objects, for as long as this process is sure of the Lease.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) server: Server,
    pub(super) namespace: String,
    pub(super) sure: Sure,
    pub(super) parts: Arc<Parts>,
}

/// Why a write was not made.
#[derive(Debug)]
pub(super) enum Failed {
    /// The object has another version than was expected.
    Conflict,
    /// This process is not sure any more that it may decide.
    Deposed,
    /// The API server takes no object of so many bytes.
    TooLarge(usize, Unanswered),
    Refused(Unanswered),
}

#[derive(Debug, thiserror::Error)]
#[error("the objects {} cannot be read: {why}", object::PLURAL)]
struct Unlisted {
    why: Unanswered,
}

impl Failed {
    /// The same about a record.
    pub(super) fn of_record(self, key: &RecordKey, version: Version) -> StoreError {
        match (self, key) {
            (Self::TooLarge(_, why), RecordKey::Job(job)) => StoreError::TooLarge {
                store: "the API server".to_owned(),
                job: job.clone(),
                version,
                source: Box::new(why),
            },
            (failed, key) => failed.of(key),
        }
    }

    pub(super) fn of(self, what: impl ToString) -> StoreError {
        match self {
            Self::Deposed => StoreError::Deposed,
            Self::Conflict => StoreError::Overtaken(what.to_string()),
            Self::TooLarge(_, why) | Self::Refused(why) => StoreError::Write {
                store: format!("the API server ({})", what.to_string()),
                source: Box::new(why),
            },
        }
    }
}

impl Client {
    /// All records, as they are at one moment.
    pub(super) async fn list(&self) -> Result<Vec<Object>, StoreError> {
        let mut told = false;
        loop {
            match self.pages().await {
                Ok(objects) => {
                    let whole = self.parts.whole(objects);
                    return whole.map_err(|(name, why)| self.unreadable_record(name, why));
                }
                Err(_) if !self.sure.is_sure() => return Err(StoreError::Deposed),
                // It has expired if etcd has compacted the revision at which the list began.
                Err(why) if why.may_be_done() || why.is_busy() || why.is_expired() => {
                    if !told {
                        warn!("the records cannot be read yet: {why}");
                    }
                    told = true;
                    sleep(AGAIN).await;
                }
                Err(why) => return Err(StoreError::Unusable(Box::new(Unlisted { why }))),
            }
        }
    }

    async fn pages(&self) -> Result<Vec<Object>, Unanswered> {
        let (mut objects, mut next) = (Vec::new(), String::new());
        loop {
            // Without a resourceVersion the answer is the most recent state, never an older one.
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

    pub(super) fn read<T: DeserializeOwned>(&self, object: &Object) -> Result<T, StoreError> {
        object
            .spec
            .read()
            .map_err(|why| self.unreadable(object, why))
    }

    pub(super) fn unreadable(&self, object: &Object, why: Unreadable) -> StoreError {
        self.unreadable_record(object.metadata.name.clone(), why)
    }

    fn unreadable_record(&self, name: String, why: Unreadable) -> StoreError {
        StoreError::Record {
            store: format!("namespace {}", self.namespace),
            record: format!("{} {name}", object::KIND),
            source: Box::new(why),
        }
    }

    /// Stores a record in place of the object with this version. `None`: there is no such object.
    /// Returns the new version.
    pub(super) async fn put(&self, spec: &Spec, before: Option<&str>) -> Result<String, Failed> {
        loop {
            let objects = self.parts.split(spec);
            match self.put_all(&objects, before).await {
                Ok(version) => {
                    let own = objects.last().expect("a record has an object of its own");
                    self.parts.written(&own.name(), &own.data);
                    return Ok(version);
                }
                Err(Failed::TooLarge(size, _)) if self.parts.shrink(size) => {
                    self.parts.discard(parts::of(&objects));
                    self.parts.tell_shrunk(&spec.name());
                }
                // Nothing of it is stored but the first parts.
                Err(Failed::TooLarge(size, why)) => {
                    self.parts.discard(parts::of(&objects));
                    return Err(Failed::TooLarge(size, why));
                }
                // The record may be stored, although nobody knows. The next coordinator finds out whose
                // these parts are.
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Stores the parts of a record, and then its own object, which is the last.
    async fn put_all(&self, objects: &[Spec], before: Option<&str>) -> Result<String, Failed> {
        let (own, parts) = objects.split_last().expect("one is the record's own");
        for part in parts {
            self.put_one(part, None).await?;
        }
        self.put_one(own, before).await
    }

    async fn put_one(&self, spec: &Spec, before: Option<&str>) -> Result<String, Failed> {
        let name = spec.name();
        let path = object::path(&self.namespace, &name);
        let object = spec.object(before);
        let mut may_be_stored = false;
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
            // An earlier attempt may have stored this very record.
            let is_refused = why.is_conflict() || why.is_missing();
            if is_refused && may_be_stored {
                match self.server.get::<Object>(&path).await {
                    Ok(found) if found.spec == *spec => {
                        return Ok(found.metadata.resource_version.unwrap_or_default());
                    }
                    Err(why) if !why.is_missing() => {}
                    _ => return Err(Failed::Conflict),
                }
            } else if is_refused {
                return Err(Failed::Conflict);
            } else if why.is_too_large() {
                return Err(Failed::TooLarge(spec.data.len(), why));
            } else if !why.may_be_done() && !why.is_busy() {
                return Err(Failed::Refused(why));
            }
            may_be_stored |= why.may_be_done();
            sleep(AGAIN).await;
        }
    }

    pub(super) async fn delete(
        &self,
        about: About,
        of: &str,
        version: Option<&str>,
    ) -> Result<(), Failed> {
        let name = object::name(about, of);
        let path = object::path(&self.namespace, &name);
        let preconditions = version.map(|version| json!({ "resourceVersion": version }));
        let options =
            json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions });
        loop {
            if !self.sure.is_sure() {
                return Err(Failed::Deposed);
            }
            match self.server.delete::<Value>(&path, &options).await {
                Ok(_) => break,
                // An earlier attempt may have deleted it.
                Err(why) if why.is_missing() => break,
                Err(why) if why.is_conflict() => return Err(Failed::Conflict),
                Err(why) if why.may_be_done() || why.is_busy() => sleep(AGAIN).await,
                Err(why) => return Err(Failed::Refused(why)),
            }
        }
        self.parts.written(&name, "");
        Ok(())
    }

    /// Deletes parts that no record names any more, for as long as this process may decide. What it
    /// leaves, the next start finds.
    pub(super) async fn delete_waste(&self) {
        let mut told = false;
        loop {
            let part = self.parts.next_waste().await;
            match self.delete(About::Part, &part, None).await {
                Ok(()) => told = false,
                Err(Failed::Deposed) => return std::future::pending().await,
                Err(why) => {
                    if !told {
                        let why = why.of("a part of a record that is not needed any more");
                        warn!("{}", chain(&why));
                    }
                    told = true;
                    self.parts.discard([part]);
                    sleep(WASTE_AGAIN).await;
                }
            }
        }
    }

    /// Stores a node's report, whatever was there.
    pub(super) async fn put_report(
        &self,
        name: &NodeName,
        report: &NodeReport,
    ) -> Result<(), Unanswered> {
        let spec = Spec::of(About::Report, name.as_str(), report);
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
