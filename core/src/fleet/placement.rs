//! Which nodes form the next generation, and in which rank order. It is a gang: all or nothing.
//!
//! There is one placer, [`place`], for every job: with or without roles, with a node for each member or shared nodes. It asks for
//! a [`Demand`] and takes the nodes as [`Candidate`]s. First come hard exclusions, each with its reason ([`why`]). The rest is an
//! order whose derived `Ord` is the policy ([`score`]). Survivors keep their relative rank order and newcomers follow, so a
//! rank's data and its neighbours stay where they were. Where a job wants nodes that are alike in a label, as of one rack, all
//! that is done for each rack ([`domains`]).
//!
//! It decides nodes and numbers. Which GPUs of a node a member gets, [`crate::fleet::capacity`] says.

mod bin;
mod candidate;
mod choose;
mod demand;
mod domains;
mod fill;
mod gang;
mod keep;
mod limit;
mod score;
mod why;

pub(crate) use candidate::{Candidate, Had};
pub(crate) use demand::{Demand, RoleDemand};
pub(crate) use domains::Levels;
pub(crate) use gang::Share;
pub(crate) use keep::Keeps;
pub(crate) use limit::{Limit, OfOthers, OfQueue, QuotaWhy};
pub(crate) use why::{Avoided, Held, Kept, Shortfall};

use crate::fleet::members::Member;

/// The answer: a gang, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement<'a, Gang = Vec<Member>> {
    Gang(Gang),
    Short(Shortfall<'a>),
}

/// Places a job.
pub(crate) fn place<'a>(
    candidates: Vec<Candidate<'a>>,
    levels: Levels<'a>,
    demand: &Demand,
) -> Placement<'a, Vec<Share<'a>>> {
    domains::within(candidates, levels, |candidates| {
        choose::choose(candidates, demand)
    })
}

#[cfg(test)]
mod tests;
