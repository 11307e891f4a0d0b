//! Effects and reports that wait until the ledger is on disk, because they follow from a promise in
//! it.
//!
//! The node goes on meanwhile, however slow the disk is: it hears its runners, and their news is
//! reported. While one write of the ledger is under way, everything that starts to wait is covered
//! by the next write. So a slow disk gets few writes.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    node::{Effect, Ledger},
    run::{RunId, RunReport},
};

/// The last reports of runs about which nothing new may be reported yet. `None`: the run was not
/// reported before.
pub(super) type Untold = BTreeMap<RunId, Option<RunReport>>;

#[derive(Clone, Debug, Default)]
pub(super) struct Unsaved {
    /// A write is under way. The number says how many of the waiting entries it covers.
    writing: Option<usize>,
    /// One entry for each turn that changed the ledger, in order.
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Debug)]
struct Waiting {
    effects: Vec<Effect>,
    untold: Untold,
}

impl Unsaved {
    /// Takes the effects of a turn and returns those that may be executed now. `untold`: the turn
    /// changed the ledger, and nothing new may be reported about these runs.
    pub(super) fn queue(
        &mut self,
        effects: Vec<Effect>,
        ledger: &Ledger,
        untold: Option<Untold>,
    ) -> Vec<Effect> {
        let saves = untold.is_some();
        let (mut now, later): (Vec<_>, Vec<_>) = effects
            .into_iter()
            .partition(|effect| !self.must_wait(effect, saves));
        match untold {
            Some(untold) => self.waiting.push_back(Waiting {
                effects: later,
                untold,
            }),
            None => self
                .waiting
                .back_mut()
                .into_iter()
                .for_each(|last| last.effects.extend(later.iter().cloned())),
        }
        now.extend(self.next_write(ledger));
        now
    }

    /// Whether an effect of this turn follows from something that is not on disk, or from an effect
    /// that waits.
    fn must_wait(&self, effect: &Effect, saves: bool) -> bool {
        match effect {
            // These effects concern the session or people, so nothing of them must be remembered.
            Effect::EndSession(_) | Effect::Alarm(_) | Effect::SaveLedger(_) => false,
            // A stop alone needs no memory, but it must not overtake the start of the same run.
            Effect::Stop { run, .. } => {
                saves || self.waiting.iter().any(|waiting| waiting.concerns(run))
            }
            Effect::Hold { .. }
            | Effect::Start { .. }
            | Effect::Restart { .. }
            | Effect::Release { .. }
            | Effect::Retire { .. }
            | Effect::Purge { .. } => saves || !self.waiting.is_empty(),
        }
    }

    /// The ledger is on disk. Returns the effects that waited for it.
    pub(super) fn saved(&mut self) -> Vec<Effect> {
        let Some(covers) = self.writing.take() else {
            return Vec::new();
        };
        self.waiting
            .drain(..covers)
            .flat_map(|waiting| waiting.effects)
            .collect()
    }

    /// Nothing new may be reported about this run before everything that waits is on disk. `told`:
    /// the last report.
    pub(super) fn withhold(&mut self, run: &RunId, told: Option<RunReport>) {
        if let Some(last) = self.waiting.back_mut() {
            last.untold.entry(run.clone()).or_insert(told);
        }
    }

    fn next_write(&mut self, ledger: &Ledger) -> Option<Effect> {
        if self.writing.is_some() || self.waiting.is_empty() {
            return None;
        }
        self.writing = Some(self.waiting.len());
        Some(Effect::SaveLedger(Box::new(ledger.clone())))
    }

    /// The report to send about a run instead of its present state. `None`: the present state may
    /// be reported.
    pub(super) fn in_place_of(&self, run: &RunId) -> Option<&Option<RunReport>> {
        self.waiting
            .iter()
            .find_map(|waiting| waiting.untold.get(run))
    }
}

impl Waiting {
    fn concerns(&self, run: &RunId) -> bool {
        let of_run = |effect: &Effect| match effect {
            Effect::Hold { assignment, .. } | Effect::Start { assignment, .. } => {
                assignment.run == *run
            }
            Effect::Stop { run: other, .. }
            | Effect::Release { run: other }
            | Effect::Purge { run: other } => other == run,
            // A stop that overtakes it makes it void.
            Effect::Restart { .. }
            | Effect::SaveLedger(_)
            | Effect::EndSession(_)
            | Effect::Alarm(_)
            | Effect::Retire { .. } => false,
        };
        self.untold.contains_key(run) || self.effects.iter().any(of_run)
    }
}
