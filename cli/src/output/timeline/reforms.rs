//! Re-forms with their phases, one for each incident.
//!
//! The phases are those of the receipts, one after the other, as they are told. Two re-forms may overlap, because a failure is
//! dated to when it happened and not to when it was noticed.

use muster_proto::v1::{ExplainResponse, Incident, StartPhases};
use serde_json::{Map, Value, json};

use super::{super::document, Bar, Life, known};

/// What followed one incident, so far as it was measured.
pub(in crate::output) struct Reform<'a> {
    /// Which incident of the job it is, from 1.
    pub(in crate::output) number: u32,
    pub(in crate::output) incident: &'a Incident,
    /// Named after the cause. Without length if nothing was measured.
    pub(in crate::output) whole: Bar,
    pub(in crate::output) phases: Vec<Bar>,
}

/// All of them, in the order of the answer.
pub(in crate::output) fn of(life: Life, answer: &ExplainResponse) -> Vec<Reform<'_>> {
    let numbered = answer.incidents.iter().zip(answer.incidents_dropped + 1..);
    numbered
        .map(|(incident, number)| reform(life, incident, number))
        .collect()
}

fn reform(life: Life, incident: &Incident, number: u32) -> Reform<'_> {
    let from = life.at(incident.at_unix_us);
    let mut at = from;
    let mut bars = Vec::new();
    for (name, us, args) in phases(incident) {
        let to = life.at(at.saturating_add(us.unwrap_or(0)));
        bars.push(Bar {
            from: at,
            to,
            name: name.to_owned(),
            category: "phase",
            args,
        });
        at = to;
    }
    bars.retain(|bar| bar.from < bar.to);
    let whole = Bar {
        from,
        to: at,
        name: incident.cause.clone(),
        category: "reform",
        args: args(incident),
    };
    Reform {
        number,
        incident,
        whole,
        phases: bars,
    }
}

/// What the receipt says, as `muster explain -o json` says it, without stacks.
fn args(incident: &Incident) -> Map<String, Value> {
    let mut args = known(document::incident(incident.clone()));
    if let Some(stall) = &incident.stall {
        args.insert("stall".into(), stall.sentence.clone().into());
    }
    args
}

type Phase = (&'static str, Option<u64>, Map<String, Value>);

fn phases(incident: &Incident) -> Vec<Phase> {
    let plain = |name, us| (name, us, Map::new());
    let (detect, decide) = (
        plain("detect", incident.detect_us),
        plain("decide", incident.decide_us),
    );
    let launch = plain("launch", incident.launch_us);
    if !incident.restarted_ranks.is_empty() {
        return vec![detect, decide, launch];
    }
    let mut phases = vec![
        detect,
        decide,
        plain("stop (proof of death)", incident.stop_us),
        launch,
    ];
    let has_started = incident.join_us.or(incident.first_step_us).is_some();
    match incident.start.as_ref().filter(|_| has_started) {
        Some(start) => phases.extend(of_start(start)),
        None => {
            phases.push(plain("join", incident.join_us));
            phases.push(plain("first step", incident.first_step_us));
        }
    }
    phases
}

/// The time between the launch and the first step, in the order of the receipt.
fn of_start(start: &StartPhases) -> [Phase; 7] {
    let plain = |name, us| (name, us, Map::new());
    let imports = start.imports.iter().map(|one| {
        known(json!({ "package": one.name, "us": one.us, "why": Some(&one.why).filter(|why| !why.is_empty()) }))
    });
    let imports: Vec<Value> = imports.map(Value::Object).collect();
    let parts = start.nccl.iter();
    let parts: Vec<Value> = parts
        .map(|part| json!({ "part": part.name, "us": part.us }))
        .collect();
    [
        plain("fork", start.fork_us),
        (
            "imports",
            start.imports_us,
            known(json!({ "longest": imports })),
        ),
        plain("GPU", start.gpu_us),
        plain("join", start.join_us),
        plain("model", start.model_us),
        ("NCCL", start.nccl_us, known(json!({ "longest": parts }))),
        plain("first step", start.first_step_us),
    ]
}
