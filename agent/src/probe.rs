//! The node's facts: what never changes while the agent runs, and the GPUs, which may.

use muster_core::node_report::NodeReport;
use muster_runtime::version::version;
use tokio::sync::watch;

use crate::config::Config;

mod gpu;
mod host;

pub(crate) use gpu::Gpus;

/// Everything this node reports about itself.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    fixed: NodeReport,
    gpus: watch::Receiver<Option<Gpus>>,
}

impl Facts {
    /// Reads what is fixed and begins to watch the rest.
    pub(crate) fn gather(config: &Config) -> Self {
        let host = host::Host::read();
        let fixed = NodeReport {
            address: config.address.to_string(),
            agent_version: version().to_owned(),
            hostname: host.name,
            kernel: host.kernel,
            labels: config.labels.clone(),
            slots: config.slots,
            cpus: host.cpus,
            memory_bytes: host.memory_bytes,
            ..NodeReport::default()
        };
        Self { fixed, gpus: gpu::watch() }
    }

    /// Facts that are told and not looked for.
    pub(crate) fn unprobed(fixed: NodeReport) -> Self {
        Self { fixed, gpus: watch::Sender::new(Some(Gpus::default())).subscribe() }
    }

    /// The report as of now.
    pub(crate) fn report(&mut self) -> NodeReport {
        let gpus = self.gpus.borrow_and_update().clone().unwrap_or_else(Gpus::silent);
        NodeReport { gpus: gpus.gpus, gpu_error: gpus.error, ..self.fixed.clone() }
    }

    /// Waits for the first look at the GPUs, as long as a healthy driver takes.
    pub(crate) async fn first_look(&mut self) {
        // Whether it came or not is in the report.
        let _ = tokio::time::timeout(gpu::FIRST_LOOK, self.gpus.wait_for(Option::is_some)).await;
    }

    /// Returns once the facts may have changed. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        if self.gpus.changed().await.is_err() {
            // The probe has ended: there is nothing to watch on this node.
            std::future::pending::<()>().await;
        }
    }
}
