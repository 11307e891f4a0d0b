//! One epoll for everything the runner waits for; each descriptor carries a [`Source`] that says whose it is.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// Events of one turn: what is left is returned by the next wait, so a flood on many descriptors cannot starve one.
const BATCH: usize = 64;

/// Whose descriptor is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Signals,
    ControlListener,
    RanksListener,
    Store,
    /// A connection of the control socket.
    Client(u32),
    /// A connection of the ranks socket.
    Shim(u32),
    /// Output number `id`, stdout 0 or stderr 1.
    Stream(u32, u8),
}

impl Source {
    fn pack(self) -> u64 {
        let (kind, id, side) = match self {
            Source::Signals => (0, 0, 0),
            Source::ControlListener => (1, 0, 0),
            Source::RanksListener => (2, 0, 0),
            Source::Store => (3, 0, 0),
            Source::Client(id) => (4, id, 0),
            Source::Shim(id) => (5, id, 0),
            Source::Stream(id, side) => (6, id, side),
        };
        u64::from(id) << 32 | u64::from(side) << 8 | kind
    }

    fn unpack(data: u64) -> Source {
        let (id, side) = ((data >> 32) as u32, (data >> 8) as u8);
        match data as u8 {
            0 => Source::Signals,
            1 => Source::ControlListener,
            2 => Source::RanksListener,
            3 => Source::Store,
            4 => Source::Client(id),
            5 => Source::Shim(id),
            _ => Source::Stream(id, side),
        }
    }
}

/// What a descriptor is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    Write,
    Both,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Interest::Read => EventFlags::IN,
            Interest::Write => EventFlags::OUT,
            Interest::Both => EventFlags::IN | EventFlags::OUT,
        }
    }
}

pub(crate) struct Poll {
    epoll: OwnedFd,
    ready: Vec<epoll::Event>,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, ready: Vec::with_capacity(BATCH) })
    }

    pub(crate) fn add(&self, fd: impl AsFd, source: Source, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(source.pack()), interest.flags())?)
    }

    pub(crate) fn change(&self, fd: impl AsFd, source: Source, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(source.pack()), interest.flags())?)
    }

    /// Must be called before the descriptor is closed where a copy of it may live on in another process.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until something is ready or `timeout` is over.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Vec<Source>> {
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        self.ready.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.ready), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(self.ready.iter().map(|event| Source::unpack(event.data.u64())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Source;

    #[test]
    fn sources_survive_packing() {
        let all = [
            Source::Signals,
            Source::ControlListener,
            Source::RanksListener,
            Source::Store,
            Source::Client(u32::MAX),
            Source::Shim(7),
            Source::Stream(3, 0),
            Source::Stream(u32::MAX, 1),
        ];
        for source in all {
            assert_eq!(Source::unpack(source.pack()), source);
        }
    }
}
