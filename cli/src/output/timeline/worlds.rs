//! Which nodes were in which generation, and how many ranks there were, from the events that name them.

use std::collections::BTreeSet;

use muster_core::fleet::formed::Formed;
use muster_proto::v1::{ExplainResponse, Job};
use serde_json::json;

use super::{Bar, Life, known};

/// One generation, from its start until something ended it.
#[derive(Clone, Debug)]
pub(in crate::output) struct World {
    pub(in crate::output) formed: Formed,
    from: u64,
    /// `None`: what ended it is not kept.
    to: Option<u64>,
    /// All that is known of its nodes, in the order of their ranks.
    pub(in crate::output) nodes: Vec<String>,
}

impl World {
    /// What is to be said if not all of its nodes are known.
    pub(in crate::output) fn unnamed(&self) -> Option<String> {
        let Formed {
            generation, nodes, ..
        } = self.formed;
        match self.nodes.len() {
            0 => Some(format!(
                "which nodes generation {generation} had is not known"
            )),
            known if known < nodes => Some(format!(
                "generation {generation} had {nodes} nodes, of which the first {known} are known"
            )),
            _ => None,
        }
    }
}

/// In the order of time.
pub(in crate::output) fn of(life: Life, answer: &ExplainResponse, job: &Job) -> Vec<World> {
    let status = job.status.clone().unwrap_or_default();
    let formed = answer
        .timeline
        .iter()
        .filter(|event| event.reason == "WorldFormed");
    let mut worlds: Vec<World> = formed
        .filter_map(|event| {
            let formed = Formed::read(&event.message)?;
            let from = life.at(event.at_unix_us);
            let is_last = formed.generation == status.generation;
            let ended = answer.incidents.iter().find(|one| {
                one.from_generation == formed.generation && one.restarted_ranks.is_empty()
            });
            let to = ended.map(|one| life.at(one.at_unix_us));
            let mut nodes = formed.named.clone();
            if is_last && nodes.len() < formed.nodes {
                let mut seen = BTreeSet::new();
                let members = status.members.iter().map(|member| &member.node);
                let all: Vec<String> = members.filter(|node| seen.insert(*node)).cloned().collect();
                if all.len() == formed.nodes {
                    nodes = all;
                }
            }
            Some(World {
                formed,
                from,
                to: to.or(is_last.then_some(life.end)).map(|to| to.max(from)),
                nodes,
            })
        })
        .collect();
    worlds.sort_by_key(|world| world.from);
    worlds
}

/// How many ranks there were, from which moment on.
pub(in crate::output) fn sizes(life: Life, worlds: &[World]) -> Vec<(u64, u64)> {
    let mut sizes = vec![(life.start, 0)];
    for world in worlds {
        sizes.push((world.from, world.formed.world));
        let goes_on = world.to == Some(life.end) && !life.is_over;
        sizes.extend(world.to.filter(|_| !goes_on).map(|to| (to, 0)));
    }
    sizes
}

/// The generations of each node, the node that came first at the top.
pub(in crate::output) fn by_node(worlds: &[World]) -> Vec<(String, Vec<Bar>)> {
    let mut rows: Vec<(String, Vec<Bar>)> = Vec::new();
    for world in worlds {
        let Some(to) = world.to else { continue };
        for (place, node) in world.nodes.iter().enumerate() {
            let formed = &world.formed;
            let args = json!({
                "generation": formed.generation,
                "nodeRank": formed.members.is_none().then_some(place),
                "nodes": formed.nodes,
                "members": formed.members,
                "worldSize": formed.world,
            });
            let bar = Bar {
                from: world.from,
                to,
                name: format!("generation {}", formed.generation),
                category: "generation",
                args: known(args),
            };
            match rows.iter_mut().find(|(known, _)| known == node) {
                Some((_, bars)) => {
                    // What ended the one before is dated to when it happened, and may be dated too late.
                    if let Some(before) = bars.last_mut() {
                        before.to = before.to.min(bar.from);
                    }
                    bars.push(bar);
                }
                None => rows.push((node.clone(), vec![bar])),
            }
        }
    }
    rows
}
