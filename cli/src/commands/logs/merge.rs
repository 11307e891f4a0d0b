//! Merges the lines of many logs by time.
//!
//! Lines wait until nothing new has come for a moment. Then all waiting lines are printed, sorted
//! by the time at which they were written. The runner writes times of fixed width in UTC, so a
//! comparison of their texts compares times. The lines of one log always keep their order, even if
//! its node's clock was set back.
//!
//! A line that has not ended is printed as far as it goes once it has not grown for a moment,
//! because a progress bar may end its line only after hours. Later text of it is printed right
//! behind that. If something else was printed meanwhile, the later text goes into a new line.
//!
//! Where every byte matters, nothing is added: no newline that was not written, also between ranks.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use muster_proto::v1::{LogPosition, LogsResponse};

use super::{screen::harmless, steps::Steps, wanted::Wanted};

/// Bytes of lines that wait to be sorted. Beyond this, a person would rather have them out of order
/// than wait for more.
const PENDING_MAX: usize = 16 << 20;

/// Bytes of the longest line that is put together from pieces, so that a progress bar that never
/// ends its line does not fill the memory.
const LINE_MAX: usize = 1 << 20;

/// How long lines wait so that the ranks' lines can be sorted. A step of training takes longer, and
/// a person does not notice this delay.
const ORDER_WINDOW: Duration = Duration::from_millis(50);

/// How long to wait for the end of a line. The pieces of a long line follow each other at once.
const OPEN_WAIT: Duration = Duration::from_millis(300);

/// One log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source {
    generation: u64,
    rank: u32,
    /// The node of a launcher's log. Empty: it is a rank's log.
    node: String,
}

/// How lines are printed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Style {
    pub(super) prefix: bool,
    pub(super) timestamps: bool,
    pub(super) launcher: bool,
    /// The output is for a person on a terminal: control characters are made harmless, and of a
    /// redrawn line only the last state is printed.
    pub(super) screen: bool,
    /// Exactly the bytes that were written.
    pub(super) exact: bool,
}

pub(super) struct Merge {
    style: Style,
    pending: Vec<Line>,
    pending_bytes: usize,
    /// When the first of the waiting lines came.
    pending_since: Instant,
    /// Wait for the end of the stream.
    held: bool,
    /// Beginnings of lines whose end has not come yet, by log and stream.
    open: BTreeMap<(Source, String), Open>,
    /// The newest time in each log.
    newest: BTreeMap<Source, String>,
    positions: BTreeMap<Source, (u64, bool)>,
    /// The line that was printed last and has not ended.
    unended: Option<Unended>,
    /// Print only what it finds.
    pub(super) steps: Option<Steps<Source>>,
    /// Print only these lines.
    pub(super) wanted: Wanted,
    /// What Muster says inside a log, where only the bytes of ranks are printed.
    remarks: Vec<String>,
}

/// A line, or a part of one.
struct Line {
    time: String,
    source: Source,
    stream: String,
    text: Vec<u8>,
    end: End,
}

/// How the text of a line ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Newline,
    /// The stream ended without one.
    Stream,
    /// More of the line may follow.
    Open,
}

struct Open {
    time: String,
    text: Vec<u8>,
    /// When the first of these pieces came.
    since: Instant,
}

struct Unended {
    source: Source,
    stream: String,
    /// The line ended with a carriage return, so the next text overwrites it.
    rewound: bool,
}

impl Merge {
    pub(super) fn new(style: Style, now: Instant) -> Self {
        Self {
            style,
            pending: Vec::new(),
            pending_bytes: 0,
            pending_since: now,
            held: false,
            open: BTreeMap::new(),
            newest: BTreeMap::new(),
            positions: BTreeMap::new(),
            unended: None,
            steps: None,
            wanted: Wanted::default(),
            remarks: Vec::new(),
        }
    }

    /// What Muster has said inside the logs since this was last asked.
    pub(super) fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// When the waiting lines must be printed. `None`: there are none, or they wait for the end of
    /// the stream.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.held {
            return None;
        }
        let order = (!self.pending.is_empty()).then_some(self.pending_since + ORDER_WINDOW);
        let unshown = self.open.values().filter(|open| !open.text.is_empty());
        let unshown = unshown.filter(|_| !self.wanted.reads_text());
        unshown
            .map(|open| open.since + OPEN_WAIT)
            .chain(order)
            .min()
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending_bytes > PENDING_MAX
    }

    /// From now on no line is due before the end of the stream.
    pub(super) fn hold(&mut self) {
        self.held = true;
    }

    /// The position in each log, for a request that goes on there.
    pub(super) fn positions(&self) -> Vec<LogPosition> {
        let position = |(source, (at, ended)): (&Source, &(u64, bool))| LogPosition {
            generation: source.generation,
            rank: source.rank,
            node: source.node.clone(),
            at: *at,
            ended: *ended,
        };
        self.positions.iter().map(position).collect()
    }

    /// The generation to go on from: the oldest one whose logs may be incomplete. `None`: nothing
    /// has come yet.
    pub(super) fn since(&self) -> Option<u64> {
        let unended = self
            .positions
            .iter()
            .filter(|(_, (_, ended))| !ended)
            .map(|(source, _)| source.generation)
            .min();
        unended.or_else(|| self.positions.keys().map(|source| source.generation).max())
    }

    pub(super) fn add(&mut self, part: LogsResponse, now: Instant) {
        if part.generation == 0 {
            // A notice about the job, not about one log.
            return;
        }
        let node = if self.style.launcher {
            part.node
        } else {
            String::new()
        };
        let source = Source {
            generation: part.generation,
            rank: part.rank,
            node,
        };
        let position = self.positions.entry(source.clone()).or_default();
        *position = (position.0.max(part.at), position.1 || part.ended);
        let lines = part.lines.into_iter().map(String::into_bytes);
        for raw in lines.chain(part.raw) {
            let Some((time, stream, flag, text)) = read_cri(&raw) else {
                continue;
            };
            if self.style.exact && flag == Flag::Ours {
                let text = String::from_utf8_lossy(text);
                self.remarks.push(text.into_owned());
                continue;
            }
            let newest = self.newest.entry(source.clone()).or_default();
            if time > newest.as_str() {
                time.clone_into(newest);
            }
            let key = (source.clone(), stream.to_owned());
            let open = self.open.entry(key.clone()).or_insert_with(|| Open {
                time: newest.clone(),
                text: Vec::new(),
                since: now,
            });
            if open.text.is_empty() {
                (open.time, open.since) = (newest.clone(), now);
            }
            open.text.extend_from_slice(text);
            let end = match flag {
                Flag::Piece if open.text.len() <= LINE_MAX => continue,
                Flag::Piece if self.style.exact => End::Open,
                Flag::End => End::Stream,
                Flag::Piece | Flag::Full | Flag::Ours => End::Newline,
            };
            let Open { time, text, .. } = self.open.remove(&key).expect("entered above");
            if self.pending.is_empty() {
                self.pending_since = now;
            }
            self.pending_bytes += text.len();
            self.pending.push(Line {
                time,
                source: key.0,
                stream: key.1,
                text,
                end,
            });
        }
    }

    /// The waiting lines in order, and the lines that have not ended and no longer grow.
    pub(super) fn flush(&mut self, now: Instant) -> Vec<u8> {
        for ((source, stream), open) in &mut self.open {
            // Whoever waits for the end of the stream gets its lines whole.
            let waits = self.held && self.style.exact || self.wanted.reads_text();
            if !waits && !open.text.is_empty() && open.since + OPEN_WAIT <= now {
                let (time, text) = (open.time.clone(), std::mem::take(&mut open.text));
                self.pending.push(Line {
                    time,
                    source: source.clone(),
                    stream: stream.clone(),
                    text,
                    end: End::Open,
                });
            }
        }
        self.pending_bytes = 0;
        // The sort is stable, so lines of the same moment keep the order in which they came.
        self.pending.sort_by(|a, b| a.time.cmp(&b.time));
        let mut out = Vec::new();
        for line in std::mem::take(&mut self.pending) {
            self.print(line, &mut out);
        }
        out
    }

    /// Everything that is left, including lines that never ended.
    pub(super) fn finish(&mut self, now: Instant) -> Vec<u8> {
        let open = std::mem::take(&mut self.open)
            .into_iter()
            .filter(|(_, open)| !open.text.is_empty());
        let lines = open.map(|((source, stream), Open { time, text, .. })| Line {
            time,
            source,
            stream,
            text,
            end: End::Stream,
        });
        self.pending.extend(lines);
        let mut printed = self.flush(now);
        printed.extend_from_slice(self.end_line().as_bytes());
        printed
    }

    /// Ends the line that was printed last, if it has not ended, because another text follows.
    pub(super) fn end_line(&mut self) -> &'static str {
        if self.unended.take().is_some() && !self.style.exact {
            "\n"
        } else {
            ""
        }
    }

    fn print(&mut self, line: Line, out: &mut Vec<u8>) {
        if !self.wanted.takes(&line.time, &line.text) {
            return;
        }
        if let Some(steps) = &mut self.steps {
            let text = String::from_utf8_lossy(&line.text);
            for text in steps.look(&line.source, &text) {
                self.head(&line, out);
                out.extend_from_slice(harmless(&text).as_bytes());
                out.push(b'\n');
            }
            return;
        }
        let before = self.unended.take();
        let goes_on = before
            .as_ref()
            .is_some_and(|before| (&before.source, &before.stream) == (&line.source, &line.stream));
        if before.is_some() && !goes_on && !self.style.exact {
            out.push(b'\n');
        }
        let rewound = line.end == End::Open && line.text.ends_with(b"\r");
        if self.style.screen {
            // Prints the line as a terminal shows it now. Earlier states of a redrawn line are gone
            // there, too.
            let text = String::from_utf8_lossy(&line.text);
            let shown = text.trim_end_matches('\r');
            let redrawn = shown.rsplit_once('\r');
            let text = redrawn.map_or(shown, |(_, last)| last);
            if goes_on && (redrawn.is_some() || before.is_some_and(|before| before.rewound)) {
                out.extend_from_slice(b"\r\x1b[K");
                self.head(&line, out);
            } else if !goes_on {
                self.head(&line, out);
            }
            out.extend_from_slice(harmless(text).as_bytes());
        } else {
            if !goes_on {
                self.head(&line, out);
            }
            out.extend_from_slice(&line.text);
        }
        match line.end {
            End::Newline => out.push(b'\n'),
            End::Stream if self.style.exact => {}
            End::Stream => out.push(b'\n'),
            End::Open => {
                self.unended = Some(Unended {
                    source: line.source,
                    stream: line.stream,
                    rewound,
                });
            }
        }
    }

    fn head(&self, line: &Line, out: &mut Vec<u8>) {
        if self.style.timestamps {
            out.extend_from_slice(line.time.as_bytes());
            out.push(b' ');
        }
        match &*line.source.node {
            _ if !self.style.prefix => {}
            "" => out.extend_from_slice(format!("[rank {}] ", line.source.rank).as_bytes()),
            node => out.extend_from_slice(format!("[{node}] ").as_bytes()),
        }
    }
}

/// What a line of a log says about its text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    /// A line with its newline.
    Full,
    /// A piece of a line.
    Piece,
    /// The end of a stream without a newline.
    End,
    /// A line that nobody wrote but Muster.
    Ours,
}

/// Reads `2026-11-21T11:35:28.123456789Z stdout F text`: time, stream, what the text is, and the text.
fn read_cri(line: &[u8]) -> Option<(&str, &str, Flag, &[u8])> {
    let mut parts = line.splitn(4, |b| *b == b' ');
    let mut word = || std::str::from_utf8(parts.next()?).ok();
    let (time, stream) = (word()?, word()?);
    let flag = match word()? {
        "F:E" => Flag::End,
        "F:M" => Flag::Ours,
        piece if piece.starts_with('P') => Flag::Piece,
        _ => Flag::Full,
    };
    Some((time, stream, flag, parts.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests;
