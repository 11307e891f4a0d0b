//! What two looks at all ranks say: it moves, or it stalls, and because of whom.
//!
//! What the kernel says goes first (stopped, in a device), then what torch says of its collectives, then the stacks. A rank
//! *waits* if torch says that a collective of it has not completed, or if its innermost calls are torch's own waits.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Named, Place, Stack, Stall, Why,
    kept::{FRAMES_MAX, NAMED_MAX, PLACES_MAX, cut, listed},
};
use crate::{
    id::NodeName,
    stacks::{self, Frame, Process, RankStack},
    time::Timestamp,
};

#[cfg(test)]
mod tests;

/// How many of the innermost calls may be a wait. Below them is what has called it.
const INNERMOST: usize = 6;

/// What was asked, and what else is known.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub first: &'a [RankStack],
    pub second: &'a [RankStack],
    /// Ranks whose processes use a processor.
    pub busy: &'a BTreeSet<u32>,
    /// Ranks that have ended well, which were not asked.
    pub ended: &'a [(u32, NodeName)],
    /// The generation has made steps as usual before.
    pub trained: bool,
    pub since: Timestamp,
    pub now: Timestamp,
}

/// What two looks say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It moves, or it may, for this reason.
    Moves(String),
    /// A rank was not seen twice, so nothing can be said.
    Unseen(String),
    Stalls(Box<Stall>),
}

/// Judges two looks.
pub fn verdict(asked: Asked<'_>) -> Verdict {
    let before: BTreeMap<u32, &RankStack> = {
        let first = asked.first.iter();
        first.map(|rank| (rank.rank, rank)).collect()
    };
    let mut unseen = None;
    for rank in asked.second {
        match (before.get(&rank.rank), &rank.process) {
            (Some(before), Some(process)) => {
                if let Some(why) = moves(before, rank, process, asked.busy) {
                    return Verdict::Moves(format!("rank {} {why}", rank.rank));
                }
            }
            (_, None) => unseen = unseen.or(Some((rank.rank, "has not answered"))),
            (None, _) => unseen = unseen.or(Some((rank.rank, "has answered once"))),
        }
    }
    if let Some((rank, why)) = unseen {
        return Verdict::Unseen(format!("rank {rank} {why}"));
    }
    if asked.second.is_empty() {
        return Verdict::Unseen("no rank has answered".to_owned());
    }
    // If nobody is seen to wait, most ranks must stand where they stood.
    let elsewhere = |rank: &&RankStack| {
        let before = before.get(&rank.rank).and_then(|before| calls(before));
        before != calls(rank)
    };
    let gone_on = asked.second.iter().filter(elsewhere).count();
    if !asked.second.iter().any(waits) && gone_on * 2 >= asked.second.len() {
        return Verdict::Moves("ranks are not where they were".to_owned());
    }
    let (why, ranks) = blamed(&asked, &before);
    let sure = asked.trained && why != Why::Held || why.shows_a_wait();
    Verdict::Stalls(Box::new(kept(&asked, why, &ranks, sure)))
}

/// Why this rank moves, or may move.
fn moves(
    before: &RankStack,
    now: &RankStack,
    process: &Process,
    busy: &BTreeSet<u32>,
) -> Option<&'static str> {
    let pid = before.process.as_ref().map(|process| process.pid);
    if pid != Some(process.pid) {
        return Some("was started again");
    }
    if is_held(now) {
        return None;
    }
    let came = |rank: &RankStack| -> Vec<(String, u64, u64)> {
        let of = |p: &stacks::Position| (p.group.clone(), p.called, p.completed);
        rank.positions.iter().map(of).collect()
    };
    if came(before) != came(now) {
        return Some("has gone on to another collective");
    }
    if waits(before) && calls(before) != calls(now) {
        return Some("has left the call in which it waited");
    }
    if busy.contains(&now.rank) && !waits(now) {
        return Some("works: it uses a processor outside any collective");
    }
    None
}

/// What stands in the way, and the ranks that are to be named.
fn blamed(asked: &Asked<'_>, before: &BTreeMap<u32, &RankStack>) -> (Why, Vec<u32>) {
    let all = asked.second;
    let those = |is: &dyn Fn(&RankStack) -> bool| -> Vec<u32> {
        let found = all.iter().filter(|rank| is(rank));
        found.map(|rank| rank.rank).collect()
    };
    let held = those(&is_held);
    if held.len() == all.len() || all.iter().any(|rank| state(rank) == "t") {
        return (Why::Held, Vec::new());
    }
    if !held.is_empty() {
        return (Why::Stopped, held);
    }
    let device = |rank: &RankStack| {
        let same = before.get(&rank.rank).map(|before| state(before));
        state(rank) == "D" && same == Some("D")
    };
    let device = those(&device);
    if !device.is_empty() {
        return (Why::Device, device);
    }
    let waiting = those(&waits);
    if !waiting.is_empty() && !asked.ended.is_empty() {
        return (
            Why::Ended,
            asked.ended.iter().map(|(rank, _)| *rank).collect(),
        );
    }
    let behind: BTreeSet<u32> = { stacks::waits(all).into_iter() }
        .flat_map(|wait| wait.behind)
        .filter(|rank| !waiting.contains(rank))
        .collect();
    if !behind.is_empty() {
        return (Why::Elsewhere, behind.into_iter().collect());
    }
    let known = |rank: &RankStack| !rank.threads.is_empty() || !rank.positions.is_empty();
    let elsewhere = those(&|rank| known(rank) && !waits(rank));
    if !waiting.is_empty() && !elsewhere.is_empty() {
        return (Why::Elsewhere, elsewhere);
    }
    let silent = those(&|rank| !known(rank));
    if !waiting.is_empty() && !silent.is_empty() {
        return match silent.len() * 2 < all.len() {
            true => (Why::Silent, silent),
            false => (Why::Unclear, Vec::new()),
        };
    }
    if waiting.len() == all.len() && all.len() > 1 {
        return mismatch(all);
    }
    apart(all)
}

/// All wait. Not in the same collective?
fn mismatch(all: &[RankStack]) -> (Why, Vec<u32>) {
    let mut by_call: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for rank in all {
        let waited = rank.positions.iter().filter(|position| position.waits());
        let told: Vec<String> = waited
            .map(|p| {
                let call = p.call.as_deref().unwrap_or_default();
                format!("{call} {} of {}", p.completed + 1, p.group)
            })
            .collect();
        let call = match told.is_empty() {
            true => wait(rank).map_or(String::new(), |frame| frame.function.clone()),
            false => told.join(", "),
        };
        by_call.entry(call).or_default().push(rank.rank);
    }
    match by_call.len() {
        1 => (Why::AllWait, Vec::new()),
        _ => (Why::Mismatch, fewest(by_call.into_values(), all.len())),
    }
}

/// Nobody is seen to wait, as where NCCL's collectives are waited for in the job's own line. Ranks that are not
/// where most are stand out.
fn apart(all: &[RankStack]) -> (Why, Vec<u32>) {
    if let [alone] = all
        && !alone.threads.is_empty()
    {
        return (Why::Apart, vec![alone.rank]);
    }
    let together = stacks::together(all);
    let known = together
        .iter()
        .all(|group| matches!(group.place, stacks::Place::At { .. }));
    let fewest = fewest(together.into_iter().map(|group| group.ranks), all.len());
    match known && !fewest.is_empty() {
        true => (Why::Apart, fewest),
        false => (Why::Unclear, Vec::new()),
    }
}

/// The ranks that are not in the group of more than half. Empty: there is no such group, or all are in it.
fn fewest(groups: impl Iterator<Item = Vec<u32>>, all: usize) -> Vec<u32> {
    let (most, others): (Vec<_>, Vec<_>) = groups.partition(|ranks| ranks.len() * 2 > all);
    let mut others: Vec<u32> = others.into_iter().flatten().collect();
    others.sort_unstable();
    match most.is_empty() {
        true => Vec::new(),
        false => others,
    }
}

fn kept(asked: &Asked<'_>, why: Why, ranks: &[u32], sure: bool) -> Stall {
    let together = stacks::together(asked.second);
    let place_of = |rank: u32| {
        let group = together.iter().find(|group| group.ranks.contains(&rank));
        group.map_or_else(
            || "has ended".to_owned(),
            |group| cut(&group.place.to_string()),
        )
    };
    let ended = asked.ended.iter().map(|(rank, node)| (*rank, node));
    let living = asked.second.iter().map(|rank| (rank.rank, &rank.node));
    let nodes: BTreeMap<u32, &NodeName> = living.chain(ended).collect();
    let named = ranks.iter().filter_map(|rank| {
        Some(Named {
            rank: *rank,
            node: (*nodes.get(rank)?).clone(),
            place: place_of(*rank),
        })
    });
    let named: Vec<Named> = named.take(NAMED_MAX).collect();
    let culprit = asked.second.iter().find(|rank| ranks.contains(&rank.rank));
    let waiting = asked.second.iter();
    let waiting = waiting.filter(|rank| !ranks.contains(&rank.rank));
    let waiting = { waiting.clone() }
        .find(|rank| waits(rank))
        .or_else(|| waiting.clone().next());
    let collective = stacks::waits(asked.second).into_iter().next();
    Stall {
        since: asked.since,
        at: asked.now,
        why,
        named_more: ranks.len().saturating_sub(named.len()) as u32,
        named,
        collective: collective.map(|wait| {
            let call = wait.call.as_deref().unwrap_or("collective");
            let group = match wait.description.as_str() {
                "" => wait.group,
                description => format!("{} ({description})", wait.group),
            };
            cut(&format!("{call} {} of group {group}", wait.sequence))
        }),
        places: { together.iter().take(PLACES_MAX) }
            .map(|group| Place {
                ranks: listed(&group.ranks),
                place: cut(&group.place.to_string()),
            })
            .collect(),
        stacks: { [culprit, waiting].into_iter().flatten() }
            .filter_map(stack)
            .collect(),
        sure,
        of_node: why.is_the_nodes(),
        act_at: None,
    }
}

fn stack(rank: &RankStack) -> Option<Stack> {
    let frames = rank.threads.first()?.iter().take(FRAMES_MAX);
    Some(Stack {
        rank: rank.rank,
        node: rank.node.clone(),
        frames: frames
            .map(|frame| Frame {
                file: cut(&frame.file),
                line: frame.line,
                function: cut(&frame.function),
            })
            .collect(),
    })
}

fn state(rank: &RankStack) -> &str {
    rank.process
        .as_ref()
        .map_or("", |process| process.state.as_str())
}

/// Whether a signal or a debugger has stopped it.
fn is_held(rank: &RankStack) -> bool {
    matches!(state(rank), "T" | "t")
}

/// Whether it waits for other ranks.
pub(super) fn waits(rank: &RankStack) -> bool {
    rank.positions.iter().any(stacks::Position::waits) || wait(rank).is_some()
}

/// The call of its main thread by which it waits for others.
fn wait(rank: &RankStack) -> Option<&Frame> {
    for frame in rank.threads.first()?.iter().take(INNERMOST) {
        if is_wait(frame) {
            return Some(frame);
        }
        if stacks::is_own(frame) {
            return None;
        }
    }
    None
}

fn is_wait(frame: &Frame) -> bool {
    let ends = |name: &str| frame.file.ends_with(name);
    let of_torch = frame.file.contains("/torch/");
    let backward = frame.function == "_engine_run_backward" && ends("/autograd/graph.py");
    let meets = ["/rendezvous.py", "/_functional_collectives.py"];
    ends("/torch/distributed/distributed_c10d.py")
        || of_torch && (backward || frame.function == "synchronize")
        || of_torch && meets.iter().any(|name| ends(name))
        || frame.file.contains("/horovod/") && frame.function == "synchronize"
}

/// Its main thread, as far as it is told.
fn calls(rank: &RankStack) -> Option<&Vec<Frame>> {
    rank.threads.first()
}
