//! What a runner answers.

use serde::{Deserialize, Serialize};

use super::{RankStacks, Status, VERSION};

/// One line from the runner. Exactly one of `ok`, `status`, `stacks`, `error` is set. A push has no `id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    pub v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Box<Status>>,
    /// Where the ranks are that were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stacks: Option<Vec<RankStacks>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Refusal>,
}

impl Reply {
    fn bare(id: Option<u64>) -> Self {
        Self {
            v: VERSION,
            id,
            ok: None,
            status: None,
            stacks: None,
            error: None,
        }
    }

    pub fn ok(id: u64) -> Self {
        Self {
            ok: Some(true),
            ..Self::bare(Some(id))
        }
    }

    pub fn status(id: Option<u64>, status: Status) -> Self {
        Self {
            status: Some(Box::new(status)),
            ..Self::bare(id)
        }
    }

    pub fn stacks(id: u64, stacks: Vec<RankStacks>) -> Self {
        Self {
            stacks: Some(stacks),
            ..Self::bare(Some(id))
        }
    }

    pub fn refused(id: Option<u64>, error: Refusal) -> Self {
        Self {
            error: Some(error),
            ..Self::bare(id)
        }
    }
}

/// A "no" with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub text: String,
}

impl Refusal {
    pub fn new(kind: RefusalKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// Not a request. The connection is closed.
    Malformed,
    /// Another protocol version. The connection is closed.
    Version,
    /// A command this runner does not know.
    UnknownCommand,
    /// The content is invalid.
    Invalid,
    /// It was started before, with other content, or has not come to where this can be done.
    Conflict,
    /// It was stopped and never starts again.
    Stopped,
    /// The program could not be started; nothing runs.
    Spawn,
    /// This runner serves no TCPStore.
    NoStore,
    /// The TCPStore refused.
    Store,
    /// Released while a process still lives.
    NotDead,
    /// No room for another connection. It is closed.
    Busy,
    /// A kind that only a newer runner knows.
    #[serde(other)]
    Other,
}

/// A line that was not a valid request.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub id: Option<u64>,
    pub close: bool,
    pub error: Refusal,
}
