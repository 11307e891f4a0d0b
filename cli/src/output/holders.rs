//! Which pods hold the GPUs of a node: a column of its table, and a list for programs.

use muster_proto::v1;
use serde::Serialize;

/// Adds the column `HELD BY` before the last one, which has the UUIDs, if the node's agent asks its
/// kubelet.
pub(crate) fn with_column(
    node: &v1::Node,
    mut heads: Vec<&'static str>,
    mut rows: Vec<Vec<String>>,
) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let Some(known) = &node.gpu_holders else {
        return (heads, rows);
    };
    heads.insert(heads.len() - 1, "HELD BY");
    for row in &mut rows {
        let uuid = row.last().cloned().unwrap_or_default();
        row.insert(row.len() - 1, held_by(known, &uuid));
    }
    (heads, rows)
}

fn held_by(known: &v1::GpuHolders, uuid: &str) -> String {
    if !known.known {
        return "?".to_owned();
    }
    let holders = known.holders.iter().filter(|holder| holder.gpu == uuid);
    let names: Vec<String> = holders.map(name).collect();
    match names.is_empty() {
        true => "-".to_owned(),
        false => names.join(","),
    }
}

/// A pod in a namespace in which the caller has no role has no name here.
fn name(holder: &v1::GpuHolder) -> String {
    match holder.pod.as_str() {
        "" => "(a pod)".to_owned(),
        pod => format!("{}/{pod}", holder.namespace),
    }
}

/// `GPU-5a1b2c3d` for `GPU-5a1b2c3d-...`: enough to find it among those of a node.
pub(crate) fn short(uuid: &str) -> &str {
    let mut parts = uuid.match_indices('-').map(|(at, _)| at);
    parts.nth(1).map_or(uuid, |at| &uuid[..at])
}

#[derive(Debug, Serialize)]
pub(crate) struct Holder {
    gpu: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
}

/// `None`: its agent does not ask a kubelet, or has no answer yet.
pub(crate) fn listed(holders: Option<v1::GpuHolders>) -> Option<Vec<Holder>> {
    let some = |text: String| (!text.is_empty()).then_some(text);
    let holders = holders.filter(|holders| holders.known)?.holders;
    let one = |holder: v1::GpuHolder| Holder {
        gpu: holder.gpu,
        namespace: some(holder.namespace),
        pod: some(holder.pod),
    };
    Some(holders.into_iter().map(one).collect())
}
