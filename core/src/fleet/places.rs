//! Finds the members that a generation has on a node, and their ranks.
//!
//! The layout says which role and ranks a member has, by its number. The sealed list says which node
//! holds it. Questions about a node (is it dead, is it heard) are not answered here.

use std::{borrow::Cow, collections::BTreeMap, ops::Range};

use crate::{
    exit::Exit,
    fleet::job::{GenerationRecord, Seat},
    id::NodeName,
    run::{RankReport, RunReport},
};

impl GenerationRecord {
    /// The node of a global rank.
    pub fn node_of(&self, rank: u32) -> Option<&NodeName> {
        let holder = self.members.holder(self.number_of(rank)?);
        holder.map(|share| &share.node)
    }

    /// The role of the member that has this global rank. `None`: the job has no roles.
    pub(crate) fn role_of(&self, rank: u32) -> Option<&str> {
        let place = self.layout.place(self.layout.node_rank_of(rank)?)?;
        Some(&place.share.name)
    }

    /// The number of the member that has this global rank.
    pub fn number_of(&self, rank: u32) -> Option<u32> {
        match self.layout.is_empty() {
            true => Some(rank / self.proc_per_node.max(1)).filter(|number| *number < self.size()),
            false => self.layout.node_rank_of(rank),
        }
    }

    /// How many members it has. Several may be on one node.
    pub fn size(&self) -> u32 {
        self.members.size()
    }

    /// How many processes the member with this number has.
    pub fn procs(&self, number: u32) -> u32 {
        let place = self.layout.place(number);
        place.map_or(self.proc_per_node, |place| place.share.procs)
    }

    /// How many processes the members on this node have.
    pub fn procs_on(&self, node: &NodeName) -> u32 {
        let of_member = |seat: &Seat| self.procs(seat.number);
        self.seats_on(node).iter().map(of_member).sum()
    }

    /// The members on this node, by number.
    pub fn seats_on(&self, node: &NodeName) -> Cow<'_, [Seat]> {
        match self.members.rank_of(node) {
            Some(node_rank) => self.members.seats(node_rank),
            None => Cow::Borrowed(&[]),
        }
    }

    /// The global ranks of the member with this number.
    pub fn ranks(&self, number: u32) -> Range<u32> {
        let first = self.first_rank(number);
        first..first + self.procs(number)
    }

    /// The global rank of the first process of the member with this number.
    pub fn first_rank(&self, number: u32) -> u32 {
        let place = self.layout.place(number);
        place.map_or(number * self.proc_per_node, |place| place.first_rank)
    }

    /// How many processes it has in all.
    pub fn world_size(&self) -> u32 {
        match self.layout.is_empty() {
            true => self.size() * self.proc_per_node,
            false => self.layout.world_size(),
        }
    }

    /// Whether the member with this number serves the others, and does not decide when the job is
    /// over.
    pub fn serves(&self, number: u32) -> bool {
        let place = self.layout.place(number);
        place.is_some_and(|place| place.share.service)
    }

    /// Whether a process of the member with this number is started again alone if it fails.
    pub fn restarts_alone(&self, number: u32) -> bool {
        let place = self.layout.place(number);
        place.is_some_and(|place| place.share.restarts_alone)
    }

    /// Whether the failure of this rank is answered already: the rank was started again alone, or
    /// will be. Its node may not have heard of it yet.
    pub(crate) fn is_answered(&self, rank: &RankReport) -> bool {
        let restarts = self.member_restarts.get(&rank.rank);
        restarts.is_some_and(|restarts| {
            rank.attempt < restarts.attempt
                || rank.attempt == restarts.attempt && restarts.due.is_some()
        })
    }

    /// The restarts that this node was ordered, by rank.
    pub(crate) fn attempts_on(&self, node: &NodeName) -> BTreeMap<u32, u32> {
        let here = |rank: &u32| self.node_of(*rank) == Some(node);
        let ordered = self.member_restarts.iter().filter(|(rank, _)| here(rank));
        ordered
            .map(|(rank, restarts)| (*rank, restarts.attempt))
            .filter(|(_, attempt)| *attempt > 1)
            .collect()
    }

    /// Whether all members on this node serve the others.
    pub fn is_service(&self, node: &NodeName) -> bool {
        let seats = self.seats_on(node);
        !seats.is_empty() && seats.iter().all(|seat| self.serves(seat.number))
    }

    /// Whether a member on this node serves the others.
    pub fn serves_on(&self, node: &NodeName) -> bool {
        let seats = self.seats_on(node);
        seats.iter().any(|seat| self.serves(seat.number))
    }

    /// Whether all ranks of the member with this number have ended well, by the report of its node.
    pub fn member_finished(&self, run: &RunReport, number: u32) -> bool {
        let ranks = self.ranks(number);
        let ended = |report: &&RankReport| {
            ranks.contains(&report.rank) && report.exit.is_some_and(Exit::is_success)
        };
        run.ranks.iter().filter(ended).count() == ranks.len()
    }

    /// Whether all ranks on this node have ended well, except those that serve the others.
    pub fn finished_on(&self, node: &NodeName, run: &RunReport) -> bool {
        let seats = self.seats_on(node);
        let mut deciding = seats.iter().filter(|seat| !self.serves(seat.number));
        deciding.all(|seat| self.member_finished(run, seat.number))
    }
}
