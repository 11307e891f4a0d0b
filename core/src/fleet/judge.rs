//! Owns the judgement of the current generation: is it done, sound, doubted or broken? It never
//! charges a break (`broken`) and never ends a job (`ending`): it reads, and `apply` acts on the [`Judgement`].
//!
//! All evidence of one burst is judged together. That happens one coalesce window after the first
//! of it, or as soon as the evidence is conclusive. Silence alone is judged last and most
//! carefully: it may be the network's or the coordinator's own.

mod success;

use std::time::Duration;

use crate::{
    fleet::{
        blame::{self, Evidence, HEARTBEAT_DELAY},
        gather,
        generation::{self, Completion},
        job::{GenerationRecord, Stage, Won},
        job_turn::Facts,
        lenders::{self, Survival},
        live::{Condition, Doubt},
        node_mix,
        placement::Placement,
    },
    run::{DueTo, RunPhase, RunReport},
    time::Timestamp,
};

/// How long torchrun processes may wait for each other after every rank ended well. Then Muster
/// ends them: their own exit barrier would wait 300 s for a node that is gone.
const EXIT_BARRIER: Duration = Duration::from_secs(5);

/// How soon to look again whether members or lenders have been heard.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long a first refusal waits for the words of the other members. They ask their interpreter too, which
/// takes well below a second from a disk.
const ANSWERS: Duration = Duration::from_secs(5);

/// What becomes of the current generation.
#[derive(Debug)]
pub(crate) enum Judgement {
    /// There is none, or its job is ending.
    Nothing,
    /// Every rank ended well.
    Done,
    /// Every rank had ended well by then. Some torchrun processes still wait for each other, or
    /// something lives that ranks have left behind. They have time until a moment.
    RanksDone {
        since: Timestamp,
        until: Timestamp,
    },
    /// A rule says that this member's success is the job's.
    Wins(Won),
    /// The launcher ended well. Some lender has not been heard since, so the success does not count
    /// yet.
    LendersUnconfirmed(Timestamp),
    /// A rule has already decided. The other members have time until this moment.
    Won(Timestamp),
    /// Their time is over, or all of them have ended.
    WonAndOver(Won),
    /// No evidence breaks it. A member may be Suspect.
    Sound,
    /// There is evidence, and better evidence may come until this moment.
    Doubted(Timestamp),
    /// None of its nodes can be heard, nor can many others.
    Frozen {
        /// How many of its members are silent.
        silent: usize,
        /// How many nodes are silent in all.
        sentence: String,
    },
    /// Members are only silent, and placement finds too few nodes to replace them. If they come back,
    /// training continues where it was.
    Stranded {
        /// How many they are.
        silent: usize,
        /// The reason why placement finds too few nodes.
        shortfall: String,
    },
    /// Members were silent together, and the first is back. The others have until this moment to
    /// come back.
    SomeAreBack(Timestamp),
    Broken(Vec<Evidence>),
}

/// The doubt about the generation. If there is none yet, it begins now.
pub(crate) fn doubt(facts: Facts<'_>) -> Doubt {
    let doubt = facts.live.condition.doubt().cloned();
    doubt.unwrap_or_else(|| Doubt::new(facts.now))
}

/// When the first evidence against the generation was seen, if it has any.
fn doubted_since(facts: Facts<'_>) -> Timestamp {
    let doubt = facts.live.condition.doubt();
    doubt.map_or(facts.now, |doubt| doubt.since)
}

/// The generation that is judged, unless there is none or its job is ending.
pub(crate) fn judged(facts: Facts<'_>) -> Option<&GenerationRecord> {
    facts.job.generation_now()
}

/// Finds out whether the current generation is done or broken.
pub(crate) fn judge(facts: Facts<'_>) -> Judgement {
    let Some(generation) = judged(facts) else {
        return Judgement::Nothing;
    };
    if let Some(end) = good_end(facts, generation) {
        return end;
    }
    let evidence = evidence(facts, generation);
    if !evidence.iter().any(Evidence::breaks) {
        return Judgement::Sound;
    }
    None.or_else(|| awaits_more(facts, generation, &evidence))
        .or_else(|| awaits_answers(facts, generation, &evidence))
        .or_else(|| awaits_culprit(facts, generation, &evidence))
        .or_else(|| awaits_own_end(facts, generation, &evidence))
        .or_else(|| frozen(facts, generation, &evidence))
        .or_else(|| spared(facts, &evidence))
        .unwrap_or(Judgement::Broken(evidence))
}

/// When to judge a generation that is being formed: when its time to get ready is over.
pub(crate) fn due(facts: Facts<'_>) -> Option<Timestamp> {
    let Stage::Forming(generation, _) = facts.job.stage() else {
        return None;
    };
    let deadline = deadline(facts, generation);
    (facts.now <= deadline).then(|| deadline + Duration::from_millis(1))
}

fn deadline(facts: Facts<'_>, generation: &GenerationRecord) -> Timestamp {
    let in_image = facts.job.spec.image.is_some();
    generation::ready_deadline(generation, in_image, facts.presence.since, facts.policy)
}

/// The judgement of a generation that has ended well or by rule, or that waits for its lenders.
/// `None`: it has no good end yet.
fn good_end(facts: Facts<'_>, generation: &GenerationRecord) -> Option<Judgement> {
    if !generation.started {
        return None;
    }
    let completion = generation::completion(facts.nodes, facts.uid, generation);
    if completion != Completion::Training {
        match lenders::survival(
            facts.nodes,
            facts.uid,
            generation,
            &evidence(facts, generation),
        ) {
            Survival::Survived => {}
            Survival::Failed => return None,
            Survival::Unconfirmed => {
                return Some(Judgement::LendersUnconfirmed(ranks_done(facts)));
            }
        }
    }
    match completion {
        Completion::Training => success::win(facts, generation),
        Completion::Done => Some(Judgement::Done),
        Completion::RanksDone => {
            let since = ranks_done(facts);
            let here = |name| facts.nodes.get(name).is_some_and(|node| node.is_ready());
            let all_here = generation.members.iter().all(|m| here(&m.node));
            let until = since + time_to_end(facts, generation);
            let over = !all_here || facts.now >= until;
            Some(if over {
                Judgement::Done
            } else {
                Judgement::RanksDone { since, until }
            })
        }
    }
}

/// How long a generation whose ranks have ended well may take until nothing of it lives. Its
/// nodes end what ranks have left behind, with the job's grace.
fn time_to_end(facts: Facts<'_>, generation: &GenerationRecord) -> Duration {
    let mut reports = generation::reports(facts.nodes, facts.uid, generation);
    let leaves = |run: &RunReport| !run.leftovers.is_empty() && !run.phase.is_over();
    match reports.any(|(_, run)| run.is_some_and(leaves)) {
        true => EXIT_BARRIER + facts.job.spec.stop_grace_period,
        false => EXIT_BARRIER,
    }
}

/// Since when the ranks are known to have ended well.
fn ranks_done(facts: Facts<'_>) -> Timestamp {
    match facts.live.condition {
        Condition::RanksDone { since } => since,
        _ => facts.now,
    }
}

pub(crate) fn evidence(facts: Facts<'_>, generation: &GenerationRecord) -> Vec<Evidence> {
    let deadline = deadline(facts, generation);
    let mut evidence = gather::evidence(facts.nodes, facts.uid, generation, facts.now, deadline);
    let receipt = facts.job.receipt_of(generation.number);
    let launched = receipt.is_some_and(|incident| incident.launched_at.is_some());
    if launched {
        evidence.iter_mut().for_each(Evidence::had_launched);
    }
    evidence.extend(node_mix::mismatched(facts.nodes, facts.job, facts.now));
    name_members(facts, generation, &mut evidence);
    evidence
}

/// Names the members of ranks that have failed on nodes with several.
fn name_members(facts: Facts<'_>, generation: &GenerationRecord, evidence: &mut [Evidence]) {
    for found in evidence {
        if let Evidence::RankExit {
            node, rank, member, ..
        }
        | Evidence::EndedEarly {
            node, rank, member, ..
        } = found
            && generation.seats_on(node).len() > 1
        {
            let number = generation.number_of(*rank);
            *member = number.and_then(|number| facts.job.spec.member(&generation.layout, number));
        }
    }
}

/// `Doubted`, if more evidence of the same burst may come.
fn awaits_more(
    facts: Facts<'_>,
    generation: &GenerationRecord,
    evidence: &[Evidence],
) -> Option<Judgement> {
    let until = doubted_since(facts) + facts.policy.coalesce;
    // MPI kills all ranks when one has failed, so a killed one is not necessarily the first.
    let conclusive = !generation.layout.has_slots() && blame::is_conclusive(evidence);
    let awaits = facts.now < until && !conclusive;
    awaits.then_some(Judgement::Doubted(until))
}

/// `Doubted`, if nodes say that what the job names is not there, and others have not said yet whether
/// they find it. If none does, the job cannot start.
fn awaits_answers(
    facts: Facts<'_>,
    generation: &GenerationRecord,
    evidence: &[Evidence],
) -> Option<Judgement> {
    let until = doubted_since(facts) + ANSWERS;
    let of_job = |found: &Evidence| {
        let is_missing = |due_to: &DueTo| matches!(due_to, DueTo::Job | DueTo::Account);
        matches!(found, Evidence::StartRefused { due_to, .. } if is_missing(due_to))
    };
    let mut reports = generation::reports(facts.nodes, facts.uid, generation);
    let unanswered =
        |run: Option<&RunReport>| run.is_none_or(|run| run.phase == RunPhase::Preparing);
    // A job that was started before had what it needs.
    let awaits = facts.job.first_started.is_none()
        && facts.now < until
        && evidence.iter().all(of_job)
        && reports.any(|(_, run)| unanswered(run));
    awaits.then_some(Judgement::Doubted(until))
}

/// `Doubted`, if all failures known so far may follow from that of a member that has not been
/// heard since.
fn awaits_culprit(
    facts: Facts<'_>,
    generation: &GenerationRecord,
    evidence: &[Evidence],
) -> Option<Judgement> {
    // MPI kills all ranks when one has failed, and on a busy machine the first one is not the first to
    // be reported.
    let is_of_mpi = generation.layout.has_slots()
        && evidence
            .iter()
            .any(|e| matches!(e, Evidence::RankExit { .. }));
    let lacks = blame::lacks_a_culprit(evidence);
    if !is_of_mpi && !lacks {
        return None;
    }
    let doubted = doubted_since(facts);
    let heartbeat = facts.nodes.heartbeat(facts.policy);
    let until = match (lacks, facts.is_listening()) {
        (true, true) => facts.presence.listen_until,
        (true, false) => doubted + heartbeat * (facts.policy.suspect_missed + 1),
        // Something may explain it all already.
        (false, _) => doubted + heartbeat + HEARTBEAT_DELAY,
    };
    let heard_after = doubted + HEARTBEAT_DELAY;
    let awaits = facts.now < until
        && gather::may_have_a_culprit(facts.nodes, generation, evidence, heard_after);
    awaits.then(|| Judgement::Doubted(until.min(facts.now + LOOK_AGAIN)))
}

/// `Doubted`, if the ranks that ended speak only of others, and one still runs. That one may have left
/// the process group first and be about to end with the error that explains all.
fn awaits_own_end(
    facts: Facts<'_>,
    generation: &GenerationRecord,
    evidence: &[Evidence],
) -> Option<Judgement> {
    // A coordinator that stood still has not heard what was said meanwhile.
    let until = match facts.is_listening() {
        true => facts.presence.listen_until,
        false => doubted_since(facts) + facts.policy.own_end,
    };
    // MPI's own programs end all ranks when one has failed.
    let awaits = !generation.layout.has_slots()
        && facts.now < until
        && blame::lacks_a_culprit(evidence)
        && gather::may_still_end(facts.nodes, facts.uid, generation, evidence);
    awaits.then_some(Judgement::Doubted(until))
}

/// `Frozen`, if no member can be heard while the brake for mass losses is on.
fn frozen(
    facts: Facts<'_>,
    generation: &GenerationRecord,
    evidence: &[Evidence],
) -> Option<Judgement> {
    let brake = facts.brake?;
    let frozen = evidence.iter().all(Evidence::is_silence)
        && generation::none_is_ready(facts.nodes, generation);
    frozen.then(|| Judgement::Frozen {
        silent: evidence.iter().filter(|e| is_silent(e)).count(),
        sentence: brake.sentence(facts.policy),
    })
}

/// `Stranded`: members are only silent, and too few nodes are left for a new generation.
/// `SomeAreBack`: some are back, and report at most that they lost the others.
fn spared(facts: Facts<'_>, evidence: &[Evidence]) -> Option<Judgement> {
    let silent = evidence.iter().filter(|e| is_silent(e)).count();
    if !evidence.iter().all(|e| is_silent(e) || e.is_victim()) {
        return None;
    }
    if silent == evidence.len()
        && let Placement::Short(shortfall) = facts.place()
    {
        return Some(Judgement::Stranded {
            silent,
            shortfall: shortfall.to_string(),
        });
    }
    let shared = doubt(facts).shared_silence;
    if silent == 0 || silent >= shared.silent_most {
        return None;
    }
    // While many are silent, those that come back come at different times.
    let others_come = match facts.brake {
        Some(_) => facts.policy.mass_loss_window,
        None => facts.policy.listen_for(facts.nodes.len()),
    };
    let until = shared.until.unwrap_or(facts.now + others_come);
    // When so many are back that the brake goes off sooner, those of this job have had their time, too.
    let brake_off = facts.brake.and_then(|brake| brake.enough_back);
    let until = brake_off.map_or(until, |off| off.min(until));
    (facts.now < until).then_some(Judgement::SomeAreBack(until))
}

/// Whether this says that a member's node is not heard.
fn is_silent(evidence: &Evidence) -> bool {
    matches!(evidence, Evidence::NodeSilent { .. })
}
