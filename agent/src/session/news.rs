//! What the coordinator does not know yet, and when it must hear it.
//!
//! Only the latest report counts, because each replaces the previous one. A change of phase, an
//! exit, a join or a first step is sent at once. Mere progress is sent at intervals.

use std::{sync::Arc, time::Duration};

use muster_core::{
    node_report::{NodeReport, WarmPool},
    run::{LauncherReport, RunReport},
    slow::Clock,
};
use muster_proto::{
    convert::session::launchers_to_wire,
    v1::{AgentMessage, agent_message::Message as Up},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{node_report_to_wire, now, runs_to_wire, up};

/// The interval of progress, which is for people. A display need not be faster than five times a
/// second.
const PROGRESS: Duration = Duration::from_millis(200);
/// How soon to try again when the queue to the network is full.
const RETRY: Duration = Duration::from_millis(50);

pub(super) struct News {
    told_report: NodeReport,
    report: NodeReport,
    told_runs: Arc<Vec<RunReport>>,
    runs: Arc<Vec<RunReport>>,
    told_launchers: Arc<Vec<LauncherReport>>,
    launchers: Arc<Vec<LauncherReport>>,
    last_sent: Option<Instant>,
    /// When to look again.
    due: Option<Instant>,
    /// How far this node's clock is from the coordinator's.
    clock: Option<Clock>,
}

impl News {
    /// The coordinator knows these from the hello. It knows nothing of launchers yet.
    pub(super) fn new(report: NodeReport, runs: Arc<Vec<RunReport>>) -> Self {
        Self {
            told_report: report.clone(),
            report,
            told_runs: runs.clone(),
            runs,
            told_launchers: Arc::default(),
            launchers: Arc::default(),
            last_sent: None,
            due: None,
            clock: None,
        }
    }

    /// What is known of this node's clock. It is told with the times that are by it.
    pub(super) fn clock(&mut self, clock: Option<Clock>) {
        self.clock = clock;
    }

    pub(super) fn launchers(&mut self, launchers: Arc<Vec<LauncherReport>>) {
        self.launchers = launchers;
    }

    pub(super) fn runs(&mut self, runs: Arc<Vec<RunReport>>) {
        self.runs = runs;
    }

    /// Whether the report lacks the current state of the warm pool.
    pub(super) fn lacks(&self, pool: Option<WarmPool>) -> bool {
        self.report.warm_pool != pool
    }

    pub(super) fn report(&mut self, report: NodeReport) {
        self.report = report;
    }

    /// Queues what must be sent now.
    pub(super) fn send(&mut self, control: &mpsc::Sender<AgentMessage>, at: Instant) {
        self.due = None;
        if self.report != self.told_report {
            match control.try_send(up(Up::Report(node_report_to_wire(&self.report)))) {
                Ok(()) => self.told_report = self.report.clone(),
                Err(_) => self.due = Some(at + RETRY),
            }
        }
        if self.launchers != self.told_launchers {
            match control.try_send(up(Up::Launchers(launchers_to_wire(&self.launchers)))) {
                Ok(()) => self.told_launchers = self.launchers.clone(),
                Err(_) => self.due = Some(at + RETRY),
            }
        }
        if Arc::ptr_eq(&self.runs, &self.told_runs) || self.runs == self.told_runs {
            return;
        }
        let progress_at = self.last_sent.map_or(at, |last| last + PROGRESS);
        if progress_at > at && !is_urgent(&self.told_runs, &self.runs) {
            self.due = Some(progress_at);
            return;
        }
        let runs = runs_to_wire(&self.runs, self.clock, now());
        match control.try_send(up(Up::Runs(runs))) {
            Ok(()) => (self.told_runs, self.last_sent) = (self.runs.clone(), Some(at)),
            Err(_) => self.due = Some(at + RETRY),
        }
    }

    /// When [`News::send`] has work again, if nothing else happens.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

/// Waits until `at`, or for ever without one. Cancel safe.
pub(super) async fn wake_at(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Whether anything but the number of steps has changed.
fn is_urgent(told: &[RunReport], runs: &[RunReport]) -> bool {
    let same = |a: &RunReport, b: &RunReport| a.without_progress() == b.without_progress();
    told.len() != runs.len() || !told.iter().zip(runs).all(|(told, run)| same(told, run))
}

#[cfg(test)]
mod tests {
    use muster_core::{
        id::{Generation, JobUid, Term},
        run::{LauncherState, RankReport, RunId, RunPhase},
        time::Timestamp,
    };

    use super::*;

    fn run(step: u64) -> RunReport {
        let run = RunId {
            job: JobUid::from("a"),
            generation: Generation(1),
        };
        let rank = RankReport {
            pid: 7,
            last_step: Some(step),
            last_step_at: Some(Timestamp(step)),
            ..RankReport::bare(0, 0)
        };
        RunReport {
            ranks: vec![rank],
            ..RunReport::preparing(run, Term(1))
        }
    }

    fn news() -> (
        News,
        mpsc::Sender<AgentMessage>,
        mpsc::Receiver<AgentMessage>,
    ) {
        let (control, out) = mpsc::channel(2);
        (
            News::new(NodeReport::default(), Arc::new(vec![run(0)])),
            control,
            out,
        )
    }

    #[tokio::test]
    async fn progress_is_gathered_and_the_rest_is_not() {
        let (mut news, control, mut out) = news();
        let start = Instant::now();
        news.runs(Arc::new(vec![run(1)]));
        news.send(&control, start);
        assert!(
            out.try_recv().is_ok(),
            "the first progress goes out at once"
        );
        news.runs(Arc::new(vec![run(2)]));
        news.send(&control, start + Duration::from_millis(10));
        assert!(out.try_recv().is_err());
        assert_eq!(news.due, Some(start + PROGRESS));
        let first = RunReport {
            phase: RunPhase::Dead,
            ..run(3)
        };
        news.runs(Arc::new(vec![first]));
        news.send(&control, start + Duration::from_millis(20));
        assert!(out.try_recv().is_ok(), "a death does not wait");
        news.send(&control, start + Duration::from_secs(1));
        assert!(out.try_recv().is_err(), "nothing is said twice");
        assert_eq!(news.due, None);
    }

    #[tokio::test]
    async fn a_full_queue_loses_nothing() {
        let (mut news, control, mut out) = news();
        let start = Instant::now();
        for _ in 0..2 {
            control.try_send(AgentMessage::default()).unwrap();
        }
        news.runs(Arc::new(Vec::new()));
        news.report(NodeReport {
            slots: 9,
            ..NodeReport::default()
        });
        news.launchers(Arc::new(vec![LauncherReport {
            job: JobUid::from("a"),
            state: LauncherState::Ready,
        }]));
        news.send(&control, start);
        assert_eq!(news.due, Some(start + RETRY));
        while out.try_recv().is_ok() {}
        news.send(&control, start + RETRY);
        assert!(
            matches!(out.try_recv().unwrap().message, Some(Up::Report(report)) if report.slots == 9)
        );
        assert!(
            matches!(out.try_recv().unwrap().message, Some(Up::Launchers(launchers)) if launchers.launchers.len() == 1)
        );
        news.send(&control, start + RETRY);
        assert!(
            matches!(out.try_recv().unwrap().message, Some(Up::Runs(runs)) if runs.runs.is_empty())
        );
    }
}
