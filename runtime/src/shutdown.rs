//! How a process ends. The first SIGTERM or SIGINT drains: it cancels the token that every loop
//! watches. The second one ends the process at once.

use std::{io, process};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::service;

/// SIGTERM and SIGINT. They are caught as soon as this exists.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Must be called inside a tokio runtime. An error means that the kernel refused a handler.
    pub fn catch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Cancels `shutdown` at the first signal. At the second signal it ends the process with 128
    /// plus the signal's number.
    pub async fn obey(mut self, shutdown: CancellationToken) {
        let (name, _) = self.next().await;
        info!(
            signal = name,
            "shutting down; a second signal ends the process at once"
        );
        service::stopping();
        shutdown.cancel();
        let (name, number) = self.next().await;
        warn!(signal = name, "second signal: ending at once");
        process::exit(128 + number);
    }

    /// Waits for the first of them, for whoever has nothing to drain yet.
    pub async fn first(&mut self) {
        let _ = self.next().await;
    }

    async fn next(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", SignalKind::terminate().as_raw_value()),
            _ = self.interrupt.recv() => ("SIGINT", SignalKind::interrupt().as_raw_value()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_signal_only_drains() {
        let token = CancellationToken::new();
        let signals = Signals::catch().unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)
            .unwrap();
        tokio::select! {
            () = signals.obey(token.clone()) => unreachable!("the second signal was not sent"),
            () = token.cancelled() => {}
        }
    }
}
