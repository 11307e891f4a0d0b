//! One node while a gang is placed, and what it still has for the gang's members.

use std::{cmp::Reverse, rc::Rc};

use super::{
    candidate::{Candidate, Had},
    demand::{Demand, RoleDemand},
    score::{Change, Score},
};
use crate::{nccl::mixture::Kind, spec::PROCS_MAX};

#[derive(Debug)]
pub(super) struct Bin<'c, 'a> {
    pub candidate: &'c Candidate<'a>,
    gpus: u32,
    /// Members with GPUs are all on nodes of one kind, and this is one of them.
    of_kind: bool,
    slots: u32,
    procs: u32,
    members: u32,
    pub seated: Vec<Seated>,
}

/// A member on its node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seated {
    pub role: usize,
    /// Its number in the latest generation, if it had this role on this node.
    pub before: Option<u32>,
}

/// What would become of a node that takes all it can.
struct Full {
    takes: u32,
    gpus_left: u32,
    slots_left: u32,
}

impl<'c, 'a> Bin<'c, 'a> {
    pub(super) fn new(candidate: &'c Candidate<'a>, kind: &Rc<Kind>, demand: &Demand) -> Self {
        Bin {
            candidate,
            gpus: candidate.gpus_free,
            of_kind: candidate.kind == *kind,
            slots: candidate.slots_free,
            procs: PROCS_MAX as u32,
            members: if candidate.one_member {
                1
            } else {
                demand.per_node
            },
            seated: Vec::new(),
        }
    }

    /// How many members of this role the node can still take.
    fn has_room_for(&self, role: &RoleDemand) -> u32 {
        let room = match role.gpus {
            0 => self.slots,
            _ if !self.of_kind => 0,
            gpus => self.gpus / gpus,
        };
        let procs = self.procs / role.procs.max(1);
        room.min(self.members).min(procs)
    }

    pub(super) fn takes(&self, role: &RoleDemand) -> bool {
        self.has_room_for(role) > 0
    }

    fn take(&mut self, role: &RoleDemand, members: u32) {
        match role.gpus {
            0 => self.slots -= members,
            gpus => self.gpus -= gpus * members,
        }
        self.procs -= role.procs.max(1) * members;
        self.members -= members;
    }

    /// Seats a member that has this number already, or one that takes the lowest number that the node had for the role.
    pub(super) fn seat(&mut self, at: usize, role: &RoleDemand, before: Option<u32>) {
        self.take(role, 1);
        let free = |had: &&Had| {
            had.role == at && self.seated.iter().all(|one| one.before != Some(had.number))
        };
        let had = || self.candidate.had.iter().filter(free);
        let before = before.or_else(|| had().map(|had| had.number).min());
        self.seated.push(Seated { role: at, before });
    }

    /// Takes as many of the members that are left as it can.
    pub(super) fn fill(&mut self, left: &mut [u32], demand: &Demand, order: &[usize]) {
        for role in order {
            while left[*role] > 0 && self.takes(&demand.roles[*role]) {
                self.seat(*role, &demand.roles[*role], None);
                left[*role] -= 1;
            }
        }
    }

    fn full(&self, left: &[u32], demand: &Demand, order: &[usize]) -> Full {
        let mut rest = Bin {
            seated: Vec::new(),
            ..*self
        };
        let mut takes = 0;
        for role in order {
            let members = left[*role].min(rest.has_room_for(&demand.roles[*role]));
            rest.take(&demand.roles[*role], members);
            takes += members;
        }
        Full {
            takes,
            gpus_left: rest.gpus,
            slots_left: rest.slots,
        }
    }

    /// How many of these members the node would take.
    pub(super) fn would_take(&self, left: &[u32], demand: &Demand, order: &[usize]) -> u32 {
        self.full(left, demand, order).takes
    }

    /// Where the node stands for the role at this position. `scarce`: the gang found no room otherwise.
    pub(super) fn score(
        &self,
        role: usize,
        left: &[u32],
        demand: &Demand,
        order: &[usize],
        scarce: bool,
    ) -> Score<'c> {
        let Full {
            takes,
            gpus_left,
            slots_left,
        } = self.full(left, demand, order);
        let node = self.candidate;
        let holds_one = self.members == 1;
        let change = match node.node_rank {
            None => Change::Newcomer,
            Some(_) if holds_one && node.had.iter().all(|had| had.role != role) => Change::OfRole,
            Some(_) => Change::None,
        };
        Score {
            versatile: scarce && holds_one && demand.roles[role].gpus > 0 && node.slots_free > 0,
            shunned: node.shunned,
            change,
            node_rank: node.node_rank.unwrap_or(0),
            liking: Reverse(node.liking),
            domain: node.domain,
            takes: Reverse(takes),
            gpus_left,
            slots_left,
            node: node.node,
        }
    }
}
