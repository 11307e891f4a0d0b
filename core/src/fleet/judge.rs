//! Is the current generation done? Is it broken? The answer is a value, [`Judgement`], and nothing
//! is changed on the way to it.
//!
//! All evidence of one burst is judged together. That happens one coalesce window after the first
//! of it, or as soon as the evidence is conclusive. Silence alone is judged last and most
//! carefully: it may be the network's or the coordinator's own. What a break means is the business
//! of `broken`, and the end of a job that of `ending`.

use std::{collections::BTreeMap, ops::Range, time::Duration};

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
        rules::{self, Ended},
    },
    period,
    run::RunReport,
    spec::rules::Then,
    time::Timestamp,
};

/// How long torchrun processes may wait for each other after every rank ended well. Then Muster
/// ends them: their own exit barrier would wait 300 s for a node that is gone.
const EXIT_BARRIER: Duration = Duration::from_secs(5);

/// How soon to look again whether all members have been heard since the first failure.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What becomes of the current generation.
#[derive(Debug)]
enum Judgement {
    /// There is none, or its job is ending.
    Nothing,
    /// Every rank ended well.
    Done,
    /// Every rank had ended well by this moment. Some torchrun processes still wait for each other.
    RanksDone(Timestamp),
    /// A rule says that this member's success is the job's.
    Wins(Won),
    /// The launcher ended well. Not all nodes that lend to it were heard since, and its success counts
    /// only if none had failed before.
    LendersUnconfirmed(Timestamp),
    /// A rule has already decided. The other members have time until this moment.
    Won(Timestamp),
    /// Their time is over, or all of them have ended.
    WonAndOver(Won),
    /// No evidence speaks against it.
    Sound,
    /// There is evidence, and better evidence may come until this moment.
    Doubted(Timestamp),
    /// None of its nodes can be heard, nor can many others. The text says how many.
    Frozen(String),
    /// So many members are silent, no member is dead, and there are no better nodes. If the silent
    /// ones come back, training continues where it was. The text says what is missing.
    Stranded {
        silent: usize,
        shortfall: String,
    },
    /// Members were silent together, and the first is back. The others have until this moment to
    /// come back.
    SomeAreBack(Timestamp),
    Broken(Vec<Evidence>),
}

/// When the last of these ranks ended.
fn ended_at(run: &RunReport, ranks: &Range<u32>) -> Timestamp {
    let own = run.ranks.iter().filter(|rank| ranks.contains(&rank.rank));
    own.filter_map(|rank| rank.exited_at)
        .max()
        .unwrap_or_default()
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
            Judgement::RanksDone(since) => {
                self.wake(since + EXIT_BARRIER);
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
                // The brake is looked at anew each time, so it no longer freezes this generation.
                doubt.left = doubt.left.filter(|left| !left.is_frozen());
                Condition::Doubted(doubt)
            }
            Judgement::Frozen(sentence) => {
                doubt.left = Some(LeftAsItIs::Frozen(sentence));
                Condition::Doubted(doubt)
            }
            Judgement::Stranded { silent, shortfall } => {
                doubt.left = Some(LeftAsItIs::Stranded(shortfall));
                let shared = &mut doubt.shared_silence;
                shared.silent_most = shared.silent_most.max(silent);
                shared.until = None;
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
                match self.job.current {
                    Some(_) => Condition::Doubted(doubt),
                    None => Condition::Sound,
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
            .or_else(|| self.awaits_culprit(generation, &evidence))
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

    /// What a good end asks for: `Done`, `RanksDone`, a success by rule, or patience with lenders that
    /// were not heard yet. `None`: it has not come.
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
                let over = !all_here || self.now.since(since) >= EXIT_BARRIER;
                Some(if over {
                    Judgement::Done
                } else {
                    Judgement::RanksDone(since)
                })
            }
        }
    }

    /// Since when the ranks are known to have ended well.
    fn ranks_done(&self) -> Timestamp {
        match self.live.condition {
            Condition::RanksDone { since } => since,
            _ => self.now,
        }
    }

    /// What a rule says of the members that have ended well while others train.
    fn win(&self, generation: &GenerationRecord) -> Option<Judgement> {
        if let Some(won) = &generation.won {
            let until = won.at + self.policy.success_grace;
            let over = self.now >= until || self.all_ended(generation);
            return Some(match over {
                true => Judgement::WonAndOver(won.clone()),
                false => Judgement::Won(until),
            });
        }
        if !rules::some_win(&self.job.spec.rules) {
            return None;
        }
        let mut ended = Vec::new();
        for (node, run) in generation::reports(self.nodes, self.uid, generation) {
            let Some(run) = run else { continue };
            for seat in generation.seats_on(node).iter() {
                let number = seat.number;
                if !generation.serves(number) && generation.member_finished(run, number) {
                    ended.push((ended_at(run, &generation.ranks(number)), number, node));
                }
            }
        }
        if ended.is_empty() {
            return None;
        }
        ended.sort();
        // A failure before a member's success has broken the world that it succeeded in.
        let evidence = self.evidence(generation);
        let broke = evidence.iter().filter(|e| e.breaks() && !e.is_victim());
        let broke = broke.map(Evidence::at).min();
        let counts = |at: Timestamp| broke.is_none_or(|broke| at <= broke);
        let mut of_role: BTreeMap<usize, u32> = BTreeMap::new();
        let wins = ended.into_iter().find_map(|(at, number, node)| {
            let place = generation.layout.place(number);
            let with_its_role = place.is_some_and(|place| {
                let so_far = of_role.entry(place.role).or_default();
                *so_far += 1;
                *so_far == place.share.members
            });
            let ended = Ended {
                number,
                role: place.map(|place| (place.share.name.as_str(), place.index)),
                with_its_role,
            };
            let ruling = rules::of_success(&self.job.spec.rules, ended)?;
            (ruling.rule.then == Then::Succeed && counts(at)).then(|| Won {
                rule: ruling.index,
                node: node.clone(),
                number: Some(number).filter(|_| generation.seats_on(node).len() > 1),
                at: self.now,
            })
        })?;
        Some(Judgement::Wins(wins))
    }

    /// Whether no rank of any member runs any more, except those that serve the others.
    fn all_ended(&self, generation: &GenerationRecord) -> bool {
        let mut reports = generation::reports(self.nodes, self.uid, generation);
        reports.all(|(node, run)| {
            let ended = |run: &RunReport| generation.finished_on(node, run);
            generation.dead.contains(node) || generation.is_service(node) || run.is_some_and(ended)
        })
    }

    fn note_win(&mut self, won: Won) {
        let grace = self.policy.success_grace;
        self.wake(self.now + grace);
        let message = format!(
            "{} ended with exit code 0; {}; the other members have {} to end",
            self.winner(&won),
            self.rule_name(won.rule),
            period::format(grace)
        );
        let Some(generation) = &mut self.job.current else {
            return;
        };
        let number = generation.number;
        generation.won = Some(won);
        self.note("SucceededByRule", message).in_generation(number);
    }

    fn evidence(&self, generation: &GenerationRecord) -> Vec<Evidence> {
        let deadline = self.deadline(generation);
        let mut evidence = gather::evidence(self.nodes, self.uid, generation, self.now, deadline);
        let receipt = self.job.incidents.last();
        let launched = receipt
            .filter(|incident| incident.to == Some(generation.number))
            .is_some_and(|incident| incident.launched_at.is_some());
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

    /// `Doubted`, if all failures known so far may have been caused by a member that has not been
    /// heard since.
    fn awaits_culprit(
        &self,
        generation: &GenerationRecord,
        evidence: &[Evidence],
    ) -> Option<Judgement> {
        if !blame::lacks_a_culprit(evidence) {
            return None;
        }
        let doubted = self.doubted_since();
        let until = if self.is_listening() {
            self.presence.listen_until
        } else {
            doubted + self.nodes.heartbeat(self.policy) * (self.policy.suspect_missed + 1)
        };
        let heard_after = doubted + HEARTBEAT_DELAY;
        let awaits = self.now < until
            && gather::may_have_a_culprit(self.nodes, generation, evidence, heard_after);
        awaits.then(|| Judgement::Doubted(until.min(self.now + LOOK_AGAIN)))
    }

    /// `Frozen`, if no member can be heard while the brake for mass losses is on.
    fn frozen(&self, generation: &GenerationRecord, evidence: &[Evidence]) -> Option<Judgement> {
        let brake = self.brake?;
        let frozen = evidence.iter().all(Evidence::is_silence)
            && generation::none_is_ready(self.nodes, generation);
        frozen.then(|| Judgement::Frozen(brake.sentence(self.policy)))
    }

    /// `Stranded` or `SomeAreBack`, if members are only silent and a new generation would not help
    /// yet.
    fn spared(&self, evidence: &[Evidence]) -> Option<Judgement> {
        let silent = |e: &Evidence| matches!(e, Evidence::NodeSilent { .. });
        if !evidence.iter().all(silent) {
            return None;
        }
        if let Placement::Short(shortfall) = self.place() {
            return Some(Judgement::Stranded {
                silent: evidence.len(),
                shortfall: shortfall.to_string(),
            });
        }
        let shared = self.doubt().shared_silence;
        if evidence.len() >= shared.silent_most {
            return None;
        }
        let until = shared.until.unwrap_or(self.now + self.policy.listen);
        (self.now < until).then_some(Judgement::SomeAreBack(until))
    }
}
