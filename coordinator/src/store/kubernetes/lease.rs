//! The Lease by which one coordinator at a time has the right to decide.
//!
//! A candidate never compares clocks of two machines. It takes a Lease that nobody holds, or one that
//! it has seen unchanged for as long as the Lease lasts. A holder is sure of it for a shorter time: a
//! margin less, and counted from the moment at which it sent its last renewal. So no two are ever sure
//! at the same time, unless their clocks run at rates that differ by more than that margin.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use jiff::Timestamp as WallTime;
use muster_operator::{Server, Unanswered};
use muster_runtime::clock::Clock;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::{info, warn};

use super::object::{self, About};

const API_VERSION: &str = "coordination.k8s.io/v1";
/// A holder that ends tries for this part of the Lease's time to give it back. A process that is told
/// to end has little time.
const GIVEN_BACK_WITHIN: u32 = 3;

/// The times of a Lease. If its holder dies, a candidate waits until it has seen no renewal for
/// `lasts`.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTimes {
    /// How long the Lease lasts after a renewal. Whole seconds.
    pub lasts: Duration,
    /// How long before its end the holder stops deciding.
    pub margin: Duration,
    pub renewed_every: Duration,
    /// How often a candidate looks at it. The holder may give it back at any time.
    pub looked_at_every: Duration,
}

impl LeaseTimes {
    /// The times that go with a Lease that lasts this long: 15 s, unless a test needs less.
    pub fn of(lasts: Duration) -> Self {
        Self {
            lasts,
            margin: lasts * 2 / 15,
            renewed_every: lasts * 2 / 15,
            looked_at_every: lasts / 15,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Lease {
    api_version: String,
    kind: String,
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    resource_version: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder_identity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_duration_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    acquire_time: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    renew_time: Option<String>,
    #[serde(default)]
    lease_transitions: u64,
}

impl Lease {
    fn held_by(holder: &str) -> Self {
        Self {
            spec: Spec {
                holder_identity: Some(holder.into()),
                ..Spec::default()
            },
            ..Self::default()
        }
    }
}

/// What a candidate has seen of a Lease that another holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    resource_version: String,
    since_us: u64,
}

/// Whether a candidate may take the Lease that it has just read. `seen` is what it saw before, and is
/// updated.
fn may_take(lease: &Lease, seen: &mut Option<Seen>, times: &LeaseTimes, now_us: u64) -> bool {
    if lease
        .spec
        .holder_identity
        .as_deref()
        .unwrap_or_default()
        .is_empty()
    {
        return true;
    }
    let version = &lease.metadata.resource_version;
    if seen
        .as_ref()
        .is_none_or(|seen| seen.resource_version != *version)
    {
        *seen = Some(Seen {
            resource_version: version.clone(),
            since_us: now_us,
        });
        return false;
    }
    let theirs = lease.spec.lease_duration_seconds.unwrap_or_default();
    let lasts = times.lasts.max(Duration::from_secs(theirs));
    let since_us = seen.as_ref().map_or(now_us, |seen| seen.since_us);
    u128::from(now_us.saturating_sub(since_us)) >= lasts.as_micros()
}

/// Until when this process is sure to hold the Lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Sure(Arc<AtomicU64>);

impl Sure {
    pub(super) fn is_sure(&self) -> bool {
        Clock::Boot.now_us() < self.0.load(SeqCst)
    }

    fn renewed(&self, sent_us: u64, times: &LeaseTimes) {
        let for_us = times.lasts.saturating_sub(times.margin).as_micros() as u64;
        self.0.store(sent_us + for_us, SeqCst);
    }

    fn lost(&self) {
        self.0.store(0, SeqCst);
    }
}

/// Takes the Lease for this process, renews it and gives it back.
#[derive(Debug)]
pub(super) struct Elector {
    pub(super) server: Server,
    pub(super) namespace: String,
    pub(super) name: String,
    /// Names this process. A process that starts again has another one.
    pub(super) identity: String,
    pub(super) times: LeaseTimes,
    pub(super) sure: Sure,
    /// Whether this process has the right to the Lease, as far as the API server has said.
    pub(super) may: watch::Sender<bool>,
}

impl Elector {
    fn folder(&self) -> String {
        format!("/apis/{API_VERSION}/namespaces/{}/leases", self.namespace)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.folder(), self.name)
    }

    /// Waits until this process holds the Lease.
    pub(super) async fn take(&self) {
        let (mut seen, mut told) = (None, String::new());
        loop {
            let taken = self.try_take(&mut seen).await;
            match &taken {
                Ok(_) => drop(self.may.send_replace(true)),
                Err(Unanswered::Forbidden(_)) => drop(self.may.send_replace(false)),
                // It may have the right. Nobody knows while the API server is away.
                Err(_) => {}
            }
            match taken {
                Ok(None) => return,
                Ok(Some(holder)) => {
                    if told != holder {
                        info!(holder, "another coordinator decides; this one stands by");
                        told = holder;
                    }
                }
                Err(why) => {
                    let why = why.to_string();
                    if told != why {
                        warn!("the Lease {} cannot be taken: {why}", self.name);
                        told = why;
                    }
                }
            }
            sleep(self.times.looked_at_every).await;
        }
    }

    /// Takes the Lease if it may. Returns the holder if another process holds it.
    async fn try_take(&self, seen: &mut Option<Seen>) -> Result<Option<String>, Unanswered> {
        let found = match self.server.get::<Lease>(&self.path()).await {
            Ok(lease) => lease,
            Err(why) if why.is_missing() && !self.has_records().await? => Lease::default(),
            // Somebody has deleted the Lease, and its holder may not have noticed yet. So it is waited
            // for like a Lease that is held.
            Err(why) if why.is_missing() => Lease::held_by("a coordinator without a Lease"),
            Err(why) => return Err(why),
        };
        if !may_take(&found, seen, &self.times, Clock::Boot.now_us()) {
            return Ok(Some(found.spec.holder_identity.unwrap_or_default()));
        }
        let (version, transitions) = (
            found.metadata.resource_version,
            found.spec.lease_transitions,
        );
        let is_there = !version.is_empty();
        let taken = self.lease(version, transitions + 1);
        let sent_us = Clock::Boot.now_us();
        let _: Lease = match is_there {
            true => self.server.replace(&self.path(), &taken).await?,
            false => self.server.create(&self.folder(), &taken).await?,
        };
        self.sure.renewed(sent_us, &self.times);
        Ok(None)
    }

    /// Whether a coordinator has ever decided here.
    async fn has_records(&self) -> Result<bool, Unanswered> {
        let path = object::path(&self.namespace, &object::name(About::Coordinator, ""));
        match self.server.get::<serde_json::Value>(&path).await {
            Ok(_) => Ok(true),
            Err(why) if why.is_missing() => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// Renews the Lease until it is lost.
    pub(super) async fn renew_until_lost(&self) {
        loop {
            sleep(self.times.renewed_every).await;
            // Once it was unsure, the engine may have been told so. It must never be sure again.
            if !self.sure.is_sure() {
                return warn!("the Lease {} was not renewed in time", self.name);
            }
            let sent_us = Clock::Boot.now_us();
            let why = match self.renew().await {
                Ok(()) => {
                    self.sure.renewed(sent_us, &self.times);
                    continue;
                }
                Err(Lost::To(holder)) => {
                    self.sure.lost();
                    return warn!(holder, "the Lease {} is another's", self.name);
                }
                Err(Lost::Unanswered(why)) => why,
            };
            warn!("the Lease {} could not be renewed: {why}", self.name);
        }
    }

    async fn renew(&self) -> Result<(), Lost> {
        let lease = match self.server.get::<Lease>(&self.path()).await {
            Ok(lease) => lease,
            Err(why) if why.is_missing() => return Err(Lost::To("nobody: it was deleted".into())),
            Err(why) => return Err(Lost::Unanswered(why)),
        };
        // It may have another version than our last renewal: the answer to that was lost, or somebody
        // has changed an annotation.
        let holder = lease.spec.holder_identity.unwrap_or_default();
        if holder != self.identity {
            return Err(Lost::To(holder));
        }
        let mut renewed = self.lease(
            lease.metadata.resource_version,
            lease.spec.lease_transitions,
        );
        renewed.spec.acquire_time = lease.spec.acquire_time;
        match self.server.replace::<Lease>(&self.path(), &renewed).await {
            Ok(_) => Ok(()),
            Err(why) => Err(Lost::Unanswered(why)),
        }
    }

    /// Gives the Lease back, so that another coordinator need not wait.
    ///
    /// The last renewal may still be on its way to the API server and arrive between the two requests
    /// here. So a conflict is retried, like a lost answer.
    pub(super) async fn release(&self) {
        if !self.sure.is_sure() {
            return;
        }
        self.sure.lost();
        let until = Instant::now() + self.times.lasts / GIVEN_BACK_WITHIN;
        while let Err(why) = self.try_release().await {
            let again = why.is_conflict() || why.may_be_done() || why.is_busy();
            if !again || Instant::now() >= until {
                return warn!("the Lease {} is not given back: {why}", self.name);
            }
            sleep(self.times.looked_at_every).await;
        }
    }

    async fn try_release(&self) -> Result<(), Unanswered> {
        let lease: Lease = self.server.get(&self.path()).await?;
        if lease.spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        let mut free = self.lease(
            lease.metadata.resource_version,
            lease.spec.lease_transitions,
        );
        free.spec.holder_identity = None;
        free.spec.lease_duration_seconds = Some(1);
        self.server.replace::<Lease>(&self.path(), &free).await?;
        Ok(())
    }

    fn lease(&self, resource_version: String, transitions: u64) -> Lease {
        let now = WallTime::now()
            .strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
            .to_string();
        Lease {
            api_version: API_VERSION.into(),
            kind: "Lease".into(),
            metadata: Meta {
                name: self.name.clone(),
                resource_version,
            },
            spec: Spec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(self.times.lasts.as_secs().max(1)),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                lease_transitions: transitions,
            },
        }
    }
}

enum Lost {
    To(String),
    Unanswered(Unanswered),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, version: &str, seconds: u64) -> Lease {
        Lease {
            metadata: Meta {
                resource_version: version.into(),
                ..Meta::default()
            },
            spec: Spec {
                holder_identity: Some(holder.into()),
                lease_duration_seconds: Some(seconds),
                ..Spec::default()
            },
            ..Lease::default()
        }
    }

    #[test]
    fn a_lease_is_taken_when_it_was_seen_unchanged_for_as_long_as_it_lasts() {
        let (times, second, mut seen) = (LeaseTimes::of(Duration::from_secs(15)), 1_000_000, None);
        let mut may = |lease: &Lease, at: u64| may_take(lease, &mut seen, &times, at * second);
        assert!(!may(&lease("a", "1", 15), 100), "whatever its times say");
        assert!(!may(&lease("a", "1", 15), 114));
        assert!(!may(&lease("a", "2", 15), 115), "it was renewed");
        assert!(!may(&lease("a", "2", 15), 129));
        assert!(may(&lease("a", "2", 15), 130));
        assert!(!may(&lease("b", "3", 60), 131), "another took it");
        assert!(!may(&lease("b", "3", 60), 190), "which holds it longer");
        assert!(may(&lease("b", "3", 60), 191));
        assert!(may(&lease("", "4", 1), 192), "it was given back");
        let deleted = Lease::held_by("?");
        assert!(!may(&deleted, 193) && !may(&deleted, 207) && may(&deleted, 208));
    }

    #[test]
    fn a_holder_is_sure_for_less_than_others_wait() {
        let (sure, times) = (Sure::default(), LeaseTimes::of(Duration::from_secs(15)));
        assert!(!sure.is_sure());
        let now_us = Clock::Boot.now_us();
        sure.renewed(now_us, &times);
        assert!(sure.is_sure());
        // A renewal that was sent 13 seconds ago, however late its answer came.
        sure.renewed(now_us.saturating_sub(13_000_000), &times);
        assert!(!sure.is_sure());
    }
}
