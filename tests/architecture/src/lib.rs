//! Reads the workspace for the tests that hold its architecture: its crates from `cargo metadata`,
//! and its sources from disk.
//!
//! The rules are in `tests/`, one test each. This crate only reads.
#![forbid(unsafe_code)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use cargo_metadata::{Metadata, MetadataCommand};

pub mod kustomize;
pub mod patch;
pub mod uses;

/// The workspace and all its dependencies here, as cargo resolves them from `Cargo.lock`.
///
/// It covers only this machine's platform. The lock also names crates of other platforms, and no
/// build here downloads those.
pub fn workspace() -> Metadata {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let options = ["--offline", "--locked", "--filter-platform", &platform()].map(str::to_owned);
    MetadataCommand::new()
        .manifest_path(manifest)
        .other_options(options)
        .exec()
        .expect("cargo resolves the workspace")
}

/// This machine's platform as cargo names it, such as `x86_64-unknown-linux-gnu`.
fn platform() -> String {
    let output = Command::new(env!("CARGO"))
        .arg("-vV")
        .output()
        .expect("cargo, which runs this test, can be executed");
    let text = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("cargo names its host").to_owned()
}

/// The workspace's folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .and_then(Path::parent)
        .expect("this crate is two folders deep")
        .to_owned()
}

/// One source file of this workspace.
#[derive(Clone, Debug)]
pub struct Source {
    /// The path from the workspace's folder, with `/`.
    pub path: String,
    pub text: String,
}

/// A line with its number, counted from 1.
pub type Line<'a> = (usize, &'a str);

impl Source {
    /// Whether the file holds only tests.
    pub fn is_test(&self) -> bool {
        let parts: Vec<&str> = self.path.split('/').collect();
        let (name, folders) = parts.split_last().expect("a path has a name");
        let in_tests = |folders: &[&str]| {
            folders.contains(&"tests")
                || folders.contains(&"benches")
                || folders.contains(&"examples")
        };
        // The crates below tests/ have a `src` and a `tests` like every other.
        let folders = if folders.first() == Some(&"tests") {
            &folders[1..]
        } else {
            folders
        };
        *name == "tests.rs" || in_tests(folders)
    }

    /// Lines that run in production, without comments.
    pub fn production(&self) -> Vec<Line<'_>> {
        if self.is_test() {
            Vec::new()
        } else {
            code(self.lines().take(self.tests_begin()).collect())
        }
    }

    /// Lines of tests, without comments.
    pub fn tests(&self) -> Vec<Line<'_>> {
        let skipped = if self.is_test() {
            0
        } else {
            self.tests_begin()
        };
        code(self.lines().skip(skipped).collect())
    }

    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }

    /// How many lines come before the test module. Tests are last in a file.
    fn tests_begin(&self) -> usize {
        let lines: Vec<&str> = self.text.lines().collect();
        let opens = |at: usize| {
            lines[at].trim() == "#[cfg(test)]"
                && lines.get(at + 1).is_some_and(|next| next.ends_with('{'))
        };
        (0..lines.len())
            .find(|at| opens(*at))
            .unwrap_or(lines.len())
    }
}

fn code(lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    lines
        .into_iter()
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .collect()
}

/// Every Rust source of every workspace member, in the order of their paths.
pub fn sources() -> Vec<Source> {
    static ALL: OnceLock<Vec<Source>> = OnceLock::new();
    ALL.get_or_init(read_sources).clone()
}

fn read_sources() -> Vec<Source> {
    let root = root();
    let mut files = Vec::new();
    for package in workspace().workspace_packages() {
        let folder = package
            .manifest_path
            .parent()
            .expect("a manifest lies in a folder");
        gather(folder.as_std_path(), &mut files);
    }
    files.sort();
    files.dedup();
    let read = |path: PathBuf| {
        let text =
            fs::read_to_string(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
        let path = path
            .strip_prefix(&root)
            .expect("members lie in the workspace")
            .to_string_lossy()
            .replace('\\', "/");
        Source { path, text }
    };
    files.into_iter().map(read).collect()
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("read {}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("a folder can be read to its end").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            gather(&path, files);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            files.push(path);
        }
    }
}

/// Panics with everything that is wrong, and what to do about it.
pub fn expect_none(wrong: &[String], what_to_do: &str) {
    assert!(
        wrong.is_empty(),
        "\n  {}\n{what_to_do}\n",
        wrong.join("\n  ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_told_from_production() {
        let text =
            "//! x\nfn a() {}\n// b.unwrap()\n#[cfg(test)]\nmod tests {\n    c.unwrap();\n}\n"
                .to_owned();
        let source = Source {
            path: "core/src/a.rs".into(),
            text,
        };
        assert_eq!(source.production(), [(2, "fn a() {}")]);
        assert!(source.tests().contains(&(6, "    c.unwrap();")));
        let at = |path: &str| {
            Source {
                path: path.into(),
                text: String::new(),
            }
            .is_test()
        };
        assert!(
            at("cli/tests/run.rs") && at("core/src/a/tests.rs") && at("tests/world/tests/seeds.rs")
        );
        assert!(!at("tests/world/src/world.rs"));
    }
}
