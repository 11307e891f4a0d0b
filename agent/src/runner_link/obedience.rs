//! Whether a runner obeys: notes its orders and its answers, and waits until it has not obeyed.
//! [`obedience`] has the rule.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use muster_core::{
    node::obedience::{self, Heard, Order, Ordered, Said, Verdict},
    run::Disobedience,
};
use muster_runner::wire::Status;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::orders::RunnerOrders;

/// One runner under orders, over all connections to it.
#[derive(Debug)]
pub(super) struct Watch {
    /// This clock stands still while the machine sleeps.
    begun: Instant,
    /// A leaf lock, never held across an await.
    state: Mutex<State>,
    /// The runner must be asked how it is.
    pub(super) ask: Notify,
}

#[derive(Debug, Default)]
struct State {
    stop: Option<(Duration, String)>,
    release: bool,
    ordered: Option<Ordered>,
    heard: Heard,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            begun: Instant::now(),
            state: Mutex::default(),
            ask: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }

    /// The runner has said something.
    pub(super) fn heard(&self, status: Option<&Status>) {
        let now = self.begun.elapsed();
        let mut state = self.state();
        state.heard.answered = Some(now);
        if let Some(status) = status {
            let kills = status.stop.as_ref().is_some_and(|s| s.killed_us.is_some());
            state.heard.said = match (&status.dead, kills) {
                (Some(_), _) => Said::Dead,
                (None, true) => Said::Kills,
                (None, false) => Said::Goes,
            };
        }
    }

    /// The runner is being killed, so it has no orders any more.
    pub(super) fn forget(&self) {
        self.state().ordered = None;
    }

    /// Returns once the runner has not obeyed.
    pub(super) async fn until_disobeyed(
        &self,
        mut orders: watch::Receiver<RunnerOrders>,
    ) -> Disobedience {
        let mut more_orders = true;
        loop {
            let until = {
                let wanted = orders.borrow_and_update();
                match self.judge(&wanted) {
                    Verdict::Obeyed => None,
                    Verdict::Wait(until) => Some(self.begun + until),
                    Verdict::Ask => continue,
                    Verdict::Kill(why) => return why,
                }
            };
            tokio::select! {
                () = sleep_until(until) => {}
                // Cancel safe by contract.
                changed = orders.changed(), if more_orders => more_orders = changed.is_ok(),
            }
        }
    }

    fn judge(&self, wanted: &RunnerOrders) -> Verdict {
        let now = self.begun.elapsed();
        let mut state = self.state();
        if state.stop != wanted.stop
            && let Some((grace, _)) = &wanted.stop
        {
            state.order(Ordered::new(Order::Stop, *grace, now));
            state.stop.clone_from(&wanted.stop);
        }
        if wanted.release && !state.release {
            state.order(Ordered::new(Order::Release, Duration::ZERO, now));
            state.release = true;
        }
        let Some(ordered) = state.ordered else {
            return Verdict::Obeyed;
        };
        let verdict = obedience::judge(now, ordered, state.heard);
        if verdict == Verdict::Ask {
            state.heard.asked = Some(now);
            self.ask.notify_one();
        }
        verdict
    }
}

impl State {
    fn order(&mut self, new: Ordered) {
        self.ordered = Some(self.ordered.map_or(new, |known| known.and(new)));
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}
