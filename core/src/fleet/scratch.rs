//! All that one turn gathers on its way to its answer. A function that needs only one part of it takes
//! only this part, so its signature says what it can do. This file decides nothing.

use crate::{
    fleet::{
        changes::Changes,
        event_log::EventLog,
        input::RequestId,
        output::{Answer, Effect},
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
        }
    }

    pub(crate) fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }
}
