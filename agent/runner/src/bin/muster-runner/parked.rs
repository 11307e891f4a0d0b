//! The way to a launcher that has imported torch: its program, what it is told, and what it
//! answers.
//!
//! The program is one Python file, written into the runner's directory and run by the job's
//! interpreter, so that images stay as they are. A message travels as a descriptor: an order holds
//! a whole environment, secrets included, and must neither block the runner nor lie on a disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use muster_runner::wire::{Lane, Order, StartSpec};
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};

use crate::affinity;

/// The launcher's file, in the runner's directory.
pub(crate) const FILE: &str = "launcher.py";

/// The three parts refer to each other and are one program.
const PROGRAM: &str = concat!(
    include_str!("../../../launcher/launcher.py"),
    "\n\n",
    include_str!("../../../launcher/preload.py"),
    "\n\n",
    include_str!("../../../launcher/rank.py")
);

/// Longest answer of a launcher: a path and a sentence.
const ANSWER_MAX: usize = 64 << 10;

/// A launcher that waits.
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
    /// Parked: one, torchrun's. Else one for each rank.
    envs: &'a [BTreeMap<String, String>],
    /// The CPUs each of them is kept to; none: it is left free.
    cpus: Vec<Vec<usize>>,
    peer_lost: &'a [String],
}

/// What a launcher that stays is asked for.
#[derive(Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Ask<'a> {
    /// A runner for this directory, and a copy of the launcher as its child. `runner`: the program
    /// and its arguments.
    Fork {
        token: u64,
        dir: &'a Path,
        runner: Vec<String>,
    },
    /// To go on as the launcher of a job, with its folder and its environment.
    Adopt {
        token: u64,
        cwd: &'a Path,
        env: &'a BTreeMap<String, String>,
    },
    /// To import what `preload.txt` lists.
    Preload { token: u64 },
}

/// An answer of a launcher that stays.
#[derive(Deserialize)]
pub(crate) struct Said {
    /// Which request it answers; 0 is the start of the launcher.
    pub(crate) token: u64,
    /// None: it is done.
    pub(crate) error: Option<String>,
}

impl Parked {
    /// Writes the program into the current directory; returns our side and the descriptor the
    /// launcher inherits.
    pub(crate) fn prepare() -> io::Result<(Self, OwnedFd)> {
        let mut file = File::options()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(FILE)?;
        file.write_all(PROGRAM.as_bytes())?;
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::from(ours), OwnedFd::from(theirs)))
    }

    pub(crate) fn control(&self) -> &UnixStream {
        &self.control
    }

    /// Hands the order of a start over. The socket has room for the one byte and the one descriptor
    /// it ever carries.
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

    /// What a launcher that stays has answered since this was last asked; an error once it says no
    /// more.
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
