//! A job that another one waits for, as the record of the one that waits has it.

use serde::{Deserialize, Serialize};

use crate::{
    fleet::job::stage::Phase, id::JobUid, spec::After, spec::AfterCondition, time::Timestamp,
};

/// A job that this one waits for. It is that job which had the name at the submission: a later one of the same name
/// is another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Awaited {
    #[serde(flatten)]
    pub after: After,
    pub uid: JobUid,
    /// How it ended. It is kept here, because the job may be deleted. `None`: it has not ended yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<AwaitedEnd>,
}

/// The end of a job that another waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedEnd {
    /// `None`: it is gone, and nobody knows how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    pub at: Timestamp,
}

impl Awaited {
    /// Whether it has ended as asked. `None`: it has not ended yet.
    pub fn holds(&self) -> Option<bool> {
        let phase = self.end?.phase;
        Some(match self.after.condition {
            AfterCondition::Succeeded => phase == Some(Phase::Succeeded),
            AfterCondition::Failed => phase == Some(Phase::Failed),
            AfterCondition::Ended => true,
        })
    }
}
