//! What is told of a run of the world: lines for people, and one number that says whether two runs were the same.

use std::{collections::VecDeque, fmt};

use muster_core::time::Timestamp;

/// Lines kept for the report of a violation.
const KEPT: usize = 40;

#[derive(Debug)]
pub(crate) struct Trace {
    /// Off while seeds are searched: formatting costs more than the simulation.
    pub(crate) on: bool,
    pub(crate) print: bool,
    pub(crate) lines: VecDeque<String>,
    hash: u64,
}

impl Trace {
    pub(crate) fn new(on: bool, print: bool) -> Self {
        Self { on, print, lines: VecDeque::new(), hash: 0xcbf2_9ce4_8422_2325 }
    }

    pub(crate) fn line(&mut self, now: Timestamp, text: fmt::Arguments<'_>) {
        if !self.on {
            return;
        }
        let line = format!("{now} {text}");
        if self.print {
            println!("{line}");
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// FNV-1a, 64 bits.
    pub(crate) fn mix(&mut self, number: u64) {
        for byte in number.to_le_bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub(crate) fn mix_text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.mix(u64::from(byte)));
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

/// One line of the world's log; formatted only if somebody reads it.
macro_rules! note {
    ($world:expr, $($text:tt)*) => {
        if $world.trace.on {
            $world.trace.line($world.now, format_args!($($text)*));
        }
    };
}
pub(crate) use note;
