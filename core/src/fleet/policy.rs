//! All timings and bounds of the fleet, in one place (DESIGN 6).

use std::time::Duration;

use crate::protocol::Speaks;

/// All timings and bounds of the fleet, in one place (DESIGN 6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub heartbeat: Duration,
    /// Missed heartbeats until Suspect, and until Lost.
    pub suspect_missed: u32,
    pub lost_missed: u32,
    /// How long failures are gathered before they are judged together: failures arrive in bursts.
    /// Not with one that is conclusive.
    pub coalesce: Duration,
    /// How long a started coordinator listens before silence means anything (R8), beside
    /// [`Policy::listen_for`]'s time for each node.
    pub listen: Duration,
    /// A member that is not ready for its generation within this is left out.
    pub prepare_timeout: Duration,
    pub backoff_first: Duration,
    pub backoff_max: Duration,
    /// Where no step is seen: a generation that ran this long has trained, and the back-off starts
    /// afresh.
    pub backoff_reset: Duration,
    /// Failures that began on one node within `storm_window`, from at least two jobs, that make it
    /// a storm.
    pub storm_failures: usize,
    pub storm_window: Duration,
    /// Cordons by Muster per `cordon_window`: at most this share of the fleet in percent, and at
    /// least one.
    pub cordon_percent: u32,
    pub cordon_window: Duration,
    /// Cordons by Muster outstanding, in percent of the fleet (at least one), beyond which it stops
    /// and asks a person.
    pub cordon_breaker_percent: u32,
    /// Share of the nodes in percent, and how many at least, that fall silent within
    /// `mass_loss_window` to put the brake on. Three at least: a cluster of three or four may lose
    /// a node, and of two lost at once each may well be dead.
    pub mass_loss_percent: u32,
    pub mass_loss_min: u32,
    pub mass_loss_window: Duration,
    /// The brake goes off when nobody new was lost for so long: a network that is down that long is
    /// no flap.
    pub mass_loss_hold: Duration,
    pub jobs_max: usize,
    /// Nodes known, those that are gone included.
    pub nodes_max: usize,
    /// A node that has been gone for so long is forgotten, if nothing of any job may still run
    /// there.
    pub forget_after: Duration,
    /// The versions of the session's protocol this coordinator serves.
    pub speaks: Speaks,
    /// An operator's word that this store is the truth, although nodes know more: what it does not
    /// know is stopped.
    pub accept_store: bool,
    /// Kubernetes Node objects are read. Else what is stored of them is of another time, and
    /// forgotten.
    pub reads_objects: bool,
    pub tick: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            suspect_missed: 3,
            lost_missed: 5,
            coalesce: Duration::from_millis(50),
            listen: Duration::from_secs(10),
            // An agent waits a minute for torch to be imported, and then starts without its
            // launcher: that must not be too late.
            prepare_timeout: Duration::from_secs(90),
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
            jobs_max: 10_000,
            // Twice the largest fleet this is measured with.
            nodes_max: 20_000,
            // Whoever looks on the next day still finds it.
            forget_after: Duration::from_secs(48 * 3600),
            speaks: Speaks::OURS,
            accept_store: false,
            reads_objects: false,
            tick: Duration::from_millis(250),
        }
    }
}

impl Policy {
    /// How long a coordinator that starts with so many nodes listens. They dial all at once, and
    /// 10,000 were seen to keep two busy processors for 11 to 14 s; it never listens longer than
    /// until the last of them is back.
    pub(crate) fn listen_for(&self, nodes: usize) -> Duration {
        const PER_NODE: Duration = Duration::from_millis(2);
        self.listen + PER_NODE * u32::try_from(nodes).unwrap_or(u32::MAX)
    }
}
