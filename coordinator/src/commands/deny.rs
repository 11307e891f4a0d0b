//! `muster-coordinator deny` and `allow`.

use std::path::Path;

use anyhow::Context;
use clap::Args;
use muster_rpc::identity::Principal;

use super::{Change, State};
use crate::trust;

/// Deny a node or user everything, within seconds
///
/// The session of a denied node ends, and so does what a denied user watches or follows. A second
/// later all connections of that name end. Every new call is refused. The workers of a denied node go on as after any lost
/// connection, until the coordinator has given their job other nodes.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator deny --state-dir ~/coordinator host/node-2
  muster-coordinator deny --state-dir ~/coordinator user/ann")]
pub(super) struct Deny {
    #[command(flatten)]
    pub(super) state: State,
    /// host/NAME or user/NAME
    name: String,
}

/// Take a denial back
///
/// The certificates of that name are accepted again, also one that was stolen.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator allow --state-dir ~/coordinator host/node-2")]
pub(super) struct Allow {
    #[command(flatten)]
    pub(super) state: State,
    /// host/NAME or user/NAME
    name: String,
}

impl Deny {
    pub(super) fn change(&self) -> Change {
        Change::new("deny", &self.name)
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        set(&self.state.state_dir, &self.name, true)
    }
}

impl Allow {
    pub(super) fn change(&self) -> Change {
        Change::new("allow", &self.name)
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        set(&self.state.state_dir, &self.name, false)
    }
}

fn set(dir: &Path, name: &str, denied: bool) -> anyhow::Result<()> {
    trust::has_grants(dir)?;
    let principal: Principal = name.parse()?;
    trust::grants(dir)?
        .deny(&principal, denied)
        .with_context(|| format!("change the denial of {principal}"))?;
    let what = if denied { "denied" } else { "allowed again" };
    eprintln!("{principal} is {what}");
    Ok(())
}
