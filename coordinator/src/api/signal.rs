//! `JobService.Signal`: a signal to ranks of a job, sent by the agents of their nodes.
//!
//! A signal is no desired state: it is sent once, now or never, by the way of log reads. The fleet only
//! notes who has got it.

use std::{collections::BTreeMap, time::Duration};

use muster_core::{fleet::Request, id::NodeName, signal};
use muster_proto::v1;
use tokio::{task::JoinSet, time::timeout};
use tonic::Status;

use super::{
    context::Context,
    job::{job_name, no_such},
    ranks, status,
};
use crate::trust::Rights;

/// How long an agent may take to answer. It asks a process of its own machine.
const ANSWER: Duration = Duration::from_secs(5);

pub(super) async fn signal(
    context: &Context,
    rights: &mut Rights,
    request: v1::SignalRequest,
) -> Result<v1::SignalResponse, Status> {
    let name = job_name(rights, request.r#ref).await?;
    let signal =
        signal::read(&request.signal).map_err(|message| status::invalid("signal", message))?;
    let view = context.handle.job(&name).ok_or_else(|| no_such(&name))?;
    let record = &view.record;
    let generation = ranks::running(record)?;
    let ranks = ranks::wanted(generation, request.rank, &request.node)?;
    let mut by_node: BTreeMap<&NodeName, Vec<u32>> = BTreeMap::new();
    for (rank, node) in &ranks {
        by_node.entry(node).or_default().push(*rank);
    }
    // All nodes at once: one that does not answer delays no other. Whoever gives up ends them all.
    let mut asked = JoinSet::new();
    for (node, ranks) in by_node {
        let order = v1::SignalRanks {
            job_uid: record.uid.to_string(),
            generation: generation.number.0,
            ranks,
            signal: signal.unsigned_abs(),
            ..v1::SignalRanks::default()
        };
        let (context, node) = (context.clone(), node.clone());
        asked.spawn(async move { (node.clone(), send(&context, &node, order).await) });
    }
    let answers: BTreeMap<NodeName, _> = asked.join_all().await.into_iter().collect();
    let missed = |rank: u32, node: &NodeName| match answers.get(node) {
        Some(Ok(missed)) => missed.get(&rank).cloned(),
        Some(Err(why)) => Some(why.clone()),
        None => None,
    };
    let told: Vec<v1::SignalledRank> = ranks
        .iter()
        .map(|(rank, node)| v1::SignalledRank {
            rank: *rank,
            node: node.to_string(),
            error: missed(*rank, node).unwrap_or_default(),
        })
        .collect();
    let got: Vec<u32> = told
        .iter()
        .filter(|told| told.error.is_empty())
        .map(|told| told.rank)
        .collect();
    if !got.is_empty() {
        let note = Request::NoteSignal {
            name,
            uid: record.uid.clone(),
            generation: generation.number,
            signal,
            ranks: got,
        };
        // The signal is sent, whether or not it could be noted.
        if let Err(error) = context.handle.request(rights.actor(""), note).await {
            tracing::warn!("a signal was sent and not noted: {error}");
        }
    }
    Ok(v1::SignalResponse {
        generation: generation.number.0,
        ranks: told,
    })
}

/// The ranks of one node that have not got the signal, or may not have got it, with the reason. An
/// error is the reason of all of them.
async fn send(
    context: &Context,
    node: &NodeName,
    order: v1::SignalRanks,
) -> Result<BTreeMap<u32, String>, String> {
    let connection = context.connections.follow().borrow().get(node).cloned();
    let connection = connection.ok_or_else(|| format!("{node} is not connected"))?;
    let answer = timeout(ANSWER, context.connections.signal(&connection, order)).await;
    match answer {
        Ok(Some(answer)) => Ok(answer.missed),
        Ok(None) => Err(format!(
            "the session of {node} ended, so it is not known whether the signal was sent"
        )),
        Err(_) => Err(format!(
            "the agent on {node} did not answer, so it is not known whether the signal was sent; one of an older version sends none"
        )),
    }
}
