//! The phase, the reason and the sentence that users see of a job. This file decides nothing.

use crate::{
    fleet::{
        ending, forced_ends, generation,
        job::{GenerationRecord, JobRecord, Reason, Stage, Why},
        job_turn::{Facts, JobTurn},
        live::LeftAsItIs,
        node_record::Cordon,
        registry::Node,
        shortage::Shortage,
        unhealthy, worlds,
    },
    id::NodeName,
    period,
    run::Leftover,
    spec::toleration,
};

/// What a job lacks that may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacks {
    Nothing,
    /// It waits for nodes.
    Minimum,
    /// It trains on fewer nodes than wanted.
    Replicas,
}

/// What is found of a generation, and the words for it.
pub(crate) struct Found {
    reason: Reason,
    message: String,
    /// What keeps it from making steps.
    why: Option<Why>,
    /// Its ranks have been started, or it is left as it is.
    launched: bool,
    lacks: Lacks,
}

impl Found {
    /// A generation that gets ready.
    fn forming(reason: Reason, message: String) -> Self {
        Self {
            reason,
            message,
            why: None,
            launched: false,
            lacks: Lacks::Nothing,
        }
    }

    /// A generation that trains.
    fn training(reason: Reason, message: String) -> Self {
        Self {
            launched: true,
            ..Self::forming(reason, message)
        }
    }

    fn because(self, why: Why) -> Self {
        Self {
            why: Some(why),
            ..self
        }
    }
}

/// How the generation of a job fares. `None`: it has none.
pub(crate) fn find(facts: Facts<'_>) -> Option<Found> {
    match facts.job.stage() {
        Stage::Forming(generation, _) => Some(while_forming(facts, generation)),
        Stage::Training(generation) => Some(while_training(facts, generation)),
        Stage::Waiting(_) | Stage::Ending(_) | Stage::Over(_) => None,
    }
}

/// Says what was found, and returns what the job lacks.
pub(crate) fn say(job: &mut JobRecord, found: Option<Found>) -> Lacks {
    let Some(found) = found else {
        return match job.stage() {
            Stage::Waiting(Some(Why::BelowMinimum | Why::Preempted)) => Lacks::Minimum,
            _ => Lacks::Nothing,
        };
    };
    if found.launched {
        job.note_launched();
    }
    job.found(found.why);
    job.say(found.reason, found.message);
    found.lacks
}

impl JobTurn<'_> {
    /// Tells why the job has too few nodes, when that becomes known and when it changes. What it is to begin
    /// with is in the event that it waits.
    pub(crate) fn tell_shortage(&mut self, lacks: Lacks) {
        match lacks {
            Lacks::Minimum => {}
            Lacks::Replicas => self.live.shortage = why_fewer(self.facts()).map(|(cause, _)| cause),
            Lacks::Nothing => {
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
}

/// Why a job that trains has fewer nodes than wanted, if that is known.
fn why_fewer(facts: Facts<'_>) -> Option<(Shortage, String)> {
    if let Some(limit) = facts.limited() {
        return Some((limit.shortage(), limit.to_string()));
    }
    let waits = facts.pods.why_waiting(facts.job, facts.nodes);
    let cordoned = || cordoned_for_it(facts).map(|why| (Shortage::NodesCordoned, why));
    match waits {
        Some((cause, why)) if !cause.is_usual() => match cordoned() {
            Some((_, cordoned)) => Some((cause, format!("{why}; {cordoned}"))),
            None => Some((cause, why)),
        },
        waits => cordoned().or(waits),
    }
}

/// The nodes that it had, or on which it failed, and that are cordoned now.
fn cordoned_for_it(facts: Facts<'_>) -> Option<String> {
    let job = facts.job;
    if toleration::tolerates_cordons(&job.spec.selection.tolerations) {
        return None;
    }
    let concerns = |node: &&Node| {
        let cordon = node.record.cordon.as_ref();
        cordon.is_some_and(|cordon| cordon.jobs.contains(&job.name))
            || job.nodes_used.contains(&node.record.name)
    };
    let mut all = facts.nodes.iter().filter_map(|node| {
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
fn while_forming(facts: Facts<'_>, generation: &GenerationRecord) -> Found {
    let (job, have) = (facts.job, generation.members.len());
    let waits = generation::unready(facts.nodes, facts.uid, generation);
    let stuck = job
        .retiring
        .iter()
        .filter(|g| !generation::is_inert(facts.nodes, g, job.spec.progress));
    let silent: Vec<&str> = stuck.flat_map(unproven).map(NodeName::as_str).collect();
    if let Some(message) = unhealthy::unkillable(facts.nodes, facts.job) {
        Found::forming(Reason::Stopping, message)
    } else if !waits.is_empty() {
        let names: Vec<&str> = waits.iter().take(8).map(|node| node.as_str()).collect();
        Found::forming(
            Reason::Preparing,
            format!(
                "{} of {have} nodes not ready yet: {}",
                waits.len(),
                names.join(", ")
            ),
        )
    } else if let (Some(fence), false) = (job.spec.fence_after, silent.is_empty()) {
        let (nodes, fence) = (silent.join(", "), period::format(fence));
        let message = format!(
            "waiting until the workers on {nodes} must have stopped by themselves (fenceAfter {fence})"
        );
        Found::forming(Reason::Fencing, message).because(Why::Fencing)
    } else if !silent.is_empty() {
        let nodes = silent.join(", ");
        let first = silent[0];
        let message = format!(
            "no proof that the workers on {nodes} are dead; bring it back, or, if it is gone for good: muster delete node {first}"
        );
        Found::forming(Reason::Unreachable, message).because(Why::Unreachable)
    } else {
        Found::forming(Reason::Preparing, "waiting for the TCPStore".to_owned())
    }
}

/// How a training generation is, and what the job lacks.
fn while_training(facts: Facts<'_>, generation: &GenerationRecord) -> Found {
    let job = facts.job;
    let (have, wanted) = (generation.size(), job.replicas);
    let counted_as = job.spec.counts();
    let on = counted(facts, generation);
    let unlaunched = || {
        let reports = generation::reports(facts.nodes, facts.uid, generation);
        reports
            .filter(|(node, run)| {
                !run.is_some_and(|run| run.ranks_started(generation.procs_on(node)))
            })
            .count()
    };
    let waits = || {
        let waits = why_fewer(facts);
        waits.map(|(_, why)| format!("; {why}")).unwrap_or_default()
    };
    let later = || {
        let later = facts.live.later.as_ref();
        later.map(|later| format!("; {later}")).unwrap_or_default()
    };
    let apart = || {
        let other = worlds::other_worlds(facts, generation);
        other.map(|how| format!("; but {how}")).unwrap_or_default()
    };
    if let Some(won) = &generation.won {
        let message = format!(
            "{} ended with exit code 0, and the other members end; {}",
            ending::winner(job, won),
            ending::rule_name(job, won.rule)
        );
        return Found::training(Reason::Running, message);
    }
    let left = facts.live.condition.left();
    if let Some(LeftAsItIs::Frozen(why)) = left {
        let message = format!("none of its nodes can be heard, and it is left as it is: {why}");
        Found::training(Reason::MassLoss, message)
    } else if let Some(LeftAsItIs::Stranded(shortfall)) = left {
        let message = format!("a member is silent and there is no replacement: {shortfall}");
        Found::training(Reason::BelowMinimum, message).because(Why::Stranded)
    } else if matches!(left, Some(LeftAsItIs::SomeAreBack)) {
        let message = format!(
            "world {} on {on}; members were silent together, and the job waits for those that are still silent",
            generation.world_size()
        );
        Found::training(Reason::Running, message)
    } else if !generation.launched && unlaunched() > 0 {
        let message = format!(
            "the ranks of {} of {} nodes have not been started yet",
            unlaunched(),
            generation.members.len()
        );
        Found::forming(Reason::Launching, message)
    } else if let Some(first) = facts.live.prewarm_awaited.first() {
        let more = facts.live.prewarm_awaited.len() - 1;
        let others = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let message = format!(
            "{have} of {wanted} wanted {counted_as}; {first}{others} gets ready to join, and nothing stops for that"
        );
        Found::training(Reason::Prewarming, message)
    } else if let Some(left) = left_behind(facts, generation) {
        let message = format!("every rank ended with exit code 0; {left}");
        Found::training(Reason::Running, message)
    } else if let Some(ended) = &facts.live.ends {
        let message = format!(
            "{have} {counted_as}, and {wanted} wanted; it keeps them to the end, because {ended} has ended with exit code 0"
        );
        Found::training(Reason::Running, message)
    } else if have < wanted {
        let message = format!(
            "{have} of {wanted} wanted {counted_as}{}{}{}",
            waits(),
            later(),
            apart()
        );
        Found {
            lacks: Lacks::Replicas,
            ..Found::training(Reason::BelowReplicas, message)
        }
    } else if let Some(shortfall) = &facts.live.cannot_shrink {
        let message = format!(
            "{have} {counted_as}, and {wanted} wanted; it keeps them until so many can be had: {shortfall}"
        );
        Found::training(Reason::Running, message)
    } else {
        let world = generation.world_size();
        let message = format!("world {world} on {on}{}{}", later(), apart());
        Found::training(Reason::Running, message)
    }
}

/// What still lives of a generation whose ranks have ended well, for people.
fn left_behind(facts: Facts<'_>, generation: &GenerationRecord) -> Option<String> {
    let reports = generation::reports(facts.nodes, facts.uid, generation);
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
pub(crate) fn counted(facts: Facts<'_>, generation: &GenerationRecord) -> String {
    let nodes = generation.members.len();
    match facts.job.spec.packs() {
        true => format!("{nodes} nodes with {} members", generation.size()),
        false => format!("{nodes} nodes"),
    }
}

fn unproven(generation: &GenerationRecord) -> impl Iterator<Item = &NodeName> {
    generation
        .members
        .iter()
        .map(|member| &member.node)
        .filter(|node| !generation.has_stopped(node))
}
