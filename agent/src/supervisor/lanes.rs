//! The supervisor's part in the fast lanes: which spares it keeps, and what a launcher is told.

use std::sync::Arc;

use muster_core::{
    exit::PEER_LOST_SIGNS,
    id::JobUid,
    node::{lane::Lane, spare, torchrun, torchrun::Site},
    run::{Assignment, Desired, RunId, RunPhase, RunReport, SpareReport, SpareState, Target},
    time::Timestamp,
};
use muster_runner::wire;
use muster_runtime::clock::Clock;

use super::Supervisor;
use crate::{
    preflight::Preflight,
    run_dir::Accepted,
    spares::{self, Made, Outcome, Place},
};

impl Supervisor {
    pub(super) fn note_wanted(&mut self, desired: &Desired) {
        self.wanted.clear();
        for wanted in &desired.runs {
            let (Target::Ready(assignment) | Target::Running(assignment, _)) = &wanted.target else { continue };
            let known = self.wanted.get(&wanted.run.job);
            if known.is_none_or(|known| known.run.generation < wanted.run.generation) {
                self.wanted.insert(wanted.run.job.clone(), assignment.as_ref().clone());
            }
        }
        let before = std::mem::take(&mut self.coming);
        self.coming = desired.warm.iter().map(|assignment| (assignment.run.job.clone(), assignment.clone())).collect();
        for (job, assignment) in &self.coming {
            // With other GPUs it is another launcher.
            if before.get(job).is_some_and(|before| before.gpus != assignment.gpus)
                && let Some(spare) = self.spares.take(job)
            {
                self.scope.spawn("spare", spare.end());
            }
        }
    }

    /// What became of the launchers for jobs that are about to come.
    pub(super) fn spares_of_coming(&self) -> Vec<SpareReport> {
        let off = || SpareState::Without("this node keeps no spare launchers".into());
        let state = |job: &JobUid| if self.config.spares { self.spares.state(job) } else { Some(off()) };
        self.coming.keys().filter_map(|job| Some(SpareReport { job: job.clone(), state: state(job)? })).collect()
    }

    /// Makes the spares that are missing and ends those that are of no use any more.
    pub(super) fn tend_spares(&mut self) {
        self.look_again = None;
        let reports = self.reports.borrow().as_ref().map(|reports| reports.runs.clone()).unwrap_or_default();
        self.accepted.retain(|run, _| reports.iter().any(|report| report.run == *run));
        if !self.config.spares {
            return;
        }
        let settled = |report: &&RunReport| !matches!(report.phase, RunPhase::Preparing | RunPhase::Refused(_));
        let runs: Vec<(RunReport, Lane)> =
            reports.iter().filter(settled).map(|report| (report.clone(), self.lane(&report.run))).collect();
        let now = Timestamp(Clock::Boot.now_us());
        let coming = self.coming.keys().cloned().collect();
        let plan = spare::plan(now, &runs, &coming, &self.spares.jobs());
        self.spares.are_here(plan.here, now);
        self.look_again = plan.look_again;
        for job in plan.end {
            if let Some(spare) = self.spares.take(&job) {
                self.scope.spawn("spare", spare.end());
            }
        }
        for run in plan.prepare {
            let Some(assignment) = self.wanted.get(&run.job).filter(|a| a.run == run).cloned() else { continue };
            if torchrun::ranks(&assignment).is_none() {
                // Only Python can be started ahead.
                continue;
            }
            let (lane, modules) = (self.lane(&run), self.runs.dir(&run).join(muster_runner::record::MODULES));
            self.make_spare(assignment, move |place: Place, assignment, _| async move {
                match place.make(&assignment, lane, &spares::read_some(&modules)).await {
                    Ok(spare) => Outcome::Ready(spare),
                    Err(why) => Outcome::Without(why),
                }
            });
        }
        for assignment in plan.warm.iter().filter_map(|job| self.coming.get(job).cloned()).collect::<Vec<_>>() {
            self.make_spare(assignment, |place: Place, assignment, preflight| async move {
                place.make_ahead(&assignment, &preflight).await
            });
        }
    }

    fn make_spare<F>(&mut self, assignment: Assignment, make: impl FnOnce(Place, Assignment, Arc<Preflight>) -> F)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let job = assignment.run.job.clone();
        let number = self.spares.begin(&job);
        let dir = self.runs.spare_dir(&job, number);
        let run_dir = dir.to_str().expect("the state directory was checked to be UTF-8").to_owned();
        let site = Site { run_dir, ..self.site(&assignment.run) };
        let making =
            make(Place { dir: dir.clone(), number, runner: self.config.runner.clone(), site }, assignment, self.preflight.clone());
        let done = self.made.0.clone();
        self.scope.spawn("spare", async move {
            let made = |outcome| Made { job: job.clone(), number, outcome };
            // Nobody listens any more while the agent shuts down; the spare's runner ends by itself.
            let outcome = making.await;
            let is_made = matches!(outcome, Outcome::Ready(_));
            let _ = done.send(made(outcome)).await;
            if !is_made {
                return;
            }
            let _ = done.send(made(Outcome::Imported(spares::imported(&dir).await))).await;
            tokio::time::sleep(spares::GROWN).await;
            if let Some(bytes) = spares::memory(&dir) {
                let _ = done.send(made(Outcome::Size(bytes))).await;
            }
        });
    }

    pub(super) fn lane(&mut self, run: &RunId) -> Lane {
        self.accepted(run).map_or(Lane::Cold, |accepted| accepted.lane)
    }

    /// What was noted of a run when it was accepted, read once; none before.
    pub(super) fn accepted(&mut self, run: &RunId) -> Option<&Accepted> {
        if !self.accepted.contains_key(run) {
            self.accepted.insert(run.clone(), self.runs.accepted(run)?);
        }
        self.accepted.get(run)
    }

    /// Adds to each report how and with what its run is started, and to a job's newest what its spare takes.
    pub(super) fn tell_lanes(&mut self, reports: &mut [RunReport]) {
        for report in reports.iter_mut().filter(|report| !matches!(report.phase, RunPhase::Preparing | RunPhase::Refused(_))) {
            if let Some(accepted) = self.accepted(&report.run) {
                (report.lane.name, report.lane.reason) = (accepted.lane.name().to_owned(), accepted.why.clone());
                report.stack = accepted.stack.clone();
            }
            if report.phase == RunPhase::Running {
                report.lane.spare_bytes = self.spares.bytes(&report.run.job);
            }
        }
    }
}

/// What is to be done in this lane in place of executing torchrun; none where it is executed.
pub(super) fn order_for(lane: Lane, assignment: &Assignment, launch: &torchrun::Launch) -> Option<wire::Order> {
    let (options, argv) = torchrun::ranks(assignment).unwrap_or_default();
    let run_id = assignment.rendezvous.clone();
    let (lane, argv, command) = match lane {
        Lane::Cold => return None,
        Lane::Parked => (wire::Lane::Parked, torchrun::own_arguments(launch).to_vec(), Vec::new()),
        Lane::Fork => (wire::Lane::Fork, argv, Vec::new()),
        Lane::Direct => (wire::Lane::Direct, argv, torchrun::rank_command(assignment)),
    };
    Some(wire::Order { lane, options, argv, command, run_id, peer_lost: PEER_LOST_SIGNS.map(str::to_owned).to_vec() })
}
