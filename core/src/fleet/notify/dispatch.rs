//! When a message is sent to one receiver, and when again. It is not stored: a coordinator that starts tries at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{fleet::notify::outbox::Message, time::Timestamp};

/// The wait after the first failure. It doubles with each further one.
const FIRST: Duration = Duration::from_secs(5);

/// The longest wait of our own: when a receiver is back, it has all within five minutes.
const LONGEST: Duration = Duration::from_secs(300);

/// The longest wait that a receiver may ask for.
const ASKED_MAX: Duration = Duration::from_secs(3600);

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    Delivered,
    /// The receiver takes nothing now. It may have said for how long.
    NotNow(Option<Duration>),
    /// It does not take this message, and may take others.
    Refused,
    /// Permanent refusal of an address that a job named. Not retried.
    Hopeless,
}

impl Answered {
    /// By a status of HTTP. What is no fault of one message is one of the receiver: a wrong address or token too, until
    /// somebody mends it.
    pub fn by_status(status: u16, retry_after: Option<Duration>) -> Self {
        match status {
            200..300 => Answered::Delivered,
            400 | 406 | 409 | 411 | 412 | 413 | 414 | 415 | 422 | 431 => Answered::Refused,
            _ => Answered::NotNow(retry_after),
        }
    }

    /// By what a server of mail answers to a mail, its sender or a recipient: <https://www.rfc-editor.org/rfc/rfc5321#section-4.2.1>.
    pub fn by_reply(code: u16) -> Self {
        match code {
            200..300 => Answered::Delivered,
            500..600 => Answered::Refused,
            _ => Answered::NotNow(None),
        }
    }
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    Send(&'a Message),
    /// Nothing before this moment.
    Wait(Timestamp),
    Nothing,
}

/// What was tried with one receiver. The operator's messages and those of jobs each have one, so what is said of a job's message
/// holds up none of the operator's.
#[derive(Clone, Debug, Default)]
pub struct Dispatch {
    /// Failures in a row, and when to try again.
    failures: u32,
    not_before: Timestamp,
    /// How often a message was not delivered, and when it is tried again itself.
    put_off: BTreeMap<u64, (u32, Timestamp)>,
    /// They may be in the outbox for a moment still.
    done: BTreeSet<u64>,
}

impl Dispatch {
    /// The next of these messages, which are all that wait here.
    pub fn next<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a Message>,
        now: Timestamp,
    ) -> Next<'a> {
        let messages: Vec<&Message> = messages.collect();
        let waits: BTreeSet<u64> = messages.iter().map(|message| message.number).collect();
        self.done.retain(|number| waits.contains(number));
        self.put_off.retain(|number, _| waits.contains(number));
        let left = messages
            .into_iter()
            .filter(|message| !self.done.contains(&message.number));
        let at = |message: &Message| {
            let again = self.put_off.get(&message.number).map(|(_, at)| *at);
            message.due.max(again.unwrap_or_default())
        };
        let Some(first) = left.min_by_key(|message| (at(message), message.number)) else {
            return Next::Nothing;
        };
        match at(first).max(self.not_before) {
            at if at > now => Next::Wait(at),
            _ => Next::Send(first),
        }
    }

    /// Notes what came of sending this message.
    pub fn answered(&mut self, number: u64, answered: Answered, now: Timestamp) {
        match answered {
            Answered::Delivered | Answered::Hopeless => {
                self.done.insert(number);
                (self.failures, self.not_before) = (0, now);
            }
            Answered::NotNow(asked) => {
                self.failures = self.failures.saturating_add(1);
                let asked = asked.unwrap_or_default().min(ASKED_MAX);
                self.not_before = now + wait(self.failures).max(asked);
                // If it is the message that the receiver cannot bear, others come first.
                self.put_off(number, now);
            }
            Answered::Refused => {
                (self.failures, self.not_before) = (0, now);
                self.put_off(number, now);
            }
        }
    }

    fn put_off(&mut self, number: u64, now: Timestamp) {
        let (times, at) = self.put_off.entry(number).or_default();
        *times = times.saturating_add(1);
        *at = now + wait(*times);
    }
}

fn wait(failures: u32) -> Duration {
    let doubled = 1_u32 << failures.saturating_sub(1).min(16);
    FIRST.saturating_mul(doubled).min(LONGEST)
}
