//! The receivers of this coordinator: what has come of the attempts since it started, and trying one out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    sync::{Mutex, MutexGuard, PoisonError},
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
    mail,
    mailbox::Mailbox,
    receiver::{Endpoint, Receiver, Secret, To},
    smtp::{self, Failed, Mail},
};

/// By this a receiver recognises a message that comes again.
const ID: &str = "muster-id";
const TIMESTAMP: &str = "muster-timestamp";
/// HMAC-SHA256 of `TIMESTAMP.BODY`, in hexadecimal digits.
const SIGNATURE: &str = "muster-signature";

/// What has come of the attempts to reach one receiver, with the operator's messages or with those that jobs have asked for, since
/// this coordinator started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) delivered: u64,
    pub(crate) failed: u64,
    pub(crate) last_delivered: Option<Timestamp>,
    /// The last failure. `None`: there was none, or something was delivered after it.
    pub(crate) failing: Option<(Timestamp, String)>,
}

/// What came of one attempt.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) answered: Answered,
    /// The answer, or why there is none. It shows no secret.
    pub(crate) said: String,
    /// Some of those to whom it goes do not get it, and why.
    pub(crate) except: Option<String>,
}

/// Who has got a mail that others are still to get, by the message's id. A coordinator that starts has forgotten it.
type Reached = BTreeMap<String, BTreeSet<String>>;

/// Mails that are remembered so. A message waits for a day at most, so an id that is never asked for again is an old one: the
/// lowest goes first. 1,000 with 50 addresses of 30 bytes are 2 MB.
const REACHED_MAX: usize = 1_000;

#[derive(Debug)]
pub(crate) struct Desk {
    notify: Notify,
    /// By receiver, and whether jobs have asked for it.
    figures: Mutex<BTreeMap<(String, bool), Figures>>,
    reached: Mutex<Reached>,
}

impl Desk {
    pub(crate) fn new(notify: Notify) -> Self {
        Self {
            notify,
            figures: Mutex::default(),
            reached: Mutex::default(),
        }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.notify.rules
    }

    pub(crate) fn receivers(&self) -> impl Iterator<Item = &Receiver> {
        self.notify.receivers.values()
    }

    /// The tasks that send to this receiver, by whether jobs have asked for what they send.
    pub(crate) fn senders(&self, receiver: &Receiver) -> Vec<bool> {
        match self.rules().open.of(&receiver.name).is_empty() {
            true => vec![false],
            false => vec![false, true],
        }
    }

    pub(crate) fn receiver(&self, name: &str) -> Option<&Receiver> {
        self.notify.receivers.get(name)
    }

    pub(crate) fn figures(&self, receiver: &str, of_jobs: bool) -> Figures {
        let figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        let own = figures.get(&(receiver.to_owned(), of_jobs));
        own.cloned().unwrap_or_default()
    }

    /// Sends a message that says that it is a test.
    pub(crate) async fn test(&self, receiver: &Receiver, now: Timestamp) -> Tried {
        let text =
            "This is a test of Muster's notifications (muster notify test). Nothing has happened.";
        let message = Message {
            number: 0,
            receiver: receiver.name.clone(),
            of_jobs: false,
            to: None,
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
        let tried = match &receiver.to {
            To::Http(endpoint) => match self.post(receiver, endpoint, message, dropped, now) {
                Ok(post) => match http::post(post).await {
                    Ok(reply) => Tried {
                        answered: reply.answered(),
                        said: reply.to_string(),
                        except: None,
                    },
                    Err(said) => failed(said),
                },
                Err(said) => failed(said),
            },
            To::Mail(mailbox) => {
                let text = mail::of(mailbox, &self.notify.cluster, message, dropped, now);
                let tried = self.mail(receiver, mailbox, message, text).await;
                tried.unwrap_or_else(|Failed { answered, said, .. }| Tried {
                    answered,
                    ..failed(said)
                })
            }
        };
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (receiver.name.clone(), message.of_jobs);
        let own = figures.entry(key).or_default();
        if tried.answered == Answered::Delivered {
            own.delivered += 1;
            (own.last_delivered, own.failing) = (Some(now), None);
        } else {
            own.failed += 1;
            // An address that a job has named is no fault of the receiver.
            let is_its_own = message.to.is_none() || matches!(tried.answered, Answered::NotNow(_));
            if is_its_own {
                own.failing = Some((now, tried.said.clone()));
            }
        }
        tried
    }

    /// Mails it to those who have not got it yet.
    async fn mail(
        &self,
        receiver: &Receiver,
        mailbox: &Mailbox,
        message: &Message,
        text: Vec<u8>,
    ) -> Result<Tried, Failed> {
        let login = mailbox.login.as_ref();
        let login =
            login.map(|login| Ok::<_, String>((login.user.read()?, login.password.read()?)));
        let id = message.id();
        let before = self.reached().get(&id).cloned().unwrap_or_default();
        let (to, of_job) = (mail::recipients(mailbox, message), message.to.is_some());
        let sent = smtp::send(&Mail {
            server: &mailbox.server,
            start_tls: mailbox.start_tls,
            tls: &receiver.tls,
            login: login.transpose()?,
            from: &mailbox.from,
            to: { to.into_iter() }
                .filter(|to| !before.contains(*to))
                .collect(),
            text,
        })
        .await
        .map_err(|failed| if of_job { failed.of_job() } else { failed })?;
        let tried = Tried {
            answered: match of_job {
                true => sent.answered_of_job(),
                false => sent.answered(!before.is_empty()),
            },
            said: sent.said(),
            except: sent.except(),
        };
        let mut reached = self.reached();
        match tried.answered {
            Answered::Delivered => drop(reached.remove(&id)),
            _ if sent.taken.is_empty() => {}
            _ => reached.entry(id).or_default().extend(sent.taken),
        }
        while reached.len() > REACHED_MAX {
            reached.pop_first();
        }
        Ok(tried)
    }

    fn reached(&self) -> MutexGuard<'_, Reached> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(
        &self,
        receiver: &Receiver,
        endpoint: &Endpoint,
        message: &Message,
        dropped: u64,
        now: Timestamp,
    ) -> Result<Post, String> {
        let read = |secret: &Option<Secret>| secret.as_ref().map(Secret::read).transpose();
        let body = body::of(endpoint.form, &self.notify.cluster, message, dropped);
        let mut headers = vec![(ID, message.id())];
        if let Some(key) = read(&endpoint.key)? {
            let seconds = (now.0 / 1_000_000).to_string();
            headers.push((SIGNATURE, format!("sha256={}", sign(&key, &seconds, &body))));
            headers.push((TIMESTAMP, seconds));
        }
        Ok(Post {
            address: endpoint.address()?,
            tls: receiver.tls.clone(),
            token: read(&endpoint.token)?,
            headers,
            body,
        })
    }
}

fn failed(said: String) -> Tried {
    Tried {
        answered: Answered::NotNow(None),
        said,
        except: None,
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
