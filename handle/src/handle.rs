//! The way in which every other task speaks with the engine. A handle is cheap to clone, and holds
//! no lock while it waits.

use std::{sync::Arc, time::Duration};

use muster_core::{
    fleet::{
        Actor, Answer, Input, Request,
        notify::Outbox,
        view::{JobView, NodeView},
    },
    hello::Hello,
    id::{JobName, NodeName, SessionId},
    time::Timestamp,
};
use muster_runtime::clock::Clock;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use crate::{
    board::{Events, History, Jobs, Nodes},
    inbox::{Message, SessionOrders},
    lead::Lead,
};

/// How long a caller waits for a decision. A full queue costs one turn and one commit; a disk that
/// takes seconds for that is broken.
const DECISION_TIMEOUT: Duration = Duration::from_secs(15);

/// Why a request got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    #[error("the coordinator is shutting down")]
    Ended,
    #[error("the coordinator did not decide within {} s; the request may still take effect", DECISION_TIMEOUT.as_secs())]
    Late,
}

/// What the engine has published.
#[derive(Clone, Debug)]
pub struct Boards {
    pub jobs: watch::Receiver<Jobs>,
    pub nodes: watch::Receiver<Nodes>,
    pub events: watch::Receiver<Events>,
    pub history: watch::Receiver<History>,
    pub outbox: watch::Receiver<Arc<Outbox>>,
}

/// The engine's queue, and what the engine has published.
#[derive(Clone, Debug)]
pub struct Handle {
    inbox: mpsc::Sender<Message>,
    clock: Clock,
    boards: Boards,
    rounds: watch::Receiver<u64>,
    lead: Lead,
}

impl Handle {
    pub fn new(
        inbox: mpsc::Sender<Message>,
        clock: Clock,
        boards: Boards,
        rounds: watch::Receiver<u64>,
        lead: Lead,
    ) -> Self {
        Self {
            inbox,
            clock,
            boards,
            rounds,
            lead,
        }
    }

    /// Whether this process still has the right to decide. The engine may be waiting for its store, and
    /// learns of the end of that right only later.
    pub fn still_leads(&self) -> bool {
        self.lead.still_holds()
    }

    /// The right to decide, for those who carry decisions out.
    pub fn lead(&self) -> Lead {
        self.lead.clone()
    }

    /// Asks for a decision and waits until it is stored.
    pub async fn request(&self, actor: Actor, request: Request) -> Result<Answer, NoAnswer> {
        let (answered, answer) = oneshot::channel();
        let asked = async {
            self.inbox
                .send(Message::Request {
                    actor,
                    request: Box::new(request),
                    answered,
                })
                .await
                .map_err(|_| NoAnswer::Ended)?;
            answer.await.map_err(|_| NoAnswer::Ended)
        };
        timeout(DECISION_TIMEOUT, asked)
            .await
            .unwrap_or(Err(NoAnswer::Late))
    }

    /// Opens a session. The engine puts what the agent must be told into the receiver. The receiver
    /// closes when the engine is gone.
    pub async fn connect(
        &self,
        hello: Hello,
    ) -> Result<(SessionId, watch::Receiver<SessionOrders>), NoAnswer> {
        let (opened, session) = oneshot::channel();
        let asked = async {
            self.inbox
                .send(Message::Connect {
                    hello: Box::new(hello),
                    opened,
                })
                .await
                .map_err(|_| NoAnswer::Ended)?;
            session.await.map_err(|_| NoAnswer::Ended)
        };
        timeout(DECISION_TIMEOUT, asked)
            .await
            .unwrap_or(Err(NoAnswer::Late))
    }

    /// Passes on what a session has heard. Waits for room, so a session that talks faster than the
    /// engine decides is slowed down.
    pub async fn tell(&self, input: Input) -> Result<(), NoAnswer> {
        self.inbox
            .send(Message::Session(Box::new(input)))
            .await
            .map_err(|_| NoAnswer::Ended)
    }

    pub fn now(&self) -> Timestamp {
        Timestamp(self.clock.now_us())
    }

    pub fn job(&self, name: &JobName) -> Option<Arc<JobView>> {
        self.boards.jobs.borrow().get(name).cloned()
    }

    pub fn node(&self, name: &NodeName) -> Option<Arc<NodeView>> {
        self.boards.nodes.borrow().get(name).cloned()
    }

    pub fn jobs(&self) -> watch::Receiver<Jobs> {
        self.boards.jobs.clone()
    }

    pub fn nodes(&self) -> watch::Receiver<Nodes> {
        self.boards.nodes.clone()
    }

    /// Returns when the engine has done what it was about to do, and waits for work again. It does
    /// so once a tick at least.
    pub async fn next_round(&self) {
        let mut rounds = self.rounds.clone();
        rounds.mark_unchanged();
        // An error: the engine has ended, and the process is about to.
        let _ = rounds.changed().await;
    }

    pub fn events(&self) -> watch::Receiver<Events> {
        self.boards.events.clone()
    }

    /// What waits to be sent to people.
    pub fn outbox(&self) -> watch::Receiver<Arc<Outbox>> {
        self.boards.outbox.clone()
    }

    pub fn history(&self) -> watch::Receiver<History> {
        self.boards.history.clone()
    }
}
