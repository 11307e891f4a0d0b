//! Ids of a trace and its spans: the same for the same job, whoever exports it and when.

use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// 16 bytes, not all zero, written in hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceId(u128);

/// 8 bytes, not all zero, written in hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpanId(u64);

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:032x}", self.0))
    }
}

impl Serialize for SpanId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:016x}", self.0))
    }
}

/// The ids of one job.
pub(super) struct Ids {
    pub(super) trace: TraceId,
    uid: String,
    /// How many spans are the same thing.
    given: BTreeMap<String, u32>,
}

impl Ids {
    /// The trace's id is the job's uid, which is a UUID and so has as many bytes.
    pub(super) fn of(uid: &str) -> Self {
        let of_uid = uuid::Uuid::parse_str(uid).map(|uid| uid.as_u128());
        Self {
            trace: TraceId(of_uid.unwrap_or_else(|_| hash(uid)).max(1)),
            uid: uid.to_owned(),
            given: BTreeMap::new(),
        }
    }

    /// The id of the span that is `what`. Of two that are the same thing, the second has another one.
    pub(super) fn span(&mut self, what: &str) -> SpanId {
        let before = self.given.entry(what.to_owned()).or_default();
        let hash = hash(&format!("{}/{what}/{before}", self.uid));
        *before += 1;
        // Both halves into one, as the source of the hash says.
        let folded = (hash >> 64) ^ (hash & u128::from(u64::MAX));
        SpanId(u64::try_from(folded).unwrap_or(u64::MAX).max(1))
    }
}

/// FNV-1a with 128 bits (Fowler, Noll and Vo; draft-eastlake-fnv). Nobody gains by two spans that share an id.
fn hash(text: &str) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.bytes().fold(BASIS, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(PRIME)
    })
}
