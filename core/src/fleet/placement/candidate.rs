//! A node as placement sees it: for one job, at one moment.

use std::{borrow::Cow, rc::Rc};

use super::{
    demand::Demand,
    keep::{Keep, Keeps},
    why::{Avoided, Held, Kept, Why},
};
use crate::{
    fleet::{registry::Liveness, selected::Misfit},
    id::NodeName,
    nccl::{mixture::Kind, stack::Stack},
};

#[derive(Clone, Debug)]
pub(crate) struct Candidate<'a> {
    pub node: &'a NodeName,
    pub boot_id: &'a str,
    pub liveness: Liveness,
    pub connected: bool,
    pub cordoned: bool,
    /// The node knows more than the store, so nothing is decided about it.
    pub halted: bool,
    /// Why the job's own selection does not have it.
    pub misfit: Option<Misfit<'a>>,
    /// How much the job would like it.
    pub liking: i64,
    /// Its values of the labels in which the job's nodes should be alike ([`super::Levels`]).
    pub domains: Vec<Option<Cow<'a, str>>>,
    /// The place of its finest domain among all, the largest first.
    pub domain: u32,
    /// Why this job should not have the node for now.
    pub avoided: Option<Avoided<'a>>,
    /// This job has failed there repeatedly. The node is taken only if there are not enough others.
    pub shunned: bool,
    pub slots_free: u32,
    pub gpus_free: u32,
    /// What jobs before this one keep of it. It is not among what is free.
    pub kept: Option<Kept<'a>>,
    /// How many it would have if nobody held any.
    pub gpus_all: u32,
    /// Who holds GPUs of the node, if too few are free.
    pub gpus_held: Held<'a>,
    /// Its node rank in the job's latest generation.
    pub node_rank: Option<u32>,
    /// The members that it had in that generation.
    pub had: Vec<Had>,
    /// The kind of node. It is the same for all if the job takes any mixture, and for all nodes with too few GPUs.
    pub kind: Rc<Kind>,
    /// What its interpreter has, as far as that is known. It is empty if the job takes any mixture.
    pub stack: Stack,
    /// Whether it was a member of the last generation that trained.
    pub trained: bool,
    /// Its agent cannot hold several members.
    pub one_member: bool,
}

/// A member that a node had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Had {
    pub number: u32,
    /// The position of its role.
    pub role: usize,
}

impl<'a> Candidate<'a> {
    /// Why the node takes no work of this job at all, or too little is free for a member with so many GPUs.
    pub(super) fn why_not(&self, gpus: u32) -> Option<Why<'a>> {
        if let Some(why) = &self.misfit {
            return Some(Why::NotSelected(why.clone()));
        }
        match self.liveness {
            Liveness::Unknown => return Some(Why::Unheard),
            Liveness::Suspect => return Some(Why::Suspect),
            Liveness::Lost => return Some(Why::Lost),
            Liveness::Ready if !self.connected => return Some(Why::Suspect),
            Liveness::Ready => {}
        }
        if self.halted {
            Some(Why::Halted)
        } else if self.cordoned {
            Some(Why::Cordoned)
        } else if let Some(why) = &self.avoided {
            Some(Why::Avoided(why.clone()))
        } else if let Some(kept) = self.kept.filter(|kept| self.has_enough_with(kept, gpus)) {
            Some(Why::Kept {
                kept,
                has: self.gpus_all,
                need: gpus,
            })
        } else if gpus > 0 && self.gpus_free < gpus {
            Some(Why::Gpus {
                free: self.gpus_free,
                need: gpus,
                has: self.gpus_all,
                held: self.gpus_held.clone(),
            })
        } else if gpus == 0 && self.slots_free == 0 {
            Some(Why::Occupied)
        } else {
            None
        }
    }

    /// Whether it serves a member with so many GPUs, and the job has not failed there repeatedly.
    pub(crate) fn is_first_choice(&self, gpus: u32) -> bool {
        !self.shunned && self.why_not(gpus).is_none()
    }

    /// Whether there is too little for such a member, and enough with what others keep.
    fn has_enough_with(&self, kept: &Kept<'_>, gpus: u32) -> bool {
        match gpus {
            0 => self.slots_free == 0 && kept.slots > 0,
            _ => self.gpus_free < gpus && self.gpus_free + kept.gpus >= gpus,
        }
    }

    /// What a job that asks for this would keep of the node while it waits, if that is all that the node has. `None`: it
    /// has no use for the node.
    pub(crate) fn keeps(&self, demand: &Demand) -> Option<Keeps> {
        let mut serves = demand
            .roles
            .iter()
            .filter(|role| self.why_not(role.gpus).is_none());
        let role = serves.next()?;
        if demand.roles.len() > 1 {
            return Some(Keeps {
                gpus: Keep::All,
                slots: Keep::All,
            });
        }
        let per_node = if self.one_member { 1 } else { demand.per_node };
        let members = |has: u32, each: u32| Keep::Members {
            most: (has / each).min(per_node).min(role.min.max(1)),
            each,
        };
        Some(match role.gpus {
            0 => Keeps {
                slots: members(self.slots_free, 1),
                ..Keeps::default()
            },
            each => Keeps {
                gpus: members(self.gpus_free, each),
                ..Keeps::default()
            },
        })
    }

    /// The same for a member beside others whose GPUs are of this kind.
    pub(super) fn why_not_beside(&self, gpus: u32, kind: &Rc<Kind>) -> Option<Why<'a>> {
        self.why_not(gpus).or_else(|| {
            let other = gpus > 0 && self.kind != *kind;
            other.then(|| Why::OtherKind {
                own: Rc::clone(&self.kind),
                others: Rc::clone(kind),
            })
        })
    }

    /// GPUs and slots that are free, if the node takes work.
    pub(super) fn room(&self) -> usize {
        let takes_work = self.liveness == Liveness::Ready
            && self.connected
            && !self.cordoned
            && !self.halted
            && self.misfit.is_none()
            && self.avoided.is_none();
        match takes_work {
            true => self.gpus_free as usize + self.slots_free as usize,
            false => 0,
        }
    }
}
