//! The events of one turn, in order. They get their numbers when the turn is finished.

use crate::{
    fleet::{actor::Actor, event::Event},
    time::Timestamp,
};

#[derive(Debug)]
pub(crate) struct EventLog {
    now: Timestamp,
    /// The caller whose request is being applied. The events that are written meanwhile name it.
    pub actor: Option<Actor>,
    events: Vec<Event>,
}

impl EventLog {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            now,
            actor: None,
            events: Vec::new(),
        }
    }

    /// Writes an informational event.
    pub(crate) fn note(&mut self, reason: &str, message: String) -> &mut Event {
        self.tell(false, reason, message)
    }

    pub(crate) fn warn(&mut self, reason: &str, message: String) -> &mut Event {
        self.tell(true, reason, message)
    }

    pub(crate) fn tell(&mut self, warning: bool, reason: &str, message: String) -> &mut Event {
        self.events.push(Event {
            sequence: 0,
            at: self.now,
            warning,
            reason: reason.to_owned(),
            message,
            job: None,
            node: None,
            generation: None,
            actor: self.actor.clone(),
        });
        self.events.last_mut().expect("just pushed")
    }

    /// All events, numbered after `last`, the last number given out.
    pub(crate) fn numbered(self, last: &mut u64) -> Vec<Event> {
        let mut events = self.events;
        for event in &mut events {
            *last += 1;
            event.sequence = *last;
        }
        events
    }
}
