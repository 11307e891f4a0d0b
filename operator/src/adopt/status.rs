//! The status of a foreign object in its kind's words, from the job that it became, and how urgent a
//! change of it is. All of this is pure.

use muster_core::{
    fleet::{
        Event,
        job::Phase,
        receipt::Incident,
        view::{JobView, MemberView, RankView},
    },
    spec::Origin,
    time::Timestamp,
};
use muster_foreign::{
    adopt::PodLabels,
    status::{
        self, End, Happened, Life, What,
        life::{self, Known, Noted, Place, Rank, Receipt},
    },
};
use serde_json::{Map, Value, json};

use super::{
    history,
    object::{Made, Seen},
};
use crate::{
    rules::adoption::{Objection, Shows},
    stamp::time,
};

/// How soon a change is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// A condition: somebody may wait for it.
    Now,
    /// Numbers.
    Soon,
}

/// The status that the object should have. `None`: it stays as it is.
pub(super) fn wanted(
    seen: &Seen,
    shows: Shows,
    objection: Option<&Objection>,
    made: Option<&Made>,
    job: Option<(&JobView, &[&Event])>,
    now: Timestamp,
) -> Option<Value> {
    let object = &seen.object;
    let origin = Origin {
        api_version: format!("{}/{}", seen.kind.group, seen.kind.version),
        kind: seen.kind.kind.to_owned(),
        groups: Vec::new(),
    };
    let without_job = |happened: Vec<Happened>, finished: Option<Timestamp>| Life {
        origin: &origin,
        namespace: &object.name.namespace,
        name: &object.name.name,
        created: seen.created,
        elastic: false,
        happened,
        members: Vec::new(),
        stops: false,
        restarts: 0,
        message: "",
        finished,
    };
    let once = |what: What| vec![Happened { at: None, what }];
    let life = match (shows, job, made.and_then(|made| made.ended.as_ref())) {
        (Shows::AsItIs, ..) => return None,
        (Shows::Created, ..) | (Shows::Job, None, None) => without_job(Vec::new(), None),
        (Shows::Suspended, ..) => without_job(once(What::Suspended), None),
        (Shows::Failed, ..) => {
            let message = objection.map(ToString::to_string).unwrap_or_default();
            let end = End::Refused { message };
            without_job(once(What::Ended(end)), Some(now))
        }
        (Shows::Job, Some((view, events)), _) => of_view(seen, &origin, view, events),
        // The store has forgotten the job, and its own object knows how it ended.
        (Shows::Job, None, Some((phase, at, message))) => {
            let what = match phase {
                Phase::Succeeded => What::Succeeded,
                Phase::Cancelled => What::Ended(End::Cancelled),
                _ => What::Ended(End::Other {
                    message: message.clone(),
                }),
            };
            let happened = vec![Happened { at: *at, what }];
            without_job(happened, Some(at.unwrap_or(now)))
        }
    };
    let words = seen.kind.words();
    let life = match words.tells_of_resuming() && shows != Shows::Suspended {
        true => that_was_resumed(life, &seen.status),
        false => life,
    };
    let projected = status::status(&life)?;
    let mut value = serde_json::to_value(&projected).expect("statuses have a JSON form");
    for (group, replicas) in value["replicaStatuses"]
        .as_object_mut()
        .into_iter()
        .flatten()
    {
        if let Some(selector) = selector(seen, group) {
            replicas["selector"] = json!(selector);
        }
    }
    // Some definitions ask for it, also while there are no members.
    if words.has_replicas() && value["replicaStatuses"].is_null() {
        value["replicaStatuses"] = json!({});
    }
    if words.has_history() {
        history::go_on(&mut value, &seen.status, now);
    }
    say(&mut value, shows, objection);
    give_times(&mut value, &seen.status, now);
    // A definition may want a status to have something in it.
    let is_empty = value.as_object().is_some_and(Map::is_empty);
    Some(value).filter(|_| !is_empty || !seen.status.is_null())
}

/// A job that was held back before it had a `MusterJob` has no event of that. What was written tells.
fn that_was_resumed<'a>(mut life: Life<'a>, seen: &Value) -> Life<'a> {
    let mut known = seen["conditions"].as_array().into_iter().flatten();
    let was_held = known.any(|condition| condition["type"] == "Suspended");
    let mut told = life.happened.iter();
    if was_held && !told.any(|happened| happened.what == What::Suspended) {
        let both = [What::Suspended, What::Resumed];
        let both = both.map(|what| Happened { at: None, what });
        life.happened.splice(0..0, both);
    }
    life
}

/// What cannot be done is said where people look: in the newest condition.
fn say(value: &mut Value, shows: Shows, objection: Option<&Objection>) {
    let Some(objection) = objection.filter(|_| shows != Shows::Failed) else {
        return;
    };
    let newest = value["conditions"]
        .as_array_mut()
        .and_then(|all| all.last_mut());
    if let Some(newest) = newest {
        let message = newest["message"].as_str().unwrap_or_default();
        newest["message"] = json!(format!("{message} Muster says: {objection}"));
    }
}

/// A time that nobody kept is the one that was written before, if nothing has changed since, or else now.
fn give_times(value: &mut Value, seen: &Value, now: Timestamp) {
    let known = seen["conditions"].as_array();
    for condition in value["conditions"].as_array_mut().into_iter().flatten() {
        let same = |other: &&Value| {
            other["type"] == condition["type"] && other["status"] == condition["status"]
        };
        let before = known.into_iter().flatten().find(same).cloned();
        for field in ["lastUpdateTime", "lastProbeTime", "lastTransitionTime"] {
            if condition.get(field).is_some_and(Value::is_null) {
                let known = before.as_ref().map(|before| before[field].clone());
                let known = known.filter(Value::is_string);
                condition[field] = known.unwrap_or_else(|| json!(time(now)));
            }
        }
    }
    for field in ["completionTime", "endTime"] {
        if value[field].is_string() && seen[field].is_string() {
            value[field] = seen[field].clone();
        }
    }
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
}

fn of_view<'a>(
    seen: &'a Seen,
    origin: &'a Origin,
    view: &'a JobView,
    events: &'a [&'a Event],
) -> Life<'a> {
    let record = &view.record;
    let life = life::life(&Known {
        origin,
        namespace: &record.name.namespace,
        name: &record.name.name,
        created: seen.created,
        elastic: record.spec.min_replicas != record.spec.max_replicas,
        phase: record.phase,
        reason: record.reason.to_string().into(),
        message: &record.message,
        restarts: record.restart_count,
        suspended: record.suspended && !record.phase.is_over(),
        started: record.shown().is_some() || record.last_generation.0 > 0,
        alive: record.current.is_some(),
        finished: record.finished,
        receipts: record.incidents.iter().map(receipt).collect(),
        events: events.iter().map(|event| noted(event)).collect(),
        places: view.members.iter().map(place).collect(),
        ranks: view.ranks.iter().map(rank).collect(),
    });
    Life {
        stops: record.suspended && !record.retiring.is_empty(),
        ..life
    }
}

fn noted(event: &Event) -> Noted<'_> {
    Noted {
        reason: &event.reason,
        at: Some(event.at),
    }
}

fn place(member: &MemberView) -> Place<'_> {
    Place {
        member: member.role.as_deref().unwrap_or_default(),
        node: member.node.as_str(),
    }
}

fn rank(rank: &RankView) -> Rank<'_> {
    Rank {
        rank: rank.rank,
        node: rank.node.as_str(),
        ended: rank.exit.map(muster_core::exit::Exit::is_success),
    }
}

fn receipt(incident: &Incident) -> Receipt<'_> {
    use muster_core::fleet::receipt::Charged;
    Receipt {
        at: Some(incident.event_at),
        cause: format!("{:?}", incident.cause).into(),
        charged_to_job: incident.charged == Charged::Job,
        culprit: incident.culprit.as_deref().unwrap_or_default(),
        from_nodes: incident.from_nodes as usize,
        goes_on: incident.to.is_some(),
        launched: incident.launched_at.filter(|_| incident.to.is_some()),
    }
}

/// The selector of a group's pods, as upstream writes it: its labels in their order.
fn selector(seen: &Seen, group: &str) -> Option<String> {
    let kind = &seen.kind;
    let PodLabels::Kubeflow(_) = kind.labels else {
        return None;
    };
    let of_group = kind.labels.of_group()?;
    let mut labels = kind.labels.of_job(&seen.object.name.name);
    labels.push((of_group.to_owned(), group.to_lowercase()));
    labels.sort();
    let each = labels.iter().map(|(name, value)| format!("{name}={value}"));
    Some(each.collect::<Vec<_>>().join(","))
}

/// How urgent it is that a status becomes another. `None`: it is the same.
pub(super) fn urgency(seen: &Value, wanted: &Value) -> Option<Urgency> {
    match () {
        () if seen == wanted => None,
        () if seen["conditions"] == wanted["conditions"] => Some(Urgency::Soon),
        () => Some(Urgency::Now),
    }
}

/// A condition of which people are told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct New<'a> {
    pub(super) kind: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

/// The newest condition, if it was not there before.
pub(super) fn news<'a>(seen: &Value, wanted: &'a Value) -> Option<New<'a>> {
    let newest = |status: &'a Value| status["conditions"].as_array()?.last();
    let new = newest(wanted)?;
    let known = seen["conditions"].as_array().into_iter().flatten();
    let mut same =
        known.filter(|old| old["reason"] == new["reason"] && old["status"] == new["status"]);
    match same.next() {
        Some(_) => None,
        None => Some(New {
            kind: new["type"].as_str()?,
            reason: new["reason"].as_str()?,
            message: new["message"].as_str()?,
        }),
    }
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;
    use muster_foreign::adopt::adoptable;

    use super::*;
    use crate::adopt::object::Raw;

    const SECOND: u64 = 1_000_000;

    fn seen(status: Value) -> Seen {
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "status": status,
            "metadata": { "name": "digits", "namespace": "team-a", "uid": "u", "creationTimestamp": "1970-01-01T00:00:01Z" },
        }))
        .unwrap();
        Seen::of(adoptable("pytorchjobs").unwrap(), Raw::of(object).unwrap())
    }

    fn shown(status: Value, shows: Shows, objection: Option<&Objection>, at: u64) -> Option<Value> {
        wanted(
            &seen(status),
            shows,
            objection,
            None,
            None,
            Timestamp(at * SECOND),
        )
    }

    #[test]
    fn a_status_that_was_written_is_not_written_again() {
        let refused = Objection::Refused("spec.colour: unknown field".into());
        for (shows, objection) in [
            (Shows::Created, None),
            (Shows::Suspended, None),
            (Shows::Failed, Some(&refused)),
        ] {
            let first = shown(Value::Null, shows, objection, 9).unwrap();
            assert_eq!(urgency(&Value::Null, &first), Some(Urgency::Now));
            let later = shown(first.clone(), shows, objection, 90).unwrap();
            assert_eq!(
                urgency(&first, &later),
                None,
                "{shows:?}: {first:#} {later:#}"
            );
            assert_eq!(news(&first, &later), None);
        }
        assert_eq!(shown(Value::Null, Shows::AsItIs, None, 9), None);
    }

    /// As training-operator and mpi-operator leave it.
    #[test]
    fn a_job_that_was_held_back_before_it_began_says_that_it_was_resumed() {
        let held = shown(Value::Null, Shows::Suspended, None, 9).unwrap();
        let goes_on = shown(held, Shows::Created, None, 12).unwrap();
        let conditions = goes_on["conditions"].as_array().unwrap();
        let named = |condition: &&Value| condition["type"] == "Suspended";
        let suspended = conditions.iter().find(named).unwrap();
        assert_eq!(
            (&suspended["status"], &suspended["reason"]),
            (&json!("False"), &json!("PyTorchJobResumed"))
        );
        assert_eq!(
            shown(goes_on.clone(), Shows::Created, None, 90),
            Some(goes_on)
        );
    }

    #[test]
    fn a_refusal_is_a_failure_with_its_words() {
        let refused = Objection::Refused("spec.colour: unknown field".into());
        let status = shown(Value::Null, Shows::Failed, Some(&refused), 9).unwrap();
        let failed = &status["conditions"][1];
        assert_eq!(
            (&failed["type"], &failed["status"]),
            (&json!("Failed"), &json!("True"))
        );
        assert_eq!(failed["lastTransitionTime"], "1970-01-01T00:00:09Z");
        assert_eq!(status["completionTime"], "1970-01-01T00:00:09Z");
        assert_eq!(
            news(&Value::Null, &status),
            Some(New {
                kind: "Failed",
                reason: "PyTorchJobFailedValidation",
                message: "spec.colour: unknown field",
            })
        );
    }

    #[test]
    fn what_cannot_be_done_stands_in_the_newest_condition() {
        let fixed = Objection::FixedFields(vec!["spec.args"]);
        let status = shown(Value::Null, Shows::Created, Some(&fixed), 9).unwrap();
        assert_eq!(
            status["conditions"][0]["message"],
            "PyTorchJob digits is created. Muster says: the change of spec.args has no effect on a job that was started; to run it with the \
             change, delete it and create it again"
        );
    }

    /// Whoever may edit an object may have written anything into its status.
    #[test]
    fn a_status_of_any_form_is_written_over() {
        let odd = [
            json!("x"),
            json!([1]),
            json!({ "conditions": "x", "replicaStatuses": 7 }),
            json!({ "conditions": ["x", 7, [], null, true, { "type": 1, "lastTransitionTime": 2 }], "endTime": {} }),
        ];
        for kind in muster_foreign::adopt::ADOPTABLE {
            for status in &odd {
                let object = json!({
                    "apiVersion": format!("{}/{}", kind.group, kind.version), "kind": kind.kind, "status": status,
                    "metadata": { "name": "digits", "namespace": "team-a", "uid": "u" },
                });
                let raw = Raw::of(serde_json::from_value(object).unwrap()).unwrap();
                let seen = Seen::of(kind, raw);
                for shows in [Shows::Created, Shows::Suspended, Shows::Failed, Shows::Job] {
                    let now = Timestamp(9 * SECOND);
                    let told = wanted(&seen, shows, None, None, None, now);
                    if let Some(told) = told {
                        crate::jobs::difference(&seen.status, &told);
                        news(&seen.status, &told);
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_are_less_urgent_than_conditions() {
        let status = |kind: &str, active: u32| json!({ "conditions": [{ "type": kind }], "replicaStatuses": { "Worker": { "active": active } } });
        let urgency =
            |kind: &str, active: u32| urgency(&status("Running", 1), &status(kind, active));
        assert_eq!(urgency("Running", 1), None);
        assert_eq!(urgency("Running", 2), Some(Urgency::Soon));
        assert_eq!(urgency("Failed", 1), Some(Urgency::Now));
    }
}
