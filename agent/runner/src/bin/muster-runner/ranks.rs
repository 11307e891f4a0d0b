//! `ranks.sock`: the shim of each rank reports here to the runner.
//!
//! There is one connection per rank and one JSON object per line. The shim says `hello` and hands
//! over the read ends of the rank's output, then says `started`, then `exited`. It waits for the
//! answer to each, so an exit is on disk before torchrun sees it. The connection is also a
//! lifeline: a shim that loses it kills its rank.
//!
//! The runner judges a peer by what the kernel says of it. It tells a peer that breaks a rule why,
//! and closes the connection.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use muster_runner::procfs::Stat;
use muster_runner::wire::Exit;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use serde::{Deserialize, Serialize};

use crate::group::Expected;
use crate::poll::{Interest, Poll, Source};
use crate::{sys, tree};

/// The longest line from a shim: four numbers and their names.
const MAX_LINE: usize = 4 << 10;

/// How many connections there may be beyond one per rank, for strangers that are being refused.
const EXTRA: usize = 16;

/// A line from the shim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum Say {
    Hello {
        v: u32,
        rank: u32,
        local_rank: u32,
        pid: i32,
    },
    Started {
        pid: i32,
        start_time: u64,
        at_us: u64,
    },
    Exited {
        exit: Exit,
        at_us: u64,
    },
}

/// `started` with what only a shim below torchrun knows.
#[derive(Serialize)]
pub(crate) struct Told {
    #[serde(flatten)]
    pub(crate) say: Say,
    #[serde(flatten)]
    pub(crate) more: More,
}

/// What a line from the shim may say besides.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct More {
    /// The file in which `@record` notes the rank's exception, as torchrun has named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error_file: Option<String>,
}

/// A line to the shim: `ok` after each line of the shim, `signal` at any time, `error` as the last
/// line. `restart` tells the attendant to start a rank again that has ended. The rank then has a
/// connection of its own again.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Hear {
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) restart: bool,
}

/// What the runner learns from a shim, with the rank that it is about.
pub(crate) enum Event {
    Hello {
        rank: u32,
        local_rank: u32,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    Started {
        rank: u32,
        pid: i32,
        start_time: u64,
        at_us: u64,
        error_file: Option<String>,
    },
    Exited {
        rank: u32,
        exit: Exit,
        at_us: u64,
    },
}

pub(crate) struct Ranks {
    listener: UnixListener,
    shims: BTreeMap<u32, Shim>,
    next: u32,
    /// Ranks that have said hello. Each may say it once, and once more after each restart.
    seen: BTreeSet<u32>,
}

struct Shim {
    stream: UnixStream,
    pid: i32,
    buffer: Vec<u8>,
    fds: Vec<OwnedFd>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Silent,
    Greeted(u32),
    Started(u32),
    Exited(u32),
    /// The rank was told to start again, so this connection is no longer its own.
    Left,
}

impl Ranks {
    /// Listens on the socket in the current directory.
    pub(crate) fn listen(poll: &Poll) -> io::Result<Self> {
        let listener = muster_runner::socket::listen(muster_runner::socket::RANKS)?;
        listener.set_nonblocking(true)?;
        poll.add(&listener, Source::RanksListener, Interest::Read)?;
        Ok(Self {
            listener,
            shims: BTreeMap::new(),
            next: 0,
            seen: BTreeSet::new(),
        })
    }

    /// Accepts one connection. `expected` are the ranks of the started group.
    pub(crate) fn accept(&mut self, poll: &Poll, expected: Option<&Expected>) {
        let Ok((stream, _)) = self.listener.accept() else {
            return;
        };
        let Ok(peer) = sys::peer(&stream) else { return };
        let mut shim = Shim {
            stream,
            pid: peer.pid,
            buffer: Vec::new(),
            fds: Vec::new(),
            stage: Stage::Silent,
        };
        if shim.stream.set_nonblocking(true).is_err() {
            return;
        }
        let own = rustix::process::geteuid().as_raw();
        let room = expected.map_or(0, Expected::len) + EXTRA;
        if peer.uid != own && peer.uid != 0 {
            shim.refuse(&format!("uid {} is not this runner's", peer.uid));
        } else if self.shims.len() >= room {
            shim.refuse(&format!("no room for more than {room} connections"));
        } else {
            let id = self.next;
            self.next = self.next.wrapping_add(1);
            if poll
                .add(&shim.stream, Source::Shim(id), Interest::Read)
                .is_ok()
            {
                self.shims.insert(id, shim);
            }
        }
    }

    /// Reads one connection. It is removed if it ends or breaks a rule.
    pub(crate) fn read(&mut self, id: u32, poll: &Poll, expected: Option<&Expected>) -> Vec<Event> {
        let mut events = Vec::new();
        let Some(shim) = self.shims.get_mut(&id) else {
            return events;
        };
        let outcome = loop {
            match shim.receive() {
                Ok(Received::Bytes) => {}
                Ok(Received::Later) => break Ok(true),
                Ok(Received::End) => break Ok(false),
                Err(wrong) => break Err(wrong),
            }
            match shim.lines(&mut self.seen, expected, &mut events) {
                Ok(()) => {}
                Err(wrong) => break Err(wrong),
            }
        };
        if let Err(wrong) = &outcome {
            shim.refuse(wrong);
        }
        if !matches!(outcome, Ok(true)) {
            poll.remove(&shim.stream);
            self.shims.remove(&id);
        }
        events
    }

    /// Answers the last line of the rank's shim.
    pub(crate) fn answer(&mut self, rank: u32, hear: &Hear) {
        if let Some(shim) = self
            .shims
            .values_mut()
            .find(|s| s.stage.rank() == Some(rank))
        {
            shim.tell(hear);
        }
    }

    /// Tells every shim to pass a signal on to its rank.
    pub(crate) fn signal(&mut self, signal: i32) {
        for shim in self.shims.values_mut().filter(|s| s.stage.rank().is_some()) {
            shim.tell(&Hear {
                signal: Some(signal),
                ..Hear::default()
            });
        }
    }

    /// Tells the attendant to start a rank again that has ended. False: the attendant is gone.
    pub(crate) fn restart(&mut self, rank: u32) -> bool {
        let mut shims = self.shims.values_mut();
        let Some(shim) = shims.find(|s| s.stage == Stage::Exited(rank)) else {
            return false;
        };
        shim.tell(&Hear {
            restart: true,
            ..Hear::default()
        });
        shim.stage = Stage::Left;
        self.seen.remove(&rank);
        true
    }

    /// The processes that stand for a rank.
    pub(crate) fn shims(&self) -> impl Iterator<Item = i32> {
        let known = self
            .shims
            .values()
            .filter(|shim| shim.stage.rank().is_some());
        known.map(|shim| shim.pid)
    }

    /// All open connections.
    pub(crate) fn connections(&self) -> Vec<u32> {
        self.shims.keys().copied().collect()
    }
}

impl Stage {
    fn rank(self) -> Option<u32> {
        match self {
            Stage::Silent | Stage::Left => None,
            Stage::Greeted(rank) | Stage::Started(rank) | Stage::Exited(rank) => Some(rank),
        }
    }
}

enum Received {
    Bytes,
    Later,
    End,
}

impl Shim {
    fn receive(&mut self) -> Result<Received, String> {
        let mut bytes = [0u8; 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = match rustix::net::recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            flags,
        ) {
            Ok(got) => got,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Received::Later),
            Err(_) => return Ok(Received::End),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if self.fds.len() > 2 || got.flags.contains(ReturnFlags::CTRUNC) {
            return Err("more than two descriptors".into());
        }
        if got.bytes == 0 {
            return Ok(Received::End);
        }
        self.buffer.extend_from_slice(&bytes[..got.bytes]);
        Ok(Received::Bytes)
    }

    fn lines(
        &mut self,
        seen: &mut BTreeSet<u32>,
        expected: Option<&Expected>,
        events: &mut Vec<Event>,
    ) -> Result<(), String> {
        while let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let say = serde_json::from_slice(&line[..end])
                .map_err(|e| format!("not a line of a shim: {e}"))?;
            let mut event = self.check(say, seen, expected)?;
            if let Event::Started { error_file, .. } = &mut event {
                let more: More = serde_json::from_slice(&line[..end]).unwrap_or_default();
                *error_file = more.error_file;
            }
            events.push(event);
        }
        if self.buffer.len() > MAX_LINE {
            return Err(format!("a line is longer than {MAX_LINE} bytes"));
        }
        Ok(())
    }

    /// Checks one line against the stage of this connection and against what the kernel says.
    fn check(
        &mut self,
        say: Say,
        seen: &mut BTreeSet<u32>,
        expected: Option<&Expected>,
    ) -> Result<Event, String> {
        match (say, self.stage) {
            (
                Say::Hello {
                    v,
                    rank,
                    local_rank,
                    pid,
                },
                Stage::Silent,
            ) => {
                if v != muster_runner::wire::VERSION {
                    return Err(format!("hello: v: {v} is not a version this runner speaks"));
                }
                let Some(expected) = expected else {
                    return Err("hello: nothing was started".into());
                };
                let Some(local) = expected.local(rank) else {
                    return Err(format!("hello: rank {rank} is not one of {expected}"));
                };
                if local_rank != local {
                    return Err(format!(
                        "hello: rank {rank} cannot have local rank {local_rank}"
                    ));
                }
                if pid != self.pid {
                    return Err(format!(
                        "hello: pid {pid} is not the peer, which is {}",
                        self.pid
                    ));
                }
                let Ok([stdout, stderr]) = <[OwnedFd; 2]>::try_from(std::mem::take(&mut self.fds))
                else {
                    return Err("hello: two descriptors are missing".into());
                };
                if ![&stdout, &stderr].into_iter().all(is_pipe) {
                    return Err("hello: the descriptors are not pipes".into());
                }
                if !tree::is_descendant(pid) {
                    return Err(format!("hello: pid {pid} is not of this worker group"));
                }
                if !seen.insert(rank) {
                    return Err(format!("hello: rank {rank} has been here before"));
                }
                self.stage = Stage::Greeted(rank);
                Ok(Event::Hello {
                    rank,
                    local_rank,
                    stdout,
                    stderr,
                })
            }
            (
                Say::Started {
                    pid,
                    start_time,
                    at_us,
                },
                Stage::Greeted(rank),
            ) => {
                // A shim names its own pid if the program could not be started.
                if pid != self.pid && Stat::of(pid).is_ok_and(|s| s.ppid != self.pid) {
                    return Err(format!("started: pid {pid} is not a child of the shim"));
                }
                self.stage = Stage::Started(rank);
                Ok(Event::Started {
                    rank,
                    pid,
                    start_time,
                    at_us,
                    error_file: None,
                })
            }
            (Say::Exited { exit, at_us }, Stage::Started(rank)) => {
                self.stage = Stage::Exited(rank);
                Ok(Event::Exited { rank, exit, at_us })
            }
            (say, _) => {
                let name = match say {
                    Say::Hello { .. } => "hello",
                    Say::Started { .. } => "started",
                    Say::Exited { .. } => "exited",
                };
                Err(format!("{name}: not now"))
            }
        }
    }

    fn refuse(&mut self, why: &str) {
        self.tell(&Hear {
            error: Some(why.to_owned()),
            ..Hear::default()
        });
    }

    /// A shim gets only a few short lines in its life, so the socket always has room. If it has
    /// none, the shim will soon be gone.
    fn tell(&mut self, hear: &Hear) {
        let mut line = serde_json::to_vec(hear).expect("strings always serialize");
        line.push(b'\n');
        let _ = self.stream.write_all(&line);
    }
}

fn is_pipe(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_fifo())
}
