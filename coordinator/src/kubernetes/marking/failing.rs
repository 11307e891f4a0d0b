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
    /// Attempts since the last answer about an object.
    unanswered: u32,
    /// The kinds that people know, and the number of objects that they were told.
    told: Option<(BTreeSet<Kind>, usize)>,
}

#[derive(Debug)]
struct Failure {
    why: Why,
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
        self.objects.remove(name);
        self.heard()
    }

    fn heard(&mut self) -> Vec<NodeName> {
        if std::mem::take(&mut self.unanswered) < FAILURES_TOLD {
            return Vec::new();
        }
        let away = |failure: &Failure| matches!(failure.why, Why::Away(_));
        let waiting = self.objects.iter().filter(|(_, failure)| away(failure));
        waiting.map(|(name, _)| name.clone()).collect()
    }

    /// Takes a failure down. Returns when to try again, and whom not to let wait any longer.
    pub(super) fn failed(&mut self, name: NodeName, why: Why) -> (Duration, Vec<NodeName>) {
        let refused = matches!(why, Why::Refused(_));
        let before = self
            .objects
            .get(&name)
            .map_or(0, |failure| failure.attempts);
        let free = if refused {
            self.heard()
        } else {
            self.unanswered = self.unanswered.saturating_add(1);
            Vec::new()
        };
        let attempts = before.saturating_add(1);
        let pause = RETRY_FIRST.saturating_mul(1 << before.min(20));
        self.objects.insert(name, Failure { why, attempts });
        let pause = if refused { RETRY_MAX } else { pause };
        (pause.min(RETRY_MAX), free)
    }

    /// Forgets the objects that need no write any more.
    pub(super) fn retain(&mut self, due: impl Fn(&NodeName) -> bool) {
        self.objects.retain(|name, _| due(name));
        if self.objects.is_empty() {
            self.unanswered = 0;
        }
    }

    /// What people are to hear now, if it is anything new.
    pub(super) fn news(&mut self) -> Option<News> {
        let mut kinds: BTreeMap<Kind, (&NodeName, &str, usize)> = BTreeMap::new();
        for (name, failure) in &self.objects {
            let (kind, text) = match &failure.why {
                Why::Forbidden(text) => (Kind::Forbidden(unnamed(text, name)), text),
                Why::Refused(text) => (Kind::Refused(unnamed(text, name)), text),
                Why::Away(text) if failure.attempts.max(self.unanswered) >= FAILURES_TOLD => {
                    (Kind::Away, text)
                }
                Why::Away(_) => continue,
            };
            kinds.entry(kind).or_insert((name, text, 0)).2 += 1;
        }
        let count = kinds.values().map(|(_, _, count)| count).sum();
        let mut sentences: Vec<String> = kinds
            .values()
            .take(KINDS_TOLD)
            .map(|(name, text, count)| match count {
                1 => format!("{name}: {text}"),
                _ => format!("{name} and {} more: {text}", count - 1),
            })
            .collect();
        if kinds.len() > KINDS_TOLD {
            sentences.push(format!("and {} more reasons", kinds.len() - KINDS_TOLD));
        }
        let kinds: BTreeSet<Kind> = kinds.into_keys().collect();
        if kinds.is_empty() {
            // An object that has failed once may do so again.
            let over = self.objects.is_empty() && self.told.take().is_some();
            return over.then_some(News::Over);
        }
        let (before, told) = self.told.as_ref().map_or((None, 0), |(k, n)| (Some(k), *n));
        let known = before.is_some_and(|before| kinds.is_subset(before));
        let same = before == Some(&kinds) && count < 2 * told && 2 * count > told;
        if same {
            return None;
        }
        self.told = Some((kinds, count));
        let sentence = sentences.join("; ");
        Some(News::Fail { sentence, known })
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
