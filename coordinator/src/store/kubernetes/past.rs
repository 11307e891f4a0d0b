//! What is left of jobs that are over, many records in one object: a chunk. Ten thousand objects of half a
//! kilobyte each would cost the API server more than a hundred of 30. The newest chunk is written again until
//! it is full. A chunk is deleted when all its records are dropped.

use std::{collections::BTreeMap, sync::Arc};

use muster_core::fleet::history::HistoryRecord;

/// Records in one chunk. Compressed they are some 30 KB, which each end of a job writes again.
const FULL: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Past {
    /// By the number of their first record.
    chunks: BTreeMap<u64, Chunk>,
    last: u64,
}

#[derive(Debug, Default)]
struct Chunk {
    resource_version: Option<String>,
    last: u64,
    /// The records of the newest chunk, which may be written again. Empty for every other chunk.
    records: Vec<Arc<HistoryRecord>>,
}

/// A chunk to write.
#[derive(Debug, PartialEq)]
pub(super) struct Written {
    pub(super) first: u64,
    pub(super) resource_version: Option<String>,
    pub(super) records: Vec<Arc<HistoryRecord>>,
}

impl Past {
    /// The stored chunks with their versions, and all their records in the order of numbers.
    pub(super) fn loaded(
        mut chunks: Vec<(String, Vec<Arc<HistoryRecord>>)>,
    ) -> (Self, Vec<Arc<HistoryRecord>>) {
        let first = |records: &[Arc<HistoryRecord>]| records.first().map_or(0, |one| one.number);
        chunks.sort_by_key(|(_, records)| first(records));
        let (mut past, mut all) = (Self::default(), Vec::new());
        for (resource_version, records) in chunks {
            past.close_newest();
            let chunk = Chunk {
                resource_version: Some(resource_version),
                last: records.last().map_or(0, |one| one.number),
                records: records.clone(),
            };
            past.last = past.last.max(chunk.last);
            past.chunks.insert(first(&records), chunk);
            all.extend(records);
        }
        (past, all)
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The chunks that hold these records, with what they held before.
    pub(super) fn add(
        &mut self,
        records: impl IntoIterator<Item = Arc<HistoryRecord>>,
    ) -> Vec<Written> {
        let mut touched = Vec::new();
        for record in records {
            let has_room = |chunk: &Chunk| !chunk.records.is_empty() && chunk.records.len() < FULL;
            let newest = self.chunks.last_key_value();
            let open = newest
                .filter(|(_, chunk)| has_room(chunk))
                .map(|(first, _)| *first);
            let first = open.unwrap_or_else(|| {
                self.close_newest();
                record.number
            });
            let chunk = self.chunks.entry(first).or_default();
            (chunk.last, self.last) = (record.number, record.number);
            chunk.records.push(record);
            match touched.last_mut() {
                Some(Written {
                    first: known,
                    records,
                    ..
                }) if *known == first => records.clone_from(&chunk.records),
                _ => touched.push(Written {
                    first,
                    resource_version: chunk.resource_version.clone(),
                    records: chunk.records.clone(),
                }),
            }
        }
        touched
    }

    /// The newest chunk is not written again.
    fn close_newest(&mut self) {
        if let Some(mut newest) = self.chunks.last_entry() {
            newest.get_mut().records = Vec::new();
        }
    }

    pub(super) fn written(&mut self, first: u64, resource_version: String) {
        if let Some(chunk) = self.chunks.get_mut(&first) {
            chunk.resource_version = Some(resource_version);
        }
    }

    /// Takes the chunks with no record after this number, with their versions.
    pub(super) fn take_dropped(&mut self, number: u64) -> Vec<(u64, Option<String>)> {
        self.chunks
            .extract_if(.., |_, chunk| chunk.last <= number)
            .map(|(first, chunk)| (first, chunk.resource_version))
            .collect()
    }
}
