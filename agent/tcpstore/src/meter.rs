//! Counts the bytes that clients make the store hold. It only counts. The caller decides when to
//! ask for room and what to do if there is none.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The cost of one entry besides its bytes: tree node, reference count, allocator. It is rounded
/// up, so that a million tiny entries never cost more than is counted.
pub(crate) const ENTRY_BYTES: usize = 96;

/// The count of one store, shared with every living [`Value`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter(Arc<AtomicUsize>);

impl Meter {
    pub(crate) fn used(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn charge(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Replaces an earlier charge by another.
    pub(crate) fn recharge(&self, before: usize, after: usize) {
        self.charge(after);
        self.release(before);
    }
}

/// A stored value. It counts as long as it lives. So a value that was overwritten still counts
/// while it waits in a slow reader's outbox.
#[derive(Debug, Clone)]
pub struct Value(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    bytes: Vec<u8>,
    meter: Meter,
}

impl Value {
    pub(crate) fn new(bytes: Vec<u8>, meter: &Meter) -> Value {
        meter.charge(bytes.capacity() + ENTRY_BYTES);
        Value(Arc::new(Counted {
            bytes,
            meter: meter.clone(),
        }))
    }

    /// Appends bytes, in place if nothing else holds the value.
    pub(crate) fn append(&mut self, more: &[u8]) {
        if let Some(counted) = Arc::get_mut(&mut self.0) {
            let before = counted.bytes.capacity();
            counted.bytes.extend_from_slice(more);
            counted.meter.recharge(before, counted.bytes.capacity());
            return;
        }
        let mut bytes = Vec::with_capacity(self.len() + more.len());
        bytes.extend_from_slice(self);
        bytes.extend_from_slice(more);
        let meter = self.0.meter.clone();
        *self = Value::new(bytes, &meter);
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        **self == **other
    }
}

impl Eq for Value {}

impl Drop for Counted {
    fn drop(&mut self) {
        self.meter.release(self.bytes.capacity() + ENTRY_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_until_its_last_holder_lets_go() {
        let meter = Meter::default();
        let mut stored = Value::new(b"one".to_vec(), &meter);
        let unsent = stored.clone();
        assert_eq!(meter.used(), 3 + ENTRY_BYTES);

        stored.append(b"two");
        assert_eq!((&*stored, &*unsent), (&b"onetwo"[..], &b"one"[..]));
        assert_eq!(meter.used(), 9 + 2 * ENTRY_BYTES);

        drop(unsent);
        stored.append(b"!");
        assert!(
            meter.used() >= 7 + ENTRY_BYTES,
            "room kept for later appends counts too"
        );
        drop(stored);
        assert_eq!(meter.used(), 0);
    }
}
