//! I22: the account of a job's time. Each moment of the job's life is in exactly one state.

use std::time::Duration;

use muster_core::fleet::{
    job::Reason,
    time_account::{State, TimeAccount},
};

use super::*;

fn total(account: &TimeAccount) -> Duration {
    account.spent.iter().map(|row| row.time).sum()
}

/// The states that are over add up to the time until the open one began, and that one is true.
pub(crate) fn adds_up(job: &JobRecord) -> Broken {
    let broken = |what: String| Some(("I22", format!("{}: {what}", job.uid)));
    let Some(account) = &job.time else {
        return broken("its time is not counted".into());
    };
    if account.since != job.created {
        return broken(format!("its time counts from {}", account.since));
    }
    // A job may end before its last state began, by a clock that was ahead then and is right again.
    let is_closed_early = account.closed < job.finished && job.phase.is_over();
    let until = account.open.map(|open| open.since).or(account.closed);
    let life = until.map(|until| until.since(account.since));
    if life != Some(total(account))
        || is_closed_early
        || account.open.is_some() == job.phase.is_over()
    {
        let sum = total(account);
        return broken(format!(
            "its states add up to {sum:?} of {life:?}: {account:?}"
        ));
    }
    let open = account.open.filter(|_| job.reason != Reason::StoreBehind)?;
    let current = job.current.as_ref().filter(|_| job.ending.is_none());
    let started = current.filter(|generation| generation.started);
    let has_stepped = started.is_some_and(|generation| {
        let mut newest_first = job.incidents.iter().rev();
        let own = |one: &&Incident| one.restarted_ranks.is_empty();
        let receipt = newest_first.find(own);
        receipt.is_some_and(|one| one.to == Some(generation.number) && one.first_step_at.is_some())
    });
    let makes_steps = matches!(open.state, State::Training | State::Repeating { .. });
    let is_true = match open.state {
        State::Training | State::Repeating { .. } => started.is_some(),
        State::Queued => job.incidents.is_empty(),
        State::Stopping => job.ending.is_some(),
        State::Reforming { .. } | State::Waiting { .. } => job.ending.is_none(),
        State::Doubted | State::Unknown => false,
    };
    if !is_true || has_stepped && !makes_steps {
        let phase = (job.phase, job.reason);
        return broken(format!(
            "it counts as {}, and is {phase:?}",
            open.state.name()
        ));
    }
    None
}

/// No sum falls, and no state begins before the one before it.
pub(crate) fn only_grows(before: &JobRecord, job: &JobRecord) -> Broken {
    let (old, new) = before.time.as_ref().zip(job.time.as_ref())?;
    let fallen = old.spent.iter().find(|row| {
        let now = new.spent.iter().find(|now| now.state == row.state);
        now.is_none_or(|now| now.time < row.time || now.gpu_time < row.gpu_time)
    });
    let back = old
        .open
        .zip(new.open)
        .is_some_and(|(a, b)| b.since < a.since);
    if fallen.is_some() || back {
        let what = format!("{}: time is taken back: {old:?}, then {new:?}", job.uid);
        return Some(("I22", what));
    }
    None
}
