//! The nodes of one page: each GPU with the job that holds it, and how many of all nodes are well.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use muster_proto::{
    convert::node_list,
    v1::{Node, NodeSums},
};

use crate::{
    Choice, Frame, Paged,
    state::{self, Badge},
    words,
};

/// Jobs that have a colour of their own.
const COLOURS: usize = 7;

#[derive(Template)]
#[template(path = "fleet.html")]
struct Page<'a> {
    frame: Frame<'a>,
    choice: &'a Choice,
    sums: Vec<(&'static str, String)>,
    key: Vec<Colour>,
    nodes: Paged<Row>,
}

struct Colour {
    class: String,
    namespace: String,
    job: String,
    /// Of the nodes that are shown.
    gpus: usize,
}

struct Row {
    name: String,
    state: Badge,
    cells: Vec<Cell>,
    model: String,
    runs: Vec<(String, String)>,
    heard: String,
    why: String,
}

pub(crate) struct Cell {
    pub(crate) class: String,
    pub(crate) sign: &'static str,
    /// Who has it.
    pub(crate) who: String,
    pub(crate) title: String,
}

type Colours = BTreeMap<(String, String), usize>;

/// The nodes that a page shows, and how many there are.
#[derive(Clone, Debug, Default)]
pub struct FleetStory {
    /// At most [`ROWS`](crate::ROWS), from the first that the choice shows; those with trouble come first.
    pub nodes: Vec<Node>,
    pub sums: NodeSums,
}

/// The page of nodes.
pub fn fleet(frame: Frame<'_>, story: &FleetStory, choice: &Choice) -> String {
    let mut held: BTreeMap<(String, String), usize> = BTreeMap::new();
    for run in story.nodes.iter().flat_map(|node| &node.runs) {
        *held
            .entry((run.namespace.clone(), run.job.clone()))
            .or_default() += run.gpus.len();
    }
    let colours: Colours = held.keys().cloned().zip(0..).collect();
    let key = held
        .iter()
        .filter(|(_, gpus)| **gpus > 0)
        .map(|((namespace, job), gpus)| Colour {
            class: class(&colours, namespace, job),
            namespace: namespace.clone(),
            job: job.clone(),
            gpus: *gpus,
        });
    let rows = story.nodes.iter();
    let rows = rows.map(|node| row(node, &colours, frame.now_us));
    let page = Page {
        frame,
        choice,
        sums: sums(&story.sums),
        key: key.collect(),
        nodes: Paged::part(rows.collect(), story.sums.matching as usize, choice),
    };
    crate::refused::drawn(page.render())
}

fn sums(of: &NodeSums) -> Vec<(&'static str, String)> {
    let mut sums = vec![
        ("nodes", of.nodes),
        ("ready", of.ready),
        ("suspect", of.suspect),
        ("lost", of.lost),
        ("cordoned", of.cordoned),
        ("unhealthy", of.unhealthy),
    ];
    if of.gpus > 0 {
        sums.extend([
            ("GPUs", of.gpus),
            ("held by jobs", of.gpus_held),
            ("GPUs withheld", of.gpus_withheld),
        ]);
    }
    let needed = |(name, sum): &(&str, u32)| *sum > 0 || matches!(*name, "nodes" | "ready");
    let shown = sums.into_iter().filter(needed);
    shown.map(|(name, sum)| (name, sum.to_string())).collect()
}

fn class(colours: &Colours, namespace: &str, job: &str) -> String {
    let key = (namespace.to_owned(), job.to_owned());
    match colours.get(&key) {
        Some(number) => format!("job{}", number % COLOURS),
        None => "held".to_owned(),
    }
}

fn row(node: &Node, colours: &Colours, now_us: u64) -> Row {
    let runs: BTreeSet<(String, String)> = node
        .runs
        .iter()
        .map(|run| (run.namespace.clone(), run.job.clone()))
        .collect();
    Row {
        name: node.name.clone(),
        state: state::of_node(node),
        cells: cells(node, |namespace, job| class(colours, namespace, job)),
        model: models(node),
        runs: runs.into_iter().collect(),
        heard: words::age(node.last_heard_unix_us, now_us),
        why: why(node),
    }
}

/// One cell for each GPU, in the order of their indices.
pub(crate) fn cells(node: &Node, class: impl Fn(&str, &str) -> String) -> Vec<Cell> {
    let withheld = node_list::withheld(node);
    let mut gpus: Vec<_> = node.gpus.iter().collect();
    gpus.sort_by_key(|gpu| gpu.index);
    let cell = |gpu: &&muster_proto::v1::Gpu| {
        let run = node.runs.iter().find(|run| run.gpus.contains(&gpu.uuid));
        let pod = node
            .gpu_holders
            .iter()
            .flat_map(|known| &known.holders)
            .find(|held| held.gpu == gpu.uuid);
        let (class, sign, who) = match (run, pod) {
            _ if withheld.contains(gpu.uuid.as_str()) => {
                ("bad".to_owned(), "✕", "withheld".to_owned())
            }
            (Some(run), _) => (
                class(&run.namespace, &run.job),
                "●",
                format!("job {}/{}", run.namespace, run.job),
            ),
            (None, Some(pod)) if !pod.pod.is_empty() => (
                "held".to_owned(),
                "◆",
                format!("pod {}/{}", pod.namespace, pod.pod),
            ),
            (None, Some(_)) => ("held".to_owned(), "◆", "a pod".to_owned()),
            (None, None) => ("free".to_owned(), "○", "free".to_owned()),
        };
        Cell {
            class,
            sign,
            title: format!("GPU {} of {}: {who}", gpu.index, node.name),
            who,
        }
    };
    gpus.iter().map(cell).collect()
}

fn models(node: &Node) -> String {
    let mut models: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in &node.gpus {
        *models.entry(&gpu.model).or_default() += 1;
    }
    if models.is_empty() {
        return format!(
            "{} of {} free",
            node.slots_free,
            words::count(node.slots.into(), "slot")
        );
    }
    let models = models
        .iter()
        .map(|(model, count)| format!("{count}× {model}"));
    models.collect::<Vec<_>>().join(", ")
}

/// Why the node gets no new work, or what is wrong with it.
fn why(node: &Node) -> String {
    let cordon = node.cordon.iter().map(|cordon| match cordon.by.as_str() {
        "" => cordon.reason.clone(),
        by => format!("{} (by {by})", cordon.reason),
    });
    let findings = node.hardware.iter().flat_map(|hardware| &hardware.findings);
    let findings = findings
        .filter(|found| node_list::withholds(&found.severity))
        .map(|found| found.reason.clone());
    let others = [node.excluded.clone(), node.gpu_error.clone()];
    let all = cordon
        .chain(findings)
        .chain(others)
        .chain(node.conditions.iter().cloned());
    all.filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}
