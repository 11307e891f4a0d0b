//! What a rank says of where it is: the answers of torch's worker server (`_WorkerServer`, torch 2.4 and
//! later), and the stacks that CPython writes.
//!
//! The runner carries bytes between a rank's socket and this room, which knows what to ask ([`Question`]) and
//! what an answer means. A rank runs a user's program, so no byte of it is trusted: every answer, list and
//! string is bounded, and what is not understood is left out or refused with a reason.

mod arrivals;
mod http;
mod recorder;
mod stacks;

pub use arrivals::{ARRIVALS_MAX, Arrivals, MARKS_MAX, arrivals};
pub use http::{ANSWER_MAX, Answer, Question};
pub use recorder::{GROUPS_MAX, Position, positions};
pub use stacks::{Frame, THREADS_MAX, Thread, threads};
