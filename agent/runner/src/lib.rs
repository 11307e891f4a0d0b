//! What the agent needs to know about a runner: the messages of its control socket ([`wire`]), the
//! files it leaves behind ([`Record`]) and whether it lives ([`alive`]).
//!
//! A runner (the binary `muster-runner` of this package) holds one node's torchrun and its children
//! for one (job, generation). It outlives the agent, and a new agent uses this library to find it
//! again. What the agent asks of the processes and files around a runner is in [`place`], and how it
//! asks when these are in another container in [`pod`].
//!
//! Everything here is synchronous and small, without an async runtime, so that the same code
//! can be linked into a static PID 1.

pub mod as_user;
pub mod chain;
pub mod cri;
pub mod descendants;
pub mod env_file;
pub mod folder;
pub mod identity;
pub mod journal;
pub mod leftovers;
pub mod oom;
pub mod open_files;
pub mod place;
pub mod pod;
pub mod procfs;
pub mod record;
pub mod socket;
pub mod wire;

pub use descendants::Descendants;
pub use folder::Folder;
pub use identity::{RunnerIdentity, alive, held, kept};
pub use record::{ReadError, Record, Salvage};
pub use socket::connect;
