//! The flight recorder of torch's process groups, as JSON: at which collective of which group a rank is.
//!
//! NCCL's and gloo's have one form. `pg_status` has the numbers of each group, and `entries` the calls, of
//! which a server that knows `onlyactive` sends those that have not completed. Numbers come as numbers or as
//! strings, with -1 for none.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most groups of one rank that are kept: with five dimensions of parallelism and their twins for gloo
/// a rank is in some twenty.
pub const GROUPS_MAX: usize = 32;
/// The longest name that is kept.
const TEXT_MAX: usize = 128;

/// Where a rank is in one process group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The group's name in torch: the same on all its ranks.
    pub group: String,
    /// What torch or the script calls it, as `default_pg`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The global ranks of the group, as torch writes them. Empty: not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// The sequence number of the last collective that was called. 0: none.
    pub called: u64,
    /// The same of the last that has completed.
    pub completed: u64,
    /// The name of the first call that has not completed, as `all_reduce`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// Since when it was called, in microseconds of Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_us: Option<u64>,
}

/// A number that may come as a string. Below zero means none, which is 0 here: sequences begin with 1.
fn number(of: &Value, name: &str) -> u64 {
    match &of[name] {
        Value::Number(number) => number.as_u64().unwrap_or(0),
        Value::String(text) => text.parse().unwrap_or(0),
        _ => 0,
    }
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_default()
}

/// The positions in an answer, those of the groups that were made first.
///
/// # Errors
/// It is not JSON, or another form of it.
pub fn positions(answer: &[u8]) -> Result<Vec<Position>, String> {
    let dump: Value = serde_json::from_slice(answer).map_err(|e| format!("not understood: {e}"))?;
    if !dump.is_object() {
        return Err("not understood: it is no object".into());
    }
    let Some(status) = dump["pg_status"].as_object() else {
        return Ok(Vec::new());
    };
    let mut groups: Vec<(&String, &Value)> = status.iter().collect();
    // "10" comes after "9".
    groups.sort_by_key(|(id, _)| (id.len(), *id));
    let groups = groups.into_iter().take(GROUPS_MAX);
    Ok(groups
        .map(|(id, status)| position(&dump, id, status))
        .collect())
}

fn position(dump: &Value, id: &str, status: &Value) -> Position {
    let calls: &[Value] = dump["entries"].as_array().map_or(&[], Vec::as_slice);
    let of_group = |call: &&Value| match &call["pg_id"] {
        Value::String(own) => own == id,
        own => own.as_u64().is_some_and(|own| own.to_string() == id),
    };
    let sequence = |call: &Value| number(call, "collective_seq_id");
    let is_collective = |call: &&Value| !call["is_p2p"].as_bool().unwrap_or(false);
    let is_retired = |call: &&Value| call["retired"].as_bool().unwrap_or(false);
    // gloo's threads write their numbers without order: the one that had 2 may be the last to write, after 3.
    let of_this = calls.iter().filter(of_group).filter(is_collective);
    let retired = of_this.filter(is_retired).map(sequence).max();
    let completed = number(status, "last_completed_collective").max(retired.unwrap_or(0));
    let is_open = |call: &&Value| {
        is_collective(call)
            && !is_retired(call)
            && text(call, "state") != "completed"
            && sequence(call) > completed
    };
    let mut named = &Value::Null;
    let mut first: Option<&Value> = None;
    for call in calls.iter().filter(of_group) {
        named = &call["process_group"];
        if is_open(&call) && first.is_none_or(|first| sequence(call) < sequence(first)) {
            first = Some(call);
        }
    }
    // gloo (torch 2.15) has one nameless entry here for all groups: the ranks of the last one.
    let config = &dump["pg_config"][id];
    let [name, description] = match config.is_object() {
        true => [text(config, "name"), text(config, "desc")],
        false => [0, 1].map(|at| named[at].as_str().unwrap_or_default()),
    };
    Position {
        group: short(if name.is_empty() { id } else { name }),
        description: short(description),
        ranks: ranks(text(config, "ranks")),
        called: number(status, "last_enqueued_collective"),
        completed,
        call: first.map(|first| short(call(text(first, "profiling_name")))),
        since_us: first.map(|first| number(first, "time_created_ns") / 1_000),
    }
}

/// `nccl:all_reduce` and `gloo:all_reduce` are the same call.
fn call(name: &str) -> &str {
    name.split_once(':').map_or(name, |(_, call)| call)
}

/// `[0, 1, 5]`.
fn ranks(text: &str) -> Vec<u32> {
    let inner = text.trim_start_matches('[').trim_end_matches(']');
    let all = inner.split(',').map(|rank| rank.trim().parse());
    all.collect::<Result<Vec<u32>, _>>().unwrap_or_default()
}

pub(crate) fn short(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_2_11_on_a_gpu_that_spins() {
        let answer = include_bytes!("../tests/recorded/nccl-2.11-recorder.json");
        let found = positions(answer).unwrap();
        let default = Position {
            group: "0".into(),
            description: "default_pg".into(),
            ranks: vec![0],
            called: 6,
            completed: 5,
            call: Some("all_reduce".into()),
            since_us: Some(1_795_695_409_102_173),
        };
        let second = Position {
            group: "1".into(),
            description: "undefined".into(),
            called: 5,
            call: None,
            since_us: None,
            ..default.clone()
        };
        assert_eq!(found, [default, second]);
    }

    #[test]
    fn gloo_2_15_keeps_calls_that_have_completed_and_names_no_groups() {
        let found = |answer: &[u8]| {
            let found = positions(answer).unwrap().into_iter();
            found
                .map(|p| (p.group, p.description, p.called, p.completed, p.call))
                .collect::<Vec<_>>()
        };
        let at = |group: &str, description: &str, called, completed, call: Option<&str>| {
            (
                group.to_owned(),
                description.to_owned(),
                called,
                completed,
                call.map(str::to_owned),
            )
        };
        assert_eq!(
            found(include_bytes!("../tests/recorded/gloo-2.15-recorder.json")),
            [
                at("0", "default_pg", 4, 3, Some("all_reduce")),
                at("1", "undefined", 1, 1, None),
            ]
        );
        assert_eq!(
            found(include_bytes!(
                "../tests/recorded/gloo-2.15-three-groups.json"
            )),
            [
                at("0", "default_pg", 3, 3, None),
                at("1", "undefined", 1, 1, None),
                at("2", "pair", 1, 0, Some("broadcast")),
            ]
        );
    }

    #[test]
    fn a_late_thread_of_gloo_does_not_take_a_call_back() {
        let answer = include_str!("../tests/recorded/gloo-2.15-recorder.json");
        let with = |completed: &str| {
            let mut dump: Value = serde_json::from_str(answer).unwrap();
            dump["pg_status"]["0"]["last_completed_collective"] = completed.into();
            positions(dump.to_string().as_bytes()).unwrap()
        };
        assert_eq!(with("2"), with("3"));
        assert_eq!(with("2")[0].completed, 3);
        assert_eq!(with("4")[0].completed, 4, "its entry is not retired yet");
    }

    #[test]
    fn what_is_not_a_recorders_answer_is_refused() {
        assert!(positions(b"").is_err());
        assert!(positions(b"7").is_err());
        let odd = positions(br#"{"pg_status":{"0":7},"entries":{},"pg_config":[]}"#).unwrap();
        assert_eq!((odd[0].group.as_str(), odd[0].called), ("0", 0));
        assert_eq!(positions(b"{}"), Ok(Vec::new()));
    }

    #[test]
    fn a_group_without_name_and_call_has_its_number() {
        let answer = br#"{"pg_status":{"10":{"last_enqueued_collective":-1},"9":{"last_enqueued_collective":"3","last_completed_collective":2}}}"#;
        let found = positions(answer).unwrap();
        let shown = |p: &Position| (p.group.clone(), p.called, p.completed);
        assert_eq!(
            found.iter().map(shown).collect::<Vec<_>>(),
            [("9".to_owned(), 3, 2), ("10".to_owned(), 0, 0)]
        );
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(answer: Vec<u8>) {
            let _ = positions(&answer);
        }
    }
}
