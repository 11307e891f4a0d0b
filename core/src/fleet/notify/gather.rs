//! Puts the news of a turn into the outbox.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    fleet::notify::{
        addressee::Addressee,
        notice::Notice,
        outbox::{Message, ONE_IN, Outbox, Sent},
        rules::Rules,
    },
    id::JobUid,
    spec::notify::{Kind, Notify},
    time::Timestamp,
};

/// The outbox, and what is known of it besides.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    outbox: Arc<Outbox>,
    /// When the last message was due, by addressee and kind. It is not stored: after a start somebody may get one
    /// message earlier.
    last_due: BTreeMap<(Addressee, Kind), Timestamp>,
    /// Jobs that were told that what they ask for is closed. It is not stored: after a start they may be told again.
    told_closed: BTreeSet<JobUid>,
    /// It differs from what is stored.
    changed: bool,
    /// Nobody has looked yet for what is too old or too much, or is for nobody any more.
    fresh: bool,
}

impl Outgoing {
    pub(crate) fn loaded(outbox: Outbox) -> Self {
        let due = |message: &Message| ((message.addressee(), message.kind), message.due);
        Self {
            last_due: outbox.messages.iter().map(due).collect(),
            outbox: outbox.into(),
            told_closed: BTreeSet::new(),
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

    /// Takes a notice for all who get it. `notify`: what its job asks for. Returns whom it asks for in vain.
    pub(crate) fn add(
        &mut self,
        rules: &Rules,
        notify: &[Notify],
        notice: Notice,
        now: Timestamp,
    ) -> BTreeSet<String> {
        let notice = match rules.shows_errors {
            true => notice,
            false => Notice {
                error: None,
                ..notice
            },
        };
        let (asked, closed) = rules.asked(notify, &notice);
        let by_rule = rules.receivers_of(&notice).into_iter();
        for addressee in by_rule.map(Addressee::of_operator).chain(asked) {
            let key = (addressee.clone(), notice.kind);
            let mut last = self.last_due.get(&key).copied();
            let outbox = Arc::make_mut(&mut self.outbox);
            self.changed |= outbox.add(&addressee, &notice, rules.gathers, &mut last, now);
            if let Some(due) = last {
                self.last_due.insert(key, due);
            }
        }
        if self.outbox.is_full_within_turn() {
            Arc::make_mut(&mut self.outbox).drop_of_jobs(now);
        }
        closed
    }

    /// Whether a job is to be told that what it asks for is closed: once.
    pub(crate) fn tells_closed(&mut self, uid: &JobUid) -> bool {
        self.told_closed.insert(uid.clone())
    }

    /// Forgets a job that is gone.
    pub(crate) fn forget(&mut self, uid: &JobUid) {
        self.told_closed.remove(uid);
    }

    /// The outbox, if it must be stored.
    pub(crate) fn altered(&mut self, rules: &Rules, now: Timestamp) -> Option<Arc<Outbox>> {
        self.last_due.retain(|_, due| *due + ONE_IN > now);
        let is_old = self.outbox.next_too_old().is_some_and(|at| at <= now);
        if std::mem::take(&mut self.fresh) || self.changed || is_old {
            self.changed |= Arc::make_mut(&mut self.outbox).drop_surplus(rules, now);
        }
        std::mem::take(&mut self.changed).then(|| self.outbox.clone())
    }
}
