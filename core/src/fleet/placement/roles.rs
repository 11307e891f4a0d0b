//! The gang of a job with roles: so many nodes for each role, all or nothing.
//!
//! Every role first gets its minimum. Roles whose members need more GPUs choose first, because fewer
//! nodes can serve them. Then the elastic role takes what is left, up to what is wanted. A node keeps
//! the role that it had. If a role needs another node, one that had no role goes before one that had
//! another, so as few nodes as possible change what they run. If that leaves a role without its
//! minimum, the choice is made again, and roles with GPUs then spare the nodes that others could use.
//!
//! If the job refuses a mixture, all members with GPUs are of one kind. Each kind is tried, and the one
//! is taken that gives every role its minimum, then the one that keeps most nodes, then the one with
//! most nodes. Members without GPUs may be of any kind.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use super::{
    Candidate, Exclusion, Need, Placement, Score, Shortfall, exclusion, member, only_one_stack,
    score,
};
use crate::{id::NodeName, nccl::mixture::Kind};

/// What one role needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoleNeed {
    pub min: u32,
    pub max: u32,
    pub gpus_per_node: u32,
    /// Processes of each member.
    pub procs: u32,
}

/// Where a candidate stands in the choice of one role. Lower is better, field by field from the top.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    /// A role without GPUs could use the node too. Where nodes are scarce, that comes first.
    versatile: bool,
    shunned: bool,
    change: Change,
    score: Score,
}

/// What taking the node would change.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// It had this role.
    None,
    /// It had no role in the job's latest generation.
    Newcomer,
    /// It had another role.
    OfRole,
}

impl RoleNeed {
    pub(super) fn need(&self) -> Need {
        Need {
            min: self.min,
            wanted: self.max,
            gpus_per_node: self.gpus_per_node,
        }
    }
}

/// The nodes that each role gets if all members with GPUs are of this kind.
struct Filled<'a, 'b> {
    kind: &'a Kind,
    /// In the order of the roles.
    chosen: Vec<Vec<&'a Candidate<'b>>>,
    left: Vec<&'a Candidate<'b>>,
    complete: bool,
}

impl Filled<'_, '_> {
    /// The greatest is taken: every role has its minimum, then most nodes stay, then most members.
    fn worth(&self) -> (bool, usize, usize) {
        let members = || self.chosen.iter().flatten();
        let kept = members().filter(|candidate| candidate.node_rank.is_some());
        (self.complete, kept.count(), members().count())
    }
}

/// The candidates that could serve a role.
pub(super) struct Fitting<'a, 'b> {
    /// The roles in the order in which they choose.
    pub order: Vec<usize>,
    /// Each with its score for the first role that it could serve.
    pub fit: Vec<(Score, &'a Candidate<'b>)>,
    /// The others.
    pub excluded: BTreeMap<NodeName, Exclusion>,
}

pub(super) fn fitting<'a, 'b>(
    candidates: &'a [Candidate<'b>],
    roles: &[RoleNeed],
) -> Fitting<'a, 'b> {
    let mut order: Vec<usize> = (0..roles.len()).collect();
    order.sort_by_key(|role| (Reverse(roles[*role].gpus_per_node), *role));
    let (mut fit, mut excluded) = (Vec::new(), BTreeMap::new());
    for candidate in candidates {
        let why = |role: &usize| exclusion(candidate, &roles[*role].need());
        let reasons: Vec<Option<Exclusion>> = order.iter().map(why).collect();
        match reasons.iter().position(Option::is_none) {
            Some(fits) => fit.push((score(candidate, &roles[order[fits]].need()), candidate)),
            // The role that needs most says it best: "2 of 8 GPUs free".
            None => {
                let first = reasons.into_iter().flatten().next();
                excluded.extend(first.map(|why| (candidate.node.clone(), why)));
            }
        }
    }
    Fitting {
        order,
        fit,
        excluded,
    }
}

/// Chooses a gang for these roles, of `wanted` nodes in all if there are as many. The members come in
/// the order of the roles.
pub(crate) fn place_roles(
    candidates: &[Candidate<'_>],
    roles: &[RoleNeed],
    wanted: u32,
) -> Placement {
    let Fitting {
        order,
        mut fit,
        mut excluded,
    } = fitting(candidates, roles);
    let min: u32 = roles.iter().map(|role| role.min).sum();
    let gpus = roles.iter().map(|role| role.gpus_per_node);
    let all = Need {
        min,
        wanted,
        gpus_per_node: gpus.max().unwrap_or(0),
    };
    only_one_stack(&mut fit, &all, &mut excluded);
    let fit: Vec<&Candidate<'_>> = fit.into_iter().map(|(_, candidate)| candidate).collect();
    // Of equal kinds the last one wins. It has the newer CUDA.
    let filled = kinds(&fit, roles)
        .into_iter()
        .map(|kind| fill(&fit, roles, &order, kind, wanted))
        .max_by_key(Filled::worth);
    let filled = filled.expect("there is a kind");
    for (role, nodes) in roles.iter().zip(&filled.chosen) {
        if (nodes.len() as u32) < role.min {
            // The nodes that are left do for other roles only.
            let unfit = filled.left.iter().filter_map(|candidate| {
                Some((candidate.node.clone(), unfit(candidate, role, filled.kind)?))
            });
            excluded.extend(unfit);
        }
    }
    let have: u32 = filled.chosen.iter().map(|nodes| nodes.len() as u32).sum();
    if !filled.complete || have == 0 {
        return Placement::Short(Shortfall {
            need: min.max(1),
            have,
            counts: "nodes",
            excluded,
        });
    }
    let gang = filled.chosen.into_iter().zip(roles).enumerate();
    let gang = gang.flat_map(|(role, (mut nodes, of_role))| {
        let need = of_role.need();
        nodes.sort_by_cached_key(|candidate| of(candidate, role, &need));
        nodes
            .into_iter()
            .map(move |candidate| member(candidate, &need))
    });
    Placement::Gang(gang.collect())
}

/// The kinds of nodes that could serve a role with GPUs. Without such nodes the kind does not matter,
/// and there is one.
pub(super) fn kinds<'a>(fit: &[&'a Candidate<'_>], roles: &[RoleNeed]) -> BTreeSet<&'a Kind> {
    static ANY: LazyLock<Kind> = LazyLock::new(Kind::default);
    let serves = |candidate: &&&Candidate<'_>| {
        roles
            .iter()
            .any(|role| role.gpus_per_node > 0 && exclusion(candidate, &role.need()).is_none())
    };
    let found: BTreeSet<&Kind> = fit.iter().filter(serves).map(|c| &c.kind).collect();
    if found.is_empty() {
        return BTreeSet::from([&*ANY]);
    }
    found
}

/// Why a candidate cannot serve this role beside members of this kind.
pub(super) fn unfit(candidate: &Candidate<'_>, role: &RoleNeed, kind: &Kind) -> Option<Exclusion> {
    exclusion(candidate, &role.need()).or_else(|| {
        let other = role.gpus_per_node > 0 && candidate.kind != *kind;
        other.then(|| Exclusion::Mixed(candidate.kind.beside(kind)))
    })
}

/// Gives each role its minimum, and then, if all have it, the elastic role what is left, up to what is
/// wanted.
fn fill<'a, 'b>(
    fit: &[&'a Candidate<'b>],
    roles: &[RoleNeed],
    order: &[usize],
    kind: &'a Kind,
    wanted: u32,
) -> Filled<'a, 'b> {
    let choose = |scarce: bool| {
        let mut left = fit.to_vec();
        let mut chosen = vec![Vec::new(); roles.len()];
        for &role in order {
            let need = &roles[role];
            chosen[role] = take(&mut left, role, need, kind, need.min, scarce);
        }
        let mut each = chosen.iter().zip(roles);
        Filled {
            complete: each.all(|(nodes, role)| nodes.len() as u32 == role.min),
            kind,
            chosen,
            left,
        }
    };
    let mut filled = choose(false);
    if !filled.complete {
        filled = choose(true);
    }
    if !filled.complete {
        return filled;
    }
    let have: u32 = filled.chosen.iter().map(|nodes| nodes.len() as u32).sum();
    let mut more = wanted.saturating_sub(have);
    for (role, nodes) in filled.chosen.iter_mut().enumerate() {
        let extra = more.min(roles[role].max - roles[role].min);
        let taken = take(&mut filled.left, role, &roles[role], kind, extra, false);
        more -= taken.len() as u32;
        nodes.extend(taken);
    }
    filled
}

/// Takes this many of the candidates that are left and fit the role, the preferred ones.
fn take<'a, 'b>(
    left: &mut Vec<&'a Candidate<'b>>,
    role: usize,
    of_role: &RoleNeed,
    kind: &Kind,
    count: u32,
    scarce: bool,
) -> Vec<&'a Candidate<'b>> {
    let need = of_role.need();
    let mut fit = left.clone();
    fit.retain(|candidate| unfit(candidate, of_role, kind).is_none());
    fit.sort_by_cached_key(|candidate| Preference {
        versatile: scarce && need.gpus_per_node > 0 && candidate.slots_free > 0,
        shunned: candidate.shunned,
        change: match candidate.role {
            Some(before) if before == role => Change::None,
            None => Change::Newcomer,
            Some(_) => Change::OfRole,
        },
        score: score(candidate, &need),
    });
    fit.truncate(count as usize);
    left.retain(|candidate| fit.iter().all(|taken| taken.node != candidate.node));
    fit
}

/// The order of members within a role: those that had it keep their order, and others follow.
fn of(candidate: &Candidate<'_>, role: usize, need: &Need) -> (bool, Score) {
    (candidate.role != Some(role), score(candidate, need))
}

#[cfg(test)]
mod tests;
