//! Finds the one line that says why a rank failed. It never decides who is to blame.
//!
//! There are three sources, and the first one that says something wins:
//!
//! 1. What the rank itself wrote down when an exception left its script (`left.rs`). Only ranks that
//!    were forked from a launcher do this. Nothing is guessed then.
//! 2. What torch's `@record` wrote into the error file, in every lane.
//! 3. What passed on stderr. All of it is read as it passes, so no amount of output after it hides it.
//!
//! Of what passed on stderr, the last traceback wins, and the last exception of its chain. It does not win
//!
//! - if it was of a thread, a child process, a destructor or an exit handler: such a one counts only
//!   where nothing else is found, because the script went on;
//! - if it only says that a child failed, and the child's own traceback came right before it;
//! - if another one before it was printed by torch's hook, which only an exception that leaves the
//!   script reaches;
//! - if the script went on after it: it had been handled. The script went on if steps were
//!   shown later, or if so much was printed that it cannot be a summary ([`AFTER_EXIT`]).
//!
//! A crash (`terminate called`, `Segmentation fault`) after a traceback that stands is a consequence of the interpreter's end, unless the
//! crash shows that the script itself was still running. Without a traceback the crash wins, then the error that a program or a shell tells
//! before it ends (`train.py: error: ...`, `line 3: foo: command not found`). For the exit codes of
//! shells (126, 127) that comes first. Where all of this finds nothing, the last line is shown, marked as what
//! it is: it proves nothing.

mod left;
mod shape;
mod traceback;
mod words;

use std::time::Duration;

use muster_runner::wire::{Exit, NO_RANK_BEGAN, RankException};
use shape::{clean, join};
use traceback::{Line, Parser, Raised};
use words::Word;

pub(crate) use left::{Files, Left};

/// How many lines may follow the traceback with which a process ends by an exit code, and by a signal. A tracker's
/// summary has 30 to 40.
const AFTER_EXIT: u32 = 60;
const AFTER_SIGNAL: u32 = 20;

/// How many lines may follow the error that a program tells before it ends.
const AFTER_ERROR: u32 = 10;

/// stdout and stderr are two pipes. A step on stdout came after a traceback if it is this much
/// younger.
const SURELY_LATER: Duration = Duration::from_millis(250);

/// Why a rank failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) first_error: Option<String>,
    pub(crate) exception: Option<RankException>,
    /// The last line, if there is no reason.
    pub(crate) last_output: Option<String>,
}

impl Reason {
    /// The kernel says why. The last line stays what it was.
    pub(crate) fn killed(&mut self, why: String) {
        (self.first_error, self.exception) = (Some(why), None);
    }

    /// What an `mpirun` has said before it started anything.
    pub(crate) fn no_rank_began(&mut self) {
        let said = self.first_error.take().or_else(|| self.last_output.take());
        let said = said.unwrap_or_else(|| "it said nothing".into());
        self.first_error = Some(format!("{NO_RANK_BEGAN}{said}"));
    }
}

/// Reads one rank's stderr as it passes.
#[derive(Default)]
pub(crate) struct Finder {
    parser: Parser,
    /// Where the exception goes that the parser is reading.
    reading: Option<Slot>,
    main: Option<Seen<Raised>>,
    aside: Option<Seen<Raised>>,
    crash: Option<Seen<Crash>>,
    error: Option<Seen<String>>,
    mpi: Option<String>,
    last: Last,
    /// The next line is in a box that is an error message.
    boxed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Main,
    Aside,
}

struct Crash {
    text: String,
    /// How many of the next lines belong to it.
    more: u8,
    /// The interpreter's own report shows that the script was still running.
    in_script: bool,
}

/// Something that was seen, and what came after it.
struct Seen<T> {
    what: T,
    at: Duration,
    lines: u32,
    /// Different counts of steps that were shown.
    steps: u32,
    step: Option<u64>,
}

#[derive(Default)]
struct Last {
    plain: String,
    chatter: String,
    is_chatter: bool,
}

impl<T> Seen<T> {
    fn new(what: T, at: Duration, step: Option<u64>) -> Option<Self> {
        Some(Self {
            what,
            at,
            lines: 0,
            steps: 0,
            step,
        })
    }

    /// Notes a step. True: the script went on.
    fn step(&mut self, of_stderr: bool, count: u64, now: Duration) -> bool {
        self.steps += u32::from(self.step.replace(count) != Some(count));
        // A progress bar is drawn once more when it is closed at the end.
        if of_stderr {
            self.steps > 1
        } else {
            now >= self.at + SURELY_LATER
        }
    }

    /// Whether a process that ended so may have ended by this.
    fn stands(&self, exit: Exit) -> bool {
        // The interpreter ends with 1 after an exception. With any other end, the script has handled it.
        let most = match exit {
            Exit::Code { code: 1 } => return self.lines <= AFTER_EXIT,
            Exit::Code { .. } => AFTER_EXIT,
            Exit::Signal { .. } => AFTER_SIGNAL,
        };
        self.lines <= most && self.steps <= 1
    }
}

impl Finder {
    /// Takes a line of stderr, and the last step that was shown. True: it is of a traceback, so a number in it
    /// is no step.
    pub(crate) fn line(&mut self, bytes: &[u8], now: Duration, step: Option<u64>) -> bool {
        let text = clean(bytes);
        let line = self.parser.line(&text);
        match line {
            Line::Part => {}
            Line::Raised => self.raised(now, step),
            Line::More => {
                let raised = self.parser.raised().clone();
                match (self.reading, &mut self.main, &mut self.aside) {
                    (Some(Slot::Main), Some(seen), _) | (Some(Slot::Aside), _, Some(seen)) => {
                        seen.what = raised;
                    }
                    _ => {}
                }
            }
            Line::Other => self.other(shape::without_rank(&text).1, now, step),
        }
        line != Line::Other
    }

    /// Notes a step that one of the two outputs has shown.
    pub(crate) fn stepped(&mut self, of_stderr: bool, count: u64, now: Duration) {
        forget_if(&mut self.main, |seen| seen.step(of_stderr, count, now));
        forget_if(&mut self.aside, |seen| seen.step(of_stderr, count, now));
        forget_if(&mut self.crash, |seen| seen.step(of_stderr, count, now));
        forget_if(&mut self.error, |seen| seen.step(of_stderr, count, now));
    }

    fn raised(&mut self, now: Duration, step: Option<u64>) {
        let raised = self.parser.raised().clone();
        self.error = None;
        if raised.aside {
            self.reading = Some(Slot::Aside);
            self.aside = Seen::new(raised, now, step);
            return;
        }
        let exit = Exit::Code { code: 1 };
        let cause = [&mut self.main, &mut self.aside]
            .into_iter()
            .flatten()
            .find(|seen| seen.stands(exit));
        if let Some(cause) = cause
            && (tells_of_a_child(&raised) || cause.what.left && !raised.left)
        {
            (cause.lines, self.reading) = (0, None);
            let own = self.main.is_some();
            if !own {
                self.main = self.aside.take();
            }
            return;
        }
        self.reading = Some(Slot::Main);
        self.main = Seen::new(raised, now, step);
    }

    fn other(&mut self, text: &str, now: Duration, step: Option<u64>) {
        if text.is_empty() {
            return;
        }
        if self.of_crash(text) || self.of_box(text, now, step) {
            return;
        }
        let word = words::look(text);
        if text.starts_with([' ', '\t']) && word != Word::Chatter {
            if !self.last.is_chatter {
                join(&mut self.last.plain, text);
            }
            return;
        }
        self.last.is_chatter = word == Word::Chatter;
        if !matches!(word, Word::Chatter) {
            count(&mut self.main);
            count(&mut self.aside);
            count(&mut self.crash);
            count(&mut self.error);
        }
        match word {
            Word::Chatter => {
                self.last.chatter = shape::one_line(text, shape::REASON);
                return;
            }
            Word::Crash(crash, more) => {
                // faulthandler repeats the abort that the C++ library or glibc has explained.
                let repeats =
                    crash.starts_with("Fatal Python error: Aborted") || crash == "Aborted";
                if !(repeats && self.crash.is_some()) {
                    let crash = Crash {
                        text: crash,
                        more,
                        in_script: false,
                    };
                    self.crash = Seen::new(crash, now, step);
                }
            }
            Word::Error(error) => self.error = Seen::new(error, now, step),
            Word::Mpi(words) => self.mpi = Some(words),
            Word::Plain => {}
        }
        self.last.plain = shape::one_line(text, shape::REASON);
    }

    /// Whether the line belongs to the crash before it.
    fn of_crash(&mut self, text: &str) -> bool {
        let Some(Seen { what: crash, .. }) = &mut self.crash else {
            return false;
        };
        if crash.text.starts_with("Fatal Python error: ") && text.starts_with("  File \"") {
            crash.in_script |= text.ends_with(" in <module>");
            return true;
        }
        let more = ["Exception raised from ", "frame #", "Fatal Python error: "];
        if crash.more == 0
            || words::is_chatter(text)
            || more.iter().any(|word| text.starts_with(word))
        {
            crash.more = 0;
            return false;
        }
        crash.more -= 1;
        join(&mut crash.text, text);
        true
    }

    /// typer and rich draw a box around an error message.
    fn of_box(&mut self, text: &str, now: Duration, step: Option<u64>) -> bool {
        if text.starts_with("╭─ Error ─") {
            self.boxed = true;
            return true;
        }
        let inside = std::mem::take(&mut self.boxed) && text.starts_with('│');
        if inside {
            let words = text.trim_matches(['│', ' ']);
            self.error = Seen::new(format!("Error: {words}"), now, step);
        }
        inside || text.starts_with('╰')
    }

    /// Why the rank failed that ended so, and that left this behind.
    pub(crate) fn reason(&self, exit: Exit, left: Left) -> Reason {
        if let Some(raised) = &left.written {
            return Reason::raised(raised);
        }
        let Some(exited) = left.exited else {
            return match &left.recorded {
                Some(raised) => Reason::raised(raised),
                None => self.seen(exit),
            };
        };
        // The script has ended itself. Its text or the exception that it was handling says more than the
        // code.
        let line = match (exited.text, exited.handling) {
            (Some(text), Some(handling)) => {
                Some(format!("{text} (while handling {})", handling.line()))
            }
            (Some(text), None) => Some(text),
            (None, Some(handling)) if self.told(2).is_none() => Some(handling.line()),
            (None, _) => None,
        };
        let seen = match line {
            Some(line) => Reason::said(shape::cut(line, shape::REASON)),
            None => self.seen(exit),
        };
        let frames = seen
            .exception
            .as_ref()
            .is_some_and(|seen| !seen.frames.is_empty());
        let exception = if frames {
            seen.exception
        } else {
            Some(exited.exception)
        };
        Reason { exception, ..seen }
    }

    /// The reason that stderr shows.
    fn seen(&self, exit: Exit) -> Reason {
        let by_shell = matches!(exit, Exit::Code { code: 126 | 127 });
        let by_python = exit == Exit::Code { code: 1 };
        let main = self.main.as_ref().filter(|seen| seen.stands(exit));
        let crash = self.crash.as_ref().filter(|seen| seen.stands(exit));
        let in_script = crash.filter(|seen| seen.what.in_script);
        let told = |most| {
            self.told(most)
                .filter(|_| matches!(exit, Exit::Code { .. }))
        };
        let first = match exit {
            _ if by_shell => told(AFTER_ERROR),
            Exit::Code { .. } if !by_python && main.is_some() => told(3),
            _ => None,
        };
        if let Some(error) = first {
            return Reason::said(error.to_owned());
        }
        if let Some(crash) = in_script.filter(|_| !by_python) {
            return Reason::said(crash.what.text.clone());
        }
        if let Some(main) = main {
            return Reason::raised(&main.what);
        }
        if let Some(crash) = crash {
            return Reason::said(crash.what.text.clone());
        }
        if let Some(error) = told(AFTER_ERROR) {
            return Reason::said(error.to_owned());
        }
        let exited = matches!(exit, Exit::Code { .. });
        if let Some(aside) = self
            .aside
            .as_ref()
            .filter(|seen| exited && seen.stands(exit))
        {
            return Reason::raised(&aside.what);
        }
        if let Some(mpi) = &self.mpi {
            return Reason::said(mpi.clone());
        }
        let last = [&self.last.plain, &self.last.chatter];
        let last = last.into_iter().find(|line| !line.is_empty());
        Reason {
            last_output: last.filter(|_| exited).cloned(),
            ..Reason::default()
        }
    }

    /// The error that a program has told, if at most so many lines followed.
    fn told(&self, most: u32) -> Option<&str> {
        let error = self.error.as_ref().filter(|seen| seen.lines <= most)?;
        Some(&error.what)
    }
}

impl Reason {
    fn said(text: String) -> Self {
        Self {
            first_error: Some(text),
            ..Self::default()
        }
    }

    fn raised(raised: &Raised) -> Self {
        Self {
            exception: Some(raised.exception()),
            ..Self::said(raised.line())
        }
    }
}

impl Raised {
    fn exception(&self) -> RankException {
        RankException {
            name: self.name.clone(),
            text: self.text.clone(),
            frames: self.frames.iter().cloned().collect(),
            left_script: self.left,
        }
    }
}

/// Exceptions of those that start other processes: they say only that one has failed.
fn tells_of_a_child(raised: &Raised) -> bool {
    let name = raised.name.rsplit('.').next().unwrap_or_default();
    [
        "ChildFailedError",
        "CalledProcessError",
        "ProcessExitedException",
    ]
    .contains(&name)
}

fn forget_if<T>(slot: &mut Option<Seen<T>>, over: impl FnOnce(&mut Seen<T>) -> bool) {
    if slot.as_mut().is_some_and(over) {
        *slot = None;
    }
}

fn count<T>(slot: &mut Option<Seen<T>>) {
    if let Some(seen) = slot {
        seen.lines = seen.lines.saturating_add(1);
    }
}

#[cfg(test)]
mod tests;
