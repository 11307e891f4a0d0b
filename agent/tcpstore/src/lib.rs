//! PyTorch's TCPStore, served from scratch.
//!
//! One [`Store`] holds the keys of one generation of one job: every generation has a new store on a
//! new port, so no key of an earlier generation can be read. The runner owns it and drives it from
//! its own epoll loop through [`Store::poll_fd`] and [`Store::turn`]; the store starts no thread,
//! reads no clock and never blocks.
//!
//! The way of a request: `server` reads bytes from a socket, `protocol` turns them into a request,
//! `table` applies it and says who is answered, `outbox` holds what the socket did not take yet.
//! `sensor` reads the resulting [`Event`]s and says what they mean for torch: which node has
//! arrived, which rank has not joined, who has finished.
//!
//! Clients are hostile until shown otherwise: lengths are checked before anything is allocated, all
//! memory a client can make the store hold is counted against [`Limits`], and a client that breaks
//! a rule is closed with a reason.

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

/// A key as the client sent it (torch's `TCPStore` puts a `/` in front of every key but `init/`),
/// shared between the table, the lists of waiters and the events.
pub type Key = std::sync::Arc<[u8]>;
