//! The fields of a `MusterJob` document as a table: their names, types, bounds and meaning. The
//! command line reads files by it, and the schema of the Kubernetes object is made from it.
//!
//! The table checks nothing itself. [`super::JobDocument::check`] decides, and it knows more rules
//! than a table can say. A test compares the table with the types.

use super::{
    API_VERSION, AfterCondition, Framework, GangScheduler, Inspect, KIND, Launch, NodeMix,
    OnSlowRank, OnStall, Placing, Preemption, Progress, ROLES_MAX, Standbys,
    limits::{
        AFTER_MAX, ARG_BYTES_MAX, ARGS_MAX, CHECKPOINT_PATTERN_MAX, CODES_BYTES_MAX, ENV_BYTES_MAX,
        ENV_MAX, NODES_MAX, PRIORITY_MAX, PROCS_MAX, RESTARTS_MAX, RULES_MAX, SECONDS_MAX,
        SIGNALS_MAX, STEP_PATTERN_MAX,
    },
    notify::{ADDRESS_MAX, Kind, NOTIFY_MAX, NOTIFY_TO_MAX},
    rules::{self, Of, Then},
    selection::{LEVELS_MAX, NODE_NAMES_MAX, SELECTORS_MAX},
    toleration::TOLERATIONS_MAX,
};
use crate::{container::IMAGE_BYTES_MAX, id::LABEL_MAX};

mod nodes;
mod roles;

use nodes::{AFFINITY, LABEL_KEY, LABEL_VALUE, NODE_NAME, TOLERATION};
use roles::{ORIGIN, ROLE};

/// The longest path that Linux takes.
const PATH_MAX: usize = 4_096;
/// The longest name of an environment variable.
const VARIABLE_NAME_MAX: usize = 256;
/// The longest name of a signal, with room for a typing error.
const SIGNAL_NAME_MAX: usize = 16;
/// The longest text of a period. Nobody writes as many units.
const PERIOD_MAX: usize = 32;
/// The longest text of a time: with microseconds and an offset it has 32 characters.
const TIME_MAX: usize = 40;

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Text(Text),
    /// A whole number between these bounds.
    Whole(i64, i64),
    /// true or false.
    Choice,
    /// A list of so many items at most. Objects in it are known by their names.
    List(&'static Shape, usize),
    /// A list of so many objects at most, whose order counts. They have no names.
    Ordered(&'static Shape, usize),
    Object(&'static [Field]),
    /// Texts by keys of any name, so many at most.
    Map(&'static Shape, usize),
    /// An object of another program, which knows its fields.
    Foreign,
}

/// What a text is.
#[derive(Clone, Copy, Debug)]
pub enum Text {
    /// Any text of so many bytes at most.
    Any(usize),
    /// One of these words.
    OneOf(fn() -> Vec<&'static str>),
    /// A length of time, as `10s` or `1m30s`.
    Period,
    /// An absolute path. The command line makes a relative one absolute.
    Path,
}

/// One field of an object.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub shape: Shape,
    /// It must not be missing.
    pub needed: bool,
    /// What it means, for people.
    pub about: &'static str,
}

impl Text {
    /// The most bytes of such a text.
    pub fn bytes_max(self) -> usize {
        match self {
            Text::Any(most) => most,
            Text::OneOf(words) => words().iter().map(|word| word.len()).max().unwrap_or(0),
            Text::Period => PERIOD_MAX,
            Text::Path => PATH_MAX,
        }
    }
}

const fn field(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field {
        name,
        shape,
        needed: false,
        about,
    }
}

const fn needed(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field {
        name,
        shape,
        needed: true,
        about,
    }
}

const LABEL: Shape = Shape::Text(Text::Any(LABEL_MAX));
const PERIOD: Shape = Shape::Text(Text::Period);
const NODES: Shape = Shape::Whole(1, NODES_MAX);
const ARGUMENTS: Shape = Shape::List(&Shape::Text(Text::Any(ARG_BYTES_MAX)), ARGS_MAX);

/// A whole document.
pub const DOCUMENT: Shape = Shape::Object(&[
    field(
        "apiVersion",
        Shape::Text(Text::OneOf(|| vec![API_VERSION])),
        "The version of this form.",
    ),
    field(
        "kind",
        Shape::Text(Text::OneOf(|| vec![KIND])),
        "The kind of object.",
    ),
    field(
        "metadata",
        Shape::Object(&[
            field("name", LABEL, "The name of the job."),
            field("namespace", LABEL, "The namespace of the job."),
        ]),
        "How the job is called.",
    ),
    field("spec", SPEC, "What to run, and how many nodes it gets."),
]);

/// The `spec` of a document.
pub const SPEC: Shape = Shape::Object(SPEC_FIELDS);

/// The fields of `spec`.
pub const SPEC_FIELDS: &[Field] = &[
    field(
        "replicas",
        NODES,
        "How many nodes the job wants. 1 if left out.",
    ),
    field(
        "minReplicas",
        NODES,
        "With fewer nodes than this the job waits. The same as replicas if left out.",
    ),
    field(
        "maxReplicas",
        NODES,
        "The job can be scaled up to so many nodes. The same as replicas if left out.",
    ),
    field(
        "multipleOf",
        NODES,
        "The job always runs on a multiple of so many nodes: the stages of a pipeline, a group of experts. replicas, minReplicas and maxReplicas must be multiples of it. 1 if left out.",
    ),
    field(
        "procPerNode",
        Shape::Whole(1, PROCS_MAX),
        "Worker processes (ranks) on each node. The same as gpusPerNode if left out, and at least 1.",
    ),
    field(
        "gpusPerNode",
        Shape::Whole(0, PROCS_MAX),
        "GPUs that each node must give to the job. If left out, one for each process of torch if enough nodes have them, else 0.",
    ),
    field(
        "command",
        ARGUMENTS,
        "The interpreter and its options, or a program. [python3] if left out.",
    ),
    field(
        "args",
        ARGUMENTS,
        "The script and its arguments, as [train.py, --epochs, \"10\"], or [-m, package.module].",
    ),
    field(
        "env",
        Shape::List(&VARIABLE, ENV_MAX),
        "Environment variables of the ranks.",
    ),
    field(
        "workingDir",
        Shape::Text(Text::Path),
        "The directory in which the ranks start, on every node. An absolute path.",
    ),
    field(
        "image",
        Shape::Text(Text::Any(IMAGE_BYTES_MAX)),
        "The container image in which the ranks run, on hosts without Kubernetes. Left out: they run on the host itself.",
    ),
    field(
        "priority",
        Shape::Whole(-PRIORITY_MAX, PRIORITY_MAX),
        "Of jobs that wait, the one with the highest number goes first. 0 if left out.",
    ),
    field(
        "queue",
        LABEL,
        "The queue whose quota the job uses, of those that the operator has made for its namespace (--queues of the coordinator). The first of them if left out.",
    ),
    field(
        "preemption",
        Shape::Text(Text::OneOf(|| names(&Preemption::ALL))),
        "What may be done to the job so that one of higher priority can start. evict: it may lose all its nodes, and waits again. shrink: it gives up members, down to minReplicas. never: it keeps what it has. The coordinator's --preemption limits it. evict if left out.",
    ),
    field(
        "restartPolicy",
        Shape::Object(&[
            field(
                "maxRestarts",
                Shape::Whole(0, RESTARTS_MAX),
                "Failures of the job itself that it survives within the window. 3 if left out. Failures of nodes do not count.",
            ),
            field(
                "window",
                PERIOD,
                "The length of the window. 1h if left out.",
            ),
            field(
                "maxSameFailures",
                Shape::Whole(0, RESTARTS_MAX),
                "So many failures of code or data that are the same (exception, line and step), without progress between them, end the job whatever maxRestarts still allows. 3 if left out; 0: any number may come.",
            ),
        ]),
        "How many failures of its own the job survives.",
    ),
    field(
        "stopGracePeriod",
        PERIOD,
        "The time from SIGTERM to SIGKILL at a planned stop, as 30s, at most 15m. 30s if left out.",
    ),
    field(
        "scaleUpCooldown",
        PERIOD,
        "How long the job trains at least before it grows by itself. If left out, until that pays for itself: 30s to 30m.",
    ),
    field(
        "fenceAfter",
        PERIOD,
        "Workers stop by themselves if nothing was heard of the coordinator for so long, from 10s to 1h. Never if left out.",
    ),
    field(
        "progress",
        Shape::Text(Text::OneOf(|| names(&Progress::ALL))),
        "synchronous: no step is made without every member (DDP, FSDP). independent: members can go on alone. synchronous if left out.",
    ),
    field(
        "launch",
        Shape::Text(Text::OneOf(|| names(&Launch::ALL))),
        "How ranks are started. auto if left out.",
    ),
    field(
        "standbys",
        Shape::Text(Text::OneOf(|| names(&Standbys::ALL))),
        "Processes that wait with their GPU open to become ranks. auto if left out.",
    ),
    field(
        "inspect",
        Shape::Text(Text::OneOf(|| names(&Inspect::ALL))),
        "What muster stacks can ask forked ranks for. stacks: their stacks. collectives: also the collective of each, by torch's worker server, which has threads in each rank. off: nothing. stacks if left out.",
    ),
    field(
        "onStall",
        Shape::Text(Text::OneOf(|| names(&OnStall::ALL))),
        "What is done if nothing of the job moves any more. restart: it is restarted after twice the limit. report: people are told. restart if left out.",
    ),
    field(
        "stallAfter",
        PERIOD,
        "How long nothing of the job may move, from 5s to 24h: no step or output, no file that is read or written, no processor that is used outside a collective. By the job's own habit if left out.",
    ),
    field(
        "onSlowRank",
        Shape::Text(Text::OneOf(|| names(&OnSlowRank::ALL))),
        "What is done about a rank that makes the others wait. report: people are told. replace: the job also leaves its node, if there is as much room elsewhere; needs inspect: collectives. report if left out.",
    ),
    field(
        "stepPattern",
        Shape::Text(Text::Any(STEP_PATTERN_MAX)),
        "A regular expression whose first group is the step in a line of output. Without it the steps of the usual trainers are found.",
    ),
    field(
        "checkpointPattern",
        Shape::Text(Text::Any(CHECKPOINT_PATTERN_MAX)),
        "The files that the script saves, as out/*.pt. A change of one is progress for a script that shows no steps.",
    ),
    field(
        "nodeMix",
        Shape::Text(Text::OneOf(|| names(&NodeMix::ALL))),
        "warn: take also nodes whose GPU model or software differs. refuse: wait rather than mix. warn if left out.",
    ),
    field(
        "placement",
        Shape::Text(Text::OneOf(|| names(&Placing::ALL))),
        "pack: members share nodes that have room for several. spread: each member has a node of its own. pack if left out and the job has roles of another framework than xgboost or mpi, else spread.",
    ),
    field(
        "nodeSelector",
        Shape::Map(&LABEL_VALUE, SELECTORS_MAX),
        "Labels that a node must have, as in a pod: those of its Node object, those that its agent was given, and what it says of itself under the keys of GPU Feature Discovery.",
    ),
    field(
        "affinity",
        AFFINITY,
        "Which nodes the job may have, and which it would rather have, as in a pod.",
    ),
    field(
        "nodeList",
        Shape::List(&NODE_NAME, NODE_NAMES_MAX),
        "The job gets only nodes with these names.",
    ),
    field(
        "excludeNodes",
        Shape::List(&NODE_NAME, NODE_NAMES_MAX),
        "The job gets no node with one of these names.",
    ),
    field(
        "requiredTopology",
        LABEL_KEY,
        "The key of a label, as topology.kubernetes.io/zone: all nodes of a generation have the same value of it.",
    ),
    field(
        "preferredTopology",
        Shape::List(&LABEL_KEY, LEVELS_MAX),
        "Keys of labels, the finest first, as the rack and then the zone: all nodes of a generation have the same value of the first one that allows it without fewer nodes.",
    ),
    field(
        "tolerations",
        Shape::Ordered(&TOLERATION, TOLERATIONS_MAX),
        "Taints of nodes that do not keep the job away, as in a pod. A job that asks for GPUs tolerates nvidia.com/gpu. One that names node.kubernetes.io/unschedulable may have nodes that Muster has cordoned.",
    ),
    field(
        "rules",
        Shape::Ordered(&RULE, RULES_MAX),
        "What ends of ranks and losses of nodes mean for the job. The first rule that matches decides; what none matches goes the usual way.",
    ),
    field(
        SUSPEND,
        Shape::Choice,
        "true: the job holds no nodes until it is resumed. A job that trains is stopped with its grace. false if left out.",
    ),
    field(
        "after",
        Shape::Ordered(&AFTER, AFTER_MAX),
        "The job may start when each of these jobs has ended as asked. If one has ended otherwise, the job fails.",
    ),
    field(
        "startAfter",
        Shape::Text(Text::Any(TIME_MAX)),
        "The job may not start before this time, as 2026-11-30T18:00:00Z.",
    ),
    field(
        ACTIVE_DEADLINE,
        Shape::Whole(1, SECONDS_MAX),
        "The job fails if it is not over so many seconds after it was accepted, was last resumed, or had all that it waited for (after, startAfter). Its workers get their grace. No limit if left out.",
    ),
    field(
        START_DEADLINE,
        Shape::Whole(1, SECONDS_MAX),
        "The job fails if it has not started for the first time so many seconds after the same moment. No limit if left out.",
    ),
    field(
        TTL,
        Shape::Whole(0, SECONDS_MAX),
        "The job is deleted so many seconds after its end, with its logs and with its object. Never if left out.",
    ),
    field(
        "notify",
        Shape::Ordered(&NOTIFY, NOTIFY_MAX),
        "Who is told of the job: receivers that the operator has opened to jobs, and addresses of mail that it allows (muster notify list). At most 16 of each in all entries. Nobody but whom the operator names if left out.",
    ),
    field(
        "framework",
        Shape::Text(Text::OneOf(|| names(&Framework::ALL))),
        "How the processes find each other: torchrun's variables, TF_CONFIG, or those of JAXJob, XGBoostJob, PaddleJob or AITrainingJob (trainingjob). mpi: a launcher's mpirun starts them. plain: only MUSTER_... variables. torch if left out.",
    ),
    field(
        "roles",
        Shape::Ordered(&ROLE, ROLES_MAX),
        "Groups of nodes that run different things, in the order of ranks. A role takes from the top of the spec what it does not say.",
    ),
    field(
        "origin",
        ORIGIN,
        "The other system's file that the job is from. It changes nothing about how the job runs: muster get shows the job in that system's words, and members have the names that they had there.",
    ),
];

/// Fields that only the `spec` of a Kubernetes object has: the job's pods, and what stands beside them. All
/// but the template and the pod group may change at any time.
pub const OBJECT_FIELDS: &[Field] = &[
    field(
        TEMPLATE,
        Shape::Foreign,
        "The pods of the job, as the template of a batch/v1 Job: each node that the job gets is such a pod, and its first container holds the workers. Without a template the job runs in the operator's containers. It cannot change.",
    ),
    field(
        NETWORK_POLICY,
        Shape::Text(Text::OneOf(|| vec![NONE, NETWORK_POLICY_JOB])),
        "Job: a NetworkPolicy lets only pods of this job connect to pods of this job. It needs a template. None if left out.",
    ),
    field(
        DISRUPTION_BUDGET,
        Shape::Text(Text::OneOf(|| vec![NONE, DISRUPTION_BUDGET_MINIMUM])),
        "Minimum: a PodDisruptionBudget keeps evictions, as by kubectl drain, from leaving fewer than minReplicas pods. It needs a template. None if left out.",
    ),
    field(
        POD_GROUP,
        Shape::Text(Text::OneOf(pod_groups)),
        "The scheduler that places the first minReplicas pods all at once or not at all, by a PodGroup of its own kind: Kubernetes, Coscheduling or Volcano. It needs a template. It cannot change. None if left out.",
    ),
];

fn pod_groups() -> Vec<&'static str> {
    let schedulers = GangScheduler::ALL.map(|(name, _)| name);
    [NONE].into_iter().chain(schedulers).collect()
}

/// Fields of an accepted object that may change at any time.
pub const CHANGING: [&str; 5] = ["replicas", SUSPEND, ACTIVE_DEADLINE, START_DEADLINE, TTL];

pub const TEMPLATE: &str = "template";
pub const NETWORK_POLICY: &str = "networkPolicy";
pub const NETWORK_POLICY_JOB: &str = "Job";
pub const DISRUPTION_BUDGET: &str = "disruptionBudget";
pub const DISRUPTION_BUDGET_MINIMUM: &str = "Minimum";
pub const POD_GROUP: &str = "podGroup";
/// Of fields that ask for an object: there is none.
pub const NONE: &str = "None";
pub const SUSPEND: &str = "suspend";
pub const ACTIVE_DEADLINE: &str = "activeDeadlineSeconds";
pub const START_DEADLINE: &str = "startDeadlineSeconds";
pub const TTL: &str = "ttlSecondsAfterFinished";

const AFTER: Shape = Shape::Object(&[
    needed(
        "job",
        LABEL,
        "The name of a job of the same namespace. It must exist, or have ended and be in the history.",
    ),
    field(
        "condition",
        Shape::Text(Text::OneOf(|| names(&AfterCondition::ALL))),
        "How it must end: succeeded, failed, or ended in any way. succeeded if left out.",
    ),
]);

const VARIABLE: Shape = Shape::Object(&[
    needed(
        "name",
        Shape::Text(Text::Any(VARIABLE_NAME_MAX)),
        "The name of the variable.",
    ),
    field("value", Shape::Text(Text::Any(ENV_BYTES_MAX)), "Its value."),
    field(
        "valueFrom",
        Shape::Object(&[needed(
            "file",
            Shape::Text(Text::Path),
            "An absolute path on each node, read by the agent when the ranks start.",
        )]),
        "Where the value is, in place of value.",
    ),
]);

const RULE: Shape = Shape::Object(&[
    needed(
        "when",
        Shape::Text(Text::OneOf(|| rules::WHEN.to_vec())),
        "exit: a rank ended first, with one of the codes. signal: it was ended by a signal. failure: any failure of the job itself. success: a member's ranks ended well. nodeLost: a node was lost. evicted: a node was taken away. deadline: activeDeadlineSeconds are over.",
    ),
    field(
        "role",
        Shape::Text(Text::Any(LABEL_MAX)),
        "Only ends of this role's members are meant. Of success, of counts within the role. Of all members if left out.",
    ),
    field(
        "codes",
        Shape::Text(Text::Any(CODES_BYTES_MAX)),
        "Of exit: the codes, as \"3\" or \"1-127,130\". A rank that a signal ended has the code 128 and the signal's number.",
    ),
    field(
        "signals",
        Shape::List(&Shape::Text(Text::Any(SIGNAL_NAME_MAX)), SIGNALS_MAX),
        "Of signal: the signals, as [SIGUSR1]. Any if left out.",
    ),
    field(
        "of",
        Shape::Text(Text::OneOf(|| names(&Of::ALL))),
        "Of success: any member, the first one, or all. any if left out.",
    ),
    needed(
        "then",
        Shape::Text(Text::OneOf(|| names(&Then::ALL))),
        "restart: start the next generation. fail or succeed: the job is over. ignore: it goes the usual way, and no later rule is asked.",
    ),
    field(
        "limit",
        Shape::Whole(1, RESTARTS_MAX),
        "Of restart: how many restarts this rule allows. They are not charged to restartPolicy then.",
    ),
    field(
        "within",
        PERIOD,
        "The window in which the limit counts. The whole life of the job if left out.",
    ),
]);

const NOTIFY: Shape = Shape::Object(&[
    field(
        "kinds",
        Shape::List(
            &Shape::Text(Text::OneOf(|| Kind::OF_JOBS.map(Kind::word).to_vec())),
            Kind::OF_JOBS.len(),
        ),
        "What they are told of. jobFailed, jobSucceeded and jobStalled if left out.",
    ),
    field(
        "receivers",
        Shape::List(&LABEL, NOTIFY_TO_MAX),
        "The names of receivers. This or mail must be given.",
    ),
    field(
        "mail",
        Shape::List(&Shape::Text(Text::Any(ADDRESS_MAX)), NOTIFY_TO_MAX),
        "Plain addresses, as ann@example.org, without % and !.",
    ),
]);

fn names<T>(choices: &[(&'static str, T)]) -> Vec<&'static str> {
    choices.iter().map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests;
