//! The answer to "what would happen to this job": the nodes that it would get, or why it would wait. `what_if` asks.

use std::collections::BTreeMap;

use crate::{
    fleet::{
        held_back::HeldBack,
        members::Member,
        placement::{Placement, Shortfall},
        shortage::Shortage,
        start_estimate::Start,
    },
    id::{JobName, NodeName},
};

/// Nodes that a plan names. Beyond that it counts them.
const NAMED_MAX: usize = 200;

/// The answer to "what would happen".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub outcome: Outcome,
    /// GPUs of each node (or member) that it would take although it does not say it. 0: none, because too few nodes have
    /// them.
    pub default_gpus: Option<u32>,
    /// Why it would not start yet, also where there is room.
    pub held_back: Option<HeldBack>,
    /// What jobs of lower priority would give up for it.
    pub yields: Vec<PlannedYield>,
    /// When it would start, if it would wait. `None`: Kubernetes places its pods, or nothing is decided about it.
    pub start: Option<Start>,
}

/// What another job would give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedYield {
    /// `None`: it is in another namespace.
    pub job: Option<JobName>,
    pub priority: i32,
    pub nodes: Vec<NodeName>,
    pub evicted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It would start, with these shares in the order of their ranks.
    Starts(Vec<PlannedShare>),
    Waits(Wait),
}

/// A node and what the job would get of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedShare {
    pub node: NodeName,
    /// Members there.
    pub members: u32,
    /// UUIDs.
    pub gpus: Vec<String>,
}

/// Why a job would wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub need: u32,
    pub have: u32,
    /// What these two count: nodes or members.
    pub counts: &'static str,
    pub shortage: Shortage,
    /// It would start when other jobs and pods have ended, if nothing else changes.
    pub passes: bool,
    /// How many nodes there are of each cause.
    pub causes: BTreeMap<Shortage, u32>,
    /// Nodes that would not take the job, first those that it selects, at most 200.
    pub excluded: Vec<(NodeName, Shortage, String)>,
}

impl Outcome {
    pub(crate) fn of(placement: Placement<'_>) -> Outcome {
        match placement {
            Placement::Gang(gang) => {
                let share = |member: Member| PlannedShare {
                    members: member.seats.len().max(1) as u32,
                    node: member.node,
                    gpus: member.gpus,
                };
                Outcome::Starts(gang.into_iter().map(share).collect())
            }
            Placement::Short(shortfall) => Outcome::Waits(Wait::of(&shortfall)),
        }
    }
}

impl Wait {
    fn of(shortfall: &Shortfall<'_>) -> Wait {
        let mut causes: BTreeMap<Shortage, u32> = BTreeMap::new();
        for (_, why) in &shortfall.excluded {
            *causes.entry(why.shortage()).or_default() += 1;
        }
        let named = shortfall.by_worth().take(NAMED_MAX);
        let named = named.map(|(node, why)| ((*node).clone(), why.shortage(), why.sentence(node)));
        let passing = shortfall.excluded.iter().map(|(_, why)| why.passing());
        let passing: u32 = match shortfall.unit {
            "nodes" => passing.map(|members| members.min(1)).sum(),
            _ => passing.sum(),
        };
        Wait {
            need: shortfall.need,
            have: shortfall.have,
            counts: shortfall.unit,
            shortage: shortfall.shortage(),
            passes: shortfall.have.saturating_add(passing) >= shortfall.need,
            causes,
            excluded: named.collect(),
        }
    }
}
