//! Jobs of a crowd, and who submits jobs where users have limits.

use muster_core::{fleet::Actor, spec::SpecDocument};

use crate::world::World;

impl World {
    /// Where there is a crowd, jobs take whole nodes, most of them a fixed number.
    pub(crate) fn whole_nodes(&mut self, spec: SpecDocument) -> SpecDocument {
        let nodes = self.rng.range(1, self.plan.members_max) as i64;
        let min = match self.rng.percent(70) {
            true => nodes,
            false => 1,
        };
        // Alike, so that only their owners say which comes first.
        let (nodes, min, priority) = match self.plan.fair_share_half_life {
            Some(_) => {
                let half = self
                    .plan
                    .machines
                    .div_ceil(2)
                    .min(self.plan.members_max as usize);
                (half as i64, half as i64, Some(0))
            }
            None => (nodes, min, spec.priority),
        };
        SpecDocument {
            replicas: Some(nodes),
            min_replicas: Some(min),
            max_replicas: Some(nodes),
            gpus_per_node: Some(self.plan.gpus.into()),
            priority,
            roles: Vec::new(),
            framework: None,
            placement: None,
            rules: Vec::new(),
            suspend: None,
            active_deadline_seconds: None,
            start_deadline_seconds: None,
            ..spec
        }
    }

    /// Who asks for something about this wish.
    pub(crate) fn actor(&self, wish: Option<usize>) -> Actor {
        let plan = &self.plan;
        match plan.user_gpus_max.is_some() || plan.fair_share_half_life.is_some() {
            // Not by the same remainder as queues.
            true => Actor::User {
                name: ["ann", "ben"][wish.unwrap_or(0) / 2 % 2].to_owned(),
            },
            false => Actor::Local { uid: 1000 },
        }
    }
}
