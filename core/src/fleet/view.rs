//! What users see of jobs and nodes: values made from the fleet's state, complete with all numbers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    exit::Exit,
    fleet::{
        generation,
        job::JobRecord,
        member_end::{MemberEnd, RankEnd},
        members::Member,
        node_record::NodeRecord,
        pod_gpus,
        registry::{Node, Registry},
        shortage::Shortage,
        store_clients::{StoreClients, Why},
    },
    health::Finding,
    id::{JobName, JobUid, NodeName},
    nccl::stack::Stack,
    node_object::{Marking, NodeObject},
    node_report::{Gpu, NodeReport},
    run::{Endpoint, Imports, LaneReport, RankReport, RunId, RunPhase, RunReport, StepsShown},
    time::Timestamp,
};

pub use crate::fleet::registry::Liveness;

#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    pub record: JobRecord,
    pub members: Vec<MemberView>,
    pub ranks: Vec<RankView>,
    pub last_step: Option<u64>,
    pub steps: StepsView,
    /// When a checkpoint was last saved in this generation.
    pub saved_at: Option<Timestamp>,
    /// Members on nodes where all ranks have been started.
    pub nodes_running: u32,
    pub store_address: Option<Endpoint>,
    /// Why it has too few nodes.
    pub shortage: Option<Shortage>,
    /// Worker pods, by uid, on which nothing new is placed, because they are about to be deleted.
    pub pods_unneeded: BTreeSet<String>,
    /// Since when there is evidence against its generation that is not decided yet.
    pub doubted_since: Option<Timestamp>,
    /// Why everyone who reaches the TCPStore may connect to it. `None`: its members only.
    pub store_open: Option<Why>,
}

/// The steps of the shown generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepsView {
    /// What the rank with the highest step shows. Without any step, the lines of all ranks.
    pub shown: StepsShown,
    /// The mean time of a step, from the first to the last of this generation.
    pub step_time: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    pub node: NodeName,
    /// The member's number in the generation.
    pub node_rank: u32,
    /// Its name, as [`crate::spec::JobSpec::member`] has it.
    pub role: Option<String>,
    /// `None` as long as its node has not been heard.
    pub phase: Option<RunPhase>,
    pub lane: LaneReport,
    pub stack: Stack,
    /// What its ranks imported themselves at their start, if that was seen.
    pub imports: Option<Imports>,
    /// The node on which it is, if it is a worker pod and its node is known.
    pub host: Option<NodeName>,
    /// The GPUs that it holds, by UUID: as a worker pod by the word of its host.
    pub gpus: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankView {
    pub rank: u32,
    pub local_rank: u32,
    pub node: NodeName,
    pub pid: u32,
    pub exit: Option<Exit>,
    /// Other ranks have entered the process group and wait for this one.
    pub joining: bool,
    pub first_step: Option<u64>,
    pub last_step: Option<u64>,
    pub first_error: Option<String>,
    /// Where the exception was raised, the innermost frame last.
    pub frames: Vec<String>,
    pub steps: StepsShown,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    pub record: NodeRecord,
    pub report: Arc<NodeReport>,
    pub liveness: Liveness,
    pub slots_free: u32,
    pub last_heard: Option<Timestamp>,
    pub runs: Vec<NodeRun>,
    /// What is unusual about the node's place in the fleet, one sentence each.
    pub conditions: Vec<String>,
    /// Its Kubernetes Node object, if it has one that was read.
    pub object: Option<Arc<NodeObject>>,
    /// Why nothing new may be placed on it, as its own findings or the word of others on its object
    /// have it.
    pub no_new_work: Option<String>,
    /// What that object should carry of Muster, and does not yet.
    pub unmarked: Option<Marking>,
    /// Where it is, if it is a worker pod and its host is known.
    pub place: Option<PodPlace>,
    /// Why no new worker pod should go there, although the node as a whole is fit.
    pub bars_pods: Option<String>,
    /// It was lost together with many others, and the brake for mass losses is on, or this coordinator
    /// listens for it.
    pub mass_loss: bool,
}

/// A run that a node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRun {
    pub run: RunId,
    /// `None`: the job is not known.
    pub job: Option<JobName>,
    pub phase: RunPhase,
    /// The node's GPUs that it holds, by UUID.
    pub gpus: Vec<String>,
}

/// The host of a worker pod, and what it says of the pod's GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct PodPlace {
    pub host: NodeName,
    pub gpus: Vec<Gpu>,
    pub findings: Vec<Finding>,
}

impl PodPlace {
    pub(crate) fn of(nodes: &Registry, node: &Node) -> Option<Self> {
        let held = pod_gpus::of(nodes, node)?;
        Some(Self {
            host: held.host.record.name.clone(),
            gpus: held.shares().collect(),
            findings: held.findings().cloned().collect(),
        })
    }
}

fn store_open(members: &[Member]) -> Option<Why> {
    match StoreClients::of(members) {
        StoreClients::Members(_) => None,
        StoreClients::Anyone(why) => Some(why),
    }
}

pub(crate) fn job(record: &JobRecord, nodes: &Registry) -> JobView {
    let mut view = JobView {
        record: record.clone(),
        members: Vec::new(),
        ranks: Vec::new(),
        last_step: None,
        steps: StepsView::default(),
        saved_at: None,
        nodes_running: 0,
        shortage: None,
        doubted_since: None,
        pods_unneeded: BTreeSet::new(),
        store_address: record
            .shown()
            .and_then(|generation| generation.store.clone()),
        store_open: record
            .current
            .as_ref()
            .and_then(|generation| store_open(&generation.members)),
    };
    let Some(generation) = record.shown() else {
        return view;
    };
    let mut joined: Option<&[u32]> = None;
    for (node_rank, (node, report)) in
        (0..).zip(generation::reports(nodes, &record.uid, generation))
    {
        // A node forgets a run when its death is noted. The job keeps how the run ended.
        let known = report
            .map(MemberEnd::from)
            .or_else(|| generation.ends.get(node).cloned());
        let saved = report.and_then(|run| run.checkpoint?.saved_at);
        view.saved_at = view.saved_at.max(saved);
        let runs = |run: &RunReport| {
            run.phase == RunPhase::Running && run.ranks_started(generation.procs_on(node))
        };
        let seats = generation.members.seats(node_rank);
        if report.is_some_and(runs) {
            view.nodes_running += seats.len() as u32;
        }
        let held = nodes.get(node).and_then(|node| pod_gpus::of(nodes, node));
        let host = held.as_ref().map(|held| held.host.record.name.clone());
        let ids = held.into_iter().flat_map(|held| held.ids);
        let pod_gpus: Vec<String> = ids.map(str::to_owned).collect();
        let (phase, lane, stack, ranks) = match known {
            Some(known) => (Some(known.phase), known.lane, known.stack, known.ranks),
            None => Default::default(),
        };
        view.members.extend(seats.iter().map(|seat| MemberView {
            node: node.clone(),
            node_rank: seat.number,
            role: record.spec.member(&generation.layout, seat.number),
            phase: phase.clone(),
            lane: lane.clone(),
            stack: stack.clone(),
            imports: report.and_then(|run| run.phases.imports.clone()),
            host: host.clone(),
            gpus: match pod_gpus.is_empty() {
                true => seat.gpus.clone(),
                false => pod_gpus.clone(),
            },
        }));
        view.ranks
            .extend(ranks.into_iter().map(|rank| rank_view(node, rank)));
        // Only the node that serves the TCPStore knows this, and only for backends that name their
        // ranks.
        let incomplete =
            report.filter(|run| run.all_joined_at.is_none() && !run.joined_ranks.is_empty());
        joined = joined.or(incomplete.map(|run| &run.joined_ranks[..]));
    }
    for rank in &mut view.ranks {
        rank.joining = rank.exit.is_none()
            && joined.is_some_and(|joined| joined.binary_search(&rank.rank).is_err());
    }
    view.ranks.sort_by_key(|rank| rank.rank);
    view.members.sort_by_key(|member| member.node_rank);
    view.steps = steps(record, nodes, &view.ranks);
    view.last_step = view
        .ranks
        .iter()
        .filter_map(|rank| rank.last_step)
        .max()
        .or(record.last_step);
    view
}

fn steps(record: &JobRecord, nodes: &Registry, ranks: &[RankView]) -> StepsView {
    let furthest = ranks.iter().filter(|rank| rank.last_step.is_some());
    let Some(furthest) = furthest.max_by_key(|rank| rank.last_step) else {
        let lines = ranks.iter().filter_map(|rank| rank.steps.stepless_lines);
        return StepsView {
            shown: StepsShown {
                stepless_lines: lines.reduce(u64::saturating_add),
                ..StepsShown::default()
            },
            step_time: None,
        };
    };
    let reports = record.shown().into_iter().flat_map(|generation| {
        generation::reports(nodes, &record.uid, generation).filter_map(|(_, report)| report)
    });
    let mut live = reports.flat_map(|report| &report.ranks);
    StepsView {
        shown: furthest.steps.clone(),
        step_time: live
            .find(|rank| rank.rank == furthest.rank)
            .and_then(step_time),
    }
}

fn step_time(rank: &RankReport) -> Option<Duration> {
    let made = rank.last_step?.checked_sub(rank.first_step?)?;
    let time = rank.last_step_at?.since(rank.first_step_at?);
    time.checked_div(u32::try_from(made).ok()?)
        .filter(|time| !time.is_zero())
}

fn rank_view(node: &NodeName, rank: RankEnd) -> RankView {
    RankView {
        rank: rank.rank,
        local_rank: rank.local_rank,
        node: node.clone(),
        pid: rank.pid,
        exit: rank.exit,
        joining: false,
        first_step: rank.first_step,
        last_step: rank.last_step,
        first_error: rank.first_error,
        frames: rank.frames,
        steps: rank.steps,
    }
}

pub(crate) fn node(
    node: &Node,
    jobs: &BTreeMap<JobUid, JobRecord>,
    slots_free: u32,
    conditions: Vec<String>,
    no_new_work: Option<String>,
    unmarked: Option<Marking>,
) -> NodeView {
    let of = |id: &RunId, run: &RunReport| {
        let job = jobs.get(&id.job);
        let generation = job.and_then(|job| job.generation(id.generation));
        let share = generation.and_then(|generation| {
            let rank = generation.members.rank_of(&node.record.name)?;
            generation.members.get(rank as usize)
        });
        let holds = share.filter(|_| !run.phase.is_over());
        NodeRun {
            run: id.clone(),
            job: job.map(|job| job.name.clone()),
            phase: run.phase.clone(),
            gpus: holds.map_or(Vec::new(), |share| share.gpus.clone()),
        }
    };
    NodeView {
        record: node.record.clone(),
        report: node.report.clone(),
        liveness: node.liveness,
        slots_free,
        last_heard: (node.liveness != Liveness::Unknown).then_some(node.heard),
        runs: node.runs.iter().map(|(id, run)| of(id, run)).collect(),
        conditions,
        object: node.object.clone(),
        no_new_work,
        unmarked,
        place: None,
        bars_pods: None,
        mass_loss: false,
    }
}

/// One queue at this moment. What is counted includes the queues below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    pub name: String,
    pub parent: Option<String>,
    /// GPUs.
    pub quota: u32,
    pub borrowing_limit: Option<u32>,
    pub lending_limit: Option<u32>,
    pub max_priority: Option<i32>,
    /// Whose jobs are in it, in alphabetical order. [`OTHERS`](crate::fleet::queues::OTHERS) stands for all that no queue names.
    pub namespaces: Vec<String>,
    /// GPUs that its jobs hold, also those that are being stopped.
    pub held: u32,
    /// GPUs that its jobs could have besides, by the quotas alone. `None`: queues below it have the jobs.
    pub available: Option<u32>,
    /// Jobs that hold GPUs.
    pub jobs: u32,
    /// Jobs with GPUs that wait for nodes.
    pub waiting: u32,
}
