//! `muster report --otlp`: a job's life as one trace of OpenTelemetry, the request that a collector takes at `/v1/traces`.
//!
//! What `timeline` tells, as spans: the job; below it its states and its incidents with their phases. An incident is below
//! the state that holds the whole of it, if one does. Events are events of the job's span.
//!
//! A span has a start and an end, so what still goes on ends at the moment of the export and has `muster.running`. Ids come
//! from the job's uid and from what the span is, so a second export of a job names the same spans.
//!
//! | file | owns |
//! |---|---|
//! | `format` | the messages of the protocol and their JSON |
//! | `culprit` | which rank and node a receipt names, and how it ended |
//! | `ids` | which ids a job and its spans have |

mod culprit;
mod format;
mod ids;
#[cfg(test)]
mod tests;

use muster_core::fleet::receipt::Cause;
use muster_proto::v1::{ExplainResponse, Job, JobPhase};
use serde_json::{Map, Value, json};

pub(crate) use self::format::Export;
use self::{
    format::{Attribute, Happened, Span, Status, attributes},
    ids::{Ids, SpanId},
};
use super::{
    timeline::{
        self, Bar, Life, known, moment, nested,
        reforms::{self, Reform},
        state, told,
        worlds::{self, World},
    },
    words,
};

/// Nodes that a span names, as many as the sentence of an earlier generation does.
const NODES_NAMED: usize = 16;

pub(crate) fn export(answer: &ExplainResponse, now_us: u64) -> Export {
    let job = answer.job.clone().unwrap_or_default();
    let life = Life::of(answer, &job, now_us);
    let worlds = worlds::of(life, answer, &job);
    let mut ids = Ids::of(&job.uid);
    let root = root(&mut ids, life, answer, &job, &worlds);
    let of_job = root.span_id;
    let mut spans = vec![root];
    let bars = nested(state::bars(life, answer, &job));
    let states = states(&mut ids, of_job, life, bars, &worlds);
    let outermost: Vec<(SpanId, u64, u64)> = states
        .iter()
        .filter(|state| state.parent_span_id == Some(of_job))
        .map(|state| (state.span_id, state.from, state.to))
        .collect();
    spans.extend(states);
    for reform in reforms::of(life, answer) {
        let (from, to) = (reform.whole.from, reform.whole.to);
        let holds = |state: &&(SpanId, u64, u64)| state.1 <= from && to <= state.2;
        let parent = outermost.iter().find(holds).map_or(of_job, |state| state.0);
        spans.extend(incident(&mut ids, parent, reform));
    }
    Export::of(resource(&job), spans)
}

/// The job's whole life, and everything that happened and is no incident.
fn root(ids: &mut Ids, life: Life, answer: &ExplainResponse, job: &Job, worlds: &[World]) -> Span {
    let named = job.r#ref.clone().unwrap_or_default();
    let status = job.status.clone().unwrap_or_default();
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let facts = known(json!({
        "kind": "job",
        "running": (!life.is_over).then_some(true),
        "phase": words::phase(status.phase),
        "reason": some(&status.reason),
        "message": some(&status.message),
        "owner": some(&job.owner),
        "generation": status.generation,
        "restarts": status.restarts,
        "lastStep": status.last_step,
        "notes": timeline::notes(answer, worlds),
    }));
    let mut attributes = attributes(&facts);
    let status = match status.phase() {
        JobPhase::Succeeded => Some(Status::ok()),
        JobPhase::Failed => {
            attributes.push(Attribute::text("error.type", &status.reason));
            Some(Status::error(&status.message))
        }
        _ => None,
    };
    let events = answer.timeline.iter();
    let events = events.filter(|event| !told(answer, event));
    Span {
        attributes,
        status,
        events: events
            .map(|event| {
                let moment = moment(life, event);
                Happened::at(moment.at, moment.name, &without_time(moment.args))
            })
            .collect(),
        ..Span::of(
            ids,
            "job",
            None,
            format!("{}/{}", named.namespace, named.name),
            (life.start, life.end),
        )
    }
}

/// States, and below them what says more of a part of their time.
fn states(ids: &mut Ids, job: SpanId, life: Life, bars: Vec<Bar>, worlds: &[World]) -> Vec<Span> {
    let mut open: Vec<(u64, SpanId)> = Vec::new();
    let mut spans = Vec::new();
    for mut bar in bars {
        open.retain(|(end, _)| *end > bar.from);
        let parent = open.last().map_or(job, |(_, above)| *above);
        let what = format!("state/{}/{}", bar.name, bar.from);
        bar.args.insert("kind".into(), bar.category.into());
        if bar.to == life.end && !life.is_over {
            bar.args.insert("running".into(), true.into());
        }
        bar.args.extend(world(&bar, worlds));
        let span = Span {
            attributes: attributes(&bar.args),
            ..Span::of(ids, &what, Some(parent), bar.name, (bar.from, bar.to))
        };
        open.push((bar.to, span.span_id));
        spans.push(span);
    }
    spans
}

/// The nodes and ranks of the generation that a state is about.
fn world(state: &Bar, worlds: &[World]) -> Map<String, Value> {
    let generation = state.args.get("generation").and_then(Value::as_u64);
    let world = worlds
        .iter()
        .find(|world| Some(world.formed.generation) == generation);
    world.map_or_else(Map::new, |world| {
        let named = &world.nodes[..world.nodes.len().min(NODES_NAMED)];
        known(json!({
            "worldSize": world.formed.world,
            "nodes": world.formed.nodes,
            "nodeNames": named,
        }))
    })
}

/// An incident with the phases of what followed.
fn incident(ids: &mut Ids, parent: SpanId, reform: Reform<'_>) -> Vec<Span> {
    let Reform {
        number,
        incident,
        whole,
        phases,
    } = reform;
    let what = format!("incident/{number}");
    let mut args = without_time(whole.args);
    // The phases are spans.
    args.remove("start");
    args.insert("kind".into(), "incident".into());
    args.insert("incident".into(), number.into());
    let mut attributes = attributes(&args);
    attributes.extend(culprit::attributes(incident));
    let cause = serde_json::from_value::<Cause>(Value::String(incident.cause.clone()));
    // A later version has causes that this one does not know.
    let is_failure = cause.map_or(!incident.error_class.is_empty(), Cause::is_failure);
    if is_failure {
        attributes.push(Attribute::text("error.type", &incident.cause));
    }
    let span = Span {
        attributes,
        status: is_failure.then(|| Status::error(&incident.message)),
        ..Span::of(ids, &what, Some(parent), whole.name, (whole.from, whole.to))
    };
    let above = span.span_id;
    let mut spans = vec![span];
    for mut phase in phases {
        let what = format!("{what}/{}", phase.name);
        phase.args.insert("kind".into(), phase.category.into());
        spans.push(Span {
            attributes: format::attributes(&phase.args),
            ..Span::of(ids, &what, Some(above), phase.name, (phase.from, phase.to))
        });
    }
    spans
}

/// A span and an event have their time elsewhere.
fn without_time(mut args: Map<String, Value>) -> Map<String, Value> {
    args.remove("at");
    args
}

/// Whose spans they are. OpenTelemetry has no words for a job of training, and those for Kubernetes would name other objects.
fn resource(job: &Job) -> Vec<Attribute> {
    let named = job.r#ref.clone().unwrap_or_default();
    vec![
        Attribute::text("service.name", "muster"),
        Attribute::text("service.version", crate::VERSION),
        Attribute::text("muster.job.namespace", &named.namespace),
        Attribute::text("muster.job.name", &named.name),
        Attribute::text("muster.job.uid", &job.uid),
    ]
}
