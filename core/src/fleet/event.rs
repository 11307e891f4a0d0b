//! Something that happened, told to people.

use serde::{Deserialize, Serialize};

use crate::{
    fleet::actor::Actor,
    id::{Generation, JobName, JobUid, NodeName},
    time::Timestamp,
};

/// Something that happened, told to people. The fleet numbers events in the order of its decisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    pub sequence: u64,
    pub at: Timestamp,
    pub warning: bool,
    /// In CamelCase, such as `WorldFormed`.
    pub reason: String,
    pub message: String,
    pub job: Option<(JobUid, JobName)>,
    pub node: Option<NodeName>,
    pub generation: Option<Generation>,
    /// The caller whose request caused it. `None`: no request did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
}

impl Event {
    pub(crate) fn of_job(&mut self, uid: &JobUid, name: &JobName) -> &mut Self {
        self.job = Some((uid.clone(), name.clone()));
        self
    }

    pub(crate) fn in_generation(&mut self, generation: Generation) -> &mut Self {
        self.generation = Some(generation);
        self
    }

    pub(crate) fn on_node(&mut self, node: &NodeName) -> &mut Self {
        self.node = Some(node.clone());
        self
    }
}
