//! What is still to happen, in the order of time. Events that are due at the same moment keep the
//! order in which they were planned.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

use muster_core::time::Timestamp;

use crate::event::Event;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<Planned>>,
    planned: u64,
}

#[derive(Debug)]
struct Planned {
    at: Timestamp,
    sequence: u64,
    event: Event,
}

impl Queue {
    pub(crate) fn push(&mut self, at: Timestamp, event: Event) {
        self.planned += 1;
        self.heap.push(Reverse(Planned {
            at,
            sequence: self.planned,
            event,
        }));
    }

    pub(crate) fn pop(&mut self) -> Option<(Timestamp, u64, Event)> {
        self.heap
            .pop()
            .map(|Reverse(planned)| (planned.at, planned.sequence, planned.event))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}
