//! Re-forms with their phases, and the moments of incidents.
//!
//! The phases are those of the receipts, one after the other, as they are told. Two re-forms may overlap, because a failure is
//! dated to when it happened and not to when it was noticed; then they are in rows of their own.

use muster_proto::v1::{ExplainResponse, Incident, StartPhases};
use serde_json::{Map, Value, json};

use super::{Bar, Instant, Life, document, known};

/// The bars of each row, and the moments at which something happened.
pub(super) fn of(life: Life, answer: &ExplainResponse) -> (Vec<Vec<Bar>>, Vec<Instant>) {
    let mut lanes: Vec<(u64, Vec<Bar>)> = Vec::new();
    let mut moments = Vec::new();
    for (incident, number) in answer.incidents.iter().zip(answer.incidents_dropped + 1..) {
        let (name, args) = (format!("#{number} {}", incident.cause), args(incident));
        moments.push(Instant {
            at: life.at(incident.at_unix_us),
            name: name.clone(),
            category: "incident",
            args: args.clone(),
        });
        let bars = bars(life, incident, name, args);
        let (Some(first), Some(end)) = (bars.first(), bars.iter().map(|bar| bar.to).max()) else {
            continue;
        };
        match lanes.iter_mut().find(|(free, _)| *free <= first.from) {
            Some((free, lane)) => {
                *free = end;
                lane.extend(bars);
            }
            None => lanes.push((end, bars)),
        }
    }
    (lanes.into_iter().map(|(_, bars)| bars).collect(), moments)
}

/// What the receipt says, as `muster explain -o json` says it, without stacks.
fn args(incident: &Incident) -> Map<String, Value> {
    let mut args = known(document::incident(incident.clone()));
    if let Some(stall) = &incident.stall {
        args.insert("stall".into(), stall.sentence.clone().into());
    }
    args
}

/// The whole re-form, and its phases in it. Empty: nothing of it was measured.
fn bars(life: Life, incident: &Incident, name: String, args: Map<String, Value>) -> Vec<Bar> {
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
        name,
        category: "reform",
        args,
    };
    if from < at {
        bars.insert(0, whole);
    }
    bars
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
