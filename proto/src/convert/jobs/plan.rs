//! What would happen to a job. Only the coordinator says it.

use muster_core::{
    fleet::plan::{Outcome, Plan, PlannedYield, Wait},
    id::JobName,
};

use crate::{convert::start_estimate, v1};

/// For a caller who may see these jobs.
pub fn plan_to_wire(plan: &Plan, sees: impl Fn(&JobName) -> bool) -> v1::Plan {
    let (shares, wait) = match &plan.outcome {
        Outcome::Starts(shares) => {
            let share = |share: &muster_core::fleet::plan::PlannedShare| v1::PlannedShare {
                node: share.node.to_string(),
                members: share.members,
                gpus: share.gpus.clone(),
            };
            (shares.iter().map(share).collect(), None)
        }
        Outcome::Waits(wait) => (Vec::new(), Some(wait_to_wire(wait))),
    };
    v1::Plan {
        shares,
        wait,
        default_gpus: plan.default_gpus,
        held_back: plan
            .held_back
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        yields: plan.yields.iter().map(yields_to_wire).collect(),
        start: { plan.start.as_ref() }.map(|start| start_estimate::start(start, sees)),
    }
}

fn yields_to_wire(one: &PlannedYield) -> v1::PlannedYield {
    v1::PlannedYield {
        r#ref: one.job.as_ref().map(|job| v1::JobRef {
            namespace: job.namespace.clone(),
            name: job.name.clone(),
        }),
        priority: one.priority.into(),
        nodes: one.nodes.iter().map(ToString::to_string).collect(),
        evicted: one.evicted,
    }
}

fn wait_to_wire(wait: &Wait) -> v1::PlannedWait {
    let excluded = wait.excluded.iter();
    let excluded = excluded.map(|(node, cause, message)| v1::ExcludedNode {
        node: node.to_string(),
        reason: cause.to_string(),
        message: message.clone(),
    });
    let causes = wait.causes.iter();
    v1::PlannedWait {
        need: wait.need,
        have: wait.have,
        counts: wait.counts.into(),
        reason: wait.shortage.to_string(),
        passes: wait.passes,
        causes: causes
            .map(|(cause, nodes)| (cause.to_string(), *nodes))
            .collect(),
        excluded: excluded.collect(),
    }
}
