//! Effects that waited for the disk while the node received something newer.

use super::{Effect, GroupPhase, GroupStatus, Node, RunId, State, Timestamp};

impl Node {
    /// Drops the effects that would bring up or start a generation that is no longer its job's
    /// newest. Such a run has no workers and gets none, so it is over.
    pub(super) fn not_overtaken(&mut self, effects: Vec<Effect>, now: Timestamp) -> Vec<Effect> {
        let mut left = Vec::new();
        for effect in effects {
            match &effect {
                Effect::Hold { assignment, .. } | Effect::Start { assignment, .. }
                    if !self.ledger.is_newest(&assignment.run) =>
                {
                    self.give_up(&assignment.run, now);
                }
                _ => left.push(effect),
            }
        }
        left
    }

    fn give_up(&mut self, id: &RunId, now: Timestamp) {
        let told = self.report(id);
        let Some(run) = self.runs.get_mut(id) else {
            return;
        };
        run.start_asked = false;
        if matches!(run.state, State::Waiting { alive: false }) {
            run.state = State::Up(GroupStatus {
                phase: GroupPhase::Dead,
                dead_at: Some(now),
                ..GroupStatus::holding()
            });
            // The newer generation may not be on disk yet.
            self.unsaved.withhold(id, told);
        }
    }
}
