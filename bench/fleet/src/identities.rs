//! A certificate for every node and for the user, from the coordinator's own authority, each for a
//! join of its own.

use std::path::PathBuf;

use anyhow::{Context, Result};
use futures::{StreamExt, stream};
use muster_rpc::{
    credentials::Credentials,
    dial::Options,
    enroll,
    tls::{Pin, Trust},
};

use crate::{coordinator::Coordinator, fleet::node_name};

/// Joins under way at a time.
const AT_ONCE: usize = 64;

/// Lets all nodes join. Returns the folder with their certificates.
pub(crate) async fn join(
    coordinator: &Coordinator,
    folder: PathBuf,
    agents: usize,
) -> Result<PathBuf> {
    let (address, trust) = (coordinator.url()?, trust(coordinator)?);
    let uses = agents.to_string();
    let create = ["token", "create", "--host", "--uses", uses.as_str()];
    let token = coordinator.say(&create)?;
    let joins = stream::iter(0..agents).map(|number| {
        let (address, trust, token, folder) = (&address, &trust, &token, &folder);
        async move {
            let name = node_name(number);
            let got = enroll::join(address, trust, token, name.as_str()).await?;
            got.write(&folder.join(name.as_str()))?;
            anyhow::Ok(())
        }
    });
    let done: Vec<Result<()>> = joins.buffer_unordered(AT_ONCE).collect().await;
    done.into_iter().collect::<Result<()>>().context("join")?;
    Ok(folder)
}

/// With what a user calls this coordinator.
pub(crate) async fn user(coordinator: &Coordinator) -> Result<Options> {
    let role = ["--role", "admin", "--all-namespaces"];
    let create = [&["token", "create", "--user", "bench"][..], &role].concat();
    let token = coordinator.say(&create)?;
    let own: Credentials =
        enroll::join(&coordinator.url()?, &trust(coordinator)?, &token, "").await?;
    Ok(Options {
        tls: Some(own.tls()?),
        ..Options::default()
    })
}

fn trust(coordinator: &Coordinator) -> Result<Trust> {
    let pin: Pin = coordinator.say(&["pin"])?.parse()?;
    Ok(Trust::Pinned(pin))
}
