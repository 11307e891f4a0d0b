//! What a store tells its host: which clients came, left, wrote, wait, or were refused, and why.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::Key;
use crate::protocol::Fault;
use crate::table::Denied;

/// The id of one connection. It is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// What a turn saw. The host's own writes cause no event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Event {
    Connected {
        client: ClientId,
        peer: SocketAddr,
    },
    /// The client is gone. This is the last event about it.
    Closed {
        client: ClientId,
        why: Closed,
    },
    /// SET, MULTI_SET, APPEND or a COMPARE_SET that wrote.
    Set {
        client: ClientId,
        key: Key,
    },
    /// ADD or BARRIER, with the counter after it.
    Added {
        client: ClientId,
        key: Key,
        value: i64,
    },
    /// The client waits for these missing keys.
    Waiting {
        client: ClientId,
        keys: Vec<Key>,
    },
    /// The client broke a rule and is closed; `Closed` follows. If there was no room for the
    /// client, this is the first event about it.
    Refused {
        client: ClientId,
        why: RefusedReason,
    },
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The client closed it, or its process ended.
    ByPeer,
    /// The connection failed, with this `errno`.
    Failed(i32),
    /// The store closed it. A `Refused` came before.
    Refused,
}

/// The rule that a client broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusedReason {
    /// Its bytes are not valid in the protocol.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Its request could not be obeyed.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Nothing valid came before the deadline.
    #[error("not validated within {after:?}")]
    Handshake {
        /// The deadline, from the connection on.
        after: Duration,
    },
    /// It comes from an address that is not a client's (see [`Store::only_from`](crate::Store::only_from)).
    #[error("{address} is not a member's address")]
    Stranger {
        /// Where it comes from.
        address: IpAddr,
    },
    /// There is no room for another connection.
    #[error("{limit} clients are connected, the limit")]
    TooManyClients {
        /// [`Limits::clients`].
        limit: usize,
    },
    /// The process has no descriptor left for it.
    #[error("the process has no file descriptor left")]
    NoDescriptors,
    /// The kernel refuses to watch the client's socket.
    #[error("its socket cannot be watched (errno {errno})")]
    Unwatched {
        /// The kernel's reason.
        errno: i32,
    },
    /// The client's half-read request no longer fits.
    #[error("the store holds {limit} bytes, its limit")]
    StoreFull {
        /// [`Limits::total_bytes`].
        limit: usize,
    },
}
