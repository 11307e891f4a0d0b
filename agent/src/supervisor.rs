//! The one task that owns the node's brain: it feeds the brain, executes its effects in order, and
//! publishes the reports.
//!
//! `core::node` makes the decisions. What the agent must not forget is on disk before anything that
//! follows from it happens. Meanwhile this task still answers heartbeats and hears runners. It
//! never waits for a disk.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use muster_core::{
    id::{JobUid, NodeEpoch, Term},
    node::{Effect, Found, FoundState, Input, Ledger, Node, launch},
    node_report::WarmPool,
    run::{Assignment, Desired, DueTo, LauncherReport, Obeyed, Refusal, RunId, RunReport, Start},
    time::Timestamp,
};
use muster_runtime::{clock::Clock, tasks::Scope};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    checkpoints::Checkpoints,
    config::Config,
    containers::{Containers, Waits},
    hold::Here,
    host::RunnerHost,
    launchers::{self, Launchers, Made, Pool},
    preflight::Preflight,
    prepare,
    probe::Facts,
    reserve::Reserved,
    run_dir::{Accepted, Runs},
    runner_link::{Link, LinkEvent, RunnerOrders},
    state_disk::{Errand, StateDisk, ThreadEnded},
    trials::Trials,
};

mod fences;
mod held_run;
mod images;
mod lanes;
mod owners;
mod reports;
mod standbys;
mod start_spec;
mod trials;

use held_run::HeldRun;
use owners::Owners;
use trials::Trying;

/// A message of the session to the supervisor.
#[derive(Debug)]
pub(crate) enum Order {
    Welcome {
        term: Term,
        epoch: NodeEpoch,
    },
    Desired(Desired),
    /// The coordinator was heard at this time.
    Heard(Timestamp),
    /// A heartbeat is due. It passes through this task, so that it proves more than an open socket.
    Pulse(u64),
    /// Answered as soon as its turn comes.
    Ask(oneshot::Sender<()>),
}

/// What the supervisor publishes. Each watch holds only its latest value.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) orders: mpsc::Sender<Order>,
    /// None until all runs of an earlier agent are found again.
    pub(crate) reports: watch::Receiver<Option<Reports>>,
    /// The last heartbeat that passed through.
    pub(crate) pulse: watch::Receiver<u64>,
    /// Increases whenever the session must end. The text is the reason.
    pub(crate) end_session: watch::Receiver<(u64, String)>,
}

/// Everything that the node holds, and the highest stamps that it has obeyed.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    pub(crate) term: Term,
    pub(crate) epoch: NodeEpoch,
    pub(crate) jobs_seen: Arc<BTreeMap<JobUid, Obeyed>>,
    pub(crate) runs: Arc<Vec<RunReport>>,
    /// The state of the launchers for jobs that are about to come here.
    pub(crate) launchers: Arc<Vec<LauncherReport>>,
    pub(crate) pool: Option<WarmPool>,
}

/// How many events of links may wait: two bursts of one event for each run of a full node.
const LINK_EVENTS_MAX: usize = 128;
/// How many orders may wait. The session sends one, then waits for the coordinator's next message.
pub(crate) const ORDERS_MAX: usize = 16;
/// How long living runners may take to send their status before the agent goes on without it. They
/// need milliseconds.
const STOCK_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Supervisor {
    config: Arc<Config>,
    host: Arc<dyn RunnerHost>,
    facts: Facts,
    node: Node,
    runs: Runs,
    disk: StateDisk,
    preflight: Arc<Preflight>,
    held: BTreeMap<RunId, HeldRun>,
    /// When the coordinator was last heard.
    heard: Option<Timestamp>,
    scope: Scope,
    orders: mpsc::Receiver<Order>,
    tell: mpsc::Sender<(RunId, LinkEvent)>,
    link_events: mpsc::Receiver<(RunId, LinkEvent)>,
    prepared: (mpsc::Sender<Prepared>, mpsc::Receiver<Prepared>),
    launchers: Launchers,
    made: (mpsc::Sender<Made>, mpsc::Receiver<Made>),
    /// The coordinator's wanted runs by job, which say how a launcher must be started.
    wanted: BTreeMap<JobUid, Assignment>,
    /// Jobs that are about to come and need a ready launcher.
    prewarm: BTreeMap<JobUid, Assignment>,
    checkpoints: Checkpoints,
    trying: Trying,
    owners: Owners,
    containers: Containers,
    /// When to check again what a job needs of its launcher.
    look_again: Option<Timestamp>,
    reports: watch::Sender<Option<Reports>>,
    pulse: watch::Sender<u64>,
    end_session: watch::Sender<(u64, String)>,
}

/// A run whose runner is up, or why it is not.
#[derive(Debug)]
struct Prepared {
    run: RunId,
    /// The ports that its members get, if they need some.
    outcome: Result<Vec<Reserved>, Refusal>,
    accepted: Option<Accepted>,
}

impl Supervisor {
    pub(crate) fn new(
        config: Arc<Config>,
        host: Arc<dyn RunnerHost>,
        facts: Facts,
        ledger: Ledger,
        runs: Runs,
        disk: StateDisk,
        shutdown: CancellationToken,
    ) -> (Self, Handle) {
        let (orders_in, orders) = mpsc::channel(ORDERS_MAX);
        let (tell, link_events) = mpsc::channel(LINK_EVENTS_MAX);
        let (reports, reports_out) = watch::channel(None);
        let (pulse, pulse_out) = watch::channel(0);
        let (end_session, end_out) = watch::channel((0, String::new()));
        let handle = Handle {
            orders: orders_in,
            reports: reports_out,
            pulse: pulse_out,
            end_session: end_out,
        };
        let warm_pool = config.warm_pool as usize;
        let preflight = Arc::new(Preflight::new(Trials::of(&config.state_dir)));
        let supervisor = Self {
            config,
            host,
            facts,
            node: Node::new(ledger),
            runs,
            disk,
            preflight,
            held: BTreeMap::new(),
            heard: None,
            scope: Scope::new(shutdown),
            orders,
            tell,
            link_events,
            prepared: mpsc::channel(LINK_EVENTS_MAX),
            launchers: Launchers::new(Pool::new(warm_pool)),
            made: mpsc::channel(LINK_EVENTS_MAX),
            wanted: BTreeMap::new(),
            prewarm: BTreeMap::new(),
            checkpoints: Checkpoints::default(),
            trying: Trying::default(),
            owners: Owners::default(),
            containers: Containers::default(),
            look_again: None,
            reports,
            pulse,
            end_session,
        };
        (supervisor, handle)
    }

    /// Runs until the shutdown. It ends earlier only if it must not go on.
    pub(crate) async fn run(mut self) {
        if let Err(e) = self.work().await {
            error!("{e}");
        }
    }

    async fn work(&mut self) -> Result<(), ThreadEnded> {
        self.find_containers().await;
        let found = self.take_stock().await;
        self.take(Input::Restarted(found));
        let shutdown = self.scope.shutdown().clone();
        loop {
            self.tend_launchers();
            self.tend_containers();
            self.tend_trials();
            // Every arm only waits, and receiving is cancel safe.
            let input = tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                Some((run, event)) = self.link_events.recv() => match self.hear(run, event) {
                    Some(input) => input,
                    None => {
                        self.publish();
                        continue;
                    }
                },
                Some(prepared) = self.prepared.1.recv() => match prepared.outcome {
                    Ok(reserved) => {
                        let held = self.held_mut(&prepared.run);
                        held.reserved = reserved;
                        held.accepted = prepared.accepted.or(held.accepted.take());
                        self.attend(prepared.run);
                        continue;
                    }
                    Err(refusal) => {
                        warn!(run = %prepared.run, "cannot be started: {}", refusal.reason);
                        Input::Refused { run: prepared.run, refusal }
                    }
                },
                Some(made) = self.made.1.recv() => {
                    if let Some(kept) = self.launchers.made(made, self.config.launcher_memory_max) {
                        self.scope.spawn("launcher", kept.end());
                    }
                    self.publish();
                    continue;
                }
                saved = self.disk.saved() => {
                    saved?;
                    Input::Saved
                }
                () = self.trying.ended() => continue,
                found = self.owners.found() => match self.go_on_as(found) {
                    Some(input) => input,
                    None => {
                        self.publish();
                        continue;
                    }
                },
                made = self.containers.made() => {
                    for input in self.go_on_in(made) {
                        self.take(input);
                    }
                    self.publish();
                    continue;
                }
                () = until(self.look_again) => continue,
                Some(order) = self.orders.recv() => match order {
                    Order::Welcome { term, epoch } => Input::Welcome { term, epoch },
                    Order::Desired(desired) => {
                        self.note_wanted(&desired);
                        Input::Desired(desired)
                    }
                    Order::Heard(at) => {
                        self.renew(at);
                        continue;
                    }
                    Order::Ask(answer) => {
                        // Nobody waits for it any more at the shutdown.
                        let _ = answer.send(());
                        continue;
                    }
                    Order::Pulse(sequence) => {
                        self.pulse.send_replace(sequence);
                        continue;
                    }
                },
            };
            self.take(input);
        }
    }

    /// Finds every run of an earlier agent: it talks to living runners and reads what the others
    /// left.
    async fn take_stock(&mut self) -> Vec<Found> {
        match self.runs.old_launchers() {
            Ok(left) => {
                for (number, dir) in left {
                    self.launchers.next = self.launchers.next.max(number);
                    self.scope
                        .spawn("launcher", launchers::clear(self.host.clone(), dir));
                }
            }
            Err(e) => warn!("the launchers of an earlier agent cannot be looked at: {e}"),
        }
        let open = self.runs.open().unwrap_or_else(|e| {
            error!("the runs on disk cannot be listed: {e}");
            Vec::new()
        });
        let mut states = BTreeMap::new();
        for run in open {
            // Without this file no runner was ever ready, so nothing was ever started.
            if self.runs.had_runner(&run) {
                self.held_mut(&run).accepted = self.runs.accepted(&run);
                self.attend(run.clone());
                states.insert(run, FoundState::Silent);
            }
        }
        let mut silent = states.len();
        let listen = async {
            while silent > 0 {
                let Some((run, event)) = self.link_events.recv().await else {
                    return;
                };
                let (run, state) = match self.hear(run, event) {
                    Some(Input::Runner { run, status }) => (run, FoundState::Known(status)),
                    Some(Input::RunnerLost { run, exits, at }) => {
                        (run, FoundState::Lost { exits, at })
                    }
                    _ => continue,
                };
                if let Some(FoundState::Silent) = states.insert(run, state) {
                    silent -= 1;
                }
            }
        };
        if tokio::time::timeout(STOCK_TIMEOUT, listen).await.is_err() {
            warn!("{silent} runners of an earlier agent have not answered yet");
        }
        if !states.is_empty() {
            info!(runs = states.len(), "found the runs of an earlier agent");
        }
        let found = |(run, state): (RunId, FoundState)| {
            let own_term = self.node.ledger().term;
            let (term, gpus) = self
                .accepted(&run)
                .map_or((own_term, Vec::new()), |accepted| {
                    (accepted.term, accepted.gpus.clone())
                });
            Found {
                run,
                term,
                gpus,
                state,
            }
        };
        states.into_iter().map(found).collect()
    }

    fn attend(&mut self, run: RunId) {
        let (orders, heard) = watch::channel(RunnerOrders {
            heard: self.lease_of(&run),
            ..RunnerOrders::default()
        });
        let link = Link {
            run: run.clone(),
            runs: self.runs.clone(),
            host: self.host.clone(),
            events: self.tell.clone(),
        };
        self.scope.spawn("runner link", link.attend(heard));
        self.held_mut(&run).orders = Some(orders);
    }

    /// What is held about a run. One that the brain does not report is forgotten with the next publication.
    fn held_mut(&mut self, run: &RunId) -> &mut HeldRun {
        self.held.entry(run.clone()).or_default()
    }

    /// Handles one input and everything that follows from it at once.
    fn take(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let turn = self.node.turn(Timestamp(Clock::Boot.now_us()), input);
            for effect in turn.effects {
                inputs.extend(self.execute(effect));
            }
        }
        self.publish();
    }

    /// Executes an effect. Returns what the brain must know at once about the outcome.
    fn execute(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::SaveLedger(ledger) => self.disk.save(ledger),
            Effect::Hold { assignment, term } => match assignment.image {
                Some(_) => self.await_container(Waits::Run(assignment, term)),
                None => self.hold_as_owner(*assignment, term),
            },
            Effect::Start { assignment, start } => return self.start(&assignment, &start),
            Effect::Restart { run, rank, attempt } => {
                self.order(&run, |orders| {
                    if orders.attempts.insert(rank, attempt) != Some(attempt) {
                        info!(run = %run, rank, attempt, "starting a rank again");
                    }
                });
            }
            Effect::Stop { run, grace, reason } => {
                info!(run = %run, ?grace, "stopping: {reason}");
                if let Some(held) = self.held.get_mut(&run) {
                    held.reserved.clear();
                }
                self.order(&run, |orders| orders.stop = Some((grace, reason)));
            }
            Effect::Release { run } => {
                if let Some(held) = self.held.get_mut(&run) {
                    held.release();
                }
                self.disk.run(Errand::Release(run));
            }
            Effect::Purge { run } => self.disk.run(Errand::Purge(run)),
            Effect::Retire { last_words } => {
                info!("the workers' container may end: {last_words}");
                let host = self.host.clone();
                self.scope.spawn("retire", async move {
                    if let Err(why) = host.retire(last_words).await {
                        error!("the workers' container cannot be ended: {why}");
                    }
                });
            }
            Effect::EndSession(alarm) => {
                error!("ending the session: {}", alarm.why);
                self.end_session.send_modify(|(count, why)| {
                    (*count, *why) = (*count + 1, alarm.why.to_string())
                });
            }
            Effect::Alarm(alarm) => {
                let run = alarm
                    .run
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                error!(run, "not obeyed: {}", alarm.why);
            }
        }
        None
    }

    fn hold(&mut self, assignment: Assignment, term: Term) {
        let launcher = self.launcher_for(&assignment);
        let here = Here {
            site: self.site(&assignment.run),
            step_formats: self.config.step_formats.clone(),
            ports: self.config.port_range,
            // The standard output of the first process that the workers see.
            echo: self.config.pod.as_ref().map(|_| "/proc/1/fd/1".into()),
        };
        let host = self.host_of(&assignment.run);
        let (runs, preflight) = (self.runs.clone(), self.preflight_of(&assignment.run));
        let done = self.prepared.0.clone();
        self.scope.spawn_on_thread("prepare", async move {
            let outcome = prepare::prepare(
                &assignment,
                term,
                &runs,
                host.as_ref(),
                &here,
                &preflight,
                launcher,
            )
            .await;
            let accepted = runs.accepted(&assignment.run);
            // Nobody listens any more while the agent shuts down. The next agent finds the runner.
            let _ = done
                .send(Prepared {
                    run: assignment.run,
                    outcome,
                    accepted,
                })
                .await;
        });
    }

    fn start(&mut self, assignment: &Assignment, start: &Start) -> Option<Input> {
        let run = &assignment.run;
        if assignment.image.is_some() && self.container(run).is_none() {
            let refusal = DueTo::Node.because("the container of the job has ended");
            return Some(Input::Refused {
                run: run.clone(),
                refusal,
            });
        }
        let site = self.site(run);
        let accepted = self.accepted(run);
        let noted = accepted.map(Accepted::noted).unwrap_or_default();
        let started = launch::start(assignment, start, &noted, &site, self.config.inspects);
        let started = match started {
            Ok(started) => started,
            Err(reason) => {
                return Some(Input::Refused {
                    run: run.clone(),
                    refusal: reason.into(),
                });
            }
        };
        info!(run = %run, rank = assignment.node_rank, nodes = assignment.node_count, "starting");
        // From now on the port is the process's own to take.
        if let Some(held) = self.held.get_mut(run) {
            held.reserved.clear();
        }
        let spec = Arc::new(start_spec::of(started));
        self.order(run, |orders| orders.start = Some(spec));
        None
    }

    fn order(&self, run: &RunId, change: impl FnOnce(&mut RunnerOrders)) {
        if let Some(held) = self.held.get(run) {
            held.order(change);
        }
    }
}

async fn until(at: Option<Timestamp>) {
    match at {
        Some(at) => {
            tokio::time::sleep(Duration::from_micros(
                at.0.saturating_sub(Clock::Boot.now_us()),
            ))
            .await
        }
        None => std::future::pending().await,
    }
}
