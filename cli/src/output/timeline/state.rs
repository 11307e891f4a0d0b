//! What a job did: it waits, starts, trains, recovers, is resized, stops.
//!
//! The receipts say when. Within a bar, a shorter one says why nothing could be done, or that nothing moved. A generation of
//! which no step was seen, nor that its ranks met, is not said to train: it was started, and that is all.

use muster_core::fleet::{
    receipt::Cause,
    shortage::Shortage,
    time_account::{FormingPhase, State},
};
use muster_proto::v1::{Event, ExplainResponse, Incident, Job};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Bar, Life, known};

/// Events after which a job is being ended.
const ENDS: [&str; 4] = [
    "CancelRequested",
    "DeadlineExceeded",
    "StartDeadlineExceeded",
    "DependencyNeverSatisfied",
];

/// One incident of the whole job, with the moments that its receipt tells.
struct Reform<'a> {
    incident: &'a Incident,
    from: u64,
    /// When it knew of it.
    detected: u64,
    /// When the next generation was decided.
    decided: Option<u64>,
    /// When its ranks had been started.
    launched: Option<u64>,
    /// When it trained again.
    back: Option<u64>,
    /// When it had too few nodes again, without another incident.
    lacks: Option<u64>,
    /// When the next incident happened, or the story ends.
    until: u64,
}

pub(in crate::output) fn bars(life: Life, answer: &ExplainResponse, job: &Job) -> Vec<Bar> {
    let stops = answer.timeline.iter().rev();
    let stops = stops
        .filter(|event| ENDS.contains(&event.reason.as_str()))
        .map(|event| life.at(event.at_unix_us))
        .next();
    let end = stops.unwrap_or(life.end);
    let reforms = reforms(life, answer, end);
    let mut bars = Vec::new();
    let first = reforms.first().map_or(end, |reform| reform.from);
    if answer.incidents_dropped == 0 {
        bars.push(bar(life.start, first, "waiting"));
        let reasons = reasons(life, &answer.timeline, life.start, first);
        bars.extend(reasons);
    }
    for (place, reform) in reforms.iter().enumerate() {
        let ends_it = place + 1 == reforms.len() && life.is_over && stops.is_none();
        bars.extend(of_reform(reform, ends_it));
        let decided = match reform.incident.to_generation {
            0 => Some(reform.until),
            _ => reform.decided,
        };
        if let Some(decided) = decided.filter(|_| !ends_it || reform.decided.is_some()) {
            bars.extend(reasons(life, &answer.timeline, reform.from, decided));
        }
        if let Some(lacks) = reform.lacks {
            bars.extend(reasons(life, &answer.timeline, lacks, reform.until));
        }
        bars.extend(stall(life, reform));
    }
    if let Some(from) = stops {
        bars.push(bar(from, life.end, "stopping"));
    }
    bars.extend(not_eligible(life, &answer.timeline, job));
    bars.extend(stalls_that_passed(life, &answer.timeline));
    let stall = job.status.as_ref().and_then(|status| status.stall.as_ref());
    if let Some(stall) = stall.filter(|_| !life.is_over) {
        let args = known(json!({ "why": stall.why, "stall": stall.sentence }));
        bars.push(with(
            bar(life.at(stall.since_unix_us), life.end, "stalled"),
            args,
        ));
    }
    bars
}

fn reforms<'a>(life: Life, answer: &'a ExplainResponse, end: u64) -> Vec<Reform<'a>> {
    let whole = answer.incidents.iter();
    let mut whole: Vec<&Incident> = whole.filter(|one| one.restarted_ranks.is_empty()).collect();
    whole.sort_by_key(|one| one.at_unix_us);
    let mut reforms: Vec<Reform<'_>> = Vec::new();
    let mut until = end;
    for incident in whole.into_iter().rev() {
        let from = life.at(incident.at_unix_us).min(until);
        let mut at = from;
        let mut next = |us: Option<u64>| {
            at = at.saturating_add(us.unwrap_or(0));
            us.map(|_| at.min(until))
        };
        let detected = next(incident.detect_us).unwrap_or(from);
        let decided = next(incident.decide_us);
        next(incident.stop_us);
        let launched = next(incident.launch_us);
        // The total is the sum of the phases.
        let last = next(incident.join_us).max(next(incident.first_step_us));
        let back = last.filter(|_| incident.total_us.is_some());
        let trains = back.or(launched).unwrap_or(until);
        let lacks = answer.timeline.iter().find(|event| {
            event.reason == "BelowMinimum" && (trains..until).contains(&event.at_unix_us)
        });
        let lacks = lacks.map(|event| event.at_unix_us);
        reforms.push(Reform {
            incident,
            from,
            detected,
            decided,
            launched,
            back,
            lacks,
            until,
        });
        until = from;
    }
    reforms.reverse();
    reforms
}

fn of_reform(reform: &Reform<'_>, ends_it: bool) -> Vec<Bar> {
    let Reform {
        incident,
        from,
        detected,
        decided,
        launched,
        back,
        lacks,
        until,
    } = *reform;
    let name = name(&incident.cause);
    let args = known(json!({ "cause": incident.cause, "message": incident.message }));
    let told = |bar| with(bar, args.clone());
    if incident.to_generation == 0 {
        // Nothing came after it. If the job is over, that was its end.
        let name_after = if ends_it { "stopping" } else { name };
        return vec![
            told(bar(from, detected, name)),
            told(bar(detected, until, name_after)),
        ];
    }
    let mut bars = Vec::new();
    // A job is in its first start from the submission on, and waits at first.
    let begins = match (incident.from_generation, decided) {
        (0, Some(decided)) => {
            bars.push(bar(from, decided, "waiting"));
            decided
        }
        _ => from,
    };
    let trains_until = lacks.unwrap_or(until);
    match (back, launched) {
        (Some(back), _) => {
            bars.push(told(bar(begins, back, name)));
            let steps = known(json!({ "generation": incident.to_generation }));
            bars.push(with(bar(back, trains_until, "training"), steps));
        }
        (None, Some(launched)) => {
            bars.push(told(bar(begins, launched, name)));
            let unseen =
                json!({ "generation": incident.to_generation, "note": "no step was seen" });
            bars.push(with(bar(launched, trains_until, "started"), known(unseen)));
        }
        (None, None) => bars.push(told(bar(begins, until, name))),
    }
    bars.extend(lacks.map(|from| bar(from, until, "waiting")));
    bars
}

/// Why nothing could be done, between two moments.
fn reasons(life: Life, events: &[Event], from: u64, to: u64) -> Vec<Bar> {
    let within = events
        .iter()
        .filter(|event| (from..to).contains(&event.at_unix_us));
    let mut bars: Vec<Bar> = Vec::new();
    for event in within {
        let at = life.at(event.at_unix_us);
        let word = event.reason.as_str();
        let lacks = word == "BelowMinimum" || read::<Shortage>(word).is_some();
        let ends = matches!(word, "Resumed" | "Eligible");
        let waits = word == "Suspended" || lacks && event.node.is_empty();
        if !waits && !ends {
            continue;
        }
        if let Some(before) = bars.last_mut() {
            before.to = before.to.min(at);
        }
        if waits {
            let args = known(json!({ "message": event.message }));
            bars.push(with(bar(at, to, &format!("waiting: {word}")), args));
        }
    }
    bars
}

/// The time before a job may start, where it waits for other jobs or for its time.
fn not_eligible(life: Life, events: &[Event], job: &Job) -> Option<Bar> {
    let became = events.iter().find(|event| event.reason == "Eligible");
    let waits = job.status.as_ref().and_then(|s| s.not_eligible.as_ref());
    let (from, to) = match (became, waits) {
        (Some(event), _) => (life.start, event.at_unix_us),
        (None, Some(waits)) if !life.is_over => (waits.since_unix_us, life.end),
        _ => return None,
    };
    Some(bar(life.at(from), life.at(to), "waiting: NotEligible"))
}

/// What the receipt says of the time in which nothing moved.
fn stall(life: Life, reform: &Reform<'_>) -> Option<Bar> {
    let stall = reform.incident.stall.as_ref()?;
    let since = life.at(stall.since_unix_us);
    let to = if since < reform.from {
        reform.from
    } else {
        reform.detected
    };
    let args = known(json!({ "why": stall.why, "stall": stall.sentence }));
    Some(with(bar(since, to, "stalled"), args))
}

/// Stalls that passed by themselves. When they were noticed is known, and when it went on.
fn stalls_that_passed(life: Life, events: &[Event]) -> Vec<Bar> {
    let (mut bars, mut stalled) = (Vec::new(), None::<&Event>);
    for event in events {
        match event.reason.as_str() {
            "JobStalled" => stalled = Some(event),
            "JobMovesAgain" => {
                let before = stalled.take();
                bars.extend(before.map(|before| {
                    let args = known(json!({ "message": before.message }));
                    let (from, to) = (life.at(before.at_unix_us), life.at(event.at_unix_us));
                    with(bar(from, to, "stalled"), args)
                }));
            }
            _ => {}
        }
    }
    bars
}

/// `recovering`, `resizing`, `starting`: as the account of a job's time has it.
fn name(cause: &str) -> &'static str {
    let state = read::<Cause>(cause).map(|cause| State::Reforming {
        cause,
        phase: FormingPhase::Unknown,
    });
    state.map_or("re-forming", State::name)
}

/// One of our words. `None`: a later version wrote it.
fn read<T: DeserializeOwned>(word: &str) -> Option<T> {
    serde_json::from_value(Value::String(word.to_owned())).ok()
}

fn bar(from: u64, to: u64, name: &str) -> Bar {
    Bar {
        from,
        to,
        name: name.to_owned(),
        category: "state",
        args: Map::new(),
    }
}

fn with(bar: Bar, args: Map<String, Value>) -> Bar {
    Bar { args, ..bar }
}
