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
use muster_runner::wire::{Refusal, RefusalKind, Reply, Status};
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
    /// The runner has said that it goes by this order.
    taken: bool,
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

    /// The runner has said something. A connection that it turns away is no answer.
    pub(super) fn heard(&self, reply: &Reply) {
        let busy = |refusal: &Refusal| refusal.kind == RefusalKind::Busy;
        if reply.error.as_ref().is_some_and(busy) {
            return;
        }
        let now = self.begun.elapsed();
        let mut state = self.state();
        state.heard.answered = Some(now);
        if let Some(status) = &reply.status {
            state.takes(now, status);
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
        let stands = self.ordered.map_or(new, |known| known.and(new));
        self.taken &= self.ordered == Some(stands);
        self.ordered = Some(stands);
    }

    /// The time of a stop is what the runner says of it, once.
    fn takes(&mut self, now: Duration, status: &Status) {
        let of_stop = self.ordered.filter(|it| it.order == Order::Stop);
        let (Some(ordered), Some(stop), false) = (of_stop, &status.stop, self.taken) else {
            return;
        };
        let asked = Duration::from_micros(stop.asked_us) + Duration::from_millis(stop.grace_ms);
        let left = asked.saturating_sub(Duration::from_micros(status.now_us));
        if let Some(taken) = ordered.taken(now, left) {
            (self.ordered, self.taken) = (Some(taken), true);
        }
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use muster_core::node::obedience;
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixStream,
    };

    use super::{super::tests::a_link, *};

    const GRACE: Duration = Duration::from_secs(30);

    fn stopped() -> watch::Receiver<RunnerOrders> {
        let orders = RunnerOrders {
            stop: Some((GRACE, "cancelled".into())),
            ..RunnerOrders::default()
        };
        watch::Sender::new(orders).subscribe()
    }

    /// A status of a runner that was told to stop so long ago.
    fn stops_since(seconds: u64) -> Reply {
        let now_us = 900_000_000;
        let status = json!({
            "v": 1, "job": "a", "generation": 1, "phase": "stopping", "now_us": now_us,
            "stop": { "reason": "cancelled", "asked_us": now_us - seconds * 1_000_000, "grace_ms": 30_000 },
        });
        serde_json::from_value(json!({ "v": 1, "status": status })).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_runner_that_hears_late_of_its_stop_has_its_whole_grace() {
        let (watch, begun) = (Watch::new(), Instant::now());
        let late = Duration::from_secs(25);
        let hears = async {
            tokio::time::sleep(late).await;
            watch.heard(&stops_since(0));
            // The time that it says again and again is not new time.
            tokio::time::sleep(Duration::from_secs(10)).await;
            watch.heard(&stops_since(0));
            std::future::pending::<()>().await;
        };
        let why = tokio::select! {
            why = watch.until_disobeyed(stopped()) => why,
            () = hears => unreachable!("it never ends"),
        };
        let passed = begun.elapsed();
        let most = late + GRACE + obedience::MARGIN + obedience::ANSWER;
        assert!(
            (most..most + Duration::from_secs(1)).contains(&passed),
            "{passed:?}"
        );
        assert_eq!((why.grace, why.answered), (GRACE, false));
    }

    #[tokio::test]
    async fn a_runner_that_turns_the_agent_away_has_not_answered() {
        let (link, _told) = a_link();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let watch = Watch::new();
        let mut orders = stopped();
        let busy = json!({ "v": 1, "error": { "kind": "busy", "text": "too many connections" } });
        let turns_away = async {
            theirs
                .write_all(format!("{busy}\n").as_bytes())
                .await
                .unwrap();
            let mut heard = Vec::new();
            theirs.read_to_end(&mut heard).await.unwrap();
        };
        let (ended, ()) = tokio::join!(link.converse(ours, &mut orders, &watch), turns_away);
        assert!(ended.is_err());
        assert_eq!(watch.state().heard, Heard::default());
    }
}
