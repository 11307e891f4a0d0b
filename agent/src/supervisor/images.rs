//! The supervisor's part in jobs that run in an image: it starts the job's container before anything of the job is
//! touched, and ends it when the job has left the node.

use std::{collections::BTreeSet, sync::Arc};

use muster_core::{
    id::JobUid,
    node::{Input, container::Asked},
    run::{Assignment, RunId, RunPhase, RunReport},
};
use muster_runtime::clock::Clock;
use tracing::info;

use super::{Supervisor, Timestamp};
use crate::{
    containers::{self, Container, Made, NotMade, Place, Waits},
    launchers::{self, Outcome},
    preflight::Preflight,
};

impl Supervisor {
    /// Finds the containers of an earlier agent.
    pub(super) async fn find_containers(&mut self) {
        let now = Timestamp(Clock::Boot.now_us());
        let (running, ended) = containers::left(&self.config).await;
        for (job, container) in running {
            self.containers.found(job, container, now);
        }
        for job in ended {
            self.containers.found_ended(job);
        }
    }

    /// The container that the run is in. `None`: it runs on the machine itself, or its container is not there.
    pub(super) fn container(&self, run: &RunId) -> Option<&Container> {
        self.containers.of(&run.job)
    }

    /// What interpreters have said where the run is.
    pub(super) fn preflight_of(&self, run: &RunId) -> Arc<Preflight> {
        let container = self.container(run);
        container.map_or_else(|| self.preflight.clone(), |one| one.preflight.clone())
    }

    /// Lets this wait for the job's container, which is started if there is none that serves it.
    pub(super) fn await_container(&mut self, waits: Waits) {
        let run = waits.assignment().run.clone();
        let job = run.job.clone();
        let now = Timestamp(Clock::Boot.now_us());
        let Some((asked, ends)) = self.containers.await_one(waits, now) else {
            return;
        };
        let known = self.containers.of(&job).cloned();
        let may_replace = !self.lives_beside(&run);
        let (turn, done) = (self.containers.turn(&job), self.containers.tell());
        let place = Place::new(&self.config, job.clone());
        self.scope.spawn_on_thread("container", async move {
            let _turn = turn.lock().await;
            let made = ends
                .run_until_cancelled(place.bring_up(&asked, known, may_replace))
                .await;
            let outcome = match made {
                Some(outcome) => outcome,
                None => {
                    info!(%job, "its container is not needed any more");
                    place.end().await;
                    Err(NotMade::GivenUp)
                }
            };
            // Nobody listens any more while the agent shuts down. The next agent finds the container.
            let _ = done.send(Made { job, outcome }).await;
        });
    }

    /// Goes on with what has waited for a container. Returns what the brain must know.
    pub(super) fn go_on_in(&mut self, made: Made) -> Vec<Input> {
        let Made { job, outcome } = made;
        let given_up = matches!(outcome, Err(NotMade::GivenUp));
        let (container, refusal) = match outcome {
            Ok(container) => (Some(container), None),
            Err(NotMade::Refused(refusal)) => (None, Some(refusal)),
            Err(NotMade::GivenUp) => {
                let why = "the job was taken away before its container was ready";
                (None, Some(why.into()))
            }
            Err(NotMade::Later) => {
                self.containers.postpone(&job);
                return Vec::new();
            }
        };
        let asked = container.as_ref().map(|one| one.asked.clone());
        let host = |one: &Container| one.host.clone();
        let before = self.containers.of(&job).map(host);
        let same = |now: &Container| before.is_some_and(|before| Arc::ptr_eq(&before, &now.host));
        // Its launcher was in another one.
        if !container.as_ref().is_some_and(same)
            && let Some(kept) = self.launchers.take(&job)
        {
            self.scope.spawn("launcher", kept.end());
        }
        let mut inputs = Vec::new();
        for waits in self.containers.note(&job, container) {
            let wanted = self.wanted.get(&job).map(|wanted| &wanted.run);
            match (waits, &refusal) {
                // It came after the start had been given up.
                (waits, Some(_)) if given_up && wanted == Some(&waits.assignment().run) => {
                    self.await_container(waits);
                }
                (Waits::Run(assignment, _), Some(refusal)) => inputs.push(Input::Refused {
                    run: assignment.run,
                    refusal: refusal.clone(),
                }),
                (Waits::Launcher(_), Some(refusal)) => {
                    let number = self.launchers.begin(&job);
                    let made = launchers::Made {
                        job: Some(job.clone()),
                        number,
                        outcome: Outcome::Refused(refusal.reason.clone()),
                    };
                    // It is not ready, so there is nothing to end.
                    let _ = self.launchers.made(made, None);
                }
                (waits, None) => {
                    let serves = |wanted| asked.as_ref().is_some_and(|asked| asked.serves(&wanted));
                    if !Asked::of(waits.assignment()).is_some_and(serves) {
                        self.await_container(waits);
                    } else if let Waits::Run(assignment, term) = waits {
                        self.hold(*assignment, term);
                    }
                    // A launcher is started when they are looked at next, which is now.
                }
            }
        }
        inputs
    }

    /// Whether a launcher for this job may be started now, as far as its container goes.
    pub(super) fn has_container(&mut self, assignment: &Assignment) -> bool {
        if assignment.image.is_none() || self.container(&assignment.run).is_some() {
            return true;
        }
        self.await_container(Waits::Launcher(Box::new(assignment.clone())));
        false
    }

    /// The runs of which something may live here: those that wait for a container have nothing yet.
    fn living(&self) -> Vec<RunId> {
        let goes_on =
            |report: &&RunReport| !matches!(report.phase, RunPhase::Dead | RunPhase::Refused(_));
        let reports = self.reports.borrow();
        let runs = reports.iter().flat_map(|reports| reports.runs.iter());
        let living = runs.filter(goes_on).map(|report| &report.run);
        living
            .filter(|run| !self.containers.awaits(run))
            .cloned()
            .collect()
    }

    /// Whether something of the same job may live here beside this run.
    fn lives_beside(&self, run: &RunId) -> bool {
        let mut living = self.living().into_iter();
        living.any(|other| other.job == run.job && other != *run)
    }

    /// Ends the containers that are not needed any more, and the starts of such.
    pub(super) fn tend_containers(&mut self) {
        let living = self.living();
        for waits in self.containers.take_postponed(&living) {
            self.await_container(waits);
        }
        let coming: BTreeSet<JobUid> = { self.wanted.keys().chain(self.prewarm.keys()) }
            .cloned()
            .collect();
        self.containers.give_up(&coming);
        let runs = living.into_iter().map(|run| run.job);
        let launchers = self.launchers.jobs().into_keys();
        let here = coming.into_iter().chain(runs).chain(launchers).collect();
        let (over, again) = self.containers.tend(Timestamp(Clock::Boot.now_us()), &here);
        self.look_again = [self.look_again, again].into_iter().flatten().min();
        for job in over {
            info!(%job, "the container of a job that has left is ended");
            self.end_container(job);
        }
    }

    fn end_container(&mut self, job: JobUid) {
        let turn = self.containers.turn(&job);
        let place = Place::new(&self.config, job);
        self.scope.spawn_on_thread("container", async move {
            let _turn = turn.lock().await;
            place.end().await;
        });
    }
}
