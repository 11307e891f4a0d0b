//! The gang of a job whose members may share nodes: all or nothing, on as few nodes as hold it.
//!
//! Members of the job's latest generation stay where they are, if there is room. The others fill the
//! nodes that are used already. If that is not enough, nodes are added: first those of the latest
//! generation, then the one that holds most of what is left. Of those that hold equally much, the one is
//! taken that is left with least. On each node, members that need more GPUs choose first. If all that
//! leaves no room for the gang, it is placed anew, without regard to where members were.
//!
//! A member with GPUs needs as many of one node; a member without needs a slot. An agent of before
//! members could share nodes gets one member only. The greedy choice finds room for members that need
//! equally many GPUs, or powers of two of them, whenever there is any.

use std::{cmp::Reverse, collections::BTreeSet};

use super::{
    Candidate, Exclusion, FreeGpu, Placement, Score, Shortfall, only_one_stack,
    roles::{Fitting, RoleNeed, fitting, kinds, unfit},
};
use crate::{
    fleet::members::{Member, Seat},
    id::NodeName,
    nccl::mixture::Kind,
    spec::PROCS_MAX,
};

/// A node, and what it still has for members of this gang.
#[derive(Clone, Debug)]
struct Bin<'a, 'b> {
    candidate: &'a Candidate<'b>,
    gpus: u32,
    slots: u32,
    procs: u32,
    members: u32,
    seated: Vec<Seated>,
}

/// A member on its node.
#[derive(Clone, Debug)]
struct Seated {
    role: usize,
    /// Its number in the latest generation, if it had this role on this node.
    before: Option<u32>,
}

/// Which node is added first. Lower is better, field by field from the top.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    shunned: bool,
    newcomer: bool,
    takes: Reverse<u32>,
    gpus_left: u32,
    slots_left: u32,
    node: NodeName,
}

/// The members of a gang that all nodes together hold.
struct Filled<'a, 'b> {
    kind: &'a Kind,
    /// Nodes with members come first, in the order in which they were taken.
    bins: Vec<Bin<'a, 'b>>,
    complete: bool,
}

impl<'a, 'b> Bin<'a, 'b> {
    fn new(candidate: &'a Candidate<'b>, kind: &Kind) -> Self {
        // Members with GPUs are all on nodes of one kind.
        let gpus = match candidate.kind == *kind {
            true => candidate.gpus_free.len() as u32,
            false => 0,
        };
        Bin {
            candidate,
            gpus,
            slots: candidate.slots_free,
            procs: PROCS_MAX as u32,
            members: if candidate.one_member { 1 } else { u32::MAX },
            seated: Vec::new(),
        }
    }

    fn takes(&self, role: &RoleNeed) -> bool {
        let has_room = match role.gpus_per_node {
            0 => self.slots > 0,
            gpus => self.gpus >= gpus,
        };
        has_room && self.members > 0 && self.procs >= role.procs
    }

    fn seat(&mut self, at: usize, role: &RoleNeed, before: Option<u32>) {
        match role.gpus_per_node {
            0 => self.slots -= 1,
            gpus => self.gpus -= gpus,
        }
        self.procs -= role.procs;
        self.members -= 1;
        self.seated.push(Seated { role: at, before });
    }

    /// Takes as many of the members that are left as it can.
    fn fill(&mut self, left: &mut [u32], roles: &[RoleNeed], order: &[usize]) {
        for role in order {
            while left[*role] > 0 && self.takes(&roles[*role]) {
                self.seat(*role, &roles[*role], None);
                left[*role] -= 1;
            }
        }
    }

    fn preference(&self, left: &[u32], roles: &[RoleNeed], order: &[usize]) -> Preference {
        let mut full = Bin {
            seated: Vec::new(),
            ..self.clone()
        };
        full.fill(&mut left.to_vec(), roles, order);
        Preference {
            shunned: self.candidate.shunned,
            newcomer: self.candidate.node_rank.is_none(),
            takes: Reverse(full.seated.len() as u32),
            gpus_left: full.gpus,
            slots_left: full.slots,
            node: self.candidate.node.clone(),
        }
    }
}

impl Filled<'_, '_> {
    fn members(&self) -> u32 {
        self.bins.iter().map(|bin| bin.seated.len() as u32).sum()
    }

    /// The greatest is taken: complete, then most members, then most that stay where they were, then
    /// fewest nodes.
    fn worth(&self) -> (bool, u32, usize, Reverse<usize>) {
        let seated = self.bins.iter().flat_map(|bin| &bin.seated);
        let kept = seated.filter(|member| member.before.is_some()).count();
        let nodes = self.bins.iter().filter(|bin| !bin.seated.is_empty());
        (self.complete, self.members(), kept, Reverse(nodes.count()))
    }
}

/// Chooses nodes for these roles, of `wanted` members in all if there is room. A job without roles has
/// one.
pub(crate) fn pack(candidates: &[Candidate<'_>], roles: &[RoleNeed], wanted: u32) -> Placement {
    let Fitting {
        order,
        mut fit,
        mut excluded,
    } = fitting(candidates, roles);
    let min: u32 = roles.iter().map(|role| role.min).sum();
    let least = least_nodes(&fit, roles, &order);
    let gpus = roles.iter().map(|role| role.gpus_per_node).max();
    let all = super::Need {
        min: least,
        wanted,
        gpus_per_node: gpus.unwrap_or(0),
    };
    only_one_stack(&mut fit, &all, &mut excluded);
    let fit: Vec<&Candidate<'_>> = fit.into_iter().map(|(_, candidate)| candidate).collect();
    // Of equal kinds the last one wins. It has the newer CUDA.
    let filled = kinds(&fit, roles)
        .into_iter()
        .map(|kind| largest(&fit, roles, &order, kind, wanted))
        .max_by_key(Filled::worth)
        .expect("there is a kind");
    let have = filled.members();
    if !filled.complete || have == 0 {
        excluded.extend(of_no_use(&filled, roles));
        return Placement::Short(Shortfall {
            need: min.max(1),
            have,
            counts: "members",
            excluded,
        });
    }
    Placement::Gang(gang(&filled, roles))
}

/// How many members each role has in a gang of this size, as [`crate::spec::JobSpec::layout`] divides
/// it.
fn counts(roles: &[RoleNeed], size: u32) -> Vec<u32> {
    let least: u32 = roles.iter().map(|role| role.min).sum();
    let mut more = size.saturating_sub(least);
    let count = |role: &RoleNeed| {
        let extra = more.min(role.max - role.min);
        more -= extra;
        role.min + extra
    };
    roles.iter().map(count).collect()
}

/// The fewest nodes that could hold the smallest gang, if they were all alike in the rest.
fn least_nodes(fit: &[(Score, &Candidate<'_>)], roles: &[RoleNeed], order: &[usize]) -> u32 {
    let smallest = counts(roles, 0);
    let takes = |candidate: &Candidate<'_>| {
        let bin = Bin::new(candidate, &candidate.kind);
        bin.preference(&smallest, roles, order).takes.0
    };
    let mut all: Vec<u32> = fit.iter().map(|(_, candidate)| takes(candidate)).collect();
    all.sort_unstable_by_key(|takes| Reverse(*takes));
    let mut left: u32 = smallest.iter().sum();
    let needed = all.iter().take_while(|takes| {
        let more = left > 0;
        left = left.saturating_sub(**takes);
        more
    });
    needed.count() as u32
}

/// The largest gang of this kind, up to what is wanted.
fn largest<'a, 'b>(
    fit: &[&'a Candidate<'b>],
    roles: &[RoleNeed],
    order: &[usize],
    kind: &'a Kind,
    wanted: u32,
) -> Filled<'a, 'b> {
    let of_size = |size: u32| {
        let target = counts(roles, size);
        let kept = fill(fit, roles, order, kind, &target, true);
        match kept.complete {
            true => kept,
            false => fill(fit, roles, order, kind, &target, false),
        }
    };
    let min: u32 = roles.iter().map(|role| role.min).sum();
    let max: u32 = roles.iter().map(|role| role.max).sum();
    let most = of_size(wanted.clamp(min, max));
    if most.complete {
        return most;
    }
    let mut best = of_size(min);
    let (mut low, mut high) = (min, wanted.clamp(min, max));
    while best.complete && low + 1 < high {
        let size = low + (high - low) / 2;
        let filled = of_size(size);
        match filled.complete {
            true => (low, best) = (size, filled),
            false => high = size,
        }
    }
    best
}

/// Seats this many members of each role. `keep`: those of the latest generation stay on their nodes.
fn fill<'a, 'b>(
    fit: &[&'a Candidate<'b>],
    roles: &[RoleNeed],
    order: &[usize],
    kind: &'a Kind,
    target: &[u32],
    keep: bool,
) -> Filled<'a, 'b> {
    let mut left = target.to_vec();
    let mut bins: Vec<Bin<'a, 'b>> = fit.iter().map(|node| Bin::new(node, kind)).collect();
    let mut had: Vec<(u32, usize, usize)> = Vec::new();
    if keep {
        for (at, bin) in bins.iter().enumerate() {
            // The job has failed there repeatedly, so its members are better elsewhere.
            let stays = bin.candidate.had.iter();
            had.extend(
                stays
                    .filter(|_| !bin.candidate.shunned)
                    .map(|had| (had.number, at, had.role)),
            );
        }
    }
    had.sort_unstable();
    for (number, at, role) in had {
        if role < roles.len() && left[role] > 0 && bins[at].takes(&roles[role]) {
            bins[at].seat(role, &roles[role], Some(number));
            left[role] -= 1;
        }
    }
    let (mut used, mut free): (Vec<_>, Vec<_>) =
        bins.into_iter().partition(|bin| !bin.seated.is_empty());
    used.sort_by_cached_key(|bin| {
        let first = bin.seated.iter().filter_map(|member| member.before).min();
        (first, bin.candidate.node.clone())
    });
    used.iter_mut()
        .for_each(|bin| bin.fill(&mut left, roles, order));
    while left.iter().any(|count| *count > 0) {
        let mut next: Vec<(Preference, Bin<'a, 'b>)> = free
            .into_iter()
            .map(|bin| (bin.preference(&left, roles, order), bin))
            .collect();
        next.sort_by(|a, b| a.0.cmp(&b.0));
        free = Vec::with_capacity(next.len());
        let before = used.len();
        let mut stale = false;
        for (preference, mut bin) in next {
            // The order holds as long as a node would take what it was ordered by: what is left only
            // shrinks, so no later node takes more than before.
            let takes_none = preference.takes.0 == 0;
            stale = stale || !takes_none && bin.preference(&left, roles, order) != preference;
            if stale || takes_none {
                free.push(bin);
                continue;
            }
            bin.fill(&mut left, roles, order);
            used.push(bin);
        }
        if used.len() == before {
            break;
        }
    }
    used.extend(free);
    Filled {
        kind,
        complete: left.iter().all(|count| *count == 0),
        bins: used,
    }
}

/// The reasons why nodes cannot hold the members that have no place.
fn of_no_use<'f>(
    filled: &'f Filled<'_, '_>,
    roles: &'f [RoleNeed],
) -> impl Iterator<Item = (NodeName, Exclusion)> + 'f {
    filled.bins.iter().filter_map(|bin| {
        let node = bin.candidate;
        let missing = roles.iter().filter(|role| {
            // Only a node without members is of no use; the others are full.
            bin.seated.is_empty() || node.one_member && role.max > 1
        });
        let why = missing
            .filter_map(|role| unfit(node, role, filled.kind))
            .next();
        let old = || {
            let more = node.one_member && !bin.seated.is_empty();
            more.then_some(Exclusion::OneMember)
        };
        Some((node.node.clone(), old().or(why)?))
    })
}

/// The nodes in the order of their lowest numbers, with their seats.
fn gang(filled: &Filled<'_, '_>, roles: &[RoleNeed]) -> Vec<Member> {
    let bins = || filled.bins.iter().filter(|bin| !bin.seated.is_empty());
    let mut numbers: Vec<Vec<(u32, usize)>> = bins().map(|_| Vec::new()).collect();
    let mut next = 0;
    for role in 0..roles.len() {
        // Members that stay keep their order, and others follow.
        let of_role = bins().enumerate().flat_map(|(at, bin)| {
            let own = bin.seated.iter().filter(move |member| member.role == role);
            own.map(move |member| (member.before.is_none(), member.before, at))
        });
        let mut of_role: Vec<_> = of_role.collect();
        of_role.sort_unstable();
        for (_, _, at) in of_role {
            numbers[at].push((next, role));
            next += 1;
        }
    }
    let shares = bins().zip(&numbers).map(|(bin, numbers)| {
        let mut free: Vec<&FreeGpu<'_>> = bin.candidate.gpus_free.iter().collect();
        free.sort_by_key(|gpu| gpu.index);
        let mut free = free.into_iter().map(|gpu| gpu.uuid.to_owned());
        let seat = |(number, role): &(u32, usize)| Seat {
            number: *number,
            gpus: free
                .by_ref()
                .take(roles[*role].gpus_per_node as usize)
                .collect(),
        };
        let seats: Vec<Seat> = numbers.iter().map(seat).collect();
        Member {
            node: bin.candidate.node.clone(),
            boot_id: bin.candidate.boot_id.to_owned(),
            gpus: seats.iter().flat_map(|seat| seat.gpus.clone()).collect(),
            // They are added when the generation is opened.
            addresses: Vec::new(),
            seats,
        }
    });
    let mut shares: Vec<Member> = shares.collect();
    shares.sort_by_key(|share| share.seats.first().map(|seat| seat.number));
    // Where no node is shared, a member's number is the rank of its node.
    if shares.iter().all(|share| share.seats.len() == 1) {
        shares.iter_mut().for_each(|share| share.seats.clear());
    }
    let nodes: BTreeSet<&NodeName> = shares.iter().map(|share| &share.node).collect();
    debug_assert_eq!(nodes.len(), shares.len());
    shares
}

#[cfg(test)]
mod tests;
