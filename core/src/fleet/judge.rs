//! Is the current generation done, or broken, and who pays for it.
//!
//! All evidence of one burst is judged together, a coalesce window after the first of it, or as
//! soon as it is conclusive. A break opens an incident, charges whom blame names, and retires the
//! generation; what comes next is `settle`'s.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    fleet::{
        Cordon, Fleet, MUSTER,
        blame::{self, Evidence, UNDER_WAY, Verdict},
        budget::{self, AVOID, Avoided, IN_VAIN_MAX, Restart},
        crash_loop::{self, CrashLoop},
        fault_ledger::{self, Mark, Standing},
        generation::{self, Completion},
        job::{Ending, JobRecord, Phase, Stopping},
        placement::Placement,
        receipt::{Cause, Charged, Incident},
        settle::SharedSilence,
        turn::Scratch,
    },
    id::{JobUid, NodeName},
    planted::{self, Mistake},
    spec::Progress,
    time::Timestamp,
};
/// How long torchrun processes may wait for each other after every rank ended well, before Muster
/// ends them: their own exit barrier would wait 300 s for a node that is gone.
const EXIT_BARRIER: Duration = Duration::from_secs(5);

/// How often it is looked whether everybody has spoken since.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl Fleet {
    /// Is the current generation done, or broken?
    pub(crate) fn judge(&mut self, uid: &JobUid, now: Timestamp, scratch: &mut Scratch) {
        self.live(uid).frozen = None;
        let job = &self.jobs[uid];
        let Some(generation) = job.current.as_ref().filter(|_| job.ending.is_none()) else {
            return;
        };
        let patience = generation::patience(generation, self.present_since, &self.policy);
        if generation.started {
            match generation::completion(&self.nodes, uid, generation) {
                Completion::Done => return self.succeed(uid, now, scratch),
                Completion::RanksDone => {
                    let all_here = generation
                        .members
                        .iter()
                        .all(|m| self.nodes.get(&m.node).is_some_and(|n| n.is_ready()));
                    let since = *self.live(uid).ranks_done.get_or_insert(now);
                    if !all_here || now.since(since) >= EXIT_BARRIER {
                        return self.succeed(uid, now, scratch);
                    }
                    return self.wake_job(uid, since + EXIT_BARRIER);
                }
                Completion::Training => {}
            }
        } else if now <= patience {
            self.wake_job(uid, patience + Duration::from_millis(1));
        }
        let generation = self.jobs[uid].current.as_ref().expect("checked above");
        let mut evidence = generation::evidence(&self.nodes, uid, generation, now, patience);
        let receipt = self.jobs[uid]
            .incidents
            .last()
            .filter(|incident| incident.to == Some(generation.number));
        if receipt.is_some_and(|incident| incident.launched_at.is_some()) {
            evidence.iter_mut().for_each(Evidence::had_launched);
        }
        evidence.extend(self.mismatched(uid, now));
        if !evidence.iter().any(Evidence::breaks) {
            let live = self.live(uid);
            (live.doubted, live.stranded, live.shared_silence) =
                (None, None, SharedSilence::default());
            return;
        }
        let doubted = *self.live(uid).doubted.get_or_insert(now);
        if now < doubted + self.policy.coalesce && !blame::is_conclusive(&evidence) {
            return self.wake_job(uid, doubted + self.policy.coalesce);
        }
        let late = blame::too_late(&evidence);
        if evidence.iter().all(|e| e.is_victim() || late(e)) {
            let generation = self.jobs[uid].current.as_ref().expect("checked above");
            let listening = self.is_listening(now);
            let patience = if listening {
                self.listen_until
            } else {
                doubted + self.heartbeat() * (self.policy.suspect_missed + 1)
            };
            if now < patience
                && generation::may_have_a_culprit(
                    &self.nodes,
                    generation,
                    &evidence,
                    doubted + UNDER_WAY,
                )
            {
                return self.wake_job(uid, patience.min(now + LOOK_AGAIN));
            }
        }
        let generation = self.jobs[uid].current.as_ref().expect("checked above");
        if let Some(brake) = &self.brake
            && evidence.iter().all(Evidence::is_silence)
            && generation::unheard(&self.nodes, generation)
            && !planted::on(Mistake::BrakeIgnored)
        {
            let why = brake.sentence(&self.policy);
            self.live(uid).frozen = Some(why);
            return;
        }
        if evidence
            .iter()
            .all(|e| matches!(e, Evidence::NodeSilent { .. }))
        {
            let placement = self.place(uid, now);
            let listen = self.policy.listen;
            let live = self.live(uid);
            if let Placement::Short(shortfall) = placement {
                // Nobody is dead, and there is nothing better to go to: if the silent node comes
                // back, training goes on where it was.
                live.stranded = Some(shortfall.to_string());
                live.shared_silence = SharedSilence {
                    silent_most: live.shared_silence.silent_most.max(evidence.len()),
                    until: None,
                };
                return;
            }
            if evidence.len() < live.shared_silence.silent_most {
                let until = *live.shared_silence.until.get_or_insert(now + listen);
                if now < until {
                    return self.wake_job(uid, until);
                }
            }
        }
        self.note_stacks(uid, &evidence, now);
        self.break_generation(uid, &evidence, doubted, now, scratch);
    }

    fn succeed(&mut self, uid: &JobUid, now: Timestamp, scratch: &mut Scratch) {
        self.compare(uid, None, now, scratch);
        self.end(
            uid,
            Ending {
                phase: Phase::Succeeded,
                reason: "Completed".into(),
                message: "every rank ended with exit code 0".into(),
            },
        );
    }

    /// Brings the job to its end. What still runs is stopped.
    pub(crate) fn end(&mut self, uid: &JobUid, ending: Ending) {
        let Some(job) = self.jobs.get_mut(uid) else {
            return;
        };
        let grace = match ending.phase {
            Phase::Cancelled => job.spec.stop_grace_period,
            // torchrun processes left in their exit barrier.
            Phase::Succeeded => Duration::from_secs(1),
            _ => Duration::ZERO,
        };
        let reason = ending.message.clone();
        if let Some(generation) = &job.current {
            job.last_step = generation::steps(&self.nodes, uid, generation)
                .last
                .or(job.last_step);
        }
        job.ending = Some(ending);
        job.retire_current(Stopping { reason, grace });
    }

    fn break_generation(
        &mut self,
        uid: &JobUid,
        evidence: &[Evidence],
        doubted: Timestamp,
        now: Timestamp,
        scratch: &mut Scratch,
    ) {
        let generation = self.jobs[uid]
            .current
            .clone()
            .expect("only a current generation is judged");
        let steps = generation::steps(&self.nodes, uid, &generation);
        let advanced = steps.last > self.jobs[uid].last_step;
        let in_vain = if advanced { 0 } else { self.jobs[uid].in_vain };
        let Some(mut verdict) =
            blame::judge(evidence, generation.members.len(), in_vain >= IN_VAIN_MAX)
        else {
            return;
        };
        if verdict.event_at == Timestamp::default() {
            // A refusal has no moment of its own, and a launcher's end has one only once its group
            // is dead.
            verdict.event_at = doubted;
        }
        let (policy, job) = (
            self.policy.clone(),
            self.jobs.get_mut(uid).expect("settled jobs exist"),
        );
        let name = job.name.clone();
        budget::note_progress(job, steps.last, &policy, now);
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
            budget::charge(job, &policy, now)
        } else {
            Restart::At(now)
        };
        // Survivors of a broken synchronous generation can make no step any more: time to save one
        // would be time lost.
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
        let live = self.live(uid);
        (
            live.doubted,
            live.stranded,
            live.shared_silence,
            live.ranks_done,
        ) = (None, None, SharedSilence::default(), None);
        let reason = format!("{:?}", verdict.cause);
        self.event(
            scratch,
            now,
            true,
            &reason,
            verdict.message.clone(),
            Some((uid, &name, Some(generation.number))),
            verdict.node.as_ref(),
        );
        let hint = crash_loop.as_ref().and_then(CrashLoop::sentence);
        if let Some(hint) = hint
            .as_ref()
            .filter(|_| crash_loop.as_ref().is_some_and(CrashLoop::is_new))
        {
            let message = format!("{name}: {hint} (muster logs {})", name.name);
            self.event(
                scratch,
                now,
                true,
                "CrashLoop",
                message,
                Some((uid, &name, Some(generation.number))),
                None,
            );
        }
        match restart {
            Restart::At(at) => {
                self.jobs
                    .get_mut(uid)
                    .expect("settled jobs exist")
                    .not_before = Some(at).filter(|at| *at > now)
            }
            Restart::Spent(sentence) => {
                let nodes = failed_on(&self.jobs[uid], policy.storm_window, now).len();
                let everywhere = if nodes > 1 {
                    format!("; its failures began on {nodes} different nodes")
                } else {
                    String::new()
                };
                let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                let message = format!("{}; {sentence}{everywhere}{hint}", verdict.message);
                self.end(
                    uid,
                    Ending {
                        phase: Phase::Failed,
                        reason: "RestartBudgetSpent".into(),
                        message,
                    },
                );
            }
        }
        if let Some(node) = &verdict.node {
            let lasted = generation
                .started_at
                .map_or(Duration::ZERO, |at| verdict.event_at.since(at));
            self.note_on_node(uid, node, &verdict, lasted, now, scratch);
        }
    }

    /// What a failure says about the node on which it began, and about those on which the job
    /// failed before.
    fn note_on_node(
        &mut self,
        uid: &JobUid,
        name: &NodeName,
        verdict: &Verdict,
        lasted: Duration,
        now: Timestamp,
        scratch: &mut Scratch,
    ) {
        if matches!(verdict.cause, Cause::StartFailed | Cause::StartTimeout)
            && verdict.charged == Charged::Node
        {
            let avoided = Avoided {
                node: name.clone(),
                until: now + AVOID,
                why: verdict.message.clone(),
            };
            self.live(uid).avoided.push(avoided);
        }
        let Some(mut standing) = fault_ledger::at_first(verdict.cause) else {
            return;
        };
        let policy = self.policy.clone();
        let job = &self.jobs[uid];
        let job_name = job.name.clone();
        if standing == Standing::Open {
            let elsewhere: Vec<NodeName> = failed_on(job, policy.storm_window, now)
                .into_iter()
                .filter(|node| *node != name)
                .cloned()
                .collect();
            if !elsewhere.is_empty() {
                standing = Standing::Acquitted;
            }
            for node in elsewhere.iter().chain([name]) {
                self.touch_node(node, scratch);
                if let Some(node) = self
                    .nodes
                    .nodes
                    .get_mut(node)
                    .filter(|_| standing == Standing::Acquitted)
                {
                    fault_ledger::acquit(&mut node.record, uid);
                }
            }
        }
        self.touch_node(name, scratch);
        let Some(node) = self.nodes.nodes.get_mut(name) else {
            return;
        };
        let mark = Mark {
            at: now,
            job: uid.clone(),
            name: job_name,
            cause: verdict.cause,
            lasted,
            standing,
        };
        fault_ledger::add(&mut node.record, mark, &policy, now);
        self.consider_cordon(name, now, scratch);
    }

    /// How the job fares without the nodes it failed on: what lasts longer elsewhere accuses them.
    /// `lasted`: how long its current generation has trained; `None`: it has come to its good end.
    pub(crate) fn compare(
        &mut self,
        uid: &JobUid,
        lasted: Option<Duration>,
        now: Timestamp,
        scratch: &mut Scratch,
    ) {
        let job = &self.jobs[uid];
        let Some(generation) = job.current.as_ref() else {
            return;
        };
        let left: Vec<NodeName> = failed_on(job, self.policy.storm_window, now)
            .into_iter()
            .filter(|node| !generation.has(node))
            .cloned()
            .collect();
        for name in left {
            let Some(proof) = self
                .nodes
                .get(&name)
                .and_then(|node| fault_ledger::next_proof(&node.record, uid))
            else {
                continue;
            };
            if lasted.is_none_or(|lasted| lasted >= proof) {
                self.touch_node(&name, scratch);
                let node = self.nodes.nodes.get_mut(&name).expect("found above");
                fault_ledger::accuse(&mut node.record, uid, lasted);
                self.consider_cordon(&name, now, scratch);
            } else {
                self.wake_job(uid, now + (proof - lasted.unwrap_or_default()));
            }
        }
    }

    /// Cordons a node against which enough counts, if that may be.
    fn consider_cordon(&mut self, name: &NodeName, now: Timestamp, scratch: &mut Scratch) {
        let Some(node) = self.nodes.get(name) else {
            return;
        };
        let Some(reason) = fault_ledger::storm(&node.record, &self.policy, now)
            .filter(|_| node.record.cordon.is_none())
        else {
            return;
        };
        let braked = self
            .brake
            .as_ref()
            .map(|brake| brake.sentence(&self.policy));
        match braked.or_else(|| {
            budget::cordon_veto(
                self.nodes.nodes.values().map(|node| &node.record),
                &self.policy,
                now,
            )
        }) {
            None => self.set_cordon(
                name,
                Some(Cordon {
                    by: MUSTER.into(),
                    reason,
                    at: now,
                }),
                now,
                scratch,
            ),
            Some(veto) => {
                let message = format!("{name} should be cordoned ({reason}), but {veto}");
                self.event(
                    scratch,
                    now,
                    true,
                    "CordonWithheld",
                    message,
                    None,
                    Some(name),
                );
            }
        }
    }
}

/// Nodes on which failures of this job began within the window that may have been its own doing.
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
