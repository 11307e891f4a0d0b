//! Reads a YAML or JSON text into a checked [`JobDocument`], or into a list of everything that is
//! wrong with it, each with its line.
//!
//! `tree` owns the syntax, `shape` the names and types of fields, and `JobDocument::check` in core
//! the meaning. A relative path becomes absolute here, because only the command line knows the
//! current directory: [`read`] resolves `workingDir` against it, as torchrun would, and uses the
//! current directory itself if the file names none.

use std::{
    fmt,
    path::{Component, Path, PathBuf},
};

use muster_core::spec::JobDocument;

mod shape;
mod spelling;
mod tree;

use tree::{Node, Place, Value};

/// Bytes of the largest job file. Arguments and environment of a job have at most 96 KiB; the rest
/// is room for comments.
pub const FILE_MAX: u64 = 1 << 20;

/// One thing wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    line: u64,
    column: u64,
    path: String,
    message: String,
}

impl Problem {
    fn new(place: Place, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            line: place.line,
            column: place.column,
            path: path.into(),
            message: message.into(),
        }
    }

    /// `job.yaml:9:16: spec.minReplicas: message`
    fn show(&self, file: &str) -> String {
        let Self {
            line,
            column,
            path,
            message,
        } = self;
        match path.as_str() {
            "" => format!("{file}:{line}:{column}: {message}"),
            _ => format!("{file}:{line}:{column}: {path}: {message}"),
        }
    }
}

/// Everything that is wrong with a job file, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadJobFile {
    pub file: String,
    pub problems: Vec<Problem>,
}

impl std::error::Error for BadJobFile {}

impl fmt::Display for BadJobFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self
            .problems
            .iter()
            .map(|problem| problem.show(&self.file))
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

/// The problems that reading has found so far.
#[derive(Default)]
struct Findings {
    problems: Vec<Problem>,
    /// Paths of fields that are wrong, or that a misspelt field probably means. If such a field is
    /// missing, that is no second mistake.
    covered: Vec<String>,
}

impl Findings {
    fn add(&mut self, place: Place, path: &str, message: impl Into<String>) {
        self.problems.push(Problem::new(place, path, message));
        self.covered.push(path.to_owned());
    }

    /// Whether this field, or one around it, is known to be wrong.
    fn covers(&self, path: &str) -> bool {
        self.covered.iter().any(|covered| {
            path.strip_prefix(covered.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }
}

/// Reads and checks a job file. `file` is its name for errors, `here` is the absolute current
/// directory, and `namespace` is the one from the command line.
pub fn read(
    file: &str,
    text: &[u8],
    here: &Path,
    namespace: Option<&str>,
) -> Result<JobDocument, BadJobFile> {
    let mut findings = Findings::default();
    match judge(text, here, namespace, &mut findings) {
        Some(document) if findings.problems.is_empty() => Ok(document),
        _ => {
            findings
                .problems
                .sort_by_key(|problem| (problem.line, problem.column));
            Err(BadJobFile {
                file: file.to_owned(),
                problems: findings.problems,
            })
        }
    }
}

fn judge(
    text: &[u8],
    here: &Path,
    namespace: Option<&str>,
    findings: &mut Findings,
) -> Option<JobDocument> {
    let tree = match utf8(text).and_then(|text| {
        tree::parse(text).map_err(|(place, message)| Problem::new(place, "", message))
    }) {
        Ok(tree) => tree,
        Err(problem) => {
            findings.problems.push(problem);
            return None;
        }
    };
    if tree.value == Value::Null {
        findings.add(Place::START, "", "is empty; a MusterJob document is needed");
        return None;
    }
    let json = shape::read(&tree, &shape::DOCUMENT, "", findings)?;
    let mut document: JobDocument = match serde_json::from_value(json) {
        Ok(document) => document,
        Err(error) => {
            findings.add(Place::START, "", error.to_string());
            return None;
        }
    };
    document.spec.working_dir = Some(absolute(
        document.spec.working_dir.as_deref().unwrap_or("."),
        here,
    ));
    match (&document.metadata.namespace, namespace) {
        (Some(in_file), Some(asked)) if in_file != asked => {
            let message = format!("is {in_file:?}, but --namespace asks for {asked:?}");
            findings.add(
                place_of(&tree, "metadata.namespace"),
                "metadata.namespace",
                message,
            );
        }
        (None, Some(asked)) => document.metadata.namespace = Some(asked.to_owned()),
        _ => {}
    }
    for error in document.check().err().unwrap_or_default() {
        if !findings.covers(&error.path) {
            findings.problems.push(Problem::new(
                place_of(&tree, &error.path),
                error.path,
                error.message,
            ));
        }
    }
    Some(document)
}

fn utf8(text: &[u8]) -> Result<&str, Problem> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    std::str::from_utf8(text).map_err(|error| {
        let before = &text[..error.valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
        let column = before
            .iter()
            .rev()
            .take_while(|byte| **byte != b'\n')
            .count() as u64
            + 1;
        Problem::new(Place { line, column }, "", "is not UTF-8 text")
    })
}

/// The place of a field. If the field is missing, the place of the nearest field around it.
fn place_of(tree: &Node, path: &str) -> Place {
    let mut node = tree;
    let mut place = tree.place;
    for step in path.split(['.', '[']) {
        let next =
            match (&node.value, step.strip_suffix(']')) {
                (Value::List(items), Some(index)) => index
                    .parse()
                    .ok()
                    .and_then(|index: usize| items.get(index))
                    .map(|item| (item, item.place)),
                // A block that is too short, or wrong as a whole, begins a line after its name. The
                // name is the place to look at.
                (Value::Object(entries), None) => entries
                    .iter()
                    .find(|entry| entry.key == step)
                    .map(|entry| match entry.node.value {
                        Value::Object(_) | Value::List(_) | Value::Null => {
                            (&entry.node, entry.key_place)
                        }
                        _ => (&entry.node, entry.node.place),
                    }),
                _ => None,
            };
        let Some((found, at)) = next else { break };
        (node, place) = (found, at);
    }
    place
}

/// The absolute form of `dir`, resolved against `here`: without `.`, and with each `..` removed
/// together with the name before it.
pub fn absolute(dir: &str, here: &Path) -> String {
    let mut clean = PathBuf::new();
    for part in here.join(dir).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_seen_from_here() {
        let here = Path::new("/home/ada/work");
        assert_eq!(absolute(".", here), "/home/ada/work");
        assert_eq!(absolute("./a/../b", here), "/home/ada/work/b");
        assert_eq!(absolute("../x", here), "/home/ada/x");
        assert_eq!(absolute("/data", here), "/data");
        assert_eq!(absolute("../../../..", here), "/");
    }

    #[test]
    fn a_missing_field_is_shown_where_it_should_be() {
        let tree = tree::parse(
            "apiVersion: x\nmetadata:\n  namespace: a\nspec:\n  env:\n    - value: b\n",
        )
        .expect("is YAML");
        let place = |path| place_of(&tree, path);
        assert_eq!(place("metadata.name"), Place { line: 2, column: 1 });
        assert_eq!(place("kind"), Place { line: 1, column: 1 });
        assert_eq!(place("spec.env[0].name"), Place { line: 6, column: 7 });
        assert_eq!(place("spec.env"), Place { line: 5, column: 3 });
    }
}
