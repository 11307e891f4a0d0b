//! How many messages may wait. What jobs have asked for has bounds of its own and is counted apart: whatever users do, it
//! takes no room from what the operator wants to know.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    fleet::notify::{
        outbox::{Message, Outbox},
        rules::Rules,
        shares,
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

    /// Whether jobs' messages must be fewer while a turn still adds: what one turn can add has no bound of its own, and each
    /// notice is compared with all messages. Not at the bound itself, or each further message would cost a count of all.
    pub(super) fn is_full_within_turn(&self) -> bool {
        self.messages.iter().filter(|one| one.of_jobs).count() > 2 * JOBS_MAX
    }

    pub(super) fn drop_of_jobs(&mut self, now: Timestamp) {
        let own = || self.messages.iter().filter(|one| one.of_jobs);
        let old = own().filter(|one| is_too_old(one, now));
        let mut dropped: BTreeSet<u64> = old.map(|one| one.number).collect();
        let left: Vec<&Message> = own().filter(|one| !is_too_old(one, now)).collect();
        dropped.extend(shares::surplus(&left, JOBS_MAX, JOBS_BYTES_MAX));
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
