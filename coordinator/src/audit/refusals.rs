//! Which calls that were not allowed get an entry of their own, and which are only counted. So
//! neither strangers nor a denied agent that calls every few seconds can push out the entries of
//! others.
//!
//! A caller without a certificate never gets an entry of its own: all of them are counted together,
//! one entry a minute. A known caller gets one for each different call. Calls alike within the next
//! minutes are counted, and so are all its calls beyond [`DIFFERENT_MAX`] different ones.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::entry::Entry;

/// Different calls of one caller that get an entry of their own in one period. A person who
/// mistypes makes a few.
const DIFFERENT_MAX: usize = 20;

/// How many callers are counted apart at a time. With [`DIFFERENT_MAX`] entries of at most 900 bytes
/// each they take 18 MB. All others are counted together.
const CALLERS_MAX: usize = 1_000;

/// Stands for callers beyond [`CALLERS_MAX`].
const OTHERS: &str = "other callers";

/// The names that [`muster_rpc::Identity`] has for callers without a certificate.
const STRANGERS: [&str; 2] = ["anonymous", "unknown user"];

#[derive(Debug)]
pub(super) struct Refusals {
    strangers: Duration,
    repeats: Duration,
    callers: BTreeMap<String, Caller>,
}

#[derive(Debug)]
struct Caller {
    ends: Instant,
    /// By what, object and code: the latest such call that was counted, if any.
    alike: BTreeMap<Key, Option<Entry>>,
    /// The latest of the calls that are counted together.
    others: Option<Entry>,
}

type Key = (String, String, String);

impl Refusals {
    pub(super) fn new(strangers: Duration, repeats: Duration) -> Self {
        Self {
            strangers,
            repeats,
            callers: BTreeMap::new(),
        }
    }

    /// Notes a call that was not allowed. Says whether it gets an entry of its own; otherwise it is
    /// counted.
    pub(super) fn note(&mut self, now: Instant, entry: &Entry) -> bool {
        let stranger = STRANGERS.contains(&entry.who.as_str());
        let full = self.callers.len() >= CALLERS_MAX && !self.callers.contains_key(&entry.who);
        let (who, different, period) = match (stranger, full) {
            (true, _) => (STRANGERS[0], 0, self.strangers),
            (false, true) => (OTHERS, 0, self.repeats),
            (false, false) => (entry.who.as_str(), DIFFERENT_MAX, self.repeats),
        };
        let caller = self.callers.entry(who.to_owned());
        let caller = caller.or_insert_with(|| Caller {
            ends: now + period,
            alike: BTreeMap::new(),
            others: None,
        });
        let key = (entry.what.clone(), entry.object.clone(), entry.code.clone());
        let room = caller.alike.len() < different;
        let (counted, latest) = match caller.alike.get_mut(&key) {
            Some(counted) => (counted, entry.clone()),
            None if room => {
                caller.alike.insert(key, None);
                return true;
            }
            None => {
                let latest = Entry {
                    who: who.to_owned(),
                    what: "calls".to_owned(),
                    object: String::new(),
                    ..entry.clone()
                };
                (&mut caller.others, latest)
            }
        };
        let count = counted.as_ref().map_or(0, |before| before.count) + 1;
        *counted = Some(Entry { count, ..latest });
        false
    }

    /// The entries for what was counted in periods that are over, or in all.
    pub(super) fn take(&mut self, now: Option<Instant>) -> Vec<Entry> {
        let over = |caller: &Caller| now.is_none_or(|now| caller.ends <= now);
        let callers = self.callers.extract_if(.., |_, caller| over(caller));
        let counted = callers.flat_map(|(_, caller)| {
            let alike = caller.alike.into_values();
            alike.chain([caller.others]).flatten()
        });
        counted.collect()
    }
}
