//! PyTorch's TCPStore, served from scratch.
//!
//! One [`Store`] holds the keys of one generation of one job. Every generation has a new store on a
//! new port, so no key of an earlier generation can be read. The runner owns the store and drives
//! it from its own epoll loop through [`Store::poll_fd`] and [`Store::turn`]. The store starts no
//! thread, reads no clock and never blocks.
//!
//! The path of a request: `server` reads bytes from a socket, `protocol` turns them into a request,
//! `table` applies it and decides which clients are answered, `outbox` holds bytes that a socket
//! has not taken yet. `sensor` reads the resulting [`Event`]s and says what they mean for torch:
//! which node has arrived, which rank has not joined, which launchers have finished.
//!
//! Every client is treated as hostile. Lengths are checked before anything is allocated, all memory
//! that a client can make the store hold is counted against [`Limits`], and a client that breaks a
//! rule is closed with a reason.

mod event;
mod limits;
mod meter;
mod outbox;
pub mod protocol;
mod sensor;
mod server;
pub mod table;

pub use event::{ClientId, Closed, Event, RefusedReason};
pub use limits::Limits;
pub use sensor::Sensor;
pub use server::{Store, StoreError};

/// A key as the client sent it. torch's `TCPStore` puts a `/` before every key except `init/`. The
/// table, the lists of waiters and the events share it.
pub type Key = std::sync::Arc<[u8]>;
