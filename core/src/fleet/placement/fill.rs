//! Gives the members of a gang their nodes.
//!
//! Members of the job's latest generation stay where they are. The others fill the nodes that are used already. If that is not
//! enough, nodes are added: the role that needs most GPUs and lacks members takes the node with the best [`Score`], and the
//! node then takes all it can. If that leaves no room for the gang, it is placed anew, without regard to where members were, and
//! roles with GPUs spare the nodes that others could use.
//!
//! The greedy choice finds room whenever there is any for members that have nodes of their own, and for members that share
//! nodes and need equally many GPUs, or powers of two of them.

use std::{cmp::Reverse, rc::Rc};

use super::{
    bin::Bin,
    candidate::Candidate,
    demand::Demand,
    score::{Score, Worth},
};
use crate::nccl::mixture::Kind;

/// What is to be placed, and on which kind of node.
#[derive(Clone, Copy)]
pub(super) struct Ask<'d> {
    pub demand: &'d Demand,
    /// The roles in the order in which they choose.
    pub order: &'d [usize],
    pub kind: &'d Rc<Kind>,
}

/// The members of a gang that all nodes together hold.
#[derive(Debug)]
pub(super) struct Filled<'c, 'a> {
    pub bins: Vec<Bin<'c, 'a>>,
    /// The positions of nodes with members, in the order in which they were taken.
    pub used: Vec<usize>,
    /// Members of each role that have no place.
    pub left: Vec<u32>,
}

impl Filled<'_, '_> {
    pub(super) fn is_complete(&self) -> bool {
        self.left.iter().all(|count| *count == 0)
    }

    pub(super) fn members(&self) -> u32 {
        self.bins.iter().map(|bin| bin.seated.len() as u32).sum()
    }

    pub(super) fn worth(&self) -> Worth {
        let had = |at: &&usize| self.bins[**at].candidate.node_rank.is_some();
        Worth {
            complete: self.is_complete(),
            kept: self.used.iter().filter(had).count(),
            members: self.members(),
            nodes: Reverse(self.used.len()),
        }
    }
}

/// The largest gang, up to what is wanted. If there is none, what has a place of the smallest.
pub(super) fn largest<'c, 'a>(fit: &[&'c Candidate<'a>], ask: Ask<'_>) -> Filled<'c, 'a> {
    let of_size = |size: u32| {
        let target = ask.demand.counts(size);
        let kept = fill(fit, ask, &target, true);
        match kept.is_complete() {
            true => kept,
            false => fill(fit, ask, &target, false),
        }
    };
    let min = ask.demand.min();
    let most = ask.demand.most();
    let filled = of_size(most);
    if filled.is_complete() {
        return filled;
    }
    // Members that are all alike find places whenever there are some, so what has found one is the largest gang.
    let largest = match ask.demand.roles.len() {
        1 => filled.members().max(min),
        _ => min,
    };
    let mut best = of_size(largest);
    let (mut low, mut high) = (largest, most);
    if ask.demand.roles.len() == 1 {
        high = low;
    }
    while best.is_complete() && low + 1 < high {
        let size = low + (high - low) / 2;
        let filled = of_size(size);
        match filled.is_complete() {
            true => (low, best) = (size, filled),
            false => high = size,
        }
    }
    best
}

/// Seats this many members of each role. `keep`: those of the latest generation stay on their nodes.
fn fill<'c, 'a>(
    fit: &[&'c Candidate<'a>],
    ask: Ask<'_>,
    target: &[u32],
    keep: bool,
) -> Filled<'c, 'a> {
    let Ask {
        demand,
        order,
        kind,
    } = ask;
    let bins = fit.iter().map(|node| Bin::new(node, kind, demand));
    let mut filled = Filled {
        bins: bins.collect(),
        used: Vec::new(),
        left: target.to_vec(),
    };
    if keep {
        filled.stay(demand);
    }
    let Filled { bins, used, left } = &mut filled;
    for at in used.iter() {
        bins[*at].fill(left, demand, order);
    }
    for role in order {
        let mut opened: Vec<(Score<'_>, usize)> = Vec::new();
        while left[*role] > 0 {
            let free = bins.iter().enumerate();
            let free =
                free.filter(|(_, bin)| bin.seated.is_empty() && bin.takes(&demand.roles[*role]));
            let score =
                |bin: &Bin<'c, 'a>, left: &[u32]| bin.score(*role, left, demand, order, !keep);
            let mut next: Vec<(Score<'_>, usize)> =
                free.map(|(at, bin)| (score(bin, left), at)).collect();
            // Often a few nodes are chosen from very many, and each takes one member at least. The rest needs no order.
            let most = left[*role] as usize;
            if next.len() > most {
                next.select_nth_unstable(most - 1);
                next.truncate(most);
            }
            next.sort_unstable();
            let before = opened.len();
            for (expected, at) in next {
                // The order holds as long as a node would take what it was ordered by: what is left only shrinks, so no
                // later node takes more than before.
                let is_first = opened.len() == before;
                if left[*role] == 0 || !is_first && score(&bins[at], left) != expected {
                    break;
                }
                bins[at].fill(left, demand, order);
                opened.push((expected, at));
            }
            if opened.len() == before {
                break;
            }
        }
        // What made a node the last choice does not make it the last in rank: neighbours stay together.
        opened.sort_by(|a, b| a.0.in_rank().cmp(&b.0.in_rank()));
        used.extend(opened.into_iter().map(|(_, at)| at));
    }
    filled
}

impl Filled<'_, '_> {
    /// Members of the latest generation stay where they are, in the order of their numbers.
    fn stay(&mut self, demand: &Demand) {
        let mut had: Vec<(u32, usize, usize)> = Vec::new();
        for (at, bin) in self.bins.iter().enumerate() {
            // The job has failed there repeatedly, so its members are better elsewhere.
            let stay = bin.candidate.had.iter().filter(|_| !bin.candidate.shunned);
            had.extend(stay.map(|had| (had.number, at, had.role)));
        }
        had.sort_unstable();
        for (number, at, role) in had {
            let Some(of_role) = demand.roles.get(role) else {
                continue;
            };
            if self.left[role] > 0 && self.bins[at].takes(of_role) {
                if self.bins[at].seated.is_empty() {
                    self.used.push(at);
                }
                self.bins[at].seat(role, of_role, Some(number));
                self.left[role] -= 1;
            }
        }
    }
}
