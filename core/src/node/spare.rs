//! For which jobs this node keeps a spare: a parked launcher for the next generation, beside the running one.
//!
//! A spare is prepared once the running generation makes steps, so that it never slows a start, and lives for as long as the job has
//! anything on this node. What stands in between generations keeps its spare: that is the moment it is for.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    id::JobUid,
    node::lane::Lane,
    run::{RunId, RunPhase, RunReport},
    time::Timestamp,
};

/// A script that shows no steps counts as training this long after its ranks have started: an import takes 2 to 5 s here.
pub const STEPLESS: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Runs whose jobs need a spare now.
    pub prepare: Vec<RunId>,
    /// Jobs whose spare is of no use any more.
    pub end: Vec<JobUid>,
    /// When to ask again if nothing changes before.
    pub look_again: Option<Timestamp>,
}

/// `runs`: all this node holds, with their lanes. `spares`: jobs that have one or are about to.
pub fn plan(now: Timestamp, runs: &[(RunReport, Lane)], spares: &BTreeSet<JobUid>) -> Plan {
    let mut plan = Plan::default();
    let here: BTreeSet<&JobUid> = runs.iter().filter(|(_, lane)| *lane != Lane::Cold).map(|(run, _)| &run.run.job).collect();
    plan.end = spares.iter().filter(|job| !here.contains(job)).cloned().collect();
    for job in here.into_iter().filter(|job| !spares.contains(job)) {
        let newest = runs.iter().filter(|(run, _)| run.run.job == *job).max_by_key(|(run, _)| run.run.generation);
        let Some((run, lane)) = newest else { continue };
        if *lane == Lane::Cold || run.phase != RunPhase::Running || run.ranks.is_empty() {
            continue;
        }
        if run.ranks.iter().any(|rank| rank.exit.is_some() || rank.started_at.is_none()) {
            continue;
        }
        // In a world where only rank 0 prints, the others never show a step: one that does speaks for its node.
        if run.ranks.iter().any(|rank| rank.first_step_at.is_some()) {
            plan.prepare.push(run.run.clone());
            continue;
        }
        let started = run.ranks.iter().filter_map(|rank| rank.started_at).max().unwrap_or(now);
        let due = Timestamp(started.0.saturating_add(STEPLESS.as_micros() as u64));
        if due <= now {
            plan.prepare.push(run.run.clone());
        } else {
            plan.look_again = Some(plan.look_again.map_or(due, |at| at.min(due)));
        }
    }
    plan
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
        let id = RunId { job: JobUid::from(job), generation: Generation(generation) };
        let rank = RankReport {
            rank: 0,
            local_rank: 0,
            pid: 7,
            started_at: Some(Timestamp(1_000_000)),
            exit: None,
            exited_at: None,
            first_error: None,
            tail: Vec::new(),
            first_step: None,
            first_step_at: stepped.then_some(Timestamp(2_000_000)),
            last_step: None,
            last_step_at: None,
        };
        (RunReport { phase, ranks: vec![rank], ..RunReport::preparing(id, Term(1)) }, Lane::Fork)
    }

    fn set(jobs: &[&str]) -> BTreeSet<JobUid> {
        jobs.iter().map(|job| JobUid::from(*job)).collect()
    }

    const NOW: Timestamp = Timestamp(3_000_000);

    #[test]
    fn a_spare_waits_for_steps() {
        let stepping = || [run("a", 1, RunPhase::Running, true)];
        let id = stepping()[0].0.run.clone();
        assert_eq!(plan(NOW, &stepping(), &set(&[])).prepare, vec![id.clone()]);
        assert_eq!(plan(NOW, &stepping(), &set(&["a"])), Plan::default(), "one is enough");
        let silent = [run("a", 1, RunPhase::Running, false)];
        let due = Timestamp(6_000_000);
        assert_eq!(plan(NOW, &silent, &set(&[])), Plan { look_again: Some(due), ..Plan::default() });
        assert_eq!(plan(due, &silent, &set(&[])).prepare, [id]);
    }

    #[test]
    fn never_while_a_generation_forms_or_falls() {
        let forming = [run("a", 1, RunPhase::Dead, true), run("a", 2, RunPhase::Ready, false)];
        assert_eq!(plan(NOW, &forming, &set(&[])), Plan::default());
        let mut failed = run("a", 1, RunPhase::Running, true);
        failed.0.ranks[0].exit = Some(Exit::Code(1));
        assert_eq!(plan(NOW, &[failed], &set(&[])), Plan::default());
        let mut cold = run("a", 1, RunPhase::Running, true);
        cold.1 = Lane::Cold;
        assert_eq!(plan(NOW, &[cold], &set(&[])), Plan::default());
    }

    #[test]
    fn it_lives_as_long_as_its_job_is_here() {
        let between = [run("a", 1, RunPhase::Dead, true)];
        assert_eq!(plan(NOW, &between, &set(&["a"])), Plan::default());
        assert_eq!(plan(NOW, &[], &set(&["a"])).end, [JobUid::from("a")]);
    }
}
