//! Lists and follows all objects of one kind, and hands on what it has read.
//!
//! Whatever lists objects of namespaces goes through here, and so each namespace has a share of what is kept
//! (`shares`): a namespace with very many objects takes no reader away from others.
//!
//! It decides nothing else and never gives up: if it cannot read the API server, it says so once and
//! tries again with a back-off.
//!
//! *Listing* → *following* from the list's version on → again from the last version seen, or from a
//! new list if the server has forgotten that version (410). This is the loop of kube's own watcher.
//! It is written out here because kube's watcher does not tell when a watch has begun; without
//! that, nobody could be told of a recovery or of a missing right to watch.

use std::{collections::BTreeMap, fmt::Debug, future::Future, pin::pin, time::Duration};

use kube::{
    Api, Error, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use muster_handle::handle::NoAnswer;
use muster_runtime::{
    backoff::{Backoff, USEFUL, entropy},
    chain::chain,
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, error::Elapsed, sleep, timeout, timeout_at};
use tokio_stream::StreamExt;
use tracing::{debug, info, warn};

use self::shares::{Heard, Shares};

mod shares;

pub(super) use self::shares::{Crowded, size};

/// How long an answer may take to begin, or a page to arrive.
const ANSWER: Duration = Duration::from_secs(60);

/// The server ends a watch after this time. If a watch has not ended `WATCH_ENDS` later, its
/// connection is dead.
const WATCH: Duration = Duration::from_secs(290);
const WATCH_ENDS: Duration = Duration::from_secs(20);

/// While a namespace is crowded and objects have gone, all objects are listed anew so long after the last list:
/// there may be room.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(60);

/// Objects of each kind that are kept, if nobody says otherwise: four times the pods of a job of 4,096 nodes.
pub const KEPT_MAX: usize = 20_000;

/// Objects of namespaces in one answer, which is in memory until it is read. Each may be as large as the API
/// server takes, 1.5 MiB.
pub(super) const PAGE: u32 = 25;

/// After this many failures in a row the log and the reader are told. A single one is usually a
/// connection that was reset, as happens whenever an API server is upgraded.
const FAILURES_TOLD: u32 = 2;

/// What is read, for people.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    /// The plural of the kind, as rules have it.
    pub(super) plural: &'static str,
    /// The group of the kind, as rules have it.
    pub(super) group: &'static str,
    /// The objects, in a sentence.
    pub(super) objects: &'static str,
    /// What goes on while they cannot be read.
    pub(super) meanwhile: &'static str,
    /// What to do if the API server does not know the kind.
    pub(super) install: &'static str,
}

impl About {
    /// Why something in this namespace is not known.
    pub(super) fn crowded(&self, namespace: &str) -> String {
        format!(
            "there are more {} in namespace {namespace} than its share of what this coordinator keeps, so not all of them are known; delete \
             those that are not needed",
            self.objects
        )
    }
}

/// Every API server has these kinds.
pub(super) const BUILT_IN: &str = "is it a Kubernetes API server?";

/// How our own kinds are installed.
pub(super) const INSTALL_OURS: &str = "install it: muster-coordinator crd | kubectl apply -f -";

/// Who reads the objects of one kind, and what of them.
pub(super) trait Reader: Send {
    type Object: Resource + Clone + DeserializeOwned + Debug + Send + 'static;
    type Key: Ord + Clone + Send + Sync;
    type Kept: Send;

    /// Objects in one answer, which is in memory until it is read.
    const PAGE: u32 = PAGE;
    /// The label that an object must have. `None`: all objects are read.
    const SELECTOR: Option<&'static str> = None;
    /// The longest pause between two attempts.
    const RETRY_MAX: Duration;
    /// The bytes that all objects may take together.
    const ROOM: usize;

    /// What is read, for people.
    fn about(&self) -> About;

    /// What is kept of an object. `None`: it is not for this reader.
    fn keep(object: Self::Object) -> Option<(Self::Key, Self::Kept)>;

    /// Whose share an object takes.
    fn namespace<'a>(key: &'a Self::Key, kept: &'a Self::Kept) -> &'a str;

    /// The bytes that it takes of [`Reader::ROOM`].
    fn bytes(kept: &Self::Kept) -> usize;

    /// Keeps no more of an object than that it exists. Returns whether this reader can do with that.
    fn shed(_: &mut Self::Kept) -> bool {
        false
    }

    fn tell(
        &mut self,
        news: News<Self::Key, Self::Kept>,
    ) -> impl Future<Output = Result<(), NoAnswer>> + Send;
}

/// What was read.
#[derive(Debug)]
pub(super) enum News<K, V> {
    /// All objects that exist, and the namespaces of which there may be others.
    Listed(BTreeMap<K, V>, Crowded),
    /// Of these namespaces nothing is told of new objects from now on.
    Crowded(Crowded),
    /// This object is new, or has changed.
    Applied(K, V),
    /// This object is gone; its last state.
    Deleted(K, V),
    /// The objects can be followed again, after they could not be read.
    Followed,
    /// The objects cannot be read, and why.
    Unreadable(String),
}

/// Follows the objects of one kind.
pub(super) struct Follower<R: Reader> {
    api: Api<R::Object>,
    about: About,
    reader: R,
    shares: Shares<R>,
    /// The version to watch from. `None`: list first.
    version: Option<String>,
    /// When all objects were listed last.
    listed: Option<Instant>,
    /// How long that list took.
    took: Duration,
    /// An object has gone since then.
    has_room: bool,
    /// Failures in a row.
    failures: u32,
    /// `Some`: the log and the reader were told that the objects cannot be read. The value tells
    /// whether the server refuses.
    told: Option<bool>,
}

impl<R: Reader> Follower<R> {
    /// `most`: so many objects are kept at most.
    pub(super) fn new(api: Api<R::Object>, reader: R, most: usize) -> Self {
        Self {
            api,
            about: reader.about(),
            reader,
            shares: Shares::new(most),
            version: None,
            listed: None,
            took: Duration::ZERO,
            has_room: false,
            failures: 0,
            told: None,
        }
    }

    /// Ends when the reader has ended.
    pub(super) async fn work(&mut self) {
        let mut backoff = Backoff::new(R::RETRY_MAX, USEFUL);
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
        let mut parameters = WatchParams::default().timeout(WATCH.as_secs() as u32);
        parameters.label_selector = R::SELECTOR.map(str::to_owned);
        let watch = timeout(ANSWER, self.api.watch(&parameters, &from))
            .await
            .map_err(Trouble::silent(self.about, "watch"))?;
        let mut watch = pin!(watch.map_err(|e| Trouble::api(self.about, "watch", e))?);
        self.following().await?;
        loop {
            let ends = begun + WATCH + WATCH_ENDS;
            let again = self.list_again().unwrap_or(ends);
            let Ok(next) = timeout_at(ends.min(again), watch.next()).await else {
                if again < ends {
                    self.version = None;
                    return Ok(());
                }
                return Err(Trouble::Silent {
                    verb: "watch",
                    plural: self.about.plural,
                    after: WATCH + WATCH_ENDS,
                });
            };
            let Some(event) = next else { return Ok(()) };
            self.hear(event.map_err(|e| Trouble::api(self.about, "watch", e))?)
                .await?;
            if self.version.is_none() {
                return Ok(());
            }
        }
    }

    /// When all objects are listed anew, because there may be room for those that are not kept.
    fn list_again(&self) -> Option<Instant> {
        let waits = self.has_room && !self.shares.crowded.is_empty();
        // A list that takes long is made less often: nothing is followed meanwhile.
        let pause = LOOK_FOR_ROOM.max(self.took * 10);
        self.listed.filter(|_| waits).map(|at| at + pause)
    }

    /// Reads all objects, and returns the version to watch from.
    async fn list(&mut self) -> Result<String, Trouble> {
        let begun = Instant::now();
        let (mut all, mut unnamed) = (BTreeMap::new(), 0_usize);
        let mut shares = self.shares.emptied();
        let mut parameters = ListParams::default().limit(R::PAGE);
        parameters.label_selector = R::SELECTOR.map(str::to_owned);
        loop {
            let answer = timeout(ANSWER, self.api.list(&parameters))
                .await
                .map_err(Trouble::silent(self.about, "list"))?;
            let page = answer.map_err(|e| Trouble::api(self.about, "list", e))?;
            for object in page.items {
                match R::keep(object) {
                    Some((key, kept)) => {
                        shares.put(&key, &kept);
                        all.insert(key, kept);
                    }
                    None => unnamed += 1,
                }
            }
            shares.squeeze(&mut all, &self.shares);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => {
                    info!(
                        count = all.len(),
                        unnamed,
                        "{} listed; unnamed: Muster cannot have their names",
                        self.about.objects
                    );
                    let crowded = shares.crowded.clone();
                    (self.shares, self.has_room) = (shares, false);
                    (self.listed, self.took) = (Some(Instant::now()), begun.elapsed());
                    self.reader.tell(News::Listed(all, crowded)).await?;
                    return Ok(page.metadata.resource_version.unwrap_or_default());
                }
            }
        }
    }

    async fn hear(&mut self, event: WatchEvent<R::Object>) -> Result<(), Trouble> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.version = object.meta().resource_version.clone();
                if let Some((key, kept)) = R::keep(object) {
                    self.applied(key, kept).await?;
                }
            }
            WatchEvent::Deleted(object) => {
                self.version = object.meta().resource_version.clone();
                if let Some((key, kept)) = R::keep(object) {
                    let is_crowded = self.shares.crowded.contains(R::namespace(&key, &kept));
                    self.shares.remove(&key);
                    self.has_room |= is_crowded || self.shares.has_room();
                    self.reader.tell(News::Deleted(key, kept)).await?;
                }
            }
            WatchEvent::Bookmark(mark) => self.version = Some(mark.metadata.resource_version),
            WatchEvent::Error(status) => {
                return Err(Trouble::api(self.about, "watch", Error::Api(status)));
            }
        }
        Ok(())
    }

    async fn applied(&mut self, key: R::Key, mut kept: R::Kept) -> Result<(), NoAnswer> {
        match self.shares.hear(&key, &mut kept) {
            Heard::Kept => self.reader.tell(News::Applied(key, kept)).await,
            Heard::NotKept { is_new: false } => Ok(()),
            Heard::NotKept { is_new: true } => {
                let crowded = self.shares.crowded.clone();
                self.reader.tell(News::Crowded(crowded)).await
            }
            Heard::ListAnew => {
                self.version = None;
                Ok(())
            }
        }
    }

    async fn following(&mut self) -> Result<(), NoAnswer> {
        self.failures = 0;
        if self.told.take().is_some() {
            info!("{} are read again", self.about.objects);
            self.reader.tell(News::Followed).await?;
        }
        Ok(())
    }

    /// Tells the log and the reader of a failure once. It tells them again only if a server that
    /// did not answer now refuses, or the other way round.
    async fn failed(&mut self, trouble: &Trouble) -> Result<(), NoAnswer> {
        if let Trouble::Expired { .. } = trouble {
            debug!("{trouble}: they are listed anew");
            self.version = None;
            return Ok(());
        }
        self.failures = self.failures.saturating_add(1);
        let (refused, why) = (trouble.is_refusal(), trouble.sentence(self.about));
        if self.told == Some(refused) || (self.failures < FAILURES_TOLD && !refused) {
            debug!("{why}");
            return Ok(());
        }
        warn!(
            "{} cannot be read, {}: {why}",
            self.about.objects, self.about.meanwhile
        );
        self.told = Some(refused);
        self.reader.tell(News::Unreadable(why)).await
    }
}

/// Why the objects are not being followed.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{verb} {plural}")]
    Api {
        verb: &'static str,
        plural: &'static str,
        #[source]
        source: Box<Error>,
    },
    #[error("{verb} {plural}: no answer within {} s", after.as_secs())]
    Silent {
        verb: &'static str,
        plural: &'static str,
        after: Duration,
    },
    /// The server has forgotten the version that the watch asked for. A new list follows, as usual.
    #[error("{verb} {plural}: the version is too old")]
    Expired {
        verb: &'static str,
        plural: &'static str,
    },
    #[error("the reader has ended")]
    Ended(#[from] NoAnswer),
}

impl Trouble {
    fn api(about: About, verb: &'static str, source: Error) -> Self {
        let plural = about.plural;
        match &source {
            Error::Api(status) if status.code == 410 => Self::Expired { verb, plural },
            _ => Self::Api {
                verb,
                plural,
                source: Box::new(source),
            },
        }
    }

    fn silent(about: About, verb: &'static str) -> impl FnOnce(Elapsed) -> Self {
        move |_| Self::Silent {
            verb,
            plural: about.plural,
            after: ANSWER,
        }
    }

    /// The server itself refuses, so the next attempt will fail too.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, Error::Api(status) if (400..500).contains(&status.code)))
    }

    /// A sentence for a person: what is wrong, and where to mend it.
    fn sentence(&self, about: About) -> String {
        let About { group, install, .. } = about;
        match self {
            Self::Api {
                verb,
                plural,
                source,
            } => match &**source {
                Error::Api(status) if status.code == 403 => format!(
                    "the coordinator may not {verb} {plural} ({}): its user needs a ClusterRole with apiGroups [\"{group}\"], resources \
                     [{plural}], verbs [get, list, watch]",
                    status.message
                ),
                Error::Api(status) if status.code == 401 => {
                    format!("{verb} {plural}: the API server does not know who asks (401)")
                }
                Error::Api(status) if status.code == 404 => {
                    format!("{verb} {plural}: the API server has no such kind (404); {install}")
                }
                Error::Api(status) => {
                    format!("{verb} {plural}: {} ({})", status.message, status.code)
                }
                _ => chain(self),
            },
            _ => chain(self),
        }
    }
}
