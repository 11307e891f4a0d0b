//! When a job that trains is formed anew although nothing forces it: to grow, or to leave a node that is unhealthy
//! or slow. Each such change costs a re-form, and what was trained since the last save.
//!
//! It never decides whether a change is wanted, or to which nodes (`resize`). What must be done at once, because of a notice, a
//! failure or a user's wish, is not asked here.

use std::{fmt, time::Duration};

use crate::{
    fleet::{
        job::{GenerationRecord, JobRecord},
        receipt::{Cause, Incident},
    },
    id::Generation,
    period,
    run::CheckpointReport,
    spec::SCALE_UP_COOLDOWN,
    time::Timestamp,
};

/// The longest time that a generation trains before it grows, if the job does not say so itself.
pub(crate) const PAYS_MAX: Duration = Duration::from_secs(1800);
/// The longest time that a change waits for a save.
pub(crate) const SAVE_MAX: Duration = Duration::from_secs(600);
/// A save that was noticed so long ago has just been made: agents look every 10 s.
const JUST_SAVED: Duration = Duration::from_secs(15);

/// What a change waits for, and until when at the latest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Later {
    pub at: Timestamp,
    pub why: Waits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Coordinators that have just started listen first.
    Listens,
    /// The generation has not trained for long enough.
    CoolDown,
    /// It has not trained for as long as the growth needs to gain what it costs.
    Pays { cost: Duration, from: u32, to: u32 },
    /// The next save.
    Save,
}

/// What is known of the saves of a job's newest generation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Saves {
    of: Generation,
    /// The newest, on its node's clock.
    newest: Option<Timestamp>,
    /// When it was noticed. None: it was there before this coordinator looked.
    noticed: Option<Timestamp>,
    /// Since when a change waits for the next.
    waits_since: Option<Timestamp>,
}

/// What a generation of `from` waits for before it grows to `to`. None: it may grow now.
pub(crate) fn growth(
    job: &JobRecord,
    generation: &GenerationRecord,
    to: u32,
    now: Timestamp,
) -> Option<Later> {
    let from = generation.size();
    let began = generation.started_at.unwrap_or(generation.opened);
    let (rest, why) = rest(job, from, to);
    let at = began + rest;
    (now < at).then_some(Later { at, why })
}

/// What a generation waits for before it leaves nodes for others. None: it may leave them now.
pub(crate) fn moving(
    job: &JobRecord,
    generation: &GenerationRecord,
    now: Timestamp,
) -> Option<Later> {
    let began = generation.started_at.unwrap_or(generation.opened);
    let at = began + job.spec.scale_up_cooldown.unwrap_or(SCALE_UP_COOLDOWN);
    let why = Waits::CoolDown;
    (now < at).then_some(Later { at, why })
}

/// How long a generation of `from` trains at least before it grows to `to`: as the job says, else until the growth
/// would have gained what it costs. If the next change comes as soon again, it has then cost no more than it gained.
pub(crate) fn rest(job: &JobRecord, from: u32, to: u32) -> (Duration, Waits) {
    if let Some(own) = job.spec.scale_up_cooldown {
        return (own, Waits::CoolDown);
    }
    let cost = cost(job).unwrap_or_default();
    let pays = cost * from / to.saturating_sub(from).max(1);
    match pays > SCALE_UP_COOLDOWN {
        true => (pays.min(PAYS_MAX), Waits::Pays { cost, from, to }),
        false => (SCALE_UP_COOLDOWN, Waits::CoolDown),
    }
}

/// How long all members made no step when this job was last formed anew: as planned, if that was seen, else after a failure,
/// else at its start. None: nothing was measured yet.
fn cost(job: &JobRecord) -> Option<Duration> {
    let kind = |incident: &Incident| match incident.cause {
        Cause::FirstStart => 0,
        cause if cause.is_failure() => 1,
        _ => 2,
    };
    let whole = |incident: &&Incident| incident.restarted_ranks.is_empty();
    let measured = job.incidents.iter().filter(whole).filter_map(|incident| {
        let took = incident.total()?.saturating_sub(incident.waited);
        Some((kind(incident), took))
    });
    // The last of the best kind.
    measured.max_by_key(|(kind, _)| *kind).map(|(_, took)| took)
}

impl Saves {
    /// Notes what a member says of a generation's saves. True: a change waits for this.
    pub(crate) fn hear(&mut self, of: Generation, saved: CheckpointReport, now: Timestamp) -> bool {
        if of > self.of {
            *self = Self {
                of,
                newest: saved.saved_at,
                ..Self::default()
            };
        }
        if of < self.of || saved.saved_at <= self.newest {
            return false;
        }
        (self.newest, self.noticed) = (saved.saved_at, Some(now));
        self.waits_since.is_some()
    }

    /// No change waits for a save any more.
    pub(crate) fn forget_wait(&mut self) {
        self.waits_since = None;
    }

    /// What a change waits for that may be made otherwise. None: a save was just made, none is known to come, or the
    /// script loses nothing if it is stopped.
    pub(crate) fn wait(&mut self, job: &JobRecord, now: Timestamp) -> Option<Later> {
        let current = job.training().map(|generation| generation.number);
        self.newest.filter(|_| current == Some(self.of))?;
        if self.noticed.is_some_and(|at| now <= at + JUST_SAVED) || saves_when_stopped(job) {
            return None;
        }
        let since = *self.waits_since.get_or_insert(now);
        let (at, why) = (since + SAVE_MAX, Waits::Save);
        (now < at).then_some(Later { at, why })
    }
}

/// Whether the job lost no step when it was last stopped as planned.
fn saves_when_stopped(job: &JobRecord) -> bool {
    let planned =
        |incident: &&Incident| !incident.cause.is_failure() && incident.cause != Cause::FirstStart;
    let mut newest_first = job.incidents.iter().rev().filter(planned);
    newest_first.find_map(Incident::steps_lost) == Some(0)
}

impl fmt::Display for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.rfc3339_seconds();
        match &self.why {
            Waits::Listens => write!(
                f,
                "the coordinator has just started, and listens until {at}"
            ),
            Waits::CoolDown => write!(f, "its cool-down ends at {at}"),
            Waits::Pays { cost, from, to } => write!(
                f,
                "from {from} to {to} it grows at {at} at the earliest: {} without a step is what that costs, and so it pays",
                period::format(round(*cost))
            ),
            Waits::Save => write!(f, "it waits for the next save, at most until {at}"),
        }
    }
}

/// A period as people say it.
fn round(period: Duration) -> Duration {
    match period.as_secs() {
        0..10 => Duration::from_millis(period.as_millis() as u64 / 100 * 100),
        seconds => Duration::from_secs(seconds),
    }
}
