//! The messages that wait to be sent. They are one stored record, which is written again with each change.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    fleet::notify::{addressee::Addressee, notice::Notice},
    spec::notify::Kind,
    time::Timestamp,
};

/// An addressee gets one message of a kind in this time. What comes meanwhile is counted in the next.
pub(super) const ONE_IN: Duration = Duration::from_secs(60);

/// Notices that a message has in full. Those beyond are counted.
pub const NOTICES_MAX: usize = 10;

/// What somebody is to be told, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// It grows with each message of a store.
    pub number: u64,
    pub receiver: String,
    /// Jobs have asked for it, and not the operator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_jobs: bool,
    /// The address of mail that jobs have named, in place of the receiver's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
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
    /// The same of messages that jobs have asked for, of all time. Nobody is told of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dropped_of_jobs: BTreeMap<String, u64>,
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

    pub(super) fn addressee(&self) -> Addressee {
        Addressee {
            receiver: self.receiver.clone(),
            of_jobs: self.of_jobs,
            to: self.to.clone(),
        }
    }

    fn is_for(&self, addressee: &Addressee) -> bool {
        self.receiver == addressee.receiver
            && self.of_jobs == addressee.of_jobs
            && self.to == addressee.to
    }

    pub(crate) fn size(&self) -> usize {
        let to = self.to.as_ref().map_or(0, String::len);
        100 + to + self.notices.iter().map(Notice::size).sum::<usize>()
    }

    fn gather(&mut self, notice: Notice) {
        self.count = self.count.saturating_add(1);
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(notice);
        }
    }
}

impl Outbox {
    /// The messages for one receiver that jobs have asked for, or those of the operator, the oldest first.
    pub fn of<'a>(
        &'a self,
        receiver: &'a str,
        of_jobs: bool,
    ) -> impl Iterator<Item = &'a Message> + Clone {
        let all = self.messages.iter();
        all.filter(move |message| message.receiver == receiver && message.of_jobs == of_jobs)
    }

    /// Takes a notice for one addressee. Its message gathers others for so long. `last_due`: when its last message
    /// of this kind was due. False: it has it already.
    pub(crate) fn add(
        &mut self,
        addressee: &Addressee,
        notice: &Notice,
        gathers_for: Duration,
        last_due: &mut Option<Timestamp>,
        now: Timestamp,
    ) -> bool {
        let own = |one: &&mut Message| one.is_for(addressee);
        let mut all = self.messages.iter().filter(|one| one.is_for(addressee));
        if all.any(|message| message.notices.iter().any(|one| one.is_again(notice))) {
            return false;
        }
        let gathers = |one: &&mut Message| one.kind == notice.kind && now < one.due;
        let mut messages = self.messages.iter_mut().rev().filter(own);
        if let Some(message) = messages.find(gathers) {
            message.gather(notice.clone());
            return true;
        }
        let next = match *last_due {
            // The message of that time was dropped. This one takes its place, so nobody is put off by what is dropped.
            Some(at) if at > now => at,
            Some(at) => at + ONE_IN,
            None => now,
        };
        let due = (now + gathers_for).max(next);
        *last_due = Some(due);
        self.last += 1;
        self.messages.push(Message {
            number: self.last,
            receiver: addressee.receiver.clone(),
            of_jobs: addressee.of_jobs,
            to: addressee.to.clone(),
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
}
