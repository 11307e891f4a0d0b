//! What is told about a run of the world: lines for people, and one number that says whether two
//! runs were the same.

use std::{collections::VecDeque, fmt};

use muster_core::time::Timestamp;

/// The number of lines kept for the report of a violation.
const KEPT: usize = 40;

#[derive(Debug)]
pub(crate) struct Trace {
    /// Off while seeds are searched, because formatting costs more than the simulation.
    pub(crate) on: bool,
    /// Keep all lines, not only the last ones.
    keep: bool,
    pub(crate) whole: Vec<(Timestamp, String)>,
    pub(crate) lines: VecDeque<String>,
    hash: u64,
}

impl Trace {
    pub(crate) fn new(on: bool, keep: bool) -> Self {
        Self {
            on,
            keep,
            whole: Vec::new(),
            lines: VecDeque::new(),
            hash: 0xcbf2_9ce4_8422_2325,
        }
    }

    pub(crate) fn line(&mut self, now: Timestamp, text: fmt::Arguments<'_>) {
        if !self.on {
            return;
        }
        if self.keep {
            return self.whole.push((now, text.to_string()));
        }
        let line = format!("{now} {text}");
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// FNV-1a over words, with the high half folded in. Over bytes it would cost more than the
    /// rules do.
    pub(crate) fn mix(&mut self, number: u64) {
        let mixed = (self.hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 32);
    }

    pub(crate) fn mix_text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.mix(u64::from(byte)));
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

/// One line of the world's log. It is formatted only if it is read.
macro_rules! note {
    ($world:expr, $($text:tt)*) => {
        if $world.trace.on {
            $world.trace.line($world.now, format_args!($($text)*));
        }
    };
}
pub(crate) use note;
