//! Is the current generation done? Is it broken, and who pays for that?
//!
//! All evidence of one burst is judged together. That happens one coalesce window after the first
//! of it, or as soon as the evidence is conclusive. A break opens an incident, charges the job or
//! node that `blame` names, and retires the generation. The next generation is the business of
//! `open`.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    fleet::{
        blame::{self, Evidence, UNDER_WAY, Verdict},
        budget::{self, AVOID, Avoided, IN_VAIN_MAX, Restart},
        cordon, crash_loop, evidence, fault_ledger,
        generation::{self, Completion},
        job::{CrashLoop, Ending, JobRecord, Phase, Reason, Stopping},
        job_turn::JobTurn,
        live::{LeftAsItIs, SharedSilence},
        node_record::{Mark, Standing},
        placement::Placement,
        receipt::{Cause, Charged, Incident},
        registry::Registry,
    },
    id::NodeName,
    planted::{self, Mistake},
    spec::Progress,
    time::Timestamp,
};

/// How long torchrun processes may wait for each other after every rank ended well. Then Muster
/// ends them: their own exit barrier would wait 300 s for a node that is gone.
const EXIT_BARRIER: Duration = Duration::from_secs(5);

/// How soon to look again whether all members have been heard since the first failure.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl JobTurn<'_> {
    /// Finds out whether the current generation is done or broken, and acts on it.
    pub(crate) fn judge(&mut self) {
        if matches!(self.live.left, Some(LeftAsItIs::Frozen(_))) {
            self.live.left = None;
        }
        let job = &*self.job;
        let Some(generation) = job.current.as_ref().filter(|_| job.ending.is_none()) else {
            return;
        };
        let patience = generation::patience(generation, self.presence.since, self.policy);
        if generation.started {
            match generation::completion(self.nodes, self.uid, generation) {
                Completion::Done => return self.succeed(),
                Completion::RanksDone => {
                    let all_here = generation
                        .members
                        .iter()
                        .all(|m| self.nodes.get(&m.node).is_some_and(|n| n.is_ready()));
                    let since = *self.live.ranks_done.get_or_insert(self.now);
                    if !all_here || self.now.since(since) >= EXIT_BARRIER {
                        return self.succeed();
                    }
                    return self.wake(since + EXIT_BARRIER);
                }
                Completion::Training => {}
            }
        } else if self.now <= patience {
            self.wake(patience + Duration::from_millis(1));
        }
        let generation = self.job.current.as_ref().expect("checked above");
        let mut evidence = evidence::evidence(self.nodes, self.uid, generation, self.now, patience);
        let receipt = self
            .job
            .incidents
            .last()
            .filter(|incident| incident.to == Some(generation.number));
        if receipt.is_some_and(|incident| incident.launched_at.is_some()) {
            evidence.iter_mut().for_each(Evidence::had_launched);
        }
        evidence.extend(self.mismatched());
        if !evidence.iter().any(Evidence::breaks) {
            return self.live.clear_doubt();
        }
        let doubted = *self.live.doubted.get_or_insert(self.now);
        if self.now < doubted + self.policy.coalesce && !blame::is_conclusive(&evidence) {
            return self.wake(doubted + self.policy.coalesce);
        }
        let late = blame::too_late(&evidence);
        if evidence.iter().all(|e| e.is_victim() || late(e)) {
            let generation = self.job.current.as_ref().expect("checked above");
            let listening = self.is_listening();
            let patience = if listening {
                self.presence.listen_until
            } else {
                doubted + self.nodes.heartbeat(self.policy) * (self.policy.suspect_missed + 1)
            };
            if self.now < patience
                && evidence::may_have_a_culprit(
                    self.nodes,
                    generation,
                    &evidence,
                    doubted + UNDER_WAY,
                )
            {
                return self.wake(patience.min(self.now + LOOK_AGAIN));
            }
        }
        let generation = self.job.current.as_ref().expect("checked above");
        if let Some(brake) = self.brake
            && evidence.iter().all(Evidence::is_silence)
            && generation::unheard(self.nodes, generation)
            && !planted::on(Mistake::BrakeIgnored)
        {
            self.live.left = Some(LeftAsItIs::Frozen(brake.sentence(self.policy)));
            return;
        }
        if evidence
            .iter()
            .all(|e| matches!(e, Evidence::NodeSilent { .. }))
        {
            let placement = self.place();
            let listen = self.policy.listen;
            let live = &mut *self.live;
            if let Placement::Short(shortfall) = placement {
                // No member is dead, and there are no better nodes. If the silent node comes back,
                // training continues where it was.
                live.left = Some(LeftAsItIs::Stranded(shortfall.to_string()));
                live.shared_silence = SharedSilence {
                    silent_most: live.shared_silence.silent_most.max(evidence.len()),
                    until: None,
                };
                return;
            }
            if evidence.len() < live.shared_silence.silent_most {
                let until = *live.shared_silence.until.get_or_insert(self.now + listen);
                if self.now < until {
                    return self.wake(until);
                }
            }
        }
        self.note_stacks(&evidence);
        self.break_generation(&evidence, doubted);
    }

    fn succeed(&mut self) {
        self.compare(None);
        self.end(Ending {
            phase: Phase::Succeeded,
            reason: Reason::Completed,
            message: "every rank ended with exit code 0".into(),
        });
    }

    fn end(&mut self, ending: Ending) {
        end(self.nodes, self.job, ending);
    }

    fn break_generation(&mut self, evidence: &[Evidence], doubted: Timestamp) {
        let generation = self
            .job
            .current
            .clone()
            .expect("only a current generation is judged");
        let steps = generation::steps(self.nodes, self.uid, &generation);
        let advanced = steps.last > self.job.furthest_step.max(self.job.last_step);
        let in_vain = if advanced { 0 } else { self.job.in_vain };
        let Some(mut verdict) =
            blame::judge(evidence, generation.members.len(), in_vain >= IN_VAIN_MAX)
        else {
            return;
        };
        if verdict.event_at == Timestamp::default() {
            // A refusal has no moment of its own. A launcher's end has one only when its group is
            // dead.
            verdict.event_at = doubted;
        }
        let (policy, job) = (self.policy, &mut *self.job);
        budget::note_progress(job, steps.last, policy, self.now);
        job.open_incident(Incident {
            cause: verdict.cause,
            message: verdict.message.clone(),
            charged: verdict.charged,
            culprit: verdict.culprit.clone(),
            collateral: verdict.collateral.clone(),
            from: Some(generation.number),
            from_nodes: generation.members.len() as u32,
            detected_at: doubted,
            last_step_before: steps.last,
            node: verdict.node.clone(),
            ..Incident::at(verdict.event_at.min(doubted))
        });
        job.last_step = steps.last.or(job.last_step);
        job.in_vain = if verdict.doubtful {
            in_vain + 1
        } else {
            in_vain
        };
        job.not_before = None;
        let charged = verdict.charged == Charged::Job || planted::on(Mistake::NodeFaultsCharged);
        if charged {
            crash_loop::note(job, verdict.symptom.as_deref(), verdict.event_at);
        }
        let crash_loop = job.crash_loop.clone().filter(|_| charged);
        let restart = if charged {
            budget::charge(job, policy, self.now)
        } else {
            Restart::At(self.now)
        };
        // Survivors of a broken synchronous generation cannot make a step any more. A grace to save
        // one would only cost time.
        let grace = if job.spec.progress == Progress::Synchronous {
            Duration::ZERO
        } else {
            job.spec.stop_grace_period
        };
        job.retire_current(Stopping {
            reason: verdict.message.clone(),
            grace,
        });
        job.phase = Phase::Recovering;
        self.live.clear_doubt();
        self.live.ranks_done = None;
        let reason = format!("{:?}", verdict.cause);
        let event = self.warn(&reason, verdict.message.clone());
        event.in_generation(generation.number);
        if let Some(node) = &verdict.node {
            event.on_node(node);
        }
        let hint = crash_loop.as_ref().and_then(CrashLoop::sentence);
        if let Some(hint) = hint
            .as_ref()
            .filter(|_| crash_loop.as_ref().is_some_and(CrashLoop::is_new))
        {
            let name = &self.job.name;
            let message = format!("{name}: {hint} (muster logs {})", name.name);
            self.warn("CrashLoop", message)
                .in_generation(generation.number);
        }
        match restart {
            Restart::At(at) => self.job.not_before = Some(at).filter(|at| *at > self.now),
            Restart::Spent(sentence) => {
                let nodes = failed_on(self.job, policy.storm_window, self.now).len();
                let everywhere = if nodes > 1 {
                    format!("; its failures began on {nodes} different nodes")
                } else {
                    String::new()
                };
                let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                let message = format!("{}; {sentence}{everywhere}{hint}", verdict.message);
                self.end(Ending {
                    phase: Phase::Failed,
                    reason: Reason::RestartBudgetSpent,
                    message,
                });
            }
        }
        if let Some(node) = &verdict.node {
            let lasted = generation
                .started_at
                .map_or(Duration::ZERO, |at| verdict.event_at.since(at));
            self.note_on_node(node, &verdict, lasted);
        }
    }

    /// Records what a failure says about the node on which it began, and about the nodes on which
    /// the job failed before.
    fn note_on_node(&mut self, name: &NodeName, verdict: &Verdict, lasted: Duration) {
        if matches!(verdict.cause, Cause::StartFailed | Cause::StartTimeout)
            && verdict.charged == Charged::Node
        {
            let avoided = Avoided {
                node: name.clone(),
                until: self.now + AVOID,
                why: verdict.message.clone(),
            };
            self.live.avoided.push(avoided);
        }
        let Some(mut standing) = fault_ledger::at_first(verdict.cause) else {
            return;
        };
        let policy = self.policy;
        let job = &*self.job;
        let job_name = job.name.clone();
        if standing == Standing::Open {
            let elsewhere: Vec<NodeName> = failed_on(job, policy.storm_window, self.now)
                .into_iter()
                .filter(|node| *node != name)
                .cloned()
                .collect();
            if !elsewhere.is_empty() {
                standing = Standing::Acquitted;
            }
            for node in elsewhere.iter().chain([name]) {
                self.out.touch_node(self.nodes, node);
                if let Some(node) = self
                    .nodes
                    .nodes
                    .get_mut(node)
                    .filter(|_| standing == Standing::Acquitted)
                {
                    fault_ledger::acquit(&mut node.record, self.uid);
                }
            }
        }
        self.out.touch_node(self.nodes, name);
        let Some(node) = self.nodes.nodes.get_mut(name) else {
            return;
        };
        let mark = Mark {
            at: self.now,
            job: self.uid.clone(),
            name: job_name,
            cause: verdict.cause,
            lasted,
            standing,
        };
        fault_ledger::add(&mut node.record, mark, policy, self.now);
        self.consider_cordon(name);
    }

    /// Compares how the job fares without the nodes on which it failed. If it lasts longer
    /// elsewhere, it accuses them. `lasted`: how long the current generation has trained. `None`:
    /// the job has succeeded.
    pub(crate) fn compare(&mut self, lasted: Option<Duration>) {
        let job = &*self.job;
        let Some(generation) = job.current.as_ref() else {
            return;
        };
        let left: Vec<NodeName> = failed_on(job, self.policy.storm_window, self.now)
            .into_iter()
            .filter(|node| !generation.has(node))
            .cloned()
            .collect();
        for name in left {
            let Some(proof) = self
                .nodes
                .get(&name)
                .and_then(|node| fault_ledger::next_proof(&node.record, self.uid))
            else {
                continue;
            };
            if lasted.is_none_or(|lasted| lasted >= proof) {
                self.out.touch_node(self.nodes, &name);
                let node = self.nodes.nodes.get_mut(&name).expect("found above");
                fault_ledger::accuse(&mut node.record, self.uid, lasted);
                self.consider_cordon(&name);
            } else {
                self.wake(self.now + (proof - lasted.unwrap_or_default()));
            }
        }
    }

    fn consider_cordon(&mut self, name: &NodeName) {
        let (brake, policy) = (self.brake, self.policy);
        cordon::consider(self.nodes, self.others, name, brake, policy, self.out);
    }
}

/// Brings a job to its end. Whatever still runs is stopped.
pub(crate) fn end(nodes: &Registry, job: &mut JobRecord, ending: Ending) {
    let grace = match ending.phase {
        Phase::Cancelled => job.spec.stop_grace_period,
        // The processes that are left are torchrun's, in their exit barrier.
        Phase::Succeeded => Duration::from_secs(1),
        _ => Duration::ZERO,
    };
    let reason = ending.message.clone();
    if let Some(generation) = &job.current {
        let steps = generation::steps(nodes, &job.uid, generation);
        job.last_step = steps.last.or(job.last_step);
    }
    job.ending = Some(ending);
    job.retire_current(Stopping { reason, grace });
}

/// Nodes on which a failure of this job began within the window. Only failures count that the job
/// itself may have caused.
fn failed_on(job: &JobRecord, window: Duration, now: Timestamp) -> BTreeSet<&NodeName> {
    let recent = job
        .incidents
        .iter()
        .filter(|incident| now.since(incident.detected_at) < window);
    recent
        .filter(|incident| fault_ledger::may_be_the_jobs(incident.cause))
        .filter_map(|incident| incident.node.as_ref())
        .collect()
}
