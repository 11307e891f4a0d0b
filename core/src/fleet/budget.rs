//! What failures may cost: how many restarts a job may have, and how many cordons the fleet may
//! have.

use std::time::Duration;

use crate::{
    fleet::{
        generation::Steps,
        job::{InVain, JobRecord},
        node_record::{Cordon, CordonedBy, NodeRecord},
        policy::Policy,
        restarts_before::RestartsBefore,
        rules::Ruling,
    },
    period,
    time::Timestamp,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// Start again, not before this moment.
    At(Timestamp),
    /// The budget is spent; the sentence says how.
    Spent(String),
}

/// The number of failures whose moments are kept. 1,000 of 17 bytes are in the record. A job that may fail
/// more often within its window keeps the number of those before.
const RESTARTS_KEPT: usize = 1_000;

/// How many failures were charged to the job within its window.
pub(crate) fn charged(record: &JobRecord) -> u32 {
    let before = record.restarts_before.as_ref();
    let before = before.map_or(0, |before| before.count);
    before.saturating_add(record.restarts.len() as u32)
}

/// Charges one failure to a job: to the rule that restarts it, if that has a limit of its own, or else
/// to its `restartPolicy`.
pub(crate) fn charge(
    record: &mut JobRecord,
    ruling: Option<&Ruling>,
    policy: &Policy,
    now: Timestamp,
) -> Restart {
    forget_old(record, now);
    // Failures that the windows have forgotten do not count for the back-off either.
    let of_rules = record.rule_restarts.values().map(|spent| spent.count);
    let known = of_rules.fold(charged(record), u32::saturating_add);
    let in_row = record.failures_in_row.min(known);
    let own = ruling.and_then(|ruling| Some((ruling, ruling.rule.budget.as_ref()?)));
    match own {
        None => {
            let (max, window) = (
                record.spec.restart_policy.max_restarts,
                record.spec.restart_policy.window,
            );
            if charged(record) >= max {
                return Restart::Spent(format!(
                    "{} restarts in {} are all that restartPolicy allows",
                    max,
                    period::format(window)
                ));
            }
            record.restarts.push(now);
            if record.restarts.len() > RESTARTS_KEPT {
                let last = record.restarts.remove(0);
                let before = record.restarts_before.take();
                record.restarts_before = Some(RestartsBefore::with(before, last, window));
            }
        }
        Some((ruling, budget)) => {
            let spent = record.rule_restarts.entry(ruling.index).or_default();
            if spent.count >= budget.limit {
                return Restart::Spent(format!("{} allows no more restarts", ruling.name()));
            }
            spent.count += 1;
            if budget.within.is_some() {
                spent.at.push(now);
            }
        }
    }
    record.failures_in_row = in_row + 1;
    Restart::At(now + backoff(in_row, policy))
}

/// Forgets restarts that are out of their windows.
fn forget_old(record: &mut JobRecord, now: Timestamp) {
    let window = record.spec.restart_policy.window;
    record.restarts.retain(|at| now.since(*at) < window);
    let before = record.restarts_before.take();
    record.restarts_before = before.and_then(|before| before.within(now, window));
    for (index, spent) in &mut record.rule_restarts {
        let budget = record
            .spec
            .rules
            .get(*index)
            .and_then(|r| r.budget.as_ref());
        if let Some(within) = budget.and_then(|budget| budget.within) {
            spent.at.retain(|at| now.since(*at) < within);
            spent.count = spent.at.len() as u32;
        }
    }
}

/// Ends the row of failures if the current generation, which is about to be replaced, was no failed
/// start. Steps tell it: a higher one than before. Of a script that shows none, a checkpoint that it
/// saved tells it, or a world that formed and then lasted.
pub(crate) fn note_progress(
    record: &mut JobRecord,
    steps: &Steps,
    policy: &Policy,
    now: Timestamp,
) {
    let before = record.furthest_step.max(record.last_step);
    let trained = match (steps.last, steps.saved) {
        (Some(_), _) => steps.last > before,
        (None, Some(true)) => true,
        (None, saved) => {
            has_lasted(record, policy, now)
                // Nobody sees such a world form. Whoever watches its checkpoints has seen none.
                .unwrap_or_else(|| saved.is_none() && has_run(record, policy, now))
        }
    };
    let advanced = steps.last > before || steps.saved == Some(true);
    let shows_progress = before.max(steps.last).is_some() || steps.saved.is_some();
    if advanced || trained && !shows_progress {
        record.same_failure = None;
    }
    if advanced {
        record.generations_in_vain = InVain::default();
    } else if shows_progress && has_launched(record) {
        record.generations_in_vain.generations += 1;
    }
    if trained {
        record.failures_in_row = 0;
        record.crash_loop = None;
        record.has_trained = true;
    }
    record.furthest_step = before.max(steps.last);
}

/// Whether all ranks of the current generation were started.
fn has_launched(record: &JobRecord) -> bool {
    let number = record.current.as_ref().map(|generation| generation.number);
    let receipt = number.and_then(|number| record.receipt_of(number));
    receipt.is_some_and(|receipt| receipt.launched_at.is_some())
}

/// Whether the world of the current generation has lasted longer than its own start took, from the
/// order to the last rank in the process group. It must also have lasted for as long as the first
/// pause, so that no job starts more often than that pause would let it. `None`: it was not seen to
/// form.
fn has_lasted(record: &JobRecord, policy: &Policy, now: Timestamp) -> Option<bool> {
    let generation = record.current.as_ref()?;
    let joined = record.receipt_of(generation.number)?.joined_at?;
    let took = joined.since(generation.started_at.unwrap_or(generation.opened));
    Some(now.since(joined) >= took.max(policy.backoff_first))
}

/// Whether the ranks of the current generation have run for so long that they do more than start.
fn has_run(record: &JobRecord, policy: &Policy, now: Timestamp) -> bool {
    let number = record.current.as_ref().map(|generation| generation.number);
    let receipt = number.and_then(|number| record.receipt_of(number));
    let launched = receipt.and_then(|receipt| receipt.launched_at);
    launched.is_some_and(|at| now.since(at) >= policy.backoff_reset)
}

/// The pause before a restart. The first failure in a row is mostly chance, so it gets none. From
/// then on the pause doubles.
fn backoff(failures_before: u32, policy: &Policy) -> Duration {
    match failures_before {
        0 => Duration::ZERO,
        n => policy
            .backoff_first
            .saturating_mul(1 << (n - 1).min(16))
            .min(policy.backoff_max),
    }
}

/// Why Muster may not cordon one more node now; `None` if it may.
pub(crate) fn cordon_veto<'a>(
    nodes: impl Iterator<Item = &'a NodeRecord>,
    policy: &Policy,
    now: Timestamp,
) -> Option<String> {
    let (mut total, mut ours, mut recent) = (0u32, 0u32, 0u32);
    for node in nodes {
        total += u32::from(!node.gone);
        if let Some(Cordon { by, at, .. }) = &node.cordon
            && *by == CordonedBy::Muster
        {
            ours += 1;
            recent += u32::from(now.since(*at) < policy.cordon_window);
        }
    }
    let share = |percent: u32| (total * percent / 100).max(1);
    if ours >= share(policy.cordon_breaker_percent) {
        Some(format!(
            "{ours} of {total} nodes are cordoned by Muster already: a person must look"
        ))
    } else if recent >= share(policy.cordon_percent) {
        Some(format!(
            "{recent} nodes were cordoned within {}",
            period::format(policy.cordon_window)
        ))
    } else {
        None
    }
}

/// How often in a row a job may break without a new step, in ways that can be charged to nobody for
/// certain. After that the job pays. It equals the number of restarts that a job has by default.
pub(crate) const DOUBTFUL_MAX: u32 = 3;

/// How often that may happen within the window of `restartPolicy`, whatever progress lies between. A script
/// can fail in ways that look like the network each time, and must not restart for ever. Ten in the hour
/// of the default window are more than a network has that anybody would train on.
pub(crate) const DOUBTFUL_IN_WINDOW_MAX: usize = 10;

/// Forgets doubtful breaks that are out of the window. True: no more of them go uncharged within it.
pub(crate) fn doubt_is_spent(record: &mut JobRecord, now: Timestamp) -> bool {
    let window = record.spec.restart_policy.window;
    record.doubtful.retain(|at| now.since(*at) < window);
    record.doubtful.len() >= DOUBTFUL_IN_WINDOW_MAX
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::id::NodeEpoch;

    pub(in crate::fleet) fn node(name: &str) -> NodeRecord {
        NodeRecord {
            name: name.into(),
            epoch: NodeEpoch(1),
            boot_id: String::new(),
            first_seen: Timestamp(0),
            gone: false,
            gone_since: None,
            cordon: None,
            pod_of: None,
            hold_off: None,
            ended: None,
            overruled: None,
            told_excluded: None,
            halt: None,
            marks: Vec::new(),
        }
    }

    #[test]
    fn all_failures_in_the_window_count_and_few_are_kept() {
        let mut record = crate::fleet::job::tests::record();
        let (max, window) = (3_000, record.spec.restart_policy.window);
        record.spec.restart_policy.max_restarts = max;
        let policy = Policy::default();
        for second in 0..u64::from(max) {
            let now = Timestamp(second * 1_000_000);
            let restart = charge(&mut record, None, &policy, now);
            assert!(matches!(restart, Restart::At(_)), "{second}: {restart:?}");
        }
        assert_eq!(record.restarts.len(), RESTARTS_KEPT);
        let now = Timestamp(u64::from(max) * 1_000_000);
        let spent = charge(&mut record, None, &policy, now);
        assert!(matches!(spent, Restart::Spent(_)), "{spent:?}");
        // Those before are forgotten with the last of them.
        let later = record.restarts_before.clone().unwrap().last + window;
        assert!(matches!(
            charge(&mut record, None, &policy, later),
            Restart::At(_)
        ));
        assert_eq!(record.restarts_before.map(|before| before.count), Some(1));
    }

    #[test]
    fn a_steady_stream_of_failures_that_the_budget_allows_is_allowed_for_ever() {
        let mut record = crate::fleet::job::tests::record();
        let window = record.spec.restart_policy.window;
        // One in two seconds is fewer than 2,000 in each hour.
        record.spec.restart_policy.max_restarts = 2_000;
        assert_eq!(window, Duration::from_secs(3_600));
        for number in 0..6_000 {
            let now = Timestamp(number * 2_000_000);
            let restart = charge(&mut record, None, &Policy::default(), now);
            assert!(matches!(restart, Restart::At(_)), "{number}: {restart:?}");
        }
    }

    #[test]
    fn the_first_failure_waits_for_nothing_and_the_rest_double() {
        let policy = Policy::default();
        let waits: Vec<u64> = (0..12).map(|n| backoff(n, &policy).as_secs()).collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }

    #[test]
    fn cordons_are_capped_and_a_persons_cordons_do_not_count() {
        let (policy, now) = (Policy::default(), Timestamp(1));
        let mut fleet: Vec<NodeRecord> = (0..100).map(|i| node(&format!("n{i}"))).collect();
        let cordon = |by: CordonedBy, at| {
            Some(Cordon {
                by,
                reason: String::new(),
                at,
                jobs: Vec::new(),
            })
        };
        fleet[0].cordon = cordon("alice".into(), now);
        fleet[1].cordon = cordon(CordonedBy::Muster, now);
        assert_eq!(cordon_veto(fleet.iter(), &policy, now), None);
        fleet[2].cordon = cordon(CordonedBy::Muster, now);
        assert!(
            cordon_veto(fleet.iter(), &policy, now).is_some(),
            "2 % in ten minutes"
        );
        assert_eq!(
            cordon_veto(fleet.iter(), &policy, now + policy.cordon_window),
            None
        );
        for record in &mut fleet[3..11] {
            record.cordon = cordon(CordonedBy::Muster, now);
        }
        assert!(
            cordon_veto(fleet.iter(), &policy, now + policy.cordon_window).is_some(),
            "10 % outstanding"
        );
    }
}
