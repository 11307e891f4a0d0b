//! A coordinator that stands by: another one decides, and this one waits until it may.
//!
//! It answers nobody. Its port is open, so that a probe can see that it lives, and every connection is
//! closed at once.

use std::{io, net::SocketAddr};

use muster_rpc::listen;
use muster_runtime::shutdown::Signals;
use tracing::info;

use crate::store::kubernetes::{Candidate, KubernetesStore};

/// Waits until this process may decide. `None`: it was told to end before.
pub async fn wait(
    address: SocketAddr,
    candidate: Candidate,
) -> io::Result<Option<KubernetesStore>> {
    let mut signals = Signals::catch()?;
    tokio::select! {
        store = candidate.lead() => Ok(Some(store)),
        () = signals.first() => {
            info!("told to end before its turn");
            Ok(None)
        }
        Err(why) = listen::turn_away(address) => Err(why),
    }
}
