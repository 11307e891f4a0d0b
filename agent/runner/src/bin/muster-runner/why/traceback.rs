//! Reads Python's tracebacks by their shape, one line of stderr at a time, in bounded memory.
//!
//! `Idle` -> header -> `Frames` (indented lines) -> the line at the header's indentation, which
//! names the exception whatever it is called -> `Text` (the rest of its text) -> `Idle`.
//!
//! The margin of the header is the margin of all its lines: torch's `[rank3]: `, a prefix that some
//! other program puts before each line, the bars of an exception group. rich draws a box instead. A traceback that
//! follows a text that ends with a colon belongs to that text: its exception is told as the inner
//! one.

use std::collections::VecDeque;

use super::shape::{
    REASON, announces, belongs_not, boxed_frame, chains, cut, exception, frame_of, is_of_library,
    is_rule, one_line, uncompiled, without_rank,
};

/// How many frames are kept, and how many bytes of each.
pub(super) const FRAMES: usize = 5;
pub(super) const FRAME: usize = 240;
/// Exceptions of a group that are told, and how much of each.
const LEAVES: usize = 4;
const LEAF: usize = 160;
/// How many lines of other writers may stand between two lines of one traceback.
const NOISE: u8 = 20;
/// A line that announces a traceback of a thread counts for the next ones: `future: <Task ...>` may
/// stand between them.
const ANNOUNCED: u8 = 3;

const HEADER: &str = "Traceback (most recent call last)";

/// An exception as a traceback has shown it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Raised {
    /// The qualified type.
    pub(super) name: String,
    /// Its text in one line.
    pub(super) text: String,
    /// `FILE:LINE in FUNCTION`, the innermost last. Some may be missing between them.
    pub(super) frames: VecDeque<String>,
    /// It was of a thread, of a child process or of a destructor, which ends nobody.
    pub(super) aside: bool,
    /// torch's hook for exceptions that leave the script has printed it.
    pub(super) left: bool,
    /// What a traceback in its text or the parts of a group say.
    inner: Vec<String>,
    /// The first exception of its chain, in one line. None: it is the first itself.
    pub(super) root: Option<String>,
}

impl Raised {
    /// Type and text, as Python prints them, in one line.
    pub(super) fn line(&self) -> String {
        let said = self.said();
        let colon = if said.is_empty() { "" } else { ": " };
        let own = format!("{}{colon}{said}", self.name);
        let lost = self.root.as_ref().filter(|root| is_between_ranks(root));
        match lost.filter(|_| !is_between_ranks(&own)) {
            // A script may put its own exception around that of a lost peer, and would pass for the cause.
            Some(root) => {
                let root = cut(root.clone(), REASON / 2);
                format!("{} (from {root})", cut(own, REASON / 2 - 20))
            }
            None => cut(own, REASON),
        }
    }

    /// The text, with what the exceptions in it say.
    pub(super) fn said(&self) -> String {
        let inner = self.inner.join("; ");
        let between = match &*self.text {
            "" => "",
            _ if inner.is_empty() => "",
            text if text.ends_with([':', '.']) => " ",
            _ => ": ",
        };
        format!("{}{between}{inner}", self.text)
    }
}

/// What one line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Of no traceback.
    Other,
    /// Of a traceback.
    Part,
    /// The one that names the exception: [`Parser::raised`] is a new one.
    Raised,
    /// More about the exception that [`Parser::raised`] is.
    More,
}

#[derive(Default)]
pub(super) struct Parser {
    state: State,
    margin: Margin,
    raised: Raised,
    /// For how many more lines a header would be that of a thread, a child or a destructor.
    announced: u8,
    /// The first exception of the chain that the next one belongs to.
    root: Option<String>,
    /// The exceptions that follow belong to the chain of one that ended nobody.
    chain_aside: bool,
    noise: u8,
    /// The text so far ends with a colon, so more of it follows.
    open: bool,
    /// The text has had an empty line, or enough of it was taken.
    full: bool,
    /// The traceback being read stands in the text of [`Parser::raised`].
    within: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Frames,
    Text,
}

#[derive(Clone, Default, PartialEq, Eq)]
enum Margin {
    #[default]
    None,
    Torch,
    /// What stood before the header. It is a margin only if the next line has it as well.
    Perhaps(String),
    Lead(String),
    /// The bars of a group, whose outermost stand at this column.
    Group(usize),
    /// rich's box.
    Box,
    /// Python names a script that it cannot compile without a header.
    Compiler,
}

impl Parser {
    pub(super) fn raised(&self) -> &Raised {
        &self.raised
    }

    pub(super) fn line(&mut self, raw: &str) -> Line {
        let (torch, line) = without_rank(raw);
        if line.is_empty() && self.state != State::Idle {
            self.full |= self.state == State::Text && !self.raised.text.is_empty();
            return Line::Part;
        }
        if let Margin::Perhaps(lead) = &self.margin {
            self.margin = if line.starts_with(lead) {
                Margin::Lead(lead.clone())
            } else {
                Margin::None
            };
        }
        match self.state {
            State::Idle => self.idle(torch, line),
            State::Frames => self.frame(torch, line),
            State::Text => self.more(torch, line),
        }
    }

    fn idle(&mut self, torch: bool, line: &str) -> Line {
        self.announced = self.announced.saturating_sub(1);
        if announces(line) {
            self.announced = ANNOUNCED;
            return Line::Part;
        }
        if self.header(torch, line, false) {
            return Line::Part;
        }
        if let Some((file, number)) = uncompiled(line) {
            self.begin(false, Margin::Compiler, false);
            self.push_frame(format!("{file}:{number}"));
            return Line::Part;
        }
        Line::Other
    }

    /// Begins a traceback if this line is the header of one.
    fn header(&mut self, torch: bool, line: &str, within: bool) -> bool {
        let Some(at) = line.find(HEADER) else {
            return false;
        };
        let (before, after) = (&line[..at], &line[at + HEADER.len()..]);
        let margin = match before {
            _ if before.trim_start().starts_with('╭') => Margin::Box,
            _ if after != ":" => return false,
            _ if before.ends_with("+ Exception Group ") => {
                Margin::Group(before.len() - "+ Exception Group ".len())
            }
            _ if torch => Margin::Torch,
            "" | "Original " | "Exception Group " => Margin::None,
            _ => Margin::Perhaps(before.to_owned()),
        };
        self.begin(torch, margin, within);
        true
    }

    fn begin(&mut self, torch: bool, margin: Margin, within: bool) {
        (self.state, self.noise, self.within) = (State::Frames, 0, within);
        if within {
            return;
        }
        let aside = self.announced > 0 || std::mem::take(&mut self.chain_aside);
        self.announced = 0;
        self.margin = margin;
        (self.open, self.full) = (false, false);
        self.raised = Raised {
            aside,
            left: torch,
            root: self.root.take(),
            ..Raised::default()
        };
    }

    /// The line without the margin. None: it is of another writer.
    fn bare<'a>(&self, torch: bool, line: &'a str) -> Option<&'a str> {
        match &self.margin {
            Margin::Torch => torch.then_some(line),
            Margin::Lead(lead) => line.strip_prefix(lead.as_str()),
            Margin::None | Margin::Compiler | Margin::Perhaps(_) => Some(line),
            Margin::Group(_) | Margin::Box => None,
        }
    }

    fn frame(&mut self, torch: bool, line: &str) -> Line {
        match self.margin {
            Margin::Group(column) => return self.group(column, torch, line),
            Margin::Box if line.trim_start().starts_with(['│', '╭', '╰']) => {
                if let Some(frame) = boxed_frame(line) {
                    self.push_frame(frame);
                }
                return Line::Part;
            }
            _ => {}
        }
        if self.margin != Margin::Box {
            match self.bare(torch, line) {
                None => return self.noise(torch, line),
                Some(text) if text.starts_with([' ', '\t', '>']) => {
                    if let Some(frame) = frame_of(text) {
                        self.push_frame(frame);
                    }
                    return Line::Part;
                }
                Some(text) => return self.name(torch, text, line),
            }
        }
        self.name(torch, line, line)
    }

    /// The line that names the exception.
    fn name(&mut self, torch: bool, text: &str, line: &str) -> Line {
        let named = exception(text)
            .filter(|(name, _)| self.margin != Margin::Compiler || name.ends_with("Error"));
        let Some((name, rest)) = named.filter(|_| !super::words::is_chatter(text)) else {
            return self.noise(torch, line);
        };
        self.state = State::Text;
        if self.within {
            (self.within, self.full, self.open) = (false, true, false);
            let inner = Raised {
                name: name.into(),
                text: rest.trim_end().into(),
                ..Raised::default()
            };
            self.raised.inner = vec![cut(inner.line(), LEAF)];
            return Line::More;
        }
        (self.raised.name, self.raised.text) = (name.into(), cut(rest.trim_end().into(), REASON));
        self.open = text.ends_with(':');
        Line::Raised
    }

    /// A line of another writer in the middle of a traceback. After too many the traceback is given up.
    fn noise(&mut self, torch: bool, line: &str) -> Line {
        self.noise += 1;
        let compiler = self.margin == Margin::Compiler && self.noise > 3;
        if compiler || self.noise > NOISE || line.contains(HEADER) {
            let text = !self.raised.name.is_empty();
            self.state = if text { State::Text } else { State::Idle };
            (self.within, self.full) = (false, self.full || text);
            return if text {
                self.more(torch, line)
            } else {
                self.idle(torch, line)
            };
        }
        Line::Other
    }

    /// A line after the one that named the exception.
    fn more(&mut self, torch: bool, line: &str) -> Line {
        if let Margin::Group(column) = self.margin {
            return self.group(column, torch, line);
        }
        let Some(text) = self
            .bare(torch, line)
            .filter(|_| self.margin != Margin::Box)
        else {
            return self.over(torch, line);
        };
        if chains(text) {
            self.chain_aside = self.raised.aside;
            let first = || self.raised.line();
            self.root = Some(self.raised.root.clone().unwrap_or_else(first));
            self.state = State::Idle;
            return Line::Part;
        }
        if text.contains(HEADER) {
            let within = text.starts_with("Original ") || self.open;
            if within && self.raised.inner.is_empty() && self.header(torch, text, true) {
                return Line::Part;
            }
            return self.over(torch, line);
        }
        let indented = text.starts_with([' ', '\t']);
        if !torch && super::words::is_chatter(text) {
            return self.over(torch, line);
        }
        let known = self.margin == Margin::Torch;
        if belongs_not(text) {
            self.full = true;
            return Line::Part;
        }
        if !(known || indented || self.open && !self.full) {
            return self.over(torch, line);
        }
        self.join(text);
        Line::More
    }

    /// Adds a line to the text.
    fn join(&mut self, text: &str) {
        let text = text.trim();
        self.open = text.ends_with(':') && !self.full;
        if self.full || is_rule(text) {
            self.open |= is_rule(text);
            return;
        }
        let own = &mut self.raised.text;
        if !own.is_empty() {
            own.push(' ');
        }
        own.push_str(text);
        if own.len() > REASON {
            self.full = true;
            *own = cut(std::mem::take(own), REASON);
        }
    }

    /// The traceback is over, and this line is another one.
    fn over(&mut self, torch: bool, line: &str) -> Line {
        (self.state, self.margin) = (State::Idle, Margin::None);
        self.idle(torch, line)
    }

    /// A line between the bars of an exception group.
    fn group(&mut self, column: usize, torch: bool, line: &str) -> Line {
        let bar = line.len() - line.trim_start().len();
        let (Some(sign), deeper) = (line[bar..].chars().next(), bar > column) else {
            return self.over(torch, line);
        };
        if sign != '|' && sign != '+' || bar < column {
            return self.over(torch, line);
        }
        let text = line[bar + 1..].strip_prefix(' ').unwrap_or_default();
        if sign == '+' || text.is_empty() {
            return Line::Part;
        }
        let inner = &mut self.raised.inner;
        if chains(text) {
            if deeper {
                inner.pop();
            }
            return Line::Part;
        }
        if text.starts_with([' ', '\t']) || text.contains(HEADER) {
            if let Some(frame) = frame_of(text).filter(|_| !deeper) {
                self.push_frame(frame);
            }
            return Line::Part;
        }
        let Some((name, rest)) = exception(text) else {
            return Line::Part;
        };
        if !deeper {
            if !self.raised.name.is_empty() && self.state == State::Text {
                return Line::Part;
            }
            self.state = State::Text;
            (self.raised.name, self.raised.text) = (name.into(), cut(rest.into(), REASON));
            return Line::Raised;
        }
        if !name.ends_with("ExceptionGroup") && inner.len() < LEAVES {
            inner.push(cut(text.trim_end().into(), LEAF));
        }
        Line::More
    }

    fn push_frame(&mut self, frame: String) {
        if !self.within {
            keep(&mut self.raised.frames, frame);
        }
    }
}

/// Whether a text is of a library that connects ranks.
fn is_between_ranks(text: &str) -> bool {
    let names = ["gloo/", "NCCL", "nccl", "c10d", "torch.distributed."];
    names.iter().any(|name| text.contains(name))
}

/// Adds a frame. Where there are too many, those of the script stay rather than those of libraries, and
/// always the innermost one.
pub(super) fn keep(frames: &mut VecDeque<String>, frame: String) {
    if frames.len() == FRAMES {
        let library = frames.iter().position(|frame| is_of_library(frame));
        frames.remove(library.unwrap_or(0));
    }
    frames.push_back(cut(frame, FRAME));
}

/// An exception whose whole text is known, as the rank itself wrote it down.
pub(super) fn whole(name: &str, text: &str, parts: &[String]) -> Raised {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let mut parser = Parser {
        state: State::Text,
        margin: Margin::Torch,
        open: first.is_empty() || first.trim_end().ends_with(':'),
        raised: Raised {
            name: cut(name.into(), LEAF),
            text: cut(first.trim().into(), REASON),
            left: true,
            ..Raised::default()
        },
        ..Parser::default()
    };
    for line in lines {
        // The margin says that each line is of the text.
        parser.line(&format!("[rank0]: {line}"));
    }
    let mut raised = parser.raised;
    let parts = parts.iter().take(LEAVES);
    raised.inner.extend(parts.map(|part| one_line(part, LEAF)));
    raised
}
