//! Starts the generation that is being formed, once all members are ready and the previous generations
//! are inert. It never chooses members: `open` has.

use crate::fleet::{
    formed::{self, Formed},
    generation,
    job::{GenerationRecord, JobRecord, Stage},
    job_turn::{Facts, JobTurn},
    node_mix,
};

impl JobTurn<'_> {
    /// Starts the generation being formed, if it may start.
    pub(crate) fn start(&mut self) {
        let job = &*self.job;
        let Stage::Forming(generation, _) = job.stage() else {
            return;
        };
        let Some(store) = generation::tcp_store(self.nodes, self.uid, generation) else {
            return;
        };
        let peers = match job.spec.framework.tells_peers() {
            true => generation::peers(self.nodes, self.uid, generation),
            false => Some(Vec::new()),
        };
        let keys = generation::keys(self.nodes, self.uid, job.spec.framework, generation);
        let (Some(peers), Some(keys)) = (peers, keys) else {
            return;
        };
        if !may_start(self.facts(), generation) {
            return;
        }
        let job = &mut *self.job;
        let generation = job.start_generation(self.now).expect("checked above");
        (generation.store, generation.peers) = (Some(store), peers);
        generation.keys = keys;
        let number = generation.number;
        job.forget_details();
        // By now every previous generation is inert.
        let incident = job.incidents.last_mut();
        let incident = incident.filter(|one| one.to == Some(number) && one.from.is_some());
        if let Some(incident) = incident {
            incident.stopped_at.get_or_insert(self.now);
        }
        let mut message = world(self.job).unwrap_or_default();
        let stack = self.know_stacks();
        if !stack.is_empty() {
            message = format!("{message}; {stack}");
        }
        self.note("WorldFormed", message).in_generation(number);
    }
}

/// Whether all members are ready and go together, and no previous generation can make a step. A
/// generation that has already lost a member will be replaced, not started.
fn may_start(facts: Facts<'_>, generation: &GenerationRecord) -> bool {
    let mut retiring = facts.job.retiring.iter();
    let progress = facts.job.spec.progress;
    retiring.all(|g| generation::is_inert(facts.nodes, g, progress))
        && generation.dead.is_empty()
        && generation::unready(facts.nodes, facts.uid, generation).is_empty()
        && node_mix::mismatched(facts.nodes, facts.job, facts.now).is_empty()
}

/// The world of the job's current generation, for an event.
fn world(job: &JobRecord) -> Option<String> {
    let generation = job.current.as_ref()?;
    let nodes = generation.members.iter().map(|member| &member.node);
    let formed = Formed {
        generation: generation.number.0,
        world: generation.world_size().into(),
        nodes: generation.members.len(),
        members: job.spec.packs().then(|| generation.size() as usize),
        named: nodes.take(formed::NAMED).map(ToString::to_string).collect(),
    };
    Some(formed.to_string())
}
