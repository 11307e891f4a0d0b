//! What a job has chosen, in words: the rows of `muster describe job` about its nodes, and whom it tells.

use muster_core::spec::{NotifyDocument, SpecDocument};

/// Whom a job asks to be told of what: `ann@example.org of jobFailed; chat of jobStarted`.
pub(super) fn told(notify: &[NotifyDocument]) -> String {
    let entry = |entry: &NotifyDocument| {
        let to: Vec<&str> = { entry.receivers.iter().chain(&entry.mail) }
            .map(String::as_str)
            .collect();
        format!("{} of {}", to.join(", "), entry.kinds.join(", "))
    };
    notify.iter().map(entry).collect::<Vec<_>>().join("; ")
}

/// The name of each row and its text. An empty text stands for no row.
pub(super) fn rows(spec: &SpecDocument) -> Vec<(&'static str, String)> {
    let labels = spec.node_selector.iter();
    let labels: Vec<String> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let mut rows = vec![("Node selector", labels.join(", "))];
    let affinity = spec.affinity.as_ref();
    if let Some(affinity) = affinity.and_then(|all| all.node_affinity.as_ref()) {
        let terms = affinity.required.iter();
        let terms = terms.flat_map(|required| &required.node_selector_terms);
        let terms: Vec<String> = terms.map(ToString::to_string).collect();
        let preferred = affinity.preferred.iter();
        let preferred: Vec<String> = preferred
            .map(|preferred| format!("{} ({})", preferred.preference, preferred.weight))
            .collect();
        rows.push(("Node affinity", terms.join(", or ")));
        rows.push(("Preferred nodes", preferred.join("; ")));
    }
    let required = spec.required_topology.clone();
    rows.push(("Only nodes", spec.node_list.join(", ")));
    rows.push(("Excluded nodes", spec.exclude_nodes.join(", ")));
    let tolerations: Vec<String> = { spec.tolerations.iter() }
        .map(ToString::to_string)
        .collect();
    rows.push(("Tolerations", tolerations.join(", ")));
    rows.push(("Same", required.unwrap_or_default()));
    rows.push(("Same, if possible", spec.preferred_topology.join(", or ")));
    rows
}
