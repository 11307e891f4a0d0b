//! The launcher that has imported torch: its program, and how it gets its order.
//!
//! The program is one Python file, written into the runner's directory and run by the job's interpreter, so that images stay as they
//! are. The order travels as a descriptor: it holds a whole environment, secrets included, and must neither block the runner nor lie on
//! a disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;

use muster_runner::wire::{Lane, Order, StartSpec};
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::Serialize;

use crate::affinity;

/// The launcher's file, in the runner's directory.
pub(crate) const FILE: &str = "launcher.py";

const PROGRAM: &str = include_str!("../../../launcher/launcher.py");

/// A launcher that waits.
pub(crate) struct Parked {
    control: UnixStream,
}

/// The content of an order, as `launcher.py` reads it.
#[derive(Serialize)]
struct Content<'a> {
    lane: Lane,
    options: &'a [String],
    argv: &'a [String],
    cwd: &'a std::path::Path,
    first_rank: u32,
    /// Parked: one, torchrun's. Else one for each rank.
    envs: &'a [BTreeMap<String, String>],
    /// The CPUs each of them is kept to; none: it is left free.
    cpus: Vec<Vec<usize>>,
    peer_lost: &'a [String],
}

impl Parked {
    /// Writes the program into the current directory; returns our side and the descriptor the launcher inherits.
    pub(crate) fn prepare() -> io::Result<(Self, OwnedFd)> {
        let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(FILE)?;
        file.write_all(PROGRAM.as_bytes())?;
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self { control: ours }, OwnedFd::from(theirs)))
    }

    /// Hands the order over. The socket has room for the one byte and the one descriptor it ever carries.
    pub(crate) fn order(self, order: &Order, spec: &StartSpec, envs: &[BTreeMap<String, String>]) -> io::Result<()> {
        let Order { lane, options, argv, peer_lost, .. } = order;
        let lists = spec.env.get(affinity::NAME).map_or("", String::as_str);
        let cpus = (0..spec.ranks).map(|local| affinity::numbers(lists, local)).collect();
        let content = Content { lane: *lane, options, argv, cwd: &spec.cwd, first_rank: spec.first_rank, envs, cpus, peer_lost };
        let mut memory = File::from(rustix::fs::memfd_create("muster-order", MemfdFlags::CLOEXEC)?);
        memory.write_all(&serde_json::to_vec(&content)?)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [memory.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        rustix::net::sendmsg(&self.control, &[IoSlice::new(b"o")], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}
