//! How a process ended, and what the end alone tells about its cause. What its last error says of other
//! ranks is read in `peers`.

mod peers;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use peers::PEER_LOST_SIGNS;
pub(crate) use peers::{CONNECTION_BROKE, awaited_ranks};
use peers::{OfPeers, of_peers};

/// The beginning of a reason that is only what the rank printed last, because nothing says why it
/// failed. It is for people.
pub const LAST_OUTPUT: &str = "last output: ";

/// How the kernel says that a process ended (`waitpid(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

/// The beginning of the reason of a process that the kernel has killed because a cgroup had reached
/// its memory limit. The process itself was too large, so nobody else has killed it.
pub const OUT_OF_MEMORY: &str = "out of memory: ";

/// The beginning of the reason of an `mpirun` that has ended although every host of it had answered, and
/// before it asked any of them to start something. So neither a rank nor a host has failed.
pub const NO_RANK_BEGAN: &str = "no rank began: ";

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
            return ExitClass::Success;
        }
        if self == Exit::Signal(SIGKILL)
            && first_error.is_some_and(|e| e.starts_with(OUT_OF_MEMORY))
        {
            return ExitClass::Fault;
        }
        let proves = |error: &&str| !error.starts_with(LAST_OUTPUT);
        match first_error.filter(proves).and_then(of_peers) {
            Some(OfPeers::Lost) => ExitClass::PeerLost,
            Some(OfPeers::Awaited) => ExitClass::GaveUpWaiting,
            None if self.is_kill() => ExitClass::Killed,
            None => ExitClass::Fault,
        }
    }

    /// Whether somebody else ended the process, as an operator, torchrun or the kernel does.
    fn is_kill(self) -> bool {
        matches!(self, Exit::Signal(SIGKILL | SIGTERM | SIGINT | SIGHUP))
    }
}

const SIGHUP: i32 = 1;
pub(crate) const SIGINT: i32 = 2;
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
    /// Its launcher ended it because another rank had failed first. It has an error of its own, so it
    /// may have been about to end with that.
    Interrupted,
    /// It waited for a peer until its own time limit. Its last output is about that.
    GaveUpWaiting,
    /// Its last output is about a lost connection to a peer.
    PeerLost,
    Success,
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
    fn the_class_is_of_the_end_and_of_the_last_words() {
        let victim = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:35093";
        assert_eq!(Exit::Code(1).class(Some(victim)), ExitClass::PeerLost);
        assert_eq!(Exit::Signal(6).class(Some(victim)), ExitClass::PeerLost);
        assert_eq!(Exit::Code(0).class(Some(victim)), ExitClass::Success);
        let last = format!("{LAST_OUTPUT}{victim}");
        assert_eq!(Exit::Code(1).class(Some(&last)), ExitClass::Fault);
        let waited = "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 4000ms for recv operation to complete";
        assert_eq!(Exit::Code(1).class(Some(waited)), ExitClass::GaveUpWaiting);
        assert_eq!(
            Exit::Code(1).class(Some("ValueError: bad")),
            ExitClass::Fault
        );
        assert_eq!(Exit::Code(1).class(None), ExitClass::Fault);
        assert_eq!(Exit::Signal(11).class(None), ExitClass::Fault);
        assert_eq!(Exit::Signal(9).class(None), ExitClass::Killed);
        let oom = format!("{OUT_OF_MEMORY}the kernel killed it");
        assert_eq!(Exit::Signal(9).class(Some(&oom)), ExitClass::Fault);
        assert_eq!(Exit::Signal(15).class(Some(&oom)), ExitClass::Killed);
    }

    #[test]
    fn reads_like_a_shell() {
        assert_eq!(Exit::Signal(9).to_string(), "signal 9 (SIGKILL)");
        assert_eq!(Exit::Code(7).to_string(), "exit code 7");
    }
}
