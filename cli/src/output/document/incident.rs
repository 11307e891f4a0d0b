//! An incident's receipt.

use muster_proto::v1;
use serde::Serialize;

use super::{super::words, ms, some, stall::Stall, start::StartPhases};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Incident {
    at: String,
    cause: String,
    message: String,
    /// Of what kind the first error was.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_class: Option<String>,
    from_generation: u64,
    to_generation: u64,
    from_nodes: u32,
    to_nodes: u32,
    detect_ms: Option<f64>,
    decide_ms: Option<f64>,
    stop_ms: Option<f64>,
    launch_ms: Option<f64>,
    join_ms: Option<f64>,
    first_step_ms: Option<f64>,
    /// `join_ms` and `first_step_ms`, divided further.
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<StartPhases>,
    total_ms: Option<f64>,
    steps_lost: Option<u64>,
    charged: String,
    culprit: Option<String>,
    /// The rule of the job that decided what followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// The ranks that were started again alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    restarted_ranks: Vec<u32>,
    collateral: Vec<String>,
    /// How many more there were.
    #[serde(skip_serializing_if = "is_zero")]
    collateral_more: u32,
    /// Nothing of the old generation moved any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    stall: Option<Stall>,
}

impl From<v1::Incident> for Incident {
    fn from(incident: v1::Incident) -> Self {
        Incident {
            at: words::utc(incident.at_unix_us),
            cause: incident.cause,
            message: incident.message,
            error_class: some(incident.error_class),
            from_generation: incident.from_generation,
            to_generation: incident.to_generation,
            from_nodes: incident.from_nodes,
            to_nodes: incident.to_nodes,
            detect_ms: ms(incident.detect_us),
            decide_ms: ms(incident.decide_us),
            stop_ms: ms(incident.stop_us),
            launch_ms: ms(incident.launch_us),
            join_ms: ms(incident.join_us),
            first_step_ms: ms(incident.first_step_us),
            start: incident.start.and_then(StartPhases::of),
            total_ms: ms(incident.total_us),
            steps_lost: incident.steps_lost,
            charged: incident.charged,
            culprit: some(incident.culprit),
            rule: some(incident.rule),
            restarted_ranks: incident.restarted_ranks,
            collateral: incident.collateral,
            collateral_more: incident.collateral_more,
            stall: incident.stall.map(Stall::from),
        }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
