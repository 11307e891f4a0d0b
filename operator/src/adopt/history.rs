//! Conditions that are a history: each change of a job adds one, and the one before becomes false.
//!
//! A job's receipts tell its history, but not for ever, and not what it waited for between them. So what
//! was written before stays, and what the job tells now is put into it by its times. All of this is pure.

use muster_core::time::Timestamp;
use serde_json::{Value, json};

use crate::stamp::time;

/// The conditions that are kept. 200 of about 300 bytes are far below the 1.5 MiB of an object, and as
/// much as 100 receipts tell.
const MOST: usize = 200;

/// The history in `told` goes on from that in `seen`.
pub(super) fn go_on(told: &mut Value, seen: &Value, now: Timestamp) {
    let Some(news) = told["conditions"].as_array_mut() else {
        return;
    };
    let Some(mut newest) = news.pop() else { return };
    // Whoever may edit the object may have written anything.
    let before = seen["conditions"].as_array().into_iter().flatten();
    let before: Vec<Value> = before.filter(|one| one.is_object()).cloned().collect();
    let mut before = &before[..];
    let mut all: Vec<Value> = Vec::new();
    // Within a second only the order tells what came first.
    for one in news.drain(..).filter(|one| at(one).is_some()) {
        let known = before
            .iter()
            .position(|other| at(other) == at(&one) && is_same(other, &one));
        let older = before.iter().take_while(|other| at(other) <= at(&one));
        let older = known.unwrap_or_else(|| older.count());
        all.extend(before[..older].iter().cloned());
        before = &before[older + usize::from(known.is_some())..];
        all.push(one);
    }
    all.extend(before.iter().cloned());
    all.dedup_by(|next, one| is_same(next, one));
    match all.last_mut() {
        Some(last) if is_same(last, &newest) => last["message"] = newest["message"].take(),
        Some(last) => {
            // What was seen after it is over.
            if at(&newest).is_none_or(|begun| Some(begun) < at(last)) {
                for field in ["lastProbeTime", "lastTransitionTime"] {
                    newest[field] = json!(time(now));
                }
            }
            all.push(newest);
        }
        None => all.push(newest),
    }
    let count = all.len();
    for (i, one) in all.iter_mut().enumerate() {
        one["status"] = json!(if i + 1 == count { "True" } else { "False" });
    }
    *news = all.split_off(count.saturating_sub(MOST));
}

fn at(condition: &Value) -> Option<&str> {
    condition["lastTransitionTime"].as_str()
}

/// As the operator compares them.
fn is_same(one: &Value, other: &Value) -> bool {
    one["type"] == other["type"] && one["reason"] == other["reason"]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conditions such as `Running@3`. A time that nobody kept is `?`.
    fn status(conditions: &str) -> Value {
        let one = |text: &str| {
            let (kind, second) = text.split_once('@').unwrap();
            let at = (second != "?").then(|| format!("1970-01-01T00:00:{second:0>2}Z"));
            json!({ "type": kind, "reason": kind, "status": "True", "message": "new", "lastTransitionTime": at })
        };
        let all: Vec<Value> = conditions.split_whitespace().map(one).collect();
        json!({ "conditions": all })
    }

    fn gone_on(seen: &str, told: &str) -> String {
        let (mut told, now) = (status(told), Timestamp(59_000_000));
        go_on(&mut told, &status(seen), now);
        let all = told["conditions"].as_array().unwrap();
        let (newest, before) = all.split_last().unwrap();
        assert_eq!(newest["status"], "True", "{told:#}");
        assert!(
            before.iter().all(|one| one["status"] == "False"),
            "{told:#}"
        );
        let short = |one: &Value| {
            let second = at(one).map_or("?", |at| at[17..19].trim_start_matches('0'));
            format!("{}@{second}", one["type"].as_str().unwrap())
        };
        all.iter().map(short).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_was_written_stays() {
        for (seen, told, all) in [
            ("", "Pending@1", "Pending@1"),
            ("Pending@1", "Pending@1 Running@3", "Pending@1 Running@3"),
            // Two changes between two writes.
            (
                "Pending@1 Running@3",
                "Pending@1 Running@3 Restarting@5 Running@5",
                "Pending@1 Running@3 Restarting@5 Running@5",
            ),
            // The receipts do not tell of it any more.
            (
                "Pending@1 Creating@2 Running@3",
                "Pending@1 Running@3 Restarting@6",
                "Pending@1 Creating@2 Running@3 Restarting@6",
            ),
            (
                "Pending@1 Running@3 Restarting@6 Running@7",
                "Pending@1 Restarting@8",
                "Pending@1 Running@3 Restarting@6 Running@7 Restarting@8",
            ),
            // All within one second.
            (
                "Pending@1 Creating@3 Running@3",
                "Pending@1 Running@3 Restarting@5",
                "Pending@1 Creating@3 Running@3 Restarting@5",
            ),
            // A time that becomes known is the same change.
            (
                "Pending@1 Running@4",
                "Pending@1 Running@3",
                "Pending@1 Running@4",
            ),
            (
                "Pending@1 Running@4",
                "Pending@1 Running@?",
                "Pending@1 Running@4",
            ),
            // What holds now is the newest.
            (
                "Pending@1 Running@3 Restarting@6",
                "Pending@1 Running@?",
                "Pending@1 Running@3 Restarting@6 Running@59",
            ),
            (
                "Pending@1 Running@3 Restarting@6",
                "Pending@1",
                "Pending@1 Running@3 Restarting@6 Pending@59",
            ),
        ] {
            assert_eq!(gone_on(seen, told), all, "{told} after {seen}");
        }
    }

    #[test]
    fn what_is_no_condition_is_dropped() {
        let mut seen = status("Pending@1 Running@3");
        let all = seen["conditions"].as_array_mut().unwrap();
        for (at, other) in [json!("x"), json!(7), json!([]), json!(null), json!(true)]
            .into_iter()
            .enumerate()
        {
            all.insert(at, other.clone());
            all.push(other);
        }
        let mut told = status("Pending@1 Running@3 Restarting@5");
        let expected = {
            let mut told = told.clone();
            go_on(&mut told, &status("Pending@1 Running@3"), Timestamp(0));
            told
        };
        go_on(&mut told, &seen, Timestamp(0));
        assert_eq!(told, expected);
        for odd in [json!("x"), json!([["type"]]), json!({ "type": "Running" })] {
            let mut told = status("Pending@1");
            go_on(&mut told, &json!({ "conditions": odd }), Timestamp(0));
            assert_eq!(told, status("Pending@1"));
        }
    }

    #[test]
    fn a_history_that_was_written_is_the_same_again() {
        let (mut told, now) = (status("Pending@1 Running@?"), Timestamp(9_000_000));
        go_on(&mut told, &status("Pending@1"), now);
        let mut again = status("Pending@1 Running@?");
        go_on(&mut again, &told, Timestamp(20_000_000));
        assert_eq!(again, told);
    }

    #[test]
    fn the_oldest_go_first() {
        let story = |count: usize| {
            let mut told = json!({ "conditions": [] });
            for i in 0..count {
                let kind = ["Running", "Restarting"][i % 2];
                let at = format!("1970-01-01T00:{:02}:{:02}Z", i / 60, i % 60);
                let one = json!({ "type": kind, "reason": kind, "lastTransitionTime": at });
                told["conditions"].as_array_mut().unwrap().push(one);
            }
            told
        };
        let mut told = story(MOST + 3);
        go_on(&mut told, &story(MOST), Timestamp(0));
        let all = told["conditions"].as_array().unwrap();
        assert_eq!(
            (all.len(), at(&all[0])),
            (MOST, Some("1970-01-01T00:00:03Z"))
        );
    }
}
