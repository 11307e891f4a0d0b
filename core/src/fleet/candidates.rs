//! The nodes as placement sees them for one job. `gang` asks it for one.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use crate::{
    fleet::{
        capacity::{Capacity, FreeGpu, NodeCapacity},
        fault_ledger,
        job::{GenerationRecord, JobRecord, Seat},
        job_turn::Facts,
        limits::demand,
        live::Live,
        members::Member,
        placement::{
            self, Avoided, Candidate, Demand, Had, Held, Keeps, Kept, Levels, Placement, Share,
        },
        registry::Node,
        reservations,
        room::Room,
        selected,
        unhealthy::no_new_work,
        worker_pod::is_pod,
    },
    id::{JobName, NodeName},
    nccl::{mixture::Kind, profile},
    node_report::holders::Holders,
    protocol,
    spec::{NodeMix, toleration},
};

impl<'a> Facts<'a> {
    /// So many of the nodes that the job may have that the gang is the same as with all of them, if there is one: those with
    /// room for a member. `None`: a node without room may decide something, or there is no gang.
    pub(crate) fn with_room(
        self,
        reserved: &[Reserved<'a>],
        demand: &Demand,
    ) -> Option<Vec<Candidate<'a>>> {
        let (job, capacity) = (self.job, self.capacity);
        let selection = &job.spec.selection;
        let least = demand.roles.iter().map(|role| role.gpus).min();
        // The room of a domain is that of all its nodes.
        let least = least.filter(|gpus| *gpus > 0 && !Levels::of(selection).is_any())?;
        let members = job.latest().into_iter().flat_map(|last| &last.members);
        let own = members.map(|member| &member.node);
        let own: BTreeSet<&NodeName> = own.chain(capacity.held_by(self.uid)).collect();
        let with_room: usize = capacity.with_free(least).map(BTreeSet::len).sum();
        if demand.per_node == 1 && with_room + own.len() < demand.min() as usize {
            return None;
        }
        // Where members and nodes are alike, the nodes with fewest free GPUs are taken.
        let fewest_first = own.is_empty()
            && reserved.is_empty()
            && demand.is_one_alike_each()
            && selection.preferred().is_empty()
            && job.spec.node_mix != NodeMix::Refuse;
        let filed = |name| self.nodes.get(name).zip(capacity.node(name));
        let (mut few, mut fit) = (Vec::new(), 0);
        for names in capacity.with_free(least) {
            let others = names.iter().filter(|name| !own.contains(name));
            let more = self.candidates_among(others.filter_map(filed), reserved);
            // One that would rather have no job is taken only if all others do not do.
            let welcomes = |node: &&Candidate<'_>| node.is_first_choice(least) && node.liking >= 0;
            fit += more.iter().filter(welcomes).count();
            few.extend(more);
            if fewest_first && fit >= demand.most() as usize {
                break;
            }
        }
        let own = own.into_iter().filter_map(filed);
        few.extend(self.candidates_among(own, reserved));
        few.sort_by_key(|candidate| candidate.node);
        Some(few)
    }

    /// The gang that placement chooses, with the GPUs that this capacity has left.
    pub(crate) fn choose(
        self,
        capacity: &Capacity,
        candidates: Vec<Candidate<'a>>,
        demand: &Demand,
    ) -> Placement<'a> {
        let levels = Levels::of(&self.job.spec.selection);
        match placement::place(candidates, levels, demand) {
            Placement::Short(short) => Placement::Short(short),
            Placement::Gang(gang) => {
                let granted = gang.iter().map(|share| {
                    let left = capacity.node(share.node);
                    granted(share, left.map_or(Vec::new(), |left| left.gpus(self.uid)))
                });
                Placement::Gang(seal(granted.collect()))
            }
        }
    }

    /// The nodes that the job may have, with what this capacity has left for it.
    pub(crate) fn candidates(
        self,
        capacity: &Capacity,
        reserved: &[Reserved<'a>],
    ) -> Vec<Candidate<'a>> {
        let filed = |node: &'a Node| Some(node).zip(capacity.node(&node.record.name));
        self.candidates_among(self.nodes.iter().filter_map(filed), reserved)
    }

    fn candidates_among<'c>(
        self,
        nodes: impl Iterator<Item = (&'a Node, &'c NodeCapacity)>,
        reserved: &[Reserved<'a>],
    ) -> Vec<Candidate<'a>> {
        let avoided = |name: &NodeName| {
            let mut avoided = self.live.avoided.iter();
            avoided
                .find(|avoided| &avoided.node == name && avoided.until > self.now)
                .map(|avoided| Avoided::CouldNotStart(&avoided.why))
        };
        let job = self.job;
        let before = job.latest();
        let trained = job.trained_last();
        let selection = &job.spec.selection;
        let levels = Levels::of(selection);
        let demand = demand(job);
        let alike = job.spec.node_mix == NodeMix::Refuse;
        let gpus = || demand.roles.iter().map(|role| role.gpus);
        let most_gpus = gpus().max().unwrap_or_default();
        // A node has a kind if it can serve the role that needs the fewest GPUs, but needs some.
        let gpus_for_kind = gpus().filter(|gpus| alike && *gpus > 0).min();
        let any_kind: Rc<Kind> = Rc::default();
        let takes_cordoned = toleration::tolerates_cordons(&selection.tolerations);
        let imageless = |report| selected::imageless(job.spec.image.as_deref(), report);
        let nodes = nodes.filter(|(node, _)| is_for(&node.record.name, node, job));
        let candidates = nodes.map(|(node, left)| {
            let name = &node.record.name;
            let (gpus_free, slots_free) = (left.gpus_free(self.uid), left.slots_free(self.uid));
            let kept = kept(reserved, name, gpus_free, slots_free, self.own(name));
            let gpus_free = gpus_free - kept.map_or(0, |kept| kept.gpus);
            Candidate {
                node: name,
                boot_id: &node.record.boot_id,
                liveness: node.liveness,
                connected: node.session.is_some(),
                cordoned: self.nodes.is_cordoned(node) && !takes_cordoned,
                halted: node.record.halt.is_some(),
                // A job keeps the nodes that it has, whatever their labels and taints become, but not without its image.
                misfit: match before.is_some_and(|g| g.has(name)) {
                    true => imageless(&node.report),
                    false => {
                        let selected = selection.requires();
                        let misfit = selected.then(|| selected::misfit(selection, node.into()));
                        let tainted = || selected::tainted(selection, &node.report, most_gpus > 0);
                        let misfit = misfit.flatten().or_else(tainted);
                        misfit.or_else(|| imageless(&node.report))
                    }
                },
                liking: selected::liking(selection, node.into(), most_gpus > 0),
                domains: levels.domains_of(&node.report),
                domain: 0,
                avoided: avoided(name)
                    .or_else(|| no_new_work(self.nodes, node).map(Avoided::NoNewWork))
                    .or_else(|| self.pods.why_going(node).map(Avoided::Going))
                    .or_else(|| node.report.senses_only.then_some(Avoided::SensesOnly)),
                shunned: fault_ledger::shunned_by(
                    &self.nodes.blamed(node).record,
                    self.uid,
                    self.policy,
                    self.now,
                ),
                slots_free: slots_free - kept.map_or(0, |kept| kept.slots),
                gpus_free,
                kept,
                gpus_all: left.gpus_all(),
                gpus_held: match gpus_free < most_gpus {
                    true => self.gpus_held(node, left),
                    false => Held::default(),
                },
                node_rank: before.and_then(|g| g.members.rank_of(name)),
                had: before.map(|g| had(g, name)).unwrap_or_default(),
                kind: match gpus_for_kind {
                    Some(gpus) if gpus_free >= gpus => kind(node, &left.gpus(self.uid)).into(),
                    _ => Rc::clone(&any_kind),
                },
                stack: job.stack_on(node),
                trained: trained.is_some_and(|g| g.has(name)),
                one_member: node.protocol < protocol::SHARED,
            }
        });
        candidates.collect()
    }

    /// What nobody who waits keeps from this job on the node: what it had there last, if it has its place in the fleet.
    fn own(self, name: &NodeName) -> Own {
        let given = self.yields.get(self.uid);
        let gives_up = given.is_some_and(|given| given.evicted || given.nodes.contains(name));
        if gives_up || !reservations::has_its_place(self.job) {
            return Own::default();
        }
        let seats = self.job.latest().map(|last| last.seats_on(name));
        let had = seats.unwrap_or_default();
        let gpus: usize = had.iter().map(|seat| seat.gpus.len()).sum();
        let on_slots = had.iter().filter(|seat| seat.gpus.is_empty()).count();
        Own {
            gpus: gpus as u32,
            slots: on_slots as u32,
        }
    }

    /// The same facts about another job.
    pub(crate) fn of_other<'b>(self, job: &'b JobRecord, live: &'b Live) -> Facts<'b>
    where
        'a: 'b,
    {
        Facts {
            uid: &job.uid,
            job,
            live,
            ..self
        }
    }

    /// The GPUs and slots that this node has left for the job, beside what others keep from it.
    pub(crate) fn left_beside(
        self,
        capacity: &Capacity,
        reserved: &[Reserved<'a>],
        node: &NodeName,
    ) -> (u32, u32) {
        let Some(left) = capacity.node(node) else {
            return (0, 0);
        };
        let (gpus, slots) = (left.gpus_free(self.uid), left.slots_free(self.uid));
        match kept(reserved, node, gpus, slots, self.own(node)) {
            Some(kept) => (gpus - kept.gpus, slots - kept.slots),
            None => (gpus, slots),
        }
    }

    /// Whether a node has room for this share in so much capacity, beside what jobs before this one keep.
    pub(crate) fn has_room(
        self,
        capacity: &Capacity,
        reserved: &[Reserved<'a>],
        share: &Member,
    ) -> bool {
        let Some(left) = capacity.node(&share.node) else {
            return false;
        };
        let (gpus, slots) = (left.gpus_free(self.uid), left.slots_free(self.uid));
        let kept = kept(reserved, &share.node, gpus, slots, Own::default());
        let seats = share
            .seats
            .iter()
            .filter(|seat| seat.gpus.is_empty())
            .count() as u32;
        let on_slots = match share.seats.is_empty() && share.gpus.is_empty() {
            true => 1,
            false => seats,
        };
        share.gpus.len() as u32 + kept.map_or(0, |kept| kept.gpus) <= gpus
            && on_slots + kept.map_or(0, |kept| kept.slots) <= slots
    }

    /// The room that this node has left for this job.
    pub(crate) fn room(self, node: &NodeName) -> Option<Room<'a>> {
        let left = self.capacity.node(node)?;
        Some(Room {
            slots: left.slots_free(self.uid),
            gpus: left.gpus(self.uid),
        })
    }

    /// Who else holds GPUs of the node, by the word of its kubelet.
    fn gpus_held(self, node: &'a Node, left: &NodeCapacity) -> Held<'a> {
        match &node.report.holders {
            Holders::NotAsked => Held::Nobody,
            Holders::Unknown => Held::Unknown,
            Holders::Known(holders) => Held::By {
                gpus: left.gpus_held(),
                by: holders
                    .iter()
                    .filter(|holder| !self.pods.is_over(holder))
                    .collect(),
                namespace: &self.job.name.namespace,
            },
        }
    }
}

/// What a job had of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    gpus: u32,
    slots: u32,
}

/// The room that a job which waits keeps from the one that is placed.
pub(crate) struct Reserved<'a> {
    pub by: &'a JobName,
    pub keeps: &'a BTreeMap<NodeName, Keeps>,
    /// That of the job that is placed.
    pub namespace: &'a str,
}

/// What others keep of so much that is free on a node. `own`: so much of it nobody keeps from this job.
fn kept<'a>(
    reserved: &[Reserved<'a>],
    node: &NodeName,
    gpus_free: u32,
    slots_free: u32,
    own: Own,
) -> Option<Kept<'a>> {
    let mut gpus = gpus_free.saturating_sub(own.gpus);
    let mut slots = slots_free.saturating_sub(own.slots);
    let (all_gpus, all_slots) = (gpus, slots);
    let mut first = None;
    for one in reserved {
        let Some(keeps) = one.keeps.get(node) else {
            continue;
        };
        let (of_gpus, of_slots) = (keeps.gpus.of(gpus), keeps.slots.of(slots));
        if of_gpus + of_slots > 0 {
            first = first.or(Some(one));
        }
        (gpus, slots) = (gpus - of_gpus, slots - of_slots);
    }
    first.map(|first| Kept {
        gpus: all_gpus - gpus,
        slots: all_slots - slots,
        by: first.by,
        namespace: first.namespace,
    })
}

/// The share with the GPUs that it gets: the lowest that are free, in the order of its members.
fn granted(share: &Share<'_>, mut free: Vec<FreeGpu<'_>>) -> Member {
    free.sort_by_key(|gpu| gpu.index);
    let mut free = free.into_iter().map(|gpu| gpu.uuid.to_owned());
    let seats = share.members.iter().map(|member| Seat {
        number: member.number,
        gpus: free.by_ref().take(member.gpus as usize).collect(),
    });
    let seats: Vec<Seat> = seats.collect();
    Member {
        node: share.node.clone(),
        boot_id: share.boot_id.to_owned(),
        gpus: seats.iter().flat_map(|seat| seat.gpus.clone()).collect(),
        // They are added when the generation is opened.
        addresses: Vec::new(),
        seats,
    }
}

/// Where no node is shared, a member's number is the rank of its node.
fn seal(mut shares: Vec<Member>) -> Vec<Member> {
    if shares.iter().all(|share| share.seats.len() == 1) {
        shares.iter_mut().for_each(|share| share.seats.clear());
    }
    shares
}

/// Whether the job may have this node: a job with a template gets its own worker pods and nothing
/// else, and nobody else gets those.
fn is_for(name: &NodeName, node: &Node, job: &JobRecord) -> bool {
    match (&job.spec.template, is_pod(name)) {
        (None, pod) => !pod,
        (Some(_), _) => match &node.pod {
            Some(pod) => pod.is_of(&job.name, &job.uid),
            None => node.record.pod_of.as_ref() == Some(&job.uid),
        },
    }
}

/// The members that a node had in this generation.
fn had(generation: &GenerationRecord, name: &NodeName) -> Vec<Had> {
    let had = |seat: &Seat| Had {
        number: seat.number,
        role: generation
            .layout
            .place(seat.number)
            .map_or(0, |place| place.role),
    };
    generation.seats_on(name).iter().map(had).collect()
}

/// The kind of node that this one would be in a generation: the kind of the GPU that placement
/// gives first.
fn kind(node: &Node, free: &[FreeGpu<'_>]) -> Kind {
    let Some(first) = free.iter().min_by_key(|gpu| gpu.index) else {
        return Kind::default();
    };
    Kind::of(&profile::Member {
        node: &node.record.name,
        report: &node.report,
        gpus: &[first.uuid.to_owned()],
    })
}
