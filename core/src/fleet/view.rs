//! What users see of jobs and nodes: values made from the fleet's state, with every number filled in.

use crate::{
    exit::Exit,
    fleet::{Cordon, NodeRecord, job::JobRecord},
    id::NodeName,
    run::{Endpoint, RunId, RunPhase},
    time::Timestamp,
};

#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    pub record: JobRecord,
    pub members: Vec<MemberView>,
    pub ranks: Vec<RankView>,
    pub last_step: Option<u64>,
    pub nodes_running: u32,
    pub store_address: Option<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    pub node: NodeName,
    pub node_rank: u32,
    /// `None` while its node has not been heard.
    pub phase: Option<RunPhase>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankView {
    pub rank: u32,
    pub local_rank: u32,
    pub node: NodeName,
    pub pid: u32,
    pub exit: Option<Exit>,
    pub first_step: Option<u64>,
    pub last_step: Option<u64>,
    pub first_error: Option<String>,
}

/// Liveness as the registry judges it; silence only, never health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Liveness {
    Ready,
    Suspect,
    Lost,
    /// Known from the store and not heard since this coordinator started.
    Unknown,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    pub record: NodeRecord,
    pub liveness: Liveness,
    pub cordon: Option<Cordon>,
    pub slots_free: u32,
    pub last_heard: Option<Timestamp>,
    pub runs: Vec<(RunId, Option<crate::id::JobName>, RunPhase)>,
}
