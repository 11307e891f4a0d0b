//! `muster explain --env`: the variables of a job's ranks, where each came from and why.

use muster_proto::v1::{EnvironmentResponse, EnvironmentVariable};

use super::{
    listing::HIDDEN,
    table::{Table, plain},
};

/// How many node names a cell shows. The others are counted.
const NODES_SHOWN: usize = 2;

pub(crate) fn render(job: &str, answer: &EnvironmentResponse) -> String {
    let mut out = format!(
        "Job {} in generation {}: {} on {} {}, profile {}\n\n",
        plain(job),
        answer.generation,
        plain(&answer.transport),
        answer.nodes,
        if answer.nodes == 1 { "node" } else { "nodes" },
        plain(&answer.profile_hash),
    );
    let rows: Vec<Vec<String>> = answer
        .variables
        .iter()
        .map(|variable| {
            vec![
                variable.name.clone(),
                value(variable),
                nodes(&variable.nodes),
                variable.from.clone(),
                variable.why.clone(),
            ]
        })
        .collect();
    out.push_str(
        &Table::new(vec!["VARIABLE", "VALUE", "NODES", "FROM", "WHY"]).render(&rows, true),
    );
    for remark in &answer.remarks {
        let place = if remark.nodes.is_empty() {
            String::new()
        } else {
            format!(" (on {})", nodes(&remark.nodes))
        };
        out.push_str(&format!("\nWarning: {}{place}\n", plain(&remark.message)));
    }
    out
}

/// Beginnings of the names of communication libraries' variables. This page is about them, and they
/// are no secrets.
const COMMUNICATION: [&str; 5] = ["NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_"];

/// Hides the values of the job's own variables, except those of the communication libraries.
pub(crate) fn hide(answer: &mut EnvironmentResponse) {
    for variable in answer
        .variables
        .iter_mut()
        .filter(|variable| variable.from == "job")
    {
        let is_known = COMMUNICATION
            .iter()
            .any(|prefix| variable.name.starts_with(prefix));
        variable.value = variable
            .value
            .take()
            .map(|value| if is_known { value } else { HIDDEN.to_owned() });
    }
}

fn value(variable: &EnvironmentVariable) -> String {
    match variable.value.as_deref() {
        None => "<unset>".into(),
        Some("") => "\"\"".into(),
        Some(value) => value.to_owned(),
    }
}

fn nodes(names: &[String]) -> String {
    match names.len() {
        0 => "all".into(),
        n if n <= NODES_SHOWN => names.join(","),
        n => format!("{},+{}", names[..NODES_SHOWN].join(","), n - NODES_SHOWN),
    }
}
