//! The account of a job's time, as users see it.

use muster_core::{
    fleet::{
        time_account::{Spent, State, goodput},
        view::JobView,
    },
    time::Timestamp,
};

use crate::v1;

/// Where the job's time has gone until now. `None`: it was not counted.
pub fn time(view: &JobView, now: Timestamp) -> Option<v1::TimeAccount> {
    let account = view.record.time.as_ref()?;
    let spent = account.until(now, view.doubted_since);
    Some(v1::TimeAccount {
        since_unix_us: account.since.0,
        goodput: goodput(&spent),
        spent: spent.iter().map(row).collect(),
    })
}

fn row(spent: &Spent) -> v1::TimeSpent {
    let us = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let (phase, reason) = match spent.state {
        State::Reforming { phase, .. } => (phase.name(), String::new()),
        State::Waiting { wait } => ("", format!("{wait:?}")),
        _ => ("", String::new()),
    };
    let cause = spent.state.cause().map(|cause| format!("{cause:?}"));
    v1::TimeSpent {
        state: spent.state.name().into(),
        cause: cause.unwrap_or_default(),
        phase: phase.into(),
        reason,
        us: us(spent.time),
        gpu_us: us(spent.gpu_time),
    }
}
