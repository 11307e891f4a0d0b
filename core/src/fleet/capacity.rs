//! What each node has left for a job: the facts placement chooses from.
//!
//! A slot or GPU is taken as long as a generation may have a live process on it. Only proof of
//! death frees it, never a timer.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    fleet::{
        fault_ledger,
        job::{GenerationRecord, JobRecord, Seat},
        job_turn::JobTurn,
        placement::{self, Candidate, FreeGpu, Had, Held, Need, Placement, RoleNeed},
        pod_gpus,
        registry::{Node, Registry},
        unhealthy,
        worker_pod::is_pod,
    },
    id::{JobUid, NodeName},
    nccl::{mixture::Kind, profile::Member},
    node_report::holders::{Holder, Holders},
    protocol,
    spec::{NodeMix, Role},
};

/// What one node has left for one job.
///
/// It is a snapshot: reserving in it changes nothing on the node.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    /// How many more worker groups without GPUs fit.
    pub slots: u32,
    /// In the order of the node's report.
    pub gpus: Vec<FreeGpu<'a>>,
}

impl Room<'_> {
    /// Takes a share out of it for another job that is about to come. `gpus` are UUIDs; none of
    /// them: a slot.
    pub(crate) fn reserve(&mut self, gpus: &[String]) {
        if gpus.is_empty() {
            self.slots = self.slots.saturating_sub(1);
        } else {
            let reserved = |free: &FreeGpu<'_>| gpus.iter().any(|gpu| gpu == free.uuid);
            self.gpus.retain(|free| !reserved(free));
        }
    }

    /// Whether a share fits into what is left.
    pub(crate) fn fits(&self, gpus: &[String]) -> bool {
        let free = |gpu: &String| self.gpus.iter().any(|free| free.uuid == gpu);
        match gpus.is_empty() {
            true => self.slots > 0,
            false => gpus.iter().all(free),
        }
    }
}

/// Why nothing new may be placed on the node, by its own findings, its host's, or the word of others.
pub(crate) fn no_new_work(nodes: &Registry, node: &Node) -> Option<String> {
    unhealthy::no_new_work(node)
        .or_else(|| unhealthy::no_new_work(nodes.host_of(node)?))
        .or_else(|| pod_gpus::no_new_work(nodes, node))
}

impl JobTurn<'_> {
    /// Asks placement for this job's next generation.
    pub(crate) fn place(&self) -> Placement {
        let avoided = |name: &NodeName| {
            let mut avoided = self.live.avoided.iter();
            avoided
                .find(|avoided| &avoided.node == name && avoided.until > self.now)
                .map(|avoided| avoided.why.clone())
        };
        let job = &*self.job;
        let (before, packs) = (job.latest(), job.spec.packs());
        let trained = job.trained_last();
        // A worker pod's GPUs are the kubelet's affair: its agent does not see them, and the pod's
        // resource limits hold them for the job.
        let gpus_of = |gpus: u32| if job.spec.template.is_some() { 0 } else { gpus };
        let gpus_per_node = gpus_of(job.spec.gpus_max());
        let alike = job.spec.node_mix == NodeMix::Refuse && gpus_per_node > 0;
        // A node has a kind if it can serve the role that needs the fewest GPUs, but needs some.
        let some = job
            .spec
            .roles
            .iter()
            .map(|role| gpus_of(role.gpus_per_node));
        let gpus_for_kind = some.filter(|gpus| *gpus > 0).min().unwrap_or(gpus_per_node);
        let candidates: Vec<Candidate<'_>> = self
            .nodes
            .iter()
            .map(|node| (&node.record.name, node))
            .filter(|(name, node)| is_for(name, node, job))
            .map(|(name, node)| (name, node, self.room(node)))
            .map(|(name, node, room)| Candidate {
                node: name.clone(),
                boot_id: &node.record.boot_id,
                liveness: node.liveness,
                connected: node.session.is_some(),
                cordoned: self.nodes.is_cordoned(node),
                halted: node.record.halt.is_some(),
                avoided: avoided(name)
                    .or_else(|| no_new_work(self.nodes, node))
                    .or_else(|| self.pods.why_going(node))
                    .or_else(|| takes_none(node)),
                shunned: fault_ledger::shunned_by(
                    &self.nodes.blamed(node).record,
                    self.uid,
                    self.policy,
                    self.now,
                ),
                slots_free: room.slots,
                node_rank: before.and_then(|g| g.members.rank_of(name)),
                role: before.and_then(|g| Some(g.layout.place(g.members.rank_of(name)?)?.role)),
                stack: job.stack_on(node),
                trained: trained.is_some_and(|g| g.has(name)),
                had: match packs {
                    true => before.map(|g| had(g, name)).unwrap_or_default(),
                    false => Vec::new(),
                },
                one_member: node.protocol < protocol::SHARED,
                kind: if alike && room.gpus.len() >= gpus_for_kind as usize {
                    kind(node, &room.gpus)
                } else {
                    Kind::default()
                },
                gpus_held: match (room.gpus.len() as u32) < gpus_per_node {
                    true => self.gpus_held(node),
                    false => Held::default(),
                },
                gpus_free: room.gpus,
            })
            .collect();
        let need = |role: &Role| RoleNeed {
            min: role.min_replicas,
            max: role.max_replicas,
            gpus_per_node: gpus_of(role.gpus_per_node),
            procs: role.proc_per_node,
        };
        let mut roles: Vec<RoleNeed> = job.spec.roles.iter().map(need).collect();
        if packs {
            if roles.is_empty() {
                roles.push(RoleNeed {
                    min: job.spec.min_replicas,
                    max: job.spec.max_replicas,
                    gpus_per_node,
                    procs: job.spec.proc_per_node,
                });
            }
            return placement::pack(&candidates, &roles, job.replicas);
        }
        if !roles.is_empty() {
            return placement::place_roles(&candidates, &roles, job.replicas);
        }
        let need = Need {
            min: job.spec.min_replicas,
            wanted: job.replicas,
            gpus_per_node,
        };
        placement::place(&candidates, need)
    }

    /// The room that this node has left for this job.
    pub(crate) fn room<'n>(&self, node: &'n Node) -> Room<'n> {
        let counts = |holder: &Holder| !self.pods.is_over(holder);
        Room {
            slots: slots_free(node, self.others, Some(self.uid)),
            gpus: gpus_free(node, self.others, self.uid, counts),
        }
    }

    /// Who else holds GPUs of the node, by the word of its kubelet.
    fn gpus_held(&self, node: &Node) -> Held {
        let report = &node.report;
        if report.holders == Holders::Unknown {
            return Held::Unknown;
        }
        let counts = |holder: &Holder| !self.pods.is_over(holder);
        let placeable = report.placeable_ids().count();
        let gpus = placeable - report.unheld_ids(counts).len();
        let holders = report.holders.all().iter().filter(|held| counts(held));
        let pods: BTreeSet<(&str, &str)> = holders
            .map(|holder| (holder.namespace.as_str(), holder.pod.as_str()))
            .collect();
        let (own, others): (Vec<_>, Vec<_>) = pods
            .into_iter()
            .partition(|(namespace, _)| *namespace == self.job.name.namespace);
        Held::By {
            gpus: gpus as u32,
            pods: own.iter().map(|(ns, pod)| format!("{ns}/{pod}")).collect(),
            elsewhere: others.len() as u32,
        }
    }
}

/// Why an agent that only looks at its node gets no work.
fn takes_none(node: &Node) -> Option<String> {
    let senses_only = node.report.senses_only;
    senses_only.then(|| "takes no work: its agent only looks at it".to_owned())
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

/// How many more members without GPUs this node could take. Those of `but` do not count: that job
/// makes room for itself.
pub(crate) fn slots_free(
    node: &Node,
    jobs: &BTreeMap<JobUid, JobRecord>,
    but: Option<&JobUid>,
) -> u32 {
    let mut taken: BTreeSet<&JobUid> = node
        .runs
        .iter()
        .filter(|(_, run)| !run.phase.is_over())
        .map(|(id, _)| &id.job)
        .collect();
    let held = |uid: &&JobUid| {
        jobs.get(uid)
            .is_some_and(|job| holds(job, &node.record.name))
    };
    taken.extend(node.jobs.iter().filter(held));
    let others = taken.into_iter().filter(|uid| Some(*uid) != but);
    let slots = others.map(|uid| match jobs.get(uid) {
        Some(job) => slots_taken(job, &node.record.name),
        // A job of a store that was lost.
        None => 1,
    });
    node.report.slots.saturating_sub(slots.sum())
}

/// How many slots of this node the job takes: one for each member without GPUs. Of generations that
/// replace each other, only one runs at a time.
fn slots_taken(job: &JobRecord, node: &NodeName) -> u32 {
    if job.spec.roles.is_empty() && job.spec.gpus_per_node > 0 {
        return 0;
    }
    let of_generation = |generation: &GenerationRecord| {
        let seats = generation.seats_on(node);
        seats.iter().filter(|seat| seat.gpus.is_empty()).count() as u32
    };
    let there = job.unproven_generations().filter(|g| g.has(node));
    // A run that is over in the record and not in the node's report is one share.
    there.map(of_generation).max().unwrap_or(1)
}

fn gpus_free<'a>(
    node: &'a Node,
    jobs: &BTreeMap<JobUid, JobRecord>,
    but: &JobUid,
    counts: impl Fn(&Holder) -> bool,
) -> Vec<FreeGpu<'a>> {
    if node.report.gpus.is_empty() {
        return Vec::new();
    }
    let name = &node.record.name;
    let others = node.jobs.iter().filter(|uid| *uid != but);
    let taken: Vec<&str> = others
        .filter_map(|uid| jobs.get(uid))
        .flat_map(JobRecord::unproven_generations)
        .filter(|g| !g.dead.contains(name))
        .filter_map(|g| g.members.get(g.members.rank_of(name)? as usize))
        .flat_map(|member| member.gpus.iter().map(String::as_str))
        .collect();
    let free = node.report.unheld_ids(counts).into_iter();
    free.filter(|(_, uuid)| !taken.contains(uuid))
        .map(|(index, uuid)| FreeGpu { index, uuid })
        .collect()
}

/// Whether a generation of this job has a member on the node that is not proven dead.
fn holds(job: &JobRecord, name: &NodeName) -> bool {
    job.unproven_generations()
        .any(|g| g.has(name) && !g.dead.contains(name))
}

/// The kind of node that this one would be in a generation: the kind of the GPU that placement
/// gives first.
fn kind(node: &Node, free: &[FreeGpu<'_>]) -> Kind {
    let Some(first) = free.iter().min_by_key(|gpu| gpu.index) else {
        return Kind::default();
    };
    Kind::of(&Member {
        node: &node.record.name,
        report: &node.report,
        gpus: &[first.uuid.to_owned()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_for_another_job_is_not_left() {
        let gpu = |index, uuid| FreeGpu { index, uuid };
        let mut room = Room {
            slots: 2,
            gpus: vec![gpu(0, "GPU-0"), gpu(1, "GPU-1"), gpu(2, "GPU-2")],
        };
        let share =
            |gpus: &[&str]| -> Vec<String> { gpus.iter().map(|gpu| (*gpu).into()).collect() };
        assert!(room.fits(&share(&["GPU-0", "GPU-2"])));
        assert!(!room.fits(&share(&["GPU-0", "GPU-7"])), "it is not free");

        room.reserve(&share(&["GPU-2"]));
        assert!(!room.fits(&share(&["GPU-0", "GPU-2"])));
        assert!(room.fits(&share(&["GPU-0", "GPU-1"])));
        assert_eq!(room.slots, 2, "a share with GPUs takes no slot");

        room.reserve(&[]);
        assert!(room.fits(&[]), "one slot is left");
        room.reserve(&[]);
        assert!(!room.fits(&[]));
        room.reserve(&[]);
        assert_eq!(room.slots, 0);
    }
}
