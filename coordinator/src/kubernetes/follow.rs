//! Lists and follows all objects of one kind, and hands on what it has read.
//!
//! It decides nothing and never gives up: if it cannot read the API server, it says so once and
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
use muster_core::fleet::fair_share;
use muster_runtime::{
    backoff::{Backoff, USEFUL, entropy},
    chain::chain,
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, error::Elapsed, sleep, timeout, timeout_at};
use tokio_stream::StreamExt;
use tracing::{debug, info, warn};

use crate::handle::NoAnswer;

/// How long an answer may take to begin, or a page to arrive.
const ANSWER: Duration = Duration::from_secs(60);

/// The server ends a watch after this time. If a watch has not ended `WATCH_ENDS` later, its
/// connection is dead.
const WATCH: Duration = Duration::from_secs(290);
const WATCH_ENDS: Duration = Duration::from_secs(20);

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

/// Every API server has these kinds.
pub(super) const BUILT_IN: &str = "is it a Kubernetes API server?";

/// How our own kinds are installed.
pub(super) const INSTALL_OURS: &str = "install it: muster-coordinator crd | kubectl apply -f -";

/// Who reads the objects of one kind, and what of them.
pub(super) trait Reader: Send {
    type Object: Resource + Clone + DeserializeOwned + Debug + Send + 'static;
    type Key: Ord + Send;
    type Kept: Send;

    /// So many objects are read at most.
    const MOST: usize;
    /// Objects in one answer, which is in memory until it is read.
    const PAGE: u32;
    /// The label that an object must have. `None`: all objects are read.
    const SELECTOR: Option<&'static str> = None;
    /// The longest pause between two attempts.
    const RETRY_MAX: Duration;
    /// The bytes that all objects may take together. Above that, of some objects of the namespaces that
    /// take most only the existence is kept.
    const ROOM: usize = usize::MAX;

    /// What is read, for people.
    fn about(&self) -> About;

    /// What is kept of an object. `None`: it is not for this reader.
    fn keep(object: Self::Object) -> Option<(Self::Key, Self::Kept)>;

    /// The namespace of an object, and the bytes that it takes of [`Reader::ROOM`].
    fn takes<'a>(_: &'a Self::Key, _: &Self::Kept) -> (&'a str, usize) {
        ("", 0)
    }

    /// Keeps no more of an object than that it exists.
    fn shed(_: &mut Self::Kept) {}

    fn tell(
        &mut self,
        news: News<Self::Key, Self::Kept>,
    ) -> impl Future<Output = Result<(), NoAnswer>> + Send;
}

/// What was read.
#[derive(Debug)]
pub(super) enum News<K, V> {
    /// All objects that exist.
    Listed(BTreeMap<K, V>),
    /// This object is new, or has changed.
    Applied(K, V),
    /// This object is gone; its last state.
    Deleted(K, V),
    /// The objects can be followed again, after they could not be read.
    Followed,
    /// The objects cannot be read, and why.
    Unreadable(String),
}

/// Sheds objects of the namespaces that take most, until all take no more than they may. Some room is
/// left, so that not every new object begins this again. Returns how much they take now.
pub(super) fn shed<R: Reader>(all: &mut BTreeMap<R::Key, R::Kept>) -> usize {
    let mut takes: BTreeMap<String, usize> = BTreeMap::new();
    for (key, kept) in all.iter() {
        let (namespace, bytes) = R::takes(key, kept);
        *takes.entry(namespace.to_owned()).or_default() += bytes;
    }
    let total = takes.values().sum();
    if total <= R::ROOM {
        return total;
    }
    let share = fair_share(takes.values().copied(), R::ROOM / 8 * 7);
    let greedy: Vec<&str> = takes
        .iter()
        .filter_map(|(namespace, bytes)| (*bytes > share).then_some(namespace.as_str()))
        .collect();
    warn!(
        "the objects of namespaces {} take too much room: some of them are refused until others are deleted",
        greedy.join(", ")
    );
    let (mut taken, mut total): (BTreeMap<String, usize>, usize) = (BTreeMap::new(), 0);
    for (key, kept) in all.iter_mut() {
        let (namespace, bytes) = R::takes(key, kept);
        let taken = taken.entry(namespace.to_owned()).or_default();
        if *taken + bytes > share {
            R::shed(kept);
        } else {
            *taken += bytes;
            total += bytes;
        }
    }
    total
}

/// Follows the objects of one kind.
pub(super) struct Follower<R: Reader> {
    api: Api<R::Object>,
    about: About,
    reader: R,
    /// The version to watch from. `None`: list first.
    version: Option<String>,
    /// Failures in a row.
    failures: u32,
    /// `Some`: the log and the reader were told that the objects cannot be read. The value tells
    /// whether the server refuses.
    told: Option<bool>,
}

impl<R: Reader> Follower<R> {
    pub(super) fn new(api: Api<R::Object>, reader: R) -> Self {
        Self {
            api,
            about: reader.about(),
            reader,
            version: None,
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
            let Ok(next) = timeout_at(begun + WATCH + WATCH_ENDS, watch.next()).await else {
                return Err(Trouble::Silent {
                    verb: "watch",
                    plural: self.about.plural,
                    after: WATCH + WATCH_ENDS,
                });
            };
            let Some(event) = next else { return Ok(()) };
            self.hear(event.map_err(|e| Trouble::api(self.about, "watch", e))?)
                .await?;
        }
    }

    /// Reads all objects, and returns the version to watch from.
    async fn list(&mut self) -> Result<String, Trouble> {
        let (mut all, mut unnamed, mut taken) = (BTreeMap::new(), 0_usize, 0_usize);
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
                        taken = taken.saturating_add(R::takes(&key, &kept).1);
                        all.insert(key, kept);
                    }
                    None => unnamed += 1,
                }
            }
            if taken > R::ROOM {
                taken = shed::<R>(&mut all);
            }
            if all.len() > R::MOST {
                return Err(Trouble::TooMany {
                    plural: self.about.plural,
                    most: R::MOST,
                });
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => {
                    info!(
                        count = all.len(),
                        unnamed,
                        "{} listed; unnamed: Muster cannot have their names",
                        self.about.objects
                    );
                    self.reader.tell(News::Listed(all)).await?;
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
                    self.reader.tell(News::Applied(key, kept)).await?;
                }
            }
            WatchEvent::Deleted(object) => {
                self.version = object.meta().resource_version.clone();
                if let Some((key, kept)) = R::keep(object) {
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
    #[error("list {plural}: there are more than {most}")]
    TooMany { plural: &'static str, most: usize },
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    struct Named;

    impl Reader for Named {
        type Object = ConfigMap;
        type Key = (String, u32);
        /// The bytes that an object takes.
        type Kept = Option<usize>;

        const MOST: usize = 100;
        const PAGE: u32 = 10;
        const RETRY_MAX: Duration = Duration::ZERO;
        const ROOM: usize = 80;

        fn about(&self) -> About {
            unreachable!("nothing is read")
        }

        fn keep(_: ConfigMap) -> Option<(Self::Key, Self::Kept)> {
            None
        }

        fn takes<'a>(key: &'a Self::Key, kept: &Self::Kept) -> (&'a str, usize) {
            (&key.0, kept.unwrap_or(0))
        }

        fn shed(kept: &mut Self::Kept) {
            *kept = None;
        }

        async fn tell(&mut self, _: News<Self::Key, Self::Kept>) -> Result<(), NoAnswer> {
            Ok(())
        }
    }

    #[test]
    fn a_namespace_with_many_objects_takes_no_room_from_others() {
        let object = |namespace: &str, number: u32| ((namespace.to_owned(), number), Some(10));
        let mut all: BTreeMap<_, _> = (0..50).map(|n| object("greedy", n)).collect();
        all.extend((0..2).map(|n| object("modest", n)));
        // 80 bytes, of which an eighth stays free: 20 for the one and 50 for the other.
        assert_eq!(shed::<Named>(&mut all), 70);
        let whole = |namespace: &str| {
            let own = all.iter().filter(|((of, _), _)| of == namespace);
            own.filter(|(_, kept)| kept.is_some()).count()
        };
        assert_eq!((whole("greedy"), whole("modest"), all.len()), (5, 2, 52));
        let mut again = all.clone();
        assert_eq!(shed::<Named>(&mut again), 70);
        assert_eq!(again, all, "there is room");
    }
}
