//! The output of one rank or of the launcher: two pipes go into one log, and steps and errors are
//! found in them on the way.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use muster_runner::wire::{Exit, MAX_RANKS};
use muster_steps::{Reader, Step};
use rustix::io::Errno;

use crate::lines::{Lines, Seen};
use crate::logs::Log;
use crate::mouth::Mouth;
use crate::search::Search;
use crate::why::{Finder, Left, Reason};

/// How many lines of stderr are kept for a failed rank, and how many bytes of each.
const TAIL_LINES: usize = 20;
const TAIL_LINE: usize = 500;

/// The most bytes that all tails of one status may hold, so that a status with 256 failed ranks
/// stays small.
const TAILS: usize = 256 << 10;

/// Bytes of one read. A turn reads once from each stream: with 64 flooding streams it moves 4 MiB,
/// which takes some milliseconds.
pub(crate) const CHUNK: usize = 64 << 10;

/// How often to read after a process has ended. Its last output is in the pipe, which holds at most
/// 1 MiB by Linux's default limit: 16 reads, and one that finds the end.
const LAST_READS: usize = 17;

/// One pipe.
struct Stream {
    fd: OwnedFd,
    lines: Lines,
}

pub(crate) struct Output {
    log: Log,
    streams: [Option<Stream>; 2],
    tail: VecDeque<Vec<u8>>,
    why: Finder,
    mouth: Option<Mouth>,
    pub(crate) bytes: u64,
    pub(crate) steps: Steps,
}

/// The steps that an output has shown.
#[derive(Default)]
pub(crate) struct Steps {
    reader: Reader,
    pub(crate) first: Option<(u64, Duration)>,
    pub(crate) last: Option<(Step, Duration)>,
    /// How many lines were read before the first step.
    pub(crate) lines_before: u64,
}

/// The result of one read.
pub(crate) enum Read {
    /// It read some bytes; more may follow.
    Some,
    Nothing,
    /// All writers are gone. The caller closes the descriptor.
    End(OwnedFd),
}

impl Output {
    /// Takes over the read ends of a process's stdout and stderr.
    pub(crate) fn new(
        log: Log,
        mouth: Option<Mouth>,
        stdout: OwnedFd,
        stderr: OwnedFd,
    ) -> io::Result<Self> {
        Ok(Self {
            log,
            streams: streams(stdout, stderr)?,
            tail: VecDeque::new(),
            why: Finder::default(),
            mouth,
            bytes: 0,
            steps: Steps::default(),
        })
    }

    /// Goes on with another process's stdout and stderr, in the same log. What was known of the one
    /// before is forgotten.
    pub(crate) fn go_on(
        &mut self,
        stdout: OwnedFd,
        stderr: OwnedFd,
        stamp: &str,
    ) -> io::Result<()> {
        let streams = streams(stdout, stderr)?;
        self.close(stamp);
        self.streams = streams;
        self.tail.clear();
        self.why = Finder::default();
        (self.bytes, self.steps) = (0, Steps::default());
        Ok(())
    }

    /// The open pipes, each with its side.
    pub(crate) fn open(&self) -> impl Iterator<Item = (u8, &OwnedFd)> {
        self.streams
            .iter()
            .zip(0..)
            .filter_map(|(stream, side)| Some((side, &stream.as_ref()?.fd)))
    }

    /// Reads once from one side.
    pub(crate) fn read(
        &mut self,
        side: u8,
        buffer: &mut [u8],
        search: &mut Search,
        now: Duration,
        stamp: &str,
    ) -> Read {
        let Some(slot) = self.streams.get_mut(usize::from(side)) else {
            return Read::Nothing;
        };
        let Some(stream) = slot.as_mut() else {
            return Read::Nothing;
        };
        let got = match rustix::io::read(&stream.fd, &mut *buffer) {
            Ok(0) => None,
            Ok(n) => Some(&buffer[..n]),
            Err(Errno::AGAIN | Errno::INTR) => return Read::Nothing,
            Err(_) => None,
        };
        let mut known = Known {
            tail: &mut self.tail,
            why: &mut self.why,
            mouth: self.mouth.as_mut(),
            steps: &mut self.steps,
        };
        let see = |seen: Seen| known.learn(side, seen, search, now);
        match got {
            Some(bytes) => {
                self.bytes += bytes.len() as u64;
                stream.lines.feed(bytes, stamp, now, &mut self.log, see);
                self.log.flush();
                Read::Some
            }
            None => {
                stream.lines.end(stamp, &mut self.log, see);
                self.log.flush();
                self.log.rest();
                slot.take().map_or(Read::Nothing, |s| Read::End(s.fd))
            }
        }
    }

    /// When the beginning of a line will have waited long enough for its end.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.streams
            .iter()
            .flatten()
            .filter_map(|stream| stream.lines.due())
            .min()
    }

    /// Writes the beginnings of lines that have waited long enough.
    pub(crate) fn show(&mut self, search: &mut Search, now: Duration, stamp: &str) {
        for (stream, side) in self.streams.iter_mut().zip(0..) {
            let Some(stream) = stream else { continue };
            let mut known = Known {
                tail: &mut self.tail,
                why: &mut self.why,
                mouth: self.mouth.as_mut(),
                steps: &mut self.steps,
            };
            let see = |seen: Seen| known.learn(side, seen, &mut *search, now);
            stream.lines.show(stamp, now, &mut self.log, see);
        }
        self.log.flush();
    }

    /// Reads what an ended process left in its pipes. Returns the descriptors whose writers are all
    /// gone.
    pub(crate) fn drain(
        &mut self,
        buffer: &mut [u8],
        search: &mut Search,
        now: Duration,
        stamp: &str,
    ) -> Vec<OwnedFd> {
        let mut ended = Vec::new();
        for side in 0..2 {
            for _ in 0..LAST_READS {
                match self.read(side, buffer, search, now, stamp) {
                    Read::Some => {}
                    Read::Nothing => break,
                    Read::End(fd) => ended.push(fd),
                }
            }
        }
        ended
    }

    /// Ends both streams, even if a process outside the group still holds a write end.
    pub(crate) fn close(&mut self, stamp: &str) {
        for mut stream in self.streams.iter_mut().filter_map(Option::take) {
            stream.lines.end(stamp, &mut self.log, |_| ());
        }
        self.log.flush();
        self.log.rest();
    }

    /// Why the rank failed that ended so. Its output has been drained; a last line without an end is
    /// not in it yet.
    pub(crate) fn reason(&mut self, exit: Exit, left: Left) -> Reason {
        let pending = self.streams[1].as_ref().map(|s| s.lines.pending());
        if let Some(line) = pending.filter(|line| !line.is_empty()) {
            let at = self
                .steps
                .last
                .as_ref()
                .map_or(Duration::ZERO, |last| last.1);
            let step = self.steps.last.as_ref().map(|(step, _)| step.count);
            self.why.line(line, at, step);
        }
        self.why.reason(exit, left)
    }

    /// The last lines of stderr. With many ranks each gets an equal, shorter share.
    pub(crate) fn tail(&self, ranks: u32) -> Vec<String> {
        let per_line = (TAILS / TAIL_LINES / ranks.clamp(1, MAX_RANKS) as usize).min(TAIL_LINE);
        let pending = self.streams[1]
            .as_ref()
            .map(|s| s.lines.pending())
            .filter(|p| !p.is_empty());
        let skip = (self.tail.len() + usize::from(pending.is_some())).saturating_sub(TAIL_LINES);
        let lines = self
            .tail
            .iter()
            .map(Vec::as_slice)
            .chain(pending)
            .skip(skip);
        lines
            .map(|line| text(&line[..line.len().min(per_line)]))
            .collect()
    }
}

fn streams(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<[Option<Stream>; 2]> {
    for fd in [&stdout, &stderr] {
        rustix::io::ioctl_fionbio(fd, true)?;
    }
    let stream = |fd, name| {
        Some(Stream {
            fd,
            lines: Lines::new(name),
        })
    };
    Ok([stream(stdout, "stdout"), stream(stderr, "stderr")])
}

/// What is learned from an output while it passes.
struct Known<'a> {
    tail: &'a mut VecDeque<Vec<u8>>,
    why: &'a mut Finder,
    mouth: Option<&'a mut Mouth>,
    steps: &'a mut Steps,
}

impl Known<'_> {
    fn learn(&mut self, side: u8, seen: Seen, search: &mut Search, now: Duration) {
        let mut of_traceback = false;
        let text = match seen {
            Seen::Line(line) => {
                if let Some(mouth) = &mut self.mouth {
                    mouth.say(line);
                }
                if side == 1 {
                    let step = self.steps.last.as_ref().map(|(step, _)| step.count);
                    of_traceback = self.why.line(line, now, step);
                    if self.tail.len() == TAIL_LINES {
                        self.tail.pop_front();
                    }
                    self.tail
                        .push_back(line[..line.len().min(TAIL_LINE)].to_vec());
                }
                line
            }
            Seen::Redrawn(text) => text,
        };
        if let Some(step) = search.look(&mut self.steps.reader, text, now) {
            if !of_traceback {
                self.why.stepped(side == 1, step.count, now);
            }
            self.steps.first.get_or_insert((step.count, now));
            self.steps.last = Some((step, now));
        } else if self.steps.first.is_none() {
            self.steps.lines_before += 1;
        }
    }
}

/// Text of output for JSON. Invalid UTF-8 is replaced, and a character that is cut off at the end
/// is left out.
fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(e) if e.error_len().is_none() => {
            String::from_utf8_lossy(&bytes[..e.valid_up_to()]).into_owned()
        }
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn a_cut_character_is_left_out() {
        assert_eq!(text("caf\u{e9}".as_bytes()), "caf\u{e9}");
        assert_eq!(text(&"caf\u{e9}".as_bytes()[..4]), "caf");
        assert_eq!(text(b"a\xffb"), "a\u{fffd}b");
    }
}
