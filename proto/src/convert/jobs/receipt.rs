//! A receipt with its phases, as users see it.

use std::time::Duration;

use muster_core::fleet::{
    phases::{Phases, StartPhases},
    receipt::{Charged, Incident},
};

use super::stall::stall_to_wire;
use crate::{convert::session::phases, v1};

/// A phase that was not reached is unset.
pub fn incident(incident: &Incident) -> v1::Incident {
    let Phases {
        detect,
        decide,
        stop,
        launch,
        join,
        first_step,
        start,
    } = incident.phases();
    v1::Incident {
        at_unix_us: incident.event_at.0,
        cause: format!("{:?}", incident.cause),
        message: incident.message.clone(),
        error_class: incident
            .class
            .map_or_else(String::new, |class| format!("{class:?}")),
        from_generation: incident.from.map_or(0, |generation| generation.0),
        to_generation: incident.to.map_or(0, |generation| generation.0),
        from_nodes: incident.from_nodes,
        to_nodes: incident.to_nodes,
        detect_us: us(detect),
        decide_us: us(decide),
        stop_us: us(stop),
        launch_us: us(launch),
        join_us: us(join),
        first_step_us: us(first_step),
        total_us: us(incident.total()),
        steps_lost: incident.steps_lost(),
        charged: charged_name(incident.charged).into(),
        culprit: incident.culprit.clone().unwrap_or_default(),
        collateral: incident.collateral.clone(),
        collateral_more: incident.collateral_more,
        rule: incident.rule.clone().unwrap_or_default(),
        restarted_ranks: incident.restarted_ranks.clone(),
        stall: incident.stall.as_deref().map(stall_to_wire),
        start: incident
            .restarted_ranks
            .is_empty()
            .then(|| start_to_wire(incident, start)),
    }
}

fn start_to_wire(incident: &Incident, start: StartPhases) -> v1::StartPhases {
    let (imports, nccl) = (&incident.seen.imports, &incident.seen.nccl);
    let imports = imports.iter().filter(|_| start.imports.is_some());
    let nccl = nccl.iter().filter(|_| start.nccl.is_some());
    v1::StartPhases {
        fork_us: us(start.fork),
        imports_us: us(start.imports),
        gpu_us: us(start.gpu),
        join_us: us(start.join),
        model_us: us(start.model),
        nccl_us: us(start.nccl),
        first_step_us: us(start.first_step),
        imports: imports
            .flat_map(|imports| imports.by.iter().map(phases::import_to_wire))
            .collect(),
        nccl: nccl
            .flat_map(|nccl| nccl.parts.iter().map(phases::part_to_wire))
            .collect(),
    }
}

/// The word by which receipts name the account that pays.
pub fn charged_name(charged: Charged) -> &'static str {
    match charged {
        Charged::Job => "job",
        Charged::Node => "node",
        Charged::Nobody => "nobody",
    }
}

fn us(time: Option<Duration>) -> Option<u64> {
    time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}
