//! The engine: one thread that owns the fleet and the store. It repeats one cycle: take the inputs
//! that wait, up to and including the first request; make one turn, make one commit, execute the effects.
//!
//! The engine is an ordinary thread, because a commit blocks for the store (redb: some 4 ms) and
//! nothing else may wait with it. It shares no state: inputs come over one bounded queue, answers go
//! back to the one who asked, and what others may see goes out over channels. If a commit
//! fails, the thread ends and the process with it, so nobody has heard of a decision that is not
//! stored. What nodes report of themselves is written apart from the commits, at times, so after a
//! restart it may be older than the decisions.

use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use muster_core::{
    fleet::{Answer, Effect, Fleet, Input, Policy, RequestId, commit::Versions, notify::Outbox},
    id::{JobName, JobUid, NodeName, SessionId, Term},
    time::Timestamp,
};
use muster_handle::{
    board::{Events, History, Jobs, Nodes},
    handle::{Boards, Handle},
    inbox::{LookOrder, Message, SessionOrders},
};
use muster_proto::convert::session::Welcome;
use muster_runtime::clock::Clock;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    failpoint::failpoint,
    store::{Loaded, Store, StoreError},
    turn_stats::{self, TurnStats},
};

mod commit;
mod interner;
mod publish;
mod reports;
#[cfg(test)]
mod tests;

use interner::Interner;
use publish::{publish_events, publish_history, publish_outbox};
use reports::Reports;

/// Inputs that wait, and the most that one turn takes. All members of a job of 1,000 nodes answer
/// at the same time and then cost one decision and one commit, some 20 ms together. While the queue
/// is full, sessions wait.
const INBOX: usize = 1_024;

/// After a turn that took long to decide, the next turn waits for more inputs: as long as the
/// decision took, but at most this. The members of a large job answer within some 100 ms. A look at
/// all of them after every few answers would take the processor from the sessions that bring the
/// rest.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// After a turn that took less time than this, the engine does not wait. A turn for a job of some ten
/// nodes takes less.
const PAUSE_MIN: Duration = Duration::from_millis(2);

/// Looks at ranks that wait to be taken. One that finds no room is not taken, and the fleet asks again.
const LOOKS: usize = 64;

/// A turn that takes longer than this, without its commit, is logged.
const SLOW_TURN: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("start the engine's thread")]
    Thread(#[source] io::Error),
}

/// An engine that has been started.
#[derive(Debug)]
pub struct Started {
    pub handle: Handle,
    pub term: Term,
    /// Figures of each turn that was not idle. A caller that does not need them drops the receiver.
    pub turns: broadcast::Receiver<TurnStats>,
    /// The ranks that are to be looked at.
    pub looks: mpsc::Receiver<LookOrder>,
    /// Ends with the engine: after a shutdown, or with the error of a commit that failed.
    pub thread: JoinHandle<Result<(), StoreError>>,
    /// Resolves when the thread is about to end, for whatever reason.
    pub ended: oneshot::Receiver<()>,
}

/// Loads all records, stores a new term (at least `min_term`) and starts the engine's thread.
pub fn start(
    mut store: Box<dyn Store>,
    policy: Policy,
    min_term: Term,
    shutdown: CancellationToken,
) -> Result<Started, StartError> {
    failpoint!("before the record is loaded");
    let Loaded {
        fleet: mut stored,
        events,
        versions,
    } = store.load()?;
    let mut interner = Interner::default();
    stored
        .reports
        .iter_mut()
        .for_each(|(_, report)| interner.share(report));
    let clock = Clock::unix(events.last().map_or(0, |event| event.at.0));
    failpoint!("before the term is stored");
    let term = store.next_term(min_term)?;
    failpoint!("after the term is stored");
    info!(%term, jobs = stored.jobs.len(), nodes = stored.nodes.len(), "record loaded");

    let history = History::loaded(&stored.history);
    let (inbox, messages) = mpsc::channel(INBOX);
    let (look_orders, looks) = mpsc::channel(LOOKS);
    let mut engine = Engine {
        tick: policy.tick,
        fleet: Fleet::new(policy, term, stored, Timestamp(clock.now_us())),
        versions: Versions::loaded(term, versions),
        store,
        clock,
        sessions: BTreeMap::new(),
        last_session: SessionId(0),
        unanswered: BTreeMap::new(),
        last_request: 0,
        name_by_uid: BTreeMap::new(),
        interner,
        reports: Reports::default(),
        jobs: watch::Sender::default(),
        nodes: watch::Sender::default(),
        events: watch::Sender::default(),
        history: watch::Sender::new(history),
        outbox: watch::Sender::default(),
        turns: broadcast::Sender::new(turn_stats::WAITING_MAX),
        rounds: watch::Sender::default(),
        looks: look_orders,
        wake_at: Timestamp(clock.now_us()),
        pause_until: Timestamp(0),
    };
    engine.outbox.send_replace(engine.fleet.outbox().clone());
    engine.publish_all(events);
    let handle = Handle::new(
        inbox,
        clock,
        Boards {
            jobs: engine.jobs.subscribe(),
            nodes: engine.nodes.subscribe(),
            events: engine.events.subscribe(),
            history: engine.history.subscribe(),
            outbox: engine.outbox.subscribe(),
        },
        engine.rounds.subscribe(),
        engine.store.lead(),
    );
    let turns = engine.turns.subscribe();
    let (ending, ended) = oneshot::channel();
    let thread = thread::Builder::new()
        .name("engine".into())
        .spawn(move || {
            // Dropped last, also after a panic.
            let _ending = ending;
            engine.run(messages, shutdown)
        })
        .map_err(StartError::Thread)?;
    Ok(Started {
        handle,
        term,
        turns,
        looks,
        thread,
        ended,
    })
}

struct Session {
    node: NodeName,
    orders: watch::Sender<SessionOrders>,
}

struct Engine {
    fleet: Fleet,
    store: Box<dyn Store>,
    /// The versions of the records on which the fleet decides.
    versions: Versions,
    clock: Clock,
    tick: Duration,
    sessions: BTreeMap<SessionId, Session>,
    last_session: SessionId,
    unanswered: BTreeMap<RequestId, oneshot::Sender<Answer>>,
    last_request: u64,
    /// Names of published jobs. The board orders jobs by name, while the fleet names them by uid.
    name_by_uid: BTreeMap<JobUid, JobName>,
    interner: Interner,
    reports: Reports,
    jobs: watch::Sender<Jobs>,
    nodes: watch::Sender<Nodes>,
    events: watch::Sender<Events>,
    history: watch::Sender<History>,
    outbox: watch::Sender<Arc<Outbox>>,
    turns: broadcast::Sender<TurnStats>,
    /// Changes each time the engine waits for work again.
    rounds: watch::Sender<u64>,
    looks: mpsc::Sender<LookOrder>,
    /// When the fleet wants its next tick.
    wake_at: Timestamp,
    /// The end of the pause after a long turn, in which inputs are gathered.
    pause_until: Timestamp,
}

impl Engine {
    fn run(
        mut self,
        mut messages: mpsc::Receiver<Message>,
        shutdown: CancellationToken,
    ) -> Result<(), StoreError> {
        // This runtime only waits for a message or a moment; it drives nothing else.
        let timer = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without I/O opens nothing");
        loop {
            self.rounds.send_modify(|round| *round += 1);
            let due = Duration::from_micros(self.wake_at.0.saturating_sub(self.clock.now_us()));
            let message = timer.block_on(async {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => None,
                    message = tokio::time::timeout(due, messages.recv()) => match message {
                        Ok(message) => message.map(Some),
                        Err(_elapsed) => Some(None),
                    },
                }
            });
            let Some(message) = message else {
                info!("no more decisions");
                return Ok(());
            };
            let mut inputs = Vec::new();
            // A queue that is never empty must not keep the fleet from its tick.
            if self.clock.now_us() >= self.wake_at.0 {
                inputs.push(Input::Tick);
            }
            if let Some(message) = message {
                let more =
                    Duration::from_micros(self.pause_until.0.saturating_sub(self.clock.now_us()));
                if !more.is_zero() && messages.len() < INBOX / 2 {
                    timer.block_on(async { tokio::time::sleep(more).await });
                }
                inputs.push(self.accept(message));
                self.take_waiting(&mut inputs, &mut messages);
            }
            let tick = matches!(inputs.first(), Some(Input::Tick));
            if !inputs.is_empty() {
                self.turn(inputs)?;
            }
            if tick {
                self.keep_reports()?;
            }
        }
    }

    /// Takes the inputs that wait behind the first one, up to and including the first request. So
    /// the answer to a request shows the state that this request left, not a later one.
    fn take_waiting(&mut self, inputs: &mut Vec<Input>, messages: &mut mpsc::Receiver<Message>) {
        while inputs.len() < INBOX && !matches!(inputs.last(), Some(Input::Request { .. })) {
            let Ok(message) = messages.try_recv() else {
                return;
            };
            inputs.push(self.accept(message));
        }
    }

    fn accept(&mut self, message: Message) -> Input {
        match message {
            Message::Connect { mut hello, opened } => {
                self.interner.share(&mut hello.report);
                self.last_session = self.last_session.next();
                let session = self.last_session;
                let (orders, receiver) = watch::channel(SessionOrders::default());
                self.sessions.insert(
                    session,
                    Session {
                        node: hello.node.clone(),
                        orders,
                    },
                );
                // If the task is gone already, its Disconnected follows as after any later end.
                let _ = opened.send((session, receiver));
                Input::Connected {
                    session,
                    hello: *hello,
                }
            }
            Message::Session(mut input) => {
                match &mut *input {
                    Input::Report { report, .. } => self.interner.share(report),
                    Input::Disconnected { session } => drop(self.sessions.remove(session)),
                    Input::Heartbeat { session } => self.heard(*session),
                    _ => {}
                }
                *input
            }
            Message::Request {
                actor,
                request,
                answered,
            } => {
                self.last_request += 1;
                let id = RequestId(self.last_request);
                self.unanswered.insert(id, answered);
                Input::Request {
                    id,
                    actor,
                    request: *request,
                }
            }
        }
    }

    fn turn(&mut self, inputs: Vec<Input>) -> Result<(), StoreError> {
        let (now, count) = (Timestamp(self.clock.now_us()), inputs.len());
        let has_subscribers = self.turns.receiver_count() > 0;
        let turn = self.fleet.turn_all(now, inputs);
        let thought = Timestamp(self.clock.now_us());
        let thinking = thought.since(now);
        if thinking > SLOW_TURN {
            warn!(took = ?thinking, inputs = count, "a slow turn");
        }
        let stats = has_subscribers
            .then(|| TurnStats::of(&turn, count))
            .filter(|stats| !stats.is_idle());
        let (writes, effects, wake_at) = self.commit(turn)?;
        let stored = Timestamp(self.clock.now_us());
        publish_history(&self.history, &writes);
        publish_outbox(&self.outbox, &writes);
        publish_events(&self.events, writes);
        self.act(effects);
        let done = Timestamp(self.clock.now_us());
        if let Some(stats) = stats {
            // If the last listener has just gone, nobody needs it.
            let _ = self.turns.send(TurnStats {
                done_us: done,
                think: thinking,
                commit: stored.since(thought),
                act: done.since(stored),
                ..stats
            });
        }
        self.pause_until = if thinking < PAUSE_MIN {
            Timestamp(0)
        } else {
            done + thinking.min(PAUSE_MAX)
        };
        self.schedule_tick(now, wake_at);
        Ok(())
    }

    /// Executes the effects. Views are published first, so a client that gets an answer or a welcome
    /// finds its subject in a list.
    fn act(&mut self, effects: Vec<Effect>) {
        let is_view =
            |effect: &Effect| matches!(effect, Effect::JobChanged(_) | Effect::NodeChanged(_));
        let (views, rest): (Vec<_>, Vec<_>) = effects.into_iter().partition(is_view);
        for effect in views.into_iter().chain(rest) {
            failpoint!("between what is published");
            self.execute(effect);
        }
    }

    /// The next tick comes at the earliest time that this turn or an earlier one asked for, and at the
    /// latest `tick` from now.
    fn schedule_tick(&mut self, now: Timestamp, asked: Option<Timestamp>) {
        let asked = asked.filter(|at| *at > now);
        let earlier = Some(self.wake_at).filter(|at| *at > now);
        self.wake_at = [asked, earlier, Some(now + self.tick)]
            .into_iter()
            .flatten()
            .min()
            .expect("one of them is set");
    }

    /// Ends the engine if this process is no longer sure that it may decide.
    fn ensure_leader(&self) -> Result<(), StoreError> {
        if self.store.still_holds() {
            Ok(())
        } else {
            Err(StoreError::Deposed)
        }
    }

    fn keep_reports(&mut self) -> Result<(), StoreError> {
        let reports = self.reports.take();
        if reports.is_empty() {
            Ok(())
        } else {
            self.ensure_leader()?;
            self.store.keep_reports(&reports)
        }
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
            Effect::Welcome {
                session,
                term,
                epoch,
                heartbeat,
                protocol,
            } => {
                self.order(session, |orders| {
                    orders.welcome = Some(Welcome {
                        term,
                        epoch,
                        heartbeat,
                        protocol,
                    })
                });
            }
            Effect::Refuse { session, why } => {
                self.order(session, |orders| orders.refused = Some(why));
                self.sessions.remove(&session);
            }
            Effect::SendDesired { session, desired } => {
                self.order(session, |orders| orders.desired = Some(Arc::new(desired)))
            }
            Effect::Answer { id, answer } => {
                if let Some(answered) = self.unanswered.remove(&id) {
                    failpoint!("before the answer");
                    // A caller that went away does not need the answer. The decision stands.
                    let _ = answered.send(answer);
                    failpoint!("after the answer");
                }
            }
            Effect::LookAtRanks {
                job,
                generation,
                number,
                ranks,
            } => {
                let order = LookOrder {
                    job,
                    generation,
                    number,
                    ranks,
                };
                if self.looks.try_send(order).is_err() {
                    debug!("no room for another look at ranks");
                }
            }
            Effect::JobChanged(uid) => self.show_job(uid),
            Effect::NodeChanged(node) => self.show_node(node),
        }
    }

    fn order(&self, session: SessionId, change: impl FnOnce(&mut SessionOrders)) {
        match self.sessions.get(&session) {
            Some(session) => session.orders.send_modify(change),
            None => debug!(%session, "an order for a session that is over"),
        }
    }
}
