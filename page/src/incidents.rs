//! The incidents of a job with what each cost, phase by phase.

use muster_proto::v1::{Incident, Job};

use crate::words;

pub(crate) struct Row {
    pub(crate) number: u32,
    pub(crate) at: String,
    pub(crate) since_start: String,
    pub(crate) cause: String,
    pub(crate) message: String,
    pub(crate) generations: String,
    pub(crate) nodes: String,
    pub(crate) phases: Vec<Phase>,
    pub(crate) total: String,
    /// What a person reads below the phases: steps lost, who pays, who did it.
    pub(crate) facts: Vec<(&'static str, String)>,
}

/// One phase of a re-form, with its place in a bar of 1000.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// The class of its colour: each phase has one of its own.
    pub(crate) class: String,
    pub(crate) time: String,
    pub(crate) x: u64,
    pub(crate) width: u64,
}

fn phases(incident: &Incident) -> [(&'static str, Option<u64>); 6] {
    [
        ("detect", incident.detect_us),
        ("decide", incident.decide_us),
        ("stop", incident.stop_us),
        ("launch", incident.launch_us),
        ("join", incident.join_us),
        ("first step", incident.first_step_us),
    ]
}

/// The sum of what was measured.
pub(crate) fn measured_us(incident: &Incident) -> u64 {
    let all = phases(incident).into_iter().filter_map(|(_, us)| us);
    all.fold(0, u64::saturating_add)
}

/// The newest first.
pub(crate) fn rows(job: &Job, incidents: &[Incident], dropped: u32) -> Vec<Row> {
    let numbered = incidents.iter().zip(dropped + 1..);
    let mut rows: Vec<Row> = numbered
        .map(|(one, number)| row(job, one, number))
        .collect();
    rows.reverse();
    rows
}

fn row(job: &Job, incident: &Incident, number: u32) -> Row {
    let all = measured_us(incident).max(1);
    let mut x = 0;
    let phase = |(place, (name, us)): (usize, (&'static str, Option<u64>))| {
        let us = us?;
        let width = (u128::from(us) * 1000 / u128::from(all)) as u64;
        x += width;
        Some(Phase {
            name,
            class: format!("phase{place}"),
            time: words::span(us),
            x: x - width,
            width,
        })
    };
    let generations = match (incident.from_generation, incident.to_generation) {
        (0, 0) => "none formed".to_owned(),
        (0, to) => to.to_string(),
        (from, 0) => format!("{from} → none yet"),
        (from, to) if from == to => format!("{from} goes on"),
        (from, to) => format!("{from} → {to}"),
    };
    let measured = incident.total_us.map(words::span);
    Row {
        number,
        at: words::utc_seconds(incident.at_unix_us),
        since_start: words::span(incident.at_unix_us.saturating_sub(job.created_unix_us)),
        cause: incident.cause.clone(),
        message: incident.message.clone(),
        generations,
        nodes: format!("{} → {}", incident.from_nodes, incident.to_nodes),
        phases: phases(incident)
            .into_iter()
            .enumerate()
            .filter_map(phase)
            .collect(),
        total: measured.unwrap_or_else(|| "not measured to its end".to_owned()),
        facts: facts(incident),
    }
}

fn facts(incident: &Incident) -> Vec<(&'static str, String)> {
    let alone: Vec<String> = incident
        .restarted_ranks
        .iter()
        .map(u32::to_string)
        .collect();
    let mut collateral = incident.collateral.join(", ");
    if incident.collateral_more > 0 {
        collateral.push_str(&format!(" and {} more", incident.collateral_more));
    }
    let start = incident.start.clone().unwrap_or_default();
    let imports = start.imports.iter().map(|import| {
        let why = match import.why.as_str() {
            "" => String::new(),
            why => format!(" ({why})"),
        };
        format!("{} {}{why}", import.name, words::span(import.us))
    });
    let nccl = start
        .nccl
        .iter()
        .map(|part| format!("{} {}", part.name, words::span(part.us)));
    let texts = [
        ("culprit", incident.culprit.clone()),
        ("charged to", incident.charged.clone()),
        ("decided by", incident.rule.clone()),
        (
            "steps lost",
            incident
                .steps_lost
                .map_or_else(String::new, |steps| steps.to_string()),
        ),
        ("restarted alone", alone.join(", ")),
        ("collateral", collateral),
        ("imports", imports.collect::<Vec<_>>().join(", ")),
        ("NCCL", nccl.collect::<Vec<_>>().join(", ")),
    ];
    texts
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .collect()
}
