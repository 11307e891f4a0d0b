//! Chooses the jobs that a turn looks at, and takes each one step further: judge, resize, open,
//! start, close. Repeating a step without new facts changes nothing.
//!
//! Stopping generation g, choosing g+1 and bringing up its TCPStore all begin in the same turn.
//! Only the start of g+1 waits, until its members are ready and g is inert.

use std::collections::BTreeSet;

use crate::{
    fleet::{
        apply,
        capacity::Followed,
        describe,
        eligible::{self, Eligibility},
        ending, ends, fence, fill_receipt, generation,
        job::{Ending, Phase, Reason, Stage},
        job_turn::JobTurn,
        judge, keep_time,
        lifetime::{self, Due},
        member_restart,
        reservations::waits_for_room,
        resize,
        scratch::Scratch,
        settle_order,
        state::Fleet,
        suspend, unhealthy,
    },
    id::JobUid,
    time::Timestamp,
};

/// The first pass settles the jobs with news, which may free nodes: a member is dead, a job has
/// ended. If nodes are free already, it also serves the jobs that wait, until something is freed, also by a job whose rank is
/// between theirs: those that have not been asked by then are put off to the second pass, which asks all that wait, the most
/// important first. The third serves jobs that must avoid a node that was cordoned in the second. Only a job with news frees a node,
/// and a cordon frees none, so more passes would find nothing.
const PASSES: usize = 3;

impl Fleet {
    /// Settles every job that has news or waits for room, the most important first.
    pub(crate) fn settle_all(&mut self, scratch: &mut Scratch) {
        self.follow_capacity(scratch);
        // Most turns are heartbeats, which touch no job.
        if !scratch.changes.capacity
            && scratch.changes.jobs.is_empty()
            && self.jobs_wake.is_none_or(|at| scratch.now < at)
        {
            self.jobs_wake.into_iter().for_each(|at| scratch.wake(at));
            return;
        }
        for uid in &self.active {
            let wake = self.live.get(uid).and_then(|live| live.wake);
            if wake.is_some_and(|at| at <= scratch.now)
                && let Some(job) = self.jobs.get(uid)
            {
                scratch.changes.touch_job(job);
            }
        }
        let mut put_off: BTreeSet<JobUid> = BTreeSet::new();
        for pass in 0..PASSES {
            let noted = self.note_ends_of_awaited(scratch);
            let room = std::mem::take(&mut scratch.changes.capacity);
            let concerned = |uid: &&JobUid| {
                let news = pass == 0 && scratch.changes.jobs.contains_key(*uid);
                let live = self.live.get(*uid);
                news || noted.contains(*uid)
                    || put_off.contains(*uid)
                    || room && live.is_none_or(|live| !live.has_all_it_wants)
            };
            let order = self.in_order(self.active.iter().filter(concerned));
            // Since then some have begun that kept room, and others may need less.
            if pass > 0
                && let Some(reservations) = scratch.reservations.get_mut()
            {
                reservations.forget_keeps();
                scratch.equal_asks.forget();
            }
            put_off.clear();
            let mut frees = false;
            for uid in order {
                let waits = self.jobs.get(&uid).is_some_and(waits_for_room);
                if pass == 0 && frees && waits {
                    put_off.insert(uid);
                    continue;
                }
                frees |= self.settle(&uid, scratch);
                // Those behind it have not been asked whether they want what it kept.
                scratch.changes.capacity |= !room && self.waits_no_more(&uid, scratch);
            }
            if !scratch.changes.capacity {
                break;
            }
        }
        // A job that fails because of another may be waited for itself, and so on. Each round notes an end, so they are
        // no more than there are jobs.
        loop {
            let noted = self.note_ends_of_awaited(scratch);
            if noted.is_empty() {
                break;
            }
            for uid in self.in_order(noted.iter()) {
                self.settle(&uid, scratch);
            }
        }
        // Whoever waits has been asked last with all the room that there is now. They free nothing before they have
        // stopped, so nobody need be asked again.
        scratch.give_now = true;
        let giving: Vec<JobUid> = scratch.yields.keys().cloned().collect();
        for uid in self.in_order(giving.iter()) {
            self.settle(&uid, scratch);
        }
        self.jobs_wake = self.live.values().filter_map(|live| live.wake).min();
        self.jobs_wake.into_iter().for_each(|at| scratch.wake(at));
    }

    /// Finds out whose jobs come first among equals, if it is time. If the order is another one, all that wait are asked.
    pub(crate) fn reckon_shares(&mut self, scratch: &mut Scratch) {
        let active = || self.active.iter().filter_map(|uid| self.jobs.get(uid));
        let (share, policy) = (&mut self.fair_share, &self.policy);
        scratch.changes.capacity |= share.reckon(active, &self.history, policy, scratch.now);
        let due = self.fair_share.due();
        if let Some(at) = due.filter(|_| !self.active.is_empty()) {
            scratch.wake(at);
        }
    }

    /// These jobs, the first to choose first.
    pub(crate) fn in_order<'u>(&self, jobs: impl Iterator<Item = &'u JobUid>) -> Vec<JobUid> {
        settle_order::in_order(&self.jobs, jobs, self.fair_share.standings())
    }

    /// Whether the job waited for room when this turn began, and does not any more.
    fn waits_no_more(&self, uid: &JobUid, scratch: &Scratch) -> bool {
        let before = scratch.changes.jobs.get(uid).and_then(Option::as_ref);
        let now = self.jobs.get(uid);
        before.is_some_and(waits_for_room) && !now.is_some_and(waits_for_room)
    }

    /// Settles one job. The job is taken out of the fleet meanwhile. Returns whether it has freed something.
    fn settle(&mut self, uid: &JobUid, scratch: &mut Scratch) -> bool {
        let Some(mut job) = self.jobs.remove(uid) else {
            return false;
        };
        let freed_before = std::mem::take(&mut scratch.changes.capacity);
        scratch.changes.touch_job(&job);
        // What others were to give it is decided anew.
        let yields = scratch.yields.clone();
        scratch.yields.retain(|_, given| given.to != job.name);
        let mut live = self.live.remove(uid).unwrap_or_default();
        JobTurn {
            uid,
            job: &mut job,
            live: &mut live,
            nodes: &mut self.nodes,
            others: &self.jobs,
            presence: &self.presence,
            brake: self.brake.as_ref(),
            pods: &self.pods,
            capacity: &self.capacity,
            halted: &self.halted,
            policy: &self.policy,
            standings: self.fair_share.standings(),
            now: scratch.now,
            scratch,
        }
        .settle();
        let Followed {
            holds_else,
            gave_back,
        } = self.capacity.follow(&self.nodes, &job);
        // Those before it have been asked already.
        scratch.changes.capacity |= gave_back;
        let reservations = scratch.reservations.get_mut();
        let frees = scratch.changes.capacity;
        scratch.changes.capacity |= freed_before;
        let waits_anew = reservations.is_some_and(|reservations| {
            if frees || yields != scratch.yields {
                // A limit may have held back what keeps room from now on, and nodes are on their way.
                reservations.forget_keeps();
            } else if holds_else {
                reservations.forget_coming();
            }
            reservations.follow(&job, self.fair_share.standings())
        });
        // A node may have been cordoned, or accused.
        let nodes_changed = self.nodes.has_changed();
        if frees || holds_else || waits_anew || nodes_changed || yields != scratch.yields {
            scratch.equal_asks.forget();
        }
        if let Some(ledger) = scratch.ledger.get_mut()
            && (ledger.follow(&self.policy.queues, &job) || waits_anew || yields != scratch.yields)
        {
            ledger.forget_claims();
        }
        self.jobs.insert(uid.clone(), job);
        self.live.insert(uid.clone(), live);
        if nodes_changed {
            self.count_changed_nodes();
        }
        frees
    }
}

impl JobTurn<'_> {
    fn settle(&mut self) {
        (self.live.wake, self.live.has_all_it_wants) = (None, false);
        self.live.prewarm_awaited.clear();
        self.live.prewarm_ready.clear();
        if self.step()
            && let Some(kept) = keep_time::keep_time(self.facts())
        {
            self.job.time = Some(kept.account);
            self.wake_at(kept.look_again);
        }
        self.end_prewarm();
    }

    /// Takes the job one step further, if anything may be decided about it.
    fn step(&mut self) -> bool {
        if let Some(node) = self.halted_by() {
            let message = format!(
                "{node} knows more than the store, so nothing is decided (muster describe node {node})"
            );
            self.job.say_undecided(Reason::StoreBehind, message);
            return false;
        }
        generation::note_all_deaths(self.nodes, self.job);
        let fenced = fence::note(self.nodes, self.job, self.now);
        self.wake_at(fenced);
        self.tell_forced_ends();
        self.watch_stall();
        self.watch_slow();
        self.wake_at(judge::due(self.facts()));
        let judged = judge::judge(self.facts());
        apply::apply(self, judged);
        let ordered = member_restart::order_restarts(self.job, self.now);
        self.wake_at(ordered);
        self.become_eligible();
        match lifetime::due(self.facts()) {
            Due::Never => {}
            Due::At(at) => self.wake(at),
            Due::Over(ending) => self.end_by_itself(ending),
        }
        self.compare_training();
        self.suspend();
        self.give_up();
        self.resize();
        self.open();
        self.start();
        fill_receipt::fill_receipt(self.nodes, self.job, self.now);
        self.notice_worlds();
        self.tell_step_pattern();
        self.close();
        let found = describe::find(self.facts());
        let lacks = describe::say(self.job, found);
        self.tell_shortage(lacks);
        self.notice_long_wait();
        ends::keep_ends(self.nodes, self.job);
        let before = self.job.retiring.len();
        self.job.keep_proven_as_history();
        if self.job.retiring.len() < before {
            self.scratch.changes.capacity = true;
        }
        self.live.has_all_it_wants = self.has_all_it_wants();
        true
    }

    fn suspend(&mut self) {
        let condition = &self.live.condition;
        let ended = suspend::suspend(self.job, condition, self.nodes, self.policy, self.now);
        if let Some(number) = ended {
            self.note("Suspending", suspend::MESSAGE.to_owned())
                .in_generation(number);
        }
    }

    /// Notes that the job has all that it waited for, or ends it because it will never have it.
    fn become_eligible(&mut self) {
        if self.job.is_eligible() || self.job.ends() {
            return;
        }
        match eligible::judge(self.job, self.now) {
            Eligibility::Eligible => {
                self.job.eligible = Some(self.now);
                let message = format!("{} has all that it waited for", self.job.name);
                self.note("Eligible", message);
            }
            Eligibility::Waits(waits) => self.wake_at(waits.until),
            Eligibility::Never(never) => self.end_by_itself(never.ending()),
        }
    }

    fn end_by_itself(&mut self, ending: Ending) {
        let (name, reason) = (self.job.name.clone(), format!("{:?}", ending.reason));
        let message = format!("{name}: {}", ending.message);
        match ending.phase {
            Phase::Failed => self.warn(&reason, message),
            _ => self.note(&reason, message),
        };
        ending::end_in_order(self.nodes, self.job, ending);
    }

    fn wake_at(&mut self, at: Option<Timestamp>) {
        if let Some(at) = at {
            self.wake(at);
        }
    }

    /// Whether more room would change nothing now: the job is full, or its generation is forming. News of other nodes does not settle it then.
    fn has_all_it_wants(&self) -> bool {
        let job = &*self.job;
        let Some(generation) = job.generation_now() else {
            return false;
        };
        let full = generation.size() == job.replicas
            && unhealthy::ailing(self.nodes, self.job).is_none()
            && unhealthy::leaving(self.nodes, self.job).is_none()
            && resize::slow_ranks(self.job, generation, self.now).is_none();
        self.live.condition.is_sound() && (full || !generation.started)
    }

    /// Accuses the nodes on which the job failed before, if it now lasts longer than it did there.
    fn compare_training(&mut self) {
        let training = self.job.training();
        let training = training.filter(|_| self.live.condition.doubt().is_none());
        if let Some(since) = training.and_then(|g| g.started_at) {
            self.compare(Some(self.now.since(since)));
        }
    }

    /// Ends the job once every member is proven dead or cannot be reached.
    fn close(&mut self) {
        let job = &*self.job;
        let Stage::Ending(ending) = job.stage() else {
            return;
        };
        let ending = ending.clone();
        if self.is_listening() || !generation::at_rest(self.nodes, job) {
            let message = unhealthy::unkillable(self.nodes, self.job).unwrap_or(ending.message);
            return self.job.say(ending.reason, message);
        }
        let message = format!("{}: {}", job.name, ending.message);
        self.job.close(self.now);
        self.job.say(ending.reason, ending.message);
        self.scratch.changes.capacity = true;
        let (reason, number) = (format!("{:?}", ending.phase), self.job.last_generation);
        match ending.phase {
            Phase::Failed => self.warn(&reason, message),
            _ => self.note(&reason, message),
        }
        .in_generation(number);
    }
}
