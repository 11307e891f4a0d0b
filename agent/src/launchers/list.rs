//! The list of what the ranks of a run have imported, as their launcher reads it next time, and the
//! list of what a launcher has imported.

use std::{collections::BTreeSet, io::Read, path::Path};

use muster_runner::{Folder, record};

/// The longest list of modules that is passed on: 10,000 names and files of 400 bytes.
const MODULES_BYTES: u64 = 4 << 20;

/// The length of that list, which grows while ranks import. 0 if there is none.
pub(crate) fn imported_bytes(run_dir: &Path) -> u64 {
    Folder::of_run(run_dir)
        .and_then(|folder| folder.open(record::MODULES)?.metadata())
        .map_or(0, |metadata| metadata.len())
}

/// The list of modules that earlier ranks of this run have imported. A rank that was killed may have
/// left a part of a line, which is left out.
pub(crate) fn imported(run_dir: &Path) -> String {
    whole_lines(run_dir, record::MODULES)
}

/// The modules that a launcher has imported ahead, each as a line of the list above.
pub(crate) fn imported_ahead(launcher_dir: &Path) -> BTreeSet<String> {
    let text = whole_lines(launcher_dir, record::PRELOADED);
    text.lines().map(str::to_owned).collect()
}

fn whole_lines(dir: &Path, name: &str) -> String {
    let mut bytes = Vec::new();
    let _ = Folder::of_run(dir)
        .and_then(|folder| folder.open(name))
        .map(|file| file.take(MODULES_BYTES).read_to_end(&mut bytes));
    let whole = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    bytes.truncate(whole);
    String::from_utf8_lossy(&bytes).into_owned()
}
