//! What a runner is ordered to do, and how it hears of it.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use muster_core::time::Timestamp;
use muster_runner::wire::{Command, Request, StartSpec};
use tokio::io::AsyncWriteExt;

/// Everything that a runner was ordered to do so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunnerOrders {
    /// When the coordinator was heard, for a run with a fence.
    pub(crate) heard: Option<Timestamp>,
    pub(crate) start: Option<Arc<StartSpec>>,
    /// The newest attempt of each rank that was started again.
    pub(crate) attempts: BTreeMap<u32, u32>,
    pub(crate) stop: Option<(Duration, String)>,
    pub(crate) release: bool,
}

/// Ids of requests. One id per kind of order is enough, because only the kind of an answer matters.
pub(super) const SUBSCRIBE: u64 = 1;
pub(super) const START: u64 = 2;
pub(super) const STOP: u64 = 3;
pub(super) const RELEASE: u64 = 4;
pub(super) const RENEW: u64 = 5;
pub(super) const RESTART: u64 = 6;
pub(super) const STATUS: u64 = 7;

/// Sends all orders that were not yet sent over this connection.
pub(super) async fn send_orders(
    output: &mut (impl AsyncWriteExt + Unpin),
    wanted: &RunnerOrders,
    sent: &mut RunnerOrders,
) -> io::Result<()> {
    // This comes before the start: a runner with a fence starts nothing before it has heard
    // something.
    if let Some(heard) = wanted.heard.filter(|_| wanted.heard != sent.heard) {
        output
            .write_all(&line(RENEW, Command::Renew { heard_us: heard.0 }))
            .await?;
        sent.heard = wanted.heard;
    }
    if let Some(start) = &wanted.start
        && sent.start.is_none()
    {
        output
            .write_all(&line(
                START,
                Command::Start(Box::new(StartSpec::clone(start))),
            ))
            .await?;
        sent.start = Some(start.clone());
    }
    for (rank, attempt) in &wanted.attempts {
        if sent.attempts.get(rank) != Some(attempt) {
            let (rank, attempt) = (*rank, *attempt);
            output
                .write_all(&line(RESTART, Command::Restart { rank, attempt }))
                .await?;
            sent.attempts.insert(rank, attempt);
        }
    }
    if let Some((grace, reason)) = &wanted.stop
        && sent.stop != wanted.stop
    {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        output
            .write_all(&line(
                STOP,
                Command::Stop {
                    grace_ms,
                    reason: reason.clone(),
                },
            ))
            .await?;
        sent.stop = wanted.stop.clone();
    }
    if wanted.release && !sent.release {
        output.write_all(&line(RELEASE, Command::Release)).await?;
        sent.release = true;
    }
    Ok(())
}

pub(super) fn line(id: u64, command: Command) -> Vec<u8> {
    let mut line =
        serde_json::to_vec(&Request::new(id, command)).expect("requests have only text keys");
    line.push(b'\n');
    line
}
