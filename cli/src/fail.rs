//! How a command ends when it does not end well: a message and one of the documented exit codes.

use std::{fmt::Display, io};

/// Why a command failed. The code of each is part of the command line's contract.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request was understood and refused, or could not be carried out.
    #[error("{0}")]
    Request(String),
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// What a job was to be made from is wrong: lines that each say where.
    #[error("{0}")]
    BadJob(String),
    /// The job that was waited for failed.
    #[error("{0}")]
    JobFailed(String),
    /// What was waited for did not happen in time.
    #[error("{0}")]
    Timeout(String),
    /// The coordinator cannot be reached, or does not know us.
    #[error("{0}")]
    Unreachable(String),
    /// The job that was waited for was cancelled.
    #[error("{0}")]
    Cancelled(String),
    #[error("{0}")]
    Interrupted(String),
    /// The failing rank's own exit code, where `--mirror-exit-code` asked for it.
    #[error("{message}")]
    Mirrored { code: u8, message: String },
    /// Whoever read our output has closed it, as `head` does: nobody is left to tell.
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
            Failure::Unreachable(_) => 5,
            Failure::Cancelled(_) => 6,
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
