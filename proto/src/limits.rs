//! Transport limits and keepalive, used by both ends of every connection.
//!
//! tonic receives at most 4 MiB by default but sends without limit, and has keepalive off on both
//! sides: an oversized message would fail at the far end for ever, and a cut cable would never be
//! noticed.

use std::time::Duration;

/// Largest message either side sends or accepts. The largest legal one is a node's report with 4
/// runs of 256 ranks, each with a 20-line tail of 500 bytes (10 MiB) — the agent cuts tails to the
/// failed ranks it names, at most 16, so 160 KiB; a list page of 500 jobs with 64 KiB of arguments
/// each would not fit, therefore pages are cut by size as well.
pub const MESSAGE_MAX: usize = 4 << 20;

/// HTTP/2 ping interval on session and API connections. Proves the socket; the heartbeat proves the
/// agent.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// A ping not answered within this ends the connection.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Concurrent streams of one connection: a session, log streams, and a user's watches.
pub const STREAMS_MAX: u32 = 64;

/// Items in one page of a list, and what a client gets that does not say.
pub const PAGE_MAX: usize = 500;
