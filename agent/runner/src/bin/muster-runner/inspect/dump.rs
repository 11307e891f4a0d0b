//! The stacks that a rank's interpreter writes at a signal, without its lock.
//!
//! The forked rank has registered CPython's handler for the signal, with a file in the run's directory. The
//! signal would end a process that does not catch it, and a script may have closed the file and have another
//! one under its number. So both are looked at before the signal is sent.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use muster_runner::Folder;
use muster_runner::procfs::{self, Dispositions};
use muster_runner::wire::stacks_file;
use rustix::process::Signal;

use crate::time;

/// `STACKS_SIGNAL` of the launcher's program.
const SIGNAL: Signal = Signal::STKFLT;
/// The longest text of one dump: 100 threads of 100 frames would be longer, and are cut.
const DUMP_MAX: u64 = 1 << 20;

const NOT_PREPARED: &str = "only ranks that Muster forks can be asked (launch: fork, or direct from the second generation on), and none with inspect: off";

pub(crate) struct Dump {
    rank: u32,
    pub(crate) looked: Duration,
    /// Where this dump begins in the file.
    from: u64,
    /// How long the file was at the last look.
    seen: u64,
}

impl Dump {
    /// Tells the interpreter to write.
    ///
    /// # Errors
    /// Why it cannot be told.
    pub(crate) fn begin(
        rank: u32,
        pid: i32,
        start_time: u64,
        now: Duration,
    ) -> Result<Self, String> {
        let no = |why: &str| format!("its interpreter cannot write its stacks: {why}");
        let name = stacks_file(rank);
        let head = head(rank).map_err(|_| NOT_PREPARED.to_owned())?;
        let fd: u32 = { head.first() }
            .and_then(|line| line.parse().ok())
            .ok_or_else(|| no("it was not prepared for that"))?;
        if !procfs::has_open(pid, fd, &name) {
            return Err(no("the script has closed the file for them"));
        }
        if !Dispositions::of(pid).is_some_and(|all| all.catches(SIGNAL)) {
            return Err(no("the script has another use for the signal"));
        }
        let from = length(rank).map_err(|e| no(&format!("{name}: {e}")))?;
        procfs::signal(pid, start_time, SIGNAL).map_err(|e| no(&e.to_string()))?;
        Ok(Dump {
            rank,
            looked: now,
            from,
            seen: from,
        })
    }

    /// The text, once it does not grow any more between two looks.
    pub(crate) fn look(&mut self) -> Option<String> {
        self.looked = time::boot();
        let now = length(self.rank).ok()?;
        let grows = std::mem::replace(&mut self.seen, now) != now;
        if grows || now <= self.from {
            return None;
        }
        let mut file = Folder::trusted(Path::new("."))
            .ok()?
            .open(stacks_file(self.rank))
            .ok()?;
        file.seek(SeekFrom::Start(self.from)).ok()?;
        let mut text = Vec::new();
        file.take(DUMP_MAX).read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Why a rank has no worker server.
pub(crate) fn why_no_server(rank: u32) -> String {
    let Ok(head) = head(rank) else {
        return NOT_PREPARED.to_owned();
    };
    match head.get(1).and_then(|line| line.strip_prefix('!')) {
        Some(why) => format!("its worker server could not be opened: {why}"),
        None => "its worker server has ended".to_owned(),
    }
}

/// The first two lines of the file.
fn head(rank: u32) -> io::Result<Vec<String>> {
    let file = Folder::trusted(Path::new("."))?.open(stacks_file(rank))?;
    let mut bytes = Vec::new();
    file.take(1_024).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().take(2).map(str::to_owned).collect())
}

fn length(rank: u32) -> io::Result<u64> {
    let file = Folder::trusted(Path::new("."))?.open(stacks_file(rank))?;
    Ok(file.metadata()?.len())
}
