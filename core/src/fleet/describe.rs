//! The phase, the reason and the sentence that users see of a job. This file decides nothing.

use crate::{
    fleet::{
        forced_ends, generation,
        job::{GenerationRecord, JobRecord, Phase, Reason},
        job_turn::JobTurn,
        live::LeftAsItIs,
        node_record::Cordon,
        registry::Node,
        shortage::Shortage,
        unhealthy,
    },
    id::NodeName,
    period,
    run::Leftover,
};

impl JobRecord {
    pub(crate) fn say(&mut self, phase: Phase, reason: Reason, message: String) {
        self.phase = phase;
        self.reason = reason;
        self.message = message;
    }
}

impl JobTurn<'_> {
    /// Phase, reason and sentence of a job with a current generation.
    pub(crate) fn describe(&mut self) {
        let job = &*self.job;
        let Some(generation) = job.current.as_ref().filter(|_| job.ending.is_none()) else {
            return;
        };
        let (phase, reason, message) = if generation.started {
            self.while_training(generation)
        } else {
            self.while_forming(generation)
        };
        self.job.say(phase, reason, message);
    }

    /// Tells why the job has too few nodes, when that becomes known and when it changes. What it is to begin
    /// with is in the event that it waits.
    pub(crate) fn tell_shortage(&mut self) {
        match self.job.reason {
            Reason::BelowMinimum if self.job.phase == Phase::Pending => {}
            Reason::BelowReplicas => self.live.shortage = self.why_fewer().map(|(cause, _)| cause),
            _ => {
                (self.live.shortage, self.live.shortage_told) = (None, None);
                return;
            }
        }
        let cause = self.live.shortage.filter(|cause| !cause.is_usual());
        let Some(cause) = cause.filter(|cause| self.live.shortage_told != Some(*cause)) else {
            return;
        };
        self.live.shortage_told = Some(cause);
        self.warn(&cause.to_string(), self.job.message.clone());
    }

    /// Why a job that trains has fewer nodes than wanted, if that is known.
    fn why_fewer(&self) -> Option<(Shortage, String)> {
        let waits = self.pods.why_waiting(self.job, self.nodes);
        let cordoned = || {
            self.cordoned_for_it()
                .map(|why| (Shortage::NodesCordoned, why))
        };
        match waits {
            Some((cause, why)) if !cause.is_usual() => match cordoned() {
                Some((_, cordoned)) => Some((cause, format!("{why}; {cordoned}"))),
                None => Some((cause, why)),
            },
            waits => cordoned().or(waits),
        }
    }

    /// The nodes that it had, or on which it failed, and that are cordoned now.
    fn cordoned_for_it(&self) -> Option<String> {
        let job = &*self.job;
        let concerns = |node: &&Node| {
            let cordon = node.record.cordon.as_ref();
            cordon.is_some_and(|cordon| cordon.jobs.contains(&job.name))
                || job.nodes_used.contains(&node.record.name)
        };
        let mut all = self.nodes.iter().filter_map(|node| {
            let cordon = node.record.cordon.as_ref()?;
            concerns(&node).then_some((&node.record.name, cordon))
        });
        let (name, cordon) = all.next()?;
        let others = match all.count() {
            0 => String::new(),
            more => format!("; {more} more are cordoned"),
        };
        let Cordon { by, reason, .. } = cordon;
        Some(format!("{name} is cordoned by {by}: {reason}{others}"))
    }

    /// What the generation still waits for before it can start.
    fn while_forming(&self, generation: &GenerationRecord) -> (Phase, Reason, String) {
        let (job, have) = (&*self.job, generation.members.len());
        let phase = if job.restart_count == 0 && generation.number.0 == 1 {
            Phase::Forming
        } else {
            Phase::Recovering
        };
        let waits = generation::unready(self.nodes, self.uid, generation);
        let stuck = job
            .retiring
            .iter()
            .filter(|g| !generation::is_inert(self.nodes, g, job.spec.progress));
        let silent: Vec<&str> = stuck.flat_map(unproven).map(NodeName::as_str).collect();
        let (reason, message) = if let Some(message) = unhealthy::unkillable(self.nodes, self.job) {
            (Reason::Stopping, message)
        } else if !waits.is_empty() {
            let names: Vec<&str> = waits.iter().take(8).map(|node| node.as_str()).collect();
            (
                Reason::Preparing,
                format!(
                    "{} of {have} nodes not ready yet: {}",
                    waits.len(),
                    names.join(", ")
                ),
            )
        } else if let (Some(fence), false) = (job.spec.fence_after, silent.is_empty()) {
            let (nodes, fence) = (silent.join(", "), period::format(fence));
            (
                Reason::Fencing,
                format!(
                    "waiting until the workers on {nodes} must have stopped by themselves (fenceAfter {fence})"
                ),
            )
        } else if !silent.is_empty() {
            let nodes = silent.join(", ");
            let first = silent[0];
            (
                Reason::Unreachable,
                format!(
                    "no proof that the workers on {nodes} are dead; bring it back, or, if it is gone for good: muster delete node {first}"
                ),
            )
        } else {
            (Reason::Preparing, "waiting for the TCPStore".to_owned())
        };
        (phase, reason, message)
    }

    /// How a training generation is, and what the job lacks.
    fn while_training(&self, generation: &GenerationRecord) -> (Phase, Reason, String) {
        let job = &*self.job;
        let (have, wanted) = (generation.size(), job.replicas);
        let counted = job.spec.counts();
        let on = self.counted(generation);
        let unlaunched = || {
            let reports = generation::reports(self.nodes, self.uid, generation);
            reports
                .filter(|(node, run)| {
                    !run.is_some_and(|run| run.ranks_started(generation.procs_on(node)))
                })
                .count()
        };
        let waits = || {
            let waits = self.why_fewer();
            waits.map(|(_, why)| format!("; {why}")).unwrap_or_default()
        };
        let apart = || {
            let other = self.other_worlds(generation);
            other.map(|how| format!("; but {how}")).unwrap_or_default()
        };
        if let Some(won) = &generation.won {
            let message = format!(
                "{} ended with exit code 0, and the other members end; {}",
                self.winner(won),
                self.rule_name(won.rule)
            );
            return (Phase::Running, Reason::Running, message);
        }
        let left = self.live.condition.left();
        if let Some(LeftAsItIs::Frozen(why)) = left {
            (
                Phase::Running,
                Reason::MassLoss,
                format!("none of its nodes can be heard, and it is left as it is: {why}"),
            )
        } else if let Some(LeftAsItIs::Stranded(shortfall)) = left {
            (
                Phase::Running,
                Reason::BelowMinimum,
                format!("a member is silent and there is no replacement: {shortfall}"),
            )
        } else if matches!(left, Some(LeftAsItIs::SomeAreBack)) {
            let message = format!(
                "world {} on {on}; members were silent together, and the job waits for those that are still silent",
                generation.world_size()
            );
            (Phase::Running, Reason::Running, message)
        } else if job.phase != Phase::Running && unlaunched() > 0 {
            (
                job.phase,
                Reason::Launching,
                format!(
                    "the ranks of {} of {} nodes have not been started yet",
                    unlaunched(),
                    generation.members.len()
                ),
            )
        } else if let Some(first) = self.live.prewarm_awaited.first() {
            let more = self.live.prewarm_awaited.len() - 1;
            let others = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let message = format!(
                "{have} of {wanted} wanted {counted}; {first}{others} gets ready to join, and nothing stops for that"
            );
            (Phase::Running, Reason::Prewarming, message)
        } else if let Some(left) = self.left_behind(generation) {
            let message = format!("every rank ended with exit code 0; {left}");
            (Phase::Running, Reason::Running, message)
        } else if let Some(ended) = &self.live.ends {
            let message = format!(
                "{have} {counted}, and {wanted} wanted; it keeps them to the end, because {ended} has ended with exit code 0"
            );
            (Phase::Running, Reason::Running, message)
        } else if have < wanted {
            (
                Phase::Running,
                Reason::BelowReplicas,
                format!("{have} of {wanted} wanted {counted}{}{}", waits(), apart()),
            )
        } else if let Some(shortfall) = &self.live.cannot_shrink {
            let message = format!(
                "{have} {counted}, and {wanted} wanted; it keeps them until so many can be had: {shortfall}"
            );
            (Phase::Running, Reason::Running, message)
        } else {
            (
                Phase::Running,
                Reason::Running,
                format!("world {} on {on}{}", generation.world_size(), apart()),
            )
        }
    }

    /// What still lives of a generation whose ranks have ended well, for people.
    fn left_behind(&self, generation: &GenerationRecord) -> Option<String> {
        let reports = generation::reports(self.nodes, self.uid, generation);
        let mut waits = reports.filter_map(|(node, run)| {
            let run = run.filter(|run| !run.phase.is_over() && !run.leftovers.is_empty())?;
            let left: Vec<&Leftover> = run.leftovers.iter().collect();
            Some(format!("{} on {node}", forced_ends::names(&left)))
        });
        let first = waits.next()?;
        let more = match waits.count() {
            0 => String::new(),
            count => format!(", and for processes on {count} more nodes"),
        };
        Some(format!(
            "waiting for what they have left behind: {first}{more}"
        ))
    }

    /// Where a generation is, for people: `4 nodes`, or `2 nodes with 8 members`.
    pub(crate) fn counted(&self, generation: &GenerationRecord) -> String {
        let nodes = generation.members.len();
        match self.job.spec.packs() {
            true => format!("{nodes} nodes with {} members", generation.size()),
            false => format!("{nodes} nodes"),
        }
    }
}

fn unproven(generation: &GenerationRecord) -> impl Iterator<Item = &NodeName> {
    generation
        .members
        .iter()
        .map(|member| &member.node)
        .filter(|node| !generation.has_stopped(node))
}
