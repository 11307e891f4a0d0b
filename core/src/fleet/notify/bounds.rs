//! How many messages may wait. What jobs have asked for has bounds of its own and is counted apart: whatever users do, it
//! takes no room from what the operator wants to know.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use crate::{
    fleet::notify::{
        addressee::Addressee,
        outbox::{Message, Outbox},
        rules::Rules,
    },
    time::Timestamp,
};

/// For so long it is tried to deliver a message. A person is back on the next morning.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// The operator's messages that wait for one receiver. Eight kinds, each once a minute, are 480 in an hour.
pub const RECEIVER_MAX: usize = 500;

/// All messages together, in bytes: they are one record, and a commit that changes it writes it whole. Each receiver
/// has an equal share of what is left for the operator's.
pub const BYTES_MAX: usize = 1 << 20;

/// The part of [`BYTES_MAX`] for what jobs have asked for, if the operator has opened something to them: about 250 messages
/// of one notice.
pub const JOBS_BYTES_MAX: usize = BYTES_MAX / 4;

/// Messages that jobs have asked for, for all receivers together.
pub const JOBS_MAX: usize = 500;

/// Messages and their bytes.
type Size = (usize, usize);

fn size<'a>(messages: impl Iterator<Item = &'a Message>) -> Size {
    messages.fold((0, 0), |(count, bytes), one| {
        (count + 1, bytes + one.size())
    })
}

impl Outbox {
    /// Drops what is too old or too much, the oldest first, and what is for nobody any more.
    pub(crate) fn drop_surplus(&mut self, rules: &Rules, now: Timestamp) -> bool {
        let before = self.messages.len();
        let known = |receiver: &String| rules.receivers.contains(receiver);
        self.messages.retain(|message| {
            known(&message.receiver)
                && (!message.of_jobs || rules.open.allows(&message.addressee()))
        });
        self.dropped.retain(|receiver, _| known(receiver));
        self.dropped_of_jobs.retain(|receiver, _| known(receiver));
        self.drop_of_jobs(now);
        let for_jobs = match rules.open.is_nothing() {
            true => 0,
            false => JOBS_BYTES_MAX,
        };
        let share = (BYTES_MAX - for_jobs) / rules.receivers.len().max(1);
        for receiver in &rules.receivers {
            let is_meant = |one: &Message| one.receiver == *receiver && !one.of_jobs;
            let (mut count, mut bytes) = size(self.messages.iter().filter(|one| is_meant(one)));
            while let Some(at) = self.messages.iter().position(is_meant) {
                let oldest = &self.messages[at];
                if !is_too_old(oldest, now) && count <= RECEIVER_MAX && bytes <= share {
                    break;
                }
                (count, bytes) = (count - 1, bytes - oldest.size());
                let lost = self.messages.remove(at).count;
                *self.dropped.entry(receiver.clone()).or_default() += u64::from(lost);
            }
        }
        self.messages.len() != before
    }

    /// Of what jobs have asked for, the oldest of the person that has the most goes first: who is written to by a thousand
    /// jobs costs the others nothing.
    fn drop_of_jobs(&mut self, now: Timestamp) {
        let own = || self.messages.iter().filter(|one| one.of_jobs);
        let old = own().filter(|one| is_too_old(one, now));
        let mut dropped: BTreeSet<u64> = old.map(|one| one.number).collect();
        let left = || own().filter(|one| !is_too_old(one, now));
        let (mut count, mut bytes) = size(left());
        let is_over = |count, bytes| count > JOBS_MAX || bytes > JOBS_BYTES_MAX;
        if is_over(count, bytes) {
            let mut by_person = BTreeMap::<Addressee, VecDeque<(u64, usize)>>::new();
            for one in left() {
                let person = by_person.entry(one.addressee().person()).or_default();
                person.push_back((one.number, one.size()));
            }
            let has = |own: VecDeque<(u64, usize)>| {
                let bytes: usize = own.iter().map(|(_, bytes)| bytes).sum();
                (bytes, own)
            };
            let mut by_size: BTreeSet<_> = by_person.into_values().map(has).collect();
            while is_over(count, bytes) {
                let Some((all, mut own)) = by_size.pop_last() else {
                    break;
                };
                let Some((oldest, size)) = own.pop_front() else {
                    continue;
                };
                dropped.insert(oldest);
                (count, bytes) = (count - 1, bytes - size);
                by_size.insert((all - size, own));
            }
        }
        let is_dropped = |one: &mut Message| dropped.contains(&one.number);
        for lost in self.messages.extract_if(.., is_dropped) {
            let count = self.dropped_of_jobs.entry(lost.receiver).or_default();
            *count += u64::from(lost.count);
        }
    }

    /// When the next message is too old.
    pub(crate) fn next_too_old(&self) -> Option<Timestamp> {
        let oldest = self.messages.iter().map(|message| message.first).min()?;
        // One microsecond later it is.
        Some(oldest + KEPT_FOR + Duration::from_micros(1))
    }
}

fn is_too_old(message: &Message, now: Timestamp) -> bool {
    message.first + KEPT_FOR < now
}
