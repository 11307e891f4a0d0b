//! Renews this node's certificate when two thirds of its life are over. Sessions that are open go
//! on with the old one; the next dial takes the new one.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use muster_rpc::{
    Address,
    credentials::{Credentials, now_us},
    enroll,
};
use muster_runtime::{backoff::entropy, chain::chain};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How often to look. A certificate lasts 30 days, so ten days are left when it is due.
const LOOK: Duration = Duration::from_secs(60 * 60);

pub(crate) async fn run(path: PathBuf, coordinator: Address, shutdown: CancellationToken) {
    loop {
        if let Err(why) = look(&path, &coordinator).await {
            warn!("renew this node's certificate: {why}");
        }
        // Ten thousand agents that were started together must not all ask in the same minute.
        let pause = LOOK / 2 + LOOK.mul_f64((entropy() % 1_000) as f64 / 1_000.0);
        if shutdown
            .run_until_cancelled(tokio::time::sleep(pause))
            .await
            .is_none()
        {
            return;
        }
    }
}

async fn look(path: &Path, coordinator: &Address) -> Result<(), String> {
    let old = Credentials::read(path).map_err(|e| e.to_string())?;
    let now_us = now_us();
    if old.is_expired(now_us) {
        return Err(format!(
            "it has expired, so it cannot renew itself; get a token for this node (muster-coordinator token create --host {}) and run \
             muster-agent join again",
            old.principal.trim_start_matches("host/")
        ));
    }
    if !old.is_due(now_us) {
        return Ok(());
    }
    let new = enroll::renew(&old, coordinator)
        .await
        .map_err(|e| chain(&e))?;
    new.write(path).map_err(|e| e.to_string())?;
    info!(
        principal = new.principal,
        "the certificate of this node is renewed"
    );
    Ok(())
}
