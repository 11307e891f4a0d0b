//! Telling people who are not looking: which news makes a message for whom, and what waits to be sent.
//!
//! A turn compares each record with what it was before, and makes a notice of what people want to know (`news`). The
//! operator's rules say which receivers get it. For each receiver the notices of one kind gather in one message, so
//! a storm is one message with a count. Messages wait in the outbox, which is stored with the decision that they
//! tell of, until the shell says that they were delivered. So they survive the coordinator, and each is sent at least
//! once. Nothing is decided from them.
//!
//! | file | owns |
//! |---|---|
//! | `kind` | what people can be told of |
//! | `rules` | who gets what, as the operator says |
//! | `notice` | one thing to tell, without secrets |
//! | `outbox` | the messages that wait, and how many may |
//! | `dispatch` | when a message is sent, and when again |
//! | `gather` | puts the news of a turn into the outbox |

mod dispatch;
mod gather;
mod kind;
mod notice;
mod outbox;
mod rules;

pub use dispatch::{Answered, Dispatch, Next};
pub(crate) use gather::Outgoing;
pub use kind::Kind;
pub use notice::Notice;
pub use outbox::{BYTES_MAX, KEPT_FOR, Message, NOTICES_MAX, Outbox, RECEIVER_MAX, Sent};
pub use rules::{RECEIVERS_MAX, Rule, Rules};
