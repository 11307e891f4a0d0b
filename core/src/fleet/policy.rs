//! All timings and bounds of the fleet, in one place.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet::{notify::Rules, queues::Queues},
    protocol::Speaks,
    spec::Preemption,
};

/// All timings and bounds of the fleet, in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub heartbeat: Duration,
    /// How many missed heartbeats make a node Suspect, and how many make it Lost.
    pub suspect_missed: u32,
    pub lost_missed: u32,
    /// How long failures are gathered before they are judged together, because failures arrive in
    /// bursts. Conclusive evidence is judged at once.
    pub coalesce: Duration,
    /// When all ranks that have ended speak only of lost or missing peers, a rank that still runs has so
    /// long to end with an error of its own.
    pub own_end: Duration,
    /// How long a started coordinator listens before silence means anything (decision 0022).
    /// [`Policy::listen_for`] adds time for each node.
    pub listen: Duration,
    /// A member that is not ready for its generation within this time is left out.
    pub prepare_timeout: Duration,
    pub backoff_first: Duration,
    pub backoff_max: Duration,
    /// After this long a generation counts as having trained if it shows no steps and its ranks are
    /// not seen to meet, and the back-off starts anew.
    pub backoff_reset: Duration,
    /// This many failures that count against one node within `storm_window` make a restart storm,
    /// if they come from at least two jobs.
    pub storm_failures: usize,
    pub storm_window: Duration,
    /// The largest share of the fleet, in percent, that Muster cordons within `cordon_window`. One
    /// node is always allowed.
    pub cordon_percent: u32,
    pub cordon_window: Duration,
    /// The share of the fleet, in percent, at which Muster stops cordoning and asks a person. Only
    /// its own cordons count, and one is always allowed.
    pub cordon_breaker_percent: u32,
    /// The brake goes on if more than this percentage of the nodes, and at least `mass_loss_min`,
    /// fall silent within `mass_loss_window`. The minimum is three: a cluster of three or four
    /// nodes may lose one, and two nodes lost at once may well be dead. Worker pods count with their host.
    pub mass_loss_percent: u32,
    pub mass_loss_min: u32,
    pub mass_loss_window: Duration,
    /// The brake goes off if no node was newly lost for this long. An outage of that length is no
    /// passing disturbance.
    pub mass_loss_hold: Duration,
    /// How long the other members may go on once a rule says that one member's success is the job's.
    pub success_grace: Duration,
    /// A job that is over stays listed at least so long, whatever its `ttlSecondsAfterFinished`. Who
    /// waits for its end must be able to read it.
    pub end_shown: Duration,
    /// When to try again to delete a job by itself that could not be deleted.
    pub delete_again: Duration,
    pub jobs_max: usize,
    /// How many of them one namespace may have.
    pub namespace_jobs_max: usize,
    /// The rate at which one namespace may submit jobs, and how many it may submit at once.
    pub submits_per_second: u32,
    pub submits_burst: u32,
    /// The rate at which one caller may ask what would become of a job, and how often at once.
    pub plans: Rate,
    /// A job that has waited for room for so long keeps it from others of its priority that are behind it. From lower
    /// priorities it keeps it from the first moment on.
    pub reserve_after: Duration,
    /// What may be done to a job at most, so that one of higher priority can start.
    pub preemption: Preemption,
    /// Whether jobs also give up nodes for jobs of other namespaces. Whoever submits a job chooses its priority.
    pub preempt_other_namespaces: bool,
    /// How long a generation trains at least before its job is evicted.
    pub evict_after: Duration,
    /// How many GPUs the jobs of a namespace may hold together.
    pub gpus_max: GpusMax,
    /// The same of a user, in all namespaces.
    pub user_gpus_max: GpusMax,
    /// Quotas of queues.
    pub queues: Queues,
    /// GPU time that was used counts half as much after each such time. `None`: jobs of equal priority go by age alone.
    pub fair_share_half_life: Option<Duration>,
    /// How many nodes may be known, including those that are gone.
    pub nodes_max: usize,
    /// A node that has been gone for this long is forgotten, if no job may still run there.
    pub forget_after: Duration,
    /// How many jobs that are over leave a record, and for how long it is kept.
    pub history_max: usize,
    pub history_for: Duration,
    /// The versions of the session's protocol that this coordinator serves.
    pub speaks: Speaks,
    /// The operator's word that this store is right although nodes know more. What the store does
    /// not know is stopped.
    pub accept_store: bool,
    /// What is done with Kubernetes Node objects.
    pub kubernetes_cordon: CordonMode,
    /// Muster does not cordon a node for so long after a person has uncordoned it in Kubernetes.
    pub cordon_hold_off: Duration,
    /// Kubernetes Node objects are read. If not, the labels stored from them are out of date and
    /// are forgotten.
    pub reads_objects: bool,
    /// `MusterJob` objects are followed. If not, users may change the jobs that came from them.
    pub follows_jobs: bool,
    /// How often what is reserved is compared with all records.
    pub audit_every: Duration,
    pub tick: Duration,
    /// A rank is called slow when it has made the others wait for so long.
    pub slow_after: Duration,
    /// Who is told of what.
    pub notify: Rules,
}

/// How many GPUs the jobs of each namespace, or of each user, may hold together. Jobs with a template are not counted:
/// Kubernetes counts what pods have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpusMax {
    pub named: BTreeMap<String, u32>,
    /// Of every other. `None`: as many as there are.
    pub others: Option<u32>,
}

impl GpusMax {
    /// The same for all.
    pub fn each(most: Option<u32>) -> Self {
        Self {
            others: most,
            ..Self::default()
        }
    }

    pub(crate) fn of(&self, name: &str) -> Option<u32> {
        self.named.get(name).copied().or(self.others)
    }
}

/// A rate, and how much may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub per_second: u32,
    pub burst: u32,
}

/// What Muster writes on Kubernetes Node objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CordonMode {
    /// Nothing. Cordons are in Muster's own books only.
    #[default]
    Off,
    /// What it would do, and its condition. No node is made unschedulable.
    DryRun,
    /// Cordons, with who and why.
    On,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            suspect_missed: 3,
            lost_missed: 5,
            coalesce: Duration::from_millis(50),
            listen: Duration::from_secs(10),
            // An agent waits a minute for the import of torch, and then starts without its
            // launcher. This limit must leave time for that.
            prepare_timeout: Duration::from_secs(90),
            // What scripts do in a `finally` and at exit: close loggers, write a last file. torchrun gives
            // the others of a node 30 s, but a job stands still meanwhile.
            own_end: Duration::from_secs(10),
            backoff_first: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            backoff_reset: Duration::from_secs(60),
            storm_failures: 3,
            storm_window: Duration::from_secs(1800),
            cordon_percent: 2,
            cordon_window: Duration::from_secs(600),
            cordon_breaker_percent: 10,
            mass_loss_percent: 20,
            mass_loss_min: 3,
            mass_loss_window: Duration::from_secs(60),
            mass_loss_hold: Duration::from_secs(600),
            // In a synchronous world ranks end within moments of each other, and the slow ones save.
            success_grace: Duration::from_secs(30),
            // `muster wait` looks about every second.
            end_shown: Duration::from_secs(5),
            delete_again: Duration::from_secs(60),
            jobs_max: 10_000,
            // Half of them: a site whose users share one namespace has room, and one namespace never takes all.
            namespace_jobs_max: 5_000,
            // An API server takes some 100 commits a second, so ten namespaces may do their worst. A burst
            // is what a matrix of CI submits at once.
            submits_per_second: 10,
            submits_burst: 500,
            // A plan costs what a placement costs: milliseconds with 10,000 nodes. A burst is a folder of job files that CI checks.
            plans: Rate {
                per_second: 5,
                burst: 200,
            },
            // A job that waits for minutes costs its user less than nodes that stand idle for it.
            reserve_after: Duration::from_secs(600),
            // A job that shrinks goes on. One that is evicted may wait for days, so the operator has to want that.
            preemption: Preemption::Shrink,
            preempt_other_namespaces: false,
            // What it has done until then would be lost with its start.
            evict_after: Duration::from_secs(300),
            gpus_max: GpusMax::default(),
            user_gpus_max: GpusMax::default(),
            queues: Queues::default(),
            fair_share_half_life: None,
            // Twice the largest fleet with which Muster was measured.
            nodes_max: 20_000,
            // A person who looks on the next day still finds the node.
            forget_after: Duration::from_secs(48 * 3600),
            // As many as there may be jobs. A kilobyte each, they take some 15 MB of memory.
            history_max: 10_000,
            // Reports are made by the year.
            history_for: Duration::from_secs(365 * 24 * 3600),
            speaks: Speaks::OURS,
            accept_store: false,
            kubernetes_cordon: CordonMode::Off,
            // NVSentinel respects a person for as long. It is a working day and the night after.
            cordon_hold_off: Duration::from_secs(24 * 3600),
            reads_objects: false,
            follows_jobs: false,
            // Some milliseconds of work for 10,000 nodes, in a turn of its own kind: one in 100,000 is not felt.
            audit_every: Duration::from_secs(60),
            tick: Duration::from_millis(250),
            slow_after: Duration::from_secs(60),
            notify: Rules::default(),
        }
    }
}

impl Policy {
    pub(crate) fn submits(&self) -> Rate {
        Rate {
            per_second: self.submits_per_second,
            burst: self.submits_burst,
        }
    }

    /// How long a coordinator that starts with so many nodes listens. All agents dial at once, and
    /// 10,000 of them were seen to keep two busy processors at work for 11 to 14 s. The coordinator
    /// stops listening earlier if the last of them is back.
    pub(crate) fn listen_for(&self, nodes: usize) -> Duration {
        const PER_NODE: Duration = Duration::from_millis(2);
        self.listen + PER_NODE * u32::try_from(nodes).unwrap_or(u32::MAX)
    }
}
