//! The roles of a job as a table.

use muster_core::spec::RoleDocument;

use super::words;

pub(super) const HEADS: [&str; 7] = [
    "NAME",
    "NODES",
    "RANGE",
    "PROCESSES/NODE",
    "GPUS/NODE",
    "SERVICE",
    "COMMAND",
];

pub(super) fn row(role: &RoleDocument) -> Vec<String> {
    let number = |value: Option<i64>| value.map(|value| value.to_string()).unwrap_or_default();
    let nodes = role.replicas.unwrap_or(1);
    let command = role.command.iter().chain(&role.args);
    vec![
        role.name.clone(),
        nodes.to_string(),
        words::range(
            role.min_replicas.unwrap_or(nodes),
            role.max_replicas.unwrap_or(nodes),
        ),
        number(role.proc_per_node),
        number(role.gpus_per_node),
        if role.service == Some(true) {
            "yes"
        } else {
            "no"
        }
        .to_owned(),
        command
            .map(|word| words::quoted(word))
            .collect::<Vec<_>>()
            .join(" "),
    ]
}
