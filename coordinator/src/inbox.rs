//! What goes into the engine's queue, and what comes back for a session. The engine and its handle
//! both know it.

use std::sync::Arc;

use muster_core::{
    fleet::{Actor, Answer, Input, Request},
    hello::Hello,
    id::SessionId,
    run::Desired,
};
use muster_proto::convert::session::Welcome;
use tokio::sync::{oneshot, watch};

/// An entry of the engine's queue.
#[derive(Debug)]
pub(crate) enum Message {
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
