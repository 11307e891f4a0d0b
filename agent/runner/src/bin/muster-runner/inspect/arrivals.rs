//! Looks, once in ten seconds, at when ranks come to their collectives: one rank after the other, one question at a time.
//!
//! All nodes look when the clock's seconds can be divided by ten, so that what they find belongs together. A rank that does not
//! answer in time is left out of this look, and so are those for which no time is left. A look ends at once when the group is
//! to end.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use muster_inspect::{Question, arrivals};
use muster_runner::Folder;
use muster_runner::wire::{ArrivalsStatus, worker_server};

use crate::inspect::ask::{Ask, Heard};
use crate::poll::Poll;
use crate::time;

/// Between two looks. A rank's answer of 2,000 calls takes 25 ms of a processor in the rank, and a few here.
const GAP: Duration = Duration::from_secs(10);
/// How long one answer may take. The rank's own threads may have the processors.
const PATIENCE: Duration = Duration::from_millis(1_000);
/// How long a look may take.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Arrivals {
    /// When the next look is due.
    next: Option<Duration>,
    look: Option<Look>,
    ask: Option<(u32, Ask, Duration)>,
}

struct Look {
    number: u64,
    open: VecDeque<(u32, Question)>,
    until: Duration,
    found: BTreeMap<u32, ArrivalsStatus>,
}

impl Arrivals {
    /// Goes on. `ranks`: those that live; none if nobody may be asked. Returns what a look has found once it is complete,
    /// and when to come back. `id`: a number for a connection.
    pub(crate) fn mind(
        &mut self,
        ranks: &[u32],
        id: &mut u32,
        now: Duration,
        poll: &Poll,
    ) -> (Option<BTreeMap<u32, ArrivalsStatus>>, Option<Duration>) {
        if ranks.is_empty() {
            self.drop_ask(poll);
            (self.look, self.next) = (None, None);
            return (None, None);
        }
        let due = *self.next.get_or_insert_with(|| now + until_next());
        if self.look.is_none() && now < due {
            return (None, Some(due));
        }
        self.look.get_or_insert_with(|| Look {
            number: look_number(),
            open: { ranks.iter() }
                .flat_map(|rank| Question::ALL.map(|question| (*rank, question)))
                .collect(),
            until: now + LIMIT,
            found: BTreeMap::new(),
        });
        match &mut self.ask {
            Some((_, ask, until)) if !ask.is_done() && now < *until => return (None, Some(*until)),
            Some(_) => self.take_answer(poll),
            None => {}
        }
        let Some(look) = &mut self.look else {
            return (None, Some(due));
        };
        if now >= look.until {
            look.open.clear();
        }
        while let Some((rank, question)) = look.open.pop_front() {
            if let Some(ask) = ask(rank, question, *id, poll) {
                self.ask = Some((*id, ask, now + PATIENCE));
                *id = id.wrapping_add(1);
                return (None, Some(now + PATIENCE));
            }
        }
        let found = self.look.take().map(|look| look.found);
        let next = now + until_next();
        self.next = Some(next);
        (found, Some(next))
    }

    fn take_answer(&mut self, poll: &Poll) {
        let (Some((_, mut ask, _)), Some(look)) = (self.ask.take(), &mut self.look) else {
            return;
        };
        if ask.is_done()
            && let Heard::Body(body) = ask.answer()
            && let Ok(groups) = arrivals(&body)
        {
            let number = look.number;
            let found = look.found.entry(ask.rank);
            let found = found.or_insert_with(|| ArrivalsStatus {
                look: number,
                groups: Vec::new(),
            });
            // The two recorders may be the same one.
            let known = |name: &str| found.groups.iter().any(|group| group.group == name);
            let more: Vec<_> = groups.into_iter().filter(|g| !known(&g.group)).collect();
            found.groups.extend(more);
            found.groups.truncate(muster_inspect::ARRIVALS_MAX);
        }
        ask.end(poll);
    }

    /// A connection has something to read, or has ended. False: it is not of here.
    pub(crate) fn hear(&mut self, id: u32, poll: &Poll) -> bool {
        match &mut self.ask {
            Some((own, ask, _)) if *own == id => {
                ask.read(poll);
                true
            }
            _ => false,
        }
    }

    fn drop_ask(&mut self, poll: &Poll) {
        if let Some((_, mut ask, _)) = self.ask.take() {
            ask.end(poll);
        }
    }
}

fn ask(rank: u32, question: Question, id: u32, poll: &Poll) -> Option<Ask> {
    let folder = Folder::trusted(Path::new(".")).ok()?;
    let stream = folder.connect_at_once(worker_server(rank)).ok()?;
    Ask::begin(stream, rank, question, question.request_for_all(), id, poll).ok()
}

/// The number of the look that is due about now: the same on all nodes, also where it begins a moment early.
fn look_number() -> u64 {
    let now = time::wall(time::boot()).duration_since(UNIX_EPOCH);
    let number = (now.unwrap_or_default() + GAP / 2).as_micros() / GAP.as_micros();
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// How long it is until all look again.
fn until_next() -> Duration {
    let now = time::wall(time::boot()).duration_since(UNIX_EPOCH);
    let since = now.unwrap_or_default().as_micros() % GAP.as_micros();
    GAP - Duration::from_micros(since as u64)
}
