//! Objects whose last write came to nothing: when each is tried again, and what people are told of
//! it.
//!
//! People are told of each kind of failure once, with the number of objects that have it. A number
//! is told again when it has doubled or halved: every node shows the sentence, so each time costs
//! as much as there are nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::id::NodeName;

/// The pause after the first failure of an object. It doubles with each failure in a row.
const RETRY_FIRST: Duration = Duration::from_millis(250);

/// The longest pause between two attempts.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(30);

/// After this many failures in a row, of one object or of the server, people are told that the API
/// server is away. One is usually a connection that was reset.
const FAILURES_TOLD: u32 = 2;

/// So many kinds are told at most. There are few: no right, no server, and the policies of others.
const KINDS_TOLD: usize = 3;

/// Why a write came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The server refuses this object.
    Refused(String),
    /// The server gives this coordinator no right.
    Forbidden(String),
    /// The server cannot be asked now, or fails.
    Away(String),
}

/// What people are to hear.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// No write fails any more.
    Over,
    /// Writes fail. `known`: people know each kind, and only the number is another.
    Fail { sentence: String, known: bool },
}

#[derive(Debug, Default)]
pub(super) struct Failing {
    objects: BTreeMap<NodeName, Failure>,
    /// The same objects, by what their failures have in common.
    kinds: BTreeMap<Kind, BTreeSet<NodeName>>,
    /// Objects about which the server could not be asked several times in a row.
    lasting: BTreeSet<NodeName>,
    /// Attempts since the last answer about an object.
    unanswered: u32,
    /// The kinds that people know, and the number of objects that they were told.
    told: Option<(BTreeSet<Kind>, usize)>,
}

#[derive(Debug)]
struct Failure {
    /// In the server's words, for people.
    text: String,
    kind: Kind,
    /// Failures in a row.
    attempts: u32,
}

/// What failures have in common. For people a server is away or it is not, whatever the error was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Forbidden(String),
    Away,
    Refused(String),
}

impl Failing {
    pub(super) fn has(&self, name: &NodeName) -> bool {
        self.objects.contains_key(name)
    }

    /// The server has answered about this object: it is written, or gone. Returns the objects that
    /// need not wait any longer, if the server was away.
    pub(super) fn answered(&mut self, name: &NodeName) -> Vec<NodeName> {
        self.forget(name);
        self.heard()
    }

    fn heard(&mut self) -> Vec<NodeName> {
        if std::mem::take(&mut self.unanswered) < FAILURES_TOLD {
            return Vec::new();
        }
        let waiting = self.kinds.get(&Kind::Away);
        waiting.into_iter().flatten().cloned().collect()
    }

    /// Returns how often in a row the object has failed.
    fn forget(&mut self, name: &NodeName) -> u32 {
        let Some(failure) = self.objects.remove(name) else {
            return 0;
        };
        self.lasting.remove(name);
        if let Some(alike) = self.kinds.get_mut(&failure.kind) {
            alike.remove(name);
            if alike.is_empty() {
                self.kinds.remove(&failure.kind);
            }
        }
        failure.attempts
    }

    /// Takes a failure down. Returns when to try again, and whom not to let wait any longer.
    pub(super) fn failed(&mut self, name: NodeName, why: Why) -> (Duration, Vec<NodeName>) {
        let before = self.forget(&name);
        let (kind, text) = match why {
            Why::Forbidden(text) => (Kind::Forbidden(unnamed(&text, &name)), text),
            Why::Refused(text) => (Kind::Refused(unnamed(&text, &name)), text),
            Why::Away(text) => (Kind::Away, text),
        };
        let refused = matches!(kind, Kind::Refused(_));
        let free = if refused {
            self.heard()
        } else {
            self.unanswered = self.unanswered.saturating_add(1);
            Vec::new()
        };
        let attempts = before.saturating_add(1);
        if kind == Kind::Away && attempts >= FAILURES_TOLD {
            self.lasting.insert(name.clone());
        }
        let alike = self.kinds.entry(kind.clone()).or_default();
        alike.insert(name.clone());
        let failure = Failure {
            text,
            kind,
            attempts,
        };
        self.objects.insert(name, failure);
        let pause = match refused {
            true => RETRY_MAX,
            false => RETRY_FIRST.saturating_mul(1 << before.min(20)),
        };
        (pause.min(RETRY_MAX), free)
    }

    /// Forgets the objects that need no write any more.
    pub(super) fn retain(&mut self, due: impl Fn(&NodeName) -> bool) {
        let over: Vec<NodeName> = (self.objects.keys().filter(|name| !due(name)))
            .cloned()
            .collect();
        for name in &over {
            self.forget(name);
        }
        if self.objects.is_empty() {
            self.unanswered = 0;
        }
    }

    /// What people are to hear now, if it is anything new.
    pub(super) fn news(&mut self) -> Option<News> {
        if self.objects.is_empty() {
            return self.told.take().map(|_| News::Over);
        }
        let away = self.unanswered >= FAILURES_TOLD || !self.lasting.is_empty();
        let is_told = |kind: &Kind| away || *kind != Kind::Away;
        let kinds = || self.kinds.iter().filter(|(kind, _)| is_told(kind));
        let count: usize = kinds().map(|(_, alike)| alike.len()).sum();
        // An object that has failed once may do so again: till then nothing is over.
        if count == 0 {
            return None;
        }
        let (known, same) = self.told.as_ref().map_or((false, false), |(before, told)| {
            let known = kinds().all(|(kind, _)| before.contains(kind));
            let about = count < 2 * told && 2 * count > *told;
            (known, known && about && kinds().count() == before.len())
        });
        if same {
            return None;
        }
        let mut sentences: Vec<String> = kinds()
            .take(KINDS_TOLD)
            .map(|k| self.sentence(k.1))
            .collect();
        let more = kinds().count() - sentences.len();
        if more > 0 {
            sentences.push(format!("and {more} more reasons"));
        }
        self.told = Some((kinds().map(|(kind, _)| kind.clone()).collect(), count));
        let sentence = sentences.join("; ");
        Some(News::Fail { sentence, known })
    }

    /// What failures that are alike come to.
    fn sentence(&self, alike: &BTreeSet<NodeName>) -> String {
        let Some(name) = alike.first() else {
            return String::new();
        };
        let text = self.objects.get(name).map_or("", |failure| &failure.text);
        match alike.len() {
            1 => format!("{name}: {text}"),
            more => format!("{name} and {} more: {text}", more - 1),
        }
    }
}

/// The text without the name of its object, so that it is the same for all.
fn unnamed(text: &str, name: &NodeName) -> String {
    text.replace(name.as_str(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> Why {
        Why::Refused(text.into())
    }

    fn away() -> Why {
        Why::Away("connection refused".into())
    }

    fn name(number: usize) -> NodeName {
        format!("n{number:05}").as_str().into()
    }

    #[test]
    fn refusals_of_many_objects_are_told_as_often_as_their_number_doubles() {
        let mut failing = Failing::default();
        let (mut told, mut new) = (0, 0);
        let mut hear = |news: Option<News>| {
            if let Some(News::Fail { known, .. }) = &news {
                told += 1;
                new += usize::from(!known);
            }
        };
        // The latest is the first by name each time.
        for number in (0..10_000).rev() {
            let name = name(number);
            let why = refused(&format!("nodes \"{name}\" is forbidden: hands off"));
            failing.failed(name, why);
            hear(failing.news());
        }
        for number in 0..9_999 {
            failing.answered(&name(number));
            hear(failing.news());
        }
        assert_eq!(new, 1, "one event");
        assert!((14..=28).contains(&told), "{told}");
        failing.answered(&name(9_999));
        assert_eq!(failing.news(), Some(News::Over));
        assert_eq!(failing.news(), None);
    }

    #[test]
    fn each_kind_is_told_with_one_name_and_a_number() {
        let mut failing = Failing::default();
        let sentence = |failing: &mut Failing| match failing.news() {
            Some(News::Fail { sentence, known }) => (sentence, known),
            other => panic!("{other:?}"),
        };
        failing.failed(name(2), refused("hands off n00002"));
        let first = sentence(&mut failing);
        assert_eq!(first, ("n00002: hands off n00002".into(), false));
        failing.failed(name(1), Why::Forbidden("no right".into()));
        failing.failed(name(3), refused("hands off n00003"));
        let both = "n00001: no right; n00002 and 1 more: hands off n00002";
        assert_eq!(sentence(&mut failing), (both.into(), false));
        for number in 4..7 {
            failing.failed(name(number), refused(&format!("reason {number} of others")));
        }
        let (many, _) = sentence(&mut failing);
        assert!(many.ends_with("; and 2 more reasons"), "{many}");
        (4..7).for_each(|number| drop(failing.answered(&name(number))));
        assert_eq!(sentence(&mut failing), (both.into(), true), "known before");
    }

    #[test]
    fn one_failure_is_no_news_and_the_second_in_a_row_is() {
        let mut failing = Failing::default();
        failing.failed(name(1), away());
        assert_eq!(failing.news(), None);
        failing.failed(name(2), away());
        assert!(
            matches!(failing.news(), Some(News::Fail { .. })),
            "two objects"
        );
        let free = failing.answered(&name(2));
        assert_eq!(free, [name(1)], "the server is back");
        assert_eq!(failing.news(), None, "the other one may fail again");
        failing.answered(&name(1));
        assert_eq!(failing.news(), Some(News::Over));
        failing.failed(name(1), away());
        failing.answered(&name(2));
        failing.failed(name(1), Why::Away("another error".into()));
        assert!(
            matches!(failing.news(), Some(News::Fail { .. })),
            "one, twice"
        );
        failing.failed(name(1), away());
        assert_eq!(failing.news(), None, "whatever the error was");
        failing.retain(|_| false);
        assert_eq!(failing.news(), Some(News::Over));
        failing.failed(name(3), away());
        assert_eq!(failing.news(), None, "it counts from the beginning");
    }

    #[test]
    fn pauses_double_and_an_object_that_is_refused_waits_longest() {
        let mut failing = Failing::default();
        let pauses: Vec<u128> = (0..9)
            .map(|_| failing.failed(name(1), away()).0.as_millis())
            .collect();
        assert_eq!(pauses[..3], [250, 500, 1_000]);
        assert_eq!(pauses[7..], [30_000, 30_000]);
        let (pause, free) = failing.failed(name(2), refused("no"));
        assert_eq!((pause, free), (RETRY_MAX, vec![name(1)]), "it has answered");
    }
}
