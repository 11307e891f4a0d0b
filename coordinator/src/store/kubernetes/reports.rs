//! Nodes' reports, written to the API server between commits. Nothing is decided from a stored report,
//! so they wait for it, and nobody waits for them.

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

use super::books::Place;

/// Between two of them: ten thousand nodes that are new take some minutes.
const PACE: Duration = Duration::from_millis(20);
/// After one that could not be written.
const AGAIN: Duration = Duration::from_secs(5);
/// For those that are left when the coordinator ends.
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

    /// Writes what there is, and what comes.
    pub(super) async fn work(&self, place: &Place) {
        let mut told = false;
        loop {
            let first = self.all().pop_first();
            let Some((name, report)) = first else {
                self.come.notified().await;
                continue;
            };
            match place.put_report(&name, &report).await {
                Ok(()) => {
                    told = false;
                    sleep(PACE).await;
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

    /// Writes what is left, if that can be done at once. A node reports again when it comes back.
    pub(super) async fn finish(&self, place: &Place) {
        let rest = std::mem::take(&mut *self.all());
        let write = async {
            for (name, report) in rest {
                if !place.sure.is_sure() || place.put_report(&name, &report).await.is_err() {
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
