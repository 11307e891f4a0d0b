//! The nodes on which a job that waits keeps room: as few as would do for its minimum.
//!
//! Nobody knows which jobs end next. If a job kept room on every node that could become its own, a large one would leave the
//! fleet idle, node by node, for as long as it waits. So no more stands idle for it than it needs, and all else goes to those
//! behind it.
//!
//! The choice is made anew in each turn, and nothing of it is stored. Nobody behind the job gets what it keeps, so a chosen
//! node empties, and another takes its place only if it has room for more members. Among nodes that have as much, the order
//! of names decides, which stays. A job on a chosen node may never end. So with each hour that the job waits it keeps as many
//! nodes again, and in time all.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet::{
        candidates::Reserved,
        capacity::Capacity,
        job_turn::Facts,
        limits::demand,
        members::Member,
        placement::{Candidate, Demand, Keeps, Placement},
        reservations,
    },
    id::NodeName,
};

/// After so much time that a job has waited it keeps as many nodes again.
const AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// A node that a job which waits could use.
struct Could<'a> {
    node: Candidate<'a>,
    keeps: Keeps,
    /// How many of its members the node has room for at most, and now. If they differ: how many GPUs, or how many slots of a
    /// node without GPUs.
    all: u32,
    now: u32,
    /// Whether that is members or GPUs.
    counts: bool,
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
        let mut could = self.could(coming, reserved, &demand);
        let counted = could.iter().filter(|one| one.counts);
        // What is free now, or will be, may do. These nodes and no others were freed for it.
        if counted.map(|one| one.now).sum::<u32>() >= needed(&demand) {
            let nodes = self.candidates(coming, reserved);
            if let Placement::Gang(gang) = self.choose(coming, nodes, &demand) {
                return take(&mut could, &gang).collect();
            }
        }
        let waited = self.now.since(reservations::since(self.job));
        let gangs = 1 + waited.as_secs() / AGAIN_AFTER.as_secs();
        self.first_gangs(could, gangs, &demand)
    }

    /// The nodes that it could use, the first to be chosen in front. A busy node that another keeps is as good as any: it will
    /// be there when that one has ended. So busy nodes empty for one after the other, and less stands idle.
    fn could(
        self,
        coming: &Capacity,
        reserved: &[Reserved<'a>],
        demand: &Demand,
    ) -> Vec<Could<'a>> {
        let could = self.candidates(self.empty(), &[]).into_iter();
        let could = could.filter_map(|node| {
            let keeps = node.keeps(demand)?;
            let has_gpus = node.gpus_all > 0;
            let (gpus, slots) = self.left_beside(coming, reserved, node.node);
            Some(Could {
                all: keeps.room_in(has_gpus, node.gpus_free, node.slots_free),
                now: keeps.room_in(has_gpus, gpus, slots),
                counts: demand.roles.len() == 1 || has_gpus,
                node,
                keeps,
            })
        });
        let mut could: Vec<Could<'a>> = could.collect();
        could.sort_by_key(Could::place);
        could
    }

    /// What it keeps of so many gangs one after the other, as long as there are enough nodes.
    fn first_gangs(
        self,
        mut could: Vec<Could<'a>>,
        gangs: u64,
        demand: &Demand,
    ) -> BTreeMap<NodeName, Keeps> {
        let mut keeps = BTreeMap::new();
        for _ in 0..gangs {
            let Some(gang) = self.first_gang(&could, demand) else {
                break;
            };
            keeps.extend(take(&mut could, &gang));
        }
        keeps
    }

    /// A gang on the first of these nodes, if they were empty.
    fn first_gang(self, could: &[Could<'a>], demand: &Demand) -> Option<Vec<Member>> {
        let needed = needed(demand);
        let mut all = 0_u32;
        let enough = could.iter().position(|one| {
            all = all.saturating_add(if one.counts { one.all } else { 0 });
            all >= needed
        });
        let mut count = enough.map_or(could.len(), |last| last + 1);
        loop {
            let nodes = could[..count].iter().map(|one| one.node.clone());
            let placed = self.choose(self.empty(), nodes.collect(), demand);
            if let Placement::Gang(gang) = placed {
                return Some(gang);
            }
            if count == could.len() {
                return None;
            }
            // Members may have to be alike, or near each other.
            count = (2 * count).clamp(1, could.len());
        }
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

/// So much room does for the minimum, if the nodes are right.
fn needed(demand: &Demand) -> u32 {
    match demand.roles.len() {
        1 => demand.min(),
        _ => demand.gpus_of(demand.min()),
    }
}

/// Takes the nodes of this gang out of the others.
fn take<'c>(
    could: &'c mut Vec<Could<'_>>,
    gang: &[Member],
) -> impl Iterator<Item = (NodeName, Keeps)> + use<'c> {
    let is_taken = |one: &mut Could<'_>| gang.iter().any(|member| &member.node == one.node.node);
    let taken: Vec<(NodeName, Keeps)> = could
        .extract_if(.., is_taken)
        .map(|one| (one.node.node.clone(), one.keeps))
        .collect();
    taken.into_iter()
}
