//! The files that a job saves.

use std::{
    collections::BTreeMap,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

/// How many names of directories one look reads. A pattern that meets more is too wide: the rest is
/// not seen.
const NAMES_MAX: usize = 10_000;

/// The files that match, each with what changes when it is written.
pub fn saved(dir: &Path, pattern: &str) -> BTreeMap<PathBuf, u64> {
    let mut names = NAMES_MAX;
    let mut found = vec![PathBuf::new()];
    for part in dir.join(pattern).components() {
        let Component::Normal(part) = part else {
            for path in &mut found {
                path.push(part);
            }
            continue;
        };
        let part = part.to_string_lossy();
        if !part.contains('*') {
            for path in &mut found {
                path.push(&*part);
            }
            continue;
        }
        let mut next = Vec::new();
        for dir in &found {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            for entry in entries.take(names) {
                names -= 1;
                let name = entry.file_name();
                if fits(&part, &name.to_string_lossy()) {
                    next.push(dir.join(name));
                }
            }
        }
        found = next;
    }
    let state = |path: PathBuf| {
        let file = fs::metadata(&path).ok()?;
        let mut state = DefaultHasher::new();
        (file.ino(), file.len(), file.mtime(), file.mtime_nsec()).hash(&mut state);
        Some((path, state.finish()))
    };
    found.into_iter().filter_map(state).collect()
}

/// Whether a name fits a pattern, in which `*` is any text.
fn fits(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else {
        return rest.is_empty();
    };
    for piece in pieces {
        let Some(at) = rest.find(piece) else {
            return false;
        };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_part_of_a_name() {
        for (pattern, name, fit) in [
            ("*.pt", "a.pt", true),
            ("*.pt", "a.pth", false),
            ("step*.pt", "step12.pt", true),
            ("step*.pt", "last.pt", false),
            ("*", "anything", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXcYb", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(fits(pattern, name), fit, "{pattern} {name}");
        }
    }

    #[test]
    fn only_files_of_the_pattern_are_seen_and_only_their_changes_count() {
        let dir = tempfile::tempdir().unwrap();
        let (out, pattern) = (dir.path().join("out/run-1"), "out/*/*.pt");
        assert!(saved(dir.path(), pattern).is_empty());
        fs::create_dir_all(&out).unwrap();
        fs::write(out.join("a.pt"), "1").unwrap();
        fs::write(out.join("log.txt"), "1").unwrap();
        let before = saved(dir.path(), pattern);
        assert_eq!(before.keys().collect::<Vec<_>>(), [&out.join("a.pt")]);
        assert_eq!(saved(dir.path(), pattern), before);
        fs::write(out.join("log.txt"), "22").unwrap();
        assert_eq!(saved(dir.path(), pattern), before);
        fs::write(out.join("a.pt"), "22").unwrap();
        assert_ne!(saved(dir.path(), pattern), before);
    }
}
