//! Who gets what. The coordinator's operator writes these rules; where a receiver is, and what proves us to it, is
//! the shell's business and no part of them.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    fleet::notify::{kind::Kind, notice::Notice},
    period,
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

    /// Whether somebody wants to know of this.
    pub fn wants(&self, kind: Kind) -> bool {
        self.rules.iter().any(|rule| rule.on.contains(&kind))
    }

    /// The limit of a wait, for people.
    pub fn waiting_in_words(&self) -> String {
        period::format(self.waiting)
    }
}
