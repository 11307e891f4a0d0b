//! The gang of a job with roles: so many nodes for each role, all or nothing.
//!
//! Every role first gets its minimum. Roles whose members need more GPUs choose first, because fewer
//! nodes can serve them. Then the elastic role takes what is left, up to what is wanted. A node keeps
//! the role that it had. If a role needs another node, one that had no role goes before one that had
//! another, so as few nodes as possible change what they run. If that leaves a role without its
//! minimum, the choice is made again, and roles with GPUs then spare the nodes that others could use.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{
    Candidate, Exclusion, Need, Placement, Score, Shortfall, exclusion, member, only_one_kind,
    only_one_stack, score,
};
use crate::{
    id::NodeName,
    planted::{self, Mistake},
};

/// What one role needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoleNeed {
    pub min: u32,
    pub max: u32,
    pub gpus_per_node: u32,
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

/// Chooses a gang for these roles, of `wanted` nodes in all if there are as many. The members come in
/// the order of the roles.
pub(crate) fn place_roles(
    candidates: &[Candidate<'_>],
    roles: &[RoleNeed],
    wanted: u32,
) -> Placement {
    let need = |role: &RoleNeed| Need {
        min: role.min,
        wanted: role.max,
        gpus_per_node: role.gpus_per_node,
    };
    // Roles in the order in which they choose.
    let mut order: Vec<usize> = (0..roles.len()).collect();
    order.sort_by_key(|role| (Reverse(roles[*role].gpus_per_node), *role));
    let mut excluded: BTreeMap<NodeName, Exclusion> = BTreeMap::new();
    let mut left: Vec<(Score, &Candidate<'_>)> = Vec::new();
    for candidate in candidates {
        let why = |role: &usize| exclusion(candidate, &need(&roles[*role]));
        let reasons: Vec<Option<Exclusion>> = order.iter().map(why).collect();
        match reasons.iter().position(Option::is_none) {
            Some(fits) => left.push((score(candidate, &need(&roles[order[fits]])), candidate)),
            // The role that needs most says it best: "2 of 8 GPUs free".
            None => excluded.extend(
                reasons
                    .into_iter()
                    .flatten()
                    .next()
                    .map(|why| (candidate.node.clone(), why)),
            ),
        }
    }
    let min: u32 = roles.iter().map(|role| role.min).sum();
    let gpus = roles.iter().map(|role| role.gpus_per_node);
    let all = Need {
        min,
        wanted,
        gpus_per_node: gpus.max().unwrap_or(0),
    };
    only_one_kind(&mut left, &all, &mut excluded);
    only_one_stack(&mut left, &all, &mut excluded);
    let fit: Vec<&Candidate<'_>> = left.into_iter().map(|(_, candidate)| candidate).collect();
    let choose = |scarce: bool| {
        let mut left = fit.clone();
        let mut chosen: Vec<Vec<&Candidate<'_>>> = vec![Vec::new(); roles.len()];
        for &role in &order {
            let need = need(&roles[role]);
            chosen[role] = take(&mut left, role, &need, need.min, scarce);
        }
        (left, chosen)
    };
    let complete = |chosen: &[Vec<&Candidate<'_>>]| {
        let mut each = chosen.iter().zip(roles);
        each.all(|(nodes, role)| nodes.len() as u32 == role.min)
    };
    let (mut left, mut chosen) = choose(false);
    if !complete(&chosen) {
        (left, chosen) = choose(true);
    }
    for (role, nodes) in roles.iter().zip(&chosen) {
        if (nodes.len() as u32) < role.min {
            // The nodes that are left do for other roles only.
            let unfit = left.iter().filter_map(|candidate| {
                Some((candidate.node.clone(), exclusion(candidate, &need(role))?))
            });
            excluded.extend(unfit);
        }
    }
    let have: u32 = chosen.iter().map(|nodes| nodes.len() as u32).sum();
    let unfilled = !complete(&chosen) && !planted::on(Mistake::RoleUnfilled);
    if unfilled || have == 0 {
        return Placement::Short(Shortfall {
            need: min.max(1),
            have,
            excluded,
        });
    }
    let mut more = wanted.saturating_sub(have);
    for (role, nodes) in chosen.iter_mut().enumerate() {
        let extra = more.min(roles[role].max - roles[role].min);
        let taken = take(&mut left, role, &need(&roles[role]), extra, false);
        more -= taken.len() as u32;
        nodes.extend(taken);
    }
    let gang = chosen.into_iter().zip(roles).enumerate();
    let gang = gang.flat_map(|(role, (mut nodes, of_role))| {
        let need = need(of_role);
        nodes.sort_by_cached_key(|candidate| of(candidate, role, &need));
        nodes
            .into_iter()
            .map(move |candidate| member(candidate, &need))
    });
    Placement::Gang(gang.collect())
}

/// Takes this many of the candidates that are left and fit the role, the preferred ones.
fn take<'a, 'b>(
    left: &mut Vec<&'a Candidate<'b>>,
    role: usize,
    need: &Need,
    count: u32,
    scarce: bool,
) -> Vec<&'a Candidate<'b>> {
    let fits = |candidate: &&&Candidate<'_>| exclusion(candidate, need).is_none();
    let mut fit: Vec<&Candidate<'_>> = left.iter().filter(fits).copied().collect();
    fit.sort_by_cached_key(|candidate| Preference {
        versatile: scarce && need.gpus_per_node > 0 && candidate.slots_free > 0,
        shunned: candidate.shunned,
        change: match candidate.role {
            Some(before) if before == role => Change::None,
            None => Change::Newcomer,
            Some(_) => Change::OfRole,
        },
        score: score(candidate, need),
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
