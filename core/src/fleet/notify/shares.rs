//! Which of the messages that jobs have asked for go when they are too many. The namespace that has the most loses first, and
//! in it the addressee that has the most loses the oldest: a user who floods costs the users of other namespaces nothing.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
};

use crate::fleet::notify::{addressee::Addressee, outbox::Message};

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    count: usize,
    bytes: usize,
}

impl Held {
    fn take(&mut self, message: &Message) {
        (self.count, self.bytes) = (self.count + 1, self.bytes + message.size());
    }

    fn lose(&mut self, message: &Message) {
        (self.count, self.bytes) = (self.count - 1, self.bytes - message.size());
    }
}

/// What waits for one addressee by the jobs of one namespace, the oldest first.
#[derive(Debug, Default)]
struct Share<'a> {
    held: Held,
    messages: VecDeque<&'a Message>,
}

impl Share<'_> {
    fn oldest(&self) -> Option<u64> {
        self.messages.front().map(|message| message.number)
    }
}

#[derive(Debug, Default)]
struct Namespace<'a> {
    held: Held,
    addressees: BTreeMap<Addressee, Share<'a>>,
}

/// The numbers of those that go until `count` and `bytes` both fit. Bytes decide once the count fits.
pub(super) fn surplus(messages: &[&Message], count: usize, bytes: usize) -> BTreeSet<u64> {
    let (mut dropped, mut all) = (BTreeSet::new(), Held::default());
    messages.iter().for_each(|message| all.take(message));
    if all.count <= count && all.bytes <= bytes {
        return dropped;
    }
    let mut namespaces = shared_out(messages);
    loop {
        let by: fn(&Held) -> usize = match (all.count > count, all.bytes > bytes) {
            (true, _) => |held| held.count,
            (false, true) => |held| held.bytes,
            (false, false) => return dropped,
        };
        let Some(lost) = lose_one(&mut namespaces, by) else {
            return dropped;
        };
        all.lose(lost);
        dropped.insert(lost.number);
    }
}

/// Of two that have as much, the one with the older message loses it.
fn lose_one<'a>(
    namespaces: &mut BTreeMap<Option<&'a str>, Namespace<'a>>,
    by: fn(&Held) -> usize,
) -> Option<&'a Message> {
    let own = namespaces.values_mut().max_by_key(|own| {
        let oldest = own.addressees.values().filter_map(Share::oldest).min();
        (by(&own.held), Reverse(oldest))
    })?;
    let share = { own.addressees.values_mut() }
        .max_by_key(|share| (by(&share.held), Reverse(share.oldest())))?;
    let lost = share.messages.pop_front()?;
    share.held.lose(lost);
    own.held.lose(lost);
    Some(lost)
}

/// A message that tells of jobs of some namespaces is of the one with the fewest: who floods an addressee drops nothing that others
/// tell it.
fn shared_out<'a>(messages: &[&'a Message]) -> BTreeMap<Option<&'a str>, Namespace<'a>> {
    let mut tells = BTreeMap::<Option<&str>, usize>::new();
    for message in messages {
        for namespace in namespaces(message) {
            *tells.entry(namespace).or_default() += 1;
        }
    }
    let mut shares = BTreeMap::<Option<&str>, Namespace<'a>>::new();
    for message in messages {
        let of = namespaces(message).into_iter();
        let of = of.min_by_key(|namespace| tells[namespace]).flatten();
        let own = shares.entry(of).or_default();
        own.held.take(message);
        let share = own.addressees.entry(message.addressee()).or_default();
        share.held.take(message);
        share.messages.push_back(message);
    }
    shares
}

fn namespaces(message: &Message) -> BTreeSet<Option<&str>> {
    let notices = message.notices.iter();
    let jobs = notices.map(|notice| notice.job.as_ref());
    jobs.map(|job| job.map(|job| job.namespace.as_str()))
        .collect()
}
