//! Notices that the ranks of a job do not form the world that it asked for, and tells people once. It stops
//! nothing: a script may have its reasons.
//!
//! There are two signs. A node has seen ranks below a rank, which meet elsewhere: a launcher in the script.
//! Or a generation has run for a while, and no rank has come to its TCPStore. Then the job may train several
//! worlds that know nothing of each other, or its ranks do not use torch.distributed, or it prepares something
//! first. Steps tell the first from the last: they come after the ranks have met.
//!
//! A job of another framework has no world of torch, and one rank is one in any case.

use std::time::Duration;

use crate::{
    fleet::{
        generation,
        job::GenerationRecord,
        job_turn::{Facts, JobTurn},
        registry::Registry,
    },
    id::{JobUid, NodeName},
    run::{NestedWorld, RunPhase, RunReport},
    time::Timestamp,
};

/// How long ranks may take to come to the TCPStore before people are told, and how often to look again.
/// Imports from a network disk take half of it.
const MEET_WITHIN: Duration = Duration::from_secs(60);

/// Whether the ranks of a generation have come to its TCPStore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meeting {
    /// At least one has.
    Begun,
    /// The node that serves it does not tell, or not all ranks have been started.
    Unknown,
    /// None has, and they have time until this moment.
    Awaited(Timestamp),
    /// None has, for so long.
    Nobody {
        since: Timestamp,
        /// A rank has made a step.
        steps: bool,
    },
}

fn meeting(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    now: Timestamp,
) -> Meeting {
    let reports: Vec<(&NodeName, Option<&RunReport>)> =
        generation::reports(nodes, job, generation).collect();
    let mut since = Timestamp::default();
    let (mut torchruns, mut announced, mut steps) = (0, None, false);
    for (node, run) in reports {
        let Some(run) = run.filter(|run| run.phase == RunPhase::Running) else {
            return Meeting::Unknown;
        };
        if !run.ranks_started(generation.procs_on(node)) {
            return Meeting::Unknown;
        }
        if run.all_joined_at.is_some() || !run.joined_ranks.is_empty() {
            return Meeting::Begun;
        }
        // These announce themselves, too.
        torchruns += u32::from(["cold", "parked"].contains(&&*run.lane.name));
        announced = announced.or(run.world.announced);
        steps |= run.ranks.iter().any(|rank| rank.first_step.is_some());
        let started = run.ranks.iter().filter_map(|rank| rank.started_at).max();
        since = since.max(started.unwrap_or_default());
    }
    match announced {
        None => Meeting::Unknown,
        Some(announced) if announced > torchruns => Meeting::Begun,
        Some(_) if now < since + MEET_WITHIN => Meeting::Awaited(since + MEET_WITHIN),
        Some(_) => Meeting::Nobody { since, steps },
    }
}

/// The first world of a rank's own that any node has seen.
fn nested<'a>(
    nodes: &'a Registry,
    job: &JobUid,
    generation: &'a GenerationRecord,
) -> Option<(&'a NodeName, &'a NestedWorld)> {
    generation::reports(nodes, job, generation)
        .find_map(|(node, run)| Some((node, run?.world.nested.as_ref()?)))
}

impl JobTurn<'_> {
    /// Tells people if the ranks do not form the job's world, and looks again later where that may still
    /// show.
    pub(crate) fn notice_worlds(&mut self) {
        let job = &*self.job;
        let Some(generation) = job.generation_now() else {
            return;
        };
        if !has_a_world(self.facts(), generation) {
            return;
        }
        let (number, ranks, told) = (
            generation.number,
            generation.world_size(),
            job.told_of_world,
        );
        let meeting = meeting(self.nodes, self.uid, generation, self.now);
        let nested = nested(self.nodes, self.uid, generation).filter(|_| !told.nested);
        if let Some((node, world)) = nested {
            let (node, message) = (node.clone(), nested_message(node, world, ranks));
            self.job.told_of_world.nested = true;
            self.warn("NestedWorld", message)
                .in_generation(number)
                .on_node(&node);
        }
        match meeting {
            Meeting::Begun | Meeting::Unknown => {}
            Meeting::Awaited(until) => self.wake(until),
            Meeting::Nobody { .. } if told.apart => {}
            Meeting::Nobody { since, steps: true } => {
                let seconds = self.now.since(since).as_secs();
                let message = format!(
                    "generation {number} has made steps, and {seconds} s after its start none of its {ranks} ranks has joined the TCPStore: each rank, or \
                     each node, trains a world of its own (does the script call init_process_group, or does it start a launcher such as torchrun?). \
                     If they are not to meet, say framework: plain"
                );
                self.job.told_of_world.apart = true;
                self.warn("WorldNotFormed", message).in_generation(number);
            }
            Meeting::Nobody {
                since,
                steps: false,
            } => {
                // Steps alone do not wake a job.
                self.wake(self.now + MEET_WITHIN);
                if !told.unmet {
                    let seconds = self.now.since(since).as_secs();
                    let message = format!(
                        "no rank has joined: {seconds} s after the start of generation {number} none of its {ranks} ranks has come to the TCPStore. That is \
                         right for a script that prepares something first, or that does not use torch.distributed"
                    );
                    self.job.told_of_world.unmet = true;
                    self.note("NoRankHasJoined", message).in_generation(number);
                }
            }
        }
    }
}

/// How the ranks of a training generation differ from the world that the job asked for, for people.
pub(crate) fn other_worlds(facts: Facts<'_>, generation: &GenerationRecord) -> Option<String> {
    if !has_a_world(facts, generation) {
        return None;
    }
    if let Some((node, world)) = nested(facts.nodes, facts.uid, generation) {
        let size = world.world_size;
        let rank = world.rank;
        return Some(format!(
            "rank {rank} on {node} has started a world of its own, of {size}"
        ));
    }
    let nobody = matches!(
        meeting(facts.nodes, facts.uid, generation, facts.now),
        Meeting::Nobody { steps: true, .. }
    );
    nobody.then(|| "none of its ranks has joined the TCPStore".to_owned())
}

/// Whether the ranks of this generation should meet in one world of torch.
fn has_a_world(facts: Facts<'_>, generation: &GenerationRecord) -> bool {
    facts.job.spec.framework.is_torch()
        && generation.world_size() > 1
        && generation.started
        && generation.stopping.is_none()
        && generation.won.is_none()
}

fn nested_message(node: &NodeName, world: &NestedWorld, ranks: u32) -> String {
    let NestedWorld {
        rank,
        pid,
        launcher,
        world_size,
    } = world;
    let with = match launcher.as_str() {
        "" => String::new(),
        launcher => format!(" with {launcher}"),
    };
    format!(
        "rank {rank} on {node} has started ranks of its own{with} (process {pid}): they are a world of {world_size} beside the job's world of {ranks}, and \
         meet elsewhere. Muster starts the ranks itself: leave the launcher out of the script, and say with procPerNode how many ranks a node has. \
         If that is meant, say framework: plain"
    )
}
