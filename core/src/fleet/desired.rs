//! Each node's whole desired state, made from the stored decisions and from the runs that the node
//! reports.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet::{
        actor::Actor,
        job::{GenerationRecord, JobRecord},
        last_words,
        members::{Member, Seat},
        registry::{Node, Prewarm},
        store_clients::StoreClients,
        tombstone::Tombstone,
    },
    id::{JobUid, NodeName, Term},
    nccl::environment,
    run::{Assignment, Desired, DesiredRun, Program, RunId, Seated, Start, Target},
    spec::JobSpec,
};

pub(crate) fn of_node(
    name: &NodeName,
    node: &Node,
    term: Term,
    jobs: &BTreeMap<JobUid, JobRecord>,
    tombstones: &[Tombstone],
) -> Desired {
    let mut runs: BTreeMap<RunId, Target> = BTreeMap::new();
    for job in node.jobs.iter().filter_map(|uid| jobs.get(uid)) {
        for generation in job.unproven_generations().filter(|g| g.has(name)) {
            if let Some(target) = target(name, node, job, generation) {
                runs.insert(generation.run(&job.uid), target);
            }
        }
    }
    // The node may hold more: ends that are recorded, and runs of generations that were
    // replaced long ago.
    for (run, report) in &node.runs {
        if runs.contains_key(run) {
            continue;
        }
        let target = match jobs.get(&run.job) {
            // The run of a member is left alone until it is judged. A node that is no member holds
            // a run of a newer store that was lost, and the number of that run was given out again.
            Some(job)
                if job.current.as_ref().is_some_and(|current| {
                    current.number == run.generation && current.has(name)
                }) =>
            {
                continue;
            }
            _ if report.phase.is_over() => Target::Gone {
                purge: !jobs.contains_key(&run.job),
            },
            Some(job) if run.generation > job.last_generation => continue,
            Some(job) => Target::Stopped {
                grace: Duration::ZERO,
                reason: format!("generation {} is current", job.last_generation),
            },
            // This store never knew the job. If the store is an old copy, the agent has seen a
            // newer term, and its session is refused.
            None => Target::Stopped {
                grace: Duration::ZERO,
                reason: "the job was deleted".into(),
            },
        };
        runs.insert(run.clone(), target);
    }
    for tombstone in tombstones.iter().filter(|t| t.nodes.contains(name)) {
        runs.entry(tombstone.run.clone())
            .or_insert(Target::Gone { purge: true });
    }
    let runs = runs
        .into_iter()
        .map(|(run, target)| DesiredRun { run, target })
        .collect();
    let labels = environment::told(&node.report.object_labels);
    let prewarm = node
        .prewarm
        .iter()
        .filter_map(|(uid, asked)| prewarm_assignment(node, jobs.get(uid)?, asked))
        .collect();
    Desired {
        term,
        epoch: node.record.epoch,
        retire: retire(node, jobs),
        runs,
        labels,
        prewarm,
    }
}

/// The last words of a worker pod whose job is over, if it holds nothing any more.
fn retire(node: &Node, jobs: &BTreeMap<JobUid, JobRecord>) -> Option<String> {
    let job = jobs.get(node.record.pod_of.as_ref()?)?;
    let ends = job.is_over() && node.runs.is_empty() && node.jobs.is_empty();
    ends.then(|| last_words::of(job))
}

/// All that a launcher must know to be started ahead, as if this node were the last member of a
/// generation with one more node.
fn prewarm_assignment(node: &Node, job: &JobRecord, asked: &Prewarm) -> Option<Assignment> {
    let name = node.record.name.clone();
    let current = job.current.as_ref().filter(|current| !current.has(&name))?;
    let member = Member {
        node: name.clone(),
        boot_id: node.record.boot_id.clone(),
        gpus: asked.gpus.clone(),
        addresses: Vec::new(),
        seats: Vec::new(),
    };
    let layout = job.spec.layout(current.members.len() as u32 + 1);
    let mut members: Vec<Member> = current.members.to_vec();
    // With roles, the one that grows gets the node.
    let grown = layout.0.iter().zip(&current.layout.0);
    let grown = grown.take_while(|(then, now)| then.members == now.members);
    let at = match layout.is_empty() {
        true => members.len(),
        false => current.layout.begin(grown.count() + 1) as usize,
    };
    members.insert(at.min(members.len()), member);
    let members = members.into();
    let (number, profile) = (job.last_generation.next(), asked.profile.clone());
    assignment(
        &name,
        job,
        &GenerationRecord {
            number,
            members,
            layout,
            profile,
            ..current.clone()
        },
    )
}

fn target(
    name: &NodeName,
    node: &Node,
    job: &JobRecord,
    generation: &GenerationRecord,
) -> Option<Target> {
    let dead = generation.dead.contains(name);
    if let Some(stopping) = &generation.stopping {
        // The node must stop a run that it holds, even if the death was proven by other means
        // before: it may have received the order late.
        let held = node
            .runs
            .get(&generation.run(&job.uid))
            .is_some_and(|run| !run.phase.is_over());
        let acknowledged = dead && !held;
        return Some(match acknowledged {
            true => Target::Gone { purge: false },
            false => Target::Stopped {
                grace: stopping.grace,
                reason: stopping.reason.clone(),
            },
        });
    }
    // This is also reached when nothing is decided about the job, because another of its nodes
    // knows more than the store. Then the death is not noted yet.
    let member = &generation.members[generation.members.rank_of(name)? as usize];
    let another_boot = member.boot_id != node.record.boot_id;
    if generation.has_stopped(name) || another_boot {
        // The generation will be replaced in a moment. Nothing of it starts on a node that has
        // rebooted, and no evidence is removed.
        return None;
    }
    let assignment = Box::new(assignment(name, job, generation)?);
    Some(match &generation.store {
        Some(store) if generation.started => {
            let peers = generation.peers.clone();
            let store = store.clone();
            let keys = match assignment.lends() {
                true => Vec::new(),
                false => generation.keys.clone(),
            };
            let attempts = generation.attempts_on(name);
            Target::Running(
                assignment,
                Start {
                    store,
                    peers,
                    keys,
                    attempts,
                },
            )
        }
        _ => Target::Ready(assignment),
    })
}

fn assignment(
    name: &NodeName,
    job: &JobRecord,
    generation: &GenerationRecord,
) -> Option<Assignment> {
    let spec = &job.spec;
    let node_rank = generation.members.rank_of(name)?;
    let share = &generation.members[node_rank as usize];
    let seats = generation.members.seats(node_rank);
    // The first member stands for all of them.
    let number = seats.first()?.number;
    let role_of = |number: u32| generation.layout.place(number).map(|place| place.role);
    let runs = spec.runs(role_of(number));
    let (members, programs) = match seats.len() {
        1 => Default::default(),
        _ => seated(spec, generation, &seats),
    };
    Some(Assignment {
        run: RunId {
            job: job.uid.clone(),
            generation: generation.number,
        },
        name: job.name.clone(),
        rendezvous: generation.rendezvous.clone(),
        node_rank: number,
        node_count: generation.size(),
        proc_per_node: seats.iter().map(|seat| generation.procs(seat.number)).sum(),
        first_rank: generation.first_rank(number),
        world_size: generation.world_size(),
        store_host: generation.store_host.clone(),
        hosts_store: &generation.store_host == name,
        store_clients: match &generation.store_host == name {
            true => StoreClients::of(&generation.members).addresses(),
            false => Vec::new(),
        },
        command: runs.command.to_vec(),
        args: runs.args.to_vec(),
        env: runs.values(),
        env_files: runs.files(),
        working_dir: runs.working_dir.map(str::to_owned),
        image: spec.image.clone(),
        gpus: share.gpus.clone(),
        hides_gpus: spec.hides_gpus(),
        launch: spec.launch,
        standbys: spec.standbys,
        inspect: spec.inspect,
        stop_grace: spec.stop_grace_period,
        step_pattern: spec.step_pattern.clone(),
        checkpoint_pattern: spec.checkpoint_pattern.clone(),
        restart_count: generation.restart_count,
        profile: generation.profile.clone(),
        profile_hash: generation.profile.hash(),
        fence_after: spec.fence_after,
        framework: spec.framework,
        layout: generation.layout.clone(),
        members,
        programs,
        owner: job.owner.as_ref().and_then(Actor::owner),
    })
}

/// The members that share a node, and what they run. Members of one role run the same, and it is
/// written once.
fn seated(
    spec: &JobSpec,
    generation: &GenerationRecord,
    seats: &[Seat],
) -> (Vec<Seated>, Vec<Program>) {
    let mut roles: Vec<Option<usize>> = Vec::new();
    let member = |seat: &Seat| {
        let role = generation.layout.place(seat.number).map(|place| place.role);
        let known = roles.iter().position(|known| *known == role);
        Seated {
            number: seat.number,
            program: known.unwrap_or_else(|| {
                roles.push(role);
                roles.len() - 1
            }),
            procs: generation.procs(seat.number),
            first_rank: generation.first_rank(seat.number),
            gpus: seat.gpus.clone(),
        }
    };
    let members = seats.iter().map(member).collect();
    let program = |role: &Option<usize>| {
        let runs = spec.runs(*role);
        Program {
            command: runs.command.to_vec(),
            args: runs.args.to_vec(),
            env: runs.values(),
            env_files: runs.files(),
            working_dir: runs.working_dir.map(str::to_owned),
        }
    };
    (members, roles.iter().map(program).collect())
}
