//! Nodes' reports, written to the API server one after the other between commits. Nothing is decided
//! from a stored report, so no commit waits for one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_core::{
    fleet::{Change, commit::Write},
    id::NodeName,
    node_report::NodeReport,
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tracing::warn;

use super::client::Client;

/// The pause between two reports. Those of ten thousand new nodes take some minutes.
const PACE: Duration = Duration::from_millis(20);
/// The pause after a report that could not be written.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a coordinator that ends may take to write the reports that are left.
const FINISH: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Reports {
    new: Mutex<BTreeMap<NodeName, Arc<NodeReport>>>,
    come: Notify,
}

impl Reports {
    pub(super) fn add(&self, reports: &[(NodeName, Arc<NodeReport>)]) {
        self.all().extend(reports.iter().cloned());
        self.come.notify_one();
    }

    /// A report is deleted with its node.
    pub(super) fn forget_deleted(&self, writes: &[Write]) {
        for write in writes {
            if let Change::DeleteNode(name) = &write.change {
                self.all().remove(name);
            }
        }
    }

    /// Writes the reports that wait, and then each new one.
    pub(super) async fn work(&self, client: &Client) {
        let mut told = false;
        loop {
            let first = self.all().pop_first();
            let Some((name, report)) = first else {
                self.come.notified().await;
                continue;
            };
            match client.put_report(&name, &report).await {
                Ok(()) => {
                    told = false;
                    sleep(PACE).await;
                }
                // The reports behind it must not wait for one that is never taken.
                Err(why) if why.is_too_large() => {
                    warn!("the report of {name} is not stored, it is too large: {why}");
                }
                Err(why) => {
                    if !told {
                        warn!("the report of {name} cannot be stored: {why}");
                    }
                    told = true;
                    self.all().entry(name).or_insert(report);
                    sleep(AGAIN).await;
                }
            }
        }
    }

    /// Writes the reports that are left, if the API server takes them at once. Reports that get lost do
    /// no harm: a node reports again when it connects to another coordinator.
    pub(super) async fn finish(&self, client: &Client) {
        let rest = std::mem::take(&mut *self.all());
        let write = async {
            for (name, report) in rest {
                if !client.sure.is_sure() || client.put_report(&name, &report).await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(FINISH, write).await;
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<NodeName, Arc<NodeReport>>> {
        self.new.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
