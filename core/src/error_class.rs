//! Of what kind an error is: the program's own, its data's, the memory's, the hardware's, and so on. It is read
//! from how a process ended, from its exception, or from the check of a node. It never says who pays, nor which of
//! several errors was the first (`fleet::blame`).
//!
//! What the evidence does not tell is [`ErrorClass::Unknown`], never a guess. So a `RuntimeError` that no table
//! knows has no class, nor has a segmentation fault, an illegal address on a GPU, or a missing file: code, data,
//! hardware and a mount that is late all look like that.

mod os;
mod signs;

use serde::{Deserialize, Serialize};

use crate::{
    exit::{Exit, LAST_OUTPUT, NO_RANK_BEGAN, OUT_OF_MEMORY, SIGINT},
    run::RankException,
};

/// The kind of an incident's first error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ErrorClass {
    /// The program did what cannot work: an exception of its own, a shape that does not fit, another
    /// collective than its peers.
    Code,
    /// What the program read is damaged, or not of the form that it expects.
    Data,
    /// A person stopped it.
    UserStop,
    /// The node has no memory left for it, shared memory included.
    HostMemory,
    GpuMemory,
    /// A GPU is broken, by its driver's word.
    GpuHardware,
    /// A link or an adapter of one node: NVLink, PCIe, a port.
    Link,
    /// Between nodes.
    Network,
    /// A disk or a file system does not do what it should, or is full.
    Storage,
    /// What starts the ranks failed before they ran, or what it should start is not there.
    Launcher,
    /// A node, its software or what surrounds it.
    Infrastructure,
    /// The evidence does not tell, or a later version wrote it.
    #[serde(other)]
    Unknown,
}

impl ErrorClass {
    /// Whether another start, on any node, meets the same again unless somebody changes something.
    pub(crate) fn stays_with_the_job(self) -> bool {
        matches!(self, ErrorClass::Code | ErrorClass::Data)
    }
}

/// A shell's exit codes for a command that it cannot execute, and that it does not find
/// (POSIX, Shell Command Language, 2.8.2).
const NOT_A_COMMAND: [i32; 2] = [126, 127];

/// The class of how a process ended. `error`: the line that says why. `exception`: what that line is about.
pub(crate) fn of_end(
    exit: Exit,
    error: Option<&str>,
    exception: Option<&RankException>,
) -> ErrorClass {
    let of_exit = match exit {
        Exit::Code(code) if NOT_A_COMMAND.contains(&code) => Some(ErrorClass::Launcher),
        Exit::Signal(SIGINT) => Some(ErrorClass::UserStop),
        _ => None,
    };
    let error = error.filter(|error| !error.starts_with(LAST_OUTPUT));
    of_exit
        .or_else(|| of_words(error?, exception))
        .unwrap_or(ErrorClass::Unknown)
}

/// The class that the line tells. `None`: it tells none.
pub(crate) fn of_words(error: &str, exception: Option<&RankException>) -> Option<ErrorClass> {
    if error.starts_with(OUT_OF_MEMORY) {
        return Some(ErrorClass::HostMemory);
    }
    if error.starts_with(NO_RANK_BEGAN) {
        return Some(ErrorClass::Launcher);
    }
    let (name, text) = match exception {
        Some(exception) => (exception.name.as_str(), exception.text.as_str()),
        None => error.split_once(": ").unwrap_or((error, "")),
    };
    let raised_in = exception.and_then(|exception| exception.frames.last());
    signs::of_text(error)
        .or_else(|| os::of_text(error, raised_in.map(String::as_str)))
        .or_else(|| signs::of_exception(name, text))
}

/// The class of a node's own finding, by the name of its check in `health/table.txt`.
pub(crate) fn of_check(check: &str) -> ErrorClass {
    signs::of_check(check)
}

#[cfg(test)]
mod tests;
