//! `muster.v1.AgentService`: one stream for each connected agent.
//!
//! The agent sends Hello, and the fleet accepts or refuses it. Then the session carries facts up
//! and the latest desired state down, until one end leaves. The end of a session tells nothing
//! about the node's workers.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use muster_core::{
    fleet::Input,
    hello::Hello,
    id::{NodeName, SessionId},
    protocol::Speaks,
    run::Desired,
};
use muster_handle::inbox::SessionOrders;
use muster_proto::{
    convert::{session as wire, usage::usage_from_wire},
    v1::{self, agent_message::Message as FromAgent, coordinator_message::Message as ToAgent},
};
use muster_rpc::{Caller, Identity};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::{debug, info, warn};

use super::{
    authorize::rights,
    connections::{COMMANDS, LogCommand},
    context::Context,
    feed::{Feed, Out, feed, shutting_down},
    status,
};
use crate::trust::{self, Rights};

/// An agent has its hello ready when it connects; the rest is two trips over the network.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);

/// An agent that takes no message for this long does not read its stream. A new session is better
/// than a stuck one.
const SEND_DEADLINE: Duration = Duration::from_secs(10);

/// How far apart the renewals of two nodes are on average after a change of the authority. One costs
/// the coordinator two handshakes and two small files, so ten thousand nodes take 200 s of its time
/// at most a quarter.
const RENEWALS_APART: Duration = Duration::from_millis(20);

/// Log reads through one session at a time: more than an agent takes, which shares its places out among
/// jobs. An answer to what it refuses is on the way for a round trip.
const READS_MAX: usize = 2_048;

/// Signals of one session that wait for their answer. A script may send one to each rank of a node.
const SIGNALS_MAX: usize = 256;

/// Questions of one session where ranks are that wait for their answer. Each answer has 2 MiB at most, and
/// the agent answers four at a time.
const LOCATES_MAX: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct Agents(pub Context);

#[tonic::async_trait]
impl v1::agent_service_server::AgentService for Agents {
    type SessionStream = Feed<v1::CoordinatorMessage>;

    async fn session(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let rights = rights(&request)?;
        let caller = request.extensions().get::<Caller>().cloned();
        let inbound = request.into_inner();
        let context = self.0.clone();
        Ok(Response::new(feed(
            &self.0.scope,
            "session",
            |out| async move {
                if let Err(ended) = serve(&context, &rights, inbound, &out).await {
                    info!(reason = ended.message(), "session ended");
                    // The stream was admitted before it said which node it is of.
                    if let Some(caller) = caller.filter(|_| ended.code() == Code::PermissionDenied)
                    {
                        let object = rights.note.object();
                        context.trail.refused(&caller, "session", object, &ended);
                    }
                    // The status is for the agent's log. An agent that does not read it any more
                    // misses nothing.
                    let _ = timeout(SEND_DEADLINE, out.send(Err(ended))).await;
                }
            },
        )))
    }
}

async fn serve(
    context: &Context,
    rights: &Rights,
    mut inbound: Streaming<v1::AgentMessage>,
    out: &Out<v1::CoordinatorMessage>,
) -> Result<(), Status> {
    let (node, id, orders) = Box::pin(open(context, rights, &mut inbound)).await?;
    let (commands, log_commands) = mpsc::channel(COMMANDS);
    let session = Session {
        context,
        identity: rights.identity.clone(),
        id,
        node: node.clone(),
        inbound,
        orders,
        log_commands,
        out,
        reads: BTreeMap::new(),
        signals: BTreeMap::new(),
        locates: BTreeMap::new(),
        published: None,
        trust_told: 0,
    };
    let announced = context.connections.announce(node, id, commands);
    // A denial ends the session at once, whatever it waits for.
    let denied = Box::pin(context.end_of(rights.clone()));
    let ended = tokio::select! {
        ended = session.run() => ended,
        why = denied => Err(why),
    };
    drop(announced);
    // If the engine is gone, nobody needs to hear of the end.
    let _ = Box::pin(context.handle.tell(Input::Disconnected { session: id })).await;
    ended
}

/// Has a box of its own, as everything that happens once per session: a hello would take a kilobyte
/// in every future that it passes through.
async fn open(
    context: &Context,
    rights: &Rights,
    inbound: &mut Streaming<v1::AgentMessage>,
) -> Result<(NodeName, SessionId, watch::Receiver<SessionOrders>), Status> {
    let hello = read_hello(context, inbound).await?;
    let node = hello.node.clone();
    rights.note.set_object(format!("node/{node}"));
    rights.may_speak_for(&node)?;
    let (id, orders) = context
        .handle
        .connect(hello)
        .await
        .map_err(status::no_answer)?;
    Ok((node, id, orders))
}

async fn read_hello(
    context: &Context,
    inbound: &mut Streaming<v1::AgentMessage>,
) -> Result<Hello, Status> {
    let first = timeout(HELLO_DEADLINE, inbound.message()).await;
    let first = first.map_err(|_| {
        Status::deadline_exceeded(format!("no hello within {} s", HELLO_DEADLINE.as_secs()))
    })??;
    match first.and_then(|message| message.message) {
        Some(FromAgent::Hello(hello)) => {
            // Read the version first: the meaning of the rest depends on it.
            let speaks = wire::speaks_from_wire(&hello).map_err(status::malformed)?;
            if let Err(why) = Speaks::OURS.agree(speaks) {
                // A status code of its own tells the agent to come again later, because only an
                // upgrade helps.
                warn!(node = hello.node, "session refused: {why}");
                return Err(Status::unimplemented(why.to_string()));
            }
            wire::hello_from_wire(hello, context.handle.now()).map_err(status::malformed)
        }
        Some(_) => Err(status::invalid(
            "message",
            "the first one of a session must be hello",
        )),
        None => Err(status::invalid(
            "message",
            "is missing: the first one of a session must be hello",
        )),
    }
}

/// One accepted stream.
struct Session<'a> {
    context: &'a Context,
    identity: Identity,
    id: SessionId,
    node: NodeName,
    inbound: Streaming<v1::AgentMessage>,
    orders: watch::Receiver<SessionOrders>,
    log_commands: mpsc::Receiver<LogCommand>,
    out: &'a Out<v1::CoordinatorMessage>,
    /// The readers, by the id of their read.
    reads: BTreeMap<u64, mpsc::Sender<v1::LogChunk>>,
    /// Who waits for the answer about a signal, by its id.
    signals: BTreeMap<u64, oneshot::Sender<v1::RanksSignalled>>,
    /// Who waits for the answer where ranks are, by its id.
    locates: BTreeMap<u64, oneshot::Sender<v1::RanksLocated>>,
    /// The desired state sent last.
    published: Option<Arc<Desired>>,
    /// Which change of the authorities the agent was told last.
    trust_told: u64,
}

impl Session<'_> {
    /// Ten thousand sessions wait here all the time. So the state that one message needs lives in a
    /// box of its own, and only as long as the message.
    async fn run(mut self) -> Result<(), Status> {
        Box::pin(self.welcome()).await?;
        Box::pin(self.publish()).await?;
        loop {
            tokio::select! {
                changed = self.orders.changed() => {
                    changed.map_err(|_| shutting_down())?;
                    Box::pin(self.publish()).await?;
                }
                message = self.inbound.message() => match message? {
                    Some(message) => Box::pin(self.hear(message)).await?,
                    None => {
                        debug!(session = %self.id, "the agent ended its session");
                        return Ok(());
                    }
                },
                Some(command) = self.log_commands.recv() => Box::pin(self.log(command)).await?,
            }
        }
    }

    /// Waits until the fleet has answered the hello, and passes the answer on.
    async fn welcome(&mut self) -> Result<(), Status> {
        let orders = self
            .orders
            .wait_for(|orders| orders.welcome.is_some() || orders.refused.is_some())
            .await;
        let orders = orders.map_err(|_| shutting_down())?.clone();
        match (orders.refused, orders.welcome) {
            (Some(why), _) => Err(Status::failed_precondition(why)),
            (None, Some(welcome)) => {
                self.send(ToAgent::Welcome(wire::welcome_to_wire(&welcome)))
                    .await
            }
            (None, None) => unreachable!("wait_for() returns when one of them is there"),
        }
    }

    async fn publish(&mut self) -> Result<(), Status> {
        self.refuse_denied()?;
        let orders = self.orders.borrow_and_update().clone();
        if let Some(why) = orders.refused {
            return Err(Status::failed_precondition(why));
        }
        if orders.desired.is_some() && orders.desired != self.published {
            self.published = orders.desired;
            let desired = self
                .published
                .as_deref()
                .map(wire::desired_to_wire)
                .expect("tested above");
            self.send(ToAgent::Desired(desired)).await?;
        }
        Ok(())
    }

    async fn hear(&mut self, message: v1::AgentMessage) -> Result<(), Status> {
        // With every message: a denied node must not live on by messages of another kind.
        self.refuse_denied()?;
        let session = self.id;
        let input = match message.message {
            Some(FromAgent::Heartbeat(v1::Heartbeat { sequence })) => {
                self.tell(Input::Heartbeat { session }).await?;
                // Workers of jobs with `fenceAfter` live on this answer, and another coordinator may
                // count the node as silent by now (decision 84). The engine cannot be asked: it may
                // be waiting for its store.
                if !self.context.handle.still_leads() {
                    return Err(Status::unavailable(
                        "this coordinator is not sure any more that it decides; another one answers, or soon will",
                    ));
                }
                let unix_us = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(0, |since| since.as_micros() as u64);
                self.send(ToAgent::Heartbeat(v1::HeartbeatReply { sequence, unix_us }))
                    .await?;
                return self.tell_authorities().await;
            }
            Some(FromAgent::Log(chunk)) => return self.chunk(chunk).await,
            Some(FromAgent::Signalled(answer)) => {
                if let Some(waits) = self.signals.remove(&answer.id) {
                    // Whoever has given up needs no answer.
                    let _ = waits.send(answer);
                }
                return Ok(());
            }
            Some(FromAgent::Located(answer)) => {
                if let Some(waits) = self.locates.remove(&answer.id) {
                    // Whoever has given up needs no answer.
                    let _ = waits.send(answer);
                }
                return Ok(());
            }
            Some(FromAgent::Report(report)) => Input::Report {
                session,
                report: wire::node_report_from_wire(report).map_err(status::malformed)?,
            },
            Some(FromAgent::Runs(runs)) => Input::Runs {
                session,
                runs: wire::runs_from_wire(runs, self.context.handle.now())
                    .map_err(status::malformed)?,
            },
            Some(FromAgent::Launchers(launchers)) => Input::Launchers {
                session,
                launchers: wire::launchers_from_wire(launchers).map_err(status::malformed)?,
            },
            Some(FromAgent::Usage(usage)) => {
                self.note_usage(usage)?;
                return Ok(());
            }
            Some(FromAgent::Hello(_)) => {
                return Err(status::invalid("message", "hello comes once, at the start"));
            }
            // A newer agent may send messages that this build does not know.
            None => return Ok(()),
        };
        self.tell(input).await
    }

    /// Tells the agent the authorities, if it does not know them as they are now.
    async fn tell_authorities(&mut self) -> Result<(), Status> {
        let Some(trust) = &self.context.trust else {
            return Ok(());
        };
        let changes = trust.changes().unwrap_or(self.trust_told);
        if changes == self.trust_told {
            return Ok(());
        }
        self.trust_told = changes;
        let pins = trust.pins();
        let spread = RENEWALS_APART * self.context.connections.count();
        self.send(ToAgent::Authorities(v1::Authorities {
            pins: pins.iter().map(|pin| pin.as_bytes().to_vec()).collect(),
            spread_us: spread.as_micros() as u64,
        }))
        .await
    }

    /// Ends the session of a host that was denied since it began.
    fn refuse_denied(&self) -> Result<(), Status> {
        match (self.identity.principal(), &self.context.trust) {
            (Some(principal), Some(trust)) => trust::refuse_denied(principal, trust.grants()),
            _ => Ok(()),
        }
    }

    /// The usage bypasses the engine, because it decides nothing by it.
    fn note_usage(&self, usage: v1::Usage) -> Result<(), Status> {
        let usage = usage_from_wire(usage).map_err(status::malformed)?;
        let handle = &self.context.handle;
        self.context
            .usages
            .put(self.node.clone(), handle.now(), usage, |node| {
                handle.node(node).is_some()
            });
        Ok(())
    }

    async fn tell(&self, input: Input) -> Result<(), Status> {
        self.context
            .handle
            .tell(input)
            .await
            .map_err(status::no_answer)
    }

    async fn log(&mut self, command: LogCommand) -> Result<(), Status> {
        match command {
            LogCommand::Read(read) => {
                let (read, chunks) = *read;
                // The end of the channel tells the reader that there is no read.
                if self.reads.len() < READS_MAX {
                    self.reads.insert(read.id, chunks);
                    self.send(ToAgent::LogRead(read)).await?;
                }
                Ok(())
            }
            LogCommand::Credit(credit) if self.reads.contains_key(&credit.id) => {
                self.send(ToAgent::LogCredit(credit)).await
            }
            LogCommand::Cancel { id } if self.reads.remove(&id).is_some() => {
                self.send(ToAgent::LogCancel(v1::LogCancel { id })).await
            }
            LogCommand::Signal(signal) => {
                let (signal, answer) = *signal;
                self.signals.retain(|_, waits| !waits.is_closed());
                // The end of the channel tells the caller that nobody answers.
                if self.signals.len() < SIGNALS_MAX {
                    self.signals.insert(signal.id, answer);
                    self.send(ToAgent::SignalRanks(signal)).await?;
                }
                Ok(())
            }
            LogCommand::Locate(asked) => {
                let (asked, answer) = *asked;
                self.locates.retain(|_, waits| !waits.is_closed());
                // The end of the channel tells the caller that nobody answers.
                if self.locates.len() < LOCATES_MAX {
                    self.locates.insert(asked.id, answer);
                    self.send(ToAgent::LocateRanks(asked)).await?;
                }
                Ok(())
            }
            // The read is over already.
            LogCommand::Credit(_) | LogCommand::Cancel { .. } => Ok(()),
        }
    }

    /// Hands a chunk to its reader. Never waits: a session that waited for a reader would look
    /// silent.
    async fn chunk(&mut self, chunk: v1::LogChunk) -> Result<(), Status> {
        let (id, end) = (chunk.id, chunk.end);
        let Some(reader) = self.reads.get(&id) else {
            return Ok(());
        };
        let taken = reader.try_send(chunk);
        if let Err(mpsc::error::TrySendError::Full(_)) = &taken {
            warn!(session = %self.id, "the agent sends more of a log than it has credit for; the read is ended");
        }
        if taken.is_err() && !end {
            self.send(ToAgent::LogCancel(v1::LogCancel { id })).await?;
        }
        if taken.is_err() || end {
            self.reads.remove(&id);
        }
        Ok(())
    }

    async fn send(&self, message: ToAgent) -> Result<(), Status> {
        let message = v1::CoordinatorMessage {
            message: Some(message),
        };
        match timeout(SEND_DEADLINE, self.out.send(Ok(message))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Status::cancelled("the agent is gone")),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "the agent took no message for {} s",
                SEND_DEADLINE.as_secs()
            ))),
        }
    }
}
