//! What a user asks for: the `MusterJob` document, and the checked [`JobSpec`] made from it.
//!
//! [`JobDocument`] is the form that people write (YAML, JSON, the Kubernetes object, the gRPC message); nearly every field may
//! be left out. [`JobDocument::check`] is the only way to a [`JobSpec`]. It finds all mistakes at once, each with its path.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    id::{JobName, label_error},
    period::{self, optional_period, serde_period},
};

mod after;
mod choices;
pub mod entry;
mod errors;
mod framework;
mod gpus;
pub mod launchers;
mod lifetime;
mod limits;
mod multiple;
pub mod notify;
mod origin;
mod placing;
mod restart_policy;
mod roles;
pub mod rules;
pub mod selection;
pub mod shape;
mod step_pattern;

#[cfg(test)]
mod tests;
pub mod toleration;
mod values;
mod variables;
pub mod wrappers;

use errors::Errors;

pub use after::{After, AfterCondition, AfterDocument, StartWhen};
pub use choices::{
    GangScheduler, Inspect, Launch, NodeMix, OnSlowRank, OnStall, Placing, Preemption, Progress,
    RestartScope, Standbys,
};
pub use errors::FieldError;
pub use framework::{
    Framework, LAUNCHER, PADDLE_VARIABLES, PEERS_MAX, TRAINING_JOB_VARIABLES, WORKER,
};
pub use gpus::GpusSaid;
pub use lifetime::Lifetime;
pub use limits::*;
pub use multiple::Multiple;
pub use notify::{Notify, NotifyDocument};
pub use origin::{GROUPS_MAX, ORIGIN_VERSION_MAX, Origin};
pub use restart_policy::{RestartPolicy, RestartPolicyDocument};
pub use roles::{ROLES_MAX, Role, RoleDocument, Runs};
pub use rules::{Rule, RuleDocument};
pub use selection::{Affinity, Selection};
pub use step_pattern::{STEP_PATTERN_COMPILED_MAX, StepPatternError};
pub use toleration::Toleration;
pub use variables::{EnvVar, ValueFrom, is_of_a_launch};

pub const API_VERSION: &str = "muster.dev/v1alpha1";
pub const KIND: &str = "MusterJob";
pub const DEFAULT_NAMESPACE: &str = "default";

/// A `MusterJob` that a person or a program has written. It is not checked yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobDocument {
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: SpecDocument,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    #[serde(default)]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The `spec` of a document. Numbers are wide and signed, so that a wrong number reaches
/// [`JobDocument::check`] and gets a message with its path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpecDocument {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiple_of: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proc_per_node: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RestartPolicyDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_period: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_up_cooldown: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence_after: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standbys: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inspect: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_stall: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_after: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_slow_rank: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_pattern: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_pattern: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_mix: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_list: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude_nodes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_topology: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preferred_topology: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<AfterDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_after: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_deadline_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<NotifyDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// A job as the rules use it: every default is filled in, and every bound is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    /// Nodes wanted; `min_replicas <= replicas <= max_replicas`.
    pub replicas: u32,
    pub min_replicas: u32,
    pub max_replicas: u32,
    /// Every generation has a multiple of so many members. With roles, the roles have theirs.
    #[serde(default, skip_serializing_if = "Multiple::is_any")]
    pub multiple_of: Multiple,
    pub proc_per_node: u32,
    pub gpus_per_node: u32,
    /// Who has said how many GPUs the members take. `None`: a coordinator that did not ask took the job,
    /// or another framework's job says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpusSaid>,
    /// The interpreter (or program) and its own options.
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: Vec<EnvVar>,
    pub working_dir: Option<String>,
    /// The image of a container in which the ranks run, on hosts. `None`: they run on the host itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub priority: i32,
    /// What may be done to the job so that one of higher priority can start.
    #[serde(default, skip_serializing_if = "Preemption::is_default")]
    pub preemption: Preemption,
    /// The operator's queue whose quota it uses. `None`: the first that has jobs of its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    pub restart_policy: RestartPolicy,
    #[serde(with = "serde_period")]
    pub stop_grace_period: Duration,
    /// How long a generation trains at least before it is stopped to make it larger. `None`: until a growth pays.
    #[serde(
        default,
        with = "optional_period",
        skip_serializing_if = "Option::is_none"
    )]
    pub scale_up_cooldown: Option<Duration>,
    /// The workers stop by themselves after they have heard nothing of the coordinator for this
    /// period. `None`: never.
    #[serde(
        default,
        with = "optional_period",
        skip_serializing_if = "Option::is_none"
    )]
    pub fence_after: Option<Duration>,
    pub progress: Progress,
    pub launch: Launch,
    #[serde(default, skip_serializing_if = "Standbys::is_auto")]
    pub standbys: Standbys,
    #[serde(default, skip_serializing_if = "Inspect::is_default")]
    pub inspect: Inspect,
    #[serde(default, skip_serializing_if = "OnStall::is_default")]
    pub on_stall: OnStall,
    /// How long nothing of the job may move. `None`: Muster goes by how the job has moved so far.
    #[serde(
        default,
        with = "optional_period",
        skip_serializing_if = "Option::is_none"
    )]
    pub stall_after: Option<Duration>,
    #[serde(default, skip_serializing_if = "OnSlowRank::is_default")]
    pub on_slow_rank: OnSlowRank,
    /// A regular expression whose first group is the optimizer step in a line of output. `None`: the
    /// runner goes by its table of formats.
    pub step_pattern: Option<String>,
    /// The files that the script saves, such as `out/*.pt`. A change of one is progress for a script that shows no steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_pattern: Option<String>,
    #[serde(default)]
    pub node_mix: NodeMix,
    /// Whether members share nodes. `None`: a coordinator that did not ask took the job
    /// ([`JobSpec::packs`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placing>,
    /// Which nodes the job may have.
    #[serde(default, skip_serializing_if = "Selection::is_empty")]
    pub selection: Selection,
    /// What ends of ranks and losses of nodes mean for the job. The first that matches decides; what
    /// none matches goes the usual way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// The job holds no nodes until somebody resumes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// What it waits for before it may start.
    #[serde(default, skip_serializing_if = "StartWhen::is_empty")]
    pub start: StartWhen,
    #[serde(default, skip_serializing_if = "Lifetime::is_unlimited")]
    pub lifetime: Lifetime,
    /// Who is told of it, besides those whom the operator names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<Notify>,
    /// The PodTemplateSpec of the job's worker pods, as JSON. `None`: the job runs on hosts. Only a
    /// `MusterJob` object can have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "Framework::is_torch")]
    pub framework: Framework,
    /// The roles, complete, in the order of node ranks. Empty: all nodes run the same. With roles,
    /// `replicas` and its bounds are those of all roles together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Role>,
    /// The other system's file that the job is from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

impl JobDocument {
    /// The job that this document asks for, or all that is wrong with it.
    pub fn check(&self) -> Result<(JobName, JobSpec), Vec<FieldError>> {
        let mut errors = Errors::default();
        let (name, spec) = self.read(&mut errors);
        errors.launchers(&spec);
        errors.into_result((name, spec))
    }

    /// The same for a job that was accepted already, which goes on although it would be refused today:
    /// older versions took commands that start ranks.
    pub fn check_accepted(&self) -> Result<(JobName, JobSpec), Vec<FieldError>> {
        let mut errors = Errors::default();
        let job = self.read(&mut errors);
        errors.into_result(job)
    }

    fn read(&self, errors: &mut Errors) -> (JobName, JobSpec) {
        if self.api_version != API_VERSION {
            errors.add(
                "apiVersion",
                format!("is {:?}, must be {API_VERSION:?}", self.api_version),
            );
        }
        if self.kind != KIND {
            errors.add("kind", format!("is {:?}, must be {KIND:?}", self.kind));
        }
        let name = JobName {
            namespace: self
                .metadata
                .namespace
                .clone()
                .unwrap_or_else(|| DEFAULT_NAMESPACE.into()),
            name: self.metadata.name.clone(),
        };
        for (path, text) in [
            ("metadata.name", &name.name),
            ("metadata.namespace", &name.namespace),
        ] {
            if let Some(message) = label_error(text) {
                errors.add(path, message);
            }
        }
        let spec = self.spec.check(errors);
        spec.start.check_name(&name.name, errors);
        (name, spec)
    }
}

impl Errors {
    /// What was checked, if nothing is wrong with it.
    fn into_result<T>(self, checked: T) -> Result<T, Vec<FieldError>> {
        match self.0.is_empty() {
            true => Ok(checked),
            false => Err(self.0),
        }
    }
}

impl JobSpec {
    /// Paths of the fields in which `other` differs.
    pub fn differences(&self, other: &JobSpec) -> Vec<&'static str> {
        let (was_open, other) = (self.gpus_are_open(), &other.with_gpus_of(self));
        let (own, theirs) = (&self.lifetime, &other.lifetime);
        let fields = [
            ("spec.replicas", self.replicas != other.replicas),
            ("spec.minReplicas", self.min_replicas != other.min_replicas),
            ("spec.maxReplicas", self.max_replicas != other.max_replicas),
            ("spec.multipleOf", self.multiple_of != other.multiple_of),
            (
                "spec.procPerNode",
                self.proc_per_node != other.proc_per_node,
            ),
            (
                "spec.gpusPerNode",
                self.gpus_per_node != other.gpus_per_node || was_open && !other.gpus_are_open(),
            ),
            ("spec.command", self.command != other.command),
            ("spec.args", self.args != other.args),
            ("spec.env", self.env != other.env),
            ("spec.workingDir", self.working_dir != other.working_dir),
            ("spec.image", self.image != other.image),
            ("spec.priority", self.priority != other.priority),
            ("spec.preemption", self.preemption != other.preemption),
            ("spec.queue", self.queue != other.queue),
            (
                "spec.restartPolicy",
                self.restart_policy != other.restart_policy,
            ),
            (
                "spec.stopGracePeriod",
                self.stop_grace_period != other.stop_grace_period,
            ),
            (
                "spec.scaleUpCooldown",
                self.scale_up_cooldown != other.scale_up_cooldown,
            ),
            ("spec.fenceAfter", self.fence_after != other.fence_after),
            ("spec.progress", self.progress != other.progress),
            ("spec.launch", self.launch != other.launch),
            ("spec.standbys", self.standbys != other.standbys),
            ("spec.inspect", self.inspect != other.inspect),
            ("spec.onStall", self.on_stall != other.on_stall),
            ("spec.stallAfter", self.stall_after != other.stall_after),
            ("spec.onSlowRank", self.on_slow_rank != other.on_slow_rank),
            ("spec.stepPattern", self.step_pattern != other.step_pattern),
            (
                "spec.checkpointPattern",
                self.checkpoint_pattern != other.checkpoint_pattern,
            ),
            ("spec.nodeMix", self.node_mix != other.node_mix),
            ("spec.placement", self.packs() != other.packs()),
        ];
        let rest = [
            ("spec.rules", self.rules != other.rules),
            ("spec.suspend", self.suspend != other.suspend),
            ("spec.after", self.start.after != other.start.after),
            (
                "spec.startAfter",
                self.start.start_after != other.start.start_after,
            ),
            (
                "spec.activeDeadlineSeconds",
                own.active_deadline_seconds != theirs.active_deadline_seconds,
            ),
            (
                "spec.startDeadlineSeconds",
                own.start_deadline_seconds != theirs.start_deadline_seconds,
            ),
            (
                "spec.ttlSecondsAfterFinished",
                own.ttl_seconds_after_finished != theirs.ttl_seconds_after_finished,
            ),
            ("spec.notify", self.notify != other.notify),
            ("spec.template", self.template != other.template),
            ("spec.framework", self.framework != other.framework),
            ("spec.roles", self.roles != other.roles),
            ("spec.origin", self.origin != other.origin),
        ];
        let nodes = self.selection.differences(&other.selection);
        { fields.into_iter().chain(nodes).chain(rest) }
            .filter(|(_, differs)| *differs)
            .map(|(path, _)| path)
            .collect()
    }
}

impl SpecDocument {
    fn check(&self, errors: &mut Errors) -> JobSpec {
        let framework = errors.one_of("spec.framework", self.framework.as_deref(), &Framework::ALL);
        let ((replicas, min_replicas, max_replicas), multiple_of) = self.check_sizes(errors);
        let gpus_per_node = errors.number(
            "spec.gpusPerNode",
            self.gpus_per_node.unwrap_or(0),
            0,
            PROCS_MAX,
        ) as u32;
        let proc_per_node = self.check_procs(framework, gpus_per_node, errors);
        let (priority, preemption) = self.check_rank(errors);
        let (inspect, on_slow_rank) = choices::slow_ranks(self, errors);
        let mut limit = |path: &'static str, said: &Option<String>, min, max| {
            let said = said.as_deref();
            said.map(|text| errors.period(path, Some(text), min, min, max))
        };
        let fence_after = limit("spec.fenceAfter", &self.fence_after, FENCE_MIN, FENCE_MAX);
        let stall_after = limit("spec.stallAfter", &self.stall_after, STALL_MIN, STALL_MAX);
        let (path, cooldown) = ("spec.scaleUpCooldown", &self.scale_up_cooldown);
        let scale_up_cooldown = limit(path, cooldown, Duration::ZERO, period::LONGEST);
        // Roles have the commands, with what they take from here.
        if self.roles.is_empty() {
            errors.command("spec", &self.command, &self.args, framework);
        }
        self.check_surroundings(errors);
        self.check_patterns(errors);
        let mut spec = JobSpec {
            replicas,
            min_replicas,
            max_replicas,
            multiple_of,
            proc_per_node,
            gpus_per_node,
            gpus: gpus::said(self, framework),
            command: match &self.command[..] {
                [] => vec!["python3".into()],
                command => command.to_vec(),
            },
            args: self.args.clone(),
            env: self.env.clone(),
            working_dir: self.working_dir.clone(),
            image: self.image.clone(),
            priority,
            preemption,
            queue: self.queue.clone(),
            restart_policy: restart_policy::check(self.restart_policy.as_ref(), errors),
            stop_grace_period: errors.period(
                "spec.stopGracePeriod",
                self.stop_grace_period.as_deref(),
                STOP_GRACE,
                Duration::ZERO,
                STOP_GRACE_MAX,
            ),
            scale_up_cooldown,
            fence_after,
            progress: errors.one_of("spec.progress", self.progress.as_deref(), &Progress::ALL),
            launch: errors.one_of("spec.launch", self.launch.as_deref(), &Launch::ALL),
            standbys: errors.one_of("spec.standbys", self.standbys.as_deref(), &Standbys::ALL),
            inspect,
            on_stall: errors.one_of("spec.onStall", self.on_stall.as_deref(), &OnStall::ALL),
            stall_after,
            on_slow_rank,
            step_pattern: self.step_pattern.clone(),
            checkpoint_pattern: self.checkpoint_pattern.clone(),
            node_mix: errors.one_of("spec.nodeMix", self.node_mix.as_deref(), &NodeMix::ALL),
            placement: None,
            selection: selection::check(self, errors),
            rules: Vec::new(),
            suspend: self.suspend.unwrap_or(false),
            start: StartWhen::check(self, errors),
            lifetime: self.check_lifetime(errors),
            notify: notify::check(&self.notify, errors),
            template: None,
            framework,
            roles: Vec::new(),
            origin: self.origin.clone(),
        };
        if let Some(origin) = &self.origin {
            origin.check(!self.roles.is_empty(), errors);
        }
        spec.placement = Some(placing::check(self, &spec, errors));
        spec.roles = roles::check(self, &spec, errors);
        spec.rules = self.check_rules(&spec.roles, errors);
        if !self.roles.is_empty() {
            self.check_totals(&mut spec, errors);
        }
        spec
    }

    /// The sizes of a job with roles, which are those of its roles together.
    fn check_totals(&self, spec: &mut JobSpec, errors: &mut Errors) {
        (spec.replicas, spec.min_replicas, spec.max_replicas) =
            roles::totals(self, &spec.roles, errors);
        if let Some(why) = self.replicas.and_then(|_| spec.no_size(spec.replicas)) {
            errors.add("spec.replicas", why);
        }
    }

    fn check_surroundings(&self, errors: &mut Errors) {
        errors.env("spec", &self.env);
        errors.directory("spec", self.working_dir.as_deref());
        errors.image(self.image.as_deref());
    }

    /// What decides which job goes first.
    fn check_rank(&self, errors: &mut Errors) -> (i32, Preemption) {
        errors.made_name("spec.queue", self.queue.as_deref());
        let (priority, most) = (self.priority.unwrap_or(0), PRIORITY_MAX);
        let said = self.preemption.as_deref();
        (
            errors.number("spec.priority", priority, -most, most) as i32,
            errors.one_of("spec.preemption", said, &Preemption::ALL),
        )
    }

    /// Replicas, the fewest and the most, and of what they are multiples.
    fn check_sizes(&self, errors: &mut Errors) -> ((u32, u32, u32), Multiple) {
        if !self.roles.is_empty() {
            // The roles say it.
            return ((1, 1, 1), Multiple::default());
        }
        let sizes = [self.replicas, self.min_replicas, self.max_replicas];
        errors.sizes("spec", sizes, self.multiple_of, 1)
    }

    fn check_procs(&self, framework: Framework, gpus_per_node: u32, errors: &mut Errors) -> u32 {
        // Other frameworks use all GPUs of a node in one process.
        let default = match framework.tells_peers() {
            true => 1,
            false => i64::from(gpus_per_node.max(1)),
        };
        let procs = self.proc_per_node.unwrap_or(default);
        errors.number("spec.procPerNode", procs, 1, PROCS_MAX) as u32
    }
}
