//! Decides whether a training generation is kept, or replaced by one of another size or on other
//! nodes. It never starts a generation: `open` does.

use std::time::Duration;

use crate::{
    fleet::{
        budget, capacity, crash_loop, ending, fault_ledger, generation,
        job::{Ending, GenerationRecord, JobRecord, Phase, Reason, Stopping},
        job_turn::{Facts, JobTurn},
        members::{Member, size},
        placement::Placement,
        prewarm::Readiness,
        receipt::{Cause, Incident},
        rules::{self, Ruling},
        slow, unhealthy,
        voluntary::{self, Later},
        worker_pod::is_pod,
    },
    health::TERMINATION_NOTICE,
    id::NodeName,
    slow::{Slow, SlowRank},
    spec::{
        OnSlowRank,
        rules::{Then, When},
    },
    time::Timestamp,
};

/// How often a job that would leave slow nodes, and has no room elsewhere, asks for it.
const SLOW_AGAIN: Duration = Duration::from_secs(10);

/// What should become of a training generation.
#[derive(Debug)]
enum Resize {
    Keep,
    /// The generation is kept, and looked at again at this moment.
    KeepUntil(Timestamp),
    /// The generation is kept for now, although it will change.
    PutOff(Later),
    /// A rank has ended well, so the others are about to, and what they still write would be lost.
    /// The text names the rank.
    KeepForEnd(String),
    /// A user wants fewer nodes.
    Shrink(u32),
    /// A user wants fewer nodes, and the smaller generation could not be opened: its members' nodes
    /// take no new work.
    CannotShrink(String),
    /// A member's machine will be taken away. The next generation is opened without it. It may be
    /// smaller, or may have to wait for enough nodes. The text names the node and the reason.
    Leave(NodeName, String),
    /// Something on this member's node is unhealthy, and there is as much room elsewhere. The text
    /// names the node and the finding.
    Move(Vec<Member>, NodeName, String),
    /// Ranks make the others wait, the job asks to leave their nodes, and there is as much room elsewhere. The text names them.
    LeaveSlow(Vec<Member>, String),
    Grow(Vec<Member>),
}

impl JobTurn<'_> {
    /// Ends the current generation if another should take its place. A Move, LeaveSlow or Grow first waits until
    /// the joining nodes are ready, or have had their time for that.
    pub(crate) fn resize(&mut self) {
        self.wake_when_unavoided();
        (self.live.cannot_shrink, self.live.ends, self.live.later) = (None, None, None);
        loop {
            let wanted = wanted(self.facts());
            let gang = match &wanted {
                Resize::Keep => {
                    // A silence that passes is no change of mind.
                    if self.live.condition.is_sound() {
                        self.live.saves.forget_wait();
                    }
                    return self.ask_again_about_slow();
                }
                Resize::KeepUntil(at) => return self.wake(*at),
                Resize::PutOff(later) => {
                    self.live.saves.forget_wait();
                    return self.put_off(later.clone());
                }
                Resize::CannotShrink(shortfall) => {
                    self.live.cannot_shrink = Some(shortfall.clone());
                    return;
                }
                Resize::KeepForEnd(ended) => {
                    self.live.ends = Some(ended.clone());
                    return;
                }
                Resize::Shrink(_) | Resize::Leave(..) => None,
                Resize::Move(gang, ..) | Resize::LeaveSlow(gang, _) | Resize::Grow(gang) => {
                    Some(gang)
                }
            };
            match gang.map_or(Readiness::Ready, |gang| self.prewarm(gang)) {
                Readiness::Ready => {
                    let gang = gang.filter(|_| !self.live.scaled);
                    let later = gang.and_then(|_| self.live.saves.wait(self.job, self.now));
                    return match (later, gang) {
                        (Some(later), Some(gang)) => {
                            self.keep_prewarmed(gang);
                            self.put_off(later);
                        }
                        _ => self.give_way(&wanted),
                    };
                }
                Readiness::Awaited => return,
                // The nodes that refused are avoided from now on, so placement will choose others.
                Readiness::Refused => {}
            }
        }
    }

    /// The generation is kept, and looked at again then.
    fn put_off(&mut self, later: Later) {
        self.wake(later.at);
        self.live.later = Some(later);
    }

    /// A job must be woken when it stops avoiding a node, because no message reports that.
    pub(crate) fn wake_when_unavoided(&mut self) {
        let now = self.now;
        let avoided = &mut self.live.avoided;
        avoided.retain(|avoided| avoided.until > now);
        if let Some(at) = avoided.iter().map(|avoided| avoided.until).min() {
            self.wake(at);
        }
    }

    /// There is no room to leave slow nodes. Each look at a rank is news of the job, and placement is not asked at each.
    fn ask_again_about_slow(&mut self) {
        let training = self.job.training();
        if training.is_none_or(|one| slow_ranks(self.job, one, self.now).is_none()) {
            return;
        }
        let asked = self.live.slow_asks_at.filter(|at| *at > self.now);
        let at = asked.unwrap_or(self.now + SLOW_AGAIN);
        self.live.slow_asks_at = Some(at);
        self.wake(at);
    }

    fn end_instead_of_leaving(&mut self, ruling: &Ruling, message: &str) {
        let message = format!("{message}; {}", ruling.name());
        self.warn("FailedByRule", message.clone());
        ending::end_in_order(
            self.nodes,
            self.job,
            Ending {
                phase: Phase::Failed,
                reason: Reason::FailedByRule,
                message,
            },
        );
    }

    fn give_way(&mut self, to: &Resize) {
        let Some(generation) = self.job.current.as_ref() else {
            return;
        };
        let (have, number) = (generation.size(), generation.number);
        let counted = self.job.spec.counts();
        let (cause, message) = match to {
            Resize::Keep
            | Resize::KeepUntil(_)
            | Resize::PutOff(_)
            | Resize::KeepForEnd(_)
            | Resize::CannotShrink(_) => return,
            Resize::Shrink(wanted) => (
                Cause::Scaled,
                format!("shrinking from {have} to {wanted} {counted} as asked"),
            ),
            Resize::Leave(_, message) => (Cause::NodeLeaving, message.clone()),
            Resize::Move(_, _, message) => (Cause::NodeUnhealthy, message.clone()),
            Resize::LeaveSlow(_, message) => (Cause::RankSlow, message.clone()),
            Resize::Grow(gang) => {
                let cause = if self.live.scaled {
                    Cause::Scaled
                } else {
                    Cause::NodeJoined
                };
                let message = format!("growing from {have} to {} {counted}", size(gang));
                (cause, message)
            }
        };
        let steps = generation::steps(self.nodes, self.uid, generation);
        let began = generation.started_at;
        let has_run = began.is_some_and(|at| self.now.since(at) >= crash_loop::EARLY);
        let ruling = rule_about(self.facts(), to);
        if let Some(ruling) = ruling.as_ref().filter(|own| own.rule.then == Then::Fail) {
            return self.end_instead_of_leaving(ruling, &message);
        }
        let job = &mut *self.job;
        job.has_run |= has_run;
        budget::note_progress(job, &steps, self.policy, self.now);
        job.open_incident(Incident {
            cause,
            message: message.clone(),
            from: Some(number),
            from_nodes: have,
            last_step_before: steps.last,
            rule: ruling.map(|ruling| ruling.name()),
            ..Incident::at(self.now)
        });
        job.last_step = steps.last.or(job.last_step);
        slow::leave(job, self.now);
        job.retire_current(Stopping {
            reason: message.clone(),
            grace: job.spec.stop_grace_period,
        });
        self.note("Resizing", message).in_generation(number);
    }
}

fn wanted(facts: Facts<'_>) -> Resize {
    let job = facts.job;
    let Some(generation) = job.training() else {
        return Resize::Keep;
    };
    if !facts.live.condition.is_sound() {
        return Resize::Keep;
    }
    if facts.is_listening() {
        // The next generation could not be opened yet. Until then this one may as well train.
        return Resize::KeepUntil(facts.presence.listen_until);
    }
    let (have, wanted) = (generation.size(), job.replicas);
    let ended = generation::ended_well(facts.nodes, facts.uid, generation);
    if wanted < have {
        if let Some(ended) = ended {
            return Resize::KeepForEnd(ended);
        }
        return match facts.place() {
            Placement::Gang(_) => Resize::Shrink(wanted),
            Placement::Short(shortfall) => Resize::CannotShrink(shortfall.to_string()),
        };
    }
    let (leaving, ailing) = (
        unhealthy::leaving(facts.nodes, facts.job),
        unhealthy::ailing(facts.nodes, facts.job),
    );
    let asks = facts.live.slow_asks_at.is_none_or(|at| at <= facts.now);
    let slow = slow_ranks(job, generation, facts.now).filter(|_| asks);
    if wanted == have && leaving.is_none() && ailing.is_none() && slow.is_none() {
        return Resize::Keep;
    }
    let placed = facts.place();
    if let Some((node, why)) = leaving
        && (matches!(placed, Placement::Gang(_)) || ends_now(facts, node))
    {
        // A job that waited for equal room, or for the cool-down, would lose what it trained
        // since its last checkpoint.
        return Resize::Leave(node.clone(), format!("leaving {node}: {why}"));
    }
    if let Some(ended) = ended {
        return Resize::KeepForEnd(ended);
    }
    let Placement::Gang(gang) = placed else {
        return Resize::Keep;
    };
    // A user who scales a job waits for nothing.
    let of_itself = !facts.live.scaled;
    let moving = || voluntary::moving(job, generation, facts.now).filter(|_| of_itself);
    if let Some((node, why)) = ailing.filter(|_| size(&gang) >= have) {
        if let Some(later) = moving() {
            return Resize::PutOff(later);
        }
        let message = format!("moving off what is unhealthy on {node} ({why})");
        return Resize::Move(gang, node, message);
    }
    if let Some(slow) = slow
        && let Some(gang) = place_without(facts, slow)
        && size(&gang) >= have
    {
        if let Some(later) = moving() {
            return Resize::PutOff(later);
        }
        let ranks: Vec<String> = slow.ranks.iter().map(SlowRank::sentence).collect();
        let message = format!("leaving what is slow: {}", ranks.join("; "));
        return Resize::LeaveSlow(gang, message);
    }
    if size(&gang) <= have || !is_growth(facts, generation, &gang) {
        return Resize::Keep;
    }
    let later = voluntary::growth(job, generation, size(&gang), facts.now);
    match later.filter(|_| of_itself) {
        Some(later) => Resize::PutOff(later),
        None => Resize::Grow(gang),
    }
}

/// The gang that there is without the nodes of slow ranks, and those that it has left before.
fn place_without(facts: Facts<'_>, slow: &Slow) -> Option<Vec<Member>> {
    let nodes = slow.ranks.iter().map(|one| &one.node);
    let left = facts.job.left_slow.nodes(facts.now);
    facts.place_without(nodes.chain(left), &facts.reserved(), &facts.asks().ok()?)
}

/// The ranks that make the others wait, if the job is to leave their nodes for it.
pub(crate) fn slow_ranks<'g>(
    job: &JobRecord,
    generation: &'g GenerationRecord,
    now: Timestamp,
) -> Option<&'g Slow> {
    let slow = generation.slow.as_deref()?;
    let replaces = job.spec.on_slow_rank == OnSlowRank::Replace;
    (replaces && !job.left_slow.worth_leaving(slow, now).is_empty()).then_some(slow)
}

/// Whether the workers there end in a moment, whatever the job does, because their pod is being
/// deleted. If the job kept its generation because other nodes are too few, its ranks would catch
/// SIGTERM and end with an error, and the job would be charged.
fn ends_now(facts: Facts<'_>, name: &NodeName) -> bool {
    let node = facts.nodes.get(name).filter(|_| is_pod(name));
    node.is_some_and(|node| {
        let mut findings = node.report.health.findings.iter();
        findings.any(|finding| finding.check == TERMINATION_NOTICE)
    })
}

/// Whether every member stays, except on nodes that get no new work.
fn is_growth(facts: Facts<'_>, generation: &GenerationRecord, gang: &[Member]) -> bool {
    let stays = |node: &NodeName| gang.iter().any(|member| &member.node == node);
    let unwanted = |node: &NodeName| {
        facts.nodes.get(node).is_some_and(|node| {
            let record = &facts.nodes.blamed(node).record;
            facts.nodes.is_cordoned(node)
                || capacity::no_new_work(facts.nodes, node).is_some()
                || fault_ledger::shunned_by(record, facts.uid, facts.policy, facts.now)
        })
    };
    let mut members = generation.members.iter().map(|member| &member.node);
    members.all(|node| stays(node) || unwanted(node))
}

/// The job's own rule about the node that it leaves, because the node is taken away or is broken.
fn rule_about(facts: Facts<'_>, to: &Resize) -> Option<Ruling> {
    let (node, when) = match to {
        Resize::Leave(node, _) => (node, When::Evicted),
        Resize::Move(_, node, _) => (node, When::NodeLost),
        _ => return None,
    };
    let current = facts.job.current.as_ref();
    let roles = current.map_or(Vec::new(), |generation| rules::roles_on(generation, node));
    rules::of_leaving(&facts.job.spec.rules, when, &roles)
}
