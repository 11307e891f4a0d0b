//! Wire messages to core's types and back: the only place where both are known.
//!
//! To the wire cannot fail. From the wire can, and says which field of which message is wrong;
//! nothing is guessed.

mod hardware;
pub mod jobs;
pub mod session;
pub mod usage;

/// A message that is not well-formed: the field's path and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Malformed {
    pub field: String,
    pub message: String,
}
