//! A coordinator that stands by: another one decides, and this one waits until it may.
//!
//! It answers nobody itself. Who calls it is led on to the coordinator that decides: a node learns only some
//! time after a change where the Service leads now (41 s were seen after an outage of the API server), and until
//! then agents and users call the one that decided before. The bytes are passed on as they are, so TLS is between
//! the caller and the one that decides. While nobody decides, every connection is closed at once.
//!
//! Its port is open while it can take its turn, so that a probe can see that. Without the right to the Lease it
//! never could.

use std::{io, net::SocketAddr, time::Duration};

use muster_rpc::lead_on;
use muster_runtime::shutdown::Signals;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};
use tracing::{info, warn};

use crate::{
    kubernetes::Leader,
    store::kubernetes::{Candidate, KubernetesStore},
};

/// For so long what was asked about the leader counts. A thousand agents may dial within a second.
const KNOWN: Duration = Duration::from_secs(1);

/// How long the API server may take to say who decides. Callers wait for it.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until this process may decide. `None`: it was told to end before.
pub async fn wait(
    address: SocketAddr,
    candidate: Candidate,
    leader: Option<&Leader>,
) -> io::Result<Option<KubernetesStore>> {
    let mut signals = Signals::catch()?;
    let may_lead = candidate.may_lead();
    let known = Mutex::new(None);
    let to = || async {
        let mut known = known.lock().await;
        match &*known {
            Some((to, at)) if Instant::now() < *at + KNOWN => *to,
            _ => {
                let to = find(leader, address.port()).await;
                *known = Some((to, Instant::now()));
                to
            }
        }
    };
    tokio::select! {
        store = candidate.lead() => Ok(Some(store)),
        () = signals.first() => {
            info!("told to end before its turn");
            Ok(None)
        }
        Err(why) = lead_on::while_open(address, may_lead, to) => Err(why),
    }
}

/// Where the coordinator that decides is, as far as it is known.
async fn find(leader: Option<&Leader>, port: u16) -> Option<SocketAddr> {
    let found = timeout(ASK_TIMEOUT, leader?.other_address()).await;
    let address = found.ok()?.unwrap_or_else(|why| {
        warn!("nobody can be led on to the coordinator that decides: {why}");
        None
    });
    address.map(|address| SocketAddr::new(address, port))
}
