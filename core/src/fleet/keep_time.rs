//! Says in which state a job is, for its account of time. The account itself is `time_account`. Nothing is
//! decided by it.
//!
//! The moments come from the receipt, so both tell the same. A break is dated back to its event, and
//! what is doubted stays as it was until it is decided: if the generation turns out to be sound, it has trained
//! all the time. While a node knows more than the store, the account stays as it is.

use std::time::Duration;

use crate::{
    fleet::{
        generation,
        job::{GenerationRecord, JobRecord, Stage, Why},
        job_turn::Facts,
        receipt::Incident,
        time_account::{FormingPhase, State, TimeAccount, Wait},
    },
    run::RankReport,
    time::Timestamp,
};

/// How soon to look again whether lost steps are made up, and at the latest. The moment itself is computed
/// from the rank's own steps, so a late look costs nothing but freshness.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Since when a job is in a state.
type Moment = (Timestamp, State);

/// A job's account of time as it is now.
pub(crate) struct Kept {
    pub account: TimeAccount,
    /// When it may be otherwise, if nobody says anything before.
    pub look_again: Option<Timestamp>,
}

impl Kept {
    fn look_at(&mut self, at: Timestamp) {
        let before = self.look_again;
        self.look_again = Some(before.map_or(at, |before| before.min(at)));
    }
}

/// Brings the job's account of time up to date. `None`: the job is over and never had one.
pub(crate) fn keep_time(facts: Facts<'_>) -> Option<Kept> {
    let job = facts.job;
    if job.is_over() && job.time.is_none() {
        return None;
    }
    let before = job.time.clone();
    let mut kept = Kept {
        account: before.unwrap_or_else(|| TimeAccount::begun(facts.now)),
        look_again: None,
    };
    let open = kept.account.open.map(|open| open.state);
    let makes_steps = matches!(open, Some(State::Training | State::Repeating { .. }));
    if makes_steps && training(facts).is_some() {
        see_steps(facts, &mut kept);
    } else {
        follow(facts, &mut kept);
    }
    kept.account.hold(facts.now, gpus_held(job));
    if job.is_over() {
        kept.account.close(job.finished.unwrap_or(facts.now));
    }
    Some(kept)
}

/// Enters the states that the job has gone through since the open one began.
fn follow(facts: Facts<'_>, kept: &mut Kept) {
    let mut moments = facts.job.newest_start().map_or(Vec::new(), forming);
    let trains = trains(facts, kept);
    let unshown = trains.as_ref().is_some_and(|trains| trains.unshown);
    moments.extend(trains.map(|trains| trains.moment));
    moments.extend(instead(facts).map(|state| (facts.now, state)));
    let Some(last) = moments.len().checked_sub(1) else {
        return;
    };
    let gpus = gpus_held(facts.job);
    let newest = facts.job.newest_start();
    let culprit = newest.and_then(Incident::blames).cloned();
    for (index, (at, state)) in moments.into_iter().enumerate() {
        let Some(open) = kept.account.open else {
            return;
        };
        // What the account has seen already is not entered again.
        if open.state == state || (index < last && at <= open.since) {
            continue;
        }
        kept.account.enter(at, state, gpus);
        kept.account.blame(culprit.clone());
    }
    if let Some(open) = &mut kept.account.open
        && open.state == State::Training
    {
        open.unshown = unshown;
    }
    see_steps(facts, kept);
}

/// Since when the ranks of the current generation make steps.
fn trains(facts: Facts<'_>, kept: &mut Kept) -> Option<Trains> {
    let reset = facts.policy.backoff_reset;
    let (_, receipt) = training(facts)?;
    if let (Some(at), Some(first)) = (receipt.first_step_at, receipt.first_step_after) {
        let cause = receipt.cause;
        kept.account.repeats_to = kept
            .account
            .repeats_to
            .max(receipt.last_step_before)
            .filter(|last| first <= *last);
        let state = match kept.account.repeats_to {
            Some(_) => State::Repeating { cause },
            None => State::Training,
        };
        return Some(Trains {
            moment: (at, state),
            unshown: false,
        });
    }
    if facts.job.furthest_step.max(facts.job.last_step).is_some() {
        // It shows its steps, and the first of this generation is still to come.
        return None;
    }
    let (joined, launched) = (receipt.joined_at, receipt.launched_at);
    let runs = launched.map(|at| at + reset);
    if joined.is_none()
        && let Some(at) = runs.filter(|at| *at > facts.now)
    {
        kept.look_at(at);
        return None;
    }
    joined.or(runs).map(|at| Trains {
        moment: (at, State::Training),
        unshown: true,
    })
}

/// Looks what the steps of the ranks say of a job that makes steps: its first step, and the end of the
/// repeated ones.
fn see_steps(facts: Facts<'_>, kept: &mut Kept) {
    let Some(open) = kept.account.open else {
        return;
    };
    let Some((generation, receipt)) = training(facts) else {
        return;
    };
    if open.unshown
        && let Some(at) = receipt.first_step_at.filter(|at| *at > open.since)
    {
        // It shows steps after all, so it had not begun to train before this one.
        kept.account.correct(State::Reforming {
            cause: receipt.cause,
            phase: FormingPhase::FirstStep,
        });
        kept.account.enter(at, State::Training, open.gpus);
    }
    let State::Repeating { .. } = open.state else {
        return;
    };
    let Some(last) = kept.account.repeats_to else {
        return kept.account.enter(facts.now, State::Training, open.gpus);
    };
    let reports = generation::reports(facts.nodes, facts.uid, generation);
    let ranks = reports
        .filter_map(|(_, run)| run)
        .flat_map(|run| &run.ranks);
    let furthest = ranks.max_by_key(|rank| rank.last_step);
    let made_up = furthest.and_then(|rank| passed(rank, last));
    match made_up {
        Some(MadeUp::At(at)) => {
            kept.account.enter(at, State::Training, open.gpus);
            kept.account.repeats_to = None;
        }
        Some(MadeUp::In(time)) => kept.look_at(facts.now + time.clamp(LOOK_AGAIN.0, LOOK_AGAIN.1)),
        // One step says nothing of the speed.
        None => kept.look_at(facts.now + LOOK_AGAIN.0),
    }
}

/// The generation that trains, with its receipt.
fn training(facts: Facts<'_>) -> Option<(&GenerationRecord, &Incident)> {
    let generation = facts.job.training()?;
    Some((generation, facts.job.receipt_of(generation.number)?))
}

/// The state of a job in which the ranks of no generation make steps or get ready to.
fn instead(facts: Facts<'_>) -> Option<State> {
    let why = match facts.job.stage() {
        Stage::Ending(_) | Stage::Over(_) => return Some(State::Stopping),
        Stage::Waiting(_) if facts.job.incidents.is_empty() => return Some(State::Queued),
        Stage::Waiting(why) | Stage::Forming(_, why) => why?,
        Stage::Training(_) => return None,
    };
    let wait = match why {
        Why::BelowMinimum | Why::Stranded | Why::Preempted => Wait::BelowMinimum,
        Why::BackOff => Wait::BackOff,
        Why::Suspended => Wait::Suspended,
        Why::Fencing => Wait::Fencing,
        Why::Unreachable => Wait::Unreachable,
        // It has had no generation, so it is queued.
        Why::Dependency | Why::BeginTime | Why::Unknown => return None,
    };
    Some(State::Waiting { wait })
}

/// Since when ranks make steps.
struct Trains {
    moment: Moment,
    /// No step was seen.
    unshown: bool,
}

impl JobRecord {
    /// The receipt of the newest break, resize or start of all processes.
    fn newest_start(&self) -> Option<&Incident> {
        let mut newest_first = self.incidents.iter().rev();
        newest_first.find(|one| one.restarted_ranks.is_empty())
    }
}

/// The phases of a start that have begun, each not before the one before it.
fn forming(receipt: &Incident) -> Vec<Moment> {
    use FormingPhase::*;
    // Before a first start the job was queued, and before one that found enough nodes again it waited.
    let replaces = receipt.from.is_some();
    let launch = match replaces {
        true => receipt.stopped_at,
        false => receipt.decided_at,
    };
    let phases = [
        (Some(receipt.event_at).filter(|_| replaces), Detect),
        (Some(receipt.detected_at).filter(|_| replaces), Decide),
        (receipt.decided_at.filter(|_| replaces), Stop),
        (launch, Launch),
        (receipt.launched_at, Join),
        (receipt.joined_at, FirstStep),
    ];
    let mut from = Timestamp::default();
    let begun = phases.into_iter().filter_map(|(at, phase)| {
        from = from.max(at?);
        let cause = receipt.cause;
        Some((from, State::Reforming { cause, phase }))
    });
    begun.collect()
}

/// Whether a rank has made up for the lost steps.
enum MadeUp {
    At(Timestamp),
    /// Not yet. At its speed it will have after this time.
    In(Duration),
}

/// When this rank made the first step after `last`, by the mean time of its steps. `None`: it has shown too
/// few.
fn passed(rank: &RankReport, last: u64) -> Option<MadeUp> {
    let (first, newest) = (rank.first_step?, rank.last_step?);
    let (began, now) = (rank.first_step_at?, rank.last_step_at?);
    if first > last {
        return Some(MadeUp::At(began));
    }
    let made = u32::try_from(newest.checked_sub(first)?).ok()?;
    let mean = now.since(began).checked_div(made)?;
    let steps = |count: u64| mean.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    Some(match newest > last {
        true => MadeUp::At((began + steps(last + 1 - first)).min(now)),
        false => MadeUp::In(steps(last + 1 - newest)),
    })
}

/// The GPUs that the job holds: those of its generation, or of one that is not proven dead.
fn gpus_held(job: &JobRecord) -> u32 {
    if let Some(current) = &job.current {
        return current.members.iter().map(|m| m.gpus.len() as u32).sum();
    }
    let alive = job.retiring.iter().flat_map(|generation| {
        let members = generation.members.iter();
        members.filter(|member| !generation.dead.contains(&member.node))
    });
    alive.map(|member| member.gpus.len() as u32).sum()
}
