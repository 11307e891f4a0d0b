//! Finds the training step in the output of programs that know nothing of Muster.
//!
//! [`Formats`] is the table: how training programs print their steps. One [`Reader`] reads the
//! output of one rank, line by line. It never reads files or clocks.
//!
//! A false step is worse than none: "made progress" and "steps lost" go by it. So a bar of loading
//! or of data preparation counts nothing, and where one output shows several counts, the format that
//! stands first in the table takes precedence.

mod about;
mod allowance;
mod bar;
mod loss;
mod rate;
mod reader;
mod scan;
mod table;
mod template;
mod word;

pub use allowance::Allowance;
pub use reader::{COMPILED_MAX, Formats, PatternError, Reader, Step};
pub use table::TableError;
