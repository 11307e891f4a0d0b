//! The agent's brain: what one node does with its desired state and with what its runners say.
//! Pure; the agent is its shell.
//!
//! [`Node::turn`] is the only door: one input in, effects out, to be executed in order. It compares
//! what shall be with what is and emits what is missing, so an input that is repeated, late or lost
//! changes nothing in the end. It never starts a group twice, and a run that nobody mentions is
//! left alone: silence never kills.
//!
//! | file | owns |
//! |---|---|
//! | `ledger` | what this node has promised never to go behind: term, node epoch, generations; persisted before obeying |
//! | `digest` | the fingerprint by which two contents of one generation are told apart |
//! | `fitness` | what about the node would break a launch on it |
//! | `lease` | when the coordinator was heard last, for workers that live by it |
//! | `skew` | how far its clock is from the coordinator's, for people |
//! | `lane` | how workers are started here: what was asked for, and what is proven for this interpreter |
//! | `group` | one worker group as its runner describes it, and the report made of that |
//! | `turn` | desired against actual |
//! | `unsaved` | what waits until the ledger is on disk |
//! | `pool` | which launchers are kept for jobs that are not known yet, and which job may take one |
//! | `spare` | for which jobs a launcher is kept ready |
//! | `torchrun` | an assignment as the process that starts its workers |

mod digest;
pub mod fitness;
mod group;
pub mod lane;
pub mod lease;
mod ledger;
pub mod pool;
pub mod skew;
pub mod spare;
pub mod torchrun;
mod turn;
mod unsaved;

pub use digest::Digest;
pub use group::{Found, FoundState, GroupPhase, GroupStatus, SeenExit};
pub use ledger::{JOBS_MAX, Ledger, Objection, Seen};
pub use turn::{Alarm, Effect, Input, Node, Turn};
