//! When a rank came to the collectives of each of its process groups, by torch's flight recorder.
//!
//! The recorder has up to 2,000 calls with the moment of each. Other nodes and other ranks are asked at about the same
//! time, but not at the same call. So what is kept are calls that all ranks choose alike, by their sequence numbers
//! alone: the calls of a group repeat with each step, and of the last ten seconds some of these *rounds* are kept, at
//! multiples of a number that all ranks find.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::recorder::{GROUPS_MAX, short};

/// The most groups of one rank that are kept: one for each dimension of parallelism.
pub const ARRIVALS_MAX: usize = 4;
/// The most moments of one group that are kept.
pub const MARKS_MAX: usize = ROUNDS * PHASES;
/// How many rounds are kept. Four of six must agree, so nothing depends on one of them.
const ROUNDS: usize = 6;
/// How many calls of one round are kept.
const PHASES: usize = 4;
/// Rounds are taken from so much time: as much as lies between two looks. Slow jobs need more for their rounds.
const OVER_US: u64 = 10_000_000;
/// So many rounds must repeat before anything is said.
const REPEATS: usize = 3;
/// In how many of a hundred calls a round may differ from the one before: evaluations and logs come in between.
const ALIKE: usize = 90;

/// When a rank came to the calls of one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrivals {
    /// The group's name in torch: the same on all its ranks.
    pub group: String,
    /// After so many calls they repeat.
    pub calls: u64,
    /// How long so many calls take, in microseconds.
    pub round_us: u64,
    /// Sequence numbers, and when the rank made these calls, in microseconds of Unix time. Both rise.
    pub marks: Vec<(u64, u64)>,
    /// How long a call takes until the process knows that it has completed, in the middle of all, in microseconds. gloo
    /// does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside_us: Option<u64>,
    /// In this group ranks also send to each other, as the stages of a pipeline do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sends: bool,
}

/// The most calls that are read, the newest: twice what the recorder keeps by default.
const CALLS_MAX: usize = 4_000;

#[derive(Deserialize)]
struct Dump {
    #[serde(default, deserialize_with = "newest")]
    entries: VecDeque<Entry>,
}

/// The last [`CALLS_MAX`] of a list, however long it is.
fn newest<'de, D: Deserializer<'de>>(from: D) -> Result<VecDeque<Entry>, D::Error> {
    struct Newest;
    impl<'de> Visitor<'de> for Newest {
        type Value = VecDeque<Entry>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of calls")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut newest = VecDeque::new();
            while let Some(entry) = list.next_element()? {
                if newest.len() == CALLS_MAX {
                    newest.pop_front();
                }
                newest.push_back(entry);
            }
            Ok(newest)
        }
    }
    from.deserialize_seq(Newest)
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    process_group: Vec<String>,
    #[serde(default, deserialize_with = "number")]
    collective_seq_id: u64,
    #[serde(default, deserialize_with = "number")]
    op_id: u64,
    #[serde(default)]
    is_p2p: bool,
    #[serde(default)]
    profiling_name: String,
    #[serde(default)]
    input_sizes: serde_json::Value,
    #[serde(default, deserialize_with = "number")]
    time_created_ns: u64,
    #[serde(default, deserialize_with = "number")]
    time_discovered_completed_ns: u64,
}

/// A number that may come as a string. Anything else is 0, as none is.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    let text = value.as_str().and_then(|text| text.parse().ok());
    Ok(value.as_u64().or(text).unwrap_or(0))
}

/// One collective.
struct Call {
    sequence: u64,
    /// All that is numbered in the group: more than the collectives if ranks send, too.
    number: u64,
    /// What it is, and its size.
    kind: u64,
    us: u64,
    inside_us: Option<u64>,
}

/// What an answer says of each group in which calls repeat, those that were made first.
///
/// # Errors
/// It is not JSON, or another form of it.
pub fn arrivals(answer: &[u8]) -> Result<Vec<Arrivals>, String> {
    let dump: Dump = serde_json::from_slice(answer).map_err(|e| format!("not understood: {e}"))?;
    let mut groups: BTreeMap<(usize, String), (Vec<Call>, bool)> = BTreeMap::new();
    for entry in dump.entries {
        let name = entry.process_group.first().map_or("", String::as_str);
        // "10" comes after "9".
        let key = (name.len(), short(name));
        if groups.len() >= GROUPS_MAX && !groups.contains_key(&key) {
            continue;
        }
        let (calls, sends) = groups.entry(key).or_default();
        if entry.is_p2p {
            *sends = true;
            continue;
        }
        if entry.collective_seq_id == 0 || entry.time_created_ns == 0 {
            continue;
        }
        let mut kind = DefaultHasher::new();
        entry.profiling_name.hash(&mut kind);
        entry.input_sizes.to_string().hash(&mut kind);
        let completed = entry.time_discovered_completed_ns;
        let inside = completed.checked_sub(entry.time_created_ns);
        calls.push(Call {
            sequence: entry.collective_seq_id,
            number: entry.op_id,
            kind: kind.finish(),
            us: entry.time_created_ns / 1_000,
            inside_us: inside.map(|ns| ns / 1_000),
        });
    }
    let groups = groups.into_iter();
    let found = groups.filter_map(|((_, group), (calls, sends))| of_group(group, calls, sends));
    Ok(found.take(ARRIVALS_MAX).collect())
}

fn of_group(group: String, mut calls: Vec<Call>, sends: bool) -> Option<Arrivals> {
    calls.sort_by_key(|call| call.sequence);
    // Several calls that are one have one number.
    calls.dedup_by_key(|call| call.sequence);
    let round = round(&calls)?;
    let n = round as u64;
    let last = calls.last()?;
    let recent = calls.iter().rev();
    let recent = recent.take_while(|call| call.us + OVER_US >= last.us);
    let recent = recent.count().max(ROUNDS * round).min(calls.len());
    let recent = &calls[calls.len() - recent..];
    let first = recent.first()?;
    let over = last.us.checked_sub(first.us)?;
    let round_us = over.saturating_mul(n) / (last.sequence - first.sequence).max(1);
    let marks = marks(recent, n);
    let mut inside: Vec<u64> = recent.iter().filter_map(|call| call.inside_us).collect();
    inside.sort_unstable();
    // gloo numbers what ranks send, and does not record it.
    let more = last.number.saturating_sub(first.number) > last.sequence - first.sequence;
    (round_us > 0 && !marks.is_empty()).then(|| Arrivals {
        group,
        calls: n,
        round_us,
        marks,
        inside_us: inside.get(inside.len() / 2).copied(),
        sends: sends || more,
    })
}

/// After how many calls they repeat.
fn round(calls: &[Call]) -> Option<usize> {
    let alike = |n: usize| {
        let pairs = calls.iter().zip(&calls[n..]);
        let (mut same, mut all) = (0, 0);
        for (a, b) in pairs.rev() {
            same += usize::from(a.kind == b.kind);
            all += 1;
            // Most are found to differ soon, so this takes little time.
            if all >= 32 && same * 100 < all * ALIKE / 2 {
                return false;
            }
        }
        same * 100 >= all * ALIKE
    };
    (1..=calls.len() / REPEATS).find(|n| alike(*n))
}

/// The calls that are kept, of a list whose rounds have `n` calls.
fn marks(recent: &[Call], n: u64) -> Vec<(u64, u64)> {
    let all = recent.len() as u64 / n;
    // A power of two, so that a rank that finds half as many chooses half of the same.
    let apart = (all / ROUNDS as u64).max(1);
    let apart = n << apart.ilog2();
    // One call of each part of a round.
    let parts = (1..=PHASES as u64)
        .rev()
        .find(|parts| n.is_multiple_of(*parts));
    let part = n / parts.unwrap_or(1);
    let is_kept = |call: &&Call| {
        let within = call.sequence % apart;
        within < n && within.is_multiple_of(part)
    };
    let kept = recent.iter().rev().filter(is_kept).take(MARKS_MAX);
    let mut kept: Vec<(u64, u64)> = kept.map(|call| (call.sequence, call.us)).collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with `count` calls of a group that is made of `round`, each 10 ms after the one before.
    fn answer(round: &[&str], count: u64) -> Vec<u8> {
        let entries = (1..=count).map(|at| {
            let name = round[at as usize % round.len()];
            format!(
                r#"{{"process_group":["7","dp"],"collective_seq_id":{at},"op_id":{at},"is_p2p":false,"profiling_name":"gloo:{name}","input_sizes":[[4]],"time_created_ns":{},"time_discovered_completed_ns":0}}"#,
                1_000_000_000 + at * 10_000_000
            )
        });
        let entries: Vec<String> = entries.collect();
        format!(r#"{{"entries":[{}]}}"#, entries.join(",")).into_bytes()
    }

    fn one(answer: &[u8]) -> Arrivals {
        arrivals(answer).unwrap().remove(0)
    }

    #[test]
    fn rounds_are_found_and_chosen_by_their_numbers() {
        let found = one(&answer(&["a"], 600));
        assert_eq!((found.calls, found.round_us), (1, 10_000));
        let numbers: Vec<u64> = found.marks.iter().map(|mark| mark.0).collect();
        assert!(
            numbers.len() >= ROUNDS && numbers.iter().all(|n| n % 64 == 0),
            "{numbers:?}"
        );
        assert_eq!(found.marks[0].1, 1_000_000 + numbers[0] * 10_000);
        // Another rank has been asked a little later.
        let later = one(&answer(&["a"], 609));
        let common = later.marks.iter().filter(|mark| found.marks.contains(mark));
        assert!(common.count() >= ROUNDS - 1);

        let found = one(&answer(&["a", "b", "b", "c"], 800));
        assert_eq!((found.calls, found.round_us), (4, 40_000));
        assert!(found.marks.len() <= MARKS_MAX && found.marks.len() >= MARKS_MAX / 2);
        let whole = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let found = one(&answer(&whole, 400));
        assert_eq!(found.calls, 8);
        assert!(found.marks.iter().all(|mark| mark.0 % 2 == 0), "{found:?}");
    }

    #[test]
    fn what_does_not_repeat_says_nothing() {
        assert_eq!(arrivals(&answer(&["a", "b", "c"], 6)), Ok(Vec::new()));
        assert_eq!(arrivals(b"{}"), Ok(Vec::new()));
        assert!(arrivals(b"").is_err() && arrivals(b"7").is_err());
        assert!(arrivals(br#"{"entries":{"a":1}}"#).is_err());
    }

    #[test]
    fn nccl_2_11_says_when_calls_have_completed() {
        let found = arrivals(include_bytes!("../tests/recorded/nccl-2.11-recorder.json")).unwrap();
        let shown: Vec<_> = { found.iter() }
            .map(|one| (&*one.group, one.calls, one.marks.len(), one.sends))
            .collect();
        assert_eq!(shown, [("0", 1, 6, false), ("1", 1, 5, false)]);
        assert_eq!(found[0].marks[0], (1, 1_795_695_409_065_046));
        assert!(found[0].inside_us.is_some_and(|us| us > 1_000), "{found:?}");
    }

    #[test]
    fn gloo_2_15_numbers_what_ranks_send_and_says_nothing_of_ends() {
        let found = arrivals(include_bytes!("../tests/recorded/gloo-2.15-rounds.json")).unwrap();
        let shown: Vec<_> = { found.iter() }
            .map(|one| (&*one.group, one.calls, one.sends, one.inside_us))
            .collect();
        assert_eq!(shown, [("0", 2, false, None), ("1", 1, true, None)]);
        assert!(
            found[0].round_us > 30_000,
            "one rank needs 30 ms more: {found:?}"
        );
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(answer: Vec<u8>) {
            let _ = arrivals(&answer);
        }
    }
}
