//! A node that knows more than the store (decision 0011). Then the store is an old copy that was
//! put back after a loss.
//!
//! Every decision is committed before any node hears of it, so no node can be ahead of the newest
//! store. A node that is ahead proves that decisions are missing. It may have seen a higher node
//! epoch or a later generation of a job, or hold workers of a job that the store never knew. The
//! coordinator then does not guess. It *halts* the node, and stores that. A halted node gets no
//! orders and no work, its workers are left alone, and nothing is decided about the jobs that it is a
//! member of, or that it holds and for which its word counts (`word`). An operator must choose what to
//! do, and the sentence names the choices.

use std::time::Duration;

use crate::{
    fleet::{
        changes::Changes,
        job::{GenerationRecord, JobRecord, Stopping},
        job_turn::JobTurn,
        output::Refusal,
        receipt::{Cause, Incident},
        state::Fleet,
        word::{self, Discounted},
    },
    hello::Hello,
    id::{Generation, JobName, JobUid, NodeName},
    run::{Obeyed, RunId, RunReport},
    time::Timestamp,
};

const REMEDY: &str = "The store is an old copy: nothing is decided about this node and its jobs, and its workers are left alone. Put back the \
newest store; or, if that is lost, start the coordinator with --accept-store, which stops what the store does not know; or, if only this \
node is odd (it came from another cluster), strike it off (muster delete node) and empty its state directory";

/// No job has had so many generations, whatever a node says. A number near the largest would leave none
/// for the next generation.
const PLAUSIBLE: Generation = Generation(1 << 48);

/// The same for a node whose word counts for no job that it says more of.
const REMEDY_ALONE: &str = "so only this node is left alone, and that job goes on by what the store knows. If the store is an old copy, put back the \
newest one; or, if that is lost, start the coordinator with --accept-store, which stops what the store does not know. If not, the node came from \
another cluster, or what it says is not true: look at it, strike it off (muster delete node) and empty its state directory";

/// What a node has seen and the store does not know.
pub(crate) struct Ahead {
    pub why: String,
    /// Its word counts for none of the jobs of which it says more, and why.
    discounted: Option<Discounted>,
}

impl Hello {
    /// What the node has obeyed of each job, and what it holds. The latter may be more, if the
    /// node's ledger is itself an older copy.
    pub(crate) fn newest(&self) -> impl Iterator<Item = (&JobUid, Generation)> {
        let held = self
            .runs
            .iter()
            .map(|run| (&run.run.job, run.run.generation));
        self.jobs_seen
            .iter()
            .map(|(job, obeyed)| (job, obeyed.generation))
            .chain(held)
    }
}

impl Ahead {
    /// What counts for every job that the node is a member of.
    fn counting(why: String) -> Self {
        Self {
            why,
            discounted: None,
        }
    }

    /// Whether it counts for a job, so that the store may be an old copy.
    pub(crate) fn counts(&self) -> bool {
        self.discounted.is_none()
    }

    /// What people are told of the halt.
    pub(crate) fn sentence(&self) -> String {
        match self.discounted {
            None => format!("{}. {REMEDY}", self.why),
            Some(because) => format!("{}; {because}, {REMEDY_ALONE}", self.why),
        }
    }
}

/// Whether this node, a member of the current generation, has gone on to a later one. Then the
/// current one was replaced by a decision that the accepted store does not know, and no node goes
/// back to it. A node that is no member proves nothing: the current generation may have been opened
/// since.
fn is_replaced(job: &JobRecord, generation: Generation, node: &NodeName) -> bool {
    let current = job.current.as_ref();
    current.is_some_and(|current| generation > current.number && current.has(node))
}

fn supersede(job: &mut JobRecord, message: String, now: Timestamp) {
    let Some(current) = job.current.as_ref() else {
        return;
    };
    let (from, from_nodes) = (Some(current.number), current.size());
    job.open_incident(Incident {
        cause: Cause::StoreAccepted,
        message: message.clone(),
        from,
        from_nodes,
        ..Incident::at(now)
    });
    job.retire_current(Stopping {
        reason: message,
        grace: Duration::ZERO,
    });
}

impl JobTurn<'_> {
    /// The halted node that holds up this job: nothing is decided about it.
    pub(crate) fn halted_by(&self) -> Option<&NodeName> {
        word::halted_by(self.halted, self.nodes, self.job)
    }
}

impl Fleet {
    /// What this node has seen and the store does not know, if there is anything. What counts for a job
    /// comes first.
    pub(crate) fn ahead_of_store(&self, hello: &Hello) -> Option<Ahead> {
        let stored = self.nodes.get(&hello.node).map(|node| node.record.epoch);
        let newer_epoch = stored
            .filter(|stored| hello.epoch_seen > *stored)
            .map(|stored| {
                format!(
                    "it has obeyed node epoch {}, the store says {stored}",
                    hello.epoch_seen
                )
            });
        let newer = |(uid, generation): (&JobUid, Generation)| {
            let job = self
                .jobs
                .get(uid)
                .filter(|job| generation > job.last_generation)?;
            Some(format!(
                "it has obeyed generation {generation} of {}, the store says {}",
                job.name, job.last_generation
            ))
        };
        // The store had forgotten this number and gave it out again before this node was heard.
        let reused = |run: &RunReport| {
            let job = self.jobs.get(&run.run.job)?;
            let current = job.current.as_ref().filter(|current| {
                current.number == run.run.generation && !current.has(&hello.node)
            })?;
            Some(format!(
                "it holds generation {} of {}, whose members in the store are others",
                current.number, job.name
            ))
        };
        // A node may rightly hold workers of an unknown job in one case: an operator deleted the
        // node, and then the job. The tombstone tells that case.
        let is_deleted = |job: &JobUid| {
            self.tombstones
                .iter()
                .any(|tombstone| &tombstone.run.job == job)
        };
        let unknown = |run: &RunReport| {
            let uid = &run.run.job;
            let lives = !run.phase.is_over() && !self.jobs.contains_key(uid) && !is_deleted(uid);
            (lives && stored.is_none() && hello.epoch_seen.0 > 0)
                .then(|| format!("it runs workers of job {uid}, which the store has never known"))
        };
        if let Some(why) = newer_epoch {
            return Some(Ahead::counting(why));
        }
        let pod_of = self.owner_of(&hello.node);
        let ahead = |uid: &JobUid, why| Ahead {
            why,
            discounted: word::counts(&hello.node, pod_of, self.jobs.get(uid)).err(),
        };
        let newer = hello
            .newest()
            .filter_map(|said| Some((said.0, newer(said)?)));
        let runs = || hello.runs.iter();
        let reused = runs().filter_map(|run| Some((&run.run.job, reused(run)?)));
        let unknown = runs().filter_map(|run| Some((&run.run.job, unknown(run)?)));
        let all = newer.chain(reused).chain(unknown);
        let mut first = None;
        for next in all.map(|(uid, why)| ahead(uid, why)) {
            match next.discounted {
                None => return Some(next),
                Some(_) => drop(first.get_or_insert(next)),
            }
        }
        first
    }

    /// Why this agent is refused as a stranger: workers were started on this node in this boot, the
    /// agent does not know of them, and its ledger is older than the node's last welcome. So it is
    /// a second agent with a state directory of its own, or its state directory was replaced. Such
    /// an agent gets no orders, because it would start the workers a second time.
    pub(crate) fn lacks_workers(&self, hello: &Hello) -> Option<String> {
        let node = self
            .nodes
            .get(&hello.node)
            .filter(|node| node.record.boot_id == hello.boot_id)?;
        if hello.epoch_seen >= node.record.epoch {
            return None;
        }
        let past = |seen: &Obeyed, run: &RunId| {
            seen.generation > run.generation || seen.over && seen.generation == run.generation
        };
        let obeyed = |run: &RunId| {
            hello
                .jobs_seen
                .get(&run.job)
                .is_some_and(|seen| past(seen, run))
        };
        let lacks = |run: &RunId| !obeyed(run) && !hello.runs.iter().any(|held| held.run == *run);
        let run = node
            .jobs
            .iter()
            .filter_map(|uid| self.jobs.get(uid))
            .find_map(|job| {
                let on_this_boot = |g: &GenerationRecord| {
                    let member = g
                        .members
                        .rank_of(&hello.node)
                        .map(|rank| &g.members[rank as usize]);
                    member.is_some_and(|member| member.boot_id == hello.boot_id)
                };
                let mut here = job
                    .unproven_generations()
                    .filter(|g| g.started && on_this_boot(g) && !g.dead.contains(&hello.node));
                here.find_map(|generation| Some(generation.run(&job.uid)).filter(lacks))
            })?;
        let (name, number) = (&self.jobs[&run.job].name, run.generation);
        Some(format!(
            "this agent does not know of generation {number} of {name}, whose workers were started on {} on this boot: another agent of this name \
             runs here with a state directory of its own, or the state directory was replaced. Stop this agent and start it with the \
             state directory that has seen node epoch {}; or, if that is lost, make sure that no worker runs there and strike the node off \
             (muster delete node {})",
            hello.node, node.record.epoch, hello.node
        ))
    }

    /// Raises the number of each job's last generation to what this node has obeyed, so that no
    /// number that a node has seen is given out again. This is for a node that is not ahead of the
    /// store, or for a store that an operator has accepted. A job that a halted node holds up is
    /// skipped. It goes on when that node connects to a coordinator that accepts the store, or when
    /// an operator deletes the node, which breaks the generation.
    pub(crate) fn accept_numbers(&mut self, hello: &Hello, now: Timestamp, changes: &mut Changes) {
        for (uid, generation) in hello.newest() {
            if self.halted_by(uid).is_none() {
                self.accept_number(uid, generation, &hello.node, now, changes);
            }
        }
    }

    fn accept_number(
        &mut self,
        uid: &JobUid,
        generation: Generation,
        node: &NodeName,
        now: Timestamp,
        changes: &mut Changes,
    ) {
        let Some(job) = self.jobs.get_mut(uid) else {
            return;
        };
        let replaced = is_replaced(job, generation, node);
        let is_new = generation > job.last_generation || replaced;
        if !is_new || generation > PLAUSIBLE {
            return;
        }
        changes.touch_job(job);
        job.last_generation = job.last_generation.max(generation);
        if replaced {
            let message = format!(
                "{node} has gone on to generation {generation}, which the accepted store does not know"
            );
            supersede(job, message, now);
        }
    }

    /// The halted node that holds up this job: nothing is decided about it.
    pub(crate) fn halted_by(&self, uid: &JobUid) -> Option<&NodeName> {
        word::halted_by(&self.halted, &self.nodes, self.jobs.get(uid)?)
    }

    /// Refuses users' requests for a job that a halted node holds up.
    pub(crate) fn refuse_halted(&self, uid: &JobUid, name: &JobName) -> Result<(), Refusal> {
        match self.halted_by(uid) {
            None => Ok(()),
            Some(node) => {
                let message = format!(
                    "nothing is decided about {name}: {node} knows more than the store (muster describe node {node})"
                );
                Err(Refusal::Precondition(message))
            }
        }
    }
}
