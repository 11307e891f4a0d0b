//! A generation that stood still.

use muster_proto::v1;
use serde::Serialize;

use super::super::words;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Stall {
    since: String,
    at: String,
    why: String,
    sentence: String,
    ranks: Vec<Rank>,
    #[serde(skip_serializing_if = "String::is_empty")]
    collective: String,
    places: Vec<Place>,
    stacks: Vec<Stack>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart_at: Option<String>,
}

#[derive(Debug, Serialize)]
struct Rank {
    rank: u32,
    node: String,
    place: String,
}

#[derive(Debug, Serialize)]
struct Place {
    ranks: String,
    place: String,
}

#[derive(Debug, Serialize)]
struct Stack {
    rank: u32,
    node: String,
    /// `FUNCTION FILE:LINE`, the innermost call first.
    frames: Vec<String>,
}

impl From<v1::Stall> for Stall {
    fn from(stall: v1::Stall) -> Self {
        let rank = |rank: v1::StalledRank| Rank {
            rank: rank.rank,
            node: rank.node,
            place: rank.place,
        };
        let place = |place: v1::StalledPlace| Place {
            ranks: place.ranks,
            place: place.place,
        };
        let frame =
            |frame: v1::StackFrame| format!("{} {}:{}", frame.function, frame.file, frame.line);
        let stack = |stack: v1::StalledStack| Stack {
            rank: stack.rank,
            node: stack.node,
            frames: stack.frames.into_iter().map(frame).collect(),
        };
        Self {
            since: words::utc(stall.since_unix_us),
            at: words::utc(stall.at_unix_us),
            why: stall.why,
            sentence: stall.sentence,
            ranks: stall.ranks.into_iter().map(rank).collect(),
            collective: stall.collective,
            places: stall.places.into_iter().map(place).collect(),
            stacks: stall.stacks.into_iter().map(stack).collect(),
            restart_at: (stall.restart_unix_us != 0).then(|| words::utc(stall.restart_unix_us)),
        }
    }
}
