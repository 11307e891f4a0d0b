//! One node: its GPUs, what runs there, what is wrong with it, and which failures began on it.

use askama::Template;
use muster_proto::{
    convert::node_list,
    v1::{Event, Node, finding::Subject},
};

use crate::{
    Frame, events, fleet,
    state::{self, Badge},
    words,
};

#[derive(Template)]
#[template(path = "node.html")]
struct Page<'a> {
    frame: Frame<'a>,
    name: &'a str,
    state: Badge,
    cordon: String,
    facts: Vec<(&'static str, String)>,
    gpus: Vec<GpuRow>,
    findings: Vec<FindingRow>,
    runs: Vec<RunRow>,
    marks: Vec<MarkRow>,
    events: Vec<events::Row>,
    labels: Vec<(String, String)>,
    commands: Vec<(&'static str, String)>,
}

struct GpuRow {
    index: u32,
    model: String,
    cell: fleet::Cell,
    busy: String,
    memory: String,
    pci: String,
    uuid: String,
}

struct FindingRow {
    class: &'static str,
    severity: String,
    about: String,
    check: String,
    reason: String,
    remedy: String,
}

struct RunRow {
    namespace: String,
    job: String,
    generation: u64,
    phase: String,
    gpus: usize,
}

struct MarkRow {
    at: String,
    namespace: String,
    job: String,
    cause: String,
    lasted: String,
    standing: String,
}

/// The page of a node with its own events.
pub fn node(frame: Frame<'_>, node: &Node, events: &[Event]) -> String {
    let mut rows: Vec<_> = events
        .iter()
        .map(|event| events::row(event, frame.now_us))
        .collect();
    rows.reverse();
    rows.truncate(crate::ROWS);
    let mut labels: Vec<_> = node.labels.clone().into_iter().collect();
    labels.sort();
    let findings = node.hardware.iter().flat_map(|hardware| &hardware.findings);
    let page = Page {
        frame,
        name: &node.name,
        state: state::of_node(node),
        cordon: node.cordon.as_ref().map_or_else(String::new, |cordon| {
            let since = words::age(cordon.at_unix_us, frame.now_us);
            format!("Cordoned {since} ago by {}: {}", cordon.by, cordon.reason)
        }),
        facts: facts(node, frame.now_us),
        gpus: gpus(node),
        findings: findings.map(finding).collect(),
        runs: runs(node),
        marks: marks(node),
        events: rows,
        labels,
        commands: commands(node),
    };
    crate::refused::drawn(page.render())
}

fn facts(node: &Node, now_us: u64) -> Vec<(&'static str, String)> {
    let usage = node.usage.clone().unwrap_or_default();
    let space = |space: Option<muster_proto::v1::Space>| {
        let space = space.filter(|space| space.total > 0)?;
        Some(format!(
            "{} of {}",
            words::bytes(words::in_use(&space)),
            words::bytes(space.total)
        ))
    };
    let driver = node
        .hardware
        .as_ref()
        .and_then(|hardware| hardware.driver.clone());
    let all = [
        (
            "Last heard",
            format!("{} ago", words::age(node.last_heard_unix_us, now_us)),
        ),
        ("Address", node.address.clone()),
        ("Host", node.hostname.clone()),
        ("Agent", node.agent_version.clone()),
        (
            "Driver",
            driver.map_or_else(String::new, |driver| driver.version),
        ),
        ("Kernel", node.kernel.clone()),
        ("CPUs", node.cpus.to_string()),
        (
            "Memory in use",
            space(usage.memory).unwrap_or_else(|| words::bytes(node.memory_bytes)),
        ),
        (
            "Slots free",
            format!("{} of {}", node.slots_free, node.slots),
        ),
        ("Excluded", node.excluded.clone()),
        ("GPU error", node.gpu_error.clone()),
        ("Conditions", node.conditions.join("; ")),
    ];
    all.into_iter()
        .filter(|(_, text)| !text.is_empty())
        .collect()
}

fn gpus(node: &Node) -> Vec<GpuRow> {
    let mut gpus: Vec<_> = node.gpus.iter().collect();
    gpus.sort_by_key(|gpu| gpu.index);
    let cells = fleet::cells(node, |_, _| "job0".to_owned());
    let used = node.usage.iter().flat_map(|usage| &usage.gpus);
    let used: Vec<_> = used.collect();
    let row = |(gpu, cell): (&muster_proto::v1::Gpu, fleet::Cell)| {
        let used = used.iter().find(|used| used.uuid == gpu.uuid);
        GpuRow {
            index: gpu.index,
            model: gpu.model.clone(),
            cell,
            busy: used
                .and_then(|used| used.busy_percent)
                .map_or_else(String::new, |percent| format!("{percent} %")),
            memory: match used.and_then(|used| used.memory) {
                Some(space) => format!(
                    "{} of {}",
                    words::bytes(words::in_use(&space)),
                    words::bytes(space.total)
                ),
                None => words::bytes(gpu.memory_bytes),
            },
            pci: gpu.pci.clone(),
            uuid: gpu.uuid.clone(),
        }
    };
    gpus.into_iter().zip(cells).map(row).collect()
}

fn finding(finding: &muster_proto::v1::Finding) -> FindingRow {
    FindingRow {
        class: match node_list::withholds(&finding.severity) {
            true => "bad",
            false => "warn",
        },
        severity: finding.severity.clone(),
        about: match &finding.subject {
            Some(Subject::Gpu(uuid)) => uuid.clone(),
            Some(Subject::Nic(name)) => name.clone(),
            None => "the node".to_owned(),
        },
        check: finding.check.clone(),
        reason: finding.reason.clone(),
        remedy: finding.remedy.clone(),
    }
}

fn runs(node: &Node) -> Vec<RunRow> {
    let row = |run: &muster_proto::v1::NodeRun| RunRow {
        namespace: run.namespace.clone(),
        job: run.job.clone(),
        generation: run.generation,
        phase: run.phase.clone(),
        gpus: run.gpus.len(),
    };
    node.runs.iter().map(row).collect()
}

fn marks(node: &Node) -> Vec<MarkRow> {
    let row = |mark: &muster_proto::v1::NodeMark| MarkRow {
        at: words::utc_seconds(mark.at_unix_us),
        namespace: mark.namespace.clone(),
        job: mark.job.clone(),
        cause: mark.cause.clone(),
        lasted: words::span(mark.lasted_us),
        standing: mark.standing.clone(),
    };
    node.marks.iter().rev().map(row).collect()
}

fn commands(node: &Node) -> Vec<(&'static str, String)> {
    let name = &node.name;
    vec![
        (
            "everything about it",
            format!("muster describe node {name}"),
        ),
        match node.cordon.is_some() {
            true => ("let it take work again", format!("muster uncordon {name}")),
            false => (
                "no new work for it",
                format!("muster cordon {name} --reason WHY"),
            ),
        },
    ]
}
