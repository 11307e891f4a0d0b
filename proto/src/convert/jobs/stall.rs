//! A generation that stood still, as users see it.

use muster_core::stall::{Named, Place, Stack, Stall};

use crate::{convert::stacks::frame_to_wire, v1};

pub(super) fn stall_to_wire(stall: &Stall) -> v1::Stall {
    let rank = |named: &Named| v1::StalledRank {
        rank: named.rank,
        node: named.node.to_string(),
        place: named.place.clone(),
    };
    let place = |place: &Place| v1::StalledPlace {
        ranks: place.ranks.clone(),
        place: place.place.clone(),
    };
    let stack = |stack: &Stack| v1::StalledStack {
        rank: stack.rank,
        node: stack.node.to_string(),
        frames: stack.frames.iter().map(frame_to_wire).collect(),
    };
    v1::Stall {
        since_unix_us: stall.since.0,
        at_unix_us: stall.at.0,
        why: format!("{:?}", stall.why),
        sentence: stall.sentence(),
        ranks: stall.named.iter().map(rank).collect(),
        ranks_more: stall.named_more,
        collective: stall.collective.clone().unwrap_or_default(),
        places: stall.places.iter().map(place).collect(),
        stacks: stall.stacks.iter().map(stack).collect(),
        restart_unix_us: stall.act_at.map_or(0, |at| at.0),
    }
}
