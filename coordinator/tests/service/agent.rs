//! An agent without workers: it obeys every order at once, reports that, and reads logs from
//! memory.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use muster_core::{
    exit::Exit,
    hello::Hello,
    id::{Generation, NodeEpoch, NodeName, Term},
    node_report::{Gpu, NodeReport, gpu::Driver},
    protocol::Speaks,
    run::{
        Assignment, Endpoint, Key, LauncherReport, LauncherState, RankReport, RunId, RunPhase,
        RunReport, Target,
    },
    time::Timestamp,
};
use muster_proto::{
    convert::session::{
        desired_from_wire, hello_to_wire, launchers_to_wire, node_report_to_wire, runs_to_wire,
    },
    v1::{self, agent_message::Message as FromAgent, coordinator_message::Message as ToAgent},
};
use muster_rpc::Clients;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::server::Server;

pub(crate) fn hello(node: &str) -> v1::Hello {
    hello_with(node, NodeReport::default())
}

fn hello_with(node: &str, report: NodeReport) -> v1::Hello {
    let report = with_address(report);
    let hello = Hello {
        node: NodeName::from(node),
        boot_id: format!("boot-of-{node}"),
        uptime: None,
        incarnation: 1,
        speaks: Speaks::OURS,
        term_seen: Term(0),
        epoch_seen: NodeEpoch(0),
        jobs_seen: std::collections::BTreeMap::new(),
        report,
        runs: Vec::new(),
    };
    hello_to_wire(&hello, Timestamp(0))
}

fn with_address(report: NodeReport) -> NodeReport {
    NodeReport {
        address: "127.0.0.1".into(),
        slots: 1,
        ..report
    }
}

pub(crate) fn say(message: FromAgent) -> v1::AgentMessage {
    v1::AgentMessage {
        message: Some(message),
    }
}

/// A session that the test drives message by message.
pub(crate) struct RawSession {
    pub up: mpsc::Sender<v1::AgentMessage>,
    pub down: Streaming<v1::CoordinatorMessage>,
}

impl RawSession {
    pub(crate) async fn open(server: &Server, first: v1::AgentMessage) -> Result<Self, Status> {
        let (up, messages) = mpsc::channel(64);
        up.send(first).await.unwrap();
        let mut agents = server.agents();
        let session = agents.session(ReceiverStream::new(messages));
        let down = session.await?.into_inner();
        Ok(Self { up, down })
    }

    /// The same over any connection.
    async fn over(clients: &Clients, first: v1::AgentMessage) -> Result<Self, Status> {
        let (up, messages) = mpsc::channel(64);
        up.send(first).await.unwrap();
        let mut agents = clients.agents();
        let session = agents.session(ReceiverStream::new(messages));
        let down = session.await?.into_inner();
        Ok(Self { up, down })
    }

    pub(crate) async fn next(&mut self) -> Result<ToAgent, Status> {
        match crate::server::within(self.down.message()).await? {
            Some(message) => Ok(message
                .message
                .expect("the coordinator never sends an empty message")),
            None => Err(Status::unknown("the stream ended")),
        }
    }

    /// The next request for a log. Skips all other messages.
    pub(crate) async fn log_read(&mut self) -> v1::LogRead {
        loop {
            if let ToAgent::LogRead(read) = self.next().await.unwrap() {
                return read;
            }
        }
    }
}

/// Tells the agent what its node does next.
pub(crate) enum Order {
    /// All ranks of the job's run on this node end in this way.
    Exit(Exit),
    /// Every log of this node gets more lines.
    Write(Vec<String>),
    /// The node is like this now.
    Report(Box<NodeReport>),
}

/// A node that works until it is dropped.
pub(crate) struct FakeAgent {
    pub orders: mpsc::Sender<Order>,
    running: JoinHandle<()>,
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl FakeAgent {
    /// Connects an agent. Every log of the node holds these lines. If `obeys_credit` is false, the
    /// agent sends the whole log at once.
    pub(crate) async fn start(
        server: &Server,
        name: &str,
        log: &[String],
        obeys_credit: bool,
    ) -> Self {
        Self::introduced(server, hello(name), log, obeys_credit).await
    }

    /// The same node again, on the same boot. It still has its ledger, and reports none of the runs
    /// that it held.
    pub(crate) async fn again(server: &Server, name: &str, log: &[String]) -> Self {
        Self::introduced(
            server,
            v1::Hello {
                epoch_seen: 1,
                ..hello(name)
            },
            log,
            true,
        )
        .await
    }

    /// A node with one GPU, whose driver runs CUDA up to this version.
    pub(crate) async fn with_gpu(server: &Server, name: &str, cuda: &str) -> Self {
        let gpu = Gpu {
            uuid: format!("GPU-of-{name}"),
            model: "H100".into(),
            ..Gpu::default()
        };
        let driver = Some(Driver {
            cuda: cuda.into(),
            ..Driver::default()
        });
        let hello = hello_with(
            name,
            NodeReport {
                gpus: vec![gpu],
                driver,
                ..NodeReport::default()
            },
        );
        Self::introduced(server, hello, &[], true).await
    }

    async fn introduced(
        server: &Server,
        hello: v1::Hello,
        log: &[String],
        obeys_credit: bool,
    ) -> Self {
        let session = RawSession::open(server, say(FromAgent::Hello(hello))).await;
        Self::work(session.unwrap(), log, obeys_credit).await
    }

    /// The agent of a node, over a connection that has proven which node that is.
    pub(crate) async fn over(clients: &Clients, name: &str) -> Self {
        let session = RawSession::over(clients, say(FromAgent::Hello(hello(name)))).await;
        Self::work(session.unwrap(), &[], true).await
    }

    async fn work(mut session: RawSession, log: &[String], obeys_credit: bool) -> Self {
        let (orders, commands) = mpsc::channel(8);
        assert!(matches!(session.next().await.unwrap(), ToAgent::Welcome(_)));
        let node = Node {
            session,
            runs: BTreeMap::new(),
            log: log.to_vec(),
            reads: Vec::new(),
            obeys_credit,
        };
        Self {
            orders,
            running: tokio::spawn(node.work(commands)),
        }
    }
}

struct Node {
    session: RawSession,
    runs: BTreeMap<RunId, RunReport>,
    log: Vec<String>,
    reads: Vec<Read>,
    obeys_credit: bool,
}

struct Read {
    request: v1::LogRead,
    lines: VecDeque<String>,
    credit: u32,
    at: u64,
}

impl Node {
    async fn work(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut heartbeat = tokio::time::interval(Duration::from_millis(200));
        loop {
            tokio::select! {
                message = self.session.down.message() => match message {
                    Ok(Some(message)) => self.obey(message.message.unwrap()).await,
                    _ => return,
                },
                Some(order) = orders.recv() => self.order(order).await,
                _ = heartbeat.tick() => self.send(FromAgent::Heartbeat(v1::Heartbeat { sequence: 1 })).await,
            }
        }
    }

    async fn send(&self, message: FromAgent) {
        // The test's coordinator may have ended already.
        let _ = self.session.up.send(say(message)).await;
    }

    async fn obey(&mut self, message: ToAgent) {
        match message {
            ToAgent::Desired(desired) => {
                let desired = desired_from_wire(desired).unwrap();
                for wanted in desired.runs {
                    self.target(wanted.run, wanted.target);
                }
                let without = |job: &Assignment| LauncherReport {
                    job: job.run.job.clone(),
                    state: LauncherState::Without("a test".into()),
                };
                let launchers: Vec<LauncherReport> = desired.prewarm.iter().map(without).collect();
                if !launchers.is_empty() {
                    self.send(FromAgent::Launchers(launchers_to_wire(&launchers)))
                        .await;
                }
                self.report().await;
                self.pump().await;
            }
            ToAgent::LogRead(request) => {
                // Positions are numbers of lines.
                let from = match (request.from, request.tail) {
                    (Some(at), _) => at as usize,
                    (None, tail) => {
                        tail.map_or(0, |tail| self.log.len().saturating_sub(tail as usize))
                    }
                };
                let from = from.min(self.log.len());
                let lines = self.log[from..].iter().cloned().collect();
                let credit = if self.obeys_credit {
                    request.window
                } else {
                    u32::MAX
                };
                self.reads.push(Read {
                    request,
                    lines,
                    credit,
                    at: from as u64,
                });
                self.pump().await;
            }
            ToAgent::LogCredit(credit) => {
                for read in self
                    .reads
                    .iter_mut()
                    .filter(|read| read.request.id == credit.id)
                {
                    read.credit = read.credit.saturating_add(credit.chunks);
                }
                self.pump().await;
            }
            ToAgent::SignalRanks(order) => {
                // Nobody on these nodes takes SIGPIPE.
                let missed = { order.ranks.iter() }
                    .filter(|_| order.signal == 13)
                    .map(|rank| (*rank, format!("rank {rank} has ended")))
                    .collect();
                let id = order.id;
                let answer = v1::RanksSignalled { id, missed };
                self.send(FromAgent::Signalled(answer)).await;
            }
            ToAgent::LocateRanks(asked) => {
                // Each rank of these nodes is at the line of its number; an odd one is behind.
                let rank = |rank: &u32| v1::RankStack {
                    rank: *rank,
                    threads: vec![v1::ThreadStack {
                        frames: vec![v1::StackFrame {
                            file: "/train/train.py".into(),
                            line: 80 + rank % 2,
                            function: if rank.is_multiple_of(2) {
                                "all_reduce"
                            } else {
                                "load"
                            }
                            .into(),
                        }],
                    }],
                    positions: vec![v1::GroupPosition {
                        group: "0".into(),
                        called: 9 - u64::from(rank % 2),
                        completed: 8,
                        call: if rank.is_multiple_of(2) {
                            "all_reduce"
                        } else {
                            ""
                        }
                        .into(),
                        ..v1::GroupPosition::default()
                    }],
                    ..v1::RankStack::default()
                };
                let answer = v1::RanksLocated {
                    id: asked.id,
                    ranks: asked.ranks.iter().map(rank).collect(),
                    error: String::new(),
                };
                self.send(FromAgent::Located(answer)).await;
            }
            ToAgent::LogCancel(cancel) => self.reads.retain(|read| read.request.id != cancel.id),
            ToAgent::Welcome(_) | ToAgent::Heartbeat(_) | ToAgent::Authorities(_) => {}
        }
    }

    async fn order(&mut self, order: Order) {
        match order {
            Order::Exit(exit) => {
                for run in self
                    .runs
                    .values_mut()
                    .filter(|run| run.phase == RunPhase::Running)
                {
                    run.phase = RunPhase::Dead;
                    run.torchrun_exit = Some(exit);
                    run.dead_at = Some(Timestamp(0));
                    for rank in &mut run.ranks {
                        rank.exit = Some(exit);
                        rank.exited_at = Some(Timestamp(0));
                    }
                }
                self.report().await;
            }
            Order::Report(report) => {
                let report = node_report_to_wire(&with_address(*report));
                self.send(FromAgent::Report(report)).await;
            }
            Order::Write(lines) => {
                self.log.extend(lines.iter().cloned());
                for read in &mut self.reads {
                    read.lines.extend(lines.iter().cloned());
                }
            }
        }
        self.pump().await;
    }

    fn target(&mut self, id: RunId, target: Target) {
        match target {
            Target::Ready(assignment) => {
                let run = self
                    .runs
                    .entry(id.clone())
                    .or_insert_with(|| RunReport::preparing(id, Term(1)));
                if run.phase == RunPhase::Preparing {
                    run.phase = RunPhase::Ready;
                    run.store = assignment.hosts_store.then(|| Endpoint {
                        host: "127.0.0.1".into(),
                        port: 1,
                    });
                    // What frameworks other than torch tell their members of each other.
                    run.port = (!assignment.framework.is_torch()).then_some(1);
                    run.key = assignment.lends().then(|| Key("0".repeat(32)));
                }
            }
            Target::Running(assignment, _) => {
                let run = self
                    .runs
                    .entry(id.clone())
                    .or_insert_with(|| RunReport::preparing(id, Term(1)));
                if matches!(run.phase, RunPhase::Preparing | RunPhase::Ready) {
                    run.phase = RunPhase::Running;
                    run.launched_at = Some(Timestamp(0));
                    run.ranks = (0..assignment.proc_per_node)
                        .map(|i| rank(assignment.first_rank + i, i))
                        .collect();
                    if assignment.hosts_store {
                        run.joined_ranks = (0..assignment.world_size).collect();
                        run.all_joined_at = Some(Timestamp(0));
                    }
                }
            }
            Target::Stopped { .. } => {
                let run = self
                    .runs
                    .entry(id.clone())
                    .or_insert_with(|| RunReport::preparing(id, Term(1)));
                run.phase = RunPhase::Dead;
                run.dead_at.get_or_insert(Timestamp(0));
            }
            Target::Gone { .. } => drop(self.runs.remove(&id)),
        }
    }

    async fn report(&self) {
        let runs: Vec<RunReport> = self.runs.values().cloned().collect();
        self.send(FromAgent::Runs(runs_to_wire(&runs, None, Timestamp(0))))
            .await;
    }

    /// Sends as many chunks as the credit allows, one line in each.
    async fn pump(&mut self) {
        let mut messages = Vec::new();
        let runs = &self.runs;
        self.reads.retain_mut(|read| {
            let id = read.request.id;
            let chunk = |lines: Vec<String>, at: u64, end: bool| v1::LogChunk {
                id,
                lines,
                at,
                end,
                ..v1::LogChunk::default()
            };
            while read.credit > 0
                && let Some(line) = read.lines.pop_front()
            {
                (read.credit, read.at) = (read.credit - 1, read.at + 1);
                messages.push(chunk(vec![line], read.at, false));
            }
            let run = RunId {
                job: muster_core::id::JobUid::from(read.request.job_uid.clone()),
                generation: Generation(read.request.generation),
            };
            // A real agent, too, waits if it does not know the run.
            let grows =
                read.request.follow && runs.get(&run).is_none_or(|run| run.phase != RunPhase::Dead);
            let over = read.lines.is_empty() && read.credit > 0 && !grows;
            if over {
                messages.push(chunk(Vec::new(), read.at, true));
            }
            !over
        });
        for message in messages {
            self.send(FromAgent::Log(message)).await;
        }
    }
}

fn rank(rank: u32, local_rank: u32) -> RankReport {
    RankReport {
        pid: 4_000 + rank,
        started_at: Some(Timestamp(0)),
        ..RankReport::bare(rank, local_rank)
    }
}
