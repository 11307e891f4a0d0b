//! What a job says of itself: phase, reason and one sentence. Decides nothing.

use crate::{
    fleet::{
        Fleet, generation,
        job::{GenerationRecord, Phase},
    },
    id::{JobUid, NodeName},
    period,
};

impl Fleet {
    pub(crate) fn say(&mut self, uid: &JobUid, phase: Phase, reason: &str, message: String) {
        if let Some(job) = self.jobs.get_mut(uid) {
            job.phase = phase;
            reason.clone_into(&mut job.reason);
            job.message = message;
        }
    }

    /// Phase, reason and sentence of a job with a current generation.
    pub(crate) fn describe(&mut self, uid: &JobUid) {
        let job = &self.jobs[uid];
        let Some(generation) = job.current.as_ref().filter(|_| job.ending.is_none()) else {
            return;
        };
        let (have, wanted) = (generation.members.len() as u32, job.replicas);
        if !generation.started {
            let phase = if job.restart_count == 0 && generation.number.0 == 1 {
                Phase::Forming
            } else {
                Phase::Recovering
            };
            let waits = generation::unready(&self.nodes, uid, generation);
            let stuck = job
                .retiring
                .iter()
                .filter(|g| !generation::is_inert(&self.nodes, g, job.spec.progress));
            let silent: Vec<&str> = stuck.flat_map(unproven).map(NodeName::as_str).collect();
            let (reason, message) = if let Some(message) = self.unkillable(uid) {
                ("Stopping", message)
            } else if !waits.is_empty() {
                let names: Vec<&str> = waits.iter().take(8).map(|node| node.as_str()).collect();
                (
                    "Preparing",
                    format!(
                        "{} of {have} nodes not ready yet: {}",
                        waits.len(),
                        names.join(", ")
                    ),
                )
            } else if let (Some(fence), false) = (job.spec.fence_after, silent.is_empty()) {
                let (nodes, fence) = (silent.join(", "), period::format(fence));
                (
                    "Fencing",
                    format!(
                        "waiting until the workers on {nodes} must have stopped by themselves (fenceAfter {fence})"
                    ),
                )
            } else if !silent.is_empty() {
                let nodes = silent.join(", ");
                let first = silent[0];
                (
                    "Unreachable",
                    format!(
                        "no proof that the workers on {nodes} are dead; bring it back, or, if it is gone for good: muster delete node {first}"
                    ),
                )
            } else {
                ("Preparing", "waiting for the store".to_owned())
            };
            return self.say(uid, phase, reason, message);
        }
        let expected = generation.proc_per_node;
        let unlaunched = || {
            let reports = generation::reports(&self.nodes, uid, generation);
            reports
                .filter(|(_, run)| !run.is_some_and(|run| run.ranks_started(expected)))
                .count()
        };
        let (phase, reason, message) = if let Some(why) =
            self.live.get(uid).and_then(|live| live.frozen.clone())
        {
            (
                Phase::Running,
                "MassLoss",
                format!("none of its nodes can be heard, and it is left as it is: {why}"),
            )
        } else if let Some(shortfall) = self.live.get(uid).and_then(|live| live.stranded.clone()) {
            (
                Phase::Running,
                "BelowMinimum",
                format!("a member is silent and there is no replacement: {shortfall}"),
            )
        } else if job.phase != Phase::Running && unlaunched() > 0 {
            (
                job.phase,
                "Launching",
                format!(
                    "the ranks of {} of {have} nodes have not been started yet",
                    unlaunched()
                ),
            )
        } else if let Some(first) = self
            .live
            .get(uid)
            .and_then(|live| live.prewarm_awaited.first())
        {
            let more = self.live[uid].prewarm_awaited.len() - 1;
            let others = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let message = format!(
                "{have} of {wanted} wanted nodes; {first}{others} gets ready to join, and nothing stops for that"
            );
            (Phase::Running, "Warming", message)
        } else if have < wanted {
            (
                Phase::Running,
                "BelowReplicas",
                format!("{have} of {wanted} wanted nodes"),
            )
        } else {
            (
                Phase::Running,
                "Running",
                format!("world {} on {have} nodes", generation.world_size()),
            )
        };
        self.say(uid, phase, reason, message);
    }
}

fn unproven(generation: &GenerationRecord) -> impl Iterator<Item = &NodeName> {
    generation
        .members
        .iter()
        .map(|member| &member.node)
        .filter(|node| !generation.has_stopped(node))
}
