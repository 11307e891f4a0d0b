//! Puts a MusterJob together, and remembers which field of the foreign file each of its parts is
//! from. So an error that core finds in the job is reported at a place that the user knows.

use std::time::Duration;

use muster_core::{
    id::label_error,
    period,
    spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument},
};

use crate::{
    fields::{Object, Rule, Rules},
    grace::GRACE_MAX,
    launch::{self, Launch},
    options::Options,
    pod::Pod,
    roles::Ends,
    run_policy::RunPolicy,
    tree::{Field, Node, Place},
    variables::Variables,
    verdict::Verdicts,
};

/// A job that was read from another system's file.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// Where its document begins.
    pub place: Place,
    /// What it was, as `PyTorchJob`.
    pub kind: &'static str,
    /// A `workingDir` that is relative is still so.
    pub document: JobDocument,
    /// What only an object of a cluster has. `None`: the job is for machines.
    pub object: Option<ObjectOnly>,
}

impl Converted {
    /// A job without roles, whose members are of these groups: the first of the first one, and all others
    /// of the last one.
    pub(crate) fn of_groups<'g>(mut self, groups: impl IntoIterator<Item = &'g str>) -> Converted {
        let names = groups.into_iter().map(str::to_lowercase);
        // Free names need not be labels. Then the members have no names.
        let names: Vec<String> = names.filter(|name| label_error(name).is_none()).collect();
        let origin = self.document.spec.origin.get_or_insert_default();
        origin.groups = names;
        self
    }
}

/// The fields of a `MusterJob` object that no job for machines has.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectOnly {
    /// The pods' template.
    pub template: Node,
}

/// What a job is called, and where its document begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameAt {
    pub place: Place,
    pub namespace: Option<String>,
    pub name: String,
}

/// Name and namespace of a job.
#[derive(Clone, Debug)]
pub(crate) struct Meta<'t> {
    pub(crate) name: String,
    pub(crate) name_at: Field<'t>,
    pub(crate) namespace: Option<String>,
    pub(crate) namespace_at: Field<'t>,
    /// Where the document begins.
    pub(crate) place: Place,
}

const KEPT: Rule = Rule::Note("is the cluster's, and is not kept");

const METADATA: Rules = &[
    ("name", Rule::Read),
    ("generateName", Rule::Read),
    ("namespace", Rule::Read),
    ("labels", Rule::Read),
    ("annotations", Rule::Note("are not kept")),
    ("creationTimestamp", KEPT),
    ("deletionTimestamp", KEPT),
    ("deletionGracePeriodSeconds", KEPT),
    ("finalizers", KEPT),
    ("generation", KEPT),
    ("managedFields", KEPT),
    ("ownerReferences", KEPT),
    ("resourceVersion", KEPT),
    ("selfLink", KEPT),
    ("uid", KEPT),
];

/// The label with which Kueue takes a job.
const KUEUE: &str = "kueue.x-k8s.io/queue-name";

impl<'t> Meta<'t> {
    /// The name, and where its document begins.
    pub(crate) fn name_at(&self) -> NameAt {
        NameAt {
            place: self.place,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// Refuses names that no job may have, unless that was done.
    pub(crate) fn check(&self, log: &mut Verdicts) {
        for (path, at, text) in [
            ("metadata.name", &self.name_at, Some(&self.name)),
            (
                "metadata.namespace",
                &self.namespace_at,
                self.namespace.as_ref(),
            ),
        ] {
            let error = text.and_then(|text| label_error(text));
            if let Some(message) = error.filter(|_| !log.is_settled(path)) {
                log.refuse(at, message);
            }
        }
    }

    /// A job whose name is not in its metadata.
    pub(crate) fn named(
        name: &str,
        namespace: Option<&str>,
        at: &Field<'t>,
        options: &Options,
    ) -> Meta<'t> {
        Meta {
            name: name.to_owned(),
            name_at: at.clone(),
            namespace: namespace
                .map(str::to_owned)
                .or_else(|| options.namespace.clone()),
            namespace_at: at.clone(),
            place: at.place,
        }
    }

    pub(crate) fn read(
        field: Option<&Field<'t>>,
        document: &Field<'t>,
        options: &Options,
        log: &mut Verdicts,
    ) -> Meta<'t> {
        let at = field.unwrap_or(document);
        let mut meta = Meta {
            name: String::new(),
            name_at: at.clone(),
            namespace: options.namespace.clone(),
            namespace_at: at.clone(),
            place: document.place,
        };
        let Some(field) = field else { return meta };
        let object = Object::walk(field, METADATA, log);
        if let Some((at, prefix)) = object.text("generateName", log) {
            match object.get("name") {
                Some(_) => log.note(at, "is not used: there is a name"),
                None => {
                    meta.name = format!("{prefix}{}", options.suffix);
                    meta.name_at = at.clone();
                    log.taken(at, format!("metadata.name: {}", meta.name));
                }
            }
        }
        if let Some((at, name)) = object.text("name", log) {
            meta.name = name.to_owned();
            meta.name_at = at.clone();
            log.taken(at, "metadata.name");
        }
        if let Some((at, namespace)) = object.text("namespace", log) {
            match options.namespace.as_deref() {
                Some(asked) if asked != namespace => log.refuse(
                    at,
                    format!("is {namespace:?}, but --namespace asks for {asked:?}"),
                ),
                _ => log.taken(at, "metadata.namespace"),
            }
            meta.namespace = Some(namespace.to_owned());
            meta.namespace_at = at.clone();
        }
        if let Some(labels) = object.get("labels") {
            for (label, at) in labels.entries(log) {
                match label {
                    KUEUE if options.adopted => {
                        log.note(&at, "is for Kueue, which holds the object back itself");
                    }
                    KUEUE => log.warn(&at, "has no effect: Muster has no queues yet"),
                    _ => log.note(&at, "is not kept"),
                }
            }
        }
        meta
    }
}

/// Where programs are on most machines: Debian's PATH.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The names of the fields that say how many nodes a job has.
pub(crate) const SIZES: [&str; 4] = ["replicas", "minReplicas", "maxReplicas", "numNodes"];

/// A number of nodes, and the field that says it.
pub(crate) type Size<'t> = (i64, Field<'t>);

/// Whether a job of so many ranks may keep a launcher that could not be taken off its command.
pub(crate) fn may_stay(launch: &Launch, ranks: i64, log: &mut Verdicts) -> bool {
    match &launch.stays {
        Some((at, why)) if ranks > 1 => {
            log.refuse(&at.field(), why.clone());
            false
        }
        // One process of one node is a world of its own in any case.
        Some((at, _)) => {
            log.warn(
                &at.field(),
                "starts its ranks itself: for Muster they are one rank, whose output and end are shown",
            );
            true
        }
        None => true,
    }
}

/// A job with one world, before it is checked.
#[derive(Debug)]
pub(crate) struct Draft<'a, 't> {
    pub(crate) kind: &'static str,
    pub(crate) meta: &'a Meta<'t>,
    pub(crate) pod: &'a Pod<'t>,
    pub(crate) launch: &'a Launch,
    pub(crate) replicas: Size<'t>,
    pub(crate) min: Option<Size<'t>>,
    pub(crate) max: Option<Size<'t>>,
    pub(crate) procs: i64,
    pub(crate) restarts: Ends,
    pub(crate) run: &'a RunPolicy<'t>,
}

/// The variables of a container. Those that the command's own shell would set come last.
pub(crate) fn variables<'t>(pod: &Pod<'t>, launch: &Launch) -> Variables<'t> {
    let mut variables = pod.variables.clone();
    for (name, value) in &launch.env {
        variables.set(name, value, &pod.container);
    }
    variables
}

/// Where a container's program starts.
pub(crate) fn working_dir(pod: &Pod<'_>, launch: &Launch) -> Option<String> {
    let before = pod.working_dir.as_ref();
    match (&launch.dir, before) {
        (Some(dir), Some((before, _))) if !dir.starts_with('/') => Some(format!("{before}/{dir}")),
        (Some(dir), _) => Some(dir.clone()),
        (None, before) => before.map(|(dir, _)| dir.clone()),
    }
}

/// How long a stop may take, and what says so: the pod, or the flag or variable of its torchrun. The
/// longer one, if both say it.
pub(crate) fn grace<'t>(pod: &Pod<'t>, launch: &Launch) -> Option<(String, Field<'t>)> {
    let of_pod = pod.grace.clone();
    let Some(own) = launch.grace.or(pod.variables.shutdown_timeout) else {
        return of_pod;
    };
    let own = Duration::from_secs(own.clamp(0, GRACE_MAX) as u64);
    let said = of_pod.filter(|(_, at)| at.path.ends_with("terminationGracePeriodSeconds"));
    said.filter(|(said, _)| period::parse(said).is_ok_and(|said| said > own))
        .or_else(|| Some((period::format(own), pod.container.clone())))
}

impl Draft<'_, '_> {
    /// Whether members may share nodes, as the pods of the other system do. The cluster places pods
    /// with a template. Lane cold has one member on each node.
    fn packs(&self) -> bool {
        let most = self.max.as_ref().unwrap_or(&self.replicas).0;
        self.pod.template.is_none() && !matches!(self.launch.lane, Some("cold")) && most > 1
    }

    /// The job, if core takes it. An objection of core is reported at the field from which the value came.
    pub(crate) fn finish(self, log: &mut Verdicts) -> Option<Converted> {
        let Draft {
            kind,
            meta,
            pod,
            launch,
            ..
        } = self;
        let most = self.max.as_ref().unwrap_or(&self.replicas).0;
        if !may_stay(launch, most.saturating_mul(self.procs), log) {
            return None;
        }
        let container = pod.container.clone();
        let object = pod.template.clone();
        let object = object.map(|template| ObjectOnly { template });
        let seconds = |limit: &Option<(i64, Field<'_>)>| limit.as_ref().map(|(n, _)| *n);
        let mut variables = variables(pod, launch);
        // A program finds the site's interpreter by its name. Muster, too, looks there for torch.
        let folder = pod
            .python
            .as_deref()
            .and_then(|python| python.rsplit_once('/'));
        if let Some((folder, _)) = folder
            && launch.is_program()
        {
            variables.add("PATH", &format!("{folder}:{USUAL_PATH}"));
        }
        let working_dir = working_dir(pod, launch);
        let packs = self.packs();
        let grace = grace(pod, launch);
        let priority = pod.priority.as_ref().or(self.run.priority.as_ref());
        let mut document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata {
                name: meta.name.clone(),
                namespace: meta.namespace.clone(),
            },
            spec: SpecDocument {
                replicas: Some(self.replicas.0),
                min_replicas: self.min.as_ref().map(|(min, _)| *min),
                max_replicas: self.max.as_ref().map(|(max, _)| *max),
                // Always said: a GPU is not a process.
                proc_per_node: Some(self.procs),
                // A container that asks for none gets none. The limits of a template say it already.
                gpus_per_node: (pod.gpus != 0 || pod.template.is_none()).then_some(pod.gpus),
                command: launch.command.clone(),
                args: launch.args.clone(),
                env: variables.list.iter().map(|(var, _)| var.clone()).collect(),
                working_dir,
                priority: priority.map(|(priority, _)| *priority),
                restart_policy: self.restarts.policy,
                rules: self.restarts.rules,
                suspend: self.run.suspend.then_some(true),
                active_deadline_seconds: seconds(&self.run.deadline),
                ttl_seconds_after_finished: seconds(&self.run.ttl),
                stop_grace_period: grace.as_ref().map(|(grace, _)| grace.clone()),
                launch: launch.lane.map(str::to_owned),
                placement: packs.then(|| "pack".to_owned()),
                ..SpecDocument::default()
            },
        };
        pod.nodes.write(&mut document.spec);
        let mut checked = document.clone();
        // The caller makes a relative directory absolute.
        checked.spec.working_dir = None;
        if launch.broken {
            launch::placeholder(&mut checked.spec.command, &mut checked.spec.args);
        }
        let errors = checked.check().err().unwrap_or_default();
        let clean = errors.is_empty();
        let sizes_in_doubt = log.doubts(&SIZES);
        for error in errors {
            let path = error.path.as_str();
            let is = |part: &str| {
                path.strip_prefix(part)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            };
            let variable = path
                .strip_prefix("spec.env[")
                .and_then(|rest| rest.split(']').next()?.parse::<usize>().ok())
                .and_then(|i| variables.list.get(i)?.1.as_ref());
            let size = |size: &Option<Size<'_>>| size.as_ref().map(|(_, at)| at.path.clone());
            let at = match path {
                "spec.minReplicas" if size(&self.min).is_some() => {
                    self.min.as_ref().map_or(&container, |(_, at)| at)
                }
                "spec.maxReplicas" if size(&self.max).is_some() => {
                    self.max.as_ref().map_or(&container, |(_, at)| at)
                }
                "spec.replicas" | "spec.minReplicas" | "spec.maxReplicas" => &self.replicas.1,
                _ if is("spec.nodeSelector") || is("spec.affinity") => {
                    pod.nodes.at().unwrap_or(&container)
                }
                _ if is("spec.tolerations") => pod.nodes.tolerations_at().unwrap_or(&container),
                "spec.priority" => priority.map_or(&container, |(_, at)| at),
                "spec.stopGracePeriod" => grace.as_ref().map_or(&container, |(_, at)| at),
                "spec.activeDeadlineSeconds" => {
                    let deadline = self.run.deadline.as_ref();
                    deadline.map_or(&container, |(_, at)| at)
                }
                "spec.ttlSecondsAfterFinished" => {
                    self.run.ttl.as_ref().map_or(&container, |(_, at)| at)
                }
                _ if is("spec.restartPolicy") || is("spec.rules") => self
                    .run
                    .backoff_limit
                    .as_ref()
                    .map_or(&container, |(_, at)| at),
                _ => variable.unwrap_or(&container),
            };
            // What follows from another mistake is none of its own.
            let is_size = matches!(
                path,
                "spec.replicas" | "spec.minReplicas" | "spec.maxReplicas"
            );
            let follows = at.path != container.path && log.is_settled(&at.path)
                // `Meta::check` says it.
                || path.starts_with("metadata.")
                || is_size && sizes_in_doubt;
            if follows {
                continue;
            }
            // A field of the file says it in its own words, a part of a command in ours.
            let message = match at.path == container.path {
                true => format!("{path}: {}", error.message),
                false => error.message,
            };
            log.refuse(at, message);
        }
        clean.then_some(Converted {
            place: meta.place,
            kind,
            document,
            object,
        })
    }
}
