//! Cuts the bytes of one stream into log lines, and shows them to the code that searches them.
//!
//! A line longer than 16 KiB is cut into pieces, as container runtimes do. An unfinished line is
//! also written as a piece after a short wait: a progress bar may redraw its line for hours with
//! carriage returns, and a prompt before a hang has no newline either.

use std::time::Duration;

use muster_runner::cri::{END, FULL, MAX_TEXT, PIECE};

use crate::logs::Log;

/// How long the beginning of a line waits for its end. It is too short for a person to notice, and
/// it limits a progress bar to four pieces a second.
pub(crate) const PIECE_WAIT: Duration = Duration::from_millis(250);

/// Text to search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen<'a> {
    /// A line without its end, or a 16 KiB piece of a longer line. If the line was redrawn, this is
    /// what it showed last.
    Line(&'a [u8]),
    /// What a line showed before it was redrawn.
    Redrawn(&'a [u8]),
}

pub(crate) struct Lines {
    stream: &'static str,
    /// The current line so far, without the pieces of full length that were cut from it.
    held: Vec<u8>,
    /// How many bytes of `held` are in the log.
    logged: usize,
    /// Since when `held` has bytes that are not in the log.
    waits: Option<Duration>,
    /// `held` begins in the middle of a line, after a piece of full length.
    torn: bool,
}

impl Lines {
    pub(crate) fn new(stream: &'static str) -> Self {
        Self {
            stream,
            held: Vec::new(),
            logged: 0,
            waits: None,
            torn: false,
        }
    }

    /// Gives all whole lines of `bytes` to `log` and shows them to `see`.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        stamp: &str,
        now: Duration,
        log: &mut Log,
        mut see: impl FnMut(Seen),
    ) {
        while !bytes.is_empty() {
            let room = MAX_TEXT - self.held.len();
            let window = &bytes[..bytes.len().min(room + 1)];
            match window.iter().position(|b| *b == b'\n') {
                Some(end) => {
                    self.line(&bytes[..end], stamp, log, &mut see);
                    bytes = &bytes[end + 1..];
                }
                None if bytes.len() > room => {
                    self.piece(&bytes[..room], stamp, log, &mut see);
                    bytes = &bytes[room..];
                }
                None => {
                    self.held.extend_from_slice(bytes);
                    self.waits.get_or_insert(now);
                    return;
                }
            }
        }
        if !self.held.is_empty() {
            // A piece left the first bytes of a character that it would have cut in two.
            self.waits.get_or_insert(now);
        }
    }

    /// Ends the stream. The rest, if any, is a line without a newline.
    pub(crate) fn end(&mut self, stamp: &str, log: &mut Log, mut see: impl FnMut(Seen)) {
        if self.held.is_empty() && !self.torn {
            return;
        }
        log.line(stamp, self.stream, END, [&self.held[self.logged..], b""]);
        if !self.held.is_empty() {
            see(Seen::Line(last_shown(&self.held)));
        }
        self.forget(0, false);
    }

    /// When the beginning of a line will have waited for [`PIECE_WAIT`].
    pub(crate) fn due(&self) -> Option<Duration> {
        self.waits.map(|since| since + PIECE_WAIT)
    }

    /// Gives the beginning of a line to `log` if it has waited for [`PIECE_WAIT`].
    pub(crate) fn show(
        &mut self,
        stamp: &str,
        now: Duration,
        log: &mut Log,
        mut see: impl FnMut(Seen),
    ) {
        if self.due().is_none_or(|due| due > now) {
            return;
        }
        self.waits = None;
        let end = self.held.len() - cut_character(&self.held[self.logged..]);
        if end > self.logged {
            log.line(
                stamp,
                self.stream,
                PIECE,
                [&self.held[self.logged..end], b""],
            );
            self.logged = end;
        }
        self.redrawn(&mut see);
    }

    /// What the unfinished line shows now.
    pub(crate) fn pending(&self) -> &[u8] {
        last_shown(&self.held)
    }

    fn line(&mut self, text: &[u8], stamp: &str, log: &mut Log, see: &mut impl FnMut(Seen)) {
        log.line(stamp, self.stream, FULL, [&self.held[self.logged..], text]);
        if self.held.is_empty() {
            see(Seen::Line(last_shown(text)));
        } else {
            self.held.extend_from_slice(text);
            see(Seen::Line(last_shown(&self.held)));
        }
        self.forget(0, false);
    }

    /// Logs a piece of full length, without a character that it would cut in two.
    fn piece(&mut self, text: &[u8], stamp: &str, log: &mut Log, see: &mut impl FnMut(Seen)) {
        self.held.extend_from_slice(text);
        let end = (self.held.len() - cut_character(&self.held)).max(self.logged);
        log.line(
            stamp,
            self.stream,
            PIECE,
            [&self.held[self.logged..end], b""],
        );
        if self.held[..end].contains(&b'\r') {
            self.redrawn(see);
        } else {
            see(Seen::Line(&self.held[..end]));
        }
        self.forget(self.held.len() - end, true);
    }

    /// Shows the newest complete state of the line, which stands before the last carriage return.
    fn redrawn(&self, see: &mut impl FnMut(Seen)) {
        let Some(end) = self.held.iter().rposition(|b| *b == b'\r') else {
            return;
        };
        let newest = &self.held[end + 1..];
        if newest.trim_ascii_end().ends_with(b"]") {
            // A bar of tqdm ends with a bracket, so it is complete.
            return see(Seen::Redrawn(newest));
        }
        let mut states = self.held[..end].rsplit(|b| *b == b'\r');
        // A bar is often wiped with blanks before it is drawn again.
        let shown = states.find(|state| !state.trim_ascii().is_empty());
        if let Some(state) = shown
            && (!self.torn || states.next().is_some())
        {
            see(Seen::Redrawn(state));
        }
    }

    /// Keeps only the last `keep` bytes, and frees the memory of a long line.
    fn forget(&mut self, keep: usize, torn: bool) {
        self.held = self.held.split_off(self.held.len() - keep);
        (self.logged, self.waits, self.torn) = (0, None, torn);
    }
}

/// What a line shows on a terminal, where each carriage return begins it anew. Carriage returns
/// before the newline are part of the line's end.
fn last_shown(line: &[u8]) -> &[u8] {
    let line = &line[..line
        .iter()
        .rposition(|b| *b != b'\r')
        .map_or(0, |at| at + 1)];
    &line[line
        .iter()
        .rposition(|b| *b == b'\r')
        .map_or(0, |at| at + 1)..]
}

/// The number of bytes at the end that begin a UTF-8 character without completing it.
fn cut_character(text: &[u8]) -> usize {
    let start = (1..=text.len().min(3)).find(|n| text[text.len() - n] & 0b1100_0000 != 0b1000_0000);
    let Some(n) = start else { return 0 };
    let wants = match text[text.len() - n] {
        0b1100_0000..=0b1101_1111 => 2,
        0b1110_0000..=0b1110_1111 => 3,
        0b1111_0000..=0b1111_0111 => 4,
        _ => 1,
    };
    if n < wants { n } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::OwnedFd;

    struct Fixture {
        dir: tempfile::TempDir,
        log: Log,
        lines: Lines,
        seen: Vec<(bool, String)>,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let fd = OwnedFd::from(File::open(dir.path()).unwrap());
            let log = Log::open(&fd, "rank-0.log", 1 << 30).unwrap();
            Self {
                dir,
                log,
                lines: Lines::new("stdout"),
                seen: Vec::new(),
            }
        }

        fn feed(&mut self, bytes: &[u8], at: Duration) {
            self.lines
                .feed(bytes, "T", at, &mut self.log, keep(&mut self.seen));
        }

        fn show(&mut self, at: Duration) {
            self.lines
                .show("T", at, &mut self.log, keep(&mut self.seen));
        }

        fn end(&mut self) {
            self.lines.end("T", &mut self.log, keep(&mut self.seen));
        }

        fn log(&mut self) -> String {
            self.log.flush();
            String::from_utf8(std::fs::read(self.dir.path().join("rank-0.log")).unwrap()).unwrap()
        }
    }

    fn keep(seen: &mut Vec<(bool, String)>) -> impl FnMut(Seen) {
        move |new| {
            seen.push(match new {
                Seen::Line(text) => (true, String::from_utf8_lossy(text).into_owned()),
                Seen::Redrawn(text) => (false, String::from_utf8_lossy(text).into_owned()),
            });
        }
    }

    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn lines_do_not_depend_on_how_the_bytes_arrive() {
        let long = "x".repeat(MAX_TEXT);
        let text = format!("one\n\n{long}\n{long}y\nlast");
        let expected = format!(
            "T stdout F one\nT stdout F \nT stdout F {long}\nT stdout P {long}\nT stdout F y\nT stdout F:E last\n"
        );
        for piece in [1, 2, 7, 4096, MAX_TEXT - 1, MAX_TEXT, MAX_TEXT + 1, 1 << 20] {
            let mut it = Fixture::new();
            for bytes in text.as_bytes().chunks(piece) {
                it.feed(bytes, SOON);
            }
            it.end();
            assert!(it.log() == expected, "pieces of {piece}");
            assert_eq!(it.seen.len(), 6, "pieces of {piece}");
        }
    }

    /// A log has every byte: whoever puts its texts together has what was written.
    #[test]
    fn the_bytes_of_a_stream_are_all_in_its_log() {
        let awkward: [&[u8]; 9] = [
            b"",
            b"\n",
            b"no end",
            b"one\r\ntwo\r",
            b"\0\0\n\0",
            b"\xff\xfe\xc3\x28\n\xe2\x82",
            &[b'x'; MAX_TEXT],
            &[0x80; 3 * MAX_TEXT + 1],
            b" leading F and P \n F text\n",
        ];
        for bytes in awkward {
            for piece in [1, 3, MAX_TEXT + 1] {
                let mut it = Fixture::new();
                for (at, bytes) in bytes.chunks(piece).enumerate() {
                    it.feed(bytes, SOON);
                    if at % 5 == 4 {
                        it.show(SOON + PIECE_WAIT);
                    }
                }
                it.end();
                it.log.flush();
                let log = std::fs::read(it.dir.path().join("rank-0.log")).unwrap();
                let mut text = Vec::new();
                for line in log.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
                    let parts: Vec<&[u8]> = line.splitn(4, |b| *b == b' ').collect();
                    text.extend_from_slice(parts[3]);
                    if parts[2] == FULL.as_bytes() {
                        text.push(b'\n');
                    }
                }
                assert!(
                    text == bytes,
                    "{bytes:.20x?} in pieces of {piece}: {text:.40x?}"
                );
            }
        }
    }

    #[test]
    fn the_beginning_of_a_line_is_written_once_it_has_waited() {
        let mut it = Fixture::new();
        it.feed(b"one\nLoading ... ", SOON);
        assert_eq!(it.lines.due(), Some(SOON + PIECE_WAIT));
        it.show(SOON + PIECE_WAIT - Duration::from_nanos(1));
        assert_eq!(it.log(), "T stdout F one\n");
        it.show(SOON + PIECE_WAIT);
        assert_eq!(it.log(), "T stdout F one\nT stdout P Loading ... \n");
        assert_eq!(it.lines.due(), None, "nothing new waits");
        it.feed(b"done\n", SOON * 500);
        assert_eq!(
            it.log(),
            "T stdout F one\nT stdout P Loading ... \nT stdout F done\n"
        );
        assert_eq!(
            it.seen,
            [(true, "one".into()), (true, "Loading ... done".into())],
            "whoever searches sees whole lines"
        );
    }

    #[test]
    fn a_progress_bar_is_searched_while_it_is_redrawn() {
        let mut it = Fixture::new();
        let mut now = SOON;
        for step in 1..=3 {
            it.feed(format!("\rstep {step}/100").as_bytes(), now);
            now += PIECE_WAIT;
            it.show(now);
        }
        it.feed(b"\rstep 100/100\r\n", now);
        assert_eq!(
            it.log(),
            "T stdout P \rstep 1/100\nT stdout P \rstep 2/100\nT stdout P \rstep 3/100\nT stdout F \rstep 100/100\r\n"
        );
        let redrawn = |text: &str| (false, text.to_owned());
        // The newest state may be incomplete.
        let seen = [
            redrawn("step 1/100"),
            redrawn("step 2/100"),
            (true, "step 100/100".into()),
        ];
        assert_eq!(it.seen, seen);
    }

    #[test]
    fn a_bar_that_is_complete_or_wiped_is_seen_at_once() {
        let mut it = Fixture::new();
        let bar = " 12%|#   | 12/100 [00:03<00:22]";
        it.feed(format!("\r{bar}").as_bytes(), SOON);
        it.show(SOON + PIECE_WAIT);
        let later = SOON + 2 * PIECE_WAIT;
        it.feed(b"\r           \r\r 1", later);
        it.show(later + PIECE_WAIT);
        let seen = [(false, bar.to_owned()), (false, bar.to_owned())];
        assert_eq!(it.seen, seen);
    }

    /// A progress bar that runs for hours is one line. Its memory is bounded, and no half of a
    /// number is taken for a whole one.
    #[test]
    fn a_bar_that_is_cut_shows_no_half_of_itself() {
        let mut it = Fixture::new();
        for step in 0..10_000 {
            it.feed(format!("\r{step:06}").as_bytes(), SOON);
            assert!(it.lines.held.len() <= MAX_TEXT);
        }
        it.feed(b"\n", SOON);
        assert!(
            it.seen.iter().all(|(_, text)| text.len() == 6),
            "{:?}",
            it.seen
        );
        assert_eq!(it.seen.last(), Some(&(true, "009999".to_owned())));
    }

    #[test]
    fn no_character_is_cut_in_two() {
        for character in ["\u{e9}", "\u{20ac}", "\u{1f525}"] {
            for offset in 0..character.len() {
                let text = format!(
                    "{}{}",
                    "x".repeat(offset),
                    character.repeat(2 * MAX_TEXT / character.len())
                );
                let mut it = Fixture::new();
                for byte in text.as_bytes().chunks(1_000) {
                    it.feed(byte, SOON);
                    it.show(SOON + PIECE_WAIT);
                }
                it.end();
                let log = it.log();
                let pieces: String = log
                    .lines()
                    .map(|line| line.splitn(4, ' ').nth(3).unwrap())
                    .collect();
                assert!(
                    pieces == text && log.lines().count() > 2,
                    "{character} {offset}"
                );
            }
        }
        assert_eq!(
            [
                &b""[..],
                b"a",
                b"a\xc3",
                b"\xe2\x82",
                b"\xf0\x9f\x94",
                b"\x80\x80\x80\x80",
                b"\xff"
            ]
            .map(cut_character),
            [0, 0, 1, 2, 3, 0, 0]
        );
    }
}
