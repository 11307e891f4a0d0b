//! The one connection to the coordinator: hello, reports and heartbeats up, desired state and log
//! requests down.
//!
//! A session ends with its stream, for any reason, and the next session starts from scratch.
//! Reports always hold the whole truth, so nothing is resent or lost. The end of a session changes
//! nothing for the workers.

use std::{sync::Arc, time::Duration};

use muster_core::{
    hello::Hello,
    node::{lease::Lease, skew::Skew},
    node_report::NodeReport,
    protocol::Speaks,
    run::RunReport,
    slow::Offset,
    time::Timestamp,
};
use muster_proto::{
    convert::{
        session::{
            desired_from_wire, hello_to_wire, node_report_to_wire, runs_to_wire, welcome_from_wire,
        },
        usage::usage_to_wire,
    },
    v1::{
        AgentMessage, CoordinatorMessage, Heartbeat, LogChunk, agent_message::Message as Up,
        coordinator_message::Message as Down,
    },
};
use muster_rpc::{
    dial::{self, DialError, dial},
    tls::explain,
};
use muster_runtime::{
    backoff::{Backoff, USEFUL, entropy},
    chain::chain,
    clock::Clock,
    ticker::ticker,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};
use tracing::{debug, info, warn};

use crate::{
    boot::Boot,
    config::Config,
    logs::Logs,
    probe::Facts,
    proof::{Proof, ProofError},
    renewal::{AuthorityNews, known_authorities},
    signals::RankSignals,
    stacks::{Stacks, unix_us},
    supervisor::{Handle, Order},
};

mod news;
mod outgoing;

use news::{News, wake_at};
use outgoing::Outgoing;

/// A welcome takes one decision of the coordinator's engine, after its store has synced.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest pause of an agent that needs an upgrade, its own or the coordinator's. Nobody
/// upgrades within seconds.
const UPGRADE_CAP: Duration = Duration::from_secs(60);
/// How often the log says why there is still no session. Whoever looks at it sees one such line.
const TOLD_AGAIN: Duration = Duration::from_secs(60);
/// How many messages may wait for the network. There are a few reports and heartbeats, and each
/// replaces the previous one of its kind.
const CONTROL_MAX: usize = 16;
/// How many log chunks may wait. Each has at most 64 KiB.
const LOGS_MAX: usize = 8;

/// The hello's sequence number. Heartbeats are counted from 1.
const HELLO: u64 = 0;

/// What the coordinator may ask of a node beside its desired state.
pub(crate) struct Asks {
    pub(crate) logs: Logs,
    pub(crate) signals: RankSignals,
    pub(crate) stacks: Stacks,
}

pub(crate) struct Session {
    config: Arc<Config>,
    handle: Handle,
    facts: Facts,
    logs: Logs,
    signals: RankSignals,
    stacks: Stacks,
    boot: Boot,
    shutdown: CancellationToken,
    /// Identifies this process among all agents that this node ever had.
    incarnation: u64,
    skew: Skew,
    /// How far this node's clock is from the coordinator's, by the answers of this session.
    clock: Offset,
    /// Passes on what the coordinator says of its authorities.
    authorities: AuthorityNews,
    in_session: watch::Sender<bool>,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("cannot reach the coordinator at {0}")]
    Unreachable(String, #[source] DialError),
    #[error("this node cannot show who it is")]
    NoIdentity(#[source] ProofError),
    #[error("the coordinator ended the session: {}", why(.0))]
    Ended(Status),
    #[error("the coordinator refuses: {0}")]
    Refused(&'static str),
    #[error("the coordinator closed the session")]
    Closed,
    #[error("the coordinator did not answer the hello within {} s", WELCOME_TIMEOUT.as_secs())]
    NoWelcome,
    #[error("the coordinator sent what cannot be understood")]
    Malformed(#[source] muster_proto::convert::Malformed),
    #[error("the coordinator spoke before its welcome")]
    Unwelcome,
    #[error("{0}")]
    Objection(String),
    #[error("the agent ends")]
    Shutdown,
}

/// What the coordinator says, or what broke the connection.
fn why(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => match explain(source) {
            Some(hint) => format!("{}: {hint}", chain(source)),
            None => chain(source),
        },
        None => status.message().to_owned(),
    }
}

impl End {
    /// Whether the two ends have no protocol version in common.
    fn asks_for_upgrade(&self) -> bool {
        matches!(self, End::Ended(status) if status.code() == Code::Unimplemented)
    }
}

impl Session {
    pub(crate) fn new(
        config: Arc<Config>,
        handle: Handle,
        facts: Facts,
        asks: Asks,
        boot: Boot,
        authorities: AuthorityNews,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            config,
            handle,
            facts,
            logs: asks.logs,
            signals: asks.signals,
            stacks: asks.stacks,
            boot,
            shutdown,
            incarnation: entropy(),
            skew: Skew::default(),
            clock: Offset::default(),
            authorities,
            in_session: watch::Sender::new(false),
        }
    }

    /// Whether there is a session now.
    pub(crate) fn in_session(&self) -> watch::Receiver<bool> {
        self.in_session.subscribe()
    }

    /// Holds one session after another until the shutdown.
    pub(crate) async fn run(mut self) {
        if self.handle.reports.wait_for(Option::is_some).await.is_err() {
            return;
        }
        self.facts.first_look().await;
        let (mut backoff, mut upgrade) = (Backoff::default(), Backoff::new(UPGRADE_CAP, USEFUL));
        let mut told = (String::new(), Instant::now());
        loop {
            let shutdown = self.shutdown.clone();
            let started = Instant::now();
            let end = shutdown
                .run_until_cancelled(self.run_one())
                .await
                .unwrap_or(End::Shutdown);
            if matches!(end, End::Shutdown) {
                return;
            }
            let patience = if end.asks_for_upgrade() {
                &mut upgrade
            } else {
                &mut backoff
            };
            let pause = patience.after(started.elapsed(), entropy());
            let why = chain(&end);
            // A coordinator that is away for an hour gives some lines in the log, not a thousand.
            if why == told.0 && told.1.elapsed() < TOLD_AGAIN {
                debug!(?pause, "{why}")
            } else {
                warn!(?pause, "{why}; workers go on, trying again");
                told = (why, Instant::now());
            }
            if shutdown
                .run_until_cancelled(tokio::time::sleep(pause))
                .await
                .is_none()
            {
                return;
            }
        }
    }

    async fn run_one(&mut self) -> End {
        match self.open().await {
            Ok((wire, incoming, news)) => {
                let end = self.exchange(wire, incoming, news).await;
                self.in_session.send_replace(false);
                self.logs.cancel_all();
                end
            }
            Err(end) => end,
        }
    }

    async fn open(&mut self) -> Result<(Wire, Streaming<CoordinatorMessage>, News), End> {
        let own = self.config.identity.as_ref().map(Proof::options);
        let options = dial::Options {
            accept_unknown: self.config.accept_unknown,
            server_name: self.config.server_name.clone(),
            ..own
                .transpose()
                .map_err(End::NoIdentity)?
                .unwrap_or_default()
        };
        let clients = dial(&self.config.coordinator, options).await.map_err(|e| {
            let hint = e.explain().map(|hint| format!(" ({hint})"));
            let hint = hint.unwrap_or_default();
            End::Unreachable(format!("{}{hint}", self.config.coordinator), e)
        })?;
        if let Some(address) = clients.local_address()
            && self.config.follows_address
        {
            self.facts.move_to(address);
        }
        let mut client = clients.agents();
        let (control, control_out) = mpsc::channel(CONTROL_MAX);
        let (chunks, chunks_out) = mpsc::channel(LOGS_MAX);
        let (hello, report, runs) = self.hello();
        let mut lease = Lease::default();
        lease.asked(HELLO, now());
        control
            .try_send(up(Up::Hello(hello)))
            .expect("the queue is new and has room");
        let outgoing = Outgoing::new(control_out, chunks_out);
        let incoming = timeout(WELCOME_TIMEOUT, client.session(outgoing))
            .await
            .map_err(|_| End::NoWelcome)?
            .map_err(|status| match clients.refusal() {
                Some(why) => End::Refused(why),
                None => End::Ended(status),
            })?;
        Ok((
            Wire {
                control,
                chunks,
                lease,
            },
            incoming.into_inner(),
            News::new(report, runs),
        ))
    }

    /// The node's facts, and the supervisor's warm pool.
    fn report(&mut self) -> NodeReport {
        let warm_pool = self
            .handle
            .reports
            .borrow()
            .as_ref()
            .and_then(|reports| reports.pool);
        NodeReport {
            warm_pool,
            ..self.facts.report()
        }
    }

    fn hello(&mut self) -> (muster_proto::v1::Hello, NodeReport, Arc<Vec<RunReport>>) {
        let report = self.report();
        let reports = self
            .handle
            .reports
            .borrow_and_update()
            .clone()
            .expect("run() waited for the first reports");
        self.handle.end_session.mark_unchanged();
        let hello = Hello {
            node: self.config.node.clone(),
            boot_id: self.boot.id.clone(),
            uptime: self.boot.began.map(|began| now().since(began)),
            incarnation: self.incarnation,
            speaks: Speaks::OURS,
            term_seen: reports.term,
            epoch_seen: reports.epoch,
            jobs_seen: reports.jobs_seen.as_ref().clone(),
            report: report.clone(),
            runs: reports.runs.as_ref().clone(),
        };
        (hello_to_wire(&hello, now()), report, reports.runs)
    }

    /// Sends and receives until the session ends. Only this function writes to the coordinator.
    async fn exchange(
        &mut self,
        mut wire: Wire,
        mut incoming: Streaming<CoordinatorMessage>,
        mut news: News,
    ) -> End {
        let welcome = match timeout(WELCOME_TIMEOUT, incoming.message()).await {
            Err(_) => return End::NoWelcome,
            Ok(Err(status)) => return End::Ended(status),
            Ok(Ok(None)) => return End::Closed,
            Ok(Ok(Some(CoordinatorMessage {
                message: Some(Down::Welcome(welcome)),
            }))) => welcome,
            Ok(Ok(Some(_))) => return End::Unwelcome,
        };
        let welcome = match welcome_from_wire(welcome) {
            Ok(welcome) => welcome,
            Err(e) => return End::Malformed(e),
        };
        info!(term = %welcome.term, epoch = %welcome.epoch, heartbeat = ?welcome.heartbeat, protocol = welcome.protocol, "welcome");
        self.clock = Offset::default();
        self.heard(HELLO, 0, &mut wire).await;
        if let Some(reports) = self.handle.reports.borrow().as_ref() {
            news.launchers(reports.launchers.clone());
        }
        self.tell(Order::Welcome {
            term: welcome.term,
            epoch: welcome.epoch,
        })
        .await;
        self.in_session.send_replace(true);
        let mut heartbeat = ticker(welcome.heartbeat);
        let mut usage = self.facts.usage();
        // The next look comes soon enough. Ten thousand agents must not all send theirs when the
        // coordinator is back.
        usage.mark_unchanged();
        let mut sequence = 0;
        loop {
            news.clock(self.clock.best(unix_us()));
            news.send(&wire.control, Instant::now());
            let due = news.due();
            // Every arm only waits, and all arms are cancel safe.
            tokio::select! {
                message = incoming.message() => match message {
                    Err(status) => return End::Ended(status),
                    Ok(None) => return End::Closed,
                    Ok(Some(message)) => if let Err(end) = self.obey(message, &mut wire).await {
                        return end;
                    },
                },
                _ = heartbeat.tick() => {
                    sequence += 1;
                    self.tell(Order::Pulse(sequence)).await;
                }
                Ok(()) = self.handle.pulse.changed() => {
                    let sequence = *self.handle.pulse.borrow_and_update();
                    wire.lease.asked(sequence, now());
                    // A full queue means that the network stands still. One more heartbeat would
                    // not help.
                    let _ = wire.control.try_send(up(Up::Heartbeat(Heartbeat { sequence })));
                }
                Ok(()) = self.handle.reports.changed() => {
                    if let Some(reports) = self.handle.reports.borrow_and_update().as_ref() {
                        news.runs(reports.runs.clone());
                        news.launchers(reports.launchers.clone());
                    }
                    let pool = self.handle.reports.borrow().as_ref().and_then(|reports| reports.pool);
                    if news.lacks(pool) {
                        news.report(self.report());
                    }
                }
                Ok(()) = usage.changed() => {
                    if let Some(look) = usage.borrow_and_update().as_deref().map(usage_to_wire) {
                        // If the network stands still, the next look is as good.
                        let _ = wire.control.try_send(up(Up::Usage(look)));
                    }
                }
                () = self.facts.changed() => news.report(self.report()),
                Ok(()) = self.handle.end_session.changed() => {
                    return End::Objection(self.handle.end_session.borrow_and_update().1.clone());
                }
                () = wake_at(due) => {}
            }
        }
    }

    async fn obey(&mut self, message: CoordinatorMessage, wire: &mut Wire) -> Result<(), End> {
        match message.message {
            Some(Down::Desired(desired)) => {
                self.tell(Order::Desired(
                    desired_from_wire(desired).map_err(End::Malformed)?,
                ))
                .await;
            }
            Some(Down::LogRead(read)) => self.logs.read(read, wire.chunks.clone()),
            Some(Down::LogCredit(credit)) => self.logs.credit(credit.id, credit.chunks),
            Some(Down::LogCancel(cancel)) => self.logs.cancel(cancel.id),
            Some(Down::SignalRanks(order)) => self.signals.send(order, wire.control.downgrade()),
            Some(Down::LocateRanks(asked)) => self.stacks.locate(asked, wire.control.downgrade()),
            Some(Down::Welcome(_)) => return Err(End::Unwelcome),
            Some(Down::Heartbeat(reply)) => self.heard(reply.sequence, reply.unix_us, wire).await,
            Some(Down::Authorities(authorities)) => {
                if let Some(new) = known_authorities(&authorities) {
                    self.authorities.send_if_modified(|old| {
                        let other = old.as_ref() != Some(&new);
                        *old = Some(new);
                        other
                    });
                }
            }
            // A newer coordinator may send messages that this agent does not know.
            None => {}
        }
        Ok(())
    }

    /// Notes the answer to a question of this session. `stamp` is the coordinator's time of the
    /// answer, or 0.
    async fn heard(&mut self, sequence: u64, stamp: u64, wire: &mut Wire) {
        let now = now();
        if let Some(at) = wire.lease.answered(sequence) {
            if stamp > 0 {
                let heard = unix_us();
                let sent = heard.saturating_sub(now.since(at).as_micros() as u64);
                self.clock.hear(sent, stamp, heard);
                self.skew
                    .hear(sent, stamp, heard)
                    .into_iter()
                    .for_each(|ahead_ms| self.facts.note_skew(ahead_ms));
            }
            self.tell(Order::Heard(at)).await;
        }
    }

    async fn tell(&self, order: Order) {
        // The supervisor is essential: if it has ended, this process ends too.
        let _ = self.handle.orders.send(order).await;
    }
}

/// The two queues to the coordinator, and the questions it was asked.
struct Wire {
    control: mpsc::Sender<AgentMessage>,
    chunks: mpsc::Sender<LogChunk>,
    lease: Lease,
}

fn up(message: Up) -> AgentMessage {
    AgentMessage {
        message: Some(message),
    }
}

fn now() -> Timestamp {
    Timestamp(Clock::Boot.now_us())
}
