//! The pod template, which all kinds share: what its one container runs, and what the machines are
//! asked for.
//!
//! On machines without containers a template is read for the processes in it. Everything else of it
//! gets its verdict here and is not passed on.

use muster_core::spec::ARGS_MAX;

use crate::{
    fields::{KEPT, Object, Rule, Rules},
    grace::GRACE_MAX,
    options::Cluster,
    tree::{Field, Node, Value},
    variables::{Told, Variables},
    verdict::Verdicts,
    words::{NotHere, Word, expand},
};

mod around;
mod kept;
mod nodes;
mod resources;
mod volumes;
mod waits;

pub(crate) use nodes::Chosen;

/// Which container of a pod its operator looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Main {
    Named(&'static str),
    Prefix(&'static str),
    First,
    /// Its operator changes all containers alike: the only one, or that of this name among several.
    Only(&'static str),
}

/// What is read from one template.
#[derive(Clone, Debug)]
pub(crate) struct Pod<'t> {
    pub(crate) container: Field<'t>,
    /// The command and its arguments. Empty: the image's own.
    pub(crate) words: Vec<Word>,
    /// Whether `words` begins with the program. If not, the image's program gets them.
    pub(crate) names_program: bool,
    pub(crate) variables: Variables<'t>,
    pub(crate) working_dir: Option<(String, Option<Field<'t>>)>,
    pub(crate) gpus: i64,
    pub(crate) cpus: Option<i64>,
    /// The interpreter that the site has in place of the image's.
    pub(crate) python: Option<String>,
    pub(crate) grace: Option<(String, Field<'t>)>,
    pub(crate) priority: Option<(i64, Field<'t>)>,
    /// What it asks of its nodes.
    pub(crate) nodes: Chosen<'t>,
    /// The template without what the job says itself, if it is kept.
    pub(crate) template: Option<Node>,
}

const TEMPLATE: Rules = &[
    ("metadata", Rule::Read),
    ("spec", Rule::Read),
    // Written in old samples. The API server drops them.
    ("apiVersion", Rule::Note("says nothing in a template")),
    ("kind", Rule::Note("says nothing in a template")),
];

pub(crate) const METADATA: Rules = &[
    ("name", Rule::Note("pods have no names here")),
    ("namespace", Rule::Note("pods have no names here")),
    ("labels", Rule::Note("are not kept")),
    ("annotations", Rule::Note("are not kept")),
    ("finalizers", Rule::Note("are not kept")),
    ("creationTimestamp", Rule::Note("is not kept")),
];

const GANG: Rule = Rule::Note("is not needed: Muster places all nodes of a job together");
const HOST: Rule = Rule::Note("is so here: processes run on the machine itself");
const NO_PODS: Rule = Rule::Note("has no effect: there are no pods here");

const POD: Rules = &[
    ("containers", Rule::Read),
    ("initContainers", Rule::Read),
    ("volumes", Rule::Read),
    ("terminationGracePeriodSeconds", Rule::Read),
    ("nodeSelector", Rule::Read),
    ("affinity", Rule::Read),
    ("securityContext", Rule::Read),
    ("priorityClassName", Rule::Read),
    (
        "activeDeadlineSeconds",
        Rule::Warn(
            "has no effect: it is of one pod; a job has a deadline of its own (activeDeadlineSeconds)",
        ),
    ),
    (
        "restartPolicy",
        Rule::Note("has no effect: the replica's restartPolicy decides, as upstream"),
    ),
    ("schedulerName", GANG),
    (
        "schedulingGates",
        Rule::Refuse("holds the pods back, and Muster does not wait for the gates of others"),
    ),
    ("tolerations", Rule::Read),
    (
        "topologySpreadConstraints",
        Rule::Warn("have no effect: Muster does not choose nodes by topology yet"),
    ),
    (
        "nodeName",
        Rule::Refuse("names one node, and Muster cannot place a job by node yet"),
    ),
    (
        "resourceClaims",
        Rule::Refuse("asks for devices in a way that Muster does not know; use limits"),
    ),
    ("hostNetwork", HOST),
    ("hostIPC", HOST),
    ("hostPID", HOST),
    ("hostUsers", HOST),
    ("shareProcessNamespace", HOST),
    ("dnsPolicy", NO_PODS),
    ("dnsConfig", NO_PODS),
    ("enableServiceLinks", NO_PODS),
    ("serviceAccount", NO_PODS),
    ("serviceAccountName", NO_PODS),
    ("automountServiceAccountToken", NO_PODS),
    ("imagePullSecrets", NO_PODS),
    ("runtimeClassName", NO_PODS),
    ("readinessGates", NO_PODS),
    ("overhead", NO_PODS),
    ("os", NO_PODS),
    ("priority", Rule::Note("follows from the class")),
    (
        "preemptionPolicy",
        Rule::Warn("has no effect: Muster stops no job for another yet"),
    ),
    (
        "hostname",
        Rule::Warn("has no effect: host names are the nodes' own"),
    ),
    (
        "subdomain",
        Rule::Warn("has no effect: host names are the nodes' own"),
    ),
    (
        "setHostnameAsFQDN",
        Rule::Warn("has no effect: host names are the nodes' own"),
    ),
    (
        "hostAliases",
        Rule::Warn("have no effect: names resolve as on the nodes"),
    ),
    ("ephemeralContainers", Rule::Warn("are not started")),
    (
        "resources",
        Rule::Warn("have no effect: processor time and memory are not limited here"),
    ),
];

const PROBE: Rule = Rule::Warn("has no effect: Muster sees by itself when a process ends");

const CONTAINER: Rules = &[
    ("name", Rule::Read),
    ("image", Rule::Read),
    ("command", Rule::Read),
    ("args", Rule::Read),
    ("env", Rule::Read),
    ("workingDir", Rule::Read),
    ("resources", Rule::Read),
    ("volumeMounts", Rule::Read),
    ("securityContext", Rule::Read),
    (
        "envFrom",
        Rule::Refuse(
            "the values are in the cluster; write them into env, or map single keys with `secrets` in the site map",
        ),
    ),
    (
        "ports",
        Rule::Note("are not needed: ports are chosen on the nodes"),
    ),
    ("imagePullPolicy", NO_PODS),
    ("terminationMessagePath", NO_PODS),
    ("terminationMessagePolicy", NO_PODS),
    ("stdin", NO_PODS),
    ("stdinOnce", NO_PODS),
    ("tty", NO_PODS),
    ("resizePolicy", NO_PODS),
    ("restartPolicy", NO_PODS),
    ("livenessProbe", PROBE),
    ("readinessProbe", PROBE),
    ("startupProbe", PROBE),
    (
        "lifecycle",
        Rule::Warn("has no effect: nothing is run before a start or a stop"),
    ),
    (
        "volumeDevices",
        Rule::Refuse("asks for a block device, which Muster does not attach"),
    ),
];

/// The kubelet's default.
const GRACE_DEFAULT: i64 = 30;

impl<'t> Pod<'t> {
    /// Reads a template. `None`: there is nothing to run in it, which was refused.
    pub(crate) fn read(
        field: &Field<'t>,
        main: Main,
        told: Told,
        cluster: &Cluster<'_>,
        log: &mut Verdicts,
    ) -> Option<Pod<'t>> {
        let template = Object::walk(field, TEMPLATE, log);
        let metadata = template.get("metadata");
        if let Some(metadata) = metadata.filter(|_| !cluster.pods) {
            Object::walk(metadata, METADATA, log);
        }
        let Some(spec) = template.get("spec") else {
            log.lacks(field, "spec");
            return None;
        };
        let mut pod = Pod::of(spec, main, told, cluster, log)?;
        if let (Some(metadata), Some(template)) = (metadata, &mut pod.template) {
            kept::add_metadata(template, metadata, log);
        }
        Some(pod)
    }

    /// Reads the `spec` of a pod.
    pub(crate) fn of(
        spec: &Field<'t>,
        main: Main,
        told: Told,
        cluster: &Cluster<'_>,
        log: &mut Verdicts,
    ) -> Option<Pod<'t>> {
        if cluster.pods {
            return kept::of(spec, main, told, cluster, log);
        }
        let pod = Object::walk(spec, POD, log);
        let containers = pod.get("containers").map(|field| field.items(log));
        let all = containers.as_deref().unwrap_or_default();
        let nodes = nodes::placing(&pod, cluster, log);
        let grace = pod.whole("terminationGracePeriodSeconds", log);
        let grace = grace.map(|(field, seconds)| {
            match seconds > GRACE_MAX {
                true => log.warn(
                    field,
                    format!("is {seconds} s, and {GRACE_MAX} s is the longest stop here"),
                ),
                false => log.taken(field, "spec.stopGracePeriod"),
            }
            (format!("{}s", seconds.min(GRACE_MAX)), field.clone())
        });
        let priority = pod
            .text("priorityClassName", log)
            .and_then(|(field, class)| Some((cluster.priority(class, field, log)?, field.clone())));
        around::user(pod.get("securityContext"), cluster, log);
        let container = found(&pod, spec, all, main, log);
        around::others(all, container, &pod, log);
        let container = container?;
        let walked = Object::walk(container, CONTAINER, log);
        volumes::read(pod.get("volumes"), walked.get("volumeMounts"), cluster, log);
        Some(Pod {
            grace: grace.or_else(|| Some((format!("{GRACE_DEFAULT}s"), spec.clone()))),
            priority,
            nodes,
            ..Pod::container(container, &walked, told, cluster, log)
        })
    }

    /// A pod in which nothing to run was found.
    pub(crate) fn nothing(at: &Field<'t>) -> Pod<'t> {
        Pod {
            container: at.clone(),
            words: Vec::new(),
            names_program: false,
            variables: Variables::default(),
            working_dir: None,
            gpus: 0,
            cpus: None,
            python: None,
            grace: None,
            priority: None,
            nodes: Chosen::default(),
            template: None,
        }
    }

    /// Reads the container that is run.
    pub(crate) fn container(
        field: &Field<'t>,
        container: &Object<'t>,
        told: Told,
        cluster: &Cluster<'_>,
        log: &mut Verdicts,
    ) -> Pod<'t> {
        if let Some((name, _)) = container.text("name", log) {
            log.note(name, "is the container that is run");
        }
        let image = container.text("image", log);
        // The site map says what an image is on machines.
        let known = image.filter(|_| !cluster.pods);
        let known = known.and_then(|(_, name)| cluster.site.image(name));
        if let Some((at, name)) = image {
            match known {
                None if cluster.pods => log.note(at, KEPT),
                Some(_) => log.note(at, "is what the site map says"),
                None => log.warn_once(
                    at,
                    &format!("image {name}"),
                    "is not used here: the nodes' own programs run",
                ),
            }
        }
        let mut variables = Variables::read(container.get("env"), told, cluster, log);
        for (name, value) in known.map(|image| &image.env[..]).unwrap_or_default() {
            variables.add(name, value);
        }
        // A TrainJob calls it by another name.
        let asked = container
            .get("resources")
            .or_else(|| container.get("resourcesPerNode"))
            .map(|field| match cluster.pods {
                true => resources::kept(field, log),
                false => resources::read(field, log),
            })
            .unwrap_or_default();
        if !cluster.pods {
            around::user(container.get("securityContext"), cluster, log);
        }
        let (words, names_program) = words(container, field, known, &variables, cluster, log);
        let working_dir = match container.text("workingDir", log) {
            Some((at, dir)) => {
                log.taken(at, "spec.workingDir");
                Some((dir.to_owned(), Some(at.clone())))
            }
            None => known
                .and_then(|image| image.working_dir.clone())
                .map(|dir| (dir, None)),
        };
        Pod {
            container: field.clone(),
            words,
            names_program,
            variables,
            working_dir,
            gpus: asked.gpus,
            cpus: asked.cpus,
            python: known.and_then(|image| image.python.clone()),
            grace: None,
            priority: None,
            nodes: Chosen::default(),
            template: None,
        }
    }
}

/// The words of a container, and whether they name the program.
fn words<'t>(
    container: &Object<'t>,
    field: &Field<'t>,
    image: Option<&crate::site::Image>,
    variables: &Variables<'t>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> (Vec<Word>, bool) {
    let mut words = Vec::new();
    for name in ["command", "args"] {
        if let Some(list) = container.get(name) {
            log.taken(list, "part of spec.command and spec.args");
            let read = Word::list(list, log);
            if let Some(word) = read.get(ARGS_MAX) {
                log.refuse(
                    &word.field(),
                    format!("at most {ARGS_MAX} items are allowed"),
                );
            }
            for mut word in read.into_iter().take(ARGS_MAX) {
                match expand(&word.text, &variables.known) {
                    Ok(text) => word.text = text,
                    // A flag that is taken off may have such a value.
                    Err(NotHere::OnNode(name)) => word.on_node = Some(name),
                    Err(why) => log.refuse(&word.field(), why.message()),
                }
                words.push(word);
            }
        }
        if name == "command" && words.is_empty() {
            // The image's program: as the command line names it, else as the site map does.
            let given = match cluster.command {
                [] => image.map(|image| &image.command[..]).unwrap_or_default(),
                given => given,
            };
            words.extend(given.iter().map(|text| Word {
                text: text.clone(),
                place: field.place,
                path: field.path.clone(),
                on_node: None,
                by_shell: false,
            }));
        }
    }
    let in_command = container
        .get("command")
        .is_some_and(|field| matches!(&field.node.value, Value::List(items) if !items.is_empty()));
    let named = in_command
        || !cluster.command.is_empty()
        || image.is_some_and(|image| !image.command.is_empty());
    (words, named)
}

fn chosen<'c, 't>(containers: &'c [Field<'t>], main: Main) -> Option<&'c Field<'t>> {
    if let (Main::Only(_), [only]) = (main, containers) {
        return Some(only);
    }
    containers.iter().find(|container| {
        let name = container.node.text_at(&["name"]).unwrap_or_default();
        match main {
            Main::Named(wanted) | Main::Only(wanted) => name == wanted,
            Main::Prefix(prefix) => name.starts_with(prefix),
            Main::First => true,
        }
    })
}

/// The container that is run. If its name is wrong, and there is no other, it is taken all the same, so that what
/// is wrong in it is told as well.
fn found<'c, 't>(
    pod: &Object<'_>,
    spec: &Field<'_>,
    containers: &'c [Field<'t>],
    main: Main,
    log: &mut Verdicts,
) -> Option<&'c Field<'t>> {
    if let Some(found) = chosen(containers, main) {
        return Some(found);
    }
    let list = pod.get("containers");
    if list.is_some() || !log.is_settled(&spec.below("containers")) {
        let why = match list.is_none_or(Field::is_bare) {
            true => nothing_to_run(Main::First),
            false => nothing_to_run(main),
        };
        log.refuse(list.unwrap_or(spec), why);
    }
    match containers {
        [only] => Some(only),
        _ => None,
    }
}

fn nothing_to_run(main: Main) -> String {
    match main {
        Main::Named(name) => format!("has no container named {name}, which its operator would run"),
        Main::Prefix(prefix) => {
            format!(
                "has no container whose name begins with {prefix}, which its operator would run"
            )
        }
        Main::First => "has no container".into(),
        Main::Only(name) => format!(
            "has several containers, and its operator gives the launcher's flags to each; call the one that trains {name}"
        ),
    }
}
