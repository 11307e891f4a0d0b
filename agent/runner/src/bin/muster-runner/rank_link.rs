//! One rank's connection to its runner. The process that stands for the rank holds it: a shim, or
//! the attendant of all ranks.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use muster_runner::socket;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::Serialize;

use crate::ranks::{Hear, Say};

/// Why a rank is not started although nothing is wrong.
pub(crate) const STOPPED: &str = "the worker group is being stopped";

/// How long the ranks of a node may go on after one of them has failed, before they are told to end. The
/// first to end is not always the cause: a script that leaves its process group before its error ends it,
/// as in a `finally`, ends after those that have lost it, and a signal would take its error away. The
/// coordinator orders a stop sooner, as soon as it knows the cause. It waits 10 s for one
/// (`muster-coordinator --own-end`), so this wait is for a node that no coordinator reaches.
pub(crate) const OWN_END: Duration = Duration::from_secs(15);

/// The connection to the runner. Both sides are our code and take turns, so writes and the wait for
/// the first answer may block.
pub(crate) struct RankLink {
    pub(crate) stream: UnixStream,
    buffer: Vec<u8>,
    /// How many `ok`s came: one each for hello, started and exited.
    pub(crate) answers: u32,
}

impl RankLink {
    pub(crate) fn connect(dir: &Path) -> Result<Self, String> {
        let stream = socket::connect_rank(dir)
            .map_err(|e| format!("{}/{}: {e}", dir.display(), socket::RANKS))?;
        Ok(Self::adopt(stream, 0))
    }

    /// Takes over a connection on which the runner has answered this many lines and nothing more
    /// was read.
    pub(crate) fn adopt(stream: UnixStream, answers: u32) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            answers,
        }
    }

    /// Introduces the rank and hands over the read ends of its output. False: the worker group is
    /// being stopped, so the rank must not start.
    pub(crate) fn hello(&mut self, say: &Say, fds: &[BorrowedFd<'_>]) -> Result<bool, String> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
        let line = line(say);
        let sent = rustix::net::sendmsg(
            &self.stream,
            &[IoSlice::new(&line)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        );
        if sent.map_err(|e| format!("runner: {e}"))? != line.len() {
            return Err("runner: a short write".into());
        }
        while self.answers == 0 {
            for hear in self.hear()? {
                if hear.signal.is_some() {
                    return Ok(false);
                }
                if let Some(error) = hear.error {
                    return Err(format!("refused by the runner: {error}"));
                }
            }
        }
        Ok(true)
    }

    pub(crate) fn say(&mut self, say: &Say) -> Result<(), String> {
        self.tell(say)
    }

    pub(crate) fn tell(&mut self, words: &impl Serialize) -> Result<(), String> {
        self.stream
            .write_all(&line(words))
            .map_err(|e| format!("runner: {e}"))
    }

    /// Reads once and returns the whole lines. An error means that the runner is gone.
    pub(crate) fn hear(&mut self) -> Result<Vec<Hear>, String> {
        let mut bytes = [0u8; 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Err("the runner is gone".into()),
            Ok(n) => self.buffer.extend_from_slice(&bytes[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(format!("runner: {e}")),
        }
        let mut heard = Vec::new();
        while let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let hear: Hear =
                serde_json::from_slice(&line[..end]).map_err(|e| format!("runner: {e}"))?;
            self.answers += u32::from(hear.ok);
            heard.push(hear);
        }
        Ok(heard)
    }
}

fn line(words: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(words).expect("numbers always serialize");
    line.push(b'\n');
    line
}
