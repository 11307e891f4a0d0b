//! Telling people who are not looking: which news makes a message for whom, and what waits to be sent.
//!
//! A turn compares each record with what it was before, and makes a notice of what people want to know (`news`). The
//! operator's rules say which receivers get it, and its job may ask for more (`spec.notify`), as far as the operator has
//! opened that to jobs. For each addressee the notices of one kind gather in one message, so a storm is one message with
//! a count. Messages wait in the outbox, which is stored with the decision that they tell of, until the shell says that
//! they were delivered. So they survive the coordinator, and each is sent at least once. Nothing is decided from them.
//!
//! | file | owns |
//! |---|---|
//! | `rules` | who gets what, as the operator and the job say |
//! | `addressee` | to whom a message goes, and who wants that: the operator, or jobs |
//! | `open` | what the operator opens to jobs, and what a job may not ask for |
//! | `notice` | one thing to tell, without secrets |
//! | `outbox` | the messages that wait |
//! | `bounds` | how many may wait |
//! | `shares` | which of jobs' messages go when they are too many |
//! | `dispatch` | when a message is sent, and when again |
//! | `gather` | puts the news of a turn into the outbox |

mod addressee;
mod bounds;
mod dispatch;
mod gather;
mod notice;
mod open;
mod outbox;
mod rules;
mod shares;

pub use addressee::Addressee;
pub use bounds::{BYTES_MAX, JOBS_BYTES_MAX, JOBS_MAX, KEPT_FOR, RECEIVER_MAX};
pub use dispatch::{Answered, Dispatch, Next};
pub(crate) use gather::Outgoing;
pub use notice::Notice;
pub use open::{Allowed, Open, OpenMail};
pub use outbox::{Message, NOTICES_MAX, Outbox, Sent};
pub use rules::{RECEIVERS_MAX, Rule, Rules};

pub use crate::spec::notify::Kind;
