//! `muster events --audit`: the coordinator's audit trail.

use std::time::Duration;

use clap::Args;
use muster_core::period;
use muster_proto::v1::{AuditEntry, ListAuditRequest};

use super::get::print_list;
use crate::{context::Context, fail::Failure};

#[derive(Debug, Default, Args)]
pub(crate) struct Flags {
    /// Show the audit trail instead: who did what, from where, with which result
    #[arg(long, conflicts_with_all = ["job", "node", "watch", "all_namespaces"])]
    pub(crate) audit: bool,

    /// With --audit: only entries of this last period
    #[arg(long, value_name = "PERIOD", value_parser = period::parse, requires = "audit")]
    since: Option<Duration>,

    /// With --audit: the newest so many entries; 0 means all [default: 1000]
    #[arg(long, value_name = "N", requires = "audit")]
    limit: Option<u64>,
}

const LIMIT: u64 = 1_000;

pub(crate) async fn audit(cx: &Context, flags: &Flags) -> Result<(), Failure> {
    let limit = flags.limit.unwrap_or(LIMIT);
    let client = cx.connect().await?;
    let request = client.ask(ListAuditRequest {
        // A period of zero would ask for all.
        within_us: flags
            .since
            .map_or(0, |since| since.as_micros().max(1) as u64),
        // One more shows whether there are more.
        limit: if limit == 0 {
            0
        } else {
            limit.saturating_add(1)
        },
    });
    let failure = |status| client.failure(status);
    let answer = client.audit().list(request).await.map_err(failure)?;
    let mut stream = answer.into_inner();
    let mut entries: Vec<AuditEntry> = Vec::new();
    while let Some(page) = stream.message().await.map_err(failure)? {
        entries.extend(page.entries);
    }
    if limit > 0 && entries.len() as u64 > limit {
        entries.remove(0);
        cx.say(format!(
            "Only the newest {limit} entries are shown; --limit 0 shows all."
        ));
    }
    print_list(cx, entries, false, "No entries found.")
}
