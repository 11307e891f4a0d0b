//! The receivers of this coordinator: what has come of the attempts since it started, and trying one out.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Mutex, PoisonError},
};

use muster_core::{
    fleet::notify::{Answered, Kind, Message, Notice, Rules},
    time::Timestamp,
};
use ring::hmac;

use super::{
    body,
    file::Notify,
    http::{self, Post},
    receiver::{Receiver, Secret},
};

/// By this a receiver recognises a message that comes again.
const ID: &str = "muster-id";
const TIMESTAMP: &str = "muster-timestamp";
/// HMAC-SHA256 of `TIMESTAMP.BODY`, in hexadecimal digits.
const SIGNATURE: &str = "muster-signature";

/// What has come of the attempts to reach one receiver since this coordinator started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) delivered: u64,
    pub(crate) failed: u64,
    pub(crate) last_delivered: Option<Timestamp>,
    /// The last failure. `None`: there was none, or it was delivered something after it.
    pub(crate) failing: Option<(Timestamp, String)>,
}

/// What came of one attempt.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) answered: Answered,
    /// The answer, or why there is none. It shows no secret.
    pub(crate) said: String,
}

#[derive(Debug)]
pub(crate) struct Desk {
    notify: Notify,
    figures: Mutex<BTreeMap<String, Figures>>,
}

impl Desk {
    pub(crate) fn new(notify: Notify) -> Self {
        Self {
            notify,
            figures: Mutex::default(),
        }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.notify.rules
    }

    pub(crate) fn receivers(&self) -> impl Iterator<Item = &Receiver> {
        self.notify.receivers.values()
    }

    pub(crate) fn receiver(&self, name: &str) -> Option<&Receiver> {
        self.notify.receivers.get(name)
    }

    pub(crate) fn figures(&self, receiver: &str) -> Figures {
        let figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        figures.get(receiver).cloned().unwrap_or_default()
    }

    /// Sends a message that says that it is a test.
    pub(crate) async fn test(&self, receiver: &Receiver, now: Timestamp) -> Tried {
        let text =
            "This is a test of Muster's notifications (muster notify test). Nothing has happened.";
        let message = Message {
            number: 0,
            receiver: receiver.name.clone(),
            kind: Kind::Test,
            first: now,
            due: now,
            count: 1,
            notices: vec![Notice::new(Kind::Test, now, text)],
        };
        self.attempt(receiver, &message, 0, now).await
    }

    /// Sends this message, once.
    pub(crate) async fn attempt(
        &self,
        receiver: &Receiver,
        message: &Message,
        dropped: u64,
        now: Timestamp,
    ) -> Tried {
        let tried = match self.post(receiver, message, dropped, now) {
            Ok(post) => match http::post(post).await {
                Ok(reply) => Tried {
                    answered: reply.answered(),
                    said: reply.to_string(),
                },
                Err(said) => failed(said),
            },
            Err(said) => failed(said),
        };
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        let own = figures.entry(receiver.name.clone()).or_default();
        if tried.answered == Answered::Delivered {
            own.delivered += 1;
            (own.last_delivered, own.failing) = (Some(now), None);
        } else {
            own.failed += 1;
            own.failing = Some((now, tried.said.clone()));
        }
        tried
    }

    fn post(
        &self,
        receiver: &Receiver,
        message: &Message,
        dropped: u64,
        now: Timestamp,
    ) -> Result<Post, String> {
        let read = |secret: &Option<Secret>| secret.as_ref().map(Secret::read).transpose();
        let body = body::of(receiver.form, &self.notify.cluster, message, dropped);
        let mut headers = vec![(ID, message.id())];
        if let Some(key) = read(&receiver.key)? {
            let seconds = (now.0 / 1_000_000).to_string();
            headers.push((SIGNATURE, format!("sha256={}", sign(&key, &seconds, &body))));
            headers.push((TIMESTAMP, seconds));
        }
        Ok(Post {
            address: receiver.address()?,
            tls: receiver.tls.clone(),
            token: read(&receiver.token)?,
            headers,
            body,
        })
    }
}

fn failed(said: String) -> Tried {
    Tried {
        answered: Answered::NotNow(None),
        said,
    }
}

fn sign(key: &str, seconds: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    let signed = [seconds.as_bytes(), b".", body].concat();
    let mut text = String::new();
    for byte in hmac::sign(&key, &signed).as_ref() {
        // A text takes everything.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
