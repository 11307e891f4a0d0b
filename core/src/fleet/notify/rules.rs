//! Who gets what. The coordinator's operator writes these rules; where a receiver is, and what proves us to it, is
//! the shell's business and no part of them.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    fleet::notify::{addressee::Addressee, notice::Notice, open::Open},
    period,
    spec::notify::{Kind, Notify},
};

/// Each receiver has a task and a share of the outbox. A site has a chat, a pager and some teams.
pub const RECEIVERS_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The names of all receivers.
    pub receivers: BTreeSet<String>,
    pub rules: Vec<Rule>,
    /// A job that waits for longer is told of.
    pub waiting: Duration,
    /// For so long a message gathers further notices of its kind before it is sent.
    pub gathers: Duration,
    /// Whether messages show the error that a rank has printed.
    pub shows_errors: bool,
    /// What jobs may ask for.
    pub open: Open,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub on: BTreeSet<Kind>,
    /// Empty: all, and what belongs to no namespace.
    pub namespaces: BTreeSet<String>,
    pub receivers: BTreeSet<String>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            receivers: BTreeSet::new(),
            rules: Vec::new(),
            // Until then a queue is a queue.
            waiting: Duration::from_secs(3600),
            // A bad change breaks many jobs within seconds, and nobody minds ten.
            gathers: Duration::from_secs(10),
            shows_errors: true,
            open: Open::default(),
        }
    }
}

impl Rules {
    /// Those who get this notice.
    pub fn receivers_of(&self, notice: &Notice) -> BTreeSet<&str> {
        let namespace = notice.job.as_ref().map(|job| &job.namespace);
        let fits = |rule: &&Rule| {
            let own = || namespace.is_some_and(|it| rule.namespaces.contains(it));
            rule.on.contains(&notice.kind) && (rule.namespaces.is_empty() || own())
        };
        let rules = self.rules.iter().filter(fits);
        rules
            .flat_map(|rule| &rule.receivers)
            .map(String::as_str)
            .collect()
    }

    /// Who gets this notice because its job asks for it, and whom it asks for in vain: the operator has closed what was open
    /// when the job was accepted. Who gets it by a rule does not get it again.
    pub(super) fn asked(
        &self,
        notify: &[Notify],
        notice: &Notice,
    ) -> (BTreeSet<Addressee>, BTreeSet<String>) {
        let (by_rule, mail) = (self.receivers_of(notice), self.open.mail.as_ref());
        let (mut asked, mut closed) = (BTreeSet::new(), BTreeSet::new());
        for entry in notify
            .iter()
            .filter(|entry| entry.kinds.contains(&notice.kind))
        {
            for name in entry.receivers.iter().map(String::as_str) {
                match self.open.receivers.contains(name) {
                    true if by_rule.contains(name) => {}
                    true => drop(asked.insert(Addressee::of_jobs(name))),
                    false => drop(closed.insert(name.to_owned())),
                }
            }
            for to in &entry.mail {
                match mail.filter(|mail| mail.allows(to)) {
                    Some(mail) => drop(asked.insert(Addressee::by_mail(&mail.by, to))),
                    None => drop(closed.insert(to.clone())),
                }
            }
        }
        (asked, closed)
    }

    /// The first thing that a job may not ask for: its field, and why not.
    pub fn refuses(&self, notify: &[Notify]) -> Option<(String, String)> {
        if self.receivers.is_empty() && !notify.is_empty() {
            let why = "this coordinator tells nobody of anything: it was started without --notify";
            return Some(("spec.notify".to_owned(), why.to_owned()));
        }
        self.open.refuses(notify)
    }

    /// Whether somebody wants to know of this, of a job that asks for this.
    pub fn wants(&self, kind: Kind, notify: &[Notify]) -> bool {
        let mut rules = self.rules.iter().map(|rule| &rule.on);
        let mut asked = notify.iter().map(|entry| &entry.kinds);
        rules.any(|on| on.contains(&kind)) || asked.any(|on| on.contains(&kind))
    }

    /// The limit of a wait, for people.
    pub fn waiting_in_words(&self) -> String {
        period::format(self.waiting)
    }
}
