//! What a container asks of its node: GPUs, which Muster hands out, and the rest, which it does not.

use crate::{
    fields::{KEPT, Object, Rule, Rules},
    tree::{Field, Value},
    verdict::Verdicts,
};

const RESOURCES: Rules = &[
    ("limits", Rule::Read),
    ("requests", Rule::Read),
    (
        "claims",
        Rule::Refuse("asks for devices in a way that Muster does not know; use limits"),
    ),
];

/// What the name of a resource says.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Gpu,
    /// A part of a GPU, as in `baidu.com/v100_32g_cgpu_core`.
    Share,
    Slice,
    Plain,
    Other,
}

fn kind(name: &str) -> Kind {
    let is_plain = matches!(name, "cpu" | "memory" | "ephemeral-storage" | "storage");
    if is_plain || name.starts_with("hugepages-") {
        Kind::Plain
    } else if name.contains("_cgpu") || name.contains("gpu-mem") || name.contains("gpucores") {
        Kind::Share
    } else if name.contains("/mig-") {
        Kind::Slice
    } else if name.contains("gpu") {
        Kind::Gpu
    } else {
        Kind::Other
    }
}

/// What a container asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) gpus: i64,
    /// Whole CPUs, from the request, else from the limit; a part counts as one.
    pub(crate) cpus: Option<i64>,
}

/// The resource that a worker pod has as many of as `gpusPerNode` says.
const GPU: &str = "nvidia.com/gpu";

/// What a container asks for that is kept as it is.
pub(super) fn kept(field: &Field<'_>, log: &mut Verdicts) -> Asked {
    let limits = field.node.entry("limits").map(|entry| &entry.node);
    let gpus = limits.and_then(|limits| limits.entry(GPU));
    let gpus = gpus.and_then(|entry| match &entry.node.value {
        Value::Whole(count) => Some(*count),
        Value::Text(text) => text.parse().ok(),
        _ => None,
    });
    match gpus {
        Some(gpus) => log.taken(field, format!("spec.gpusPerNode: {gpus}, and {KEPT}")),
        None => log.note(field, KEPT),
    }
    Asked {
        gpus: gpus.unwrap_or(0),
        cpus: cpus(field),
    }
}

fn cpus(field: &Field<'_>) -> Option<i64> {
    ["requests", "limits"]
        .iter()
        .filter_map(|list| field.node.entry(list)?.node.entry("cpu"))
        .find_map(|entry| whole_cpus(&entry.node.value))
}

pub(super) fn read(field: &Field<'_>, log: &mut Verdicts) -> Asked {
    let resources = Object::walk(field, RESOURCES, log);
    let mut gpus = None;
    let mut unlimited: Vec<&str> = Vec::new();
    for list in ["limits", "requests"] {
        let Some(list) = resources.get(list) else {
            continue;
        };
        for (name, at) in list.entries(log) {
            match kind(name) {
                Kind::Gpu => {
                    let Some(count) = count(&at, log) else {
                        continue;
                    };
                    match gpus {
                        Some(before) if before != count => {
                            log.refuse(&at, format!("is {count}, but {before} are asked for above"))
                        }
                        Some(_) => log.note(&at, "says the same as the limit"),
                        None => log.taken(&at, "spec.gpusPerNode"),
                    }
                    gpus = gpus.or(Some(count));
                }
                Kind::Share => {
                    gpus = gpus.or(Some(1));
                    log.warn(
                        &at,
                        "shares of a GPU are not kept apart here; each node gives one whole GPU",
                    );
                }
                Kind::Slice => log.refuse(&at, "Muster hands out whole GPUs, not slices of them"),
                Kind::Plain => {
                    if !unlimited.contains(&name) {
                        unlimited.push(name);
                    }
                }
                Kind::Other => log.warn(
                    &at,
                    "is not handed out by Muster; processes use what the node has",
                ),
            }
        }
    }
    if !unlimited.is_empty() {
        log.warn(
            field,
            format!(
                "asks for {}, which Muster neither limits nor reserves",
                unlimited.join(" and ")
            ),
        );
    }
    Asked {
        gpus: gpus.unwrap_or(0),
        cpus: cpus(field),
    }
}

/// `2`, `"2"`, `"1500m"` or `"1.5"` as whole CPUs, rounded up.
fn whole_cpus(value: &Value) -> Option<i64> {
    let thousandths = match value {
        Value::Whole(cpus) => cpus.checked_mul(1_000)?,
        Value::Number(cpus) => (cpus * 1_000.0).ceil() as i64,
        Value::Text(text) => match text.strip_suffix('m') {
            Some(text) => text.parse().ok()?,
            None => (text.parse::<f64>().ok()? * 1_000.0).ceil() as i64,
        },
        _ => return None,
    };
    (1..=1_000_000_000)
        .contains(&thousandths)
        .then(|| (thousandths + 999) / 1_000)
}

/// A whole number, which may be in quotes.
fn count(at: &Field<'_>, log: &mut Verdicts) -> Option<i64> {
    let count = match &at.node.value {
        Value::Whole(count) => Some(*count),
        Value::Text(text) => text.parse().ok(),
        _ => None,
    };
    if count.is_none() {
        log.refuse(at, format!("{}, must be a whole number", at.node.is()));
    }
    count
}
