//! Lists and follows the Node objects of a Kubernetes cluster, and hands what is kept of them to
//! the engine.
//!
//! Most changes of an object are heartbeats of its kubelet, so an object whose kept part is as
//! before is not handed on. It decides nothing and never gives up: if it cannot read an API server,
//! it says so once and tries again with a back-off.
//!
//! *Listing* → *following* from the list's version on → again from the last version seen, or from a
//! new list if the server has forgotten that version (410). This is the loop of kube's own watcher.
//! It is written out here because kube's watcher does not tell when a watch has begun; without
//! that, nobody could be told of a recovery or of a missing right to watch.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use kube::{
    Client, Config, Error,
    api::{ListParams, WatchEvent, WatchParams},
    core::Request,
};
use muster_core::{
    fleet::{Input, ObjectNews},
    id::NodeName,
    node_object::NodeObject,
};
use muster_runtime::{
    backoff::{Backoff, USEFUL, entropy},
    chain::chain,
};
use tokio::time::{Instant, error::Elapsed, sleep, timeout, timeout_at};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    KubernetesError,
    object::{Object, Page},
};
use crate::handle::{Handle, NoAnswer};

/// Where Node objects are.
pub(super) const NODES: &str = "/api/v1/nodes";

/// Objects in one answer. Each has some 20 KiB, mostly images and who changed which field, and is in
/// memory until it is read.
const PAGE: u32 = 250;

/// Nodes of a cluster. Kubernetes itself is built for 5,000. At some 5 KiB of labels each, 20,000
/// take 100 MB.
const NODES_MAX: usize = 20_000;

/// How long an answer may take to begin, or a page to arrive.
const ANSWER: Duration = Duration::from_secs(60);

/// The server ends a watch after this time. If a watch has not ended `WATCH_ENDS` later, its
/// connection is dead.
const WATCH: Duration = Duration::from_secs(290);
const WATCH_ENDS: Duration = Duration::from_secs(20);

/// The longest pause between two attempts. Labels are not urgent, and an API server that comes back
/// may have many clients.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// After this many failures in a row the log and the fleet are told. A single one is usually a
/// connection that was reset, as happens whenever an API server is upgraded.
const FAILURES_TOLD: u32 = 2;

/// The Node objects of one cluster.
pub(crate) struct Nodes {
    client: Client,
}

impl Nodes {
    pub(crate) fn of(configuration: Config) -> Result<Self, KubernetesError> {
        let client = Client::try_from(configuration)
            .map_err(|source| KubernetesError::Client(Box::new(source)))?;
        Ok(Self { client })
    }

    /// Follows the objects until the shutdown.
    pub(crate) async fn follow(self, handle: Handle, shutdown: CancellationToken) {
        let mut follower = Follower {
            client: self.client,
            handle,
            kept: BTreeMap::new(),
            version: None,
            failures: 0,
            told: None,
        };
        // Boxed, because kube's requests are large and this task is spawned with others.
        shutdown
            .run_until_cancelled(Box::pin(follower.work()))
            .await;
    }
}

struct Follower {
    client: Client,
    handle: Handle,
    /// What the engine was told last. It shares these values.
    kept: BTreeMap<NodeName, Arc<NodeObject>>,
    /// The version to watch from. `None`: list first.
    version: Option<String>,
    /// Failures in a row.
    failures: u32,
    /// `Some`: the log and the fleet were told that the objects cannot be read. The value tells
    /// whether the server refuses.
    told: Option<bool>,
}

impl Follower {
    async fn work(&mut self) {
        let mut backoff = Backoff::new(RETRY_MAX, USEFUL);
        loop {
            let begun = Instant::now();
            let told = match self.round().await {
                // The server ends every watch after a while.
                Ok(()) => Ok(()),
                Err(Trouble::Ended(_)) => return,
                Err(trouble) => self.failed(&trouble).await,
            };
            if told.is_err() {
                return;
            }
            sleep(backoff.after(begun.elapsed(), entropy())).await;
        }
    }

    /// One watch, with a list before it if it needs one.
    async fn round(&mut self) -> Result<(), Trouble> {
        let from = match self.version.clone() {
            Some(version) => version,
            None => self.list().await?,
        };
        self.version = Some(from.clone());
        let begun = Instant::now();
        let parameters = WatchParams::default().timeout(WATCH.as_secs() as u32);
        let request = Request::new(NODES).watch(&parameters, &from);
        let request = request.expect("these parameters go together");
        let watch = timeout(ANSWER, self.client.request_events::<Object>(request))
            .await
            .map_err(Trouble::silent("watch"))?;
        let mut watch = pin!(watch.map_err(|e| Trouble::api("watch", e))?);
        self.following().await?;
        loop {
            let Ok(next) = timeout_at(begun + WATCH + WATCH_ENDS, watch.next()).await else {
                return Err(Trouble::Silent {
                    verb: "watch",
                    after: WATCH + WATCH_ENDS,
                });
            };
            let Some(event) = next else { return Ok(()) };
            self.hear(event.map_err(|e| Trouble::api("watch", e))?)
                .await?;
        }
    }

    /// Reads all objects, and returns the version to watch from.
    async fn list(&mut self) -> Result<String, Trouble> {
        let (mut all, mut unnamed) = (BTreeMap::new(), 0_usize);
        let mut parameters = ListParams::default().limit(PAGE);
        loop {
            let request = Request::new(NODES).list(&parameters);
            let request = request.expect("these parameters go together");
            let answer = timeout(ANSWER, self.client.request_text(request))
                .await
                .map_err(Trouble::silent("list"))?;
            let text = answer.map_err(|e| Trouble::api("list", e))?;
            let page: Page = serde_json::from_str(&text)
                .map_err(|e| Trouble::api("list", Error::SerdeError(e)))?;
            for object in page.items {
                match object.kept() {
                    Some((name, object)) => drop(all.insert(name, object)),
                    None => unnamed += 1,
                }
            }
            if all.len() > NODES_MAX {
                return Err(Trouble::TooMany);
            }
            match page.metadata.r#continue.as_str() {
                token if !token.is_empty() => parameters = parameters.continue_token(token),
                _ => {
                    info!(
                        nodes = all.len(),
                        unnamed,
                        "Kubernetes Node objects listed; unnamed: no agent can have their names"
                    );
                    self.kept.clone_from(&all);
                    self.tell(ObjectNews::Listed(all)).await?;
                    return Ok(page.metadata.resource_version);
                }
            }
        }
    }

    async fn hear(&mut self, event: WatchEvent<Object>) -> Result<(), Trouble> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.version = Some(object.version().to_owned());
                let kept = object.kept();
                if let Some((name, object)) = kept.filter(|(n, o)| self.kept.get(n) != Some(o)) {
                    self.kept.insert(name.clone(), object.clone());
                    self.tell(ObjectNews::Applied(name, object)).await?;
                }
            }
            WatchEvent::Deleted(object) => {
                self.version = Some(object.version().to_owned());
                if let Some((name, _)) = object.kept() {
                    self.kept.remove(&name);
                    self.tell(ObjectNews::Deleted(name)).await?;
                }
            }
            WatchEvent::Bookmark(mark) => self.version = Some(mark.metadata.resource_version),
            WatchEvent::Error(status) => return Err(Trouble::api("watch", Error::Api(status))),
        }
        Ok(())
    }

    async fn tell(&self, news: ObjectNews) -> Result<(), NoAnswer> {
        self.handle.tell(Input::Objects(news)).await
    }

    async fn following(&mut self) -> Result<(), NoAnswer> {
        self.failures = 0;
        if self.told.take().is_some() {
            info!("Kubernetes Node objects are read again");
            self.tell(ObjectNews::Followed).await?;
        }
        Ok(())
    }

    /// Tells the log and the fleet of a failure once. It tells them again only if a server that did
    /// not answer now refuses, or the other way round.
    async fn failed(&mut self, trouble: &Trouble) -> Result<(), NoAnswer> {
        if let Trouble::Expired { .. } = trouble {
            debug!("{trouble}: they are listed anew");
            self.version = None;
            return Ok(());
        }
        self.failures = self.failures.saturating_add(1);
        let (refused, why) = (trouble.is_refusal(), trouble.sentence());
        if self.told == Some(refused) || (self.failures < FAILURES_TOLD && !refused) {
            debug!("{why}");
            return Ok(());
        }
        warn!("Kubernetes Node objects cannot be read, nodes keep the labels they have: {why}");
        self.told = Some(refused);
        self.tell(ObjectNews::Unreadable(why)).await
    }
}

/// Why the objects are not being followed.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{verb} nodes")]
    Api {
        verb: &'static str,
        #[source]
        source: Box<Error>,
    },
    #[error("{verb} nodes: no answer within {} s", after.as_secs())]
    Silent { verb: &'static str, after: Duration },
    #[error("list nodes: there are more than {NODES_MAX}")]
    TooMany,
    /// The server has forgotten the version that the watch asked for. A new list follows, as usual.
    #[error("{verb} nodes: the version is too old")]
    Expired { verb: &'static str },
    #[error("the engine has ended")]
    Ended(#[from] NoAnswer),
}

impl Trouble {
    fn api(verb: &'static str, source: Error) -> Self {
        match &source {
            Error::Api(status) if status.code == 410 => Self::Expired { verb },
            _ => Self::Api {
                verb,
                source: Box::new(source),
            },
        }
    }

    fn silent(verb: &'static str) -> impl FnOnce(Elapsed) -> Self {
        move |_| Self::Silent {
            verb,
            after: ANSWER,
        }
    }

    /// The server itself refuses, so the next attempt will fail too.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, Error::Api(status) if (400..500).contains(&status.code)))
    }

    /// A sentence for a person: what is wrong, and where to mend it.
    fn sentence(&self) -> String {
        match self {
            Self::Api { verb, source } => match &**source {
                Error::Api(status) if status.code == 403 => format!(
                    "the coordinator may not {verb} nodes ({}): its user needs a ClusterRole with apiGroups [\"\"], resources [nodes], verbs \
                     [get, list, watch]",
                    status.message
                ),
                Error::Api(status) if status.code == 401 => {
                    format!("{verb} nodes: the API server does not know who asks (401)")
                }
                Error::Api(status) => format!("{verb} nodes: {} ({})", status.message, status.code),
                _ => chain(self),
            },
            _ => chain(self),
        }
    }
}
