//! All that the supervisor holds about one run, beside what the brain knows of it.

use muster_core::node::lane::Lane;
use tokio::sync::watch;

use crate::{reserve::Reserved, run_dir::Accepted, runner_link::RunnerOrders};

/// One run of this node. It is held from the first word about its runner until the runner is released and the run
/// is reported no more.
#[derive(Debug, Default)]
pub(super) struct HeldRun {
    /// What its runner is to do. `None`: it never had a runner, or was released.
    pub(super) orders: Option<watch::Sender<RunnerOrders>>,
    /// What was noted when it was accepted. Its runner's messages do not repeat it.
    pub(super) accepted: Option<Accepted>,
    /// Ports that are kept for processes that have not started yet.
    pub(super) reserved: Vec<Reserved>,
    /// Processes that survive SIGKILL, as far as they can be named. `None`: there are none.
    pub(super) unkillable: Option<Vec<i32>>,
    /// Its runner is gone and its death cannot be proven, with the reason.
    pub(super) unproven: Option<String>,
    /// What the TCPStore that runs here for it has refused.
    pub(super) store_refused: Option<String>,
}

impl HeldRun {
    /// Whether its runner must be told when the coordinator was heard.
    pub(super) fn is_fenced(&self) -> bool {
        { self.accepted.as_ref() }.is_some_and(|accepted| accepted.fenced)
    }

    pub(super) fn lane(&self) -> Lane {
        { self.accepted.as_ref() }.map_or(Lane::Cold, |accepted| accepted.lane)
    }

    /// Changes what its runner is to do. Without one nothing can take the order.
    pub(super) fn order(&self, change: impl FnOnce(&mut RunnerOrders)) {
        if let Some(orders) = &self.orders {
            orders.send_modify(change);
        }
    }

    /// Its runner is released. What the run has left is still told.
    pub(super) fn release(&mut self) {
        self.order(|orders| orders.release = true);
        self.orders = None;
        self.reserved.clear();
    }
}
