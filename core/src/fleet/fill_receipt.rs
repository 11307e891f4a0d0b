//! Fills in a receipt as things happen: when the previous generation had stopped, and when the new
//! ranks were started, found each other and made a step.

use std::collections::BTreeSet;

use crate::{
    fleet::{gather, generation, job_turn::JobTurn},
    run::RunReport,
    time::Timestamp,
};

impl JobTurn<'_> {
    /// Fills in what has happened since the last turn in the receipt of the current generation.
    pub(crate) fn fill_receipt(&mut self) {
        let job = &*self.job;
        let Some(generation) = job.current.as_ref() else {
            return;
        };
        let Some(incident) = job
            .incidents
            .last()
            .filter(|i| i.to == Some(generation.number))
        else {
            return;
        };
        if !incident.restarted_ranks.is_empty() {
            return self.fill_restart();
        }
        let mut filled = incident.clone();
        if !job.retiring.is_empty()
            && !job
                .retiring
                .iter()
                .any(|g| generation::awaited(self.nodes, g))
        {
            filled.stopped_at.get_or_insert(self.now);
        }
        // If a culprit is known, other ranks may still fall because of it, after the judgement and
        // before they are stopped.
        if let Some(from) = incident
            .from
            .filter(|_| incident.culprit.is_some() && incident.launched_at.is_none())
            && let Some(fell) = job
                .retiring
                .iter()
                .find(|generation| generation.number == from)
        {
            let known: BTreeSet<&String> = incident
                .culprit
                .iter()
                .chain(&incident.collateral)
                .collect();
            let fell = gather::ranks_that_lost_peers(self.nodes, self.uid, fell);
            filled
                .collateral
                .extend(fell.into_iter().filter(|name| !known.contains(name)));
        }
        if generation.started {
            if filled.launched_at.is_none() {
                let started =
                    |run: &RunReport| run.ranks.iter().filter_map(|rank| rank.started_at).min();
                let launched: Option<Vec<Timestamp>> =
                    generation::reports(self.nodes, self.uid, generation)
                        .map(|(_, run)| run.and_then(started))
                        .collect();
                filled.launched_at = launched.and_then(|all| all.into_iter().max());
            }
            let joined =
                generation::report(self.nodes, self.uid, generation, &generation.store_host)
                    .and_then(|run| run.all_joined_at);
            filled.joined_at = filled.joined_at.or(joined);
            if filled.first_step_at.is_none()
                && let Some((at, step)) = generation::steps(self.nodes, self.uid, generation).first
            {
                (filled.first_step_at, filled.first_step_after) = (Some(at), Some(step));
            }
        }
        if filled != *incident
            && let Some(last) = self.job.incidents.last_mut()
        {
            *last = filled;
        }
    }

    /// Fills in when the last of the ranks was started that are started again alone.
    fn fill_restart(&mut self) {
        let job = &*self.job;
        let (Some(generation), Some(incident)) = (&job.current, job.incidents.last()) else {
            return;
        };
        let started = |rank: &u32| {
            let run =
                generation::report(self.nodes, self.uid, generation, generation.node_of(*rank)?)?;
            let restarts = generation.member_restarts.get(rank)?;
            let report = run.ranks.iter().find(|report| report.rank == *rank)?;
            let newest = report.attempt >= restarts.attempt && restarts.due.is_none();
            report.started_at.filter(|_| newest)
        };
        let all: Option<Vec<Timestamp>> = incident.restarted_ranks.iter().map(started).collect();
        let launched = all.and_then(|all| all.into_iter().max());
        if let Some(incident) = self.job.incidents.last_mut() {
            incident.launched_at = incident.launched_at.or(launched);
        }
    }
}
