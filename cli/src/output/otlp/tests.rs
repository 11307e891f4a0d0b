//! What a collector asks of a trace, and what a story becomes.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::v1::{Incident, JobStatus, Stall};
use proptest::prelude::*;

use super::{
    super::timeline::fixture::{SECOND, START, any_story, incident, story},
    *,
};

const NANOS: u64 = 1_000_000_000;

/// As it is sent.
fn sent(answer: &ExplainResponse, now_us: u64) -> Value {
    let text = super::super::json_line(&export(answer, now_us));
    assert_eq!(text.find('\n'), Some(text.len() - 1), "one line");
    serde_json::from_str(&text).unwrap()
}

fn spans(sent: &Value) -> &Vec<Value> {
    sent["resourceSpans"][0]["scopeSpans"][0]["spans"]
        .as_array()
        .unwrap()
}

fn text<'a>(span: &'a Value, field: &str) -> &'a str {
    span[field].as_str().unwrap_or_default()
}

/// A number of 64 bits is a text of digits.
fn number(value: &Value) -> Result<u64, String> {
    let text = value.as_str().ok_or(format!("{value} is no text"))?;
    text.parse().map_err(|why| format!("{text:?}: {why}"))
}

fn is_id(id: &str, bytes: usize) -> bool {
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    id.len() == 2 * bytes && id.chars().all(is_hex) && id.chars().any(|c| c != '0')
}

/// The attributes by their keys, each with the one field of its value.
fn attributes(of: &Value) -> Result<BTreeMap<&str, (&str, &Value)>, String> {
    let mut all = BTreeMap::new();
    for one in of["attributes"].as_array().into_iter().flatten() {
        let value = one["value"].as_object().ok_or("no value")?;
        let mut fields = value.iter();
        let (Some((kind, value)), None) = (fields.next(), fields.next()) else {
            return Err(format!("{one} has not one value"));
        };
        if kind == "intValue" {
            number(value)?;
        }
        let of_array = value["values"].as_array().into_iter().flatten();
        let kinds = of_array.flat_map(|value| value.as_object().unwrap().keys());
        let kinds: BTreeSet<&String> = kinds.collect();
        if kinds.len() > 1 || kinds.iter().any(|kind| *kind == "arrayValue") {
            return Err(format!("{one} is no list of one kind of values"));
        }
        if all
            .insert(text(one, "key"), (kind.as_str(), value))
            .is_some()
        {
            return Err(format!("{one} is there twice"));
        }
    }
    Ok(all)
}

/// Ids that are ids, one tree, children within their parents, and values that are encoded as OTLP says.
fn is_well_formed(sent: &Value) -> Result<(), String> {
    attributes(&sent["resourceSpans"][0]["resource"])?;
    let mut places: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for span in spans(sent) {
        let (trace, id) = (text(span, "traceId"), text(span, "spanId"));
        if !is_id(trace, 16) || !is_id(id, 8) || trace != text(&spans(sent)[0], "traceId") {
            return Err(format!("ids of {span}"));
        }
        let (from, to) = (
            number(&span["startTimeUnixNano"])?,
            number(&span["endTimeUnixNano"])?,
        );
        if to < from {
            return Err(format!("{span} ends before it starts"));
        }
        if places.insert(id, (from, to)).is_some() {
            return Err(format!("two spans are {id}"));
        }
        attributes(span)?;
        let status = &span["status"]["code"];
        if span["kind"] != 1 || !(status.is_null() || *status == 1 || *status == 2) {
            return Err(format!("enums of {span}"));
        }
        for event in span["events"].as_array().into_iter().flatten() {
            let at = number(&event["timeUnixNano"])?;
            attributes(event)?;
            if !(from..=to).contains(&at) || text(event, "name").is_empty() {
                return Err(format!("{event} of {id}"));
            }
        }
    }
    let mut roots = 0;
    for span in spans(sent) {
        let Some(parent) = span["parentSpanId"].as_str() else {
            roots += 1;
            continue;
        };
        let (from, to) = places[text(span, "spanId")];
        let above = places.get(parent).ok_or(format!("{span} has no parent"))?;
        if from < above.0 || above.1 < to {
            return Err(format!("{span} reaches beyond {above:?}"));
        }
    }
    (roots == 1).then_some(()).ok_or(format!("{roots} roots"))
}

/// The spans below one, and below those: depth, name, begin and end in tenths of a second.
fn tree(sent: &Value) -> Vec<(usize, &str, u64, u64)> {
    fn below<'a>(sent: &'a Value, parent: &str, depth: usize) -> Vec<(usize, &'a str, u64, u64)> {
        let mut all = Vec::new();
        let children = spans(sent).iter();
        for span in children.filter(|span| text(span, "parentSpanId") == parent) {
            let tenths =
                |field: &str| (number(&span[field]).unwrap() - START * 1_000) / (NANOS / 10);
            let (from, to) = (tenths("startTimeUnixNano"), tenths("endTimeUnixNano"));
            all.push((depth, text(span, "name"), from, to));
            all.extend(below(sent, text(span, "spanId"), depth + 1));
        }
        all
    }
    below(sent, "", 0)
}

fn named<'a>(sent: &'a Value, name: &str) -> &'a Value {
    let mut found = spans(sent).iter().filter(|span| text(span, "name") == name);
    found.next().unwrap_or_else(|| panic!("{name}: {sent:#}"))
}

fn ids(sent: &Value) -> Vec<(String, String)> {
    let id = |span: &Value| (text(span, "traceId").into(), text(span, "spanId").into());
    spans(sent).iter().map(id).collect()
}

fn running() -> ExplainResponse {
    let mut answer = story();
    let status = answer.job.as_mut().unwrap().status.as_mut().unwrap();
    status.finished_unix_us = 0;
    answer.timeline.truncate(7);
    answer
}

#[test]
fn a_job_is_a_tree_of_states_and_incidents_with_their_phases() {
    let sent = sent(&story(), START + 999 * SECOND);
    is_well_formed(&sent).unwrap();
    assert_eq!(
        tree(&sent),
        [
            (0, "team-a/digits", 0, 2000),
            (1, "waiting", 0, 100),
            (2, "waiting: BelowMinimum", 20, 100),
            (1, "starting", 100, 130),
            (1, "training", 130, 600),
            (1, "recovering", 600, 850),
            (2, "waiting: BelowMinimum", 620, 700),
            (2, "waiting: NodesOccupied", 700, 810),
            (2, "NodeLost", 600, 850),
            (3, "detect", 600, 610),
            (3, "decide", 610, 810),
            (3, "stop (proof of death)", 810, 820),
            (3, "launch", 820, 830),
            (3, "imports", 830, 835),
            (3, "join", 835, 840),
            (3, "NCCL", 840, 842),
            (3, "first step", 842, 850),
            (1, "training", 850, 1900),
            (2, "stalled", 1200, 1300),
            (2, "WorkerKilled", 1000, 1030),
            (3, "detect", 1000, 1010),
            (3, "decide", 1010, 1020),
            (3, "launch", 1020, 1030),
            (1, "stopping", 1900, 2000),
            // It began while the job waited, and ended when that was over.
            (1, "FirstStart", 0, 130),
            (2, "decide", 0, 100),
            (2, "launch", 100, 110),
            (2, "join", 110, 120),
            (2, "first step", 120, 130),
        ]
    );
}

#[test]
fn failures_are_errors_and_say_whose() {
    let mut answer = story();
    let status = answer.job.as_mut().unwrap().status.as_mut().unwrap();
    *status = JobStatus {
        reason: "WorkerFailed".into(),
        message: "é".repeat(600),
        finished_unix_us: status.finished_unix_us,
        ..JobStatus::default()
    };
    status.set_phase(JobPhase::Failed);
    answer.incidents.push(Incident {
        culprit: "rank 1 on node-3".into(),
        message: "rank 1 on node-3 ended with exit code 3: OSError".into(),
        ..incident(150, "WorkerFailed", 2, 0)
    });
    let sent = sent(&answer, 0);
    is_well_formed(&sent).unwrap();
    let failed = named(&sent, "WorkerFailed");
    assert_eq!(failed["status"]["code"], 2);
    let of_failed = attributes(failed).unwrap();
    for (key, kind, value) in [
        ("error.type", "stringValue", "WorkerFailed"),
        ("muster.charged", "stringValue", "job"),
        ("muster.culprit", "stringValue", "rank 1 on node-3"),
        ("muster.exit", "stringValue", "exit code 3"),
        ("muster.incident", "intValue", "4"),
        ("muster.node", "stringValue", "node-3"),
        ("muster.rank", "intValue", "1"),
        ("process.exit.code", "intValue", "3"),
    ] {
        assert_eq!(of_failed[key], (kind, &json!(value)), "{key}");
    }
    let root = &spans(&sent)[0];
    assert_eq!(root["status"]["code"], 2);
    // Not more than a kibibyte, and no half of a letter.
    let message = root["status"]["message"].as_str().unwrap();
    assert_eq!((message.len(), message.ends_with("é...")), (1023, true));
    assert_eq!(named(&sent, "FirstStart").get("status"), None);
    assert_eq!(named(&sent, "detect").get("status"), None);
}

#[test]
fn success_is_told_and_nothing_else_is() {
    let mut answer = story();
    let status = |sent: &Value| spans(sent)[0]["status"].clone();
    assert_eq!(status(&sent(&answer, 0)), Value::Null);
    let of_job = answer.job.as_mut().unwrap().status.as_mut().unwrap();
    of_job.set_phase(JobPhase::Succeeded);
    assert_eq!(status(&sent(&answer, 0)), json!({ "code": 1 }));
}

#[test]
fn what_goes_on_ends_at_the_export_and_says_so() {
    let sent = sent(&running(), START + 170 * SECOND);
    is_well_formed(&sent).unwrap();
    let goes_on: Vec<&str> = { spans(&sent).iter() }
        .filter(|span| attributes(span).unwrap().contains_key("muster.running"))
        .map(|span| text(span, "name"))
        .collect();
    assert_eq!(goes_on, ["team-a/digits", "training"]);
    let tree = tree(&sent);
    assert_eq!(tree[0], (0, "team-a/digits", 0, 1700));
    assert!(tree.contains(&(1, "training", 850, 1700)), "{tree:?}");
}

#[test]
fn a_second_export_names_the_same_spans() {
    let over = story();
    assert_eq!(sent(&over, 0), sent(&over, START + 999 * SECOND));
    let (first, later) = (START + 170 * SECOND, START + 180 * SECOND);
    let (first, later) = (sent(&running(), first), sent(&running(), later));
    assert_eq!(ids(&first), ids(&later));
    let mut other = story();
    other.job.as_mut().unwrap().uid = "u2".into();
    let ids_of = |sent: &Value| ids(sent).into_iter().collect::<BTreeSet<_>>();
    assert!(ids_of(&sent(&other, 0)).is_disjoint(&ids_of(&sent(&over, 0))));
}

#[test]
fn two_states_that_begin_alike_are_two_spans() {
    // The job was restarted for a stall, and an event says that it passed.
    let mut answer = story();
    answer.incidents.push(Incident {
        stall: Some(Stall {
            since_unix_us: START + 120 * SECOND,
            ..Stall::default()
        }),
        ..incident(125, "Stalled", 2, 3)
    });
    let sent = sent(&answer, 0);
    is_well_formed(&sent).unwrap();
    let stalls = tree(&sent).into_iter();
    let stalls: Vec<_> = stalls.filter(|(_, name, ..)| *name == "stalled").collect();
    let from: Vec<u64> = stalls.iter().map(|(_, _, from, _)| *from).collect();
    assert_eq!(from, [1200, 1200], "{stalls:?}");
}

#[test]
fn the_trace_is_the_jobs_uid() {
    let mut answer = story();
    answer.job.as_mut().unwrap().uid = "0190f0a0-0000-7000-8000-000000000001".into();
    let sent = sent(&answer, 0);
    let trace = text(&spans(&sent)[0], "traceId");
    assert_eq!(trace, "0190f0a0000070008000000000000001");
}

#[test]
fn a_state_names_the_nodes_of_its_generation() {
    let sent = sent(&story(), 0);
    let training = attributes(named(&sent, "training")).unwrap();
    assert_eq!(training["muster.world_size"], ("intValue", &json!("4")));
    let names = json!({ "values": [{ "stringValue": "node-1" }, { "stringValue": "node-2" }] });
    assert_eq!(training["muster.node_names"], ("arrayValue", &names));
}

#[test]
fn an_incident_of_which_nothing_was_measured_is_there() {
    let mut answer = story();
    answer.incidents = vec![Incident {
        detect_us: None,
        decide_us: None,
        stop_us: None,
        launch_us: None,
        join_us: None,
        first_step_us: None,
        total_us: None,
        ..incident(50, "NodeLost", 1, 0)
    }];
    let sent = sent(&answer, 0);
    is_well_formed(&sent).unwrap();
    let tree = tree(&sent);
    let found = tree.iter().find(|(_, name, ..)| *name == "NodeLost");
    assert!(matches!(found, Some((_, _, 500, 500))), "{tree:?}");
}

#[test]
fn a_job_of_which_nothing_is_known_makes_a_trace() {
    is_well_formed(&sent(&ExplainResponse::default(), 0)).unwrap();
}

proptest! {
    #[test]
    fn every_trace_is_well_formed(answer in any_story()) {
        let sent = sent(&answer, START + 100 * SECOND);
        prop_assert_eq!(is_well_formed(&sent), Ok(()));
    }
}
