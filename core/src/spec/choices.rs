//! The fields of a job that choose one of a few words, with the words as a document has them.

use serde::{Deserialize, Serialize};

use super::{SpecDocument, errors::Errors};

/// Whether a generation can make a step without one of its members. DDP, FSDP and Megatron cannot;
/// replicas that average now and then can. It decides whether one proven death makes the whole
/// generation inert (ring-break).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Progress {
    #[default]
    Synchronous,
    Independent,
}

/// What may be done to a job so that one of higher priority can start, the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Preemption {
    /// It keeps what it has.
    Never,
    /// An elastic job gives up members, down to its minimum.
    Shrink,
    /// It may also lose all its nodes, and wait again. The coordinator has a limit of its own.
    #[default]
    Evict,
}

impl Preemption {
    pub const ALL: [(&str, Preemption); 3] = [
        ("evict", Preemption::Evict),
        ("shrink", Preemption::Shrink),
        ("never", Preemption::Never),
    ];

    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(_, one)| *one == self);
        named.map_or("", |(name, _)| name)
    }
}

impl Progress {
    pub const ALL: [(&str, Progress); 2] = [
        ("synchronous", Progress::Synchronous),
        ("independent", Progress::Independent),
    ];
}

/// What to do about nodes that are known not to go together in one generation
/// ([`crate::nccl::mixture`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeMix {
    /// Such nodes are used, and an event says how they differ.
    #[default]
    Warn,
    /// Only nodes that go together are used. The job waits if they are too few.
    Refuse,
}

impl NodeMix {
    pub const ALL: [(&str, NodeMix); 2] = [("warn", NodeMix::Warn), ("refuse", NodeMix::Refuse)];

    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            NodeMix::Warn => "warn",
            NodeMix::Refuse => "refuse",
        }
    }
}

/// A scheduler that places the pods of a group all at once or not at all. Each has a kind of object of its own
/// for groups, and all call it PodGroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GangScheduler {
    /// Kubernetes' own scheduler, from 1.36 on.
    Kubernetes,
    /// The plugin Coscheduling of scheduler-plugins.
    Coscheduling,
    Volcano,
}

impl GangScheduler {
    pub const ALL: [(&str, GangScheduler); 3] = [
        ("Kubernetes", GangScheduler::Kubernetes),
        ("Coscheduling", GangScheduler::Coscheduling),
        ("Volcano", GangScheduler::Volcano),
    ];

    /// The word in an object.
    pub fn name(self) -> &'static str {
        match self {
            GangScheduler::Kubernetes => "Kubernetes",
            GangScheduler::Coscheduling => "Coscheduling",
            GangScheduler::Volcano => "Volcano",
        }
    }
}

/// How workers are started: one of the lanes, or `Auto`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Launch {
    /// torchrun is executed.
    Cold,
    /// torchrun runs in an interpreter that has imported torch already.
    Parked,
    /// Ranks are forked from an interpreter that has imported torch already.
    Fork,
    /// Ranks are started without torchrun. They are forked if an interpreter that has imported
    /// torch waits, and executed otherwise.
    Direct,
    /// Ranks are executed in every generation, as torchrun would execute them.
    Exec,
    /// The fastest lane that is proven for the node's interpreter ([`crate::node::lane`]).
    #[default]
    Auto,
}

impl Launch {
    pub const ALL: [(&str, Launch); 6] = [
        ("cold", Launch::Cold),
        ("parked", Launch::Parked),
        ("fork", Launch::Fork),
        ("direct", Launch::Direct),
        ("exec", Launch::Exec),
        ("auto", Launch::Auto),
    ];

    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            Launch::Cold => "cold",
            Launch::Parked => "parked",
            Launch::Fork => "fork",
            Launch::Direct => "direct",
            Launch::Exec => "exec",
            Launch::Auto => "auto",
        }
    }

    /// Whether a launcher may be kept for such a job.
    pub fn may_have_launcher(self) -> bool {
        !matches!(self, Launch::Cold | Launch::Exec)
    }
}

/// What ranks can be asked about where they are ([`crate::stacks`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Inspect {
    /// Their stacks. A rank has no thread for it.
    #[default]
    Stacks,
    /// Their stacks and collectives: ranks that are forked open torch's worker server, which has threads.
    Collectives,
    /// Nothing of it is in the ranks.
    Off,
}

impl Inspect {
    pub const ALL: [(&str, Inspect); 3] = [
        ("stacks", Inspect::Stacks),
        ("collectives", Inspect::Collectives),
        ("off", Inspect::Off),
    ];

    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            Inspect::Stacks => "stacks",
            Inspect::Collectives => "collectives",
            Inspect::Off => "off",
        }
    }

    pub fn is_default(&self) -> bool {
        *self == Inspect::default()
    }
}

/// What is done about a generation in which nothing moves any more ([`crate::stall`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnStall {
    /// It is replaced after twice the limit, if it is sure that it does not wait on purpose.
    #[default]
    Restart,
    /// People are told.
    Report,
}

impl OnStall {
    pub const ALL: [(&str, OnStall); 2] =
        [("restart", OnStall::Restart), ("report", OnStall::Report)];

    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            OnStall::Restart => "restart",
            OnStall::Report => "report",
        }
    }

    pub fn is_default(&self) -> bool {
        *self == OnStall::default()
    }
}

/// What is done about a rank that makes the others wait ([`crate::slow`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnSlowRank {
    /// People are told.
    #[default]
    Report,
    /// The job leaves its node as well, if there is as much room elsewhere.
    Replace,
}

impl OnSlowRank {
    pub const ALL: [(&str, OnSlowRank); 2] = [
        ("report", OnSlowRank::Report),
        ("replace", OnSlowRank::Replace),
    ];

    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            OnSlowRank::Report => "report",
            OnSlowRank::Replace => "replace",
        }
    }

    pub fn is_default(&self) -> bool {
        *self == OnSlowRank::default()
    }
}

/// What the ranks can be asked for, and what is done about one that is found to be slow.
pub(super) fn slow_ranks(document: &SpecDocument, errors: &mut Errors) -> (Inspect, OnSlowRank) {
    let inspect = errors.one_of("spec.inspect", document.inspect.as_deref(), &Inspect::ALL);
    let said = document.on_slow_rank.as_deref();
    let on_slow_rank = errors.one_of("spec.onSlowRank", said, &OnSlowRank::ALL);
    if on_slow_rank == OnSlowRank::Replace && inspect != Inspect::Collectives {
        let why = "replace needs inspect: collectives, by which slow ranks are found";
        errors.add("spec.onSlowRank", why);
    }
    (inspect, on_slow_rank)
}

/// Whether a rank waits beside each rank with its GPU open ([`crate::node::standby`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Standbys {
    /// None, unless the operator has asked for them on the node: then parked where the driver can, or open
    /// where memory is ample.
    #[default]
    Auto,
    /// It keeps its GPU's memory while it waits.
    Open,
    /// It has given its GPU's memory back while it waits.
    Parked,
    Off,
}

impl Standbys {
    pub const ALL: [(&str, Standbys); 4] = [
        ("auto", Standbys::Auto),
        ("open", Standbys::Open),
        ("parked", Standbys::Parked),
        ("off", Standbys::Off),
    ];

    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            Standbys::Auto => "auto",
            Standbys::Open => "open",
            Standbys::Parked => "parked",
            Standbys::Off => "off",
        }
    }

    pub fn is_auto(&self) -> bool {
        *self == Standbys::Auto
    }
}

/// Whether members of a job share nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Placing {
    /// As few nodes as hold all members.
    Pack,
    /// A node for each member.
    Spread,
}

impl Placing {
    pub const ALL: [(&str, Placing); 2] = [("pack", Placing::Pack), ("spread", Placing::Spread)];

    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            Placing::Pack => "pack",
            Placing::Spread => "spread",
        }
    }
}

/// What is started again after a process of a role has failed by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RestartScope {
    /// All processes of the job, in a new generation.
    #[default]
    Job,
    /// Only that process, on its node and at its address. The others go on.
    Member,
}

impl RestartScope {
    pub const ALL: [(&str, RestartScope); 2] =
        [("job", RestartScope::Job), ("member", RestartScope::Member)];

    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            RestartScope::Job => "job",
            RestartScope::Member => "member",
        }
    }

    pub fn is_job(&self) -> bool {
        *self == RestartScope::Job
    }
}
