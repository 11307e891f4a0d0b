//! All that one turn gathers on its way to its answer. A function that needs only one part of it takes
//! only this part, so its signature says what it can do. This file decides nothing.

use std::{cell::OnceCell, collections::BTreeMap};

use crate::{
    fleet::{
        changes::Changes,
        equal_asks::EqualAsks,
        event_log::EventLog,
        input::RequestId,
        ledger::Ledger,
        output::{Answer, Effect},
        reservations::Reservations,
        yields::Yields,
    },
    id::{JobUid, NodeName},
    time::Timestamp,
};

#[derive(Debug)]
pub(crate) struct Scratch {
    /// The moment of this turn.
    pub now: Timestamp,
    pub changes: Changes,
    pub events: EventLog,
    pub effects: Vec<Effect>,
    pub wake_at: Option<Timestamp>,
    pub answer: Option<(RequestId, Reply)>,
    /// Who waits for room, and what they keep. Empty until a job asks for nodes.
    pub reservations: OnceCell<Reservations>,
    /// What the jobs of each queue hold. Empty until a job asks for nodes, and always where there are no queues.
    pub ledger: OnceCell<Ledger>,
    /// What jobs lack that were asked for in vain at this moment of the turn.
    pub equal_asks: EqualAsks,
    /// What jobs are to give up for others in this turn.
    pub yields: BTreeMap<JobUid, Yields>,
    /// Everybody who waits has been asked, so they do.
    pub give_now: bool,
}

/// The answer to a request. `finish` completes it, when all jobs are settled.
#[derive(Debug)]
pub(crate) enum Reply {
    Job { uid: JobUid, existed: bool },
    Node(NodeName),
    Complete(Answer),
}

impl Scratch {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            now,
            changes: Changes::default(),
            events: EventLog::new(now),
            effects: Vec::new(),
            wake_at: None,
            answer: None,
            reservations: OnceCell::new(),
            ledger: OnceCell::new(),
            equal_asks: EqualAsks::default(),
            yields: BTreeMap::new(),
            give_now: false,
        }
    }

    pub(crate) fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }
}
