//! The connection to a launcher that has imported torch: its program, the messages to it, and its
//! answers.
//!
//! The program is one Python file. The runner writes it into its own directory, and the job's
//! interpreter runs it, so images need no change. Each message is sent as a descriptor. An order
//! holds a whole environment with its secrets: it must not block the runner and must not lie on a
//! disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use muster_runner::Folder;
use muster_runner::wire::{Lane, Order, StandbySpec, StartSpec};
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};

use crate::affinity;

/// The launcher's file, in the runner's directory.
pub(crate) const FILE: &str = "launcher.py";

/// The eight parts use each other's names and form one program.
const PROGRAM: &str = concat!(
    include_str!("../../../launcher/launcher.py"),
    "\n\n",
    include_str!("../../../launcher/chain.py"),
    "\n\n",
    include_str!("../../../launcher/standby.py"),
    "\n\n",
    include_str!("../../../launcher/preload.py"),
    "\n\n",
    include_str!("../../../launcher/guard.py"),
    "\n\n",
    include_str!("../../../launcher/marks.py"),
    "\n\n",
    include_str!("../../../launcher/worker_server.py"),
    "\n\n",
    include_str!("../../../launcher/rank.py")
);

/// The longest answer of a launcher: a path and a sentence.
const ANSWER_MAX: usize = 64 << 10;

/// A launcher that waits for an order or a request.
pub(crate) struct Parked {
    control: UnixStream,
    heard: Vec<u8>,
}

/// The content of an order, as `launcher.py` reads it.
#[derive(Serialize)]
struct Content<'a> {
    lane: Lane,
    options: &'a [String],
    argv: &'a [String],
    cwd: &'a Path,
    first_rank: u32,
    /// For the parked lane, one environment, which is torchrun's. For the others, one for each
    /// rank.
    envs: &'a [BTreeMap<String, String>],
    /// The CPUs that each rank may use. An empty list leaves the rank free.
    cpus: Vec<Vec<usize>>,
    peer_lost: &'a [String],
    /// Each rank can be asked for its stacks.
    inspect: bool,
    /// Each rank opens torch's worker server.
    collectives: bool,
}

/// A request to a launcher that stays.
#[derive(Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Ask<'a> {
    /// Fork a runner for this directory, with a copy of the launcher as its child. `runner` is the
    /// program and its arguments.
    Fork {
        token: u64,
        dir: &'a Path,
        runner: Vec<String>,
    },
    /// Become the launcher of a job, with the job's folder and environment.
    Adopt {
        token: u64,
        cwd: &'a Path,
        env: &'a BTreeMap<String, String>,
    },
    /// Import the modules that `preload.txt` lists.
    Preload { token: u64 },
    /// Make standbys for the next generation, or end them.
    Standbys {
        token: u64,
        #[serde(flatten)]
        spec: &'a StandbySpec,
    },
}

/// An answer of a launcher that stays.
#[derive(Deserialize)]
pub(crate) struct Said {
    /// The request that this answers. 0 is the start of the launcher.
    pub(crate) token: u64,
    /// None: the request was carried out.
    pub(crate) error: Option<String>,
}

impl Parked {
    /// Writes the program into the current directory. Returns our side and the descriptor that the
    /// launcher inherits.
    pub(crate) fn prepare() -> io::Result<(Self, OwnedFd)> {
        Folder::trusted(Path::new("."))?.replace_unsynced(FILE, PROGRAM.as_bytes())?;
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::from(ours), OwnedFd::from(theirs)))
    }

    pub(crate) fn control(&self) -> &UnixStream {
        &self.control
    }

    /// Hands over the order of a start. The socket has room for the one byte and the one descriptor
    /// that it ever carries.
    pub(crate) fn order(
        self,
        order: &Order,
        spec: &StartSpec,
        envs: &[BTreeMap<String, String>],
    ) -> io::Result<()> {
        let Order {
            lane,
            options,
            argv,
            peer_lost,
            inspect,
            collectives,
            ..
        } = order;
        let lists = spec.env.get(affinity::NAME).map_or("", String::as_str);
        let cpus = (0..spec.ranks)
            .map(|local| affinity::numbers(lists, local))
            .collect();
        self.send(&Content {
            lane: *lane,
            options,
            argv,
            cwd: &spec.cwd,
            first_rank: spec.first_rank,
            envs,
            cpus,
            peer_lost,
            inspect: *inspect,
            collectives: *collectives,
        })
    }

    pub(crate) fn ask(&self, ask: &Ask<'_>) -> io::Result<()> {
        self.send(ask)
    }

    fn send(&self, content: &impl Serialize) -> io::Result<()> {
        let mut memory = File::from(rustix::fs::memfd_create(
            "muster-order",
            MemfdFlags::CLOEXEC,
        )?);
        memory.write_all(&serde_json::to_vec(content)?)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [memory.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        rustix::net::sendmsg(
            &self.control,
            &[IoSlice::new(b"o")],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// The answers of a launcher that stays, since the last call. An error means that the launcher
    /// has closed the connection.
    pub(crate) fn answers(&mut self) -> io::Result<Vec<Said>> {
        let mut bytes = [0u8; 4096];
        match self.control.read(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.heard.extend_from_slice(&bytes[..count]),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(e),
        }
        if self.heard.len() > ANSWER_MAX {
            return Err(io::Error::other("an answer of the launcher is too long"));
        }
        let mut said = Vec::new();
        while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
            let rest = self.heard.split_off(end + 1);
            let line = std::mem::replace(&mut self.heard, rest);
            said.push(serde_json::from_slice(&line)?);
        }
        Ok(said)
    }
}

impl From<UnixStream> for Parked {
    fn from(control: UnixStream) -> Self {
        Self {
            control,
            heard: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::PROGRAM;

    /// A function of one part would otherwise silently take the place of another part's.
    #[test]
    fn no_name_is_given_twice() {
        let name = |line: &'static str| {
            let defined = ["def ", "class "]
                .iter()
                .find_map(|word| line.strip_prefix(word));
            let (name, rest) = match defined {
                Some(rest) => rest.split_once(['(', ':'])?,
                None => line.split_once(" = ")?,
            };
            let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
            (is_name && !rest.is_empty()).then_some(name)
        };
        let mut seen = BTreeSet::new();
        let twice: Vec<&str> = { PROGRAM.lines().filter_map(name) }
            .filter(|name| !seen.insert(*name))
            .collect();
        assert!(seen.len() > 100, "{seen:?}");
        assert!(twice.is_empty(), "{twice:?}");
    }
}
