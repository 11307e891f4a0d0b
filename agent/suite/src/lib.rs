//! The compatibility suite of the launch lanes: its scripts, and what a script may see differently
//! in a lane than under plain torchrun.
//!
//! The whole suite is a test with a coordinator (`tests/drills/tests/lanes.rs`). An agent runs the
//! short half of it, for an interpreter that nobody has proven (`muster-agent prove`). Both have the
//! scripts and the comparison from here, so that they mean the same by "no difference".
//!
//! This crate starts nothing. It reads the folders that the scripts have filled.
#![forbid(unsafe_code)]

use std::{fs, io, path::Path};

mod compare;

pub use compare::{
    Differences, as_plain, chances_met, same_files, start_ends_as_it_should, starts,
};

/// The scripts by name. They lie in one folder, so a job's own folder has all of them.
pub const SCRIPTS: [(&str, &str); 6] = [
    ("counts.py", include_str!("../scripts/counts.py")),
    ("plain.py", include_str!("../scripts/plain.py")),
    ("start.py", include_str!("../scripts/start.py")),
    ("syntax.py", include_str!("../scripts/syntax.py")),
    ("tongue.py", include_str!("../scripts/tongue.py")),
    ("work.py", include_str!("../scripts/work.py")),
];

/// The local ranks of every script of the suite.
pub const RANKS: [&str; 2] = ["0", "1"];

/// The suite's version: 16 hexadecimal digits over the scripts and the comparison. It changes with
/// each of their characters. It guards against mistakes only, so FNV-1a is enough.
pub fn version() -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let comparison = ("compare.rs", include_str!("compare.rs"));
    for (name, text) in SCRIPTS.into_iter().chain([comparison]) {
        for byte in name.bytes().chain([0]).chain(text.bytes()).chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}

/// Writes the scripts into a folder.
pub fn write_scripts(folder: &Path) -> io::Result<()> {
    for (name, text) in SCRIPTS {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}
