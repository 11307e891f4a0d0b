//! Chooses a gang among candidates, all or nothing, or says what is wrong with each node that is not taken.
//!
//! If the job refuses a mixture, all members with GPUs are on nodes of one kind, and all interpreters go together. Each kind is
//! tried, and the gang with most [`super::score::Worth`] is taken. Members without GPUs may be on nodes of any kind.

use std::{cmp::Reverse, collections::BTreeSet, rc::Rc};

use super::{
    Placement,
    bin::Bin,
    candidate::Candidate,
    demand::Demand,
    fill::{Ask, Filled, largest},
    gang::{Share, gang},
    why::{Shortfall, Why},
};
use crate::{
    id::NodeName,
    nccl::{
        mixture::Kind,
        stack::{self, Bearer, Stack},
    },
};

/// A node that does not take the job, and why.
type Excluded<'a> = (&'a NodeName, Why<'a>);

pub(super) fn choose<'a>(
    candidates: &[&Candidate<'a>],
    demand: &Demand,
) -> Placement<'a, Vec<Share<'a>>> {
    let order = demand.order();
    let (mut fit, mut excluded) = (Vec::with_capacity(candidates.len()), Vec::new());
    for candidate in candidates {
        match serves_none(candidate, demand, &order) {
            None => fit.push(*candidate),
            Some(why) => excluded.push((candidate.node, why)),
        }
    }
    let of_kind = |kind: Rc<Kind>| {
        let ask = Ask {
            demand,
            order: &order,
            kind: &kind,
        };
        let (fit, odd) = of_one_stack(&fit, ask);
        let filled = largest(&fit, ask);
        (filled.worth(), filled, odd, kind)
    };
    // Of equal kinds the last one wins. It has the newer CUDA.
    let best = kinds(&fit, demand).into_iter().map(of_kind);
    let best = best.max_by(|a, b| a.0.cmp(&b.0));
    let (_, filled, odd, kind) = best.expect("there is a kind");
    let (min, have) = (demand.min(), filled.members());
    let enough = filled.is_complete() && have > 0;
    if !enough {
        excluded.extend(odd);
        excluded.extend(of_no_use(&filled, demand, &kind));
        excluded.sort_by_key(|(node, _)| *node);
        return Placement::Short(Shortfall {
            need: min.max(1),
            have,
            unit: demand.unit(),
            within: None,
            excluded,
            over: None,
        });
    }
    Placement::Gang(gang(&filled, demand))
}

/// Why the node could serve no role. The role that needs most says it best: "2 of 8 GPUs free".
fn serves_none<'a>(candidate: &Candidate<'a>, demand: &Demand, order: &[usize]) -> Option<Why<'a>> {
    let mut first = None;
    for role in order {
        let why = candidate.why_not(demand.roles[*role].gpus)?;
        first = first.or(Some(why));
    }
    first
}

/// The kinds of nodes that could serve a role with GPUs. Without such nodes the kind does not matter, and there is one.
fn kinds(fit: &[&Candidate<'_>], demand: &Demand) -> BTreeSet<Rc<Kind>> {
    let gpus = demand.roles.iter().map(|role| role.gpus);
    let least = gpus.filter(|gpus| *gpus > 0).min();
    let serves =
        |candidate: &&&Candidate<'_>| least.is_some_and(|gpus| candidate.why_not(gpus).is_none());
    let mut found: Vec<&Rc<Kind>> = fit.iter().filter(serves).map(|c| &c.kind).collect();
    // Most jobs take any mixture, so that all share one.
    found.dedup_by(|a, b| Rc::ptr_eq(a, b));
    match found.is_empty() {
        true => BTreeSet::from([Rc::default()]),
        false => found.into_iter().cloned().collect(),
    }
}

/// The candidates whose interpreters go together, as far as they are known, and the others. A node with an unknown interpreter
/// is kept, and asked when it is ready.
fn of_one_stack<'c, 'a>(
    fit: &[&'c Candidate<'a>],
    ask: Ask<'_>,
) -> (Vec<&'c Candidate<'a>>, Vec<Excluded<'a>>) {
    if fit.iter().all(|node| node.stack == Stack::default()) {
        return (fit.to_vec(), Vec::new());
    }
    let takes_part = |node: &&&Candidate<'_>| {
        let mut roles = ask.demand.roles.iter();
        roles.any(|role| node.why_not_beside(role.gpus, ask.kind).is_none())
    };
    let bearer = |node: &&'c Candidate<'a>| Bearer {
        node: node.node,
        stack: &node.stack,
        survivor: node.trained,
    };
    let bearers: Vec<Bearer<'_>> = fit.iter().filter(takes_part).map(bearer).collect();
    let odd = stack::mismatched(&bearers, ask.demand.gpus() > 0, least_nodes(fit, ask));
    let (mut kept, mut others) = (Vec::new(), Vec::new());
    for node in fit {
        match odd.get(node.node) {
            Some(odd) => others.push((node.node, Why::OtherStack(odd.clone()))),
            None => kept.push(*node),
        }
    }
    (kept, others)
}

/// The fewest nodes that could hold the smallest gang, if they were all alike in the rest.
fn least_nodes(fit: &[&Candidate<'_>], ask: Ask<'_>) -> u32 {
    let smallest = ask.demand.counts(0);
    let takes = |node: &&Candidate<'_>| {
        let bin = Bin::new(node, &node.kind, ask.demand);
        bin.would_take(&smallest, ask.demand, ask.order)
    };
    let mut all: Vec<u32> = fit.iter().map(takes).collect();
    all.sort_unstable_by_key(|takes| Reverse(*takes));
    let mut left: u32 = smallest.iter().sum();
    let needed = all.iter().take_while(|takes| {
        let more = left > 0;
        left = left.saturating_sub(**takes);
        more
    });
    needed.count() as u32
}

/// The reasons why nodes cannot hold the members that have no place.
fn of_no_use<'a>(filled: &Filled<'_, 'a>, demand: &Demand, kind: &Rc<Kind>) -> Vec<Excluded<'a>> {
    let missing = || {
        let roles = demand.roles.iter().zip(&filled.left);
        roles.filter(|(_, left)| **left > 0).map(|(role, _)| role)
    };
    let why = |bin: &Bin<'_, 'a>| {
        let node = bin.candidate;
        if bin.seated.is_empty() {
            return missing().find_map(|role| node.why_not_beside(role.gpus, kind));
        }
        let is_old = node.one_member && demand.per_node > 1;
        is_old.then_some(Why::OneMember)
    };
    let found = filled.bins.iter();
    found
        .filter_map(|bin| Some((bin.candidate.node, why(bin)?)))
        .collect()
}
