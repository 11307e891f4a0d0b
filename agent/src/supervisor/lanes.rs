//! The supervisor's part in the fast lanes: which launchers it keeps, and what it tells them.

use std::path::PathBuf;

use muster_core::{
    id::JobUid,
    node::{lane::Lane, launch, launcher, pool, torchrun, torchrun::Site},
    run::{Assignment, Desired, LauncherReport, LauncherState, RunId, RunPhase, RunReport, Target},
    time::Timestamp,
};
use muster_runtime::clock::Clock;
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::{Supervisor, held_run::HeldRun};
use crate::{
    caches,
    launchers::{Found, Kept, Launcher, Made, OfRun, Outcome, Place, imported, sure_list},
    probe,
    run_dir::Accepted,
};

impl Supervisor {
    pub(super) fn note_wanted(&mut self, desired: &Desired) {
        self.wanted.clear();
        for wanted in &desired.runs {
            let (Target::Ready(assignment) | Target::Running(assignment, _)) = &wanted.target
            else {
                continue;
            };
            let known = self.wanted.get(&wanted.run.job);
            if known.is_none_or(|known| known.run.generation < wanted.run.generation) {
                self.wanted
                    .insert(wanted.run.job.clone(), assignment.as_ref().clone());
            }
        }
        let before = std::mem::take(&mut self.prewarm);
        self.prewarm = desired
            .prewarm
            .iter()
            .map(|assignment| (assignment.run.job.clone(), assignment.clone()))
            .collect();
        // A launcher that was started for other GPUs does not fit.
        let moved = |(job, assignment): (&JobUid, &Assignment)| {
            before
                .get(job)
                .is_some_and(|before| before.gpus != assignment.gpus)
                .then(|| job.clone())
        };
        for job in self.prewarm.iter().filter_map(moved).collect::<Vec<_>>() {
            self.end_launcher(&job);
        }
    }

    /// The state of the launchers for jobs that are about to come.
    pub(super) fn launchers_of_coming(&self) -> Vec<LauncherReport> {
        let off = || LauncherState::Without("this node keeps no launchers".into());
        let state = |job: &JobUid| {
            if self.config.launchers {
                self.launchers.state(job)
            } else {
                Some(off())
            }
        };
        self.prewarm
            .keys()
            .filter_map(|job| {
                Some(LauncherReport {
                    job: job.clone(),
                    state: state(job)?,
                })
            })
            .collect()
    }

    /// Starts missing launchers, makes them import what their jobs import, and ends those that are
    /// not needed any more.
    pub(super) fn tend_launchers(&mut self) {
        self.look_again = None;
        self.forget_owners();
        let reports = self
            .reports
            .borrow()
            .as_ref()
            .map(|reports| reports.runs.clone())
            .unwrap_or_default();
        self.tend_caches(&reports);
        if !self.config.launchers {
            return;
        }
        let settled = |report: &&RunReport| {
            !matches!(report.phase, RunPhase::Preparing | RunPhase::Refused(_))
        };
        let runs: Vec<(RunReport, Lane)> = reports
            .iter()
            .filter(settled)
            .map(|report| (report.clone(), self.lane(&report.run)))
            .collect();
        let now = Timestamp(Clock::Boot.now_us());
        let preparing = reports
            .iter()
            .filter(|report| report.phase == RunPhase::Preparing);
        let starting = preparing.map(|report| report.run.job.clone()).collect();
        let prewarm = self.prewarm.keys().cloned().collect();
        // While nothing starts, nobody needs to know.
        let spare = if launcher::is_busy(now, &reports) {
            let runs = reports.iter().filter(|report| !report.phase.is_over());
            let ranks = runs.map(|run| run.ranks.len()).sum::<usize>();
            self.launchers.spare.look(now, ranks)
        } else {
            0
        };
        let held = launcher::Held {
            runs: &runs,
            starting,
            prewarm: &prewarm,
            launchers: &self.launchers.jobs(),
            askable: &self.launchers.askable(),
            spare,
        };
        let plan = launcher::plan(now, &held);
        self.launchers.are_here(plan.here, now);
        self.look_again_at(plan.look_again);
        for job in plan.end {
            self.end_launcher(&job);
        }
        for run in plan.begun {
            self.import_left(&run);
        }
        for run in plan.sure {
            self.import_sure(&run);
        }
        let trains = |report: &&RunReport| plan.train.contains(&report.run);
        let train: Vec<RunReport> = reports.iter().filter(trains).cloned().collect();
        for run in plan.train {
            let dir = self.runs.dir(&run);
            let shows_steps = |report: &RunReport| {
                report.run == run && report.ranks.iter().any(|rank| rank.first_step_at.is_some())
            };
            if let Some(look) = self.launchers.look_at_imports(
                &run.job,
                run.generation,
                now,
                reports.iter().any(shows_steps),
                &OfRun(&dir),
            ) {
                self.look_again_at(Some(look.again));
                if let Some((launcher, list)) = look.import {
                    self.preload(run.job.clone(), launcher, list);
                }
            } else if !self.launchers.is_known(&run.job)
                && let Some(assignment) =
                    self.wanted.get(&run.job).filter(|a| a.run == run).cloned()
                && torchrun::ranks(&assignment).is_some()
            {
                self.start_launcher(assignment, true, false);
            }
        }
        self.tend_standbys(now, &train);
        self.tend_pool(now, &reports);
        for assignment in plan
            .prewarm
            .iter()
            .filter_map(|job| self.prewarm.get(job).cloned())
            .collect::<Vec<_>>()
        {
            self.start_launcher(assignment, true, true);
        }
    }

    fn look_again_at(&mut self, due: Option<Timestamp>) {
        self.look_again = [self.look_again, due].into_iter().flatten().min();
    }

    /// Removes the compile caches of jobs that have left this node.
    fn tend_caches(&mut self, reports: &[RunReport]) {
        let ended =
            |report: &&RunReport| matches!(report.phase, RunPhase::Dead | RunPhase::Refused(_));
        let here = reports
            .iter()
            .filter(|report| !ended(report))
            .map(|report| report.run.job.clone());
        let here = here
            .chain(self.wanted.keys().cloned())
            .chain(self.prewarm.keys().cloned())
            .collect();
        let now = Timestamp(Clock::Boot.now_us());
        let over = launcher::over(reports);
        let (gone, again) = self.launchers.caches.tend(now, &self.runs, here, &over);
        self.look_again_at(again);
        for dir in gone {
            self.scope
                .spawn_on_thread("caches", async move { caches::remove(dir) });
        }
    }

    /// Starts the launchers that the warm pool lacks, and ends those that it must not have.
    fn tend_pool(&mut self, now: Timestamp, reports: &[RunReport]) {
        if self.launchers.pool.is_off() {
            return;
        }
        for kept in self.launchers.pool.gone() {
            warn!("a launcher of the warm pool has ended by itself");
            self.scope.spawn("launcher", kept.end());
        }
        let (bytes_max, of_jobs) = (
            self.config.launcher_memory_max,
            self.launchers.bytes_of_jobs(),
        );
        let busy = !self.prewarm.is_empty() || launcher::is_busy(now, reports);
        // If the kernel does not say how much memory there is, that does not count as too little.
        let memory = probe::memory().unwrap_or_default();
        let plan = self
            .launchers
            .pool
            .plan(now, busy, memory, bytes_max, of_jobs);
        for (number, cause) in plan.end {
            info!("a launcher of the warm pool is ended: {cause}");
            if let Some(kept) = self.launchers.pool.remove(number) {
                self.scope.spawn("launcher", kept.end());
            }
        }
        if let Some(key) = plan.start {
            self.start_for_pool(key, now);
        }
        self.look_again_at(plan.look_again);
    }

    fn start_for_pool(&mut self, key: pool::Key, now: Timestamp) {
        self.launchers.next += 1;
        let number = self.launchers.next;
        let account = key.account().cloned();
        let Some(bare) = self.launchers.pool.begin(number, key, now) else {
            return;
        };
        let mut place = self.place(self.runs.pool_dir(number), number, &bare, true);
        // It belongs to no job, and still to somebody where jobs run as their owners.
        place.host = self.host_as(account.clone());
        place.site.account = account;
        let (preflight, done) = (self.preflight.clone(), self.made.0.clone());
        self.scope.spawn_on_thread("launcher", async move {
            let mut unneeded = Vec::new();
            let started = place.start_for_pool(&bare, &preflight, &mut unneeded);
            say(&done, None, number, started.await).await;
            end_all(unneeded).await;
        });
    }

    /// A launcher of the pool for this job. It also notes which interpreter the job uses, so that
    /// the pool has a launcher for the next job.
    fn take_from_pool(&mut self, assignment: &Assignment) -> Option<Kept> {
        // The pool's launchers are on the machine itself.
        if self.launchers.pool.is_off() || assignment.image.is_some() {
            return None;
        }
        let site = self.site(&assignment.run);
        let launch = |assignment: &Assignment| launch::ahead(assignment, &site).ok();
        let launched = launch(assignment)?;
        let bare = pool::without_job(assignment, &launched.program);
        match pool::key(assignment, &launched, &launch(&bare)?) {
            Ok(key) => {
                let taken = self.launchers.pool.take(&key);
                self.launchers.pool.note_use(key, bare);
                taken
            }
            Err(why) => {
                info!(job = %assignment.run.job, "the warm pool is not for this job: {why}");
                None
            }
        }
    }

    /// The launcher from which this generation's runner is forked, if there is one. If the lane may
    /// need one from the job's first generation on, it is started here.
    pub(super) fn launcher_for(&mut self, assignment: &Assignment) -> Option<Found> {
        if !self.config.launchers || !launch::may_be_forked(assignment) {
            return None;
        }
        let job = &assignment.run.job;
        // A job that cannot be launched at all is refused later, in `prepare`.
        let launch = launch::ahead(assignment, &self.site(&assignment.run)).ok()?;
        if self.launchers.is_unfit(job, assignment, &launch) {
            info!(%job, "its launcher does not fit this generation: another is started");
            self.end_launcher(job);
        }
        if !self.launchers.is_known(job) && launch::waits_for_launcher(assignment) {
            self.start_launcher(assignment.clone(), false, false);
        }
        self.launchers.find(job)
    }

    fn start_launcher(&mut self, assignment: Assignment, background: bool, ahead: bool) {
        if !self.has_container(&assignment) || !self.may_start_launcher(&assignment) {
            return;
        }
        let job = assignment.run.job.clone();
        let number = self.launchers.begin(&job);
        let pooled = self.take_from_pool(&assignment);
        let place = self.place(
            self.runs.launcher_dir(&job, number),
            number,
            &assignment,
            background,
        );
        let preflight = self.preflight_of(&assignment.run);
        let done = self.made.0.clone();
        self.scope.spawn_on_thread("launcher", async move {
            let mut unneeded = Vec::new();
            let started = place.start(&assignment, &preflight, ahead, pooled, &mut unneeded);
            say(&done, Some(job), number, started.await).await;
            end_all(unneeded).await;
        });
    }

    fn place(
        &mut self,
        dir: PathBuf,
        number: u32,
        assignment: &Assignment,
        background: bool,
    ) -> Place {
        let run_dir = dir
            .to_str()
            .expect("the state directory was checked to be UTF-8")
            .to_owned();
        let site = Site {
            run_dir,
            ..self.site(&assignment.run)
        };
        Place {
            dir,
            number,
            host: self.host_of(&assignment.run),
            site,
            background,
        }
    }

    /// Has a launcher import what the generation before this one has imported.
    fn import_left(&mut self, run: &RunId) {
        let left_by = |generation| {
            imported(&self.runs.dir(&RunId {
                job: run.job.clone(),
                generation,
            }))
        };
        if let Some((launcher, list)) = self.launchers.begun(&run.job, run.generation, left_by) {
            self.preload(run.job.clone(), launcher, list);
        }
    }

    /// Has a launcher import what every run of the script imports, for the generation after this.
    fn import_sure(&mut self, run: &RunId) {
        let assignment = self.wanted.get(&run.job).filter(|a| a.run == *run);
        let Some(assignment) = assignment.cloned() else {
            return;
        };
        let launch = launch::ahead(&assignment, &self.site(run));
        let list = launch
            .ok()
            .and_then(|launch| sure_list(&assignment, &launch.dir));
        if let Some(list) = list
            && let Some(launcher) = self.launchers.ask_sure(&run.job)
        {
            self.preload(run.job.clone(), launcher, list);
        }
    }

    fn preload(&mut self, job: JobUid, launcher: Launcher, list: String) {
        let done = self.made.0.clone();
        self.scope.spawn_on_thread("launcher", async move {
            launcher.preload(&list).await;
            let outcome = Outcome::Imported(launcher.imported_ahead(), launcher.memory());
            let made = Made {
                job: Some(job),
                number: launcher.number(),
                outcome,
            };
            // Nobody listens any more while the agent shuts down.
            let _ = done.send(made).await;
        });
    }

    fn end_launcher(&mut self, job: &JobUid) {
        if let Some(kept) = self.launchers.take(job) {
            self.scope.spawn("launcher", kept.end());
        }
    }

    pub(super) fn lane(&self, run: &RunId) -> Lane {
        self.held.get(run).map_or(Lane::Cold, HeldRun::lane)
    }

    /// Notes that the launcher of a run has failed, after the run was accepted.
    pub(super) fn note_fallback(&mut self, run: &RunId) {
        let held = self.held.get_mut(run);
        let Some(accepted) = held.and_then(|held| held.accepted.as_mut()) else {
            return;
        };
        let Some((lane, why)) = launch::fallen_back(accepted.lane) else {
            return;
        };
        warn!(job = %run.job, generation = %run.generation, "its launcher has failed by itself, so the lane is {}", lane.name());
        (accepted.lane, accepted.why) = (lane, why);
        let accepted = accepted.clone();
        let (runs, run) = (self.runs.clone(), run.clone());
        self.scope.spawn_on_thread("lane", async move {
            if let Err(e) = runs.note_lane(&run, &accepted) {
                warn!(job = %run.job, "its lane cannot be noted: {e}");
            }
        });
    }

    /// What was noted about a run when it was accepted. None before that.
    pub(super) fn accepted(&self, run: &RunId) -> Option<&Accepted> {
        self.held.get(run)?.accepted.as_ref()
    }

    /// Adds to each report how the run is started and with which software. The newest report of a
    /// job also gets what its launcher takes.
    pub(super) fn tell_lanes(&mut self, reports: &mut [RunReport]) {
        for report in reports
            .iter_mut()
            .filter(|report| !matches!(report.phase, RunPhase::Preparing | RunPhase::Refused(_)))
        {
            if let Some(accepted) = self.accepted(&report.run) {
                (report.lane.name, report.lane.reason) =
                    (accepted.lane.name().to_owned(), accepted.why.clone());
                report.stack = accepted.stack.clone();
                report.port = accepted.port;
                report.ports = accepted.ports.clone();
                report.key = accepted.key.clone();
            }
            if report.phase == RunPhase::Running {
                report.lane.launcher_bytes = self.launchers.bytes(&report.run.job);
                if let Some(words) = self.standby_words(&report.run) {
                    report.lane.reason = format!("{}; {words}", report.lane.reason);
                }
            }
        }
    }
}

async fn end_all(unneeded: Vec<Kept>) {
    for kept in unneeded {
        kept.end().await;
    }
}

/// Tells what became of a launcher, and then how much memory it takes. Nobody listens any more
/// while the agent shuts down; the launcher's runner then ends by itself.
async fn say(done: &mpsc::Sender<Made>, job: Option<JobUid>, number: u32, outcome: Outcome) {
    let launcher = if let Outcome::Ready(kept) = &outcome {
        Some(kept.launcher().clone())
    } else {
        None
    };
    let _ = done
        .send(Made {
            job: job.clone(),
            number,
            outcome,
        })
        .await;
    if let Some(bytes) = launcher.and_then(|launcher| launcher.memory()) {
        let _ = done
            .send(Made {
                job,
                number,
                outcome: Outcome::Size(bytes),
            })
            .await;
    }
}
