//! A job's life as rows, and what viewers ask of a file.

use std::collections::BTreeMap;

use muster_proto::v1::{Incident, Stall};
use proptest::prelude::*;

use super::{
    super::timeline::fixture::{SECOND, START, any_story, incident, story},
    *,
};

type Short = (String, u64, u64);

/// Name, begin and end of the bars of each row, in tenths of a second.
fn rows(trace: &Trace) -> BTreeMap<String, Vec<Short>> {
    let names = trace.trace_events.iter();
    let names: BTreeMap<(u32, u32), String> = names
        .filter(|event| event.name == "thread_name")
        .map(|event| {
            let name = event.args["name"].as_str().unwrap().to_owned();
            ((event.pid, event.tid), name)
        })
        .collect();
    let mut rows: BTreeMap<String, Vec<Short>> = BTreeMap::new();
    for event in trace.trace_events.iter().filter(|event| event.ph == "X") {
        let row = names[&(event.pid, event.tid)].clone();
        let end = event.ts + event.dur.unwrap();
        let short = (event.name.clone(), event.ts / 100_000, end / 100_000);
        rows.entry(row).or_default().push(short);
    }
    rows
}

fn shown(bars: &[Short]) -> Vec<(&str, u64, u64)> {
    bars.iter()
        .map(|(name, from, to)| (name.as_str(), *from, *to))
        .collect()
}

/// What viewers ask: times in order, no length below nothing, and bars of one row that nest or follow each other.
fn is_well_formed(trace: &Trace) -> Result<(), String> {
    let mut last = 0;
    let mut open: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
    for event in &trace.trace_events {
        let Event {
            name,
            ph,
            ts,
            dur,
            pid,
            tid,
            ..
        } = event;
        if !["M", "X", "i", "C"].contains(ph) || dur.is_some() != (*ph == "X") {
            return Err(format!("{name} is a {ph} with {dur:?}"));
        }
        if *ts < last {
            return Err(format!("{name} at {ts} comes after {last}"));
        }
        last = *ts;
        let Some(dur) = dur else { continue };
        let above = open.entry((*pid, *tid)).or_default();
        above.retain(|end| *end > *ts);
        if let Some(end) = above.last().filter(|end| **end < ts + dur) {
            return Err(format!("{name} reaches beyond {end}"));
        }
        above.push(ts + dur);
    }
    Ok(())
}

#[test]
fn a_job_has_a_row_of_states() {
    let trace = trace(&story(), START + 999 * SECOND);
    let rows = rows(&trace);
    assert_eq!(
        shown(&rows["state"]),
        [
            ("waiting", 0, 100),
            ("waiting: BelowMinimum", 20, 100),
            ("starting", 100, 130),
            ("training", 130, 600),
            ("recovering", 600, 850),
            ("waiting: BelowMinimum", 620, 700),
            ("waiting: NodesOccupied", 700, 810),
            ("training", 850, 1900),
            ("stalled", 1200, 1300),
            ("stopping", 1900, 2000),
        ]
    );
    is_well_formed(&trace).unwrap();
}

#[test]
fn a_reform_has_its_phases_and_the_receipt() {
    let trace = trace(&story(), 0);
    let rows = rows(&trace);
    let reforms = shown(&rows["re-forms"]);
    assert_eq!(
        reforms[..4],
        [
            ("#1 FirstStart", 0, 130),
            ("decide", 0, 100),
            ("launch", 100, 110),
            ("join", 110, 120),
        ]
    );
    assert_eq!(
        reforms[5..],
        [
            ("#2 NodeLost", 600, 850),
            ("detect", 600, 610),
            ("decide", 610, 810),
            ("stop (proof of death)", 810, 820),
            ("launch", 820, 830),
            ("imports", 830, 835),
            ("join", 835, 840),
            ("NCCL", 840, 842),
            ("first step", 842, 850),
            ("#3 WorkerKilled", 1000, 1030),
            ("detect", 1000, 1010),
            ("decide", 1010, 1020),
            ("launch", 1020, 1030),
        ]
    );
    let moment = { trace.trace_events.iter() }
        .find(|event| event.ph == "i" && event.name == "#2 NodeLost")
        .unwrap();
    let args = Value::Object(moment.args.clone());
    for (name, value) in [
        ("culprit", json!("node-2")),
        ("cause", json!("NodeLost")),
        ("errorClass", json!("Infrastructure")),
        ("totalMs", json!(25_000.0)),
        ("stepsLost", json!(4)),
        ("at", json!("2026-11-21T11:36:28Z")),
    ] {
        assert_eq!(args[name], value, "{args:#}");
    }
    assert_eq!(args.get("rule"), None, "what is not known is left out");
}

#[test]
fn a_node_has_a_row_of_the_generations_that_it_was_in() {
    let trace = trace(&story(), 0);
    let rows = rows(&trace);
    assert_eq!(
        shown(&rows["node-1"]),
        [("generation 1", 110, 600), ("generation 2", 820, 2000)]
    );
    assert_eq!(shown(&rows["node-2"]), [("generation 1", 110, 600)]);
    assert_eq!(shown(&rows["node-3"]), [("generation 2", 820, 2000)]);
    let ranks: Vec<(u64, &Value)> = { trace.trace_events.iter() }
        .filter(|event| event.ph == "C")
        .map(|event| (event.ts / SECOND, &event.args["ranks"]))
        .collect();
    let (none, four) = (json!(0), json!(4));
    assert_eq!(
        ranks,
        [
            (0, &none),
            (11, &four),
            (60, &none),
            (82, &four),
            (200, &none)
        ]
    );
}

#[test]
fn reforms_that_overlap_are_in_rows_of_their_own() {
    // The node fell silent while the ranks still joined.
    let mut answer = story();
    answer.incidents = vec![
        incident(60, "WorkerFailed", 1, 2),
        incident(64, "NodeLost", 2, 3),
        incident(66, "Scaled", 3, 4),
    ];
    let rows = rows(&trace(&answer, 0));
    let whole = |row: &str| -> Vec<Short> {
        let bars = rows[row].iter();
        bars.filter(|(name, ..)| name.starts_with('#'))
            .cloned()
            .collect()
    };
    assert_eq!(
        shown(&whole("re-forms")),
        [("#1 WorkerFailed", 600, 660), ("#3 Scaled", 660, 720)]
    );
    assert_eq!(shown(&whole("re-forms (2)")), [("#2 NodeLost", 640, 700)]);
}

#[test]
fn a_node_is_in_one_generation_at_a_time() {
    // By the clock of its node, generation 1 was broken after the next had begun.
    let mut answer = story();
    answer.incidents[1].at_unix_us = START + 83 * SECOND;
    let rows = rows(&trace(&answer, 0));
    assert_eq!(
        shown(&rows["node-1"]),
        [("generation 1", 110, 820), ("generation 2", 820, 2000)]
    );
}

#[test]
fn what_is_not_kept_is_left_out_and_said() {
    let mut answer = story();
    // Sixteen of the nodes are named, the first receipt is gone, and with it what ended generation 1.
    answer.incidents.drain(..2);
    answer.incidents_dropped = 2;
    let names: Vec<String> = (0..16).map(|n| format!("n{n}")).collect();
    answer.timeline[6].message = format!(
        "generation 2: world 80 on 20 nodes: {}, ...",
        names.join(", ")
    );
    let trace = trace(&answer, 0);
    let rows = rows(&trace);
    assert!(!rows.contains_key("node-1"), "{rows:?}");
    assert_eq!(rows.keys().filter(|row| row.starts_with('n')).count(), 16);
    assert_eq!(
        trace.other_data["notes"],
        json!([
            "2 older incidents no longer kept: what the job did before the first that is here is not known",
            "generation 2 had 20 nodes, of which the first 16 are known",
        ])
    );
    is_well_formed(&trace).unwrap();
}

#[test]
fn a_generation_of_which_no_step_was_seen_is_not_said_to_train() {
    let quiet = Incident {
        join_us: None,
        first_step_us: None,
        total_us: None,
        ..incident(10, "WorkerFailed", 1, 2)
    };
    let ends = Incident {
        to_generation: 0,
        total_us: None,
        ..incident(50, "WorkerFailed", 2, 0)
    };
    let mut answer = story();
    answer.incidents = vec![quiet, ends];
    answer.timeline.truncate(1);
    let rows = rows(&trace(&answer, 0));
    assert_eq!(
        shown(&rows["state"]),
        [
            ("waiting", 0, 100),
            ("recovering", 100, 140),
            ("started", 140, 500),
            ("recovering", 500, 510),
            ("stopping", 510, 2000),
        ]
    );
}

#[test]
fn a_running_job_ends_where_it_is_known_and_stands_still_in_view() {
    let mut answer = story();
    let job = answer.job.as_mut().unwrap();
    let status = job.status.as_mut().unwrap();
    status.finished_unix_us = 0;
    status.stall = Some(Stall {
        since_unix_us: START + 150 * SECOND,
        sentence: "rank 1 is elsewhere".into(),
        ..Stall::default()
    });
    answer.timeline.truncate(7);
    let trace = trace(&answer, START + 170 * SECOND);
    let rows = rows(&trace);
    let last = shown(&rows["state"]).split_off(7);
    assert_eq!(last, [("training", 850, 1700), ("stalled", 1500, 1700)]);
    assert_eq!(trace.other_data["knownUntil"], "2026-11-21T11:38:18Z");
    assert_eq!(trace.other_data.get("finishedAt"), None);
}

#[test]
fn a_job_of_which_nothing_is_known_makes_a_file() {
    let trace = trace(&ExplainResponse::default(), 0);
    is_well_formed(&trace).unwrap();
    assert!(rows(&trace).is_empty());
}

proptest! {
    #[test]
    fn every_file_is_well_formed(answer in any_story()) {
        let trace = trace(&answer, START + 100 * SECOND);
        prop_assert_eq!(is_well_formed(&trace), Ok(()));
        // One row does one thing at a time: what lies side by side has no more time than the life.
        let states = &rows(&trace).remove("state").unwrap_or_default();
        let life = trace.trace_events.iter().map(|event| event.ts + event.dur.unwrap_or(0)).max().unwrap_or(0);
        let outer = ["waiting", "starting", "recovering", "training", "started", "stopping"];
        let sum: u64 = states.iter().filter(|(name, ..)| outer.contains(&name.as_str())).map(|(_, from, to)| to - from).sum();
        prop_assert!(sum <= life / 100_000, "{sum} of {life}: {states:?}");
    }
}
