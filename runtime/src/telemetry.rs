//! Logs to standard error, as text for people or as one JSON object per line for machines.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, filter::ParseError, fmt, util::TryInitError};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The log filter if none is given. The client of the API server logs an error for each request that fails,
/// at least one a second while that is away. What failed is told by whoever asked, once.
pub const DEFAULT_FILTER: &str = "info,kube_client::client::builder=off";

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error(
        "log filter {filter:?} is not a list like \"info\" or \"muster_coordinator=debug,info\""
    )]
    Filter {
        filter: String,
        #[source]
        source: ParseError,
    },
    #[error("logging is set up already")]
    Twice(#[source] TryInitError),
}

/// Starts logging. Call it once per process, before anything logs.
pub fn start(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    use tracing_subscriber::util::SubscriberInitExt;

    let filter = EnvFilter::builder()
        .parse(filter)
        .map_err(|source| TelemetryError::Filter {
            filter: filter.to_owned(),
            source,
        })?;
    // A log write that fails, as on a full disk, must end nothing. If tracing-subscriber heard of
    // the failure, it would panic in the thread that has logged.
    let plain = fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .log_internal_errors(false);
    let plain = plain.with_ansi(io::stderr().is_terminal());
    match format {
        LogFormat::Text => plain.finish().try_init(),
        LogFormat::Json => plain.json().flatten_event(true).finish().try_init(),
    }
    .map_err(TelemetryError::Twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_filter_is_named() {
        let error = start(LogFormat::Text, "muster=loud").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("log filter \"muster=loud\" is not"),
            "{error}"
        );
    }
}
