//! The agent's decisions: what one node does with its desired state and with the reports of its
//! runners. Pure; the agent executes them.
//!
//! [`Node::turn`] is the only door: one input in, effects out, which the agent executes in order.
//! It compares the desired with the actual state and emits what is missing, so an input that is
//! repeated, late or lost changes nothing in the end. It never starts a group twice. A run that
//! nobody mentions is left alone: silence never kills.
//!
//! | file | owns |
//! |---|---|
//! | `ledger` | the promises behind which this node never goes back: term, node epoch, generations; persisted before it obeys |
//! | `digest` | the fingerprint that tells two contents of one generation apart |
//! | `fitness` | the facts about the node that would break a launch on it |
//! | `lease` | when the coordinator was last certainly alive, for workers with a fence |
//! | `skew` | how far the node's clock is from the coordinator's, for people |
//! | `lane` | how workers are started here: what the job asks for, and what its interpreter allows |
//! | `launch` | all that a start is: lane, command, environment, what is to be had before, fall-back |
//! | `interpreter` | what an interpreter says about itself |
//! | `proven` | the interpreters with which every lane is proven |
//! | `trial` | when the node tries an interpreter that nobody has proven |
//! | `group` | one worker group as its runner describes it, and the report about it |
//! | `turn` | desired against actual state |
//! | `obedience` | when a runner that does not do what it was ordered to is killed |
//! | `unsaved` | the effects and reports that wait until the ledger is on disk |
//! | `pool` | the launchers for jobs that are not known yet, and which job may take one |
//! | `launcher` | the jobs for which a launcher is kept ready |
//! | `container` | how each runtime is asked for a job's container, and how long the node keeps it |
//! | `peers` | what processes of a framework other than torch are told about each other |
//! | `torchrun` | the process that starts an assignment's workers |

pub mod account;
pub mod caches;
pub mod container;
mod digest;
pub mod fitness;
mod group;
mod interpreter;
pub mod lane;
pub mod launch;
pub mod launcher;
pub mod lease;
mod ledger;
pub mod mpi;
pub mod obedience;
pub mod peers;
pub mod pool;
pub mod proven;
pub mod skew;
pub mod standby;
pub mod torchrun;
pub mod trial;
mod turn;
mod unsaved;

pub use digest::Digest;
pub use group::{Found, FoundState, GroupPhase, GroupStatus, SeenExit};
pub use ledger::{JOBS_MAX, Ledger, Objection, Seen};
pub use turn::{Alarm, Effect, Input, Node, TurnOutput};
