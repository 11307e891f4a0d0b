//! The supervisor's part in standbys: it asks the launcher of a job that trains for them, has them
//! ended where they may not be any more, and says what there is. `core::node::standby` decides.

use std::{collections::BTreeMap, time::Duration};

use muster_core::{
    id::JobUid,
    node::{launch, standby},
    run::{Assignment, RunId, RunReport},
    spec::Standbys,
    time::Timestamp,
};
use muster_runner::wire::{StandbyMode, StandbySpec};

use super::Supervisor;
use crate::{
    launchers::{self, Found, Made, Outcome},
    probe,
};

/// How often the GPUs' free memory is looked at while standbys wait, or might. Training that takes
/// more memory as it goes on does so within minutes.
const LOOK: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Makes, keeps and ends the standbys of the jobs that train here.
    pub(super) fn tend_standbys(&mut self, now: Timestamp, train: &[RunReport]) {
        for run in train {
            let Some(assignment) = self.wanted.get(&run.run.job) else {
                continue;
            };
            let may = assignment.standbys != Standbys::Off;
            if assignment.run != run.run || assignment.gpus.is_empty() || !may {
                continue;
            }
            let Some(due) = standby::due(now, run) else {
                continue;
            };
            let assignment = assignment.clone();
            let at = if due > now {
                due
            } else {
                let before = self.standby_words(&run.run);
                self.tend_standbys_of(&assignment, run);
                if self.standby_words(&run.run) != before {
                    self.publish();
                    self.weigh_launcher(&run.run.job);
                }
                now + LOOK
            };
            self.look_again = Some(self.look_again.map_or(at, |before| before.min(at)));
        }
        self.end_standbys_in_the_way();
    }

    fn tend_standbys_of(&mut self, assignment: &Assignment, run: &RunReport) {
        let job = &run.run.job;
        let run_dir = self.runs.dir(&run.run);
        let list = launchers::imported(&run_dir);
        let set = list.lines().filter_map(|line| line.strip_prefix('='));
        let set: Vec<String> = set.map(str::to_owned).collect();
        let Some(standing) = self.launchers.standing(job, run.run.generation, &run_dir) else {
            return;
        };
        let (failed, has) = (standing.failed(), standing.has());
        let report = self.facts.report();
        let decided = standby::decide(&standby::Facts {
            assignment,
            lane: self.lane(&run.run),
            most: self.config.standbys,
            driver: report.driver.as_ref(),
            gpus: &report.gpus,
            memory: &self.facts.gpu_memory(),
            available: probe::memory().map(|memory| memory.available),
            set_by_script: &set,
            failed: failed.as_deref(),
            has,
        });
        if let Some((launcher, mode)) = self.launchers.note_decided(job, decided) {
            let spec = StandbySpec {
                mode,
                env: self.environment_of(assignment),
                ranks: run.ranks.iter().map(|rank| rank.pid as i32).collect(),
            };
            let tell = async move { launcher.standbys(spec).await };
            self.scope.spawn("standbys", tell);
        }
    }

    /// Standbys count towards the memory of their launcher.
    fn weigh_launcher(&mut self, job: &JobUid) {
        let Some(Found::Ready(launcher)) = self.launchers.find(job) else {
            return;
        };
        let (job, done) = (Some(job.clone()), self.made.0.clone());
        self.scope.spawn_on_thread("launcher", async move {
            if let Some(bytes) = launcher.memory() {
                let number = launcher.number();
                let outcome = Outcome::Size(bytes);
                let made = Made {
                    job,
                    number,
                    outcome,
                };
                // Nobody listens any more while the agent shuts down.
                let _ = done.send(made).await;
            }
        });
    }

    /// Ends standbys whose GPU another job is about to get.
    fn end_standbys_in_the_way(&mut self) {
        let wanted: Vec<&Assignment> = self.wanted.values().collect();
        for (job, gpus) in self.launchers.with_standbys() {
            let others = |other: &&Assignment| {
                other.run.job != job && other.gpus.iter().any(|gpu| gpus.contains(gpu))
            };
            if wanted.iter().copied().any(|other| others(&other))
                && let Some(launcher) = self.launchers.end_standbys(&job)
            {
                let spec = StandbySpec {
                    mode: StandbyMode::Off,
                    env: BTreeMap::new(),
                    ranks: Vec::new(),
                };
                let tell = async move { launcher.standbys(spec).await };
                self.scope.spawn("standbys", tell);
            }
        }
    }

    /// What the ranks of this generation have as environment. The next generation's have the same, as
    /// far as it is read when a GPU is opened.
    fn environment_of(&mut self, assignment: &Assignment) -> BTreeMap<String, String> {
        let launch = launch::ahead(assignment, &self.site(&assignment.run));
        launch.map(|launch| launch.env).unwrap_or_default()
    }

    /// What is said about the standbys of this run, behind the reason for its lane.
    pub(super) fn standby_words(&self, run: &RunId) -> Option<String> {
        self.launchers.standby_words(&run.job, run.generation)
    }
}
