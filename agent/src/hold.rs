//! A run, described to the runner that shall hold it.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use muster_core::{node::torchrun::Site, run::Assignment};
use muster_runner::wire::{self, PortRange};

/// Size of one rank's log before it is rotated.
const LOG_BYTES: u64 = 64 << 20;
/// A runner that was not started, and that no agent is connected to, ends after this long. Its
/// agent was killed between holding and starting, and none came back.
const IDLE_TIMEOUT_MS: u64 = 300_000;
/// What a run's description takes from its node.
pub(crate) struct Here {
    pub(crate) site: Site,
    /// The operator's own formats of steps.
    pub(crate) step_formats: Option<String>,
    /// The ports that a TCPStore may have.
    pub(crate) ports: Option<PortRange>,
    /// The standard output of the container that workers live in.
    pub(crate) echo: Option<PathBuf>,
}

pub(crate) fn hold(assignment: &Assignment, site: &Site, address: IpAddr) -> wire::Hold {
    wire::Hold {
        v: wire::VERSION,
        job: assignment.run.job.to_string(),
        name: assignment.name.name.clone(),
        namespace: assignment.name.namespace.clone(),
        generation: assignment.run.generation.0,
        node: site.node.to_string(),
        node_rank: assignment.node_rank,
        nnodes: assignment.node_count,
        world_size: assignment.world_size,
        store: assignment.hosts_store.then(|| wire::StoreSpec {
            // Port 0 makes the kernel choose a free port, a new one for every generation. The
            // operator may want one of a range (see `Here`).
            bind: SocketAddr::new(address, 0).to_string(),
            ports: None,
            run_id: assignment.rendezvous.clone(),
            clients: assignment.store_clients.clone(),
        }),
        log_bytes: LOG_BYTES,
        step_pattern: assignment.step_pattern.clone(),
        step_formats: None,
        idle_timeout_ms: IDLE_TIMEOUT_MS,
        term_grace_ms: millis(assignment.stop_grace),
        fence_after_ms: assignment.fence_after.map(millis),
        launcher: false,
        echo: None,
    }
}

fn millis(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX)
}
