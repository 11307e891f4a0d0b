//! How a process ended, and what the end alone tells about its cause.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How the kernel says that a process ended (`waitpid(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }

    /// The exit code that a shell and Kubernetes report: 128 and the number of the signal, for a process
    /// that a signal ended.
    pub(crate) fn code(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        }
    }

    /// Whether the processor stopped the program: it did something that is not possible. A lost
    /// connection does not do that. SIGABRT is none of these, since NCCL's watchdog aborts a program
    /// whose peers are silent.
    pub(crate) fn is_crash(self) -> bool {
        matches!(self, Exit::Signal(SIGILL | SIGBUS | SIGFPE | SIGSEGV))
    }

    /// The class of the end, judged without any other evidence.
    pub fn class(self, first_error: Option<&str>) -> ExitClass {
        if self.is_success() {
            ExitClass::Success
        } else if first_error.is_some_and(names_a_lost_peer) {
            ExitClass::PeerLost
        } else {
            match self {
                Exit::Signal(SIGKILL | SIGTERM | SIGINT | SIGHUP) => ExitClass::Killed,
                _ => ExitClass::Fault,
            }
        }
    }
}

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGILL: i32 = 4;
const SIGBUS: i32 = 7;
const SIGFPE: i32 = 8;
pub(crate) const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
pub(crate) const SIGTERM: i32 = 15;

/// The meaning of one rank's end. The order is that in which blame prefers them: a rank that failed
/// by itself explains the others, and a rank that names a lost peer explains nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExitClass {
    /// The program failed: non-zero code, segmentation fault, abort.
    Fault,
    /// Somebody or something else ended it: an operator, or the kernel's out-of-memory killer.
    Killed,
    /// Its last output is about a lost connection to a peer.
    PeerLost,
    Success,
}

/// Texts that gloo, NCCL or torch's store print when a *peer* is lost. A rank that prints one of
/// them is a victim. Printed by torch 2.4 to 2.15.
pub const PEER_LOST_SIGNS: [&str; 8] = [
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
    "ncclRemoteError",
    "failed to recv, got 0 bytes",
    "Connection refused",
    "DistBackendError",
];

/// Names of the libraries that connect ranks, as their exceptions and log lines contain them. They
/// are needed because a script's own connection to anything else may be refused as well:
/// `ConnectionRefusedError: [Errno 111] Connection refused` alone says nothing about a peer.
const BETWEEN_RANKS: [&str; 9] = [
    "torch.distributed.",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "gloo/",
    "NCCL",
    "nccl",
    "c10d",
    "TCPStore",
];

/// Texts by which other frameworks say that a peer is lost. Each of them says it alone. TensorFlow 2.21
/// (`collective_executor_mgr`, and the coordination service that it shares with JAX), JAX 0.10, Open
/// MPI 4.1 and 5.0, and Muster's own programs for MPI print them. The last one is the place from which XGBoost 3.2 raises whatever stopped a
/// collective; the reason, as `Socket error. Broken pipe`, is in later lines. LightGBM 4.7 says nothing
/// and waits.
const OF_FRAMEWORKS: [&str; 6] = [
    "Collective ops is aborted",
    "stopped sending heartbeats",
    "JAX distributed service detected fatal errors",
    "has lost communication with a remote daemon",
    CONNECTION_BROKE,
    "/src/collective/result.cc:",
];

/// What `muster-lend` says if the connection of its launcher broke while a rank of MPI ran.
pub(crate) const CONNECTION_BROKE: &str = "muster-lend: the launcher's connection broke";

fn names_a_lost_peer(line: &str) -> bool {
    let says = |words: &[&str]| words.iter().any(|word| line.contains(word));
    // The program for remote starts names a host of the job.
    let host_is_gone = line.starts_with("muster-rsh: ") && line.contains(" is gone: ");
    host_is_gone || says(&OF_FRAMEWORKS) || says(&PEER_LOST_SIGNS) && says(&BETWEEN_RANKS)
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
        }
    }
}

/// The signals of Linux by their numbers, as on x86 and arm (`signal(7)`).
const SIGNALS: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// The highest real-time signal.
const SIGNAL_MAX: i32 = 64;

fn signal_name(signal: i32) -> Option<&'static str> {
    let index = usize::try_from(signal).ok()?.checked_sub(1)?;
    SIGNALS.get(index).copied()
}

/// A signal as a document has it: its name, or its number if it has none.
pub(crate) fn signal_text(signal: i32) -> String {
    signal_name(signal).map_or_else(|| signal.to_string(), str::to_owned)
}

/// The number of a signal that a document names: `SIGUSR1`, or `10`.
pub(crate) fn signal_number(text: &str) -> Option<i32> {
    let named = SIGNALS.iter().position(|name| *name == text);
    let named = named.map(|index| index as i32 + 1);
    let number = || text.parse().ok();
    named
        .or_else(number)
        .filter(|signal| (1..=SIGNAL_MAX).contains(signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_is_told_from_a_culprit() {
        let victim = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:35093";
        assert_eq!(Exit::Code(1).class(Some(victim)), ExitClass::PeerLost);
        let store = "torch.distributed.DistNetworkError: The client socket has failed to connect: Connection refused";
        assert_eq!(Exit::Code(1).class(Some(store)), ExitClass::PeerLost);
        let tensorflow = "UnavailableError: Collective ops is aborted by: The following tasks are unhealthy (stopped sending heartbeats):";
        assert_eq!(Exit::Code(1).class(Some(tensorflow)), ExitClass::PeerLost);
        let jax = "Terminating process because the JAX distributed service detected fatal errors.";
        assert_eq!(Exit::Signal(6).class(Some(jax)), ExitClass::PeerLost);
        let xgboost = "xgboost.core.XGBoostError: [23:49:22] /workspace/src/collective/result.cc:83: [histogram.h:197|23:49:22]:";
        assert_eq!(Exit::Code(1).class(Some(xgboost)), ExitClass::PeerLost);
        let mpirun = "ORTE has lost communication with a remote daemon.";
        assert_eq!(Exit::Code(205).class(Some(mpirun)), ExitClass::PeerLost);
        let lender = "muster-lend: the launcher's connection broke above MPI rank 3 (pid 7)";
        assert_eq!(Exit::Signal(1).class(Some(lender)), ExitClass::PeerLost);
        let host = "muster-rsh: pi-worker-0 is gone: it has closed the connection";
        assert_eq!(Exit::Code(255).class(Some(host)), ExitClass::PeerLost);
        for own in [
            "muster-rsh: pi-worker-0 refuses: this member runs a command already",
            "xgboost.core.XGBoostError: [23:49:22] /workspace/src/data/data.cc:513: Check failed: labels.Size() == num_row_",
            "ValueError: bad shape",
            "ConnectionRefusedError: [Errno 111] Connection refused",
            "RuntimeError: the label server: Broken pipe",
        ] {
            assert_eq!(
                Exit::Code(1).class(Some(own)),
                ExitClass::Fault,
                "the script's own affair: {own}"
            );
        }
        assert_eq!(Exit::Code(1).class(None), ExitClass::Fault);
        assert_eq!(Exit::Signal(11).class(None), ExitClass::Fault);
        assert_eq!(Exit::Signal(9).class(None), ExitClass::Killed);
        assert_eq!(Exit::Code(0).class(Some(victim)), ExitClass::Success);
    }

    #[test]
    fn reads_like_a_shell() {
        assert_eq!(Exit::Signal(9).to_string(), "signal 9 (SIGKILL)");
        assert_eq!(Exit::Code(7).to_string(), "exit code 7");
    }
}
