//! One connection to a lender, from its first byte to its last. It never blocks.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::channel::{self, End, HELLO, Kind, MAX, Opener, Sealer};
use super::rsh::keep_alive;

/// How much may wait for the network or for a command. A reader that is slower stops the writer.
pub(super) const HELD_MAX: usize = 4 * MAX;

pub(super) struct Client {
    stream: TcpStream,
    pub(super) since: Duration,
    own: [u8; HELLO],
    stage: Stage,
    unsent: Vec<u8>,
    /// Nothing more will be said.
    finished: bool,
    broken: bool,
}

enum Stage {
    /// The first bytes of the other end, as far as they have come.
    Begun(Vec<u8>),
    Open {
        sealer: Box<Sealer>,
        opener: Box<Opener>,
        /// One frame was opened, so the other end has the key.
        proven: bool,
    },
}

pub(super) enum Heard {
    Frame(Kind, Vec<u8>),
    /// It does not have the key, or speaks another protocol.
    Stranger(String),
}

impl Client {
    pub(super) fn new(stream: TcpStream, now: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let own = channel::hello().map_err(io::Error::other)?;
        Ok(Self {
            stream,
            since: now,
            own,
            stage: Stage::Begun(Vec::new()),
            unsent: own.to_vec(),
            finished: false,
            broken: false,
        })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn proven(&self) -> bool {
        matches!(self.stage, Stage::Open { proven: true, .. })
    }

    /// Reads what has come.
    pub(super) fn read(&mut self, key: &str) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.broken = true,
            Ok(n) => {
                if let Err(why) = self.take(&bytes[..n], key, &mut heard) {
                    self.broken = true;
                    heard.push(Heard::Stranger(why));
                }
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(_) => self.broken = true,
        }
        heard
    }

    fn take(&mut self, bytes: &[u8], key: &str, heard: &mut Vec<Heard>) -> Result<(), String> {
        let mut rest = bytes;
        if let Stage::Begun(begun) = &mut self.stage {
            let missing = (HELLO - begun.len()).min(rest.len());
            begun.extend_from_slice(&rest[..missing]);
            rest = &rest[missing..];
            let Ok(theirs) = <[u8; HELLO]>::try_from(begun.as_slice()) else {
                return Ok(());
            };
            let (sealer, opener) = channel::open(End::Lender, key, &theirs, &self.own)?;
            self.stage = Stage::Open {
                sealer: Box::new(sealer),
                opener: Box::new(opener),
                proven: false,
            };
        }
        if let Stage::Open { opener, proven, .. } = &mut self.stage {
            opener.feed(rest);
            while let Some((kind, content)) = opener.next()? {
                *proven = true;
                heard.push(Heard::Frame(kind, content));
            }
        }
        Ok(())
    }

    pub(super) fn say(&mut self, kind: Kind, content: &[u8]) {
        if let Stage::Open { sealer, .. } = &mut self.stage {
            self.unsent.extend(sealer.seal(kind, content));
            self.flush();
        }
    }

    /// Nothing more will be said. The connection ends when all is sent.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.unsent.len() >= HELD_MAX
    }

    pub(super) fn is_over(&self) -> bool {
        self.broken || self.finished && self.unsent.is_empty()
    }

    /// Sends what the network takes.
    pub(super) fn flush(&mut self) {
        while !self.unsent.is_empty() && !self.broken {
            match self.stream.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.broken = true,
            }
        }
    }
}
