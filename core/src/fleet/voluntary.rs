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
/// A save of which no more was seen has just been made: agents look every 10 s, and tell when they saw no change once.
const JUST_SAVED: Duration = Duration::from_secs(30);
/// Looks at files are further apart than this, and one save that is told again is nearer: its time is reckoned anew in each report.
const ANOTHER: Duration = Duration::from_secs(5);

/// Why a change is put off, and until when at the latest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Later {
    pub at: Timestamp,
    pub why: Waits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// The generation has not trained for long enough.
    CoolDown,
    /// It has not trained for as long as the growth needs to gain what it costs: so long without a step.
    Pays(Duration),
    /// The next save.
    Save,
}

/// The saves of a job's newest generation, as members tell of them. All times are on the coordinator's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Saves {
    of: Generation,
    newest: Option<Timestamp>,
    /// The one before.
    before: Option<Timestamp>,
    /// Since when a change waits for the next.
    waits_since: Option<Timestamp>,
}

/// Why this generation does not grow to so many yet. None: it may grow now.
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

/// Why this generation does not leave nodes for others yet. None: it may leave them now.
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
/// would have gained what it costs. If the next change comes after the same time, this one has at least paid for itself.
pub(crate) fn rest(job: &JobRecord, from: u32, to: u32) -> (Duration, Waits) {
    if let Some(own) = job.spec.scale_up_cooldown {
        return (own, Waits::CoolDown);
    }
    let cost = cost(job).unwrap_or_default();
    let pays = cost * from / to.saturating_sub(from).max(1);
    match pays > SCALE_UP_COOLDOWN {
        true => (pays.min(PAYS_MAX), Waits::Pays(cost)),
        false => (SCALE_UP_COOLDOWN, Waits::CoolDown),
    }
}

/// How long all members make no step when this job is formed anew: the least that was measured of planned changes, else after
/// failures, else at its start. The least, because some waited for more than the change itself. None: nothing was measured yet.
fn cost(job: &JobRecord) -> Option<Duration> {
    use Cause::*;
    let kind = |incident: &Incident| match incident.cause {
        // The time in which it held nothing belongs to none.
        Preempted | Suspended | Resumed | NodeDeleted | StoreAccepted => None,
        FirstStart => Some(2),
        cause if cause.is_failure() => Some(1),
        _ => Some(0),
    };
    let measured = job.incidents.iter().filter_map(|incident| {
        let kind = kind(incident).filter(|_| incident.restarted_ranks.is_empty())?;
        let took = match incident.cause {
            // It may have waited for hours until it could begin.
            FirstStart => {
                let begins = incident.first_step_at.or(incident.joined_at)?;
                begins.since(incident.decided_at?)
            }
            _ => incident.total()?.saturating_sub(incident.waited),
        };
        // Of a generation that made no step it is only known when its ranks had joined.
        Some((incident.first_step_at.is_none(), kind, took))
    });
    measured.min().map(|(.., took)| took)
}

impl Saves {
    /// Notes what a member says of a generation's saves. True: a change waits for this.
    pub(crate) fn hear(&mut self, of: Generation, saved: CheckpointReport) -> bool {
        if of > self.of {
            *self = Self {
                of,
                ..Self::default()
            };
        }
        let Some(saved) = saved.saved_at.filter(|_| of == self.of) else {
            return false;
        };
        if self.newest.is_some_and(|newest| saved <= newest + ANOTHER) {
            return false;
        }
        self.before = self.newest.replace(saved);
        self.waits_since.is_some()
    }

    /// No change waits for a save any more.
    pub(crate) fn forget_wait(&mut self) {
        self.waits_since = None;
    }

    /// Whether a change that could be made now waits for a save. None: one was just made, none is known to come soon.
    pub(crate) fn wait(&mut self, job: &JobRecord, now: Timestamp) -> Option<Later> {
        let current = job.training().map(|generation| generation.number);
        let newest = self.newest.filter(|_| current == Some(self.of))?;
        if now.since(newest) <= JUST_SAVED {
            return None;
        }
        let until = self.waits_since.unwrap_or(now) + SAVE_MAX;
        let next = self.before.map(|before| newest + newest.since(before));
        if now >= until || next.is_some_and(|next| next > until) {
            return None;
        }
        self.waits_since.get_or_insert(now);
        Some(Later {
            at: until,
            why: Waits::Save,
        })
    }
}

impl fmt::Display for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.rfc3339_seconds();
        match &self.why {
            Waits::CoolDown => write!(f, "it keeps its nodes until {at} (scaleUpCooldown)"),
            Waits::Pays(cost) => write!(
                f,
                "it will grow once that makes up for the {} in which each change stops it",
                period::format(round(*cost))
            ),
            Waits::Save => write!(
                f,
                "it will change its nodes after the next save, or at {at}"
            ),
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
