//! The documents of a file: which are jobs, which belong to one, and which are something else.
//!
//! A kind is known by group and kind together: an ElasticJob of `elastic.pytorch.org` and one of
//! `elastic.iml.github.io` are two things.

use std::collections::BTreeMap;

use muster_core::spec::JobDocument;

use crate::{
    draft::{Converted, Meta, NameAt},
    fields::{Object, Rule, Rules},
    kinds::{self, Job, Known},
    options::{Cluster, Options},
    tree::{Field, Node, Value},
    verdict::{Remark, Verdict, Verdicts},
};

const JOB: Rules = &[
    ("apiVersion", Rule::Note("says which kind it is")),
    ("kind", Rule::Note("says which kind it is")),
    ("metadata", Rule::Read),
    ("spec", Rule::Read),
    ("status", Rule::Note("is the operator's, and is not kept")),
];

/// What was found in a file.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// In the order of the file. A job that was refused is not among them.
    pub jobs: Vec<Converted>,
    /// The verdicts, in the order of the lines.
    pub remarks: Vec<Remark>,
    /// The names of all jobs, also of those that were refused.
    pub names: Vec<NameAt>,
}

impl Reading {
    pub fn is_refused(&self) -> bool {
        self.remarks
            .iter()
            .any(|remark| remark.verdict == Verdict::Refusal)
    }

    /// The jobs as documents.
    pub fn documents(&self) -> impl Iterator<Item = &JobDocument> {
        self.jobs.iter().map(|job| &job.document)
    }
}

/// What a document says it is.
struct Named<'t> {
    group: &'t str,
    version: &'t str,
    kind: &'t str,
}

fn named(node: &Node) -> Option<Named<'_>> {
    let api = node.text_at(&["apiVersion"])?;
    let kind = node.text_at(&["kind"])?;
    let (group, version) = api.split_once('/').unwrap_or(("", api));
    Some(Named {
        group,
        version,
        kind,
    })
}

/// Whether a document is a MusterJob, or was meant to be one: everything that does not say to be
/// something else.
pub fn is_ours(node: &Node) -> bool {
    named(node)
        .is_none_or(|named| named.group == "muster.dev" || named.kind == muster_core::spec::KIND)
}

/// Whether a text is a batch script of Slurm.
pub fn is_batch_script(text: &str) -> bool {
    kinds::sbatch::is_script(text)
}

/// Reads a batch script of Slurm.
pub fn read_batch_script(text: &str, options: &Options) -> Reading {
    let mut log = Verdicts::default();
    let (job, name) = kinds::sbatch::read(text, options, &mut log);
    log.only_once();
    let mut reading = Reading {
        jobs: job.into_iter().collect(),
        remarks: log.remarks,
        names: vec![name],
    };
    if reading.is_refused() {
        reading.jobs.clear();
    }
    reading
}

/// Reads all documents of a file but the MusterJobs, of which there are `beside`.
pub fn read(documents: &[&Node], beside: usize, options: &Options) -> Reading {
    let mut log = Verdicts::default();
    let (mut jobs, mut names) = (Vec::new(), Vec::new());
    let documents = unpacked(documents);
    let is_job = |node: &&&Node| {
        kinds::pods::job_of(node).is_some()
            || named(node).is_some_and(|named| {
                let known = kinds::find(named.group, named.kind, named.version);
                !matches!(known, Known::Unknown)
            })
    };
    let others = beside + documents.iter().filter(is_job).count() > 0;
    let workers = workers(&documents);
    for pods in &workers {
        log.begin();
        names.extend(kinds::pods::named(pods, options));
        jobs.extend(kinds::pods::read(pods, options, &mut log));
    }
    for node in &documents {
        if kinds::pods::job_of(node).is_some() {
            continue;
        }
        let root = Field::root(node);
        log.begin();
        let Some(named) = named(node) else {
            log.refuse(&root, "names no apiVersion and kind");
            continue;
        };
        match kinds::find(named.group, named.kind, named.version) {
            known @ (Known::Reads(kind) | Known::Misspelt(kind)) => {
                let before = log.refused();
                if let Known::Misspelt(meant) = known {
                    log.refuse_name(
                        &root,
                        format!(
                            "is {} of {}, which is no kind that is read; did you mean {}?",
                            named.kind, named.group, meant.kind
                        ),
                    );
                }
                let document = Object::walk(&root, JOB, &mut log);
                let meta = Meta::read(document.get("metadata"), &root, options, &mut log);
                names.push(meta.name_at());
                let Some(spec) = document.get("spec") else {
                    log.lacks(&root, "spec");
                    meta.check(&mut log);
                    continue;
                };
                let cluster = Cluster {
                    site: &options.site,
                    namespace: meta
                        .namespace
                        .as_deref()
                        .unwrap_or(muster_core::spec::DEFAULT_NAMESPACE),
                    command: &options.command,
                    pods: options.pods,
                    adopted: options.adopted,
                    runtime_later: options.runtime_later,
                };
                let job = Job {
                    kind: kind.kind,
                    version: named.version,
                    meta: &meta,
                    spec: spec.clone(),
                    documents: &documents,
                };
                let converted = (kind.read)(&job, &cluster, &mut log);
                meta.check(&mut log);
                let has_pods = |job: &Converted| !options.pods || job.object.is_some();
                match converted.filter(|_| log.refused() == before) {
                    Some(mut job) if has_pods(&job) => {
                        let origin = job.document.spec.origin.get_or_insert_default();
                        origin.api_version = format!("{}/{}", named.group, named.version);
                        named.kind.clone_into(&mut origin.kind);
                        jobs.push(job);
                    }
                    Some(_) => log.refuse(
                        &root,
                        "has no pods of its own that could be kept; convert it without --pods",
                    ),
                    None => {}
                }
            }
            Known::Refused(why) => log.refuse(&root, why),
            Known::Unknown => match around(&named) {
                Some(why) if others => log.note(&root, format!("{}: {why}", named.kind)),
                Some(_) if named.group == "batch" => log.refuse(
                    &root,
                    format!(
                        "is a {} of {}/{}, which is not read: its pods do not know each other; write a MusterJob with its command, or start that with muster run",
                        named.kind, named.group, named.version
                    ),
                ),
                Some(_) => log.refuse(&root, format!("is a {}, not a job", named.kind)),
                None if others => log.warn(
                    &root,
                    format!("{} of {} is left out", named.kind, shown(&named)),
                ),
                None => {
                    let names = kinds::names();
                    let kinds = match log.is_first(&names) {
                        true => format!("; the kinds are {names}"),
                        false => String::new(),
                    };
                    let message = format!("{} of {} is not read{kinds}", named.kind, shown(&named));
                    log.refuse(&root, message);
                }
            },
        }
    }
    log.only_once();
    let mut reading = Reading {
        jobs,
        remarks: log.remarks,
        names,
    };
    if reading.is_refused() {
        reading.jobs.clear();
    }
    reading
}

/// The items of lists (`kubectl get -o yaml` prints one) in place of the lists.
fn unpacked<'t>(documents: &[&'t Node]) -> Vec<&'t Node> {
    let mut all = Vec::new();
    for node in documents {
        let items = node.entry("items").map(|entry| &entry.node.value);
        match (named(node), items) {
            (Some(named), Some(Value::List(items))) if named.kind == "List" => all.extend(items),
            _ => all.push(*node),
        }
    }
    all
}

/// Pods that are workers of torchelastic by hand, those of one job together.
fn workers<'t>(documents: &[&'t Node]) -> Vec<Vec<&'t Node>> {
    let mut jobs: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in documents {
        if let Some(job) = kinds::pods::job_of(node) {
            jobs.entry(job).or_default().push(node);
        }
    }
    jobs.into_values().collect()
}

fn shown<'t>(named: &Named<'t>) -> &'t str {
    match named.group {
        "" => named.version,
        group => group,
    }
}

/// Why a document beside a job is not needed.
fn around(named: &Named<'_>) -> Option<&'static str> {
    const RIGHTS: &str = "is not needed: jobs have no rights in a cluster";
    let why = match (named.group, named.kind) {
        ("", "Service" | "Endpoints") => "is not needed: Muster tells ranks their addresses",
        ("", "Pod") => {
            "is not started; an etcd is not needed, because Muster brings the nodes together"
        }
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet") | ("batch", "Job" | "CronJob") => {
            "is not started; an etcd is not needed, because Muster brings the nodes together"
        }
        ("", "PersistentVolumeClaim" | "PersistentVolume") | ("storage.k8s.io", "StorageClass") => {
            "is not needed: say with `claims` in the site map where the nodes have the data"
        }
        ("", "ConfigMap" | "Secret") => "is not read: put its files on the nodes",
        ("", "ServiceAccount") => RIGHTS,
        ("rbac.authorization.k8s.io", _) => RIGHTS,
        ("", "Namespace") => "is not needed: a namespace is there as soon as a job names it",
        ("trainer.kubeflow.org", "TrainingRuntime" | "ClusterTrainingRuntime") => {
            "is read for the TrainJob that names it"
        }
        _ => return None,
    };
    Some(why)
}
