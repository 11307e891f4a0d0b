//! One commit of the engine: the changes of a turn become durable, or the coordinator ends.
//!
//! A job whose record the store refuses because of its size ends, and nobody else with it: the fleet takes
//! the refusal as a fact, the rest of the commit is made, and the job's record as it is then in place of the
//! refused one. If that is refused too, it is left out.

use std::collections::BTreeSet;

use muster_core::{
    fleet::{
        Change, Effect, Input, TurnOutput,
        commit::{RecordKey, Write},
    },
    id::SessionId,
    time::Timestamp,
};
use muster_runtime::chain::chain;
use tracing::warn;

use super::Engine;
use crate::{failpoint::failpoint, store::StoreError};

/// What was written, the effects, and when the next tick is due.
type Committed = (Vec<Write>, Vec<Effect>, Option<Timestamp>);

impl Engine {
    /// Makes the changes durable. Nothing is told to anybody before.
    pub(super) fn commit(&mut self, turn: TurnOutput) -> Result<Committed, StoreError> {
        self.ensure_leader()?;
        let TurnOutput {
            changes,
            mut effects,
            mut wake_at,
        } = turn;
        let (mut writes, mut written) = (self.versions.writes(changes), Vec::new());
        let mut refused = BTreeSet::new();
        while !writes.is_empty() {
            failpoint!("before commit");
            let why = match self.store.commit(&writes) {
                Ok(()) => {
                    failpoint!("after commit");
                    self.ensure_leader()?;
                    written.append(&mut writes);
                    break;
                }
                Err(why) => why,
            };
            let StoreError::TooLarge { job, version, .. } = &why else {
                return Err(why);
            };
            let (job, key) = (job.clone(), RecordKey::Job(job.clone()));
            let Some(at) = writes.iter().position(|write| write.becomes == *version) else {
                return Err(why);
            };
            let not_made = writes.remove(at);
            let mut after = writes.split_off(at);
            // What was to follow it followed from it. Only that it goes stays true.
            after.retain(|write| write.key() != key || write.change.deletes());
            let goes = after.iter_mut().find(|write| write.key() == key);
            let is_gone = goes.map(|write| write.expects = not_made.expects).is_some();
            let is_event = |write: &Write| matches!(write.change, Change::Event(_));
            let (events, made): (Vec<_>, Vec<_>) = writes.into_iter().partition(is_event);
            written.extend(made);
            writes = events;
            if !is_gone {
                self.versions.not_made(&not_made);
            }
            if is_gone || !refused.insert(job.clone()) {
                warn!(%job, "its record is not stored, and it ends without: {}", chain(&why));
                writes.extend(after);
                continue;
            }
            warn!(%job, "it ends: {}", chain(&why));
            let now = Timestamp(self.clock.now_us());
            let why = chain(&why);
            let more = self.fleet.turn(now, Input::RecordTooLarge { job, why });
            let changes = self.versions.writes(more.changes);
            let (own, others): (Vec<_>, Vec<_>) =
                changes.into_iter().partition(|write| write.key() == key);
            writes.extend(own);
            writes.extend(after);
            writes.extend(others);
            effects.extend(more.effects);
            wake_at = wake_at.into_iter().chain(more.wake_at).min();
        }
        Ok((written, only_last_orders(effects), wake_at))
    }
}

/// Of several desired states for one session only the last: those before were not stored as they are.
fn only_last_orders(mut effects: Vec<Effect>) -> Vec<Effect> {
    let mut seen: BTreeSet<SessionId> = BTreeSet::new();
    effects.reverse();
    effects.retain(|effect| match effect {
        Effect::SendDesired { session, .. } => seen.insert(*session),
        _ => true,
    });
    effects.reverse();
    effects
}
