//! For which jobs this node keeps a launcher, and when that may import what the job imports.
//!
//! A launcher lives for as long as its job has anything on this node, and [`LINGER`] longer:
//! between two generations is the moment it is for. While a job starts, nothing beside it may take
//! time from it, so whatever is done for the generations to come waits until it trains. For a job
//! that is about to come, a launcher is started at once: the job trains elsewhere until this node
//! is ready.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    id::JobUid,
    node::lane::Lane,
    run::{RunId, RunPhase, RunReport},
    time::Timestamp,
};

/// A script that shows no steps counts as training this long after its ranks have started: an
/// import takes 2 to 5 s here.
pub const STEPLESS: Duration = Duration::from_secs(5);

/// Between two generations there may be nothing of a job here, while it waits for its restart: 1 s,
/// and twice as long with each in a row. Four of these are waited for; what is longer than that has
/// lost more than an import.
pub const LINGER: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Jobs that have something here whose lane uses launchers.
    pub here: BTreeSet<JobUid>,
    /// The newest runs of these jobs, as far as they train.
    pub train: Vec<RunId>,
    /// Jobs that have nothing here yet and need a launcher.
    pub warm: Vec<JobUid>,
    /// Jobs whose launcher is of no use any more.
    pub end: Vec<JobUid>,
    /// When to ask again if nothing changes before.
    pub look_again: Option<Timestamp>,
}

/// What this node has and is told, as far as launchers depend on it.
#[derive(Clone, Debug)]
pub struct Held<'a> {
    /// The runs whose lane is known.
    pub runs: &'a [(RunReport, Lane)],
    /// Jobs with a run that is being prepared.
    pub starting: BTreeSet<JobUid>,
    /// Jobs that are about to come.
    pub coming: &'a BTreeSet<JobUid>,
    /// Jobs that have a launcher or are about to, and when they were last here.
    pub launchers: &'a BTreeMap<JobUid, Timestamp>,
}

pub fn plan(now: Timestamp, held: &Held<'_>) -> Plan {
    let Held {
        runs,
        starting,
        coming,
        launchers,
    } = held;
    let mut here: BTreeSet<JobUid> = coming.union(starting).cloned().collect();
    here.extend(
        runs.iter()
            .filter(|(_, lane)| *lane != Lane::Cold)
            .map(|(run, _)| run.run.job.clone()),
    );
    let warm = coming
        .iter()
        .filter(|job| !launchers.contains_key(*job))
        .cloned()
        .collect();
    let mut plan = Plan {
        here,
        warm,
        ..Plan::default()
    };
    for (job, last_here) in launchers
        .iter()
        .filter(|(job, _)| !plan.here.contains(*job))
    {
        let due = *last_here + LINGER;
        if due <= now {
            plan.end.push(job.clone());
        } else {
            plan.look_again = Some(plan.look_again.map_or(due, |at| at.min(due)));
        }
    }
    for job in plan.here.iter().filter(|job| !coming.contains(*job)) {
        let newest = runs
            .iter()
            .filter(|(run, _)| run.run.job == *job)
            .max_by_key(|(run, _)| run.run.generation);
        let Some((run, lane)) = newest else { continue };
        if *lane == Lane::Cold {
            continue;
        }
        match training(now, run) {
            Training::Yes => plan.train.push(run.run.clone()),
            Training::From(due) => {
                plan.look_again = Some(plan.look_again.map_or(due, |at| at.min(due)))
            }
            Training::No => {}
        }
    }
    plan
}

/// Whether anything here starts or falls, so that nothing beside it may take time from it.
pub fn is_busy(now: Timestamp, reports: &[RunReport]) -> bool {
    reports.iter().any(|run| match run.phase {
        RunPhase::Preparing | RunPhase::Ready | RunPhase::Stopping => true,
        RunPhase::Running => training(now, run) != Training::Yes,
        RunPhase::Dead | RunPhase::Refused(_) => false,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Training {
    Yes,
    /// From then on, if nothing changes before.
    From(Timestamp),
    No,
}

fn training(now: Timestamp, run: &RunReport) -> Training {
    if run.phase != RunPhase::Running || run.ranks.is_empty() {
        return Training::No;
    }
    if run
        .ranks
        .iter()
        .any(|rank| rank.exit.is_some() || rank.started_at.is_none())
    {
        return Training::No;
    }
    // In a world where only rank 0 prints, the others never show a step: one that does speaks for
    // its node.
    if run.ranks.iter().any(|rank| rank.first_step_at.is_some()) {
        return Training::Yes;
    }
    let started = run
        .ranks
        .iter()
        .filter_map(|rank| rank.started_at)
        .max()
        .unwrap_or(now);
    let due = Timestamp(started.0.saturating_add(STEPLESS.as_micros() as u64));
    if due <= now {
        Training::Yes
    } else {
        Training::From(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        exit::Exit,
        id::{Generation, Term},
        run::RankReport,
    };

    fn run(job: &str, generation: u64, phase: RunPhase, stepped: bool) -> (RunReport, Lane) {
        let id = RunId {
            job: JobUid::from(job),
            generation: Generation(generation),
        };
        let rank = RankReport {
            started_at: Some(Timestamp(1_000_000)),
            first_step_at: stepped.then_some(Timestamp(2_000_000)),
            ..RankReport::bare(0, 0)
        };
        (
            RunReport {
                phase,
                ranks: vec![rank],
                ..RunReport::preparing(id, Term(1))
            },
            Lane::Fork,
        )
    }

    /// Launchers of jobs that were here a second ago.
    fn set(jobs: &[&str]) -> BTreeMap<JobUid, Timestamp> {
        jobs.iter()
            .map(|job| (JobUid::from(*job), Timestamp(2_000_000)))
            .collect()
    }

    fn nothing(jobs: &[&str]) -> Plan {
        Plan {
            here: jobs.iter().map(|job| JobUid::from(*job)).collect(),
            ..Plan::default()
        }
    }

    const NOW: Timestamp = Timestamp(3_000_000);

    /// Where nothing is about to come.
    fn plan(
        now: Timestamp,
        runs: &[(RunReport, Lane)],
        launchers: &BTreeMap<JobUid, Timestamp>,
    ) -> Plan {
        super::plan(
            now,
            &Held {
                runs,
                starting: BTreeSet::new(),
                coming: &BTreeSet::new(),
                launchers,
            },
        )
    }

    #[test]
    fn nothing_is_imported_before_a_job_trains() {
        let stepping = || [run("a", 1, RunPhase::Running, true)];
        let id = stepping()[0].0.run.clone();
        assert_eq!(plan(NOW, &stepping(), &set(&[])).train, vec![id.clone()]);
        assert_eq!(
            plan(NOW, &stepping(), &set(&["a"])).train,
            vec![id.clone()],
            "it may import more than its launcher has"
        );
        let silent = [run("a", 1, RunPhase::Running, false)];
        let due = Timestamp(6_000_000);
        assert_eq!(
            plan(NOW, &silent, &set(&[])),
            Plan {
                look_again: Some(due),
                ..nothing(&["a"])
            }
        );
        assert_eq!(plan(due, &silent, &set(&[])).train, [id]);
    }

    #[test]
    fn never_while_a_generation_forms_or_falls() {
        let forming = [
            run("a", 1, RunPhase::Dead, true),
            run("a", 2, RunPhase::Ready, false),
        ];
        assert_eq!(plan(NOW, &forming, &set(&[])), nothing(&["a"]));
        let mut failed = run("a", 1, RunPhase::Running, true);
        failed.0.ranks[0].exit = Some(Exit::Code(1));
        assert_eq!(plan(NOW, &[failed], &set(&[])), nothing(&["a"]));
        let mut cold = run("a", 1, RunPhase::Running, true);
        cold.1 = Lane::Cold;
        assert_eq!(plan(NOW, &[cold], &set(&[])), Plan::default());
    }

    #[test]
    fn for_a_job_that_is_about_to_come_one_is_made_at_once_and_kept() {
        let coming = BTreeSet::from([JobUid::from("a")]);
        let plan = |now, runs: &[(RunReport, Lane)], launchers: &[&str]| {
            super::plan(
                now,
                &Held {
                    runs,
                    starting: BTreeSet::new(),
                    coming: &coming,
                    launchers: &set(launchers),
                },
            )
        };
        assert_eq!(
            plan(NOW, &[], &[]),
            Plan {
                warm: vec![JobUid::from("a")],
                ..nothing(&["a"])
            }
        );
        assert_eq!(
            plan(Timestamp(99_000_000), &[], &["a"]),
            nothing(&["a"]),
            "as long as it is asked for"
        );
        let left = [run("a", 1, RunPhase::Dead, true)];
        assert_eq!(
            plan(NOW, &left, &[]).warm,
            [JobUid::from("a")],
            "it was here before"
        );
    }

    #[test]
    fn a_run_that_is_being_prepared_keeps_the_launcher_that_it_waits_for() {
        let (starting, coming) = (BTreeSet::from([JobUid::from("a")]), BTreeSet::new());
        let launchers = BTreeMap::from([(JobUid::from("a"), Timestamp(0))]);
        let held = Held {
            runs: &[],
            starting,
            coming: &coming,
            launchers: &launchers,
        };
        assert_eq!(super::plan(Timestamp(99_000_000), &held), nothing(&["a"]));
    }

    #[test]
    fn whatever_starts_or_falls_is_busy() {
        let report = |phase, stepped| run("a", 1, phase, stepped).0;
        let mut failed = report(RunPhase::Running, true);
        failed.ranks[0].exit = Some(Exit::Code(1));
        for busy in [
            report(RunPhase::Preparing, false),
            report(RunPhase::Ready, false),
            report(RunPhase::Running, false),
            failed,
        ] {
            assert!(is_busy(NOW, &[report(RunPhase::Running, true), busy]));
        }
        assert!(!is_busy(
            NOW,
            &[
                report(RunPhase::Running, true),
                report(RunPhase::Dead, true)
            ]
        ));
        assert!(
            !is_busy(Timestamp(6_000_000), &[report(RunPhase::Running, false)]),
            "a script that shows no steps"
        );
    }

    #[test]
    fn it_lives_as_long_as_its_job_is_here() {
        let between = [run("a", 1, RunPhase::Dead, true)];
        assert_eq!(plan(NOW, &between, &set(&["a"])), nothing(&["a"]));
        let due = Timestamp(12_000_000);
        let waits = Plan {
            look_again: Some(due),
            ..Plan::default()
        };
        assert_eq!(
            plan(NOW, &[], &set(&["a"])),
            waits,
            "its next generation may be about to come"
        );
        assert_eq!(
            plan(due, &[], &set(&["a"])),
            Plan {
                end: vec![JobUid::from("a")],
                ..Plan::default()
            }
        );
    }
}
