//! What goes into the engine's queue, and what comes back for a session. The engine and its handle
//! both know it.

use std::sync::Arc;

use muster_core::{
    fleet::{Actor, Answer, Input, Request},
    hello::Hello,
    id::{Generation, JobUid, NodeName, SessionId},
    run::Desired,
};
use muster_proto::convert::session::Welcome;
use tokio::sync::{oneshot, watch};

/// An entry of the engine's queue.
#[derive(Debug)]
pub enum Message {
    /// An agent's hello. The session's task gets its orders over `opened`.
    Connect {
        hello: Box<Hello>,
        opened: oneshot::Sender<(SessionId, watch::Receiver<SessionOrders>)>,
    },
    /// Any other input: from a session, or about Node objects.
    Session(Box<Input>),
    Request {
        actor: Actor,
        request: Box<Request>,
        answered: oneshot::Sender<Answer>,
    },
}

/// Ranks that are to be looked at. The answer goes back as [`Input::Looked`] with the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookOrder {
    pub job: JobUid,
    pub generation: Generation,
    pub number: u64,
    pub ranks: Vec<(NodeName, Vec<u32>)>,
}

/// What the engine has to tell one session's agent. Only the latest matters, so it is a state and
/// not a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionOrders {
    pub welcome: Option<Welcome>,
    /// Shared, because it is read more often than it changes.
    pub desired: Option<Arc<Desired>>,
    /// Why the session is over.
    pub refused: Option<String>,
}
