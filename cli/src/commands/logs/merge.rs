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

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use muster_proto::v1::{LogPosition, LogsResponse};

use super::{screen::harmless, steps::Steps};

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
}

/// A line, or a part of one.
struct Line {
    time: String,
    source: Source,
    stream: String,
    text: String,
    ended: bool,
}

struct Open {
    time: String,
    text: String,
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
        }
    }

    /// When the waiting lines must be printed. `None`: there are none, or they wait for the end of
    /// the stream.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.held {
            return None;
        }
        let order = (!self.pending.is_empty()).then_some(self.pending_since + ORDER_WINDOW);
        let unshown = self.open.values().filter(|open| !open.text.is_empty());
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
        for raw in part.lines {
            let Some((time, stream, whole, text)) = read_cri(&raw) else {
                continue;
            };
            let newest = self.newest.entry(source.clone()).or_default();
            if time > newest.as_str() {
                time.clone_into(newest);
            }
            let key = (source.clone(), stream.to_owned());
            let open = self.open.entry(key.clone()).or_insert_with(|| Open {
                time: newest.clone(),
                text: String::new(),
                since: now,
            });
            if open.text.is_empty() {
                (open.time, open.since) = (newest.clone(), now);
            }
            open.text.push_str(text);
            if whole || open.text.len() > LINE_MAX {
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
                    ended: true,
                });
            }
        }
    }

    /// The waiting lines in order, and the lines that have not ended and no longer grow.
    pub(super) fn flush(&mut self, now: Instant) -> String {
        for ((source, stream), open) in &mut self.open {
            if !open.text.is_empty() && open.since + OPEN_WAIT <= now {
                let (time, text) = (open.time.clone(), std::mem::take(&mut open.text));
                self.pending.push(Line {
                    time,
                    source: source.clone(),
                    stream: stream.clone(),
                    text,
                    ended: false,
                });
            }
        }
        self.pending_bytes = 0;
        // The sort is stable, so lines of the same moment keep the order in which they came.
        self.pending.sort_by(|a, b| a.time.cmp(&b.time));
        let mut out = String::new();
        for line in std::mem::take(&mut self.pending) {
            self.print(line, &mut out);
        }
        out
    }

    /// Everything that is left, including lines that never ended.
    pub(super) fn finish(&mut self, now: Instant) -> String {
        let open = std::mem::take(&mut self.open)
            .into_iter()
            .filter(|(_, open)| !open.text.is_empty());
        let lines = open.map(|((source, stream), Open { time, text, .. })| Line {
            time,
            source,
            stream,
            text,
            ended: true,
        });
        self.pending.extend(lines);
        let printed = self.flush(now);
        printed + self.end_line()
    }

    /// Ends the line that was printed last, if it has not ended, because another text follows.
    pub(super) fn end_line(&mut self) -> &'static str {
        if self.unended.take().is_some() {
            "\n"
        } else {
            ""
        }
    }

    fn print(&mut self, line: Line, out: &mut String) {
        if let Some(steps) = &mut self.steps {
            for text in steps.look(&line.source, &line.text) {
                self.head(&line, out);
                out.push_str(&harmless(&text));
                out.push('\n');
            }
            return;
        }
        let before = self.unended.take();
        let goes_on = before
            .as_ref()
            .is_some_and(|before| (&before.source, &before.stream) == (&line.source, &line.stream));
        if before.is_some() && !goes_on {
            out.push('\n');
        }
        let mut text = line.text.as_str();
        let rewound = !line.ended && text.ends_with('\r');
        if self.style.screen {
            // Prints the line as a terminal shows it now. Earlier states of a redrawn line are gone
            // there, too.
            let shown = text.trim_end_matches('\r');
            let redrawn = shown.rsplit_once('\r');
            text = redrawn.map_or(shown, |(_, last)| last);
            if goes_on && (redrawn.is_some() || before.is_some_and(|before| before.rewound)) {
                out.push_str("\r\u{1b}[K");
                self.head(&line, out);
            } else if !goes_on {
                self.head(&line, out);
            }
            out.push_str(&harmless(text));
        } else {
            if !goes_on {
                self.head(&line, out);
            }
            out.push_str(text);
        }
        if line.ended {
            out.push('\n');
        } else {
            self.unended = Some(Unended {
                source: line.source,
                stream: line.stream,
                rewound,
            });
        }
    }

    fn head(&self, line: &Line, out: &mut String) {
        if self.style.timestamps {
            out.push_str(&line.time);
            out.push(' ');
        }
        match &*line.source.node {
            _ if !self.style.prefix => {}
            "" => out.push_str(&format!("[rank {}] ", line.source.rank)),
            node => out.push_str(&format!("[{node}] ")),
        }
    }
}

/// Reads `2026-11-21T11:35:28.123456789Z stdout F text`: time, stream, whether the line ends here,
/// and the text.
fn read_cri(line: &str) -> Option<(&str, &str, bool, &str)> {
    let mut parts = line.splitn(4, ' ');
    let (time, stream, flag) = (parts.next()?, parts.next()?, parts.next()?);
    Some((
        time,
        stream,
        !flag.starts_with('P'),
        parts.next().unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests;
