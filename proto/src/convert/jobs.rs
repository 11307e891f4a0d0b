//! Jobs, nodes, events and receipts, as users see them.
//!
//! A [`JobDocument`] crosses the wire field by field and unchecked, so that core's check stays the
//! only one. Views are converted only to the wire, because nobody sends a status to the
//! coordinator.

use muster_core::{
    fleet::{
        Cordon, Event, Mark, NodeRecord,
        job::{JobRecord, Phase},
        view::{JobView, Liveness, MemberView, NodeRun, NodeView, RankView},
    },
    id::{JobName, NodeName, label_error},
    period,
    run::{Endpoint, RunPhase},
    spec::{
        API_VERSION, DEFAULT_NAMESPACE, JobDocument, JobSpec, KIND, Metadata, Notify, Progress,
        RestartPolicyDocument, Rule, SpecDocument,
    },
    time::Timestamp,
};

use crate::{
    convert::{
        Malformed,
        hardware::{
            finding_to_wire, gpu_to_wire, hardware_to_wire, holders_to_wire, taint_to_wire,
            trial_to_wire, warm_pool_to_wire,
        },
        session::phases::imports_to_wire,
    },
    v1,
};

mod after;
mod notify;
mod plan;
mod receipt;
mod roles;
mod rules;
mod selection;
mod slow;
mod stall;
#[cfg(test)]
mod tests;
mod time;
mod waits;

use after::{after_document, after_to_wire};
pub use plan::plan_to_wire;
pub use receipt::{charged_name, incident};
use roles::{
    checked_role, origin, origin_to_wire, role_document, role_to_wire, variable, variable_to_wire,
};
use rules::{rule_document, rule_to_wire, rules_status};
pub use time::time;

/// The document that a submission carries, not checked yet. A missing message is read as an empty
/// one, and the check then names what is missing.
pub fn document(reference: Option<v1::JobRef>, spec: Option<v1::JobSpec>) -> JobDocument {
    let reference = reference.unwrap_or_default();
    JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: reference.name,
            namespace: (!reference.namespace.is_empty()).then_some(reference.namespace),
        },
        spec: spec.map(spec_document).unwrap_or_default(),
    }
}

/// A document as a submission carries it. `apiVersion` and `kind` are left out, because the type of
/// the message says the same.
pub fn document_to_wire(document: &JobDocument) -> (v1::JobRef, v1::JobSpec) {
    let reference = v1::JobRef {
        namespace: document.metadata.namespace.clone().unwrap_or_default(),
        name: document.metadata.name.clone(),
    };
    (reference, spec_to_wire(document.spec.clone()))
}

/// The job that a request names. `field` is the request's field, for the error. An empty namespace
/// means `default`.
pub fn job_name(field: &str, reference: Option<v1::JobRef>) -> Result<JobName, Malformed> {
    let refuse = |part: &str, message: String| Malformed {
        field: format!("{field}.{part}"),
        message,
    };
    let v1::JobRef { namespace, name } = reference.unwrap_or_default();
    if let Some(message) = label_error(&name) {
        return Err(refuse("name", message));
    }
    let namespace = if namespace.is_empty() {
        DEFAULT_NAMESPACE.to_owned()
    } else {
        namespace
    };
    match label_error(&namespace) {
        Some(message) => Err(refuse("namespace", message)),
        None => Ok(JobName { namespace, name }),
    }
}

pub fn job_ref(name: &JobName) -> v1::JobRef {
    v1::JobRef {
        namespace: name.namespace.clone(),
        name: name.name.clone(),
    }
}

pub fn spec_document(spec: v1::JobSpec) -> SpecDocument {
    SpecDocument {
        replicas: spec.replicas,
        min_replicas: spec.min_replicas,
        max_replicas: spec.max_replicas,
        multiple_of: spec.multiple_of,
        proc_per_node: spec.proc_per_node,
        gpus_per_node: spec.gpus_per_node,
        command: spec.command,
        args: spec.args,
        env: spec.env.into_iter().map(variable).collect(),
        working_dir: spec.working_dir,
        image: spec.image,
        priority: spec.priority,
        preemption: spec.preemption,
        queue: spec.queue,
        restart_policy: spec.restart_policy.map(|policy| RestartPolicyDocument {
            max_restarts: policy.max_restarts,
            window: policy.window,
            max_same_failures: policy.max_same_failures,
        }),
        stop_grace_period: spec.stop_grace_period,
        scale_up_cooldown: spec.scale_up_cooldown,
        fence_after: spec.fence_after,
        progress: spec.progress,
        launch: spec.launch,
        standbys: spec.standbys,
        inspect: spec.inspect,
        on_stall: spec.on_stall,
        stall_after: spec.stall_after,
        on_slow_rank: spec.on_slow_rank,
        step_pattern: spec.step_pattern,
        checkpoint_pattern: spec.checkpoint_pattern,
        node_mix: spec.node_mix,
        placement: spec.placement,
        node_selector: spec.node_selector.into_iter().collect(),
        affinity: spec.node_affinity.map(selection::affinity),
        node_list: spec.node_list,
        exclude_nodes: spec.exclude_nodes,
        required_topology: spec.required_topology,
        preferred_topology: spec.preferred_topology,
        tolerations: selection::tolerations(spec.tolerations),
        rules: spec.rules.into_iter().map(rule_document).collect(),
        suspend: spec.suspend,
        active_deadline_seconds: spec.active_deadline_seconds,
        start_deadline_seconds: spec.start_deadline_seconds,
        ttl_seconds_after_finished: spec.ttl_seconds_after_finished,
        notify: notify::documents(spec.notify),
        framework: spec.framework,
        roles: spec.roles.into_iter().map(role_document).collect(),
        origin: spec.origin.map(origin),
        after: spec.after.into_iter().map(after_document).collect(),
        start_after: spec.start_after,
    }
}

pub fn spec_to_wire(spec: SpecDocument) -> v1::JobSpec {
    v1::JobSpec {
        replicas: spec.replicas,
        min_replicas: spec.min_replicas,
        max_replicas: spec.max_replicas,
        multiple_of: spec.multiple_of,
        proc_per_node: spec.proc_per_node,
        gpus_per_node: spec.gpus_per_node,
        command: spec.command,
        args: spec.args,
        env: spec.env.into_iter().map(variable_to_wire).collect(),
        working_dir: spec.working_dir,
        image: spec.image,
        priority: spec.priority,
        preemption: spec.preemption,
        queue: spec.queue,
        restart_policy: spec.restart_policy.map(|policy| v1::RestartPolicy {
            max_restarts: policy.max_restarts,
            window: policy.window,
            max_same_failures: policy.max_same_failures,
        }),
        stop_grace_period: spec.stop_grace_period,
        scale_up_cooldown: spec.scale_up_cooldown,
        fence_after: spec.fence_after,
        progress: spec.progress,
        launch: spec.launch,
        standbys: spec.standbys,
        inspect: spec.inspect,
        on_stall: spec.on_stall,
        stall_after: spec.stall_after,
        on_slow_rank: spec.on_slow_rank,
        step_pattern: spec.step_pattern,
        checkpoint_pattern: spec.checkpoint_pattern,
        node_mix: spec.node_mix,
        placement: spec.placement,
        node_selector: spec.node_selector.into_iter().collect(),
        node_affinity: spec
            .affinity
            .and_then(|affinity| affinity.node_affinity)
            .map(selection::affinity_to_wire),
        node_list: spec.node_list,
        exclude_nodes: spec.exclude_nodes,
        required_topology: spec.required_topology,
        preferred_topology: spec.preferred_topology,
        tolerations: selection::tolerations_to_wire(spec.tolerations),
        rules: spec.rules.into_iter().map(rule_to_wire).collect(),
        suspend: spec.suspend,
        active_deadline_seconds: spec.active_deadline_seconds,
        start_deadline_seconds: spec.start_deadline_seconds,
        ttl_seconds_after_finished: spec.ttl_seconds_after_finished,
        notify: notify::to_wire(spec.notify),
        framework: spec.framework,
        roles: spec.roles.into_iter().map(role_to_wire).collect(),
        origin: spec.origin.map(origin_to_wire),
        after: spec.after.into_iter().map(after_to_wire).collect(),
        start_after: spec.start_after,
    }
}

/// A checked spec as a document again, with every default written out. Checking that document gives
/// the same spec.
pub fn checked_document(spec: &JobSpec) -> SpecDocument {
    let mut document = SpecDocument {
        replicas: Some(spec.replicas.into()),
        // Roles have these two themselves.
        min_replicas: Some(spec.min_replicas.into()).filter(|_| spec.roles.is_empty()),
        max_replicas: Some(spec.max_replicas.into()).filter(|_| spec.roles.is_empty()),
        multiple_of: (!spec.multiple_of.is_any()).then(|| spec.multiple_of.get().into()),
        proc_per_node: Some(spec.proc_per_node.into()),
        gpus_per_node: spec.says_gpus().then_some(spec.gpus_per_node.into()),
        command: spec.command.clone(),
        args: spec.args.clone(),
        env: spec.env.clone(),
        working_dir: spec.working_dir.clone(),
        image: spec.image.clone(),
        priority: Some(spec.priority.into()),
        preemption: (!spec.preemption.is_default()).then(|| spec.preemption.name().into()),
        queue: spec.queue.clone(),
        restart_policy: Some(RestartPolicyDocument {
            max_restarts: Some(spec.restart_policy.max_restarts.into()),
            window: Some(period::format(spec.restart_policy.window)),
            max_same_failures: Some(spec.restart_policy.max_same_failures.into()),
        }),
        stop_grace_period: Some(period::format(spec.stop_grace_period)),
        scale_up_cooldown: spec.scale_up_cooldown.map(period::format),
        fence_after: spec.fence_after.map(period::format),
        progress: Some(progress_name(spec.progress).into()),
        launch: Some(spec.launch.name().into()),
        standbys: (!spec.standbys.is_auto()).then(|| spec.standbys.name().into()),
        inspect: (!spec.inspect.is_default()).then(|| spec.inspect.name().into()),
        on_stall: (!spec.on_stall.is_default()).then(|| spec.on_stall.name().into()),
        stall_after: spec.stall_after.map(period::format),
        on_slow_rank: (!spec.on_slow_rank.is_default()).then(|| spec.on_slow_rank.name().into()),
        step_pattern: spec.step_pattern.clone(),
        checkpoint_pattern: spec.checkpoint_pattern.clone(),
        node_mix: Some(spec.node_mix.name().into()),
        placement: spec.placement.map(|placing| placing.name().into()),
        node_selector: spec.selection.node_selector.clone(),
        affinity: selection::checked(&spec.selection),
        node_list: texts(&spec.selection.node_list),
        exclude_nodes: texts(&spec.selection.exclude_nodes),
        required_topology: spec.selection.required_topology.clone(),
        preferred_topology: spec.selection.preferred_topology.clone(),
        tolerations: spec.selection.tolerations.clone(),
        rules: spec.rules.iter().map(Rule::document).collect(),
        notify: spec.notify.iter().map(Notify::document).collect(),
        framework: Some(spec.framework.name().into()),
        roles: spec
            .roles
            .iter()
            .map(|role| checked_role(role, spec))
            .collect(),
        origin: spec.origin.clone(),
        ..SpecDocument::default().with_life_of(spec)
    };
    spec.start.write(&mut document);
    document
}

fn texts(names: &[NodeName]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

pub fn progress_name(progress: Progress) -> &'static str {
    match progress {
        Progress::Synchronous => "synchronous",
        Progress::Independent => "independent",
    }
}

pub fn job(view: &JobView) -> v1::Job {
    let record = &view.record;
    v1::Job {
        r#ref: Some(job_ref(&record.name)),
        uid: record.uid.to_string(),
        spec: Some(spec_to_wire(checked_document(&record.spec))),
        status: Some(status(view)),
        created_unix_us: record.created.0,
        owner: record
            .owner
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
    }
}

fn status(view: &JobView) -> v1::JobStatus {
    let record: &JobRecord = &view.record;
    let shown = record.shown();
    v1::JobStatus {
        phase: phase(record.phase).into(),
        reason: record.reason.to_string(),
        message: record.message.clone(),
        generation: shown.map_or(record.last_generation.0, |generation| generation.number.0),
        world_size: record
            .current
            .as_ref()
            .map_or(0, |generation| generation.world_size()),
        nodes: record
            .current
            .as_ref()
            .map_or(0, |generation| generation.size()),
        nodes_running: view.nodes_running,
        restarts: record.restart_count,
        members: view.members.iter().map(member).collect(),
        ranks: view.ranks.iter().map(rank).collect(),
        last_step: view.last_step,
        finished_unix_us: unix_us(record.finished),
        waits_for_room: waits::waits_for_room(view),
        replicas: record.replicas,
        store_node: shown
            .map(|generation| generation.store_host.to_string())
            .unwrap_or_default(),
        store_address: view.store_address.as_ref().map(address).unwrap_or_default(),
        store_open: view
            .store_open
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        total_steps: view.steps.shown.total,
        loss: view.steps.shown.loss.clone().unwrap_or_default(),
        rate: view.steps.shown.rate.clone().unwrap_or_default(),
        step_time_us: view.steps.step_time.map(|time| time.as_micros() as u64),
        saved_unix_us: unix_us(view.saved_at),
        step_format: view.steps.shown.format.clone().unwrap_or_default(),
        stepless_lines: view.steps.shown.stepless_lines,
        suspended: record.suspended && !record.phase.is_over(),
        deadline_unix_us: unix_us(
            record
                .active_deadline()
                .filter(|_| !record.suspended && !record.phase.is_over()),
        ),
        rules: rules_status(record),
        not_eligible: after::not_eligible(view),
        // It changes at every moment, so only answers about one job have it.
        time: None,
        stall: record
            .current
            .as_ref()
            .and_then(|generation| generation.stall.as_deref())
            .map(stall::stall_to_wire),
        generations_in_vain: record.generations_in_vain.generations,
        slow: { record.current.iter() }
            .flat_map(|generation| generation.slow.iter().flat_map(|slow| &slow.ranks))
            .map(slow::slow_to_wire)
            .collect(),
    }
}

pub fn phase(phase: Phase) -> v1::JobPhase {
    match phase {
        Phase::Pending => v1::JobPhase::Pending,
        Phase::Forming => v1::JobPhase::Forming,
        Phase::Running => v1::JobPhase::Running,
        Phase::Recovering => v1::JobPhase::Recovering,
        Phase::Stopping => v1::JobPhase::Stopping,
        Phase::Succeeded => v1::JobPhase::Succeeded,
        Phase::Failed => v1::JobPhase::Failed,
        Phase::Cancelled => v1::JobPhase::Cancelled,
    }
}

fn member(view: &MemberView) -> v1::MemberStatus {
    v1::MemberStatus {
        node: view.node.to_string(),
        node_rank: view.node_rank,
        phase: view
            .phase
            .as_ref()
            .map_or_else(|| "Unknown".into(), run_phase_name),
        lane: view.lane.name.clone(),
        lane_reason: view.lane.reason.clone(),
        launcher_bytes: view.lane.launcher_bytes,
        torch: view.stack.torch.clone(),
        cuda: view.stack.cuda.clone(),
        nccl: view.stack.nccl.clone(),
        gpus: view.gpus.clone(),
        host: view
            .host
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        role: view.role.clone().unwrap_or_default(),
        imports: view.imports.as_ref().map(imports_to_wire),
    }
}

/// A run's phase as people read it: one word, and the reason if the run was refused.
pub fn run_phase_name(phase: &RunPhase) -> String {
    match phase {
        RunPhase::Preparing => "Preparing".into(),
        RunPhase::Ready => "Ready".into(),
        RunPhase::Running => "Running".into(),
        RunPhase::Stopping => "Stopping".into(),
        RunPhase::Dead => "Dead".into(),
        RunPhase::Refused(why) => format!("Refused: {why}"),
    }
}

fn rank(view: &RankView) -> v1::RankStatus {
    v1::RankStatus {
        rank: view.rank,
        local_rank: view.local_rank,
        node: view.node.to_string(),
        pid: view.pid,
        state: match view.exit {
            Some(exit) => exit.to_string(),
            None if view.joining => "joining".into(),
            None => "running".into(),
        },
        first_step: view.first_step,
        last_step: view.last_step,
        first_error: view.first_error.clone().unwrap_or_default(),
        memory_bytes: None,
        cpu_milli: None,
        usage_unix_us: 0,
        frames: view.frames.clone(),
    }
}

fn address(endpoint: &Endpoint) -> String {
    if endpoint.host.contains(':') {
        format!("[{}]:{}", endpoint.host, endpoint.port)
    } else {
        format!("{}:{}", endpoint.host, endpoint.port)
    }
}

pub fn node(view: &NodeView) -> v1::Node {
    let record: &NodeRecord = &view.record;
    let (report, object, place) = (&view.report, view.object.as_ref(), view.place.as_ref());
    v1::Node {
        name: record.name.to_string(),
        state: node_state(view.liveness).into(),
        cordon: record.cordon.as_ref().map(cordon),
        epoch: record.epoch.0,
        address: report.address.clone(),
        agent_version: report.agent_version.clone(),
        hostname: report.hostname.clone(),
        kernel: report.kernel.clone(),
        labels: report.all_labels(),
        slots: report.slots,
        slots_free: view.slots_free,
        cpus: report.cpus,
        memory_bytes: report.memory_bytes,
        gpus: match place {
            Some(place) => place.gpus.iter().map(gpu_to_wire).collect(),
            None => report.gpus.iter().map(gpu_to_wire).collect(),
        },
        gpu_error: report.gpu_error.clone().unwrap_or_default(),
        runs: view.runs.iter().map(node_run).collect(),
        first_seen_unix_us: record.first_seen.0,
        last_heard_unix_us: unix_us(view.last_heard),
        boot_id: record.boot_id.clone(),
        hardware: Some(hardware(view)),
        marks: record.marks.iter().map(mark).collect(),
        conditions: view.conditions.clone(),
        // The API adds the usage: the engine does not publish it.
        usage: None,
        usage_unix_us: 0,
        warm_pool: report.warm_pool.map(warm_pool_to_wire),
        trials: report.trials.iter().map(trial_to_wire).collect(),
        excluded: object
            .and_then(|object| {
                let excluded = || object.excluded(record.overruled).map(str::to_owned);
                object.leaving.clone().or_else(excluded)
            })
            .unwrap_or_default(),
        kubernetes_labels: report
            .object_labels
            .keys()
            .filter(|key| !report.labels.contains_key(*key))
            .cloned()
            .collect(),
        gpu_holders: holders_to_wire(&report.holders),
        senses_only: report.senses_only,
        run_as_owner: report.run_as_owner,
        container_runtime: report.container_runtime.clone(),
        taints: report.all_taints().map(taint_to_wire).collect(),
        host: place
            .map(|place| place.host.to_string())
            .unwrap_or_default(),
    }
}

/// The node's own report, with what others say on its Kubernetes Node object. For a worker pod also
/// what its host says of the pod's GPUs.
fn hardware(view: &NodeView) -> v1::Hardware {
    let mut hardware = hardware_to_wire(&view.report);
    let others = view.object.iter().flat_map(|object| &object.findings);
    let others = others.chain(view.place.iter().flat_map(|place| &place.findings));
    hardware.findings.extend(others.map(finding_to_wire));
    hardware
}

fn mark(mark: &Mark) -> v1::NodeMark {
    let v1::JobRef {
        namespace,
        name: job,
    } = job_ref(&mark.name);
    v1::NodeMark {
        at_unix_us: mark.at.0,
        namespace,
        job,
        cause: format!("{:?}", mark.cause),
        lasted_us: mark.lasted.as_micros() as u64,
        standing: mark.standing.sentence().into(),
    }
}

fn node_state(liveness: Liveness) -> v1::NodeState {
    match liveness {
        Liveness::Ready => v1::NodeState::Ready,
        Liveness::Suspect => v1::NodeState::Suspect,
        Liveness::Lost => v1::NodeState::Lost,
        Liveness::Unknown => v1::NodeState::Unknown,
    }
}

fn cordon(cordon: &Cordon) -> v1::Cordon {
    v1::Cordon {
        by: cordon.by.to_string(),
        reason: cordon.reason.clone(),
        at_unix_us: cordon.at.0,
    }
}

fn node_run(view: &NodeRun) -> v1::NodeRun {
    let v1::JobRef { namespace, name } = view.job.as_ref().map(job_ref).unwrap_or_default();
    v1::NodeRun {
        job_uid: view.run.job.to_string(),
        namespace,
        job: name,
        generation: view.run.generation.0,
        phase: run_phase_name(&view.phase),
        gpus: view.gpus.clone(),
    }
}

pub fn event(event: &Event) -> v1::Event {
    let (job_uid, v1::JobRef { namespace, name }) = event
        .job
        .as_ref()
        .map(|(uid, name)| (uid.to_string(), job_ref(name)))
        .unwrap_or_default();
    let severity = if event.warning {
        v1::EventSeverity::Warning
    } else {
        v1::EventSeverity::Normal
    };
    v1::Event {
        sequence: event.sequence,
        at_unix_us: event.at.0,
        severity: severity.into(),
        reason: event.reason.clone(),
        message: event.message.clone(),
        job_uid,
        namespace,
        job: name,
        node: event
            .node
            .as_ref()
            .map(|node| node.to_string())
            .unwrap_or_default(),
        generation: event.generation.map_or(0, |generation| generation.0),
    }
}

fn unix_us(at: Option<Timestamp>) -> u64 {
    at.map_or(0, |at| at.0)
}
