//! `JobService.Stacks`: where the ranks of a job are, as the agents of their nodes find out.
//!
//! Nothing is kept here and nothing is decided: the fleet asks in the same way (`looks`). A node that does not answer is an error of its ranks.

use std::{collections::BTreeMap, time::Duration};

use muster_core::{
    id::{Generation, JobUid, NodeName},
    stacks::{self, RankStack},
};
use muster_proto::{convert::stacks as wire, limits::MESSAGE_MAX, v1};
use tokio::{task::JoinSet, time::timeout};
use tonic::Status;

use super::{
    context::Context,
    job::{job_name, no_such},
    ranks,
};
use crate::trust::Rights;

/// How long an agent may take to answer. Its runner takes three seconds for ranks that do not answer.
const ANSWER: Duration = Duration::from_secs(6);
/// Of so many ranks all threads are sent. Of more, groups have one stack each.
const WHOLE_MAX: usize = 16;
/// Of so many groups the stack is sent: 100 frames of 200 bytes each make 1.3 MiB.
const STACKS_MAX: usize = 64;

pub(super) async fn stacks(
    context: &Context,
    rights: &mut Rights,
    request: v1::StacksRequest,
) -> Result<v1::StacksResponse, Status> {
    let name = job_name(rights, request.r#ref).await?;
    let view = context.handle.job(&name).ok_or_else(|| no_such(&name))?;
    let record = &view.record;
    let generation = ranks::running(record)?;
    let wanted = ranks::wanted(generation, request.rank, &request.node)?;
    let mut by_node: BTreeMap<NodeName, Vec<u32>> = BTreeMap::new();
    for (rank, node) in wanted {
        by_node.entry(node).or_default().push(rank);
    }
    let found = look(context, &record.uid, generation.number, by_node).await;
    Ok(answer(generation.number.0, &found))
}

/// Where these ranks are, in their order, each once.
pub(super) async fn look(
    context: &Context,
    job: &JobUid,
    generation: Generation,
    by_node: impl IntoIterator<Item = (NodeName, Vec<u32>)>,
) -> Vec<RankStack> {
    // All nodes at once: one that does not answer delays no other. Whoever gives up ends them all.
    let mut asked = JoinSet::new();
    for (node, ranks) in by_node {
        let order = v1::LocateRanks {
            job_uid: job.to_string(),
            generation: generation.0,
            ranks: ranks.clone(),
            ..v1::LocateRanks::default()
        };
        let context = context.clone();
        asked.spawn(async move {
            let answer = ask(&context, &node, order).await;
            complete(&node, &ranks, answer)
        });
    }
    let mut found: Vec<RankStack> = asked.join_all().await.into_iter().flatten().collect();
    found.sort_by_key(|rank| rank.rank);
    found
}

fn answer(generation: u64, found: &[RankStack]) -> v1::StacksResponse {
    let bytes = match found.len() <= WHOLE_MAX {
        true => MESSAGE_MAX / 4 / found.len().max(1),
        false => 0,
    };
    let together = stacks::together(found);
    let groups = together.iter().enumerate();
    v1::StacksResponse {
        generation,
        ranks: { found.iter() }
            .map(|rank| wire::rank_to_wire(rank, bytes))
            .collect(),
        groups: groups
            .map(|(at, group)| wire::together_to_wire(group, at < STACKS_MAX))
            .collect(),
        waits: stacks::waits(found)
            .iter()
            .map(wire::wait_to_wire)
            .collect(),
    }
}

/// The answer of a node, with each rank that was asked for, once.
fn complete(
    node: &NodeName,
    ranks: &[u32],
    answer: Result<Vec<RankStack>, String>,
) -> Vec<RankStack> {
    let (answer, why) = match answer {
        Ok(answer) => (answer, format!("{node} says nothing of it")),
        Err(why) => (Vec::new(), why),
    };
    let mut said: BTreeMap<u32, RankStack> = { answer.into_iter() }
        .map(|stack| (stack.rank, stack))
        .collect();
    let missing = |rank: u32| RankStack {
        rank,
        node: node.clone(),
        threads: Vec::new(),
        positions: Vec::new(),
        process: None,
        error: Some(why.clone()),
    };
    { ranks.iter() }
        .map(|rank| said.remove(rank).unwrap_or_else(|| missing(*rank)))
        .collect()
}

/// What one node knows of its ranks. An error is the reason for all of them.
async fn ask(
    context: &Context,
    node: &NodeName,
    order: v1::LocateRanks,
) -> Result<Vec<RankStack>, String> {
    let connection = context.connections.follow().borrow().get(node).cloned();
    let connection = connection.ok_or_else(|| format!("{node} is not connected"))?;
    let answer = timeout(ANSWER, context.connections.locate(&connection, order)).await;
    match answer {
        Ok(Some(answer)) if answer.error.is_empty() => Ok(wire::located_from_wire(node, answer)),
        Ok(Some(answer)) => Err(answer.error),
        Ok(None) => Err(format!("the session of {node} ended")),
        Err(_) => Err(format!(
            "the agent on {node} did not answer; one of an older version cannot"
        )),
    }
}
