//! The failures of a command: each has a message and one of the documented exit codes.

use std::{fmt::Display, io};

/// Why a command failed. The exit code of each variant is part of the command line's contract.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request was understood and refused, or could not be carried out.
    #[error("{0}")]
    Request(String),
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// The input of a job is wrong. Each line says where.
    #[error("{0}")]
    BadJob(String),
    /// The job that was waited for failed.
    #[error("{0}")]
    JobFailed(String),
    /// The state that the command waited for did not come in time.
    #[error("{0}")]
    Timeout(String),
    /// The coordinator cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The coordinator does not know us, or we have no right to this.
    #[error("{0}")]
    Refused(String),
    /// The job that was waited for was cancelled.
    #[error("{0}")]
    Cancelled(String),
    /// A job that was only planned would have to wait.
    #[error("{0}")]
    WouldWait(String),
    /// Nodes that were checked are not well.
    #[error("{0}")]
    Unhealthy(String),
    #[error("{0}")]
    Interrupted(String),
    /// The exit code of the failing rank, if `--mirror-exit-code` asked for it.
    #[error("{message}")]
    Mirrored { code: u8, message: String },
    /// The reader of our output has closed it, as `head` does, so nobody can be told.
    #[error("output closed")]
    OutputClosed,
}

impl Failure {
    pub fn code(&self) -> u8 {
        match self {
            Failure::OutputClosed => 0,
            Failure::Request(_) => 1,
            Failure::Usage(_) | Failure::BadJob(_) => 2,
            Failure::JobFailed(_) => 3,
            Failure::Timeout(_) => 4,
            Failure::Unreachable(_) | Failure::Refused(_) => 5,
            Failure::Cancelled(_) => 6,
            Failure::WouldWait(_) => 7,
            Failure::Unhealthy(_) => 8,
            // 128 + SIGINT, as a shell reports it.
            Failure::Interrupted(_) => 130,
            Failure::Mirrored { code, .. } => *code,
        }
    }

    pub(crate) fn request(text: impl Display) -> Self {
        Failure::Request(text.to_string())
    }

    pub(crate) fn usage(text: impl Display) -> Self {
        Failure::Usage(text.to_string())
    }

    pub(crate) fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Request(format!("write output: {error}")),
        }
    }
}
