//! The one place that calls a coordinator and the one place where a coordinator listens: addresses,
//! limits, keep-alive, and who is at the other end.
//!
//! Nobody else opens a gRPC connection or a gRPC port (`tests/architecture` holds that). What a
//! caller may do is not decided here: a `Gate` of the listener's owner decides it.
//!
//! | file | owns |
//! |---|---|
//! | `address` | where a coordinator is reached |
//! | `dial` | calling it: timeouts, keep-alive, the clients of its services |
//! | `unix` | calling another server on this machine by its Unix socket |
//! | `listen` | its port: which addresses, how many connections, who is served |
//! | `http_port` | a port for plain HTTP, whose callers only read |
//! | `lead_on` | a port whose callers are led on to another process |
//! | `handshake` | TLS handshakes of callers, so many at a time |
//! | `connection` | one accepted connection |
//! | `guests` | who has how many connections, and the end of those of a name |
//! | `gate` | asks the listener's owner about every call |
//! | `identity` | who can be at the other end |
//! | `uri_names` | which identity the URI name in a certificate stands for |
//! | `peer` | which user is at the other end of a loopback connection |
//! | `tls` | certificates and keys for both sides |
//! | `bearer` | a token that a call shows |
//! | `channel` | a connection whose calls show a token |
//! | `credentials` | an identity in a folder: certificate, key and authorities |
//! | `refusal` | why a coordinator has ended a connection that seemed to stand |
//! | `pem_files` | an identity that somebody else keeps in PEM files |
//! | `enroll` | getting such an identity for a join token, and renewing it |
#![forbid(unsafe_code)]

pub mod address;
pub mod bearer;
pub mod channel;
mod connection;
pub mod credentials;
pub mod dial;
pub mod enroll;
pub mod gate;
pub mod guests;
mod handshake;
pub mod http_port;
pub mod identity;
pub mod lead_on;
pub mod listen;
pub mod peer;
pub mod pem_files;
mod refusal;
#[cfg(test)]
mod stranger;
pub mod tls;
pub mod unix;
mod unproven;
pub mod uri_names;

use std::time::Duration;

pub use address::{Address, BadAddress};
pub use bearer::Bearer;
pub use channel::Channel;
pub use dial::{Clients, dial};
pub use identity::Identity;
pub use listen::Caller;

/// HTTP/2 ping interval on both ends of every connection. tonic has keepalive off by default, and
/// nobody would notice a cut cable. An answered ping proves the socket; a heartbeat proves the
/// agent.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The connection ends if a ping is not answered within this time.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
