//! `JobService.Environment`: every variable that Muster sets for the ranks of a job, on which
//! nodes, from where, and why.
//!
//! The same function computes it here and on the nodes. Its inputs are the profile of the latest
//! generation and what its nodes report now.

use std::collections::BTreeMap;

use muster_core::{
    fleet::view::{JobView, NodeView},
    id::NodeName,
    nccl::environment::{Share, environment},
};
use muster_proto::v1;

use super::job::HIDDEN;

/// The name, the value and the source of a variable.
type Entry = (String, Option<String>, String);

/// `None`: the job has had no generation yet. `sees_values`: of the variables that the job itself
/// sets; their names are told to everybody.
pub(crate) fn answer<'a>(
    view: &JobView,
    sees_values: bool,
    node: impl Fn(&NodeName) -> Option<std::sync::Arc<NodeView>> + 'a,
) -> Option<v1::EnvironmentResponse> {
    let record = &view.record;
    let generation = record.latest()?;
    let mut entries: BTreeMap<Entry, (String, Vec<String>)> = BTreeMap::new();
    let mut remarks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut described = 0;
    let seated = (0..generation.size()).filter_map(|number| {
        let share = generation.members.holder(number)?;
        let seats = generation.seats_on(&share.node);
        let seat = seats.iter().find(|seat| seat.number == number)?.clone();
        Some((number, share, seat))
    });
    for (number, member, seat) in seated {
        let Some(known) = node(&member.node) else {
            continue;
        };
        described += 1;
        let name = match member.seats.len() {
            0 | 1 => None,
            _ => record.spec.member(&generation.layout, number),
        };
        let on = match name {
            Some(name) => format!("{} ({name})", member.node),
            None => member.node.to_string(),
        };
        let role = generation.layout.place(number).map(|place| place.role);
        let runs = record.spec.runs(role);
        let env = runs.values();
        for (name, file) in runs.files() {
            let why = "read on each node when the ranks start".to_owned();
            let from = format!("file {file}");
            let (_, nodes) = entries
                .entry((name, None, from))
                .or_insert_with(|| (why, Vec::new()));
            nodes.push(on.clone());
        }
        let share = Share {
            report: &known.report,
            gpus: &seat.gpus,
            hides_gpus: record.spec.hides_gpus(),
            ranks: generation.procs(number),
            nodes: generation.size(),
            env: &env,
        };
        let given = environment(&generation.profile, share);
        for mut variable in given.variables {
            if !sees_values && env.contains_key(&variable.name) {
                variable.value = Some(HIDDEN.to_owned());
            }
            let from = variable.source.to_string();
            let (_, nodes) = entries
                .entry((variable.name, variable.value, from))
                .or_insert_with(|| (variable.why, Vec::new()));
            nodes.push(on.clone());
        }
        for remark in given.remarks {
            remarks.entry(remark.message).or_default().push(on.clone());
        }
    }
    // An empty list means all nodes that were described.
    let some = |nodes: Vec<String>| {
        if nodes.len() == described {
            Vec::new()
        } else {
            nodes
        }
    };
    Some(v1::EnvironmentResponse {
        generation: generation.number.0,
        nodes: generation.members.len() as u32,
        transport: generation.profile.transport.to_string(),
        profile_hash: generation.profile.hash(),
        variables: entries
            .into_iter()
            .map(
                |((name, value, from), (why, nodes))| v1::EnvironmentVariable {
                    name,
                    value,
                    from,
                    why,
                    nodes: some(nodes),
                },
            )
            .collect(),
        remarks: remarks
            .into_iter()
            .map(|(message, nodes)| v1::EnvironmentRemark {
                message,
                nodes: some(nodes),
            })
            .collect(),
    })
}
