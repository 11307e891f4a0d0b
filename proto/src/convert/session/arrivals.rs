//! When a rank comes to the collectives of its groups. Numbers that rise go as differences, so each takes a few bytes.

use std::time::Duration;

use muster_core::slow::{Arrivals, Clock, InGroup};

use super::bounds::{NAME_MAX, count, malformed, text};
use crate::{convert::Malformed, v1};

/// The most groups of one rank. Agents send four.
const GROUPS_MAX: usize = 8;
/// The most moments of one group. Agents send 24.
const MARKS_MAX: usize = 64;

pub(super) fn arrivals_to_wire(arrivals: &Arrivals) -> v1::Arrivals {
    v1::Arrivals {
        look: arrivals.look,
        groups: arrivals.groups.iter().map(group_to_wire).collect(),
        clock_ahead_us: arrivals.clock.map(|clock| clock.ahead_us),
        clock_error_us: arrivals.clock.map_or(0, |clock| clock.error_us),
    }
}

fn group_to_wire(group: &InGroup) -> v1::GroupArrivals {
    v1::GroupArrivals {
        group: group.group.clone(),
        calls: group.calls,
        round_us: micros(group.round),
        sequences: differences(group.marks.iter().map(|mark| mark.0)),
        unix_us: differences(group.marks.iter().map(|mark| mark.1)),
        inside_us: group.inside.map(micros),
        sends: group.sends,
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Each number less the one before.
fn differences(all: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut before = 0;
    all.map(|number| number.wrapping_sub(std::mem::replace(&mut before, number)))
        .collect()
}

fn sums(all: Vec<u64>) -> impl Iterator<Item = u64> {
    all.into_iter().scan(0, |sum: &mut u64, number| {
        *sum = sum.wrapping_add(number);
        Some(*sum)
    })
}

pub(super) fn arrivals_from_wire(field: &str, wire: v1::Arrivals) -> Result<Arrivals, Malformed> {
    count(&format!("{field}.groups"), wire.groups.len(), GROUPS_MAX)?;
    let groups = wire.groups.into_iter().enumerate();
    let groups = groups.map(|(i, group)| group_from_wire(&format!("{field}.groups[{i}]"), group));
    let error_us = wire.clock_error_us;
    Ok(Arrivals {
        look: wire.look,
        groups: groups.collect::<Result<_, _>>()?,
        clock: wire
            .clock_ahead_us
            .map(|ahead_us| Clock { ahead_us, error_us }),
    })
}

fn group_from_wire(field: &str, wire: v1::GroupArrivals) -> Result<InGroup, Malformed> {
    let (sequences, times) = (wire.sequences, wire.unix_us);
    count(&format!("{field}.sequences"), sequences.len(), MARKS_MAX)?;
    if sequences.len() != times.len() {
        let why = format!("has {} times for {} calls", times.len(), sequences.len());
        return Err(malformed(field, why));
    }
    Ok(InGroup {
        group: text(&format!("{field}.group"), wire.group, NAME_MAX)?,
        calls: wire.calls,
        round: Duration::from_micros(wire.round_us),
        marks: sums(sequences).zip(sums(times)).collect(),
        inside: wire.inside_us.map(Duration::from_micros),
        sends: wire.sends,
    })
}
