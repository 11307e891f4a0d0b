//! Effects that waited for the disk while the node received something newer.

use super::{Effect, GroupPhase, GroupStatus, Node, RunId, State, Timestamp};

impl Node {
    /// Drops the effects that would bring up or start a generation that is no longer its job's
    /// newest. Such a run has no workers and gets none, so it is over. Also drops the restart of a rank
    /// whose group ends meanwhile.
    pub(super) fn not_overtaken(&mut self, effects: Vec<Effect>, now: Timestamp) -> Vec<Effect> {
        let mut left = Vec::new();
        for effect in effects {
            match &effect {
                Effect::Hold { assignment, .. } | Effect::Start { assignment, .. }
                    if !self.ledger.is_newest(&assignment.run) =>
                {
                    self.give_up(&assignment.run, now);
                }
                Effect::Restart { run, rank, attempt }
                    if !self
                        .runs
                        .get(run)
                        .is_some_and(|run| run.awaits(*rank, *attempt)) => {}
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{
            Input,
            tests::{NOW, node, run, running, status, stopped, told},
        },
        *,
    };
    use crate::{
        exit::Exit,
        id::{NodeEpoch, Term},
        node_report::labels::Labels,
        run::{Desired, DesiredRun, RankReport, Target},
    };

    fn desired(epoch: u64, runs: Vec<DesiredRun>) -> Input {
        Input::Desired(Desired {
            term: Term(1),
            epoch: NodeEpoch(epoch),
            runs,
            labels: Labels::default(),
            retire: None,
            prewarm: Vec::new(),
        })
    }

    /// A node whose rank 0 of job `a` has failed, and an order to start it again that waits for the
    /// disk.
    fn restart_waits() -> Node {
        let mut node = node();
        told(&mut node, desired(1, vec![running("a", 1)]));
        let mut failed = status(GroupPhase::Running);
        failed.ranks = vec![RankReport {
            exit: Some(Exit::Code(1)),
            ..RankReport::bare(0, 0)
        }];
        for status in [status(GroupPhase::Holding), failed] {
            let run = run("a", 1);
            told(&mut node, Input::Runner { run, status });
        }
        let mut again = running("a", 1);
        if let Target::Running(_, start) = &mut again.target {
            start.attempts.insert(0, 2);
        }
        let effects = node.turn(NOW, desired(2, vec![again])).effects;
        assert!(
            matches!(effects[..], [Effect::SaveLedger(_)]),
            "{effects:?}"
        );
        node
    }

    #[test]
    fn a_restart_comes_when_the_ledger_is_saved() {
        let mut node = restart_waits();
        let restart = Effect::Restart {
            run: run("a", 1),
            rank: 0,
            attempt: 2,
        };
        assert_eq!(node.turn(NOW, Input::Saved).effects, [restart]);
    }

    #[test]
    fn a_stop_does_not_wait_for_a_restart_and_makes_it_void() {
        let mut node = restart_waits();
        let effects = node.turn(NOW, desired(2, vec![stopped("a", 1, 5)])).effects;
        let grace = Duration::from_secs(5);
        assert!(
            matches!(&effects[..], [Effect::Stop { grace: told, .. }] if *told == grace),
            "{effects:?}"
        );
        assert_eq!(node.turn(NOW, Input::Saved).effects, []);
    }

    #[test]
    fn a_restart_of_a_group_that_has_died_meanwhile_is_dropped() {
        let mut node = restart_waits();
        let (run, status) = (run("a", 1), status(GroupPhase::Dead));
        node.turn(NOW, Input::Runner { run, status });
        assert_eq!(node.turn(NOW, Input::Saved).effects, []);
    }
}
