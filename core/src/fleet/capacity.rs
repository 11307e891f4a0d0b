//! What every node has left, for all jobs, and who holds the rest. It is kept from turn to turn, and a turn costs what has changed:
//! [`Capacity::count_changed`] counts the nodes again that the registry has handed out to be changed, and [`Capacity::read_again`]
//! reads the jobs that the turn's inputs concern. Within the turn [`Capacity::reserve`] and [`Capacity::release`] are the only
//! ways to a GPU or slot: when a job was settled, what it held is released, and what its record says is reserved. `audit` compares it
//! with one that is made anew.
//!
//! A slot or GPU is taken as long as a generation may have a live process on it. Only proof of
//! death frees it, never a timer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    fleet::{
        by_free::ByFree,
        job::{GenerationRecord, JobRecord},
        members::{Member, Members},
        registry::{Node, Registry},
        worker_pods::WorkerPods,
    },
    id::{Generation, JobUid, NodeName},
    node_report::{NodeReport, holders::Holders},
    run::RunId,
};

pub(crate) use crate::fleet::unhealthy::no_new_work;

/// What all nodes have left, at one moment. A copy of it is for "what if".
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Capacity {
    nodes: BTreeMap<NodeName, NodeCapacity>,
    /// Where each job holds something.
    held: BTreeMap<JobUid, BTreeSet<NodeName>>,
    by_free: ByFree,
    /// It is a copy, whose nodes are not filed by what they have free.
    unfiled: bool,
}

impl Clone for Capacity {
    fn clone(&self) -> Self {
        Self {
            nodes: self.nodes.clone(),
            held: self.held.clone(),
            by_free: ByFree::default(),
            unfiled: true,
        }
    }
}

/// What has become of what a job holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Followed {
    /// It holds something else.
    pub holds_else: bool,
    /// Of some node it holds less than before.
    pub gave_back: bool,
}

/// What one node has, and who holds what of it.
#[derive(Clone, Debug)]
pub(crate) struct NodeCapacity {
    report: Arc<NodeReport>,
    /// How many GPUs may be placed, by health.
    placeable: u32,
    /// Of these, those that no pod of others holds: their indices, and their positions among the placeable.
    unheld: Vec<(u32, u32)>,
    /// How many of these no job holds.
    free: u32,
    slots_taken: u32,
    holdings: BTreeMap<JobUid, Holding>,
}

/// What one job holds of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub slots: u32,
    /// The shares of its generations that may have live processes there: their members, and the node's rank.
    shares: Vec<(Members, u32)>,
}

impl Holding {
    /// UUIDs.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = &str> {
        let shares = self.shares.iter();
        let shares = shares.filter_map(|(members, rank)| members.get(*rank as usize));
        shares.flat_map(|share| share.gpus.iter().map(String::as_str))
    }
}

/// A GPU, or a part of one, as placement needs to know it. It is small, because ten thousand nodes have eighty thousand GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreeGpu<'a> {
    pub index: u32,
    pub uuid: &'a str,
}

impl Capacity {
    /// As the nodes and the records of their jobs say it.
    pub(crate) fn of<'j>(
        nodes: &Registry,
        job: impl Fn(&JobUid) -> Option<&'j JobRecord>,
        pods: &WorkerPods,
    ) -> Self {
        let mut held: BTreeMap<JobUid, BTreeSet<NodeName>> = BTreeMap::new();
        let nodes = nodes.iter().map(|node| {
            let name = &node.record.name;
            let holdings = holdings(node, &job);
            for uid in holdings.keys() {
                held.entry(uid.clone()).or_default().insert(name.clone());
            }
            (name.clone(), NodeCapacity::of(node, holdings, pods))
        });
        let nodes: BTreeMap<NodeName, NodeCapacity> = nodes.collect();
        let mut by_free = ByFree::default();
        for (name, node) in &nodes {
            by_free.refile(name, 0, node.free);
        }
        Self {
            nodes,
            held,
            by_free,
            unfiled: false,
        }
    }

    /// Counts the nodes again that may have changed since this was last called, and those of which pods hold GPUs, if one of
    /// these is over.
    pub(crate) fn count_changed(
        &mut self,
        nodes: &mut Registry,
        jobs: &BTreeMap<JobUid, JobRecord>,
        pods: &mut WorkerPods,
    ) {
        let mut changed = nodes.take_changed();
        if std::mem::take(&mut pods.ends_changed) {
            let asked = nodes
                .iter()
                .filter(|node| node.report.holders != Holders::NotAsked);
            changed.extend(asked.map(|node| node.record.name.clone()));
        }
        for name in &changed {
            self.count_node(name, nodes, jobs, pods);
        }
    }

    /// These jobs may have changed: they hold what their records say.
    pub(crate) fn read_again<'u>(
        &mut self,
        nodes: &Registry,
        jobs: &BTreeMap<JobUid, JobRecord>,
        touched: impl Iterator<Item = &'u JobUid>,
    ) {
        for uid in touched {
            self.follow_record(nodes, uid, jobs.get(uid));
        }
    }

    /// Counts one node again.
    fn count_node(
        &mut self,
        name: &NodeName,
        nodes: &Registry,
        jobs: &BTreeMap<JobUid, JobRecord>,
        pods: &WorkerPods,
    ) {
        let node = nodes.get(name);
        let now =
            node.map(|node| NodeCapacity::of(node, holdings(node, &|uid| jobs.get(uid)), pods));
        let held = |node: &NodeCapacity| node.holdings.keys().cloned().collect::<Vec<_>>();
        let gained = now.as_ref().map(held).unwrap_or_default();
        let free = now.as_ref().map_or(0, |now| now.free);
        let before = match now {
            Some(now) => self.nodes.insert(name.clone(), now),
            None => self.nodes.remove(name),
        };
        self.refile(name, before.as_ref().map_or(0, |before| before.free), free);
        for uid in before.as_ref().map(held).unwrap_or_default() {
            self.holds_no_more(name, &uid);
        }
        for uid in gained {
            self.held.entry(uid).or_default().insert(name.clone());
        }
    }

    fn refile(&mut self, name: &NodeName, before: u32, now: u32) {
        if !self.unfiled {
            self.by_free.refile(name, before, now);
        }
    }

    /// The nodes of which no job holds at least so many GPUs, those with fewest first, each with all that have as many.
    pub(crate) fn with_free(&self, gpus: u32) -> impl Iterator<Item = &BTreeSet<NodeName>> {
        debug_assert!(!self.unfiled, "nobody asks a copy");
        self.by_free.at_least(gpus)
    }

    /// The nodes of which this job holds something.
    pub(crate) fn held_by(&self, uid: &JobUid) -> impl Iterator<Item = &NodeName> {
        self.held.get(uid).into_iter().flatten()
    }

    fn holds_no_more(&mut self, name: &NodeName, uid: &JobUid) {
        if let Some(held) = self.held.get_mut(uid) {
            held.remove(name);
            if held.is_empty() {
                self.held.remove(uid);
            }
        }
    }

    pub(crate) fn node(&self, name: &NodeName) -> Option<&NodeCapacity> {
        self.nodes.get(name)
    }

    /// The same, to try things out in, and of which all may be asked.
    pub(crate) fn copy(&self) -> Capacity {
        Capacity {
            by_free: self.by_free.clone(),
            unfiled: self.unfiled,
            ..self.clone()
        }
    }

    /// What there would be if no job held anything.
    pub(crate) fn emptied(&self) -> Capacity {
        let mut empty = self.clone();
        empty.held.clear();
        for node in empty.nodes.values_mut() {
            node.holdings.clear();
            node.count();
        }
        empty
    }

    /// Of these nodes alone.
    pub(crate) fn only(&self, names: &BTreeSet<&NodeName>) -> Capacity {
        let named = |name: &&NodeName| Some(((*name).clone(), self.nodes.get(*name)?.clone()));
        Capacity {
            nodes: names.iter().filter_map(named).collect(),
            unfiled: true,
            ..Capacity::default()
        }
    }

    /// A job holds only what this generation has, and none of those before it.
    pub(crate) fn keep_only(&mut self, uid: &JobUid, generation: Option<&GenerationRecord>) {
        for name in self.held.get(uid).cloned().unwrap_or_default() {
            let alive = generation.filter(|generation| !generation.dead.contains(&name));
            let rank = alive.and_then(|generation| generation.members.rank_of(&name));
            let Some((generation, rank)) = alive.zip(rank) else {
                self.release(&name, uid);
                continue;
            };
            let holding = Holding {
                slots: on_slots(generation, &name),
                shares: vec![(generation.members.clone(), rank)],
            };
            self.reserve(&name, uid, holding);
        }
    }

    /// How many GPUs these jobs hold together. A generation that has just broken counts until its job gives it up: it is
    /// about to be started again.
    pub(crate) fn gpus_held_by<'j>(&self, jobs: impl Iterator<Item = &'j JobRecord>) -> u32 {
        let of_job = |job: &'j JobRecord| -> usize {
            let now = job.generation_now().into_iter();
            let members = now.flat_map(|generation| &generation.members);
            let mut gpus: BTreeSet<(&NodeName, &str)> = BTreeSet::new();
            for member in members {
                gpus.extend(member.gpus.iter().map(|gpu| (&member.node, gpu.as_str())));
            }
            for name in self.held.get(&job.uid).into_iter().flatten() {
                let holding = self
                    .nodes
                    .get(name)
                    .and_then(|node| node.holdings.get(&job.uid));
                gpus.extend(
                    holding
                        .into_iter()
                        .flat_map(Holding::gpus)
                        .map(|gpu| (name, gpu)),
                );
            }
            gpus.len()
        };
        jobs.map(of_job).sum::<usize>() as u32
    }

    /// Gives a job what it holds of a node from now on.
    fn reserve(&mut self, name: &NodeName, uid: &JobUid, holding: Holding) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let before = node.free;
        node.holdings.insert(uid.clone(), holding);
        node.count();
        let now = node.free;
        self.refile(name, before, now);
        let held = self.held.entry(uid.clone()).or_default();
        held.insert(name.clone());
    }

    /// The nodes of which `self` and `other` do not say the same.
    pub(crate) fn differences<'c>(
        &'c self,
        other: &'c Capacity,
    ) -> impl Iterator<Item = &'c NodeName> {
        let differs = |name: &&NodeName| {
            self.nodes.get(*name) != other.nodes.get(*name)
                || self.by_free.of(name) != other.by_free.of(name)
        };
        let own = self.nodes.keys().filter(differs);
        own.chain(
            other
                .nodes
                .keys()
                .filter(|name| !self.nodes.contains_key(*name)),
        )
    }

    /// A job that holds nothing gets this gang.
    pub(crate) fn occupy(&mut self, uid: &JobUid, gang: Vec<Member>) {
        let gang = Members::from(gang);
        for (rank, member) in (0..).zip(gang.iter()) {
            let seats = member.seats.iter();
            let slots = match member.seats.is_empty() {
                true => u32::from(member.gpus.is_empty()),
                false => seats.filter(|seat| seat.gpus.is_empty()).count() as u32,
            };
            let shares = vec![(gang.clone(), rank)];
            self.reserve(&member.node, uid, Holding { slots, shares });
        }
    }

    /// Takes back what a job holds of a node.
    pub(crate) fn release(&mut self, name: &NodeName, uid: &JobUid) {
        if let Some(node) = self.nodes.get_mut(name) {
            let before = node.free;
            node.holdings.remove(uid);
            node.count();
            let now = node.free;
            self.refile(name, before, now);
        }
        self.holds_no_more(name, uid);
    }

    /// A job was settled: it holds what its record says now.
    pub(crate) fn follow(&mut self, nodes: &Registry, job: &JobRecord) -> Followed {
        self.follow_record(nodes, &job.uid, Some(job))
    }

    /// The job holds what this record says. Without one, what nodes report of it.
    fn follow_record(
        &mut self,
        nodes: &Registry,
        uid: &JobUid,
        job: Option<&JobRecord>,
    ) -> Followed {
        let mut followed = Followed::default();
        let mut concerned = self.held.get(uid).cloned().unwrap_or_default();
        for generation in job.into_iter().flat_map(JobRecord::unproven_generations) {
            concerned.extend(generation.members.iter().map(|share| share.node.clone()));
        }
        for name in &concerned {
            let node = nodes.get(name);
            let now = node.and_then(|node| holding(node, uid, job));
            let before = self.nodes.get(name).and_then(|node| node.holdings.get(uid));
            if before == now.as_ref() {
                continue;
            }
            followed.holds_else = true;
            let left = |capacity: &Self| {
                let node = capacity.nodes.get(name);
                node.map_or((0, 0), |node| (node.free, node.slots_taken))
            };
            let (free, slots_taken) = left(self);
            self.release(name, uid);
            if let Some(now) = now {
                self.reserve(name, uid, now);
            }
            let left = left(self);
            followed.gave_back |= left.0 > free || left.1 < slots_taken;
        }
        followed
    }
}

impl PartialEq for NodeCapacity {
    fn eq(&self, other: &Self) -> bool {
        let NodeCapacity {
            report,
            placeable,
            unheld,
            free,
            slots_taken,
            holdings,
        } = self;
        Arc::ptr_eq(report, &other.report)
            && (placeable, unheld, free) == (&other.placeable, &other.unheld, &other.free)
            && (slots_taken, holdings) == (&other.slots_taken, &other.holdings)
    }
}

impl NodeCapacity {
    fn of(node: &Node, holdings: BTreeMap<JobUid, Holding>, pods: &WorkerPods) -> Self {
        let report = &node.report;
        let (placeable, unheld) = match &report.holders {
            // The usual case, and most of what a fleet of ten thousand nodes costs.
            Holders::NotAsked => {
                let all = report.placeable_ids().zip(0..);
                let all: Vec<(u32, u32)> = all.map(|((index, _), at)| (index, at)).collect();
                (all.len() as u32, all)
            }
            _ => (report.placeable_ids().count() as u32, unheld(report, pods)),
        };
        let mut capacity = Self {
            placeable,
            report: Arc::clone(report),
            unheld,
            free: 0,
            slots_taken: 0,
            holdings,
        };
        capacity.count();
        capacity
    }

    fn count(&mut self) {
        self.slots_taken = self.holdings.values().map(|holding| holding.slots).sum();
        self.free = match self.holdings.is_empty() {
            true => self.unheld.len() as u32,
            false => self.free_but(None).count() as u32,
        };
    }

    /// How many more members without GPUs this job could have here. What it holds does not count: it makes room for itself.
    pub(crate) fn slots_free(&self, uid: &JobUid) -> u32 {
        let own = self.holdings.get(uid).map_or(0, |holding| holding.slots);
        self.report.slots.saturating_sub(self.slots_taken - own)
    }

    pub(crate) fn gpus_free(&self, uid: &JobUid) -> u32 {
        match self.holdings.contains_key(uid) {
            true => self.free_but(Some(uid)).count() as u32,
            false => self.free,
        }
    }

    /// How many GPUs it would have if nobody held any.
    pub(crate) fn gpus_all(&self) -> u32 {
        self.placeable
    }

    /// How many GPUs pods of others hold.
    pub(crate) fn gpus_held(&self) -> u32 {
        self.placeable - self.unheld.len() as u32
    }

    /// The GPUs that this job could have, in the order of the node's report.
    pub(crate) fn gpus(&self, uid: &JobUid) -> Vec<FreeGpu<'_>> {
        self.free_but(Some(uid)).collect()
    }

    /// The GPUs that nobody but this job holds.
    fn free_but(&self, uid: Option<&JobUid>) -> impl Iterator<Item = FreeGpu<'_>> {
        let others = self
            .holdings
            .iter()
            .filter(|(other, _)| Some(*other) != uid);
        let taken: Vec<&str> = others.flat_map(|(_, holding)| holding.gpus()).collect();
        let all: Vec<&str> = match self.unheld.is_empty() {
            true => Vec::new(),
            false => self.report.placeable_ids().map(|(_, uuid)| uuid).collect(),
        };
        let unheld = self.unheld.iter();
        let unheld = unheld.map(move |(index, at)| FreeGpu {
            index: *index,
            uuid: all[*at as usize],
        });
        unheld.filter(move |gpu| !taken.contains(&gpu.uuid))
    }

    pub(crate) fn holdings(&self) -> &BTreeMap<JobUid, Holding> {
        &self.holdings
    }
}

/// The placeable GPUs that no pod of others holds, as indices and positions.
fn unheld(report: &NodeReport, pods: &WorkerPods) -> Vec<(u32, u32)> {
    let unheld = report.unheld_ids(|holder| !pods.is_over(holder));
    let mut left = unheld.into_iter().peekable();
    let all = (0..).zip(report.placeable_ids());
    let free = all.filter_map(|(at, (index, uuid))| {
        let is_next = left.next_if(|next| *next == (index, uuid)).is_some();
        is_next.then_some((index, at))
    });
    free.collect()
}

/// What each job holds of this node: those that its index names, and those of which it reports a run that is not over.
fn holdings<'j>(
    node: &Node,
    job: &impl Fn(&JobUid) -> Option<&'j JobRecord>,
) -> BTreeMap<JobUid, Holding> {
    let runs = node.runs.iter().filter(|(_, run)| !run.phase.is_over());
    let of_runs = runs.map(|(id, _)| &id.job);
    let uids = of_runs.chain(&node.jobs);
    let held = uids.filter_map(|uid| Some((uid.clone(), holding(node, uid, job(uid))?)));
    held.collect()
}

/// What this job holds of the node. `job`: its record. Without one it is a job of a store that was lost.
fn holding(node: &Node, uid: &JobUid, job: Option<&JobRecord>) -> Option<Holding> {
    let name = &node.record.name;
    let run = |number| RunId {
        job: uid.clone(),
        generation: Generation(number),
    };
    let mut runs = node.runs.range(run(0)..=run(u64::MAX));
    let has_run = runs.any(|(_, run)| !run.phase.is_over());
    let Some(job) = job else {
        return has_run.then(|| Holding {
            slots: 1,
            shares: Vec::new(),
        });
    };
    let shares: Vec<(Members, u32)> = live_on(job, name)
        .filter_map(|g| Some((g.members.clone(), g.members.rank_of(name)?)))
        .collect();
    let slots = match has_run || !shares.is_empty() {
        true => slots_taken(job, node),
        false => return None,
    };
    Some(Holding { slots, shares })
}

/// The generations of this job that may have live processes on the node.
fn live_on<'j>(
    job: &'j JobRecord,
    name: &'j NodeName,
) -> impl Iterator<Item = &'j GenerationRecord> {
    job.unproven_generations()
        .filter(move |g| g.has(name) && !g.dead.contains(name))
}

/// How many more members without GPUs a node could take.
pub(crate) fn slots_free(node: &Node, jobs: &BTreeMap<JobUid, JobRecord>) -> u32 {
    let holdings = holdings(node, &|uid| jobs.get(uid));
    let taken = holdings.values().map(|holding| holding.slots).sum();
    node.report.slots.saturating_sub(taken)
}

/// How many slots of this node the job takes: one for each member without GPUs. Of generations that
/// replace each other, only one runs at a time. One that is dead there takes none, also if it is not on other nodes.
fn slots_taken(job: &JobRecord, node: &Node) -> u32 {
    if job.spec.roles.is_empty() && job.spec.gpus_per_node > 0 {
        return 0;
    }
    let name = &node.record.name;
    let runs = |number| {
        let run = RunId {
            job: job.uid.clone(),
            generation: number,
        };
        let run = node.runs.get(&run);
        run.is_some_and(|run| !run.phase.is_over())
    };
    let there = job
        .unproven_generations()
        .filter(|g| g.has(name) && (!g.dead.contains(name) || runs(g.number)));
    // A run that is over in the record and not in the node's report is one share.
    there
        .map(|generation| on_slots(generation, name))
        .max()
        .unwrap_or(1)
}

/// The members of a generation on this node that have no GPUs.
fn on_slots(generation: &GenerationRecord, node: &NodeName) -> u32 {
    let seats = generation.seats_on(node);
    seats.iter().filter(|seat| seat.gpus.is_empty()).count() as u32
}
