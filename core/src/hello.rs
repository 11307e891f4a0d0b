//! What an agent says of itself and its node when it opens a session. Whether it is welcome is the
//! coordinator's decision.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    id::{JobUid, NodeEpoch, NodeName, Term},
    node_report::NodeReport,
    protocol::Speaks,
    run::{Obeyed, RunReport},
};

/// The first message of a session, from the agent.
#[derive(Clone, Debug)]
pub struct Hello {
    pub node: NodeName,
    pub boot_id: String,
    /// How long this boot has been up. `None`: the agent cannot tell.
    pub uptime: Option<Duration>,
    pub incarnation: u64,
    pub speaks: Speaks,
    pub term_seen: Term,
    pub epoch_seen: NodeEpoch,
    /// What this node has obeyed of each job, even if it holds nothing of that job any more.
    pub jobs_seen: BTreeMap<JobUid, Obeyed>,
    pub report: NodeReport,
    pub runs: Vec<RunReport>,
}
