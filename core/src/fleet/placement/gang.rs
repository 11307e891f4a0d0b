//! A gang that was chosen: the nodes in the order of their ranks, each with its share.

use super::{bin::Bin, demand::Demand, fill::Filled};
use crate::id::NodeName;

/// A node's share of a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share<'a> {
    pub node: &'a NodeName,
    pub boot_id: &'a str,
    /// In the order of their numbers, at least one.
    pub members: Vec<Wants>,
    /// It had members in the job's latest generation.
    pub kept: bool,
}

/// A member, and what it gets of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wants {
    pub number: u32,
    pub gpus: u32,
}

/// The shares in the order of their lowest numbers.
pub(super) fn gang<'a>(filled: &Filled<'_, 'a>, demand: &Demand) -> Vec<Share<'a>> {
    let bins: Vec<&Bin<'_, 'a>> = filled.used.iter().map(|at| &filled.bins[*at]).collect();
    let mut members: Vec<Vec<Wants>> = bins.iter().map(|_| Vec::new()).collect();
    let mut next = 0;
    for (role, wants) in demand.roles.iter().enumerate() {
        // Members that stay keep their order. Others follow: first those on nodes of the job, then as they were taken.
        let of_role = bins.iter().enumerate().flat_map(|(at, bin)| {
            let had = bin.candidate.node_rank;
            let own = bin.seated.iter().filter(move |member| member.role == role);
            own.map(move |member| {
                let others = (had.is_none(), had, at);
                (member.before.is_none(), member.before, others)
            })
        });
        let mut of_role: Vec<_> = of_role.collect();
        of_role.sort_unstable();
        for (.., (.., at)) in of_role {
            members[at].push(Wants {
                number: next,
                gpus: wants.gpus,
            });
            next += 1;
        }
    }
    let shares = bins.into_iter().zip(members);
    let mut shares: Vec<Share<'a>> = shares
        .map(|(bin, members)| Share {
            node: bin.candidate.node,
            boot_id: bin.candidate.boot_id,
            members,
            kept: bin.candidate.node_rank.is_some(),
        })
        .collect();
    shares.sort_by_key(|share| share.members.first().map(|member| member.number));
    shares
}
