//! Chooses the jobs that a turn looks at, and takes each one step further: judge, resize, open,
//! start, close. Repeating a step without new facts changes nothing.
//!
//! Stopping generation g, choosing g+1 and bringing up its TCPStore all begin in the same turn.
//! Only the start of g+1 waits, until its members are ready and g is inert.

use crate::{
    fleet::{
        generation,
        job::{Phase, Reason},
        job_turn::JobTurn,
        scratch::Scratch,
        settle_order,
        turn::Fleet,
        unhealthy,
    },
    id::JobUid,
};

/// The first pass settles the jobs with news, which may free nodes: a member is dead, a job has
/// ended. If nodes are free already, it also serves the jobs that wait. The second gives the freed
/// nodes to the jobs that wait. The third serves jobs that must
/// avoid a node that was cordoned in the second. A job without news frees no node, and neither does
/// a cordon, so more passes would find nothing.
const PASSES: usize = 3;

impl Fleet {
    /// Settles every job that has news or waits for room, the most important first.
    pub(crate) fn settle_all(&mut self, scratch: &mut Scratch) {
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
        for pass in 0..PASSES {
            let room = std::mem::take(&mut scratch.changes.capacity);
            let concerned = |uid: &&JobUid| {
                let news = pass == 0 && scratch.changes.jobs.contains_key(*uid);
                let live = self.live.get(*uid);
                news || room && live.is_none_or(|live| !live.has_all_it_wants)
            };
            for uid in settle_order::in_order(&self.jobs, self.active.iter().filter(concerned)) {
                self.settle(&uid, scratch);
            }
            if !scratch.changes.capacity {
                break;
            }
        }
        self.jobs_wake = self.live.values().filter_map(|live| live.wake).min();
        self.jobs_wake.into_iter().for_each(|at| scratch.wake(at));
    }

    /// Settles one job. The job is taken out of the fleet meanwhile.
    fn settle(&mut self, uid: &JobUid, scratch: &mut Scratch) {
        let Some(mut job) = self.jobs.remove(uid) else {
            return;
        };
        scratch.changes.touch_job(&job);
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
            halted: &self.halted,
            policy: &self.policy,
            now: scratch.now,
            scratch,
        }
        .settle();
        self.jobs.insert(uid.clone(), job);
        self.live.insert(uid.clone(), live);
    }
}

impl JobTurn<'_> {
    fn settle(&mut self) {
        (self.live.wake, self.live.has_all_it_wants) = (None, false);
        self.live.prewarm_awaited.clear();
        self.step();
        self.end_prewarm();
    }

    fn step(&mut self) {
        if let Some(node) = self.halted_by() {
            let message = format!(
                "{node} knows more than the store, so nothing is decided (muster describe node {node})"
            );
            return self.job.say(self.job.phase, Reason::StoreBehind, message);
        }
        generation::note_all_deaths(self.nodes, self.job);
        self.note_fences();
        self.tell_forced_ends();
        self.judge();
        self.order_restarts();
        self.keep_deadlines();
        self.compare_training();
        self.suspend();
        self.resize();
        self.open();
        self.start();
        self.fill_receipt();
        self.notice_worlds();
        self.tell_step_pattern();
        self.close();
        self.describe();
        self.tell_shortage();
        self.keep_ends();
        let before = self.job.retiring.len();
        self.job.keep_proven_as_history();
        if self.job.retiring.len() < before {
            self.scratch.changes.capacity = true;
        }
        self.live.has_all_it_wants = self.has_all_it_wants();
    }

    /// Whether more room would change nothing now: the job is full, or its generation is forming. News of other nodes does not settle it then.
    fn has_all_it_wants(&self) -> bool {
        let job = &*self.job;
        let Some(generation) = job.current.as_ref().filter(|_| job.ending.is_none()) else {
            return false;
        };
        let full = generation.size() == job.replicas
            && unhealthy::ailing(self.nodes, self.job).is_none()
            && unhealthy::leaving(self.nodes, self.job).is_none();
        self.live.condition.is_sound() && (full || !generation.started)
    }

    /// Accuses the nodes on which the job failed before, if it now lasts longer than it did there.
    fn compare_training(&mut self) {
        let current = self.job.current.as_ref();
        let training = current.filter(|g| g.started && self.live.condition.doubt().is_none());
        if let Some(since) = training.and_then(|g| g.started_at) {
            self.compare(Some(self.now.since(since)));
        }
    }

    /// Ends the job once every member is proven dead or cannot be reached.
    fn close(&mut self) {
        let job = &*self.job;
        let Some(ending) = job.ending.clone().filter(|_| !job.phase.is_over()) else {
            return;
        };
        if self.is_listening() || !generation::at_rest(self.nodes, job) {
            let message = unhealthy::unkillable(self.nodes, self.job).unwrap_or(ending.message);
            return self.job.say(Phase::Stopping, ending.reason, message);
        }
        let message = format!("{}: {}", job.name, ending.message);
        self.job.say(ending.phase, ending.reason, ending.message);
        self.job.finished = Some(self.now);
        self.scratch.changes.capacity = true;
        let (reason, number) = (format!("{:?}", ending.phase), self.job.last_generation);
        match ending.phase {
            Phase::Failed => self.warn(&reason, message),
            _ => self.note(&reason, message),
        }
        .in_generation(number);
    }
}
