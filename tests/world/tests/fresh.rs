//! Seeds that nobody has seen. Every commit has its own, so that each landing looks at new histories, and
//! a violation can be looked at again from the commit alone.

mod histories;

use histories::no_seed_breaks_a_rule;
use muster_world::Size;

/// How many of each size. In the dev profile two cores run about 500 small and 200 mixed ones a second.
const SMALL: u64 = 6_000;
const MIXED: u64 = 1_000;
/// Above every seed that is used elsewhere.
const FIRST: u64 = 1 << 40;

/// The first seed of this commit. A tree that is no checkout has always the same ones.
fn first_of_this_commit() -> u64 {
    let git = std::process::Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let commit = git.ok().filter(|git| git.status.success());
    let commit = commit.and_then(|git| String::from_utf8(git.stdout).ok());
    let number = commit.and_then(|commit| u64::from_str_radix(commit.get(..8)?, 16).ok());
    FIRST + number.unwrap_or_default() * SMALL.max(MIXED)
}

#[test]
fn no_small_seed_of_this_commit_breaks_a_rule() {
    let first = first_of_this_commit();
    no_seed_breaks_a_rule(Size::Small, first..first + SMALL);
}

#[test]
fn no_mixed_seed_of_this_commit_breaks_a_rule() {
    let first = first_of_this_commit();
    no_seed_breaks_a_rule(Size::Mixed, first..first + MIXED);
}
