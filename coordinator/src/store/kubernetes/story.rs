//! Events, many in one object, because an object for each event would be a write for each. Such an
//! object, a chunk, is written again until it is full, and deleted when none of its events is kept any
//! more.

use std::collections::BTreeMap;

use muster_core::fleet::Event;
use muster_handle::kept::Kept;

/// A chunk with this many events is full. It may have more, because the events of one commit stay
/// together.
const FULL: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Story {
    kept: Kept,
    /// By the number of their first event.
    chunks: BTreeMap<u64, Chunk>,
    last: u64,
}

#[derive(Debug, Default)]
struct Chunk {
    resource_version: Option<String>,
    /// The events of the newest chunk, which may be written again. Empty for every other chunk.
    events: Vec<Event>,
    kept: usize,
}

/// A chunk to write.
#[derive(Debug, PartialEq)]
pub(super) struct Written {
    pub(super) first: u64,
    pub(super) resource_version: Option<String>,
    pub(super) events: Vec<Event>,
}

impl Story {
    /// The story of the stored chunks, and the events that are kept, oldest first.
    pub(super) fn loaded(
        mut chunks: Vec<(u64, String, Vec<Event>)>,
        kept: impl FnOnce(&[Event]) -> Kept,
    ) -> (Self, Vec<Event>) {
        chunks.sort_by_key(|(first, ..)| *first);
        let mut story = Self::default();
        let mut events = Vec::new();
        for (first, resource_version, of_chunk) in chunks {
            story.chunks.insert(
                first,
                Chunk {
                    resource_version: Some(resource_version),
                    kept: of_chunk.len(),
                    events: of_chunk.clone(),
                },
            );
            events.extend(of_chunk);
        }
        story.last = events.last().map_or(0, |event| event.sequence);
        story.kept = kept(&events);
        let mut dropped = story.kept.take_dropped();
        dropped.sort_unstable();
        story.drop_events(&dropped);
        events.retain(|event| dropped.binary_search(&event.sequence).is_err());
        let newest = story.chunks.keys().next_back().copied();
        for (first, chunk) in &mut story.chunks {
            if Some(*first) != newest {
                chunk.events = Vec::new();
            }
        }
        (story, events)
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The chunk that holds these events, with what it held before.
    pub(super) fn add(&mut self, events: Vec<Event>) -> Option<Written> {
        let first = events.first()?.sequence;
        self.last = events.last()?.sequence;
        events.iter().for_each(|event| self.kept.add(event));
        let has_room = |chunk: &Chunk| chunk.events.len() < FULL;
        let newest = self
            .chunks
            .last_entry()
            .filter(|entry| has_room(entry.get()));
        let first = newest.map_or(first, |entry| *entry.key());
        if let Some(mut full) = self
            .chunks
            .last_entry()
            .filter(|entry| *entry.key() != first)
        {
            full.get_mut().events = Vec::new();
        }
        let chunk = self.chunks.entry(first).or_default();
        chunk.kept += events.len();
        chunk.events.extend(events);
        Some(Written {
            first,
            resource_version: chunk.resource_version.clone(),
            events: chunk.events.clone(),
        })
    }

    pub(super) fn written(&mut self, first: u64, resource_version: String) {
        if let Some(chunk) = self.chunks.get_mut(&first) {
            chunk.resource_version = Some(resource_version);
        }
    }

    pub(super) fn kept(&mut self) -> &mut Kept {
        &mut self.kept
    }

    /// Takes the chunks without a kept event, with their versions. The newest chunk stays, because it has
    /// the number of the last event.
    pub(super) fn take_empty(&mut self) -> Vec<(u64, Option<String>)> {
        let dropped = self.kept.take_dropped();
        self.drop_events(&dropped);
        let newest = self.chunks.keys().next_back().copied();
        let is_empty = |first: &u64, chunk: &Chunk| chunk.kept == 0 && Some(*first) != newest;
        self.chunks
            .extract_if(.., |first, chunk| is_empty(first, chunk))
            .map(|(first, chunk)| (first, chunk.resource_version))
            .collect()
    }

    fn drop_events(&mut self, dropped: &[u64]) {
        for number in dropped {
            if let Some((_, chunk)) = self.chunks.range_mut(..=number).next_back() {
                chunk.kept = chunk.kept.saturating_sub(1);
            }
        }
    }
}
