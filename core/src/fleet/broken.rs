//! A generation is broken: who pays, what people are told, and when the job may start again.
//!
//! A break opens an incident, charges the job or the node that `blame` names, and retires the
//! generation. The next generation is the business of `open`. If only processes have failed that
//! can be started again alone, the generation goes on (`member_restart`).

use std::time::Duration;

use crate::{
    fleet::{
        blame::{self, Blame, Evidence},
        budget::{self, DOUBTFUL_MAX, Restart},
        cannot_start::{self, CannotStart},
        crash_loop,
        deterministic::{self, Failure},
        ending,
        generation::{self, Steps},
        job::{CrashLoop, Ending, GenerationRecord, Phase, Reason, Stopping},
        job_turn::{Facts, JobTurn},
        limits::demand,
        live::{AVOID, Avoided},
        marks, member_restart,
        placement::Candidate,
        receipt::{Charged, Incident},
        rules::{self, Ruling},
        slow,
        worker_pod::is_pod,
    },
    id::Generation,
    spec::{Progress, rules::Then},
    time::Timestamp,
};

/// So many generations in a row without progress are told. Two may be one failure and its echo; the restart budget
/// of a job ends with the fourth by default.
const IN_VAIN_TOLD: u32 = 3;

/// What the job pays for a break.
struct Charge {
    restart: Restart,
    /// A job that seems unable to start, if the job pays.
    crash_loop: Option<CrashLoop>,
}

impl Charge {
    fn hint(&self) -> Option<String> {
        self.crash_loop.as_ref().and_then(CrashLoop::sentence)
    }
}

impl JobTurn<'_> {
    /// Acts on this evidence: starts the failed processes again if that answers all of it, else
    /// retires the generation. `doubted`: when the first evidence was seen.
    pub(crate) fn break_generation(&mut self, evidence: &[Evidence], doubted: Timestamp) {
        let generation = self.job.current.clone();
        let generation = generation.expect("only a current generation is judged");
        let steps = generation::steps(self.nodes, self.uid, &generation);
        let doubtful_in_row = doubtful_in_row(self.facts(), &steps);
        let members = generation.members.len();
        let pays = doubtful_in_row >= DOUBTFUL_MAX || budget::doubt_is_spent(self.job, self.now);
        let Some(mut blame) = blame::blame(evidence, members, pays) else {
            return;
        };
        if blame.event_at == Timestamp::default() {
            // Nobody knows when a node refused, nor when torchrun ended before its group is dead.
            blame.event_at = doubted;
        }
        let roles = rules::roles_at_fault(&generation, &blame);
        let ruling = rules::of_break(&self.job.spec.rules, &blame, &roles);
        let then = ruling.as_ref().map(|ruling| ruling.rule.then);
        if then == Some(Then::Succeed) {
            // The job asked for this end, so it pays nothing.
            blame.charged = Charged::Nobody;
        }
        // If a rank did not fail first, its end follows from what did.
        let alone = match blame.rank {
            Some(_) => member_restart::ranks_alone(self.nodes, self.uid, &generation, evidence),
            None => None,
        };
        if alone.is_some() {
            // A member that is only suspected fell to nobody: it goes on.
            let suspected = evidence.iter().filter(|found| !found.breaks());
            let suspected: Vec<String> = suspected.map(Evidence::name).collect();
            blame.collateral.retain(|name| !suspected.contains(name));
        }
        match &alone {
            // The others train on, so their steps say nothing about this rank.
            Some(_) => {
                let began = generation.began(blame.rank);
                member_restart::note_lasted(self.job, self.policy, began, blame.event_at);
            }
            None => budget::note_progress(self.job, &steps, self.policy, self.now),
        }
        self.note_break(&blame, ruling.as_ref(), &generation, &steps, doubted);
        let lasted = generation
            .began(blame.rank)
            .map_or(Duration::ZERO, |at| blame.event_at.since(at));
        if let (Some(ruling), Some(Then::Fail | Then::Succeed)) = (&ruling, then) {
            self.retire_broken(&blame);
            self.tell_break(&blame, generation.number);
            self.end_by(&blame, ruling);
            if then == Some(Then::Succeed) {
                return;
            }
        } else {
            self.job.doubtful_in_row = doubtful_in_row + u32::from(blame.doubtful);
            if blame.doubtful && blame.charged != Charged::Job {
                self.job.doubtful.push(self.now);
            }
            let usual = then.is_none_or(|then| then == Then::Ignore);
            if alone.is_none()
                && let Some(end) = self.no_start_helps(&generation, evidence, &blame, lasted)
                && usual
            {
                self.retire_broken(&blame);
                self.tell_break(&blame, generation.number);
                return self.end_for_good(&blame, end);
            }
            let charge = self.charge(&blame, ruling.as_ref());
            match (&charge.restart, alone) {
                (Restart::At(at), Some(ranks)) => {
                    let follows = member_restart::sentence(&ranks, *at, self.now);
                    blame.message.push_str(&follows);
                    let restarts = (ranks, *at);
                    member_restart::restart_members(
                        self.nodes,
                        self.job,
                        self.now,
                        restarts,
                        &blame.message,
                    );
                }
                _ => self.retire_broken(&blame),
            }
            self.tell_break(&blame, generation.number);
            self.tell_crash_loop(&charge, generation.number);
            if self.job.current.is_none() {
                self.restart(&blame, charge);
            }
        }
        self.hold_against_node(&blame, lasted);
        self.tell_in_vain(generation.number);
    }

    /// The reason to end the job although its budget is not spent, in a word and in a sentence.
    fn no_start_helps(
        &mut self,
        generation: &GenerationRecord,
        evidence: &[Evidence],
        blame: &Blame,
        lasted: Duration,
    ) -> Option<(Reason, String)> {
        let cannot = self.cannot_start(generation, evidence, lasted);
        let again = self.fails_again(generation, blame);
        let cannot = cannot.map(|why| (Reason::CannotStart, why.sentence()));
        cannot.or_else(|| again.map(|why| (Reason::DeterministicFailure, why)))
    }

    /// Why it fails each time it comes to the same place. It also remembers this failure for the next.
    fn fails_again(&mut self, generation: &GenerationRecord, blame: &Blame) -> Option<String> {
        let Charged::Job = blame.charged else {
            return None;
        };
        let steps = generation::steps(self.nodes, self.uid, generation);
        let own = blame
            .rank
            .and_then(|rank| generation::step_of(self.nodes, self.uid, generation, rank));
        let raised = blame.raised.as_ref();
        // Two pods of one host are no two nodes.
        let host = |name| self.nodes.get(name).map(|node| self.nodes.blamed(node));
        let host = blame.node.as_ref().map(|name| match host(name) {
            Some(host) => host.record.name.clone(),
            None => name.clone(),
        });
        let failure = Failure {
            class: blame.class,
            raised: raised.map(|(name, place)| (name.as_str(), place.as_str())),
            node: host.as_ref(),
            step: own.or(steps.last),
        };
        let others = others_with_room(self.facts(), generation) > 0;
        deterministic::note(self.job, &failure, others, self.now)
    }

    /// Told once in a row.
    fn tell_in_vain(&mut self, number: Generation) {
        let in_vain = &mut self.job.generations_in_vain;
        if in_vain.told || in_vain.generations < IN_VAIN_TOLD {
            return;
        }
        in_vain.told = true;
        let best = match self.job.furthest_step {
            Some(step) => format!("no step beyond {step}, the best so far"),
            None => "no step".into(),
        };
        let (name, times) = (&self.job.name, self.job.generations_in_vain.generations);
        let saved = match self.job.spec.checkpoint_pattern {
            Some(_) => ", and saved no checkpoint",
            None => "",
        };
        let message = format!("{name}: the last {times} generations made {best}{saved}");
        self.warn("NoProgress", message).in_generation(number);
    }

    /// Why no start can succeed. It also remembers this one for the next.
    fn cannot_start(
        &mut self,
        generation: &GenerationRecord,
        evidence: &[Evidence],
        lasted: Duration,
    ) -> Option<CannotStart> {
        let before = self.job.failed_start.take();
        self.job.has_run |= lasted >= crash_loop::EARLY;
        let has_stepped = self.job.furthest_step.max(self.job.last_step).is_some();
        let has_trained = has_stepped || self.job.has_trained;
        if has_trained || self.job.has_run {
            return None;
        }
        let primary = blame::primary(evidence)?;
        let (started, members) = (self.job.first_started.is_some(), generation.members.len());
        let now = cannot_start::failed_start(primary, evidence, members, started)?;
        let refused = matches!(primary, Evidence::StartRefused { .. })
            || cannot_start::no_rank_began(primary);
        let others = refused && others_may_start(self.facts(), generation);
        let (now, verdict) = cannot_start::judge(before.as_ref(), now, others);
        if others && verdict.is_none() {
            let until = self.now + AVOID;
            let refusing = generation.members.iter().map(|member| Avoided {
                node: member.node.clone(),
                until,
                why: now.symptom.clone(),
            });
            self.live.avoided.extend(refusing);
        }
        self.job.failed_start = Some(now);
        verdict
    }

    fn end_for_good(&mut self, blame: &Blame, (reason, why): (Reason, String)) {
        self.job.not_before = None;
        ending::end(
            self.nodes,
            self.job,
            Ending {
                phase: Phase::Failed,
                reason,
                message: format!("{}; {why}", blame.message),
            },
        );
    }

    fn note_break(
        &mut self,
        blame: &Blame,
        ruling: Option<&Ruling>,
        generation: &GenerationRecord,
        steps: &Steps,
        doubted: Timestamp,
    ) {
        let job = &mut *self.job;
        let mut incident = Incident {
            cause: blame.cause,
            message: blame.message.clone(),
            class: blame.cause.is_failure().then_some(blame.class),
            charged: blame.charged,
            culprit: blame.culprit.clone(),
            from: Some(generation.number),
            from_nodes: generation.size(),
            detected_at: doubted,
            last_step_before: steps.last,
            node: blame.node.clone(),
            rule: ruling.map(Ruling::name),
            stall: generation.stall.clone(),
            ..Incident::at(blame.event_at.min(doubted))
        };
        incident.add_collateral(blame.collateral.iter().cloned());
        job.open_incident(incident);
        job.last_step = steps.last.or(job.last_step);
    }

    fn charge(&mut self, blame: &Blame, ruling: Option<&Ruling>) -> Charge {
        let job = &mut *self.job;
        if blame.charged != Charged::Job {
            return Charge {
                restart: Restart::At(self.now),
                crash_loop: None,
            };
        }
        let began = job.current.as_ref().and_then(|g| g.began(blame.rank));
        let lasted = began.map_or(Duration::ZERO, |at| blame.event_at.since(at));
        crash_loop::note(job, blame.symptom.as_deref(), lasted);
        Charge {
            crash_loop: job.crash_loop.clone(),
            restart: budget::charge(job, ruling, self.policy, self.now),
        }
    }

    fn retire_broken(&mut self, blame: &Blame) {
        let job = &mut *self.job;
        // Survivors of a broken synchronous generation cannot make a step any more. A grace to save
        // one would only cost time.
        let grace = if job.spec.progress == Progress::Synchronous {
            Duration::ZERO
        } else {
            job.spec.stop_grace_period
        };
        slow::leave(job, self.now);
        job.retire_current(Stopping {
            reason: blame.message.clone(),
            grace,
        });
    }

    fn tell_break(&mut self, blame: &Blame, number: Generation) {
        let reason = format!("{:?}", blame.cause);
        let event = self.warn(&reason, blame.message.clone());
        event.in_generation(number);
        if let Some(node) = &blame.node {
            event.on_node(node);
        }
    }

    /// Told once, when it has become likely.
    fn tell_crash_loop(&mut self, charge: &Charge, number: Generation) {
        let is_new = charge.crash_loop.as_ref().is_some_and(CrashLoop::is_new);
        if let Some(hint) = charge.hint().filter(|_| is_new) {
            let name = &self.job.name;
            let message = format!("{name}: {hint} (muster logs {})", name.name);
            self.warn("CrashLoop", message).in_generation(number);
        }
    }

    /// A rule says that this break ends the job.
    fn end_by(&mut self, blame: &Blame, ruling: &Ruling) {
        self.job.not_before = None;
        let message = format!("{}; {}", blame.message, ruling.name());
        let (phase, reason) = match ruling.rule.then {
            Then::Succeed => (Phase::Succeeded, Reason::Completed),
            _ => (Phase::Failed, Reason::FailedByRule),
        };
        ending::end(
            self.nodes,
            self.job,
            Ending {
                phase,
                reason,
                message,
            },
        );
    }

    /// The job may start again at some time, or has failed for good.
    fn restart(&mut self, blame: &Blame, charge: Charge) {
        let hint = charge.hint();
        match charge.restart {
            Restart::At(at) => self.job.not_before = Some(at).filter(|at| *at > self.now),
            Restart::Spent(sentence) => {
                self.job.not_before = None;
                let nodes = marks::failed_on(self.facts()).len();
                let everywhere = if nodes > 1 {
                    format!("; its failures began on {nodes} different nodes")
                } else {
                    String::new()
                };
                let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                let message = format!("{}; {sentence}{everywhere}{hint}", blame.message);
                ending::end(
                    self.nodes,
                    self.job,
                    Ending {
                        phase: Phase::Failed,
                        reason: Reason::RestartBudgetSpent,
                        message,
                    },
                );
            }
        }
    }
}

/// Whether as many other nodes as this generation has could take a member of this job each.
fn others_may_start(facts: Facts<'_>, generation: &GenerationRecord) -> bool {
    others_with_room(facts, generation) >= generation.members.len()
}

/// How many nodes outside this generation have room for a member of this job, so that it can be tried there.
fn others_with_room(facts: Facts<'_>, generation: &GenerationRecord) -> usize {
    let roles = demand(facts.job).roles;
    let least = roles.iter().map(|role| role.gpus).min().unwrap_or(0);
    let candidates = facts.candidates(facts.capacity, &[]);
    let may = |node: &&Candidate<'_>| {
        !generation.has(node.node) && !is_pod(node.node) && node.is_first_choice(least)
    };
    candidates.iter().filter(may).count()
}

/// How many doubtful breaks in a row came before this one. Zero if this generation has brought
/// the job further: by a new step, or by a checkpoint if it shows no steps.
fn doubtful_in_row(facts: Facts<'_>, steps: &Steps) -> u32 {
    let advanced = match steps.last {
        Some(_) => steps.last > facts.job.furthest_step.max(facts.job.last_step),
        None => steps.saved == Some(true),
    };
    if advanced {
        0
    } else {
        facts.job.doubtful_in_row
    }
}
