//! Reads a YAML or JSON text into checked [`JobDocument`]s, or into a list of everything that is
//! wrong with it, each with its line.
//!
//! The syntax, and the job files of other systems, are `muster_foreign`'s. `shape` owns the names and
//! types of a MusterJob's fields, and `JobDocument::check` in core the meaning. A relative path
//! becomes absolute here, because only the command line knows the current directory: [`read`]
//! resolves `workingDir` against it, as torchrun would, and uses the current directory itself if the
//! file names none.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Component, Path, PathBuf},
};

use muster_core::spec::{DEFAULT_NAMESPACE, JobDocument, shape::DOCUMENT};
use muster_foreign::{
    NameAt, ObjectOnly, Options, Remark, Verdict,
    tree::{self, Node, Place, Value},
};

mod shape;

/// Bytes of the largest job file. Arguments and environment of a job have at most 96 KiB; the rest
/// is room for comments, and for more jobs.
pub const FILE_MAX: u64 = 1 << 20;

/// How files are read.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    /// The absolute current directory.
    pub here: PathBuf,
    /// What other systems' files need to be told. `namespace` is that of the command line, and holds
    /// for MusterJobs as well.
    pub options: Options,
    /// Whether a warning about another system's file refuses it.
    pub strict: bool,
}

/// The jobs of a file, in its order.
#[derive(Clone, Debug)]
pub struct Jobs {
    pub documents: Vec<JobDocument>,
    /// For each document what only an object of a cluster has, if such objects were asked for.
    pub objects: Vec<Option<ObjectOnly>>,
    /// The verdicts about fields of other systems' files.
    pub remarks: Vec<Remark>,
}

/// Everything that is wrong with a job file, in the order of its lines, and the warnings about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadJobFile {
    pub file: String,
    pub problems: Vec<Remark>,
}

impl std::error::Error for BadJobFile {}

impl fmt::Display for BadJobFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self
            .problems
            .iter()
            .map(|problem| format!("{}:{problem}", self.file))
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

/// The problems that reading has found so far.
#[derive(Default)]
struct Findings {
    problems: Vec<Remark>,
    /// Paths of fields that are wrong, or that a misspelt field probably means. If such a field is
    /// missing, that is no second mistake.
    covered: Vec<String>,
    /// Fields that are there under a misspelt name, and where that name is.
    misspelt: Vec<(String, Place)>,
    /// Lists of field names that stand in the problems already.
    listed: BTreeSet<String>,
}

impl Findings {
    fn add(&mut self, place: Place, path: &str, message: impl Into<String>) {
        self.problems.push(Remark::refusal(place, path, message));
        self.covered.push(path.to_owned());
    }

    /// Whether this field, or one around it, is known to be wrong.
    fn covers(&self, path: &str) -> bool {
        self.covered.iter().any(|covered| is_below(path, covered))
    }
}

/// Whether a field is this one, or stands in it.
fn is_below(path: &str, around: &str) -> bool {
    path.strip_prefix(around)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Reads and checks a job file. `file` is its name for errors.
pub fn read(file: &str, text: &[u8], reader: &Reader) -> Result<Jobs, BadJobFile> {
    let mut findings = Findings::default();
    let mut remarks = Vec::new();
    let jobs = match file.ends_with(".py") {
        true => {
            let why = format!("is a script; `muster run {file}` starts it");
            findings.add(Place::START, "", why);
            Vec::new()
        }
        false => check_all(text, reader, &mut findings, &mut remarks),
    };
    let (documents, objects) = jobs.into_iter().unzip();
    let is_bad = |remark: &Remark| match remark.verdict {
        Verdict::Refusal => true,
        Verdict::Warning => reader.strict,
        Verdict::Note | Verdict::Taken => false,
    };
    if findings.problems.is_empty() && !remarks.iter().any(is_bad) {
        return Ok(Jobs {
            documents,
            objects,
            remarks,
        });
    }
    remarks.retain(|remark| remark.verdict >= Verdict::Warning);
    let mut problems = [findings.problems, remarks].concat();
    problems.sort_by_key(|problem| problem.place);
    Err(BadJobFile {
        file: file.to_owned(),
        problems,
    })
}

fn check_all(
    text: &[u8],
    reader: &Reader,
    findings: &mut Findings,
    remarks: &mut Vec<Remark>,
) -> Vec<(JobDocument, Option<ObjectOnly>)> {
    let parsed = utf8(text).and_then(|text| {
        if muster_foreign::is_batch_script(text) {
            return Ok(Err(text));
        }
        let parsed = tree::parse_file(text);
        parsed
            .map(Ok)
            .map_err(|(place, message)| Remark::refusal(place, "", message))
    });
    let parsed = match parsed {
        Ok(Err(script)) => return check_script(script, reader, remarks),
        Ok(Ok(parsed)) => Ok(parsed),
        Err(problem) => Err(problem),
    };
    let (trees, twice) = match parsed {
        Ok(parsed) => parsed,
        Err(problem) => {
            findings.problems.push(problem);
            return Vec::new();
        }
    };
    let twice = twice.into_iter();
    findings
        .problems
        .extend(twice.map(|(place, message)| Remark::refusal(place, "", message)));
    if trees.is_empty() {
        findings.add(Place::START, "", "is empty; a MusterJob document is needed");
        return Vec::new();
    }
    let (ours, others): (Vec<&Node>, Vec<&Node>) =
        trees.iter().partition(|tree| muster_foreign::is_ours(tree));
    let mut jobs: Vec<(Place, JobDocument, Option<ObjectOnly>)> = Vec::new();
    for tree in &ours {
        // A field that is wrong in one document says nothing about the next one.
        findings.covered.clear();
        findings.misspelt.clear();
        let judged = check(tree, reader, findings);
        jobs.extend(judged.map(|document| (tree.place, document, None)));
    }
    let reading = muster_foreign::read(&others, ours.len(), &reader.options);
    *remarks = reading.remarks;
    let own = jobs.iter().map(|(place, document, _)| NameAt {
        place: *place,
        namespace: document.metadata.namespace.clone(),
        name: document.metadata.name.clone(),
    });
    refuse_twins(own.chain(reading.names).collect(), findings);
    for job in reading.jobs {
        let mut document = job.document;
        // In a pod it is the image's, unless the file says.
        if job.object.is_none() {
            make_absolute(&mut document, &reader.here);
        }
        jobs.push((job.place, document, job.object));
    }
    jobs.sort_by_key(|(place, ..)| *place);
    let jobs = jobs.into_iter();
    jobs.map(|(_, document, object)| (document, object))
        .collect()
}

/// The job of a batch script of Slurm.
fn check_script(
    text: &str,
    reader: &Reader,
    remarks: &mut Vec<Remark>,
) -> Vec<(JobDocument, Option<ObjectOnly>)> {
    let reading = muster_foreign::read_batch_script(text, &reader.options);
    *remarks = reading.remarks;
    let jobs = reading.jobs.into_iter().map(|job| {
        let mut document = job.document;
        make_absolute(&mut document, &reader.here);
        (document, job.object)
    });
    jobs.collect()
}

/// Two jobs of one name would be in each other's way.
fn refuse_twins(mut names: Vec<NameAt>, findings: &mut Findings) {
    names.sort_by_key(|name| name.place);
    let mut seen = BTreeMap::new();
    for NameAt {
        place,
        namespace,
        name,
    } in &names
    {
        let namespace = namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        // A job without a name has its refusal.
        if let Some(first) = seen.insert((namespace, name), *place)
            && !name.is_empty()
        {
            let message = format!(
                "is {name:?}, which is also the name of the job in line {}",
                first.line
            );
            findings.add(*place, "metadata.name", message);
        }
    }
}

fn make_absolute(document: &mut JobDocument, here: &Path) {
    let dir = document.spec.working_dir.as_deref().unwrap_or(".");
    document.spec.working_dir = Some(absolute(dir, here));
}

/// Reads and checks a MusterJob.
fn check(tree: &Node, reader: &Reader, findings: &mut Findings) -> Option<JobDocument> {
    let json = shape::read(tree, &DOCUMENT, "", findings)?;
    let mut document: JobDocument = match serde_json::from_value(json) {
        Ok(document) => document,
        Err(error) => {
            findings.add(tree.place, "", error.to_string());
            return None;
        }
    };
    make_absolute(&mut document, &reader.here);
    let asked = reader.options.namespace.as_deref();
    match (&document.metadata.namespace, asked) {
        (Some(in_file), Some(asked)) if in_file != asked => {
            let message = format!("is {in_file:?}, but --namespace asks for {asked:?}");
            findings.add(
                place_of(tree, "metadata.namespace"),
                "metadata.namespace",
                message,
            );
        }
        (None, Some(asked)) => document.metadata.namespace = Some(asked.to_owned()),
        _ => {}
    }
    for error in document.check().err().unwrap_or_default() {
        if !findings.covers(&error.path) {
            let mut misspelt = findings.misspelt.iter();
            let misspelt = misspelt.find(|(path, _)| is_below(&error.path, path));
            let place = match misspelt {
                Some((_, place)) => *place,
                None => place_of(tree, &error.path),
            };
            findings
                .problems
                .push(Remark::refusal(place, error.path, error.message));
        }
    }
    // A name that is not there is no name of another job.
    if findings.covers("metadata.name") {
        document.metadata.name.clear();
    }
    Some(document)
}

fn utf8(text: &[u8]) -> Result<&str, Remark> {
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
        Remark::refusal(Place { line, column }, "", "is not UTF-8 text")
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
        let trees = tree::parse_all(
            "apiVersion: x\nmetadata:\n  namespace: a\nspec:\n  env:\n    - value: b\n",
        )
        .expect("is YAML");
        let place = |path| place_of(&trees[0], path);
        assert_eq!(place("metadata.name"), Place { line: 2, column: 1 });
        assert_eq!(place("kind"), Place { line: 1, column: 1 });
        assert_eq!(place("spec.env[0].name"), Place { line: 6, column: 7 });
        assert_eq!(place("spec.env"), Place { line: 5, column: 3 });
    }
}
