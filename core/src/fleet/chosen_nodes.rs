//! The nodes on which a job that waits keeps room: as few as would do for its minimum.
//!
//! Nobody knows which jobs end next. If a job kept room on every node that could become its own, a large one would leave the
//! fleet idle, node by node, for as long as it waits. So no more stands idle for it than it needs, and all else goes to those
//! behind it.
//!
//! The choice is made anew in each turn, and nothing of it is stored. Nobody behind the job gets what it keeps, so a chosen
//! node empties, and another takes its place only if it has room for more members. Among nodes that have as much, the order
//! of names decides, which stays.

use std::collections::BTreeMap;

use crate::{
    fleet::{
        candidates::Reserved,
        capacity::Capacity,
        job_turn::Facts,
        limits::demand,
        placement::{Candidate, Demand, Keeps, Placement},
    },
    id::NodeName,
};

/// A node that a job which waits could use.
struct Could<'a> {
    node: Candidate<'a>,
    keeps: Keeps,
    /// How many of its members the node has room for at most, and now. Where they differ, GPUs.
    all: u32,
    now: u32,
}

impl Could<'_> {
    /// The first is chosen first. Nodes where the job has failed repeatedly come last.
    ///
    /// Half a member's room counts as none. Where it did count, the nodes that are nearly free came first, and those are nearly
    /// free because their last jobs are long: in played traces the others then waited five times as long.
    fn place(&self) -> (bool, u64) {
        let (all, now) = (u64::from(self.all), u64::from(self.now));
        // Some have room for more members than others, so the share counts.
        let missing = (all.saturating_sub(now) << 32) / all.max(1);
        (self.node.shunned, missing)
    }
}

impl<'a> Facts<'a> {
    /// What the job could use of each node if it were alone: nothing, if not even an empty fleet would do. Whether the quota
    /// of its queue lets it start, `claims` says.
    pub(crate) fn could_use(self) -> BTreeMap<NodeName, Keeps> {
        let Some(demand) = self.least() else {
            return BTreeMap::new();
        };
        let candidates = self.candidates(self.empty(), &[]);
        let keeps = candidates
            .iter()
            .filter_map(|node| Some((node.node.clone(), node.keeps(&demand)?)));
        let keeps = keeps.collect();
        match self.choose(self.empty(), candidates, &demand) {
            Placement::Gang(_) => keeps,
            Placement::Short(_) => BTreeMap::new(),
        }
    }

    /// What the job keeps of each node while it waits: nothing, if not even an empty fleet would do. `coming`: what will be
    /// left when all that is being stopped has stopped. `reserved`: what others keep from it.
    pub(crate) fn keeps(
        self,
        coming: &Capacity,
        reserved: &[Reserved<'a>],
    ) -> BTreeMap<NodeName, Keeps> {
        let Some(demand) = self.least() else {
            return BTreeMap::new();
        };
        let could = self.candidates(self.empty(), &[]).into_iter();
        let could = could.filter_map(|node| {
            let keeps = node.keeps(&demand)?;
            let (gpus, slots) = self.left_beside(coming, reserved, node.node);
            Some(Could {
                all: keeps.room_in(node.gpus_free, node.slots_free),
                now: keeps.room_in(gpus, slots),
                node,
                keeps,
            })
        });
        let mut could: Vec<Could<'a>> = could.collect();
        could.sort_by_key(Could::place);
        let needed = match demand.roles.len() {
            1 => demand.min(),
            // They differ, so what they need is counted.
            _ => demand.gpus_of(demand.min()),
        };
        // What is free now, or will be, may do. These nodes and no others were freed for it.
        if could.iter().map(|one| one.now).sum::<u32>() >= needed {
            let nodes = self.candidates(coming, reserved);
            if let Placement::Gang(gang) = self.choose(coming, nodes, &demand) {
                could.retain(|one| gang.iter().any(|member| &member.node == one.node.node));
                return kept(could);
            }
        }
        let mut all = 0;
        let enough = could.iter().position(|one| {
            all += one.all;
            all >= needed
        });
        let mut count = enough.map_or(could.len(), |last| last + 1);
        // Members may have to be alike, or near each other.
        while !self.would_do(&could[..count], &demand) {
            if count == could.len() {
                return BTreeMap::new();
            }
            count = (2 * count).clamp(1, could.len());
        }
        could.truncate(count);
        kept(could)
    }

    /// Whether the job would start if these nodes were empty.
    fn would_do(self, nodes: &[Could<'a>], demand: &Demand) -> bool {
        let nodes = nodes.iter().map(|one| one.node.clone());
        let placed = self.choose(self.empty(), nodes.collect(), demand);
        matches!(placed, Placement::Gang(_))
    }

    /// What the job needs to begin. `None`: a limit does not let it.
    fn least(self) -> Option<Demand> {
        let mut demand = demand(self.job);
        if let Some(limit) = self.own_limit() {
            limit.bound(&mut demand).ok()?;
        }
        demand.wanted = demand.min();
        Some(demand)
    }

    /// What nodes would have if no job held anything.
    fn empty(self) -> &'a Capacity {
        let empty = &self.reservations().empty;
        empty.get_or_init(|| self.capacity.emptied())
    }
}

fn kept(chosen: Vec<Could<'_>>) -> BTreeMap<NodeName, Keeps> {
    let kept = chosen.into_iter();
    kept.map(|one| (one.node.node.clone(), one.keeps)).collect()
}
