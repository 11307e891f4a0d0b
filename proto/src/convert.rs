//! Converts wire messages to core's types and back: the only place that knows both.
//!
//! A conversion to the wire cannot fail. A conversion from the wire can, and says which field of
//! which message is wrong; it guesses nothing.

mod hardware;
pub mod history;
pub mod jobs;
pub mod node_list;
pub mod queues;
pub mod session;
pub mod stacks;
pub mod start_estimate;
pub mod usage;

/// A message that is not well-formed: the path of the wrong field, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Malformed {
    pub field: String,
    pub message: String,
}
