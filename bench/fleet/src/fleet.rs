//! All simulated nodes, and waiting for what they see.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use muster_agent::simulated::SimulatedAgent;
use muster_core::id::NodeName;
use muster_rpc::Address;
use tokio::{sync::mpsc, time::timeout_at};
use tokio_util::sync::CancellationToken;

use crate::node::{Do, Node, Seen, What};

/// The number of sightings that may wait for the course. Every node of a large fleet may add one at
/// once, so no node ever waits.
const SEEN_MAX: usize = 65_536;
/// The number of acts that may wait for a node. It is given one at a time.
const ACTS_MAX: usize = 4;

pub(crate) fn node_name(number: usize) -> NodeName {
    NodeName::from(format!("node-{number:05}"))
}

pub(crate) struct Fleet {
    acts: Vec<mpsc::Sender<Do>>,
    seen: mpsc::Receiver<Seen>,
}

impl Fleet {
    /// Starts all agents at once, as after a power cut.
    /// `identities`: the folder of what each shows to a coordinator that speaks TLS.
    pub(crate) fn start(
        coordinator: &Address,
        identities: Option<&Path>,
        agents: usize,
        gpus: u32,
        shutdown: &CancellationToken,
    ) -> Result<Self> {
        let (see, seen) = mpsc::channel(SEEN_MAX);
        let acts = (0..agents)
            .map(|number| {
                let name = node_name(number);
                let identity = identities.map(|folder| folder.join(name.as_str()));
                let (agent, session) = SimulatedAgent::new(
                    coordinator.clone(),
                    identity,
                    name,
                    gpus,
                    shutdown.clone(),
                );
                let (act, acts) = mpsc::channel(ACTS_MAX);
                tokio::spawn(session);
                tokio::spawn(Node::new(number, agent, acts, see.clone()).run());
                act
            })
            .collect();
        Ok(Self { acts, seen })
    }

    pub(crate) async fn act(&self, node: usize, act: Do) -> Result<()> {
        Ok(self.acts[node].send(act).await?)
    }

    /// Sends to these nodes, without waiting for any of them.
    pub(crate) fn act_if_idle(&self, nodes: &[usize], act: Do) {
        for node in nodes {
            let _ = self.acts[*node].try_send(act);
        }
    }

    /// Waits until this many different nodes have seen it. Returns the nodes, and when each saw it.
    pub(crate) async fn all(
        &mut self,
        what: What,
        nodes: usize,
        patience: Duration,
    ) -> Result<Vec<(usize, Instant)>> {
        let until = tokio::time::Instant::now() + patience;
        let mut found = Vec::with_capacity(nodes);
        while found.len() < nodes {
            match timeout_at(until, self.seen.recv()).await {
                Ok(Some(seen)) if seen.what == what => found.push((seen.node, seen.at)),
                Ok(Some(_)) => {}
                Ok(None) => bail!("every node has ended"),
                Err(_) => bail!(
                    "{} of {nodes} nodes saw {what:?} within {patience:?}",
                    found.len()
                ),
            }
        }
        Ok(found)
    }

    /// The times of two things that follow each other on every node, whichever node is ahead.
    pub(crate) async fn both(
        &mut self,
        first: What,
        second: What,
        nodes: usize,
        patience: Duration,
    ) -> Result<(Vec<(usize, Instant)>, Vec<(usize, Instant)>)> {
        let until = tokio::time::Instant::now() + patience;
        let (mut firsts, mut seconds) = (Vec::with_capacity(nodes), Vec::with_capacity(nodes));
        while seconds.len() < nodes || firsts.len() < nodes {
            match timeout_at(until, self.seen.recv()).await {
                Ok(Some(seen)) if seen.what == first => firsts.push((seen.node, seen.at)),
                Ok(Some(seen)) if seen.what == second => seconds.push((seen.node, seen.at)),
                Ok(Some(_)) => {}
                Ok(None) => bail!("every node has ended"),
                Err(_) => {
                    bail!(
                        "{} of {nodes} nodes saw {first:?}, {} saw {second:?} within {patience:?}",
                        firsts.len(),
                        seconds.len()
                    )
                }
            }
        }
        Ok((firsts, seconds))
    }

    /// Forgets what was seen so far. Returns how many sightings were welcomes.
    pub(crate) fn drain(&mut self) -> usize {
        let mut welcomes = 0;
        while let Ok(seen) = self.seen.try_recv() {
            welcomes += usize::from(matches!(seen.what, What::Welcome(_)));
        }
        welcomes
    }
}
