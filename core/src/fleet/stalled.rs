//! Watches whether a training generation stands still, has its ranks looked at, and keeps what was found with the
//! generation. The rules are in [`crate::stall`]; what is done about a stall follows from the evidence that `gather` makes of it.

use std::time::Duration;

use crate::{
    fleet::{
        job_turn::JobTurn,
        output::Effect,
        receipt::Cause,
        training_ranks::{habit, ranks},
    },
    id::{Generation, NodeName},
    period,
    spec::OnStall,
    stacks::RankStack,
    stall::{self, Asked, SAME, Stage, Stall, Suspicion, Todo, UNKNOWN, Verdict, Why},
    time::Timestamp,
};

/// A job does not learn from a pause of more than this that such pauses are usual.
const LEARNT_MAX: Duration = UNKNOWN;
/// A pause is noted if it is longer than this, and longer by a tenth than the longest so far: a record is written for it.
const LEARNT_MIN: Duration = Duration::from_secs(5);
/// What has just gone on is known after this: runners look once in two seconds, and networks may be slow.
const WORD: Duration = Duration::from_secs(4);
/// A stall that was found longer ago than this is looked at again before it is acted upon: the rank that was named may have gone on
/// since, and another one may keep the others waiting.
const OLD: Duration = Duration::from_secs(60);
/// So long before the act the ranks are looked at again: time for two looks.
const AGAIN: Duration = Duration::from_secs(30);

impl JobTurn<'_> {
    /// Finds out whether the current generation stands still.
    pub(crate) fn watch_stall(&mut self) {
        let watched = self.job.training().filter(|g| g.won.is_none());
        let Some(generation) = watched.filter(|_| self.live.condition.is_sound()) else {
            return;
        };
        let Some(ranks) = ranks(self.nodes, self.uid, generation) else {
            return;
        };
        let habit = habit(&ranks, self.job.longest_pause);
        let limit = stall::limit(self.job.spec.stall_after, habit);
        let suspicion = stall::suspicion(ranks.still(), limit);
        let (busy, ended) = (ranks.busy(), ranks.ended);
        let number = generation.number;
        if let Some(stall) = &generation.stall {
            if !is_same(stall, suspicion, busy.len(), &mut self.live.busy_in_stall) {
                self.moves_again(busy.len());
                return self.wake(self.now);
            }
            match when_again(stall, self.now) {
                Again::Until(act_at) => self.wake(act_at),
                Again::At(at) => return self.wake(at),
                Again::Never => return,
            }
        }
        if self.is_listening() {
            return;
        }
        let step = self.live.stall.step(number, suspicion, self.now);
        if let Some(pause) = step.moved {
            self.learn(pause);
        }
        match step.todo {
            Todo::Nothing => {}
            Todo::Wait(at) => self.wake(at),
            Todo::Ask(look, until) => {
                self.look_at_ranks(number, look);
                self.wake(until);
            }
            Todo::Judge(first, second) => {
                let since = suspicion.map_or(self.now, |suspicion| suspicion.since);
                let idle = suspicion.map_or(self.now, |suspicion| suspicion.idle);
                let asked = Asked {
                    first: &first,
                    second: &second,
                    busy: &busy,
                    ended: &ended,
                    trained: habit.is_known(),
                    since,
                    now: self.now,
                };
                let verdict = stall::verdict(asked);
                self.conclude(verdict, &second, (idle, limit), busy.len());
            }
        }
    }

    /// Has the agents of all members find out where their ranks are.
    fn look_at_ranks(&mut self, generation: Generation, number: u64) {
        let Some(current) = &self.job.current else {
            return;
        };
        let Some(ranks) = ranks(self.nodes, self.uid, current) else {
            return;
        };
        let mut by_node: Vec<(NodeName, Vec<u32>)> = Vec::new();
        for (node, rank) in ranks.living {
            match by_node.last_mut().filter(|(last, _)| last == node) {
                Some((_, ranks)) => ranks.push(rank.rank),
                None => by_node.push((node.clone(), vec![rank.rank])),
            }
        }
        self.scratch.effects.push(Effect::LookAtRanks {
            job: self.uid.clone(),
            generation,
            number,
            ranks: by_node,
        });
    }

    /// Acts on what two looks have shown. `idle`: since when nothing has moved, and no processor was used.
    fn conclude(
        &mut self,
        verdict: Verdict,
        ranks: &[RankStack],
        (idle, limit): (Timestamp, Duration),
        busy: usize,
    ) {
        let known = { self.job.current.as_ref() }.and_then(|g| g.stall.as_deref().cloned());
        let stall = match verdict {
            Verdict::Moves(_) => {
                let at = self.live.stall.put_off(self.now);
                if known.is_some() {
                    self.moves_again(busy);
                }
                return self.wake(at);
            }
            // What was found before stands.
            Verdict::Unseen(_) => {
                let at = self.live.stall.put_off(self.now);
                return self.wake(at);
            }
            Verdict::Stalls(stall) => *stall,
        };
        let spec = &self.job.spec;
        let is_said = spec.stall_after.is_some();
        let patient = idle + Stage::LIMIT;
        let saves = || !is_said && self.now < patient && stall::stage(ranks).is_some();
        if known.is_none() && saves() {
            let at = self.live.stall.put_off_until(patient);
            return self.wake(at);
        }
        // Another program may sleep on purpose until somebody needs it.
        let may_sleep = !(stall.sure || is_said || spec.framework.is_torch());
        let says_less = !stall.sure && stall.why != Why::Held;
        let passes = match &known {
            None => may_sleep,
            Some(_) => says_less,
        };
        if passes {
            let at = self.live.stall.put_off(self.now);
            return self.wake(at);
        }
        let acts = stall.sure && spec.on_stall == OnStall::Restart;
        let stall = Stall {
            of_node: stall.of_node || self.stalled_there(&stall),
            act_at: acts.then(|| {
                let is_sure = is_said || stall.why == Why::Stopped;
                (idle + acts_after(limit, is_sure)).max(self.now + WORD)
            }),
            ..stall
        };
        if known.is_none_or(|known| known.sentence() != stall.sentence()) {
            self.tell_stall(&stall);
        }
        match when_again(&stall, self.now) {
            Again::Until(at) | Again::At(at) => self.wake(at),
            Again::Never => {}
        }
        self.live.busy_in_stall = Some(busy);
        if let Some(generation) = &mut self.job.current {
            generation.stall = Some(Box::new(stall));
        }
    }

    fn tell_stall(&mut self, stall: &Stall) {
        let name = &self.job.name;
        let still = period::format(whole_seconds(self.now.since(stall.since)));
        let follows = match stall.act_at.map(|at| at.since(self.now)) {
            Some(left) => format!("it is restarted in {}", period::format(whole_seconds(left))),
            None if self.job.spec.on_stall == OnStall::Report => "onStall: report".to_owned(),
            None => "it may wait on purpose, so nothing is done".to_owned(),
        };
        let message = format!(
            "{name}: nothing has moved for {still}: {}; {follows} (muster stacks {})",
            stall.sentence(),
            name.name
        );
        let number = self.job.last_generation;
        let node = stall.named.first().map(|named| named.node.clone());
        let event = self.warn("JobStalled", message);
        event.in_generation(number);
        if let Some(node) = node {
            event.on_node(&node);
        }
    }

    /// Whether another job has stalled on the node of the first rank that is named.
    fn stalled_there(&self, stall: &Stall) -> bool {
        let Some(node) = stall.named.first().map(|named| &named.node) else {
            return false;
        };
        let mut incidents = self.others.values().flat_map(|job| &job.incidents);
        incidents.any(|incident| {
            incident.cause == Cause::Stalled
                && incident.node.as_ref() == Some(node)
                && self.now.since(incident.detected_at) < self.policy.storm_window
        })
    }

    /// What stood still moves again, by itself.
    fn moves_again(&mut self, busy: usize) {
        let stall = self.job.current.as_mut().and_then(|g| g.stall.take());
        let Some(stall) = stall else { return };
        let pause = self.now.since(stall.since);
        if stall.why != Why::Held {
            self.learn(pause);
        }
        self.live.busy_in_stall = Some(busy);
        let name = &self.job.name;
        let message = format!(
            "{name}: it moves again, after {}",
            period::format(whole_seconds(pause))
        );
        let number = self.job.last_generation;
        self.note("JobMovesAgain", message).in_generation(number);
    }

    /// It has stood still for so long and gone on by itself, so it may do that again.
    fn learn(&mut self, pause: Duration) {
        let (pause, known) = (pause.min(LEARNT_MAX), self.job.longest_pause);
        if pause > LEARNT_MIN && pause > known + known / 10 {
            self.job.longest_pause = pause;
        }
    }
}

/// How long nothing may move before a generation is replaced. Whoever waits for a server moves nothing that a node can see. So what is
/// not sure, by the job's own word or by the kernel's, is not acted upon before NCCL's own timeout.
fn acts_after(limit: Duration, is_sure: bool) -> Duration {
    match is_sure {
        true => limit * 2,
        false => (limit * 2).max(UNKNOWN),
    }
}

/// Whether the generation still stalls as it was found. `busy`: how many of its ranks use a processor now; `then`: how many
/// did when it was found.
fn is_same(
    stall: &Stall,
    suspicion: Option<Suspicion>,
    busy: usize,
    then: &mut Option<usize>,
) -> bool {
    // A coordinator that has just begun takes it as it finds it.
    let then = *then.get_or_insert(busy);
    let still = suspicion.is_some_and(|suspicion| suspicion.since <= stall.since + SAME);
    still && busy <= then
}

/// When what was found is looked at again, or acted upon.
enum Again {
    /// Now, and what is known is acted upon at this time.
    Until(Timestamp),
    At(Timestamp),
    Never,
}

fn when_again(stall: &Stall, now: Timestamp) -> Again {
    let Some(act_at) = stall.act_at else {
        return Again::Never;
    };
    let is_new = stall.at + OLD > act_at;
    match act_at - AGAIN {
        again if !is_new && now < again => Again::At(again),
        _ if !is_new && now < act_at => Again::Until(act_at),
        _ => Again::At(act_at),
    }
}

fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs().max(1))
}
