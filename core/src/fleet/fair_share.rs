//! Fair share over time: of jobs of equal priority, those go first whose owners have used the least GPU time.
//!
//! GPU time counts less the longer ago it was: half as much with each half-life ([`Policy::fair_share_half_life`]). What was
//! used is compared level by level. Where there are queues: queues of the same parent, each by what its jobs have used for each
//! unit of its weight, and then the users of one queue. Without queues: namespaces, and then the users of one namespace. So a
//! team of many users has no more than a team of one.
//!
//! Nothing of it is stored. It is reckoned from the time accounts of the jobs that are there and from the history of those that
//! are over, once in [`RECKONED_EVERY`]; in between the order stays as it is.
//!
//! | file | owns |
//! |---|---|
//! | `used` | how much GPU time of one job counts |
//! | `standing` | who comes first, and what users see of it |

mod standing;
mod used;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use standing::Share;
pub(crate) use standing::{Standing, Standings};
use standing::{Unit, Uses};
use used::{Used, user_of};

use crate::{
    fleet::{history::Kept, job::JobRecord, policy::Policy, queues::Queues},
    time::Timestamp,
};

/// Slurm's default is five minutes. Jobs that last for minutes need it sooner.
const RECKONED_EVERY: Duration = Duration::from_secs(60);

/// Who has used what, as of the last time that it was reckoned.
#[derive(Debug, Default)]
pub(crate) struct FairShare {
    standings: Standings,
    uses: Uses,
    /// `None`: never.
    reckoned: Option<Timestamp>,
}

impl FairShare {
    pub(crate) fn standings(&self) -> &Standings {
        &self.standings
    }

    /// What was used, for people. `None`: the operator wants no fair share.
    pub(crate) fn shares(&self, policy: &Policy) -> Option<Vec<Share>> {
        policy.fair_share_half_life?;
        Some(standing::shares(&policy.queues, &self.uses))
    }

    /// Finds out in which order jobs of equal priority choose, if it is time. Returns whether it is another one.
    pub(crate) fn reckon<'j, J: Iterator<Item = &'j JobRecord>>(
        &mut self,
        jobs: impl Fn() -> J,
        history: &Kept,
        policy: &Policy,
        now: Timestamp,
    ) -> bool {
        let Some(half_life) = policy.fair_share_half_life.filter(|_| self.is_due(now)) else {
            return false;
        };
        let uses = uses(&policy.queues, history, jobs(), now, half_life);
        let standings = Standings::of_uses(&policy.queues, &uses, jobs());
        let before_and_now = jobs().map(|job| (self.standings.of(job), standings.of(job)));
        let is_other = is_other_order(before_and_now.collect());
        *self = Self {
            standings,
            uses,
            reckoned: Some(now),
        };
        is_other
    }

    /// When it is time to reckon again. `None`: never.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.reckoned.map(|at| at + RECKONED_EVERY)
    }

    /// Whether it is time to reckon again. A clock that went back makes it so as well.
    fn is_due(&self, now: Timestamp) -> bool {
        let just = |at: Timestamp| at <= now && now < at + RECKONED_EVERY;
        !self.reckoned.is_some_and(just)
    }
}

/// Whether some that had these standings before, and have those now, are in another order.
fn is_other_order(before_and_now: BTreeSet<(Standing, Standing)>) -> bool {
    let all: Vec<(Standing, Standing)> = before_and_now.into_iter().collect();
    all.windows(2)
        .any(|pair| pair[0].0 == pair[1].0 || pair[0].1 >= pair[1].1)
}

/// What each user has used. Jobs with a template are left out, as in all that is said of queues.
fn uses<'j>(
    queues: &Queues,
    history: &Kept,
    jobs: impl Iterator<Item = &'j JobRecord>,
    now: Timestamp,
    half_life: Duration,
) -> Uses {
    let mut uses = BTreeMap::new();
    let mut add = |unit: Option<Unit>, user: &str, used: Used| {
        let users: &mut BTreeMap<String, f64> = match unit {
            Some(unit) => uses.entry(unit).or_default(),
            None => return,
        };
        *users.entry(user.to_owned()).or_default() += used.counts(now, half_life);
    };
    for over in history.over() {
        let Some(gpu_time) = over.gpu_time else {
            continue;
        };
        let unit = standing::unit_of(queues, &over.name.namespace, over.queue.as_deref());
        let used = Used {
            gpu_time,
            from: over.started,
            to: over.held_until,
        };
        add(unit, &user_of(over.owner.as_ref()), used);
    }
    let counts = |job: &&JobRecord| !job.is_over() && job.spec.template.is_none();
    for job in jobs.filter(counts) {
        let unit = standing::unit_of(queues, &job.name.namespace, job.spec.queue.as_deref());
        let user = user_of(job.owner.as_ref());
        for used in Used::so_far(job, now).into_iter().flatten() {
            add(unit.clone(), &user, used);
        }
    }
    let whole = |users: BTreeMap<String, f64>| {
        let users = users.into_iter();
        users
            .map(|(user, seconds)| (user, (seconds * 1e3) as u64))
            .collect()
    };
    uses.into_iter()
        .map(|(unit, users)| (unit, whole(users)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_another_one_if_somebody_passes_somebody() {
        let standing = |place| Standing::of_places(place, 0);
        let is_other = |pairs: &[(u32, u32)]| {
            let pairs = pairs
                .iter()
                .map(|(was, is)| (standing(*was), standing(*is)));
            is_other_order(pairs.collect())
        };
        assert!(!is_other(&[]));
        assert!(!is_other(&[(0, 0), (1, 1)]));
        assert!(
            !is_other(&[(0, 1), (1, 5), (0, 1)]),
            "others came in between"
        );
        assert!(is_other(&[(0, 1), (1, 0)]));
        assert!(is_other(&[(0, 0), (1, 0)]), "equal ones go by age");
        assert!(is_other(&[(0, 0), (0, 1)]));
    }
}
