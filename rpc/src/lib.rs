//! The one place that calls a coordinator and the one place where a coordinator listens: addresses,
//! limits, keep-alive, and who is at the other end.
//!
//! Nobody else opens a gRPC connection or a gRPC port (`tests/architecture` holds that), so
//! transport security belongs here and nowhere else: for the side that calls into
//! `dial::authenticate`, for the side that listens into `listen::authenticate`. What a caller may
//! do is not decided here.
//!
//! | file | owns |
//! |---|---|
//! | `address` | where a coordinator is reached |
//! | `dial` | calling it: timeouts, keep-alive, the clients of its services |
//! | `listen` | its port: which addresses, how many connections, who is served |
//! | `peer` | which user is at the other end of a loopback connection |
#![forbid(unsafe_code)]

pub mod address;
pub mod dial;
pub mod listen;
pub mod peer;
#[cfg(test)]
mod stranger;

use std::time::Duration;

pub use address::{Address, BadAddress};
pub use dial::{Clients, dial};
pub use listen::Caller;
pub use tonic::transport::Channel;

/// HTTP/2 ping interval on both ends of every connection. tonic has keepalive off by default, and
/// nobody would notice a cut cable. An answered ping proves the socket; a heartbeat proves the
/// agent.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The connection ends if a ping is not answered within this time.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
