//! How a state looks: a sign, a word and a colour, so that nobody needs to tell colours apart.

use muster_proto::{
    convert::node_list::Listed,
    v1::{Job, JobPhase, Node, NodeState},
};

use crate::words;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Badge {
    pub(crate) sign: &'static str,
    pub(crate) word: String,
    /// A class of the style: good, busy, idle, warn, bad.
    pub(crate) class: &'static str,
}

pub(crate) fn of_job(job: &Job) -> Badge {
    let status = job.status.clone().unwrap_or_default();
    let (sign, class) = match status.phase() {
        JobPhase::Running => ("●", "good"),
        JobPhase::Forming | JobPhase::Recovering => ("◐", "busy"),
        JobPhase::Stopping => ("◌", "busy"),
        JobPhase::Pending if status.suspended => ("‖", "idle"),
        JobPhase::Pending => ("○", "idle"),
        JobPhase::Succeeded => ("✓", "good"),
        JobPhase::Failed => ("✕", "bad"),
        JobPhase::Cancelled => ("⊘", "idle"),
        JobPhase::Unspecified => ("…", "idle"),
    };
    Badge {
        sign,
        word: words::phase(status.phase).to_owned(),
        class,
    }
}

pub(crate) fn of_node(node: &Node) -> Badge {
    let (sign, class) = match node.state() {
        _ if node.state() != NodeState::Lost && node.cordon.is_some() => ("⊘", "warn"),
        NodeState::Ready if node.is_unhealthy() => ("▲", "warn"),
        NodeState::Ready => ("●", "good"),
        NodeState::Suspect => ("▲", "warn"),
        NodeState::Lost => ("✕", "bad"),
        NodeState::Unknown | NodeState::Unspecified => ("…", "idle"),
    };
    Badge {
        sign,
        word: node.state_in_words(),
        class,
    }
}

pub(crate) fn is_over(job: &Job) -> bool {
    job.status.as_ref().is_some_and(|s| s.finished_unix_us > 0)
}

/// `team/digits`
pub(crate) fn name(job: &Job) -> (String, String) {
    let named = job.r#ref.clone().unwrap_or_default();
    (named.namespace, named.name)
}
