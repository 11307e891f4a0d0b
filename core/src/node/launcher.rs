//! Decides for which jobs this node keeps a launcher, and when the launcher may import what the job
//! imports.
//!
//! A launcher lives as long as its job has a run on this node, and [`LINGER`] longer, because it is
//! needed between two generations. When the job's newest run here has ended well, no generation
//! follows, and its launcher goes at once. While a job starts, nothing beside it may take processor time
//! from it. So all work for later generations waits until the job trains, with three exceptions. A
//! launcher for a job that is about to come is started at once: until this node is ready, the job
//! trains elsewhere. What a generation left that did not train for long enough is imported beside
//! the next one: else a job whose ranks die every few seconds would import the same at each start.
//! And where processors are spare, what every run of a script imports is imported beside its first
//! start: else a rank that dies in the first seconds of a job would cost these imports once more.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    exit::Exit,
    id::{Generation, JobUid},
    node::lane::Lane,
    run::{RunId, RunPhase, RunReport},
    time::Timestamp,
};

/// If a script shows no steps, it counts as training this long after its ranks have started. An
/// import takes 2 to 5 s here.
pub const STEPLESS: Duration = Duration::from_secs(5);

/// Between two generations a job may have no run here, while it waits for its restart: 1 s, and
/// twice as long with each restart in a row. This covers the first four of these waits (1, 2, 4 and
/// 8 s). After a longer wait, the job has lost more than an import anyway.
pub const LINGER: Duration = Duration::from_secs(10);

/// The record of what a script imports is read when it has not grown for this long, unless the
/// script shows steps. While a script imports, it grows many times a second; one library that is
/// loaded from a slow disk may take longer, and then the record is read again.
pub const RECORD_QUIET: Duration = Duration::from_secs(2);

/// The time between two looks at a record that has been read. Scripts import more when they first
/// evaluate or save, and a look costs one system call.
pub const RECORD_LOOK: Duration = Duration::from_secs(15);

/// The time between two looks for spare processors while a job starts.
pub const SPARE_LOOK: Duration = Duration::from_millis(300);

/// What is known of the record of one generation's imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub generation: Generation,
    /// Its length at the last look.
    pub bytes: u64,
    /// When it was first seen with this length.
    pub since: Timestamp,
    /// The length with which it was last read. 0: it was not read yet.
    pub read: u64,
}

impl Record {
    /// The record after another look, and when to look again. It is to be read now if `read` is its
    /// length and was not before.
    pub fn look(
        before: Option<Record>,
        now: Timestamp,
        generation: Generation,
        bytes: u64,
        shows_steps: bool,
    ) -> (Record, Timestamp) {
        let known = before.filter(|known| known.generation == generation);
        let mut record = known
            .filter(|known| known.bytes == bytes)
            .unwrap_or(Record {
                generation,
                bytes,
                since: now,
                read: known.map_or(0, |known| known.read),
            });
        let quiet_at = record.since + RECORD_QUIET;
        if record.read != bytes && (quiet_at <= now || shows_steps && record.read == 0) {
            record.read = bytes;
        }
        let due = if record.read == bytes {
            now + RECORD_LOOK
        } else {
            quiet_at
        };
        (record, due)
    }
}

/// What to do about launchers now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Jobs that have a run here whose lane uses launchers.
    pub here: BTreeSet<JobUid>,
    /// The newest runs of these jobs, if they train.
    pub train: Vec<RunId>,
    /// The newest runs of these jobs whose ranks have started, and do not train yet.
    pub begun: Vec<RunId>,
    /// Those of `begun` beside which their launcher may import what every run of the script
    /// imports.
    pub sure: Vec<RunId>,
    /// Jobs that have no run here yet and need a launcher.
    pub prewarm: Vec<JobUid>,
    /// Jobs whose launcher is not needed any more.
    pub end: Vec<JobUid>,
    /// When to call [`plan`] again if nothing changes before.
    pub look_again: Option<Timestamp>,
}

/// The facts about this node on which launchers depend.
#[derive(Clone, Debug)]
pub struct Held<'a> {
    /// The runs whose lane is known.
    pub runs: &'a [(RunReport, Lane)],
    /// Jobs with a run that is being prepared.
    pub starting: BTreeSet<JobUid>,
    /// Jobs that are about to come here, and for which the coordinator wants a launcher.
    pub prewarm: &'a BTreeSet<JobUid>,
    /// Jobs that have a launcher or will have one soon, and when they were last here.
    pub launchers: &'a BTreeMap<JobUid, Timestamp>,
    /// Those of them that may be asked for what every run of the script imports.
    pub askable: &'a BTreeSet<JobUid>,
    /// Processors that nothing on this machine uses now.
    pub spare: u32,
}

/// Decides which launchers to start, to keep and to end.
pub fn plan(now: Timestamp, held: &Held<'_>) -> Plan {
    let Held {
        runs,
        ref starting,
        prewarm,
        launchers,
        askable,
        mut spare,
    } = *held;
    let newest = newest_runs(runs);
    let mut here: BTreeSet<JobUid> = prewarm.union(starting).cloned().collect();
    here.extend(
        runs.iter()
            .filter(|(run, lane)| lane.has_launcher() && !ended_well(newest[&run.run.job].0))
            .map(|(run, _)| run.run.job.clone()),
    );
    let lacking = prewarm
        .iter()
        .filter(|job| !launchers.contains_key(*job))
        .cloned()
        .collect();
    let mut plan = Plan {
        here,
        prewarm: lacking,
        ..Plan::default()
    };
    for (job, last_here) in launchers
        .iter()
        .filter(|(job, _)| !plan.here.contains(*job))
    {
        let due = *last_here + LINGER;
        if due <= now || newest.get(job).is_some_and(|(run, _)| ended_well(run)) {
            plan.end.push(job.clone());
        } else {
            plan.look_again = Some(plan.look_again.map_or(due, |at| at.min(due)));
        }
    }
    for job in plan.here.iter().filter(|job| !prewarm.contains(*job)) {
        let Some((run, lane)) = newest.get(job) else {
            continue;
        };
        if !lane.has_launcher() {
            continue;
        }
        match training(now, run) {
            Training::Yes => plan.train.push(run.run.clone()),
            Training::From(due) => {
                plan.begun.push(run.run.clone());
                let due = match *lane == Lane::Fork && askable.contains(job) {
                    true if spare > 0 => {
                        spare -= 1;
                        plan.sure.push(run.run.clone());
                        due
                    }
                    true => due.min(now + SPARE_LOOK),
                    false => due,
                };
                plan.look_again = Some(plan.look_again.map_or(due, |at| at.min(due)))
            }
            Training::No => {}
        }
    }
    plan
}

/// The newest run here of each job, and its lane.
fn newest_runs(runs: &[(RunReport, Lane)]) -> BTreeMap<&JobUid, (&RunReport, Lane)> {
    let mut newest: BTreeMap<&JobUid, (&RunReport, Lane)> = BTreeMap::new();
    for (run, lane) in runs {
        let of_job = newest.entry(&run.run.job).or_insert((run, *lane));
        if of_job.0.run.generation < run.run.generation {
            *of_job = (run, *lane);
        }
    }
    newest
}

/// Jobs of which all is over here: their newest run has ended well.
pub fn over(runs: &[RunReport]) -> BTreeSet<JobUid> {
    let with_lane: Vec<_> = runs.iter().map(|run| (run.clone(), Lane::Cold)).collect();
    newest_runs(&with_lane)
        .into_iter()
        .filter(|(_, (run, _))| ended_well(run))
        .map(|(job, _)| job.clone())
        .collect()
}

/// torchrun ends well on a node only when the ranks of all nodes have, so the job is over.
fn ended_well(run: &RunReport) -> bool {
    run.phase == RunPhase::Dead
        && run.torchrun_exit.is_some_and(Exit::is_success)
        && !run.ranks.is_empty()
        && run.ranks_finished(run.ranks.len() as u32)
}

/// Whether any run here is starting or ending, so that nothing beside it may take processor time
/// from it.
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
    /// It trains from this time on, if nothing changes before.
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
    // In many jobs only rank 0 prints, and the others never show a step. So one rank that shows a
    // step stands for its node.
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

    /// The plan if no job is about to come.
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
                prewarm: &BTreeSet::new(),
                launchers,
                askable: &BTreeSet::new(),
                spare: 0,
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
                begun: vec![id.clone()],
                look_again: Some(due),
                ..nothing(&["a"])
            }
        );
        let trains = plan(due, &silent, &set(&[]));
        assert_eq!((trains.train, trains.begun), (vec![id], vec![]));
    }

    #[test]
    fn beside_a_first_start_spare_processors_import_for_the_next() {
        let (silent, none) = (|job| run(job, 1, RunPhase::Running, false), BTreeSet::new());
        let trains = run("c", 1, RunPhase::Running, true);
        let runs = [silent("0"), silent("a"), silent("b"), trains];
        let askable = ["a", "b", "c"].map(JobUid::from).into();
        let with = |spare, now| {
            let held = Held {
                runs: &runs,
                starting: BTreeSet::new(),
                prewarm: &none,
                launchers: &set(&["0", "a", "b", "c"]),
                askable: &askable,
                spare,
            };
            let plan = super::plan(now, &held);
            (plan.sure, plan.look_again)
        };
        let (a, b) = (runs[1].0.run.clone(), runs[2].0.run.clone());
        let due = Timestamp(6_000_000);
        assert_eq!(with(2, NOW), (vec![a.clone(), b], Some(due)));
        assert_eq!(with(1, NOW), (vec![a], Some(NOW + SPARE_LOOK)));
        assert_eq!(with(0, NOW), (vec![], Some(NOW + SPARE_LOOK)));
        let late = Timestamp(due.0 - 1);
        assert_eq!(
            with(0, late),
            (vec![], Some(due)),
            "then they count as training"
        );
    }

    /// The times at which a record is read whose length changes like this.
    fn read_at(lengths: &[(u64, u64)], shows_steps: bool) -> Vec<u64> {
        let (mut record, mut read) = (None, vec![]);
        for (second, bytes) in lengths {
            let now = Timestamp(second * 1_000_000);
            let before = record.map_or(0, |record: Record| record.read);
            let (after, due) = Record::look(record, now, Generation(1), *bytes, shows_steps);
            assert!(due > now, "at {second}: {after:?}");
            if after.read != before {
                assert_eq!(after.read, *bytes);
                read.push(*second);
            }
            record = Some(after);
        }
        read
    }

    #[test]
    fn a_record_is_read_when_it_has_stopped_growing_and_again_when_it_grows_later() {
        let grows = [
            (5, 10),
            (6, 20),
            (7, 30),
            (8, 40),
            (9, 40),
            (10, 40),
            (25, 40),
        ];
        assert_eq!(
            read_at(&grows, false),
            [10],
            "a script that imports for long"
        );
        let later = [&grows[..], &[(40, 41), (42, 41), (57, 41)]].concat();
        assert_eq!(read_at(&later, false), [10, 42]);
        assert_eq!(
            read_at(&later, true),
            [5, 10, 42],
            "a script that shows steps is ready"
        );
        assert_eq!(read_at(&[(5, 0), (7, 0), (9, 0)], false), [0; 0]);
    }

    #[test]
    fn the_record_of_another_generation_is_another_one() {
        let old = Record {
            generation: Generation(1),
            bytes: 40,
            since: Timestamp(0),
            read: 40,
        };
        let (new, due) = Record::look(Some(old), NOW, Generation(2), 40, false);
        assert_eq!((new.read, new.since, due), (0, NOW, NOW + RECORD_QUIET));
        let (same, _) = Record::look(Some(new), due, Generation(2), 40, false);
        assert_eq!(same.read, 40);
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
        let prewarm = BTreeSet::from([JobUid::from("a")]);
        let plan = |now, runs: &[(RunReport, Lane)], launchers: &[&str]| {
            super::plan(
                now,
                &Held {
                    runs,
                    starting: BTreeSet::new(),
                    prewarm: &prewarm,
                    launchers: &set(launchers),
                    askable: &BTreeSet::new(),
                    spare: 8,
                },
            )
        };
        assert_eq!(
            plan(NOW, &[], &[]),
            Plan {
                prewarm: vec![JobUid::from("a")],
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
            plan(NOW, &left, &[]).prewarm,
            [JobUid::from("a")],
            "it was here before"
        );
    }

    #[test]
    fn a_run_that_is_being_prepared_keeps_the_launcher_that_it_waits_for() {
        let (starting, prewarm) = (BTreeSet::from([JobUid::from("a")]), BTreeSet::new());
        let launchers = BTreeMap::from([(JobUid::from("a"), Timestamp(0))]);
        let held = Held {
            runs: &[],
            starting,
            prewarm: &prewarm,
            launchers: &launchers,
            askable: &BTreeSet::new(),
            spare: 8,
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

    #[test]
    fn it_goes_at_once_when_its_job_has_ended_well_here() {
        let mut over = run("a", 2, RunPhase::Dead, true);
        over.0.torchrun_exit = Some(Exit::Code(0));
        over.0.ranks[0].exit = Some(Exit::Code(0));
        let earlier = run("a", 1, RunPhase::Dead, true);
        let ends = Plan {
            end: vec![JobUid::from("a")],
            ..Plan::default()
        };
        let runs = [earlier.clone(), over.clone()];
        assert_eq!(plan(NOW, &runs, &set(&["a"])), ends);
        let next = run("a", 3, RunPhase::Preparing, false);
        let runs = [over.clone(), next];
        assert_eq!(plan(NOW, &runs, &set(&["a"])), nothing(&["a"]));
        over.0.ranks[0].exit = Some(Exit::Code(1));
        assert_eq!(plan(NOW, &[earlier, over], &set(&["a"])), nothing(&["a"]));
    }
}
