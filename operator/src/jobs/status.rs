//! The status of an object as it is written, and how urgent a change of it is.

use muster_core::{fleet::receipt::Incident, id::JobUid, period, time::Timestamp};
use serde_json::{Map, Value, json};

use super::object::Seen;
use crate::{
    rules::job_status::{Condition, Facts, JobStatus, Steps},
    stamp::time,
};

/// Characters of the longest text of a status.
const TEXT_MAX: usize = 1_024;

/// How soon a change is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Somebody may wait for it: a phase, a condition, the answer to a new spec.
    Now,
    /// Numbers and sentences.
    Soon,
    /// Steps, which change all the time.
    Later,
}

/// The status that the object should have.
pub(super) fn wanted(status: &JobStatus, seen: &Seen, now: Timestamp) -> Value {
    let conditions = status.conditions.iter();
    let conditions: Vec<Value> = conditions.map(|own| condition(own, seen, now)).collect();
    let mut value = json!({
        "observedGeneration": seen.generation,
        "phase": status.phase,
        "reason": status.reason,
        "message": cut(&status.message),
        "conditions": conditions,
    });
    let facts = status.facts.as_ref();
    if let (Some(facts), Some(all)) = (facts, value.as_object_mut()) {
        all.extend(numbers(facts, &seen.object.uid));
        if facts.finished.is_some() && status.phase == "Succeeded" {
            all.insert("completionTime".into(), json!(facts.finished.map(time)));
        }
    }
    value
}

/// A condition keeps its time as long as its status stays.
fn condition(own: &Condition, seen: &Seen, now: Timestamp) -> Value {
    let status = if own.holds { "True" } else { "False" };
    let known = seen.status["conditions"].as_array().into_iter().flatten();
    let before = known
        .filter(|known| known["type"] == own.kind && known["status"] == status)
        .find_map(|known| known["lastTransitionTime"].as_str());
    json!({
        "type": own.kind,
        "status": status,
        "observedGeneration": seen.generation,
        "lastTransitionTime": before.map_or_else(|| time(now), str::to_owned),
        "reason": own.reason,
        "message": cut(&own.message),
    })
}

fn numbers(facts: &Facts, uid: &JobUid) -> Map<String, Value> {
    let mut all = Map::new();
    let mut put = |name: &str, value: Value| all.insert(name.to_owned(), value);
    put(
        "nodes",
        json!(format!("{}/{}", facts.nodes_running, facts.nodes_wanted)),
    );
    put(
        "range",
        json!(match facts.min == facts.max {
            true => facts.min.to_string(),
            false => format!("{}-{}", facts.min, facts.max),
        }),
    );
    put("replicas", json!(facts.nodes));
    put("minReplicas", json!(facts.min));
    put("maxReplicas", json!(facts.max));
    put("selector", json!(format!("muster.dev/job-uid={uid}")));
    put("worldSize", json!(facts.world_size));
    put("jobGeneration", json!(facts.generation.0));
    put("restarts", json!(facts.restarts));
    put("startTime", json!(time(facts.created)));
    put(
        "incidents",
        facts.incidents.iter().map(incident).collect::<Value>(),
    );
    if let Some(known) = &facts.steps {
        put("steps", steps(known));
    }
    all
}

fn steps(steps: &Steps) -> Value {
    let Steps {
        last,
        total,
        seconds_left,
        loss,
    } = steps;
    let loss = loss.as_deref().map(cut);
    without_nulls(
        json!({ "last": last, "total": total, "secondsLeft": seconds_left, "loss": loss }),
    )
}

fn incident(incident: &Incident) -> Value {
    let number =
        |generation: Option<muster_core::id::Generation>| generation.map(|number| number.0);
    without_nulls(json!({
        "time": time(incident.event_at),
        "cause": format!("{:?}", incident.cause),
        "message": cut(&incident.message),
        "culprit": incident.culprit.as_deref().map(cut),
        "from": number(incident.from),
        "to": number(incident.to),
        "downtime": incident.total().map(period::format),
    }))
}

fn without_nulls(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    object
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        None => text.to_owned(),
        Some(_) => text
            .chars()
            .take(TEXT_MAX - 3)
            .chain("...".chars())
            .collect(),
    }
}

/// How urgent it is that a status becomes another. `None`: it is the same.
pub(super) fn urgency(seen: &Value, wanted: &Value) -> Option<Urgency> {
    if seen == wanted {
        return None;
    }
    if told_at_once(seen) != told_at_once(wanted) {
        return Some(Urgency::Now);
    }
    let without_steps = |status: &Value| {
        let mut status = status.clone();
        if let Some(fields) = status.as_object_mut() {
            fields.remove("steps");
        }
        status
    };
    match without_steps(seen) == without_steps(wanted) {
        true => Some(Urgency::Later),
        false => Some(Urgency::Soon),
    }
}

fn told_at_once(status: &Value) -> (Vec<&Value>, Vec<(&Value, &Value)>) {
    let fields = ["phase", "observedGeneration", "minReplicas", "maxReplicas"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    (
        fields.iter().map(|field| &status[*field]).collect(),
        conditions
            .map(|own| (&own["type"], &own["status"]))
            .collect(),
    )
}

/// The merge patch (RFC 7386) that makes one value of another.
pub(crate) fn difference(from: &Value, to: &Value) -> Value {
    let (Some(old), Some(new)) = (from.as_object(), to.as_object()) else {
        return to.clone();
    };
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    let gone = gone.map(|key| (key.clone(), Value::Null));
    let changed = new
        .iter()
        .filter(|(key, value)| old.get(*key) != Some(value));
    let changed = changed.map(|(key, value)| {
        let before = old.get(key).unwrap_or(&Value::Null);
        (key.clone(), difference(before, value))
    });
    Value::Object(gone.chain(changed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::object::MusterJob;

    fn seen(status: Value) -> Seen {
        let metadata =
            json!({ "name": "digits", "namespace": "team-a", "uid": "b-1", "generation": 3 });
        let object: MusterJob =
            serde_json::from_value(json!({ "metadata": metadata, "status": status })).unwrap();
        Seen::of(object).unwrap()
    }

    fn status(holds: bool) -> JobStatus {
        JobStatus {
            phase: "Pending".into(),
            reason: "BelowMinimum".into(),
            message: "x".repeat(2_000),
            conditions: vec![Condition {
                kind: "Accepted",
                holds,
                reason: "Accepted".into(),
                message: String::new(),
            }],
            facts: None,
        }
    }

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_condition_keeps_its_time_until_it_changes() {
        let first = wanted(&status(true), &seen(Value::Null), Timestamp(SECOND));
        let at = |status: &Value| status["conditions"][0]["lastTransitionTime"].clone();
        assert_eq!(at(&first), "1970-01-01T00:00:01Z");
        let later = Timestamp(90 * SECOND);
        let same = wanted(&status(true), &seen(first.clone()), later);
        assert_eq!(same, first, "and nothing is written");
        let other = wanted(&status(false), &seen(first), later);
        assert_eq!(at(&other), "1970-01-01T00:01:30Z");
        assert_eq!(other["message"].as_str().unwrap().chars().count(), TEXT_MAX);
    }

    #[test]
    fn what_somebody_waits_for_is_written_at_once() {
        let seen = json!({ "phase": "Running", "message": "a", "steps": { "last": 1 },
            "conditions": [{ "type": "Running", "status": "True", "message": "a" }] });
        let with = |change: fn(&mut Value)| {
            let mut wanted = seen.clone();
            change(&mut wanted);
            urgency(&seen, &wanted)
        };
        assert_eq!(with(|_| {}), None);
        assert_eq!(
            with(|s| s["steps"]["last"] = json!(2)),
            Some(Urgency::Later)
        );
        assert_eq!(with(|s| s["message"] = json!("b")), Some(Urgency::Soon));
        assert_eq!(with(|s| s["phase"] = json!("Failed")), Some(Urgency::Now));
        assert_eq!(
            with(|s| s["conditions"][0]["status"] = json!("False")),
            Some(Urgency::Now)
        );
        assert_eq!(
            with(|s| s["conditions"][0]["message"] = json!("b")),
            Some(Urgency::Soon)
        );
        assert_eq!(
            with(|s| s["observedGeneration"] = json!(2)),
            Some(Urgency::Now)
        );
        assert_eq!(urgency(&Value::Null, &seen), Some(Urgency::Now));
    }

    #[test]
    fn a_patch_names_what_goes_and_what_changes() {
        let from = json!({ "a": 1, "b": { "c": 1, "d": 2 }, "e": [1], "f": 1 });
        let to = json!({ "a": 1, "b": { "c": 3 }, "e": [2], "g": { "h": 1 } });
        assert_eq!(
            difference(&from, &to),
            json!({ "b": { "c": 3, "d": null }, "e": [2], "f": null, "g": { "h": 1 } })
        );
        assert_eq!(difference(&Value::Null, &to), to);
    }
}
