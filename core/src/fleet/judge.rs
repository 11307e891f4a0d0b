//! Owns the judgement of the current generation: is it done, sound, doubted or broken? It never
//! charges a break (`broken`) and never ends a job (`ending`). Reaching a [`Judgement`] changes nothing
//! but the time of the next wake-up.
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
        job::{GenerationRecord, Won},
        job_turn::JobTurn,
        lenders::{self, Survival},
        live::{Condition, Doubt, LeftAsItIs},
        placement::Placement,
    },
    run::{DueTo, RunPhase, RunReport},
    time::Timestamp,
};

/// How long torchrun processes may wait for each other after every rank ended well. Then Muster
/// ends them: their own exit barrier would wait 300 s for a node that is gone.
const EXIT_BARRIER: Duration = Duration::from_secs(5);

/// How soon to look again whether members or lenders have been heard.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long a first refusal waits for the words of the other members. They ask their interpreter too, which
/// takes well below a second from a disk.
const ANSWERS: Duration = Duration::from_secs(5);

/// What becomes of the current generation.
#[derive(Debug)]
enum Judgement {
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

impl JobTurn<'_> {
    /// Finds out whether the current generation is done or broken, and acts on it.
    pub(crate) fn judge(&mut self) {
        self.wake_at_deadline();
        let judgement = self.judgement();
        self.apply(judgement);
    }

    fn apply(&mut self, judgement: Judgement) {
        let mut doubt = self.doubt();
        self.live.condition = match judgement {
            Judgement::Nothing => return,
            Judgement::Done => return self.succeed(),
            Judgement::RanksDone { since, until } => {
                self.wake(until);
                Condition::RanksDone { since }
            }
            Judgement::LendersUnconfirmed(since) => {
                self.wake(self.now + LOOK_AGAIN);
                Condition::RanksDone { since }
            }
            Judgement::Wins(won) => {
                self.note_win(won);
                Condition::Won
            }
            Judgement::Won(until) => {
                self.wake(until);
                Condition::Won
            }
            Judgement::WonAndOver(won) => return self.succeed_by(&won),
            Judgement::Sound => Condition::Sound,
            Judgement::Doubted(until) => {
                self.wake(until);
                // It waits for evidence and has not asked the brake, so an earlier freeze is over.
                doubt.left = doubt.left.filter(|left| !left.is_frozen());
                Condition::Doubted(doubt)
            }
            Judgement::Frozen { silent, sentence } => {
                doubt.left = Some(LeftAsItIs::Frozen(sentence));
                doubt.shared_silence.grows(silent);
                Condition::Doubted(doubt)
            }
            Judgement::Stranded { silent, shortfall } => {
                doubt.left = Some(LeftAsItIs::Stranded(shortfall));
                doubt.shared_silence.grows(silent);
                Condition::Doubted(doubt)
            }
            Judgement::SomeAreBack(until) => {
                self.wake(until);
                doubt.left = Some(LeftAsItIs::SomeAreBack);
                doubt.shared_silence.until = Some(until);
                Condition::Doubted(doubt)
            }
            Judgement::Broken(evidence) => {
                self.note_stacks(&evidence);
                self.break_generation(&evidence, doubt.since);
                let goes_on = self.judged().map(|generation| self.evidence(generation));
                let broken = goes_on.is_some_and(|left| left.iter().any(Evidence::breaks));
                match broken {
                    true => Condition::Doubted(doubt),
                    false => Condition::Sound,
                }
            }
        };
    }

    /// The doubt about the generation. If there is none yet, it begins now.
    fn doubt(&self) -> Doubt {
        let doubt = self.live.condition.doubt().cloned();
        doubt.unwrap_or_else(|| Doubt::new(self.now))
    }

    /// When the first evidence against the generation was seen, if it has any.
    fn doubted_since(&self) -> Timestamp {
        let doubt = self.live.condition.doubt();
        doubt.map_or(self.now, |doubt| doubt.since)
    }

    /// The generation that is judged, unless there is none or its job is ending.
    fn judged(&self) -> Option<&GenerationRecord> {
        let current = self.job.current.as_ref();
        current.filter(|_| self.job.ending.is_none())
    }

    fn judgement(&self) -> Judgement {
        let Some(generation) = self.judged() else {
            return Judgement::Nothing;
        };
        if let Some(end) = self.good_end(generation) {
            return end;
        }
        let evidence = self.evidence(generation);
        if !evidence.iter().any(Evidence::breaks) {
            return Judgement::Sound;
        }
        None.or_else(|| self.awaits_more(generation, &evidence))
            .or_else(|| self.awaits_answers(generation, &evidence))
            .or_else(|| self.awaits_culprit(generation, &evidence))
            .or_else(|| self.awaits_own_end(generation, &evidence))
            .or_else(|| self.frozen(generation, &evidence))
            .or_else(|| self.spared(&evidence))
            .unwrap_or(Judgement::Broken(evidence))
    }

    /// A generation that is being formed is judged when its time to get ready is over.
    fn wake_at_deadline(&mut self) {
        let forming = self.judged().filter(|generation| !generation.started);
        let Some(deadline) = forming.map(|generation| self.deadline(generation)) else {
            return;
        };
        if self.now <= deadline {
            self.wake(deadline + Duration::from_millis(1));
        }
    }

    fn deadline(&self, generation: &GenerationRecord) -> Timestamp {
        generation::ready_deadline(generation, self.presence.since, self.policy)
    }

    /// The judgement of a generation that has ended well or by rule, or that waits for its lenders.
    /// `None`: it has no good end yet.
    fn good_end(&self, generation: &GenerationRecord) -> Option<Judgement> {
        if !generation.started {
            return None;
        }
        let completion = generation::completion(self.nodes, self.uid, generation);
        if completion != Completion::Training {
            match lenders::survival(self.nodes, self.uid, generation, &self.evidence(generation)) {
                Survival::Survived => {}
                Survival::Failed => return None,
                Survival::Unconfirmed => {
                    return Some(Judgement::LendersUnconfirmed(self.ranks_done()));
                }
            }
        }
        match completion {
            Completion::Training => self.win(generation),
            Completion::Done => Some(Judgement::Done),
            Completion::RanksDone => {
                let since = self.ranks_done();
                let here = |name| self.nodes.get(name).is_some_and(|node| node.is_ready());
                let all_here = generation.members.iter().all(|m| here(&m.node));
                let until = since + self.time_to_end(generation);
                let over = !all_here || self.now >= until;
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
    fn time_to_end(&self, generation: &GenerationRecord) -> Duration {
        let mut reports = generation::reports(self.nodes, self.uid, generation);
        let leaves = |run: &RunReport| !run.leftovers.is_empty() && !run.phase.is_over();
        match reports.any(|(_, run)| run.is_some_and(leaves)) {
            true => EXIT_BARRIER + self.job.spec.stop_grace_period,
            false => EXIT_BARRIER,
        }
    }

    /// Since when the ranks are known to have ended well.
    fn ranks_done(&self) -> Timestamp {
        match self.live.condition {
            Condition::RanksDone { since } => since,
            _ => self.now,
        }
    }

    fn evidence(&self, generation: &GenerationRecord) -> Vec<Evidence> {
        let deadline = self.deadline(generation);
        let mut evidence = gather::evidence(self.nodes, self.uid, generation, self.now, deadline);
        let receipt = self.job.receipt_of(generation.number);
        let launched = receipt.is_some_and(|incident| incident.launched_at.is_some());
        if launched {
            evidence.iter_mut().for_each(Evidence::had_launched);
        }
        evidence.extend(self.mismatched());
        self.name_members(generation, &mut evidence);
        evidence
    }

    /// Names the members of ranks that have failed on nodes with several.
    fn name_members(&self, generation: &GenerationRecord, evidence: &mut [Evidence]) {
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
                *member =
                    number.and_then(|number| self.job.spec.member(&generation.layout, number));
            }
        }
    }

    /// `Doubted`, if more evidence of the same burst may come.
    fn awaits_more(
        &self,
        generation: &GenerationRecord,
        evidence: &[Evidence],
    ) -> Option<Judgement> {
        let until = self.doubted_since() + self.policy.coalesce;
        // MPI kills all ranks when one has failed, so a killed one is not necessarily the first.
        let conclusive = !generation.layout.has_slots() && blame::is_conclusive(evidence);
        let awaits = self.now < until && !conclusive;
        awaits.then_some(Judgement::Doubted(until))
    }

    /// `Doubted`, if nodes say that what the job names is not there, and others have not said yet whether
    /// they find it. If none does, the job cannot start.
    fn awaits_answers(
        &self,
        generation: &GenerationRecord,
        evidence: &[Evidence],
    ) -> Option<Judgement> {
        let until = self.doubted_since() + ANSWERS;
        let of_job = |found: &Evidence| {
            let due_to = DueTo::Job;
            matches!(found, Evidence::StartRefused { due_to: said, .. } if *said == due_to)
        };
        let mut reports = generation::reports(self.nodes, self.uid, generation);
        let unanswered =
            |run: Option<&RunReport>| run.is_none_or(|run| run.phase == RunPhase::Preparing);
        // A job that was started before had what it needs.
        let awaits = self.job.first_started.is_none()
            && self.now < until
            && evidence.iter().all(of_job)
            && reports.any(|(_, run)| unanswered(run));
        awaits.then_some(Judgement::Doubted(until))
    }

    /// `Doubted`, if all failures known so far may follow from that of a member that has not been
    /// heard since.
    fn awaits_culprit(
        &self,
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
        let doubted = self.doubted_since();
        let heartbeat = self.nodes.heartbeat(self.policy);
        let until = match (lacks, self.is_listening()) {
            (true, true) => self.presence.listen_until,
            (true, false) => doubted + heartbeat * (self.policy.suspect_missed + 1),
            // Something may explain it all already.
            (false, _) => doubted + heartbeat + HEARTBEAT_DELAY,
        };
        let heard_after = doubted + HEARTBEAT_DELAY;
        let awaits = self.now < until
            && gather::may_have_a_culprit(self.nodes, generation, evidence, heard_after);
        awaits.then(|| Judgement::Doubted(until.min(self.now + LOOK_AGAIN)))
    }

    /// `Doubted`, if the ranks that ended speak only of others, and one still runs. That one may have left
    /// the process group first and be about to end with the error that explains all.
    fn awaits_own_end(
        &self,
        generation: &GenerationRecord,
        evidence: &[Evidence],
    ) -> Option<Judgement> {
        // A coordinator that stood still has not heard what was said meanwhile.
        let until = match self.is_listening() {
            true => self.presence.listen_until,
            false => self.doubted_since() + self.policy.own_end,
        };
        // MPI's own programs end all ranks when one has failed.
        let awaits = !generation.layout.has_slots()
            && self.now < until
            && blame::lacks_a_culprit(evidence)
            && gather::may_still_end(self.nodes, self.uid, generation, evidence);
        awaits.then_some(Judgement::Doubted(until))
    }

    /// `Frozen`, if no member can be heard while the brake for mass losses is on.
    fn frozen(&self, generation: &GenerationRecord, evidence: &[Evidence]) -> Option<Judgement> {
        let brake = self.brake?;
        let frozen = evidence.iter().all(Evidence::is_silence)
            && generation::none_is_ready(self.nodes, generation);
        frozen.then(|| Judgement::Frozen {
            silent: evidence.iter().filter(|e| is_silent(e)).count(),
            sentence: brake.sentence(self.policy),
        })
    }

    /// `Stranded`: members are only silent, and too few nodes are left for a new generation.
    /// `SomeAreBack`: some are back, and report at most that they lost the others.
    fn spared(&self, evidence: &[Evidence]) -> Option<Judgement> {
        let silent = evidence.iter().filter(|e| is_silent(e)).count();
        if !evidence.iter().all(|e| is_silent(e) || e.is_victim()) {
            return None;
        }
        if silent == evidence.len()
            && let Placement::Short(shortfall) = self.place()
        {
            return Some(Judgement::Stranded {
                silent,
                shortfall: shortfall.to_string(),
            });
        }
        let shared = self.doubt().shared_silence;
        if silent == 0 || silent >= shared.silent_most {
            return None;
        }
        // While many are silent, those that come back come at different times.
        let others_come = match self.brake {
            Some(_) => self.policy.mass_loss_window,
            None => self.policy.listen_for(self.nodes.len()),
        };
        let until = shared.until.unwrap_or(self.now + others_come);
        // When so many are back that the brake goes off sooner, those of this job have had their time, too.
        let brake_off = self.brake.and_then(|brake| brake.enough_back);
        let until = brake_off.map_or(until, |off| off.min(until));
        (self.now < until).then_some(Judgement::SomeAreBack(until))
    }
}

/// Whether this says that a member's node is not heard.
fn is_silent(evidence: &Evidence) -> bool {
    matches!(evidence, Evidence::NodeSilent { .. })
}
