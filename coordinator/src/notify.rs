//! Telling people: where the receivers are, and sending them what waits in the outbox.
//!
//! What is told to whom, and when it is tried again, is decided in `core::fleet::notify`. A task for each receiver, and
//! one more if jobs may name it, sends one message at a time, and says to the engine what was delivered. Only the coordinator that decides sends. A
//! receiver that is dead, slow or hostile holds up nobody: a request has a time and its answer a size, no redirect is
//! followed, and the outbox has bounds.
//!
//! | file | owns |
//! |---|---|
//! | `file` | the operator's file, checked with all its errors at once |
//! | `fields` | reading YAML with a path for every error |
//! | `receiver` | one receiver: its address, what proves us to it, and both without secrets |
//! | `mailbox` | the same for one of mail |
//! | `body` | messages as text, and as JSON for each kind of receiver |
//! | `mail` | a message as a mail |
//! | `dial` | connections, and TLS |
//! | `http` | one request |
//! | `smtp` | one mail |
//! | `desk` | the receivers, their figures, and trying one out |
//! | `send` | a task of one receiver |

mod body;
mod desk;
mod dial;
mod fields;
mod file;
mod http;
mod mail;
mod mailbox;
mod receiver;
mod send;
mod smtp;

pub(crate) use desk::Desk;
pub use file::{Notify, read};
pub(crate) use receiver::Receiver;
pub(crate) use send::send;
