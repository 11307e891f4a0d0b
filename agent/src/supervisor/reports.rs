//! Takes what links say, and makes the reports of it for the coordinator and for the node's own
//! senses.

use std::{sync::Arc, time::Duration};

use muster_core::{
    node::Input,
    run::{RunId, RunPhase, RunReport},
};
use muster_proto::convert::session::RUNS_MAX;
use tracing::error;

use super::{Reports, Supervisor};
use crate::{
    probe::{self, HeldRank},
    runner_link::LinkEvent,
};

impl Supervisor {
    /// Notes the part of an event that only this node's senses need, and returns the part for its
    /// brain.
    pub(super) fn hear(&mut self, run: RunId, event: LinkEvent) -> Option<Input> {
        let input = match event {
            LinkEvent::Status(status, unkillable) => {
                let found = (!unkillable.is_empty()).then_some(unkillable);
                self.held_mut(&run).unkillable = found;
                Input::Runner { run, status }
            }
            LinkEvent::FellBack => {
                self.note_fallback(&run);
                return None;
            }
            LinkEvent::Unkillable(processes) => {
                self.held_mut(&run).unkillable = Some(processes);
                return None;
            }
            LinkEvent::Unproven(why) => {
                let held = self.held_mut(&run);
                (held.unkillable, held.unproven) = (None, Some(why));
                return None;
            }
            LinkEvent::Lost { exits, at } => {
                let held = self.held_mut(&run);
                (held.unkillable, held.unproven) = (None, None);
                Input::RunnerLost { run, exits, at }
            }
            LinkEvent::Disobeyed(disobedience) => Input::Disobeyed { run, disobedience },
            LinkEvent::StoreRefused(refused) => {
                self.held_mut(&run).store_refused = Some(refused);
                return None;
            }
            LinkEvent::Saved(at) => {
                self.checkpoints.saved(&run, at);
                return None;
            }
            LinkEvent::Refused(reason) => Input::Refused {
                run,
                refusal: reason.into(),
            },
            LinkEvent::RestartRefused(reason) => {
                error!(run = %run, "a rank cannot be started again, so its group ends: {reason}");
                self.order(&run, |orders| orders.stop = Some((Duration::ZERO, reason)));
                return None;
            }
        };
        Some(input)
    }

    pub(super) fn publish(&mut self) {
        let reports = self.node.reports();
        self.held.retain(|run, held| {
            held.orders.is_some() || reports.iter().any(|report| report.run == *run)
        });
        let mut runs = fitting(reports);
        self.tell_lanes(&mut runs);
        self.tell_checkpoints(&mut runs);
        self.tell_senses(&runs);
        let ledger = self.node.ledger();
        let jobs_seen = ledger.jobs_seen();
        let launchers = self.launchers_of_coming();
        let pool = self.launchers.pool.shown();
        self.reports.send_if_modified(|known| {
            let same = |known: &Reports| {
                (
                    known.term,
                    known.epoch,
                    known.runs.as_ref(),
                    known.jobs_seen.as_ref(),
                    known.launchers.as_ref(),
                    known.pool,
                ) == (
                    ledger.term,
                    ledger.epoch,
                    &runs,
                    &jobs_seen,
                    &launchers,
                    pool,
                )
            };
            if known.as_ref().is_some_and(same) {
                return false;
            }
            let (jobs_seen, runs, launchers) =
                (Arc::new(jobs_seen), Arc::new(runs), Arc::new(launchers));
            *known = Some(Reports {
                term: ledger.term,
                epoch: ledger.epoch,
                jobs_seen,
                runs,
                launchers,
                pool,
            });
            true
        });
    }

    fn tell_checkpoints(&mut self, reports: &mut [RunReport]) {
        let mut checkpoints = std::mem::take(&mut self.checkpoints);
        let (held, tell) = (&self.held, self.tell.clone());
        let files = |run: &RunId| {
            let accepted = held.get(run)?.accepted.as_ref()?;
            let dir = accepted.work_dir.as_ref()?;
            Some((dir.into(), accepted.checkpoint_pattern.clone()?))
        };
        let tell = move |run, at| tell.blocking_send((run, LinkEvent::Saved(at))).is_ok();
        checkpoints.follow(reports, |run| self.host_of(run), files, tell);
        checkpoints.tell(reports);
        self.checkpoints = checkpoints;
    }

    /// Tells the senses which runs are held. Ended runs come first, so that the run that works on a
    /// GPU now is the last on it.
    fn tell_senses(&mut self, reports: &[RunReport]) {
        let begun = reports
            .iter()
            .filter(|report| report.phase != RunPhase::Preparing);
        let (over, living): (Vec<_>, Vec<_>) = begun.partition(|report| report.phase.is_over());
        let held = over.into_iter().chain(living).filter_map(|report| {
            let held = self.held.get(&report.run)?;
            let accepted = held.accepted.as_ref()?;
            let elsewhere = self.config.pod.is_some();
            let ranks = report.ranks.iter().filter(|rank| rank.pid != 0);
            let ranks = ranks.map(|rank| HeldRank {
                rank: rank.rank,
                pid: rank.pid,
                alive: rank.exit.is_none(),
            });
            Some(probe::HeldRun {
                name: report.run.to_string(),
                uid: report.run.job.to_string(),
                generation: report.run.generation.0,
                job: accepted.job.clone(),
                gpus: accepted.gpus.clone(),
                unkillable: held.unkillable.clone(),
                unproven: held.unproven.clone(),
                store_refused: held.store_refused.clone(),
                training: report.phase == RunPhase::Running,
                ranks: ranks.collect(),
                elsewhere,
                work_dir: accepted.work_dir.clone().filter(|_| !elsewhere),
            })
        });
        let held = held.collect();
        self.facts.note_runs(held);
    }
}

/// The reports that fit into one message: all living runs, then the newest ended runs. More runs
/// wait for an acknowledgement only if the coordinator was away for very long. The others are
/// reported when some are acknowledged.
fn fitting(mut reports: Vec<RunReport>) -> Vec<RunReport> {
    if reports.len() > RUNS_MAX {
        reports.sort_by_key(|report| (report.phase.is_over(), std::cmp::Reverse(report.dead_at)));
        reports.truncate(RUNS_MAX);
        reports.sort_by(|a, b| a.run.cmp(&b.run));
    }
    reports
}

#[cfg(test)]
mod tests {
    use muster_core::{
        id::{Generation, JobUid, Term},
        run::RunPhase,
        time::Timestamp,
    };

    use super::*;

    #[test]
    fn what_lives_is_always_reported() {
        let report = |number: usize| {
            let run = RunId {
                job: JobUid::from(format!("job-{number:03}")),
                generation: Generation(1),
            };
            let phase = if number < 10 {
                RunPhase::Running
            } else {
                RunPhase::Dead
            };
            RunReport {
                phase,
                dead_at: Some(Timestamp(number as u64)),
                ..RunReport::preparing(run, Term(1))
            }
        };
        let reports = fitting((0..100).map(report).collect());
        assert_eq!(reports.len(), RUNS_MAX);
        assert_eq!(
            reports
                .iter()
                .filter(|report| report.phase == RunPhase::Running)
                .count(),
            10
        );
        assert!(reports.iter().all(
            |report| report.phase == RunPhase::Running || report.dead_at >= Some(Timestamp(40))
        ));
        assert!(reports.is_sorted_by(|a, b| a.run < b.run));
    }
}
