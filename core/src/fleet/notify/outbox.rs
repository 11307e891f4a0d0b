//! The messages that wait to be sent. They are one stored record, which is written again with each change.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    fleet::notify::{kind::Kind, notice::Notice, rules::Rules},
    time::Timestamp,
};

/// A receiver gets one message of a kind in this time. What comes meanwhile is counted in the next.
const ONE_IN: Duration = Duration::from_secs(60);

/// For so long it is tried to deliver a message. A person is back on the next morning.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// Notices that a message has in full. Those beyond are counted.
pub const NOTICES_MAX: usize = 10;

/// Messages that wait for one receiver. Seven kinds, each once a minute, are 420 in an hour.
pub const RECEIVER_MAX: usize = 500;

/// All messages together, in bytes: they are one record, and a commit that changes it writes it whole. Each receiver
/// has an equal share.
pub const BYTES_MAX: usize = 1 << 20;

/// What one receiver is to be told, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// It grows with each message of a store.
    pub number: u64,
    pub receiver: String,
    pub kind: Kind,
    pub first: Timestamp,
    /// Until then it gathers notices, and is not sent.
    pub due: Timestamp,
    /// How many notices it stands for.
    pub count: u32,
    /// The first of them.
    pub notices: Vec<Notice>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outbox {
    /// The last number that was given out.
    pub last: u64,
    /// By number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Notices that no message has any more, because a receiver could not be reached for too long, and that the
    /// receiver was not told of.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dropped: BTreeMap<String, u64>,
}

/// What was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub number: u64,
    /// The notices that the message stood for when it was sent.
    pub count: u32,
    /// The dropped ones that it told of.
    pub dropped: u64,
}

impl Message {
    /// By this a receiver recognises a message that comes again. Another store gives other times.
    pub fn id(&self) -> String {
        format!("{:x}-{}", self.first.0, self.number)
    }

    fn size(&self) -> usize {
        100 + self.notices.iter().map(Notice::size).sum::<usize>()
    }

    fn gather(&mut self, notice: Notice) {
        self.count = self.count.saturating_add(1);
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(notice);
        }
    }
}

impl Outbox {
    /// The messages for one receiver, the oldest first.
    pub fn of<'a>(&'a self, receiver: &'a str) -> impl Iterator<Item = &'a Message> + Clone {
        let all = self.messages.iter();
        all.filter(move |message| message.receiver == receiver)
    }

    /// Takes a notice for one receiver. Its message gathers others for so long. `last_due`: when the receiver's last message of this kind was due. False: it
    /// has it already.
    pub(crate) fn add(
        &mut self,
        receiver: &str,
        notice: &Notice,
        gathers_for: Duration,
        last_due: &mut Option<Timestamp>,
        now: Timestamp,
    ) -> bool {
        let is_again = |message: &Message| message.notices.iter().any(|one| one.is_again(notice));
        if self.of(receiver).any(is_again) {
            return false;
        }
        let gathers = |one: &&mut Message| {
            one.receiver == receiver && one.kind == notice.kind && now < one.due
        };
        if let Some(message) = self.messages.iter_mut().rev().find(gathers) {
            message.gather(notice.clone());
            return true;
        }
        let next = last_due.map_or(now, |at| at + ONE_IN);
        let due = (now + gathers_for).max(next);
        *last_due = Some(due);
        self.last += 1;
        self.messages.push(Message {
            number: self.last,
            receiver: receiver.to_owned(),
            kind: notice.kind,
            first: now,
            due,
            count: 1,
            notices: vec![notice.clone()],
        });
        true
    }

    /// Forgets what was delivered. What came to the message meanwhile becomes one of its own.
    pub(crate) fn sent(&mut self, sent: Sent) -> bool {
        let Some(at) = self
            .messages
            .iter()
            .position(|one| one.number == sent.number)
        else {
            return false;
        };
        let message = self.messages.remove(at);
        let told = self.dropped.get_mut(&message.receiver);
        if let Some(dropped) = told {
            *dropped = dropped.saturating_sub(sent.dropped);
        }
        self.dropped.retain(|_, dropped| *dropped > 0);
        if message.count > sent.count {
            self.last += 1;
            let told = (sent.count as usize).min(message.notices.len());
            self.messages.push(Message {
                number: self.last,
                count: message.count - sent.count,
                notices: message.notices[told..].to_vec(),
                ..message
            });
        }
        true
    }

    /// Drops what is too old or too much, the oldest first, and what is for nobody any more.
    pub(crate) fn drop_surplus(&mut self, rules: &Rules, now: Timestamp) -> bool {
        let before = self.messages.len();
        self.messages
            .retain(|message| rules.receivers.contains(&message.receiver));
        self.dropped
            .retain(|receiver, _| rules.receivers.contains(receiver));
        let share = BYTES_MAX / rules.receivers.len().max(1);
        for receiver in &rules.receivers {
            let size = |message: &Message| (1, message.size());
            let plus = |a: (usize, usize), b: (usize, usize)| (a.0 + b.0, a.1 + b.1);
            let (mut count, mut bytes) = self.of(receiver).map(size).fold((0, 0), plus);
            while let Some(at) = self
                .messages
                .iter()
                .position(|one| one.receiver == *receiver)
            {
                let oldest = &self.messages[at];
                let is_too_old = oldest.first + KEPT_FOR < now;
                if !is_too_old && count <= RECEIVER_MAX && bytes <= share {
                    break;
                }
                (count, bytes) = (count - 1, bytes - oldest.size());
                let lost = self.messages.remove(at).count;
                *self.dropped.entry(receiver.clone()).or_default() += u64::from(lost);
            }
        }
        self.messages.len() != before
    }

    /// When the next message is too old.
    pub(crate) fn next_too_old(&self) -> Option<Timestamp> {
        let oldest = self.messages.iter().map(|message| message.first).min()?;
        // One microsecond later it is.
        Some(oldest + KEPT_FOR + Duration::from_micros(1))
    }
}
