//! How many files the runner may have open. This bounds the clients of a served TCPStore.
//!
//! The runner raises its limit as far as it may. Its children get the limit that the runner was
//! started with, because programs that use select(2) break with descriptors above 1,023, and some
//! close every number up to the limit.

use std::sync::OnceLock;

use muster_runner::wire::{Hold, MAX_RANKS};
use muster_tcpstore::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of the runner itself: 3 standard ones, the lock, epoll, timers, listeners, 8 clients
/// of the control socket, 16 connections that are being refused, and files that are open briefly.
const OWN: usize = 64;

/// Descriptors of one rank: its shim's connection, two pipes, its log and the folder of the log.
const PER_RANK: usize = 5;

/// The limit that this process was started with. It is set once the limit has changed.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit of this process to the hard limit. If the kernel refuses, the limit stays.
pub(crate) fn raise() {
    let before = getrlimit(Resource::Nofile);
    if setrlimit(
        Resource::Nofile,
        Rlimit {
            current: before.maximum,
            ..before
        },
    )
    .is_ok()
    {
        // `BEFORE` can be set only once, so a later call keeps the first limit.
        let _ = BEFORE.set(before);
    }
}

/// Gives a child the limit that this process was started with. It may be called between fork and
/// exec.
pub(crate) fn restore() -> rustix::io::Result<()> {
    BEFORE
        .get()
        .map_or(Ok(()), |before| setrlimit(Resource::Nofile, *before))
}

/// The bounds of a TCPStore that this process serves besides its other work.
pub(crate) fn of_store(hold: &Hold) -> Limits {
    let most = getrlimit(Resource::Nofile).current;
    let limits = Limits::default();
    Limits {
        clients: clients(most, hold).min(limits.clients),
        ..limits
    }
}

/// How many clients the TCPStore may have, so that the control socket, the ranks and their logs always
/// find a descriptor.
fn clients(most: Option<u64>, hold: &Hold) -> usize {
    let Some(most) = most else { return usize::MAX };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let ranks = hold.world_size.div_ceil(hold.nnodes).min(MAX_RANKS) as usize;
    // With a very low limit, the TCPStore gets half of it.
    most.saturating_sub(OWN + PER_RANK * ranks).max(most / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_leaves_what_the_runner_needs() {
        let hold = |world_size, nnodes| Hold {
            world_size,
            nnodes,
            ..crate::hold::tests::hold()
        };
        assert_eq!(clients(Some(1_024), &hold(512, 64)), 1_024 - 64 - 40);
        assert_eq!(clients(Some(1_048_576), &hold(8, 1)), 1_048_576 - 64 - 40);
        assert_eq!(clients(Some(256), &hold(256, 1)), 128);
        assert_eq!(clients(None, &hold(8, 1)), usize::MAX);
    }
}
