//! The page of what runs where names each version that a command has tried, in the row of its subject and with that command.

use std::fs;

use muster_architecture::{expect_none, root};

const RECORD: &str = "tests/tried.txt";
const PAGE: &str = "docs/support.md";

/// What a line of the record says: subject, version, command.
fn tried(line: &str) -> Option<(&str, &str, &str)> {
    let mut parts = line.split('|').map(str::trim);
    let said = (parts.next()?, parts.next()?, parts.next()?);
    let (_commit, date) = (parts.next()?, parts.next()?);
    (date.len() == "2026-01-01".len() && parts.next().is_none()).then_some(said)
}

/// The version as people name it: of three numbers the first two.
fn named(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// Whether a word of the row is this version, and not the beginning of a longer number.
fn names(row: &str, version: &str) -> bool {
    let words = row.split(|c: char| !c.is_ascii_digit() && c != '.');
    words
        .map(|word| word.trim_matches('.'))
        .any(|word| word == version)
}

fn missing(record: &str, page: &str) -> Vec<String> {
    let rows = || page.lines().filter(|line| line.starts_with('|'));
    let mut missing = Vec::new();
    for line in record.lines().filter(|line| !line.starts_with('#')) {
        let Some((what, version, command)) = tried(line) else {
            missing.push(format!(
                "{RECORD}: not WHAT | VERSION | COMMAND | COMMIT | DATE: {line}"
            ));
            continue;
        };
        let version = named(version);
        let is_told = rows().any(|row| {
            row.contains(what) && row.contains(&format!("`{command}`")) && names(row, &version)
        });
        if !is_told {
            missing.push(format!(
                "{PAGE}: no row names {what}, {version} and `{command}`"
            ));
        }
    }
    missing
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("the file is there")
}

#[test]
fn the_page_names_what_was_tried() {
    expect_none(
        &missing(&read(RECORD), &read(PAGE)),
        "write what was tried into its row; the record itself is written by tools/tried",
    );
}

#[test]
fn a_version_that_no_row_names_is_found() {
    let page =
        "| Slurm | 22.05, three nodes: `make slurm` | | |\n| system | Debian 12: `try` | | |\n";
    let of = |line: &str| missing(line, page).len();
    assert_eq!(of("Slurm | 22.05.8 | make slurm | 1234 | 2026-11-28"), 0);
    assert_eq!(of("Debian | 12 | try | 1234 | 2026-11-28"), 0);
    assert_eq!(of("Slurm | 23.11.4 | make slurm | 1234 | 2026-11-28"), 1);
    assert_eq!(of("Slurm | 22.0 | make slurm | 1234 | 2026-11-28"), 1);
    assert_eq!(of("Debian | 12 | make slurm | 1234 | 2026-11-28"), 1);
    assert_eq!(of("Slurm | 22.05.8 | make slurm"), 1);
}
