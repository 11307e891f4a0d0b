//! One job's next step: judged, resized, opened, started, closed. Called for every job that a turn
//! touched, and when a job's own timer is due; calling it again without new facts changes nothing.
//!
//! Stopping generation g, choosing g+1 and bringing its store up all begin in the same turn. Only
//! the start of g+1 waits, until every member is ready and g is inert.

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use crate::{
    fleet::{
        Fleet, account,
        budget::{self, Avoided},
        fault_ledger, generation,
        job::{GenerationRecord, Phase, Stopping},
        placement::Placement,
        prewarm::Readiness,
        receipt::{Cause, Incident},
        turn::Scratch,
    },
    id::{JobUid, NodeName},
    planted::{self, Mistake},
    run::{RunId, RunReport},
    time::Timestamp,
};

/// What is known of a job beyond its record. Lost with the process, and learnt again.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// A user scaled since the current generation was opened: no cool-down.
    pub scaled: bool,
    /// When the first evidence of a break was seen.
    pub doubted: Option<Timestamp>,
    pub ranks_done: Option<Timestamp>,
    pub avoided: Vec<Avoided>,
    /// When to look again without any news.
    wake: Option<Timestamp>,
    /// The generation cannot be replaced for want of nodes, and nobody of it is dead: it is left as
    /// it is.
    pub stranded: Option<String>,
    /// None of its nodes can be heard, and of many others neither: it is left as it is, and why.
    pub frozen: Option<String>,
    pub shared_silence: SharedSilence,
    /// Nodes that were asked to get ready for it, and those of them that are awaited, while it
    /// trains.
    pub prewarm_asked: BTreeSet<NodeName>,
    pub prewarm_awaited: BTreeSet<NodeName>,
    /// More room would change nothing for it, as it was settled last.
    has_all_it_wants: bool,
}

/// Members that were silent together, as when the coordinator itself was cut off, come back one by
/// one. The first of them must not cost the others their workers: from then on the rest has the
/// time that a restarted coordinator gives.
#[derive(Debug, Default)]
pub(crate) struct SharedSilence {
    /// How many were silent at most while nothing could be done about it.
    pub silent_most: usize,
    /// How long those who are still silent are waited for, once one has come back.
    pub until: Option<Timestamp>,
}

impl Fleet {
    pub(crate) fn settle_all(&mut self, now: Timestamp, scratch: &mut Scratch) {
        // Most turns are heartbeats, which touch no job.
        if !scratch.capacity && scratch.jobs.is_empty() && self.jobs_wake.is_none_or(|at| now < at)
        {
            self.jobs_wake.into_iter().for_each(|at| scratch.wake(at));
            return;
        }
        let due: Vec<JobUid> = self
            .active
            .iter()
            .filter(|uid| {
                self.live
                    .get(uid)
                    .and_then(|live| live.wake)
                    .is_some_and(|at| at <= now)
            })
            .cloned()
            .collect();
        for uid in due {
            self.touch_job(&uid, scratch);
        }
        // A job that ends or shrinks gives room to the next; a few passes settle any realistic
        // chain, the rest comes with the next tick.
        const PASSES: usize = 3;
        for pass in 0..PASSES {
            let room = std::mem::take(&mut scratch.capacity);
            let concerned = |uid: &&JobUid| {
                let news = pass == 0 && scratch.jobs.contains_key(uid);
                news || room && self.live.get(uid).is_none_or(|live| !live.has_all_it_wants)
            };
            let mut uids: Vec<JobUid> = self.active.iter().filter(concerned).cloned().collect();
            uids.sort_by_key(|uid| {
                self.jobs
                    .get(uid)
                    .map(|job| (Reverse(job.spec.priority), job.created, uid.clone()))
            });
            for uid in uids {
                self.settle(&uid, now, scratch);
            }
            if !scratch.capacity {
                break;
            }
        }
        self.jobs_wake = self.live.values().filter_map(|live| live.wake).min();
        self.jobs_wake.into_iter().for_each(|at| scratch.wake(at));
    }

    fn settle(&mut self, uid: &JobUid, now: Timestamp, scratch: &mut Scratch) {
        self.touch_job(uid, scratch);
        let live = self.live(uid);
        (live.wake, live.has_all_it_wants) = (None, false);
        live.prewarm_awaited.clear();
        self.step(uid, now, scratch);
        self.end_prewarm(uid, scratch);
    }

    fn step(&mut self, uid: &JobUid, now: Timestamp, scratch: &mut Scratch) {
        if let Some(node) = self.halted_by(uid) {
            let message = format!(
                "{node} knows more than the store, so nothing is decided (muster describe node {node})"
            );
            let phase = self.jobs[uid].phase;
            return self.say(uid, phase, "StoreBehind", message);
        }
        self.note_deaths(uid);
        self.note_fences(uid, now);
        self.judge(uid, now, scratch);
        self.compare_training(uid, now, scratch);
        self.resize(uid, now, scratch);
        self.open(uid, now, scratch);
        self.start(uid, now, scratch);
        self.fill_receipt(uid, now);
        self.close(uid, now, scratch);
        self.describe(uid);
        self.keep_ends(uid);
        let Some(job) = self.jobs.get_mut(uid) else {
            return;
        };
        let before = job.retiring.len();
        job.keep_proven_as_history();
        if job.retiring.len() < before {
            scratch.capacity = true;
        }
        self.live(uid).has_all_it_wants = self.has_all_it_wants(uid);
    }

    /// Whether a node that comes, is freed or gets well changes nothing for a job whose own nodes
    /// bring no news.
    fn has_all_it_wants(&self, uid: &JobUid) -> bool {
        let job = &self.jobs[uid];
        let Some(generation) = job.current.as_ref().filter(|_| job.ending.is_none()) else {
            return false;
        };
        let waits = self.live.get(uid).is_none_or(|live| {
            live.doubted.is_some()
                || live.ranks_done.is_some()
                || live.stranded.is_some()
                || live.frozen.is_some()
        });
        let full = generation.members.len() >= job.replicas as usize
            && self.ailing(uid).is_none()
            && self.leaving(uid).is_none();
        !waits && (full || !generation.started)
    }

    /// While a generation trains undoubted, the time it lasts is held against the nodes it was
    /// moved away from.
    fn compare_training(&mut self, uid: &JobUid, now: Timestamp, scratch: &mut Scratch) {
        let doubted = self
            .live
            .get(uid)
            .is_some_and(|live| live.doubted.is_some());
        let training = self.jobs[uid]
            .current
            .as_ref()
            .filter(|g| g.started && !doubted)
            .and_then(|g| g.started_at);
        if let Some(since) = training {
            self.compare(uid, Some(now.since(since)), now, scratch);
        }
    }

    pub(crate) fn wake_job(&mut self, uid: &JobUid, at: Timestamp) {
        let live = self.live(uid);
        live.wake = Some(live.wake.map_or(at, |before| before.min(at)));
    }

    /// Room that comes with time is no news of anybody.
    fn wake_when_unavoided(&mut self, uid: &JobUid, now: Timestamp) {
        let avoided = &mut self.live(uid).avoided;
        avoided.retain(|avoided| avoided.until > now);
        if let Some(at) = avoided.iter().map(|avoided| avoided.until).min() {
            self.wake_job(uid, at);
        }
    }

    /// Is the current generation too large for what is wanted, or could it be larger?
    fn resize(&mut self, uid: &JobUid, now: Timestamp, scratch: &mut Scratch) {
        self.wake_when_unavoided(uid, now);
        let job = &self.jobs[uid];
        let Some(generation) = job
            .current
            .as_ref()
            .filter(|g| g.started && job.ending.is_none())
        else {
            return;
        };
        if self
            .live
            .get(uid)
            .is_some_and(|live| live.doubted.is_some() || live.ranks_done.is_some())
        {
            return;
        }
        if self.is_listening(now) {
            // Its successor could not be opened yet; until then it may as well train.
            let until = self.listen_until;
            return self.wake_job(uid, until);
        }
        let (have, wanted) = (generation.members.len(), job.replicas as usize);
        let scaled = self.live.get(uid).is_some_and(|live| live.scaled);
        let (cause, message) = if wanted < have {
            (
                Cause::Scaled,
                format!("shrinking from {have} to {wanted} nodes as asked"),
            )
        } else if let Some(message) = self.departure(uid, now) {
            (Cause::NodeLeaving, message)
        } else if let Some(message) = self.reason_to_move(uid, now) {
            let due =
                generation.started_at.unwrap_or(generation.opened) + job.spec.scale_up_cooldown;
            if now < due {
                return self.wake_job(uid, due);
            }
            let Placement::Gang(gang) = self.place(uid, now) else {
                return;
            };
            match self.prewarm(uid, &gang, now, scratch) {
                Readiness::Ready => (Cause::NodeUnhealthy, message),
                Readiness::Awaited => return,
                Readiness::Refused => return self.resize(uid, now, scratch),
            }
        } else if wanted > have {
            let Placement::Gang(gang) = self.place(uid, now) else {
                return;
            };
            let leaves = |node: &NodeName| !gang.iter().any(|m| &m.node == node);
            let unwanted = |node: &NodeName| {
                let node = self.nodes.get(node);
                node.is_some_and(|n| {
                    n.record.cordon.is_some()
                        || fault_ledger::shunned_by(&n.record, uid, &self.policy, now)
                })
            };
            if gang.len() <= have
                || generation
                    .members
                    .iter()
                    .any(|m| leaves(&m.node) && !unwanted(&m.node))
            {
                return;
            }
            let due =
                generation.started_at.unwrap_or(generation.opened) + job.spec.scale_up_cooldown;
            if !scaled && now < due && !planted::on(Mistake::CooldownIgnored) {
                return self.wake_job(uid, due);
            }
            match self.prewarm(uid, &gang, now, scratch) {
                Readiness::Ready => {}
                Readiness::Awaited => return,
                Readiness::Refused => return self.resize(uid, now, scratch),
            }
            let cause = if scaled {
                Cause::Scaled
            } else {
                Cause::NodeJoined
            };
            (
                cause,
                format!("growing from {have} to {} nodes", gang.len()),
            )
        } else {
            return;
        };
        let generation = self.jobs[uid].current.as_ref().expect("looked at above");
        let (number, steps) = (
            generation.number,
            generation::steps(&self.nodes, uid, generation),
        );
        let job = self.jobs.get_mut(uid).expect("settled jobs exist");
        let (name, grace) = (job.name.clone(), job.spec.stop_grace_period);
        budget::note_progress(job, steps.last, &self.policy, now);
        job.open_incident(Incident {
            cause,
            message: message.clone(),
            from: Some(number),
            from_nodes: have as u32,
            last_step_before: steps.last,
            ..Incident::at(now)
        });
        job.last_step = steps.last.or(job.last_step);
        job.retire_current(Stopping {
            reason: message.clone(),
            grace,
        });
        job.phase = Phase::Recovering;
        self.event(
            scratch,
            now,
            false,
            "Resizing",
            message,
            Some((uid, &name, Some(number))),
            None,
        );
    }

    /// Opens the next generation, if one is due and there are nodes for it.
    fn open(&mut self, uid: &JobUid, now: Timestamp, scratch: &mut Scratch) {
        let job = &self.jobs[uid];
        if job.current.is_some() || job.ending.is_some() || job.phase.is_over() {
            return;
        }
        if let Some(at) = job.not_before.filter(|at| *at > now) {
            let crash_loop = job
                .crash_loop
                .as_ref()
                .and_then(|found| Some(format!("; {}: {}", found.sentence()?, found.symptom)));
            let message = format!(
                "restart {} waits for its back-off{}",
                job.restart_count + 1,
                crash_loop.unwrap_or_default()
            );
            self.say(uid, Phase::Recovering, "BackOff", message);
            account::waits(self.jobs.get_mut(uid).expect("settled jobs exist"), now);
            return self.wake_job(uid, at);
        }
        if self.is_listening(now) {
            let until = self.listen_until;
            return self.wake_job(uid, until);
        }
        if job.reason == "BelowMinimum" {
            self.jobs
                .get_mut(uid)
                .expect("settled jobs exist")
                .forget_stacks(now);
        }
        let gang = match self.place(uid, now) {
            Placement::Gang(gang) => gang,
            Placement::Short(shortfall) => {
                let message = shortfall.to_string();
                let job = &self.jobs[uid];
                if job.reason != "BelowMinimum" {
                    let (name, text) = (job.name.clone(), message.clone());
                    self.event(
                        scratch,
                        now,
                        true,
                        "BelowMinimum",
                        text,
                        Some((uid, &name, None)),
                        None,
                    );
                }
                self.say(uid, Phase::Pending, "BelowMinimum", message);
                account::waits(self.jobs.get_mut(uid).expect("settled jobs exist"), now);
                self.wake_when_unavoided(uid, now);
                return self.jobs[uid]
                    .asks_again_at()
                    .into_iter()
                    .for_each(|at| self.wake_job(uid, at));
            }
        };
        let (profile, mismatches) = self.agree(&gang);
        let job = self.jobs.get_mut(uid).expect("settled jobs exist");
        job.restart_count += u32::from(job.latest().is_some_and(|before| before.started));
        let kept = planted::on(Mistake::NumberKept) && job.last_generation.0 > 0;
        let number = if kept {
            job.last_generation
        } else {
            job.last_generation.next()
        };
        let (size, first) = (gang.len() as u32, job.incidents.is_empty());
        if first {
            job.open_incident(Incident {
                message: "first start".into(),
                ..Incident::at(job.created)
            });
        }
        account::goes_on(job, now);
        let waited = job.reason == "BelowMinimum"
            && job
                .incidents
                .last()
                .is_some_and(|incident| incident.to.is_some());
        if waited {
            job.open_incident(Incident {
                cause: Cause::Resumed,
                message: "enough nodes again".into(),
                ..Incident::at(now)
            });
        }
        let cause = match job.incidents.last_mut() {
            Some(incident) => {
                incident.to = Some(number);
                incident.to_nodes = size;
                incident.decided_at = Some(now);
                incident.cause
            }
            None => Cause::FirstStart,
        };
        job.nodes_used
            .extend(gang.iter().map(|member| member.node.clone()));
        job.last_generation = number;
        job.current = Some(GenerationRecord {
            number,
            cause,
            // The store stands away from node rank 0 where it can: torch before 2.7 cannot share
            // that node with it.
            store_host: gang
                .last()
                .expect("a gang has at least one member")
                .node
                .clone(),
            members: gang.into(),
            proc_per_node: job.spec.proc_per_node,
            restart_count: job.restart_count,
            store: None,
            rendezvous: RunId {
                job: uid.clone(),
                generation: number,
            }
            .to_string(),
            opened: now,
            started: false,
            started_at: None,
            previous_grace: job
                .retiring
                .last()
                .and_then(|g| g.stopping.as_ref())
                .map_or(Duration::ZERO, |s| s.grace),
            stopping: None,
            dead: Default::default(),
            fenced: Default::default(),
            profile,
            ends: Default::default(),
        });
        job.not_before = None;
        job.phase = if first {
            Phase::Forming
        } else {
            Phase::Recovering
        };
        let name = job.name.clone();
        for mismatch in mismatches {
            self.event(
                scratch,
                now,
                true,
                "MixedNodes",
                mismatch.to_string(),
                Some((uid, &name, Some(number))),
                None,
            );
        }
        let live = self.live(uid);
        (live.scaled, live.doubted, live.ranks_done, live.stranded) = (false, None, None, None);
        self.index(uid);
    }

    /// Starts the generation being formed, once everybody is ready and the one before is inert.
    fn start(&mut self, uid: &JobUid, now: Timestamp, scratch: &mut Scratch) {
        let job = &self.jobs[uid];
        let Some(generation) = job.current.as_ref().filter(|g| !g.started) else {
            return;
        };
        let inert = job
            .retiring
            .iter()
            .all(|g| generation::is_inert(&self.nodes, g, job.spec.progress));
        let Some(store) = generation::store(&self.nodes, uid, generation) else {
            return;
        };
        // One that has lost a member already will be replaced, not started.
        if !inert
            || !generation.dead.is_empty()
            || !generation::unready(&self.nodes, uid, generation).is_empty()
        {
            return;
        }
        if !self.mismatched(uid, now).is_empty() {
            return;
        }
        let job = self.jobs.get_mut(uid).expect("settled jobs exist");
        let generation = job.current.as_mut().expect("checked above");
        (generation.started, generation.started_at, generation.store) =
            (true, Some(now), Some(store));
        let (number, world, nodes) = (
            generation.number,
            generation.world_size(),
            generation.members.len(),
        );
        let names: Vec<&str> = generation
            .members
            .iter()
            .take(16)
            .map(|m| m.node.as_str())
            .collect();
        let more = if nodes > names.len() { ", ..." } else { "" };
        let message = format!(
            "generation {number}: world {world} on {nodes} nodes: {}{more}",
            names.join(", ")
        );
        if let Some(incident) = job
            .incidents
            .last_mut()
            .filter(|incident| incident.to == Some(number) && incident.from.is_some())
        {
            incident.stopped_at.get_or_insert(now);
        }
        let name = job.name.clone();
        let stack = self.know_stacks(uid, now, scratch);
        let message = if stack.is_empty() {
            message
        } else {
            format!("{message}; {stack}")
        };
        self.event(
            scratch,
            now,
            false,
            "WorldFormed",
            message,
            Some((uid, &name, Some(number))),
            None,
        );
    }

    /// Fills in what has happened since of the receipt of the current generation.
    fn fill_receipt(&mut self, uid: &JobUid, now: Timestamp) {
        let job = &self.jobs[uid];
        let Some(generation) = job.current.as_ref() else {
            return;
        };
        let Some(incident) = job
            .incidents
            .last()
            .filter(|i| i.to == Some(generation.number))
        else {
            return;
        };
        let mut filled = incident.clone();
        if !job.retiring.is_empty()
            && !job
                .retiring
                .iter()
                .any(|g| generation::awaited(&self.nodes, g))
        {
            filled.stopped_at.get_or_insert(now);
        }
        // Where one is to blame, others may fall because of it after it was judged and before they
        // are stopped.
        if let Some(from) = incident
            .from
            .filter(|_| incident.culprit.is_some() && incident.launched_at.is_none())
            && let Some(fell) = job
                .retiring
                .iter()
                .find(|generation| generation.number == from)
        {
            let known: BTreeSet<&String> = incident
                .culprit
                .iter()
                .chain(&incident.collateral)
                .collect();
            let fell = generation::victims(&self.nodes, uid, fell);
            filled
                .collateral
                .extend(fell.into_iter().filter(|name| !known.contains(name)));
        }
        if generation.started {
            if filled.launched_at.is_none() {
                let started =
                    |run: &RunReport| run.ranks.iter().filter_map(|rank| rank.started_at).min();
                let launched: Option<Vec<Timestamp>> =
                    generation::reports(&self.nodes, uid, generation)
                        .map(|(_, run)| run.and_then(started))
                        .collect();
                filled.launched_at = launched.and_then(|all| all.into_iter().max());
            }
            let joined = generation::report(&self.nodes, uid, generation, &generation.store_host)
                .and_then(|run| run.all_joined_at);
            filled.joined_at = filled.joined_at.or(joined);
            if filled.first_step_at.is_none()
                && let Some((at, step)) = generation::steps(&self.nodes, uid, generation).first
            {
                (filled.first_step_at, filled.first_step_after) = (Some(at), Some(step));
            }
        }
        if filled != *incident
            && let Some(last) = self
                .jobs
                .get_mut(uid)
                .and_then(|job| job.incidents.last_mut())
        {
            *last = filled;
        }
    }

    /// Ends the job once nothing of it runs any more, or can be asked.
    fn close(&mut self, uid: &JobUid, now: Timestamp, scratch: &mut Scratch) {
        let job = &self.jobs[uid];
        let Some(ending) = job.ending.clone().filter(|_| !job.phase.is_over()) else {
            return;
        };
        if self.is_listening(now) || !generation::at_rest(&self.nodes, job) {
            let message = self.unkillable(uid).unwrap_or(ending.message);
            return self.say(uid, Phase::Stopping, &ending.reason, message);
        }
        let job = self.jobs.get_mut(uid).expect("settled jobs exist");
        (job.phase, job.reason, job.message, job.finished) = (
            ending.phase,
            ending.reason.clone(),
            ending.message.clone(),
            Some(now),
        );
        let (name, number) = (job.name.clone(), job.last_generation);
        let reason = format!("{:?}", ending.phase);
        let warning = ending.phase == Phase::Failed;
        scratch.capacity = true;
        self.event(
            scratch,
            now,
            warning,
            &reason,
            format!("{name}: {}", ending.message),
            Some((uid, &name, Some(number))),
            None,
        );
    }
}
