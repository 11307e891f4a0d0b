//! A node's whole desired state.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use muster_core::{
    id::{JobName, NodeEpoch, NodeName, Term, label_error, node_name_error},
    layout::{Layout, RoleShare},
    nccl::profile::{Profile, Shared, Transport},
    period,
    run::{
        Assignment, Desired, DesiredRun, Key, LAST_WORDS_MAX, Owner, RunId, STORE_CLIENTS_MAX,
        Start, Target,
    },
    spec::{Framework, Inspect, Launch, PEERS_MAX, ROLES_MAX, Standbys},
};

use super::{
    bounds::{
        NAME_MAX, SENTENCE_MAX, between, count, ip_addresses, malformed, optional_text,
        required_text, text, texts,
    },
    members::{
        ARG_BYTES_MAX, ARGS_MAX, ENV_MAX, PROCS_MAX, Whole, check_env, members_from_wire,
        program_to_wire, programs_from_wire, seated_to_wire,
    },
    node_report::labels,
    run_report::{RUNS_MAX, endpoint_from_wire, endpoint_to_wire, key_from_wire, run_id_from_wire},
};
use crate::{convert::Malformed, v1, v1::desired_run};

/// The bounds of a job (`core::spec::limits`) or higher ones, so that later versions may allow
/// more. The coordinator has checked the job; these only keep a broken coordinator from exhausting
/// a node.
const NODES_MAX: u32 = 4_096;

pub fn desired_to_wire(desired: &Desired) -> v1::Desired {
    v1::Desired {
        term: desired.term.0,
        epoch: desired.epoch.0,
        runs: desired.runs.iter().map(run_to_wire).collect(),
        labels: desired.labels.clone().into(),
        warm: desired.prewarm.iter().map(warm_to_wire).collect(),
        retire: desired.retire.is_some(),
        last_words: desired.retire.clone().unwrap_or_default(),
    }
}

fn warm_to_wire(assignment: &Assignment) -> v1::Warm {
    v1::Warm {
        job_uid: assignment.run.job.to_string(),
        generation: assignment.run.generation.0,
        assignment: Some(assignment_to_wire(assignment)),
    }
}

fn run_to_wire(desired: &DesiredRun) -> v1::DesiredRun {
    let target = match &desired.target {
        Target::Ready(assignment) => desired_run::Target::Ready(assignment_to_wire(assignment)),
        Target::Running(assignment, start) => desired_run::Target::Running(v1::Start {
            assignment: Some(assignment_to_wire(assignment)),
            store: Some(endpoint_to_wire(&start.store)),
            peers: start.peers.iter().map(endpoint_to_wire).collect(),
            keys: start.keys.iter().map(|key| key.0.clone()).collect(),
            attempts: start.attempts.clone().into_iter().collect(),
        }),
        Target::Stopped { grace, reason } => desired_run::Target::Stopped(v1::Stop {
            grace_ms: millis(*grace),
            reason: reason.clone(),
        }),
        Target::Gone { purge } => desired_run::Target::Gone(v1::Gone { purge: *purge }),
    };
    v1::DesiredRun {
        job_uid: desired.run.job.to_string(),
        generation: desired.run.generation.0,
        target: Some(target),
    }
}

fn assignment_to_wire(assignment: &Assignment) -> v1::Assignment {
    v1::Assignment {
        namespace: assignment.name.namespace.clone(),
        name: assignment.name.name.clone(),
        rendezvous: assignment.rendezvous.clone(),
        node_rank: assignment.node_rank,
        node_count: assignment.node_count,
        proc_per_node: assignment.proc_per_node,
        first_rank: assignment.first_rank,
        world_size: assignment.world_size,
        store_host: assignment.store_host.to_string(),
        hosts_store: assignment.hosts_store,
        store_clients: assignment
            .store_clients
            .iter()
            .map(IpAddr::to_string)
            .collect(),
        command: assignment.command.clone(),
        args: assignment.args.clone(),
        env: assignment.env.clone(),
        env_files: assignment.env_files.clone(),
        working_dir: assignment.working_dir.clone(),
        image: assignment.image.clone(),
        gpus: assignment.gpus.clone(),
        hides_gpus: assignment.hides_gpus,
        launch: match assignment.launch {
            Launch::Exec => Launch::Direct.name().to_owned(),
            launch => launch.name().to_owned(),
        },
        without_launcher: assignment.launch == Launch::Exec,
        inspect_off: assignment.inspect == Inspect::Off,
        inspect_collectives: assignment.inspect == Inspect::Collectives,
        standbys: match assignment.standbys {
            Standbys::Auto => String::new(),
            other => other.name().to_owned(),
        },
        stop_grace_ms: millis(assignment.stop_grace),
        step_pattern: assignment.step_pattern.clone(),
        checkpoint_pattern: assignment.checkpoint_pattern.clone(),
        restart_count: assignment.restart_count,
        fence_after_ms: assignment.fence_after.map_or(0, millis),
        profile: Some(profile_to_wire(
            &assignment.profile,
            &assignment.profile_hash,
        )),
        framework: match assignment.framework {
            Framework::Torch => String::new(),
            other => other.name().to_owned(),
        },
        roles: assignment
            .layout
            .0
            .iter()
            .map(|share| v1::RoleShare {
                name: share.name.clone(),
                members: share.members,
                procs: share.procs,
                service: share.service,
                slots: share.slots,
                restarts_alone: share.restarts_alone,
            })
            .collect(),
        members: assignment.members.iter().map(seated_to_wire).collect(),
        programs: assignment.programs.iter().map(program_to_wire).collect(),
        owner: match &assignment.owner {
            Some(Owner::User(name)) => name.clone(),
            Some(Owner::Local(_)) | None => String::new(),
        },
        owner_uid: match &assignment.owner {
            Some(Owner::Local(uid)) => Some(*uid),
            Some(Owner::User(_)) | None => None,
        },
    }
}

fn profile_to_wire(profile: &Profile, hash: &str) -> v1::Profile {
    let shared = profile.shared.iter().map(|shared| v1::SharedVariable {
        name: shared.name.clone(),
        value: shared.value.clone(),
        why: shared.why.clone(),
    });
    v1::Profile {
        transport: profile.transport.to_string(),
        rails: profile.rails,
        shared: shared.collect(),
        hash: hash.to_owned(),
    }
}

pub(super) fn millis(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX)
}

/// Reads a desired state. The error names the first field that is not well-formed.
pub fn desired_from_wire(wire: v1::Desired) -> Result<Desired, Malformed> {
    count("desired.runs", wire.runs.len(), RUNS_MAX)?;
    let mut seen = BTreeSet::new();
    let mut runs = Vec::with_capacity(wire.runs.len());
    for (i, run) in wire.runs.into_iter().enumerate() {
        let field = format!("desired.runs[{i}]");
        let desired = run_from_wire(&field, run)?;
        if !seen.insert(desired.run.clone()) {
            return Err(malformed(field, "names a run that is listed before"));
        }
        runs.push(desired);
    }
    let labels = labels("desired.labels", wire.labels)?.into();
    count("desired.warm", wire.warm.len(), RUNS_MAX)?;
    let mut prewarm = Vec::with_capacity(wire.warm.len());
    for (i, job) in wire.warm.into_iter().enumerate() {
        let field = format!("desired.warm[{i}]");
        let run = run_id_from_wire(&field, job.job_uid, job.generation)?;
        if prewarm
            .iter()
            .any(|known: &Assignment| known.run.job == run.job)
        {
            return Err(malformed(field, "names a job that is listed before"));
        }
        let assignment = job
            .assignment
            .ok_or_else(|| malformed(format!("{field}.assignment"), "is missing"))?;
        prewarm.push(assignment_from_wire(
            &format!("{field}.assignment"),
            assignment,
            &run,
        )?);
    }
    Ok(Desired {
        term: Term(wire.term),
        epoch: NodeEpoch(wire.epoch),
        runs,
        labels,
        prewarm,
        retire: match wire.retire {
            true => Some(last_words(wire.last_words)?),
            false => None,
        },
    })
}

/// A coordinator of the version before does not tell them.
fn last_words(told: String) -> Result<String, Malformed> {
    match told.is_empty() {
        true => Ok("the job is over".to_owned()),
        false => text("last_words", told, LAST_WORDS_MAX),
    }
}

fn run_from_wire(field: &str, wire: v1::DesiredRun) -> Result<DesiredRun, Malformed> {
    let run = run_id_from_wire(field, wire.job_uid, wire.generation)?;
    let target =
        match wire
            .target
            .ok_or_else(|| malformed(format!("{field}.target"), "is missing"))?
        {
            desired_run::Target::Ready(assignment) => Target::Ready(Box::new(
                assignment_from_wire(&format!("{field}.ready"), assignment, &run)?,
            )),
            desired_run::Target::Running(start) => {
                let field = format!("{field}.running");
                let missing = |part: &str| malformed(format!("{field}.{part}"), "is missing");
                let assignment = start.assignment.ok_or_else(|| missing("assignment"))?;
                let store = start.store.ok_or_else(|| missing("store"))?;
                let assignment =
                    assignment_from_wire(&format!("{field}.assignment"), assignment, &run)?;
                let store = endpoint_from_wire(&format!("{field}.store"), store)?;
                count(
                    &format!("{field}.peers"),
                    start.peers.len(),
                    PEERS_MAX as usize,
                )?;
                let peers = start.peers.into_iter().enumerate();
                let peers = peers
                    .map(|(i, peer)| endpoint_from_wire(&format!("{field}.peers[{i}]"), peer))
                    .collect::<Result<_, _>>()?;
                let at = format!("{field}.keys");
                count(&at, start.keys.len(), PEERS_MAX as usize)?;
                let keys = start.keys.into_iter();
                let keys = keys
                    .map(|key| Ok(key_from_wire(&at, key)?.unwrap_or(Key(String::new()))))
                    .collect::<Result<_, _>>()?;
                let at = format!("{field}.attempts");
                count(&at, start.attempts.len(), PEERS_MAX as usize)?;
                let attempts = start.attempts.into_iter().collect();
                Target::Running(
                    Box::new(assignment),
                    Start {
                        store,
                        peers,
                        keys,
                        attempts,
                    },
                )
            }
            desired_run::Target::Stopped(stop) => Target::Stopped {
                grace: period_from_wire(&format!("{field}.stopped.grace_ms"), stop.grace_ms)?,
                reason: text(
                    &format!("{field}.stopped.reason"),
                    stop.reason,
                    SENTENCE_MAX,
                )?,
            },
            desired_run::Target::Gone(gone) => Target::Gone { purge: gone.purge },
        };
    Ok(DesiredRun { run, target })
}

/// Roles whose numbers fit the bounds of a generation.
fn layout_from_wire(field: &str, wire: Vec<v1::RoleShare>) -> Result<Layout, Malformed> {
    count(field, wire.len(), ROLES_MAX)?;
    let share = |(i, share): (usize, v1::RoleShare)| {
        let at = |part: &str| format!("{field}[{i}].{part}");
        if let Some(message) = label_error(&share.name) {
            return Err(malformed(at("name"), message));
        }
        Ok(RoleShare {
            name: share.name,
            members: between(&at("members"), share.members, 0, NODES_MAX)?,
            procs: between(&at("procs"), share.procs, 1, PROCS_MAX)?,
            service: share.service,
            slots: between(&at("slots"), share.slots, 0, PROCS_MAX)?,
            restarts_alone: share.restarts_alone,
        })
    };
    let shares = wire.into_iter().enumerate().map(share);
    Ok(Layout(shares.collect::<Result<_, _>>()?))
}

fn assignment_from_wire(
    field: &str,
    wire: v1::Assignment,
    run: &RunId,
) -> Result<Assignment, Malformed> {
    let at = |part: &str| format!("{field}.{part}");
    let errors = [
        ("namespace", label_error(&wire.namespace)),
        ("name", label_error(&wire.name)),
        ("store_host", node_name_error(&wire.store_host)),
    ];
    for (part, error) in errors {
        if let Some(message) = error {
            return Err(malformed(at(part), message));
        }
    }
    let framework = match wire.framework.as_str() {
        "" => Framework::Torch,
        word => match Framework::ALL.iter().find(|(name, _)| *name == word) {
            Some((_, framework)) => *framework,
            None => {
                return Err(malformed(
                    at("framework"),
                    format!("{word:.64?} is not a framework this agent knows"),
                ));
            }
        },
    };
    let layout = layout_from_wire(&at("roles"), wire.roles)?;
    let node_count = between(&at("node_count"), wire.node_count, 1, NODES_MAX)?;
    let proc_per_node = between(&at("proc_per_node"), wire.proc_per_node, 1, PROCS_MAX)?;
    let world_size = between(
        &at("world_size"),
        wire.world_size,
        node_count.max(proc_per_node),
        NODES_MAX * PROCS_MAX,
    )?;
    if !layout.is_empty() && (layout.members(), layout.world_size()) != (node_count, world_size) {
        return Err(malformed(
            at("roles"),
            format!(
                "have {} nodes and {} ranks, the generation {node_count} and {world_size}",
                layout.members(),
                layout.world_size()
            ),
        ));
    }
    check_env(field, &wire.env, &wire.env_files)?;
    let programs = programs_from_wire(field, wire.programs)?;
    let node_rank = between(&at("node_rank"), wire.node_rank, 0, node_count - 1)?;
    let whole = Whole {
        first: node_rank,
        members: node_count,
        procs: proc_per_node,
        world_size,
    };
    let members = members_from_wire(field, wire.members, programs.len(), &whole)?;
    let (profile, profile_hash) = match wire.profile {
        Some(profile) => profile_from_wire(&at("profile"), profile)?,
        // The coordinator is older than profiles.
        None => (Profile::default(), Profile::default().hash()),
    };
    Ok(Assignment {
        run: run.clone(),
        name: JobName {
            namespace: wire.namespace,
            name: wire.name,
        },
        rendezvous: required_text(&at("rendezvous"), wire.rendezvous, NAME_MAX)?,
        node_rank,
        node_count,
        proc_per_node,
        first_rank: between(
            &at("first_rank"),
            wire.first_rank,
            0,
            world_size - proc_per_node,
        )?,
        world_size,
        store_host: NodeName::from(wire.store_host),
        hosts_store: wire.hosts_store,
        store_clients: ip_addresses(&at("store_clients"), wire.store_clients, STORE_CLIENTS_MAX)?,
        command: texts(&at("command"), wire.command, ARGS_MAX, ARG_BYTES_MAX)?,
        args: texts(&at("args"), wire.args, ARGS_MAX, ARG_BYTES_MAX)?,
        env: wire.env,
        env_files: wire.env_files,
        working_dir: wire
            .working_dir
            .map(|dir| required_text(&at("working_dir"), dir, SENTENCE_MAX))
            .transpose()?,
        image: { wire.image }
            .map(|image| required_text(&at("image"), image, SENTENCE_MAX))
            .transpose()?,
        gpus: texts(&at("gpus"), wire.gpus, PROCS_MAX as usize, NAME_MAX)?,
        hides_gpus: wire.hides_gpus,
        launch: match Launch::ALL.iter().find(|(name, _)| *name == wire.launch) {
            _ if wire.without_launcher => Launch::Exec,
            Some((_, launch)) => *launch,
            None => {
                return Err(malformed(
                    at("launch"),
                    format!("{:.64?} is not a lane this agent knows", wire.launch),
                ));
            }
        },
        inspect: match (wire.inspect_off, wire.inspect_collectives) {
            (true, _) => Inspect::Off,
            (false, true) => Inspect::Collectives,
            (false, false) => Inspect::Stacks,
        },
        // A word that only a newer coordinator knows asks for something else than this agent has.
        standbys: match wire.standbys.as_str() {
            "" => Standbys::Auto,
            word => {
                let known = Standbys::ALL.iter().find(|(name, _)| *name == word);
                known.map_or(Standbys::Off, |(_, standbys)| *standbys)
            }
        },
        stop_grace: period_from_wire(&at("stop_grace_ms"), wire.stop_grace_ms)?,
        step_pattern: wire
            .step_pattern
            .map(|pattern| optional_text(&at("step_pattern"), pattern, SENTENCE_MAX))
            .transpose()?
            .flatten(),
        checkpoint_pattern: wire
            .checkpoint_pattern
            .map(|pattern| optional_text(&at("checkpoint_pattern"), pattern, SENTENCE_MAX))
            .transpose()?
            .flatten(),
        restart_count: wire.restart_count,
        fence_after: match wire.fence_after_ms {
            0 => None,
            ms => Some(period_from_wire(&at("fence_after_ms"), ms)?),
        },
        profile,
        profile_hash,
        framework,
        layout,
        members,
        programs,
        owner: match (wire.owner, wire.owner_uid) {
            (name, _) if !name.is_empty() => Some(Owner::User(text(&at("owner"), name, NAME_MAX)?)),
            (_, uid) => uid.map(Owner::Local),
        },
    })
}

/// A transport that this agent does not know is read as sockets: the hash then differs, and only
/// that run is refused.
fn profile_from_wire(field: &str, wire: v1::Profile) -> Result<(Profile, String), Malformed> {
    let at = |part: &str| format!("{field}.{part}");
    count(&at("shared"), wire.shared.len(), ENV_MAX)?;
    let known = Transport::ALL
        .iter()
        .find(|(name, _)| *name == wire.transport);
    let mut shared = Vec::with_capacity(wire.shared.len());
    for variable in wire.shared {
        if variable.name.is_empty()
            || variable.name.contains(['=', '\0'])
            || variable.value.contains('\0')
        {
            return Err(malformed(
                at("shared"),
                format!("{:.64?} is not a variable the system takes", variable.name),
            ));
        }
        let bytes = variable.name.len() + variable.value.len() + variable.why.len();
        if bytes > ARG_BYTES_MAX {
            return Err(malformed(
                at("shared"),
                format!("{:.64?} is {bytes} bytes long", variable.name),
            ));
        }
        shared.push(Shared {
            name: variable.name,
            value: variable.value,
            why: variable.why,
        });
    }
    let profile = Profile {
        transport: known.map(|(_, transport)| *transport).unwrap_or_default(),
        rails: wire.rails,
        shared,
    };
    Ok((profile, required_text(&at("hash"), wire.hash, NAME_MAX)?))
}

pub(super) fn period_from_wire(field: &str, ms: u64) -> Result<Duration, Malformed> {
    let period = Duration::from_millis(ms);
    if period > period::LONGEST {
        return Err(malformed(field, format!("is {ms}, longer than 30 days")));
    }
    Ok(period)
}
