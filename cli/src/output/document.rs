//! Objects as `-o json` and `-o yaml` print them: the stable form of the Kubernetes object, in
//! camelCase.
//!
//! `get job -o yaml` contains everything that `submit -f` reads, plus identity and status.

use std::collections::BTreeMap;

use muster_core::spec::{API_VERSION, KIND, SpecDocument};
use muster_proto::{
    convert::jobs,
    v1::{self, finding::Subject},
};
use serde::Serialize;

use super::{
    after::NotEligible,
    holders::{self, Holder},
    words,
};

mod incident;
mod members;
mod slow;
mod stall;
mod start;
mod time;
mod usage;

use incident::Incident;
use members::{Member, Rank};
use slow::Slow;
use stall::Stall;
use time::TimeAccount;
use usage::Usage;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Job {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    spec: SpecDocument,
    status: Status,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    creation_timestamp: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    phase: &'static str,
    reason: String,
    message: String,
    generation: u64,
    world_size: u32,
    nodes: u32,
    nodes_running: u32,
    restarts: u32,
    /// How many nodes the job wants now.
    replicas: u32,
    last_step: Option<u64>,
    /// The step at which training ends, where the output shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    total_steps: Option<u64>,
    /// The newest loss, as it was printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<String>,
    /// The newest speed, as it was printed, with its unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    /// The mean time of a step in this generation, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    step_micros: Option<u64>,
    /// The format that found the steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    step_format: Option<String>,
    /// About how many lines were printed, if none had a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    stepless_lines: Option<u64>,
    /// When a file of `checkpointPattern` was last seen to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    saved_at: Option<String>,
    /// Nothing of it moves any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    stall: Option<Stall>,
    /// Ranks that make the others wait.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slow: Vec<Slow>,
    /// So many in a row have moved nothing beyond the best.
    #[serde(skip_serializing_if = "is_zero")]
    generations_in_vain: u32,
    /// It is held back until somebody resumes it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    suspended: bool,
    /// It may not start yet, because it waits for other jobs or its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_eligible: Option<NotEligible>,
    /// When it must be over, by its activeDeadlineSeconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<String>,
    store_node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store_open: Option<String>,
    finished_at: Option<String>,
    /// Where its time has gone. Only `describe` and `explain` have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<TimeAccount>,
    members: Vec<Member>,
    ranks: Vec<Rank>,
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn time(unix_us: u64) -> Option<String> {
    (unix_us != 0).then(|| words::utc(unix_us))
}

impl From<v1::Job> for Job {
    fn from(job: v1::Job) -> Self {
        let named = job.r#ref.unwrap_or_default();
        let status = job.status.unwrap_or_default();
        Job {
            api_version: API_VERSION,
            kind: KIND,
            metadata: Metadata {
                name: named.name,
                namespace: some(named.namespace),
                uid: job.uid,
                labels: BTreeMap::new(),
                creation_timestamp: (job.created_unix_us != 0)
                    .then(|| words::utc_seconds(job.created_unix_us)),
            },
            spec: jobs::spec_document(job.spec.unwrap_or_default()),
            status: Status {
                owner: some(job.owner),
                phase: words::phase(status.phase),
                reason: status.reason,
                message: status.message,
                generation: status.generation,
                world_size: status.world_size,
                nodes: status.nodes,
                nodes_running: status.nodes_running,
                restarts: status.restarts,
                replicas: status.replicas,
                last_step: status.last_step,
                total_steps: status.total_steps,
                loss: some(status.loss),
                rate: some(status.rate),
                step_micros: status.step_time_us,
                step_format: some(status.step_format),
                stepless_lines: status.stepless_lines,
                saved_at: time(status.saved_unix_us),
                stall: status.stall.map(Stall::from),
                slow: status.slow.into_iter().map(Slow::from).collect(),
                generations_in_vain: status.generations_in_vain,
                suspended: status.suspended,
                not_eligible: status.not_eligible.as_ref().map(NotEligible::from),
                deadline: time(status.deadline_unix_us),
                store_node: some(status.store_node),
                store_open: some(status.store_open),
                finished_at: time(status.finished_unix_us),
                time: status.time.map(TimeAccount::from),
                members: status.members.into_iter().map(Member::from).collect(),
                ranks: status.ranks.into_iter().map(Rank::from).collect(),
            },
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Debug, Serialize)]
struct NodeSpec {
    cordon: Option<Cordon>,
    /// Why others in Kubernetes keep work away.
    #[serde(skip_serializing_if = "Option::is_none")]
    excluded: Option<String>,
}

#[derive(Debug, Serialize)]
struct Cordon {
    by: String,
    reason: String,
    at: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatus {
    state: &'static str,
    epoch: u64,
    address: String,
    agent_version: String,
    hostname: String,
    kernel: String,
    boot_id: String,
    slots: u32,
    slots_free: u32,
    cpus: u32,
    memory_bytes: u64,
    gpus: Vec<Gpu>,
    gpu_error: Option<String>,
    /// `None`: the agent asks no kubelet who holds them, or has no answer yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_holders: Option<Vec<Holder>>,
    /// The host of a worker pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    senses_only: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    run_as_owner: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    container_runtime: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    taints: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warm_pool: Option<WarmPool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trials: Vec<Trial>,
    findings: Vec<Finding>,
    /// `None`: its agent has not sent a usage to this coordinator yet.
    usage: Option<Usage>,
    runs: Vec<Run>,
    last_heard_at: Option<String>,
}

/// Without `gpu` and `nic` the finding is about the node.
#[derive(Debug, Serialize)]
struct Finding {
    check: String,
    severity: String,
    remedy: String,
    gpu: Option<String>,
    nic: Option<String>,
    reason: String,
    since: Option<String>,
}

impl From<v1::Finding> for Finding {
    fn from(finding: v1::Finding) -> Self {
        let v1::Finding {
            check,
            severity,
            remedy,
            reason,
            subject,
            since_unix_us,
            // The reason names them.
            runs: _,
        } = finding;
        let (gpu, nic) = match subject {
            Some(Subject::Gpu(uuid)) => (Some(uuid), None),
            Some(Subject::Nic(name)) => (None, Some(name)),
            None => (None, None),
        };
        Self {
            check,
            severity,
            remedy,
            gpu,
            nic,
            reason,
            since: time(since_unix_us),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Gpu {
    uuid: String,
    index: u32,
    model: String,
    memory_bytes: u64,
}

/// What a node has found out about an interpreter by itself.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Trial {
    program: String,
    torch: String,
    python: String,
    suite: String,
    passed: bool,
    differs: Vec<String>,
    at: Option<String>,
}

impl From<v1::Trial> for Trial {
    fn from(trial: v1::Trial) -> Self {
        Self {
            program: trial.program,
            torch: trial.torch,
            python: trial.python,
            suite: trial.suite,
            passed: trial.differs.is_empty(),
            differs: trial.differs,
            at: time(trial.at_unix_us),
        }
    }
}

#[derive(Debug, Serialize)]
struct WarmPool {
    limit: u32,
    ready: u32,
    bytes: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    namespace: String,
    job: String,
    job_uid: String,
    generation: u64,
    phase: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpus: Vec<String>,
}

impl From<v1::Node> for Node {
    fn from(node: v1::Node) -> Self {
        Node {
            api_version: API_VERSION,
            kind: "MusterNode",
            metadata: Metadata {
                name: node.name,
                namespace: None,
                uid: String::new(),
                labels: node.labels,
                creation_timestamp: (node.first_seen_unix_us != 0)
                    .then(|| words::utc_seconds(node.first_seen_unix_us)),
            },
            spec: NodeSpec {
                cordon: node.cordon.map(|cordon| Cordon {
                    by: cordon.by,
                    reason: cordon.reason,
                    at: time(cordon.at_unix_us),
                }),
                excluded: some(node.excluded),
            },
            status: NodeStatus {
                state: words::node_state(node.state),
                epoch: node.epoch,
                address: node.address,
                agent_version: node.agent_version,
                hostname: node.hostname,
                kernel: node.kernel,
                boot_id: node.boot_id,
                slots: node.slots,
                slots_free: node.slots_free,
                cpus: node.cpus,
                memory_bytes: node.memory_bytes,
                gpus: node
                    .gpus
                    .into_iter()
                    .map(|gpu| Gpu {
                        uuid: gpu.uuid,
                        index: gpu.index,
                        model: gpu.model,
                        memory_bytes: gpu.memory_bytes,
                    })
                    .collect(),
                gpu_error: some(node.gpu_error),
                gpu_holders: holders::listed(node.gpu_holders),
                host: some(node.host),
                senses_only: node.senses_only,
                run_as_owner: node.run_as_owner,
                container_runtime: node.container_runtime,
                taints: node.taints.iter().map(words::taint).collect(),
                warm_pool: node.warm_pool.map(
                    |v1::WarmPool {
                         limit,
                         ready,
                         bytes,
                     }| WarmPool {
                        limit,
                        ready,
                        bytes,
                    },
                ),
                trials: node.trials.into_iter().map(Trial::from).collect(),
                findings: node
                    .hardware
                    .into_iter()
                    .flat_map(|hardware| hardware.findings)
                    .map(Finding::from)
                    .collect(),
                usage: node.usage.map(|usage| Usage::of(usage, node.usage_unix_us)),
                runs: node
                    .runs
                    .into_iter()
                    .map(|run| Run {
                        namespace: run.namespace,
                        job: run.job,
                        job_uid: run.job_uid,
                        generation: run.generation,
                        phase: run.phase,
                        gpus: run.gpus,
                    })
                    .collect(),
                last_heard_at: time(node.last_heard_unix_us),
            },
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    pub(crate) at: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) severity: &'static str,
    namespace: Option<String>,
    job: Option<String>,
    node: Option<String>,
    generation: Option<u64>,
    sequence: u64,
}

impl From<v1::Event> for Event {
    fn from(event: v1::Event) -> Self {
        Event {
            at: words::utc(event.at_unix_us),
            severity: severity(&event),
            reason: event.reason,
            message: event.message,
            namespace: some(event.namespace),
            job: some(event.job),
            node: some(event.node),
            generation: (event.generation != 0).then_some(event.generation),
            sequence: event.sequence,
        }
    }
}

pub(crate) fn severity(event: &v1::Event) -> &'static str {
    if event.severity() == v1::EventSeverity::Warning {
        "Warning"
    } else {
        "Normal"
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Environment {
    generation: u64,
    nodes: u32,
    transport: String,
    profile_hash: String,
    variables: Vec<Variable>,
    warnings: Vec<Warning>,
}

/// Without `nodes` it has this value on all nodes.
#[derive(Debug, Serialize)]
struct Variable {
    name: String,
    value: Option<String>,
    from: String,
    why: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Warning {
    message: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<String>,
}

impl From<v1::EnvironmentResponse> for Environment {
    fn from(answer: v1::EnvironmentResponse) -> Self {
        let variable = |v: v1::EnvironmentVariable| Variable {
            name: v.name,
            value: v.value,
            from: v.from,
            why: v.why,
            nodes: v.nodes,
        };
        let warning = |remark: v1::EnvironmentRemark| Warning {
            message: remark.message,
            nodes: remark.nodes,
        };
        Environment {
            generation: answer.generation,
            nodes: answer.nodes,
            transport: answer.transport,
            profile_hash: answer.profile_hash,
            variables: answer.variables.into_iter().map(variable).collect(),
            warnings: answer.remarks.into_iter().map(warning).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    job: Job,
    timeline: Vec<Event>,
    incidents: Vec<Incident>,
    lost: Vec<Lost>,
}

#[derive(Debug, Serialize)]
struct Lost {
    cause: String,
    seconds: f64,
    incidents: u32,
}

/// A receipt alone.
pub(super) fn incident(incident: v1::Incident) -> serde_json::Value {
    value(&Incident::from(incident))
}

/// Where the time of a job has gone, alone.
pub(super) fn time_account(account: v1::TimeAccount) -> serde_json::Value {
    value(&TimeAccount::from(account))
}

fn value<T: Serialize>(part: &T) -> serde_json::Value {
    serde_json::to_value(part).expect("our documents have text keys")
}

/// Milliseconds with at most three decimals, because the input is whole microseconds.
fn ms(us: Option<u64>) -> Option<f64> {
    us.map(|us| us as f64 / 1e3)
}

impl From<v1::ExplainResponse> for Explanation {
    fn from(answer: v1::ExplainResponse) -> Self {
        Explanation {
            job: answer.job.unwrap_or_default().into(),
            timeline: answer.timeline.into_iter().map(Event::from).collect(),
            incidents: answer.incidents.into_iter().map(Incident::from).collect(),
            lost: answer
                .lost
                .into_iter()
                .map(|lost| Lost {
                    cause: lost.cause,
                    seconds: lost.lost_us as f64 / 1e6,
                    incidents: lost.incidents,
                })
                .collect(),
        }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
