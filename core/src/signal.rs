//! Signals that a person sends to ranks: how they are named, and what follows.

use crate::exit::{signal_number, signal_text};

/// Signals that glibc and musl use inside a process. A program cannot handle them.
const OF_LIBC: [i32; 2] = [32, 33];

/// Signals that do nothing to a process which does not ask for them.
const HARMLESS: [&str; 4] = ["SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH"];

/// Signals that stop a process.
const STOPPING: [&str; 4] = ["SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU"];

/// Reads `USR1`, `SIGUSR1`, `usr1` or `10`. The error is for the user, without the field's name.
pub fn read(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let number = signal_number(&upper).or_else(|| signal_number(&format!("SIG{upper}")));
    match number {
        Some(number) if OF_LIBC.contains(&number) => {
            Err(format!("is {number}, which the C library uses itself"))
        }
        Some(number) => Ok(number),
        None => Err(format!(
            "is {text:?}, must be a signal, as USR1 or SIGUSR1, or its number from 1 to 64"
        )),
    }
}

/// `SIGUSR1`, or the number of a signal without a name.
pub fn name(signal: i32) -> String {
    signal_text(signal)
}

/// What a rank may do of a signal that its sender should know. `None`: nothing happens to a rank that
/// does not handle it.
pub fn warning(signal: i32) -> Option<&'static str> {
    match signal_text(signal).as_str() {
        name if HARMLESS.contains(&name) => None,
        "SIGKILL" => Some("a rank that is killed has failed: the job's rules and restarts apply"),
        name if STOPPING.contains(&name) => Some(
            "a rank that is stopped makes no step until it gets SIGCONT, and the others wait for it",
        ),
        _ => Some(
            "a rank without a handler for it ends, and has failed: the job's rules and restarts apply",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_name_with_and_without_sig_and_a_number() {
        for text in ["USR1", "SIGUSR1", "usr1", "SigUsr1", "10"] {
            assert_eq!(read(text), Ok(10), "{text}");
        }
        assert_eq!((read("KILL"), read("64")), (Ok(9), Ok(64)));
        for text in [
            "",
            "SIG",
            "0",
            "65",
            "-9",
            "USR3",
            "SIGSIGUSR1",
            "RTMIN",
            "1.0",
            " 9",
        ] {
            assert!(
                read(text).unwrap_err().contains("must be a signal"),
                "{text:?}"
            );
        }
        for text in ["32", "33"] {
            assert!(read(text).unwrap_err().contains("C library"), "{text}");
        }
        assert_eq!((name(10), name(40)), ("SIGUSR1".into(), "40".into()));
    }

    #[test]
    fn what_follows_is_said() {
        for (signal, word) in [
            ("KILL", "killed"),
            ("STOP", "SIGCONT"),
            ("USR1", "without a handler"),
            ("TERM", "without a handler"),
            ("40", "without a handler"),
        ] {
            let said = warning(read(signal).unwrap()).unwrap();
            assert!(said.contains(word), "{signal}: {said}");
        }
        for signal in ["CONT", "WINCH", "URG", "CHLD"] {
            assert_eq!(warning(read(signal).unwrap()), None, "{signal}");
        }
    }
}
