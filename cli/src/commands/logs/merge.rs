//! Lines of many ranks in order of time.
//!
//! Lines wait until nothing new has come for a moment, then all that wait are printed, sorted by the time at which they were written.
//! The runner writes times of fixed width in UTC, so comparing their texts compares times.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::v1::LogsResponse;

/// Bytes of lines held back for sorting. A terminal's user would rather have them out of order than wait for more.
const PENDING_MAX: usize = 16 << 20;

/// Longest line put together from pieces: a progress bar that never ends its line must not fill the memory.
const LINE_MAX: usize = 1 << 20;

type RankOfGeneration = (u64, u32);

pub(super) struct Merge {
    prefix: bool,
    timestamps: bool,
    pending: Vec<Line>,
    pending_bytes: usize,
    /// Told to wait for the end of the stream.
    held: bool,
    /// Beginnings of lines whose end has not come yet.
    pieces: BTreeMap<RankOfGeneration, Line>,
    /// The newest line of each rank that was taken, to leave out repetitions after a lost connection: its time, and the lines of
    /// exactly that time.
    newest: BTreeMap<RankOfGeneration, (String, BTreeSet<String>)>,
    repeating: bool,
}

struct Line {
    time: String,
    rank: u32,
    text: String,
}

impl Merge {
    pub(super) fn new(prefix: bool, timestamps: bool) -> Self {
        Self {
            prefix,
            timestamps,
            pending: Vec::new(),
            pending_bytes: 0,
            held: false,
            pieces: BTreeMap::new(),
            newest: BTreeMap::new(),
            repeating: false,
        }
    }

    pub(super) fn has_printed(&self) -> bool {
        !self.newest.is_empty()
    }

    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty() && !self.held
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending_bytes > PENDING_MAX
    }

    pub(super) fn hold(&mut self) {
        self.held = true;
    }

    /// From now on lines may come again that were taken before.
    pub(super) fn reconnected(&mut self) {
        self.repeating = true;
        self.pieces.clear();
    }

    pub(super) fn add(&mut self, part: LogsResponse) {
        let source = (part.generation, part.rank);
        for raw in part.lines {
            if self.is_repetition(source, &raw) {
                continue;
            }
            let Some((time, whole, text)) = read_cri(&raw) else { continue };
            let line =
                self.pieces.entry(source).or_insert_with(|| Line { time: time.to_owned(), rank: part.rank, text: String::new() });
            line.text.push_str(text);
            if whole || line.text.len() > LINE_MAX {
                let line = self.pieces.remove(&source).expect("entered above");
                self.pending_bytes += line.text.len();
                self.pending.push(line);
            }
        }
    }

    fn is_repetition(&mut self, source: RankOfGeneration, raw: &str) -> bool {
        let time = raw.split(' ').next().unwrap_or_default();
        let (newest, lines) = self.newest.entry(source).or_default();
        if self.repeating && (time < newest.as_str() || (time == newest.as_str() && lines.contains(raw))) {
            return true;
        }
        if time > newest.as_str() {
            *newest = time.to_owned();
            lines.clear();
        }
        if time == newest.as_str() {
            lines.insert(raw.to_owned());
        }
        false
    }

    /// What waits, in order.
    pub(super) fn flush(&mut self) -> String {
        self.pending_bytes = 0;
        // Stable: lines of one moment keep the order in which they came.
        self.pending.sort_by(|a, b| a.time.cmp(&b.time));
        let mut out = String::new();
        for line in self.pending.drain(..) {
            if self.timestamps {
                out.push_str(&line.time);
                out.push(' ');
            }
            if self.prefix {
                out.push_str(&format!("[rank {}] ", line.rank));
            }
            out.push_str(&line.text);
            out.push('\n');
        }
        out
    }

    /// All that is left, also lines that were never ended.
    pub(super) fn finish(&mut self) -> String {
        let pieces = std::mem::take(&mut self.pieces);
        self.pending.extend(pieces.into_values().filter(|line| !line.text.is_empty()));
        self.flush()
    }
}

/// `2026-11-21T11:35:28.123456789Z stdout F text`: time, whether the line ends here, and the text.
fn read_cri(line: &str) -> Option<(&str, bool, &str)> {
    let mut parts = line.splitn(4, ' ');
    let (time, _stream, flag) = (parts.next()?, parts.next()?, parts.next()?);
    Some((time, !flag.starts_with('P'), parts.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(rank: u32, lines: &[&str]) -> LogsResponse {
        LogsResponse {
            rank,
            generation: 1,
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            ..LogsResponse::default()
        }
    }

    #[test]
    fn ranks_are_merged_by_time() {
        let mut merge = Merge::new(true, false);
        merge.add(part(0, &["T1 stdout F a", "T4 stderr F d"]));
        merge.add(part(1, &["T2 stdout F b", "T3 stdout F "]));
        assert_eq!(merge.flush(), "[rank 0] a\n[rank 1] b\n[rank 1] \n[rank 0] d\n");
        assert_eq!(merge.flush(), "");
    }

    #[test]
    fn pieces_become_one_line_at_the_time_of_the_first() {
        let mut merge = Merge::new(false, true);
        merge.add(part(0, &["T1 stdout P one "]));
        merge.add(part(1, &["T2 stdout F other"]));
        merge.add(part(0, &["T3 stdout P two ", "T3 stdout F three", "T4 stdout P no end"]));
        assert_eq!(merge.flush(), "T1 one two three\nT2 other\n");
        assert_eq!(merge.finish(), "T4 no end\n");
    }

    #[test]
    fn a_new_connection_repeats_nothing() {
        let mut merge = Merge::new(false, false);
        merge.add(part(0, &["T1 stdout F a", "T2 stdout F b"]));
        merge.add(part(1, &["T1 stdout F x"]));
        assert_eq!(merge.flush(), "a\nx\nb\n");
        merge.reconnected();
        merge.add(part(0, &["T1 stdout F a", "T2 stdout F b", "T2 stdout F c", "T3 stdout F d"]));
        merge.add(part(1, &["T1 stdout F x"]));
        assert_eq!(merge.flush(), "c\nd\n");
    }

    #[test]
    fn the_same_line_twice_is_printed_twice() {
        let mut merge = Merge::new(false, false);
        merge.add(part(0, &["T1 stdout F a", "T1 stdout F a"]));
        assert_eq!(merge.flush(), "a\na\n");
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let mut merge = Merge::new(false, false);
        let piece = format!("T1 stdout P {}", "x".repeat(16 << 10));
        for _ in 0..200 {
            merge.add(part(0, &[&piece]));
        }
        assert!(merge.pieces.values().all(|line| line.text.len() <= LINE_MAX + (16 << 10)));
        assert!(!merge.flush().is_empty());
    }
}
