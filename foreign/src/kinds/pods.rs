//! Workers of torchelastic by hand: equal Pods of one file that carry `JOB_ID`, `MIN_SIZE` and
//! `MAX_SIZE`, beside an etcd. Together they are one job.
//!
//! Source: pytorch/elastic, kubernetes/ at f665c11, and the image's petctl entry point.

use super::{Sizes, nodes};
use crate::{
    draft::{Converted, Draft, Meta, NameAt},
    fields::{Object, Rule, Rules},
    launch::{By, Launch, Procs},
    options::{Cluster, Options},
    pod::{Main, Pod},
    procs,
    roles::{self, Policy, Style},
    run_policy::RunPolicy,
    tree::{Field, Node, Value},
    variables::Told,
    verdict::Verdicts,
};

const POD: Rules = &[
    ("apiVersion", Rule::Note("says which kind it is")),
    ("kind", Rule::Note("says which kind it is")),
    (
        "metadata",
        Rule::Note("is not kept: the job has the name of JOB_ID"),
    ),
    ("spec", Rule::Read),
    ("status", Rule::Note("is the cluster's, and is not kept")),
];

/// What the image's entry point reads.
const STYLE: Style = Style {
    main: Main::First,
    told: Told {
        names: &["RDZV_ENDPOINT", "JOB_ID", "MIN_SIZE", "MAX_SIZE", "SIZE"],
        prefixes: &[],
    },
    entrypoint: Some(By::Torchelastic),
    as_is: false,
};

/// The job of which a document is a worker. `None`: it is no such Pod.
pub(crate) fn job_of(node: &Node) -> Option<&str> {
    let is_pod =
        node.text_at(&["kind"]) == Some("Pod") && node.text_at(&["apiVersion"]) == Some("v1");
    let has = |name| variable(node, name).is_some();
    (is_pod && has("MIN_SIZE") && has("MAX_SIZE"))
        .then(|| variable(node, "JOB_ID"))
        .flatten()
}

/// The value of a variable of the first container.
fn variable<'t>(pod: &'t Node, name: &str) -> Option<&'t str> {
    let containers = &pod.entry("spec")?.node.entry("containers")?.node.value;
    let Value::List(containers) = containers else {
        return None;
    };
    let Value::List(env) = &containers.first()?.entry("env")?.node.value else {
        return None;
    };
    let entry = env
        .iter()
        .find(|var| var.text_at(&["name"]) == Some(name))?;
    entry.text_at(&["value"])
}

/// The name of their job.
pub(crate) fn named(pods: &[&Node], options: &Options) -> Option<NameAt> {
    let root = Field::root(pods.first()?);
    Some(meta(&root, options).name_at())
}

fn meta<'t>(root: &Field<'t>, options: &Options) -> Meta<'t> {
    let namespace = root.node.text_at(&["metadata", "namespace"]);
    let name = variable(root.node, "JOB_ID").unwrap_or_default();
    Meta::named(name, namespace, root, options)
}

/// Reads the workers of one job, of which there is at least one.
pub(crate) fn read(pods: &[&Node], options: &Options, log: &mut Verdicts) -> Option<Converted> {
    let (first, others) = pods.split_first()?;
    let root = Field::root(first);
    let before = log.refused();
    for other in others {
        let same = match (first.entry("spec"), other.entry("spec")) {
            (Some(one), Some(two)) => one.node.says_the_same(&two.node),
            _ => false,
        };
        let at = Field::root(other);
        match same {
            true => log.note(
                &at,
                format!("is a worker like that of line {}", first.place.line),
            ),
            false => log.refuse(
                &at,
                format!(
                    "differs from the worker of line {}; all workers of a job are equal",
                    first.place.line
                ),
            ),
        }
    }
    let object = Object::walk(&root, POD, log);
    let spec = object.get("spec")?;
    let meta = meta(&root, options);
    meta.check(log);
    let cluster = Cluster {
        site: &options.site,
        namespace: meta
            .namespace
            .as_deref()
            .unwrap_or(muster_core::spec::DEFAULT_NAMESPACE),
        command: &options.command,
        pods: options.pods,
        adopted: options.adopted,
        runtime_later: false,
    };
    let pod = Pod::of(spec, STYLE.main, STYLE.told, &cluster, log)?;
    let launch = roles::start(&pod, STYLE, log).unwrap_or_else(Launch::unknown);
    let size = |name: &str, log: &mut Verdicts| {
        let text = variable(first, name)?;
        let number = text.parse::<i64>();
        if number.is_err() {
            log.refuse(
                &pod.container,
                format!("{name} is {text:?}, must be a number"),
            );
        }
        Some((number.ok()?, pod.container.clone()))
    };
    let (min, max) = (size("MIN_SIZE", log), size("MAX_SIZE", log));
    let replicas = (i64::try_from(pods.len()).ok()?, pod.container.clone());
    let procs = procs::count(
        &launch,
        None,
        Procs::Count(1),
        pod.gpus,
        &pod.container,
        log,
    );
    let sizes = Sizes { replicas, min, max };
    let Sizes { replicas, min, max } = nodes(&launch, sizes, &[], log);
    let run = RunPolicy::default();
    let own = launch
        .max_restarts
        .or(Some(super::elastic_job::MAX_RESTARTS));
    let restarts = roles::restarts(None, Policy::OnFailure, &run, own, "", log);
    let converted = Draft {
        kind: "Pod",
        meta: &meta,
        pod: &pod,
        launch: &launch,
        replicas,
        min,
        max,
        procs: procs.unwrap_or(1),
        restarts,
        run: &run,
    }
    .finish(log);
    converted.filter(|_| log.refused() == before)
}
