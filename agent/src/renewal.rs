//! Renews this node's certificate when two thirds of its life are over, and when the cluster's
//! authorities are not the ones in its credentials. An open session goes on with the old certificate;
//! the next dial uses the new one.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_proto::v1::Authorities;
use muster_rpc::{
    Address,
    credentials::{Credentials, now_us},
    enroll,
    tls::Pin,
};
use muster_runtime::{backoff::entropy, chain::chain};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How often to look. A certificate lasts 30 days, so ten days are left when it is due.
const LOOK: Duration = Duration::from_secs(60 * 60);
/// The shortest time between two looks, for a certificate that expires within seconds.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long to wait if the authorities have changed and the renewal has failed.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// The authorities of the cluster, as the coordinator names them, and over how long agents should
/// spread their renewals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownAuthorities {
    pins: BTreeSet<Pin>,
    spread: Duration,
}

/// Passes on what the coordinator says of its authorities.
pub(crate) type AuthorityNews = watch::Sender<Option<KnownAuthorities>>;

/// The authorities of this message. `None`: it has none that this agent understands.
pub(crate) fn known_authorities(authorities: &Authorities) -> Option<KnownAuthorities> {
    let pins: Option<BTreeSet<Pin>> = authorities
        .pins
        .iter()
        .map(|bytes| Pin::from_bytes(bytes))
        .collect();
    Some(KnownAuthorities {
        pins: pins.filter(|pins| !pins.is_empty())?,
        spread: Duration::from_micros(authorities.spread_us),
    })
}

pub(crate) async fn run(
    path: PathBuf,
    coordinator: Address,
    mut news: watch::Receiver<Option<KnownAuthorities>>,
    shutdown: CancellationToken,
) {
    let mut renewal = Renewal {
        path,
        coordinator,
        // The session begins with what is in the file.
        shown: true,
    };
    let mut told = String::new();
    loop {
        let known = news.borrow_and_update().clone();
        let pause = match renewal.look(known.as_ref()).await {
            Ok(left) => {
                told.clear();
                pause(left)
            }
            Err(why) => {
                // While the coordinator is away, this is logged once.
                if why != told {
                    warn!("renew this node's certificate: {why}");
                }
                told = why;
                match known {
                    Some(_) => TRY_AGAIN,
                    None => pause(LOOK),
                }
            }
        };
        let wait = async {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = news.changed() => {
                    // Ten thousand agents hear this within a second, and must not all renew at once.
                    let spread = news.borrow().as_ref().map_or(Duration::ZERO, |known| known.spread);
                    tokio::time::sleep(spread.mul_f64(fraction())).await;
                }
            }
        };
        if shutdown.run_until_cancelled(wait).await.is_none() {
            return;
        }
    }
}

/// How long to wait if the certificate is still valid for `left`. Ten thousand agents that were started
/// together must not all renew in the same minute, and none may be late.
fn pause(left: Duration) -> Duration {
    let pause = LOOK / 2 + LOOK.mul_f64(fraction());
    pause.min(left / 3).max(LOOK_AGAIN)
}

/// A random number from 0 to 1.
fn fraction() -> f64 {
    (entropy() % 1_000) as f64 / 1_000.0
}

struct Renewal {
    path: PathBuf,
    coordinator: Address,
    /// Whether the coordinator has seen the credentials that were renewed last. It must know them
    /// before it can trust an old authority no more.
    shown: bool,
}

impl Renewal {
    /// Renews if there is a reason. Returns for how long the certificate is valid.
    async fn look(&mut self, known: Option<&KnownAuthorities>) -> Result<Duration, String> {
        let mut own = Credentials::read(&self.path).map_err(|e| e.to_string())?;
        let now_us = now_us();
        if own.is_expired(now_us) {
            return Err(format!(
                "it has expired, so it cannot renew itself; get a token for this node (muster-coordinator token create --host {}) and run \
                 muster-agent join again",
                own.principal.trim_start_matches("host/")
            ));
        }
        let others = known.is_some_and(|known| known.pins != own.pins());
        if others || own.is_due(now_us) {
            own = renew(&own, &self.path, &self.coordinator).await?;
            self.shown = false;
            info!(
                principal = own.principal,
                "the certificate of this node is renewed{}",
                if others {
                    ", because the authority of the cluster changes"
                } else {
                    ""
                }
            );
        }
        if !self.shown && known.is_some() {
            let shown = enroll::show(&own, &self.coordinator).await;
            shown.map_err(|e| chain(&e))?;
            self.shown = true;
        }
        Ok(Duration::from_micros(
            own.not_after_us.saturating_sub(now_us),
        ))
    }
}

async fn renew(
    old: &Credentials,
    path: &Path,
    coordinator: &Address,
) -> Result<Credentials, String> {
    let new = enroll::renew(old, coordinator)
        .await
        .map_err(|e| chain(&e))?;
    new.write(path).map_err(|e| e.to_string())?;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_late_and_not_everybody_comes_at_once() {
        let day = 24 * LOOK;
        let pauses: BTreeSet<Duration> = (0..100).map(|_| pause(30 * day)).collect();
        assert!(pauses.len() > 10, "{pauses:?}");
        let (first, last) = (pauses.first().unwrap(), pauses.last().unwrap());
        assert!(*first >= LOOK / 2 && *last <= LOOK * 3 / 2, "{pauses:?}");
        assert_eq!(pause(Duration::from_secs(30)), Duration::from_secs(10));
        assert_eq!(pause(Duration::ZERO), LOOK_AGAIN);
    }

    #[test]
    fn only_whole_pins_are_believed() {
        let of = |pins: Vec<Vec<u8>>| {
            known_authorities(&Authorities {
                pins,
                spread_us: 20_000,
            })
        };
        let two = of(vec![vec![1; 32], vec![2; 32]]).unwrap();
        assert_eq!((two.pins.len(), two.spread), (2, Duration::from_millis(20)));
        assert_eq!(of(vec![vec![1; 32], vec![2; 31]]), None);
        assert_eq!(of(Vec::new()), None);
    }
}
