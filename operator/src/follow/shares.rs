//! What is kept of all objects of one kind, so that a namespace with very many takes no room from others.
//!
//! All objects together may be so many, and take so many bytes. Where that is not enough for all, a namespace
//! has at most its share (max-min fairness). Of an object beyond it only the existence is kept, if its reader
//! can do with that, or else nothing. A namespace of which something is not kept is *crowded*: what is not
//! known there may exist all the same. It stays so until the objects are listed anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_core::fleet::fair_share;
use serde_json::Value;
use tracing::warn;

use super::Reader;

/// Namespaces of which not all objects are kept.
pub(crate) type Crowded = BTreeSet<String>;

/// Of this the shares are shared out, so that not every new object begins that again.
const EIGHTHS: usize = 7;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Takes {
    count: usize,
    bytes: usize,
}

impl Takes {
    fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }
}

#[derive(Debug)]
struct Held {
    namespace: Arc<str>,
    bytes: usize,
}

/// Which objects are kept, whose they are, and what they take.
pub(super) struct Shares<R: Reader> {
    /// So many objects at most, and so many bytes.
    bounds: Takes,
    held: BTreeMap<R::Key, Held>,
    takes: BTreeMap<Arc<str>, Takes>,
    total: Takes,
    pub(super) crowded: Crowded,
}

/// What becomes of an object that the watch tells of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Kept,
    /// Its namespace has its share.
    NotKept {
        /// It has it since this object.
        is_new: bool,
    },
    /// Others have more than their share. With a new list they give it back.
    ListAnew,
}

impl<R: Reader> Shares<R> {
    /// Whether an eighth of the room is free.
    pub(super) fn has_room(&self) -> bool {
        let is_free = |held: usize, bound: usize| held / EIGHTHS <= bound / (EIGHTHS + 1);
        is_free(self.total.count, self.bounds.count) && is_free(self.total.bytes, self.bounds.bytes)
    }

    pub(super) fn new(most: usize) -> Self {
        Self {
            bounds: Takes {
                count: most,
                bytes: R::ROOM,
            },
            held: BTreeMap::new(),
            takes: BTreeMap::new(),
            total: Takes::default(),
            crowded: Crowded::new(),
        }
    }

    /// None of the objects, and the same bounds.
    pub(super) fn emptied(&self) -> Self {
        Self::new(self.bounds.count)
    }

    pub(super) fn put(&mut self, key: &R::Key, kept: &R::Kept) {
        self.remove(key);
        let (namespace, bytes) = (R::namespace(key, kept), R::bytes(kept));
        let known = self.takes.get_key_value(namespace);
        let namespace = known.map_or_else(|| Arc::from(namespace), |(known, _)| known.clone());
        self.takes.entry(namespace.clone()).or_default().add(bytes);
        self.total.add(bytes);
        self.held.insert(key.clone(), Held { namespace, bytes });
    }

    pub(super) fn remove(&mut self, key: &R::Key) {
        let Some(Held { namespace, bytes }) = self.held.remove(key) else {
            return;
        };
        self.total.count -= 1;
        self.total.bytes -= bytes;
        if let Some(takes) = self.takes.get_mut(&namespace) {
            takes.count -= 1;
            takes.bytes -= bytes;
            if takes.count == 0 {
                self.takes.remove(&namespace);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.total.count > self.bounds.count || self.total.bytes > self.bounds.bytes
    }

    /// The share of each namespace. Where there is room for all, it is no bound.
    fn share(&self) -> Takes {
        let share = |wanted: fn(&Takes) -> usize, room: usize| {
            let all = self.takes.values().map(wanted);
            let is_enough = all.clone().sum::<usize>() <= room;
            if is_enough {
                usize::MAX
            } else {
                fair_share(all, room / 8 * EIGHTHS)
            }
        };
        Takes {
            count: share(|takes| takes.count, self.bounds.count),
            bytes: share(|takes| takes.bytes, self.bounds.bytes),
        }
    }

    /// Sheds and drops objects of the namespaces that take most, until all take no more than they may. Those
    /// that were kept before come first, so that each list keeps the same ones.
    pub(super) fn squeeze(&mut self, all: &mut BTreeMap<R::Key, R::Kept>, before: &Self) {
        if !self.is_over() {
            return;
        }
        let share = self.share();
        let mut takes: BTreeMap<String, Takes> = BTreeMap::new();
        let mut dropped = Vec::new();
        for is_known in [true, false] {
            for (key, kept) in all.iter_mut() {
                if before.held.contains_key(key) != is_known {
                    continue;
                }
                let namespace = R::namespace(key, kept).to_owned();
                let takes = takes.entry(namespace.clone()).or_default();
                let has_room = |takes: &Takes, kept: &R::Kept| {
                    takes.bytes.saturating_add(R::bytes(kept)) <= share.bytes
                };
                let is_kept = takes.count < share.count && (has_room(takes, kept) || R::shed(kept));
                if is_kept {
                    takes.add(R::bytes(kept));
                } else {
                    dropped.push(key.clone());
                    self.crowd(namespace);
                }
            }
        }
        for key in &dropped {
            all.remove(key);
        }
        let crowded = std::mem::take(&mut self.crowded);
        *self = Self {
            crowded,
            ..self.emptied()
        };
        for (key, kept) in all.iter() {
            self.put(key, kept);
        }
    }

    /// Takes an object that the watch tells of.
    pub(super) fn hear(&mut self, key: &R::Key, kept: &mut R::Kept) -> Heard {
        let namespace = R::namespace(key, kept).to_owned();
        let is_known = self.held.contains_key(key);
        if !is_known && self.crowded.contains(&namespace) {
            return Heard::NotKept { is_new: false };
        }
        self.put(key, kept);
        if !self.is_over() {
            return Heard::Kept;
        }
        let share = self.share();
        let takes = self.takes.get(&*namespace).copied().unwrap_or_default();
        if takes.count <= share.count && takes.bytes <= share.bytes {
            return Heard::ListAnew;
        }
        if takes.count <= share.count && R::shed(kept) {
            self.put(key, kept);
            if !self.is_over() {
                return Heard::Kept;
            }
        }
        if is_known {
            return Heard::ListAnew;
        }
        self.remove(key);
        Heard::NotKept {
            is_new: self.crowd(namespace),
        }
    }

    /// Returns whether that is new.
    fn crowd(&mut self, namespace: String) -> bool {
        if self.crowded.contains(&namespace) {
            return false;
        }
        warn!(
            namespace,
            "it has more objects of a kind than its share of what is kept, so not all of them are known"
        );
        self.crowded.insert(namespace)
    }
}

/// Some of the bytes that a value takes in memory.
pub(crate) fn size(value: &Value) -> usize {
    let own = size_of::<Value>();
    own + match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .map(|(name, value)| own + name.len() + size(value))
                .sum()
        }
    }
}

#[cfg(test)]
mod tests;
