//! Who was late in one look.
//!
//! A call of a collective ends for nobody before all have made it. So what a rank costs the others at a call is how much later
//! it comes than the last of the others. That is taken from some rounds of the group, and of these the lower quartile: a lateness
//! that is there in three rounds of four. A checkpoint, an evaluation or one slow batch is not, nor is a lateness that
//! goes from rank to rank with the data.
//!
//! Several ranks may be late together, as all those of a slow node: then each alone would cost nothing. So for each number of ranks
//! up to half of the group, the latest ones are held against the others, and the largest difference counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Arrivals, InGroup, kept::times_percent};
use crate::id::NodeName;

/// From how many hundredths of a step's usual length on ranks are late.
const TIMES_PERCENT: u64 = 130;
/// So many rounds must be known of all ranks of a group. Of two, one may be an accident.
const ROUNDS_MIN: usize = 3;

/// A rank that lives, and what one look has found out about it.
#[derive(Clone, Copy, Debug)]
pub struct Came<'a> {
    pub rank: u32,
    pub node: &'a NodeName,
    pub arrivals: &'a Arrivals,
}

/// A rank that was late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    pub rank: u32,
    pub node: NodeName,
    /// How long each step waited for it, and how long a step was.
    pub wait: Duration,
    pub step: Duration,
}

impl Late {
    pub(super) fn times_percent(&self) -> u64 {
        times_percent(self.wait, self.step)
    }
}

/// One rank in one group.
#[derive(Clone, Copy)]
struct Member<'a> {
    came: Came<'a>,
    own: &'a InGroup,
}

impl Member<'_> {
    /// By the coordinator's clock, if that is known.
    fn at(&self, own_us: u64) -> i64 {
        let clock = self.came.arrivals.clock;
        let ahead = clock.map_or(0, |clock| clock.ahead_us);
        i64::try_from(own_us)
            .unwrap_or(i64::MAX)
            .saturating_sub(ahead)
    }
}

/// Who was late in this look, the worst first. `step`: how long a step takes, if that is known by another way.
pub fn late(ranks: &[Came<'_>], step: Option<Duration>) -> Vec<Late> {
    let mut groups: BTreeMap<&str, Vec<Member<'_>>> = BTreeMap::new();
    for came in ranks {
        for own in &came.arrivals.groups {
            let members = groups.entry(&own.group).or_default();
            members.push(Member { came: *came, own });
        }
    }
    let pipelines: Vec<BTreeSet<u32>> = { groups.values() }
        .filter(|members| members.iter().any(|member| member.own.sends))
        .map(|members| members.iter().map(|member| member.came.rank).collect())
        .collect();
    // Stages of a pipeline differ by nature: the first has its gradients last.
    let crosses = |members: &[Member<'_>]| {
        pipelines.iter().any(|stages| {
            let of_it = members.iter().filter(|m| stages.contains(&m.came.rank));
            of_it.count() > 1
        })
    };
    let mut worst: BTreeMap<u32, Late> = BTreeMap::new();
    for members in groups.values().filter(|members| !crosses(members)) {
        for late in in_group(members, step) {
            let known = worst.get(&late.rank);
            if known.is_none_or(|known| known.times_percent() < late.times_percent()) {
                worst.insert(late.rank, late);
            }
        }
    }
    let mut found: Vec<Late> = worst.into_values().collect();
    found.sort_by_key(|late| (std::cmp::Reverse(late.times_percent()), late.rank));
    found
}

fn in_group(members: &[Member<'_>], step: Option<Duration>) -> Vec<Late> {
    let parts = parts(members);
    let found = parts.values().filter_map(|rows| split(rows));
    let Some((saved, late)) = found.max_by_key(|(saved, _)| *saved) else {
        return Vec::new();
    };
    let Some(doubt) = doubt(members) else {
        return Vec::new();
    };
    let wait = Duration::from_micros(u64::try_from(saved).unwrap_or(0).saturating_sub(doubt));
    let mut rounds: Vec<Duration> = members.iter().map(|member| member.own.round).collect();
    rounds.sort_unstable();
    let round = rounds[rounds.len() / 2];
    let step = step.map_or(round, |step| step.max(round));
    // Whoever is ahead by a whole step does not wait for it.
    if wait >= round || times_percent(wait, step) < TIMES_PERCENT || !waits_least(members, &late) {
        return Vec::new();
    }
    let named = late.iter().map(|at| Late {
        rank: members[*at].came.rank,
        node: members[*at].came.node.clone(),
        wait,
        step,
    });
    named.collect()
}

/// When each member came to the calls that are known of all, in the order of the members, by the part of the round.
fn parts(members: &[Member<'_>]) -> BTreeMap<u64, Vec<Vec<i64>>> {
    let round = members.iter().map(|member| member.own.calls.max(1)).max();
    let mut all: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
    for (at, member) in members.iter().enumerate() {
        for (sequence, us) in &member.own.marks {
            let row = all.entry(*sequence).or_default();
            if row.len() == at {
                row.push(member.at(*us));
            }
        }
    }
    let mut parts: BTreeMap<u64, Vec<Vec<i64>>> = BTreeMap::new();
    for (sequence, row) in all {
        if row.len() == members.len() {
            let part = sequence % round.unwrap_or(1);
            parts.entry(part).or_default().push(row);
        }
    }
    parts
}

/// The ranks that come apart from the others most, and by how many microseconds: in three rounds of four, at least so many.
fn split(rows: &[Vec<i64>]) -> Option<(i64, Vec<usize>)> {
    let count = rows.first()?.len();
    if rows.len() < ROUNDS_MIN || count < 2 {
        return None;
    }
    let middles: Vec<i64> = rows.iter().map(|row| middle(row)).collect();
    let usual = |at: usize| {
        let rows = rows.iter().zip(&middles);
        let late = rows.map(|(row, middle)| row[at].saturating_sub(*middle));
        lower_quartile(late.collect())
    };
    let mut order: Vec<(i64, usize)> = (0..count).map(|at| (usual(at), at)).collect();
    order.sort_by_key(|(late, at)| (std::cmp::Reverse(*late), *at));
    // By how many of the order are taken for late: how far they are apart from the others, in each round.
    let mut apart: Vec<Vec<i64>> = vec![Vec::with_capacity(rows.len()); count / 2];
    for row in rows {
        let mut last = vec![i64::MIN; count + 1];
        for (place, (_, at)) in order.iter().enumerate().rev() {
            last[place] = last[place + 1].max(row[*at]);
        }
        let mut first = i64::MAX;
        for (place, (_, at)) in order.iter().take(count / 2).enumerate() {
            first = first.min(row[*at]);
            apart[place].push(first.saturating_sub(last[place + 1]));
        }
    }
    let apart = apart.into_iter().map(lower_quartile).enumerate();
    let (place, apart) = apart.max_by_key(|(_, apart)| *apart)?;
    Some((apart, order[..=place].iter().map(|(_, at)| *at).collect()))
}

fn middle(row: &[i64]) -> i64 {
    let mut sorted = row.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() - 1) / 2]
}

fn lower_quartile(mut all: Vec<i64>) -> i64 {
    all.sort_unstable();
    all[all.len() / 4]
}

/// By how many microseconds times of two members may differ falsely. `None`: nothing can be said.
fn doubt(members: &[Member<'_>]) -> Option<u64> {
    let mut nodes: BTreeMap<&NodeName, Option<u64>> = BTreeMap::new();
    for member in members {
        let clock = member.came.arrivals.clock;
        nodes.insert(member.came.node, clock.map(|clock| clock.error_us));
    }
    if nodes.len() < 2 {
        return Some(0);
    }
    let mut errors: Vec<u64> = nodes.into_values().collect::<Option<_>>()?;
    errors.sort_unstable();
    let most = errors.iter().rev().take(2);
    Some(most.fold(0, |sum, error| sum.saturating_add(*error)))
}

/// Whether the late ones spend less time inside their calls than the others, by half at least. A GPU that still works when a call
/// comes makes all wait, and not the program that came to it late. Where nobody says, as gloo, calls are made by who waits.
fn waits_least(members: &[Member<'_>], late: &[usize]) -> bool {
    let inside: Option<Vec<Duration>> = members.iter().map(|member| member.own.inside).collect();
    let Some(inside) = inside else { return true };
    let most = late.iter().map(|at| inside[*at]).max();
    let others = (0..members.len()).filter(|at| !late.contains(at));
    let least = others.map(|at| inside[at]).min();
    most.zip(least)
        .is_some_and(|(late, others)| late * 2 <= others)
}

#[cfg(test)]
mod tests;
