//! Which build this is.

/// `0.1.0 (commit abc123def456)`. The commit is `unknown` if the build had no git.
pub const fn version() -> &'static str {
    concat!(
        env!("CARGO_PKG_VERSION"),
        " (commit ",
        env!("MUSTER_COMMIT"),
        ")"
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_version_and_commit() {
        let (number, commit) = super::version().split_once(" (commit ").expect("two parts");
        assert_eq!(number, env!("CARGO_PKG_VERSION"));
        let commit = commit.strip_suffix(')').expect("closed");
        assert!(
            commit == "unknown"
                || (commit.len() >= 12 && commit.chars().all(|c| c.is_ascii_hexdigit())),
            "{commit:?}"
        );
    }
}
