//! Puts the news of a turn into the outbox.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    fleet::notify::{
        kind::Kind,
        notice::Notice,
        outbox::{Message, Outbox, Sent},
        rules::Rules,
    },
    time::Timestamp,
};

/// The outbox, and what is known of it besides.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    outbox: Arc<Outbox>,
    /// When the last message was due, by receiver and kind. It is not stored: after a start a receiver may get one
    /// message earlier.
    last_due: BTreeMap<(String, Kind), Timestamp>,
    /// It differs from what is stored.
    changed: bool,
    /// Nobody has looked yet for what is too old or too much, or is for nobody any more.
    fresh: bool,
}

impl Outgoing {
    pub(crate) fn loaded(outbox: Outbox) -> Self {
        let due = |message: &Message| ((message.receiver.clone(), message.kind), message.due);
        Self {
            last_due: outbox.messages.iter().map(due).collect(),
            outbox: outbox.into(),
            changed: false,
            fresh: true,
        }
    }

    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    pub(crate) fn sent(&mut self, sent: Sent) {
        self.changed |= Arc::make_mut(&mut self.outbox).sent(sent);
    }

    pub(crate) fn add(&mut self, rules: &Rules, notice: Notice, now: Timestamp) {
        let notice = match rules.shows_errors {
            true => notice,
            false => Notice {
                error: None,
                ..notice
            },
        };
        for receiver in rules.receivers_of(&notice) {
            let key = (receiver.to_owned(), notice.kind);
            let mut last = self.last_due.get(&key).copied();
            let outbox = Arc::make_mut(&mut self.outbox);
            self.changed |= outbox.add(receiver, &notice, rules.gathers, &mut last, now);
            if let Some(due) = last {
                self.last_due.insert(key, due);
            }
        }
    }

    /// The outbox, if it must be stored.
    pub(crate) fn altered(&mut self, rules: &Rules, now: Timestamp) -> Option<Arc<Outbox>> {
        let is_old = self.outbox.next_too_old().is_some_and(|at| at <= now);
        if std::mem::take(&mut self.fresh) || self.changed || is_old {
            self.changed |= Arc::make_mut(&mut self.outbox).drop_surplus(rules, now);
        }
        std::mem::take(&mut self.changed).then(|| self.outbox.clone())
    }
}
