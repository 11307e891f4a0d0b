//! Writes down the state of the world at the moment at which a rule is broken, for whoever reads the log. It decides nothing.

use muster_core::fleet::job::GenerationRecord;

use crate::{trace::note, world::World};

impl World {
    /// Writes down what the leader thinks of each node, and what the store has of each job.
    pub(crate) fn tell_state(&mut self) {
        let views = self.leader().map(|leader| leader.fleet.node_views());
        for view in views.into_iter().flatten() {
            note!(
                self,
                "   {}: {:?}, cordon {:?}, no new work {:?}, {:?}",
                view.record.name,
                view.liveness,
                view.record.cordon.map(|cordon| cordon.reason),
                view.no_new_work,
                view.conditions
            );
        }
        for job in self.store.jobs.values() {
            let members = |generation: &GenerationRecord| {
                let members: Vec<String> = generation
                    .members
                    .iter()
                    .map(|member| format!("{} {:?}", member.node, member.gpus))
                    .collect();
                format!(
                    "generation {} on {members:?}, dead {:?}",
                    generation.number, generation.dead
                )
            };
            let unproven: Vec<String> = job.unproven_generations().map(members).collect();
            note!(
                self,
                "   {} of priority {}: {:?}, {}, {unproven:?}",
                job.uid,
                job.spec.priority,
                job.phase,
                job.reason
            );
        }
    }
}
