//! A coordinator that makes no decisions: it accepts sessions and says what the test wants.

use std::{
    net::SocketAddr,
    pin::Pin,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use muster_core::{
    health::Finding,
    id::{NodeEpoch, Term},
    node_report::labels::Labels,
    protocol::NEWEST,
    run::{Assignment, Desired, DesiredRun, LauncherReport, RunId, RunPhase, RunReport},
    time::Timestamp,
    usage::Usage,
};
use muster_proto::{
    convert::{
        session::{
            Welcome, desired_to_wire, launchers_from_wire, node_report_from_wire, runs_from_wire,
            welcome_to_wire,
        },
        usage::usage_from_wire,
    },
    v1::{
        AgentMessage, CoordinatorMessage, HeartbeatReply, Hello, LogChunk, RanksLocated,
        RanksSignalled,
        agent_message::Message as Up,
        agent_service_server::{AgentService, AgentServiceServer},
        coordinator_message::Message as Down,
    },
};
use muster_rpc::{
    gate::{Gate, Open},
    listen::{Listener, Options},
};
use tokio::{runtime::Runtime, sync::mpsc, time::timeout};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, service::Routes};

use super::PATIENCE;

pub struct Coordinator {
    pub addr: SocketAddr,
    sessions: mpsc::Receiver<Session>,
    /// It has its own runtime, so that its end breaks every connection, as a kill would.
    server: Option<Runtime>,
}

impl Coordinator {
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    pub async fn start_at(addr: SocketAddr) -> Self {
        Self::serve(addr, Options::default(), Open)
    }

    /// It speaks TLS, and its gate decides who may call.
    pub fn serve(addr: SocketAddr, options: Options, gate: impl Gate) -> Self {
        let with_tls = options.tls.is_some();
        let (say, sessions) = mpsc::channel(16);
        let service = AgentServiceServer::new(Service { sessions: say });
        let server = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        // A listener belongs to the runtime that it was registered with.
        let listener = {
            let _entered = server.enter();
            Listener::open(addr, with_tls).unwrap()
        };
        let addr = listener.address();
        let services = Routes::new(service);
        let (accepting, serving) = listener.serve(options, gate, services, std::future::pending());
        server.spawn(accepting);
        server.spawn(serving);
        Self {
            addr,
            sessions,
            server: Some(server),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The next session of the agent.
    pub async fn accept(&mut self) -> Session {
        timeout(PATIENCE, self.sessions.recv())
            .await
            .expect("the agent comes")
            .unwrap()
    }

    /// The next session, after a welcome.
    pub async fn welcome(&mut self, term: u64, epoch: u64) -> Session {
        let mut session = self.accept().await;
        session.welcome(term, epoch).await;
        session
    }

    /// Stops as a kill would: connections break, and the port is free.
    pub fn stop(&mut self) -> SocketAddr {
        let server = self.server.take().expect("it runs");
        // The listener is closed before this returns, so a new one may take the port at once.
        tokio::task::block_in_place(|| server.shutdown_timeout(PATIENCE));
        self.addr
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
    }
}

struct Service {
    sessions: mpsc::Sender<Session>,
}

#[tonic::async_trait]
impl AgentService for Service {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<CoordinatorMessage, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let mut up = request.into_inner();
        let Some(AgentMessage {
            message: Some(Up::Hello(hello)),
        }) = up.message().await?
        else {
            return Err(Status::invalid_argument("no hello"));
        };
        let (down, out) = mpsc::channel(64);
        let runs = runs_from_wire(hello.runs.clone().unwrap(), NOW).unwrap();
        let findings = node_report_from_wire(hello.report.clone().unwrap())
            .unwrap()
            .health
            .findings;
        let session = Session {
            hello,
            up,
            down,
            term: 0,
            epoch: 0,
            runs,
            chunks: Vec::new(),
            signalled: Vec::new(),
            located: Vec::new(),
            heartbeats: 0,
            answers: true,
            clock_ahead: None,
            findings,
            launchers: Vec::new(),
            pool_ready: 0,
            usage: None,
            node_reports: 0,
            reports: 0,
        };
        self.sessions.send(session).await.unwrap();
        Ok(Response::new(Box::pin(ReceiverStream::new(out))))
    }
}

/// The test's clock stands still, so that ages can be compared.
const NOW: Timestamp = Timestamp(1 << 60);

pub struct Session {
    pub hello: Hello,
    up: Streaming<AgentMessage>,
    down: mpsc::Sender<Result<CoordinatorMessage, Status>>,
    term: u64,
    epoch: u64,
    /// The runs of the last report.
    pub runs: Vec<RunReport>,
    pub chunks: Vec<LogChunk>,
    pub signalled: Vec<RanksSignalled>,
    pub located: Vec<RanksLocated>,
    pub heartbeats: u64,
    /// Whether it answers heartbeats.
    pub answers: bool,
    /// How many seconds its wall clock is ahead of the real one. With None its answers do not tell
    /// the time.
    pub clock_ahead: Option<i64>,
    /// The findings of the node's last report.
    pub findings: Vec<Finding>,
    /// The state of the launchers that the node was to have ready.
    pub launchers: Vec<LauncherReport>,
    /// How many launchers of the warm pool were ready at the node's last report.
    pub pool_ready: u32,
    /// The node's last look at its usage.
    pub usage: Option<Usage>,
    pub node_reports: u64,
    pub reports: u64,
}

/// Unix microseconds of a clock that is this many seconds ahead.
fn wall_clock(ahead: i64) -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_micros() as i64;
    (now + ahead * 1_000_000) as u64
}

impl Session {
    pub async fn say(&self, message: Down) {
        self.down
            .send(Ok(CoordinatorMessage {
                message: Some(message),
            }))
            .await
            .unwrap();
    }

    /// Ends the stream with this status.
    pub async fn refuse(self, why: Status) {
        self.down.send(Err(why)).await.unwrap();
    }

    pub async fn welcome(&mut self, term: u64, epoch: u64) {
        (self.term, self.epoch) = (term, epoch);
        let heartbeat = Duration::from_millis(50);
        let welcome = Welcome {
            term: Term(term),
            epoch: NodeEpoch(epoch),
            heartbeat,
            protocol: NEWEST,
        };
        self.say(Down::Welcome(welcome_to_wire(&welcome))).await;
    }

    pub async fn desire(&self, runs: Vec<DesiredRun>) {
        self.desire_as(self.term, self.epoch, runs).await;
    }

    /// Orders nothing to run, and announces these jobs.
    pub async fn prewarm(&self, prewarm: Vec<Assignment>) {
        let desired = Desired {
            term: Term(self.term),
            epoch: NodeEpoch(self.epoch),
            runs: Vec::new(),
            labels: Labels::default(),
            retire: None,
            prewarm,
        };
        self.say(Down::Desired(desired_to_wire(&desired))).await;
    }

    pub async fn desire_as(&self, term: u64, epoch: u64, runs: Vec<DesiredRun>) {
        // The labels as the node's Kubernetes object may have them. The node itself was given
        // another rack.
        let labels = [("topology.kubernetes.io/zone", "eu-1a"), ("rack", "r1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let desired = Desired {
            term: Term(term),
            epoch: NodeEpoch(epoch),
            runs,
            labels: Labels::bounded(labels),
            retire: None,
            prewarm: Vec::new(),
        };
        self.say(Down::Desired(desired_to_wire(&desired))).await;
    }

    /// Takes the agent's next message. False: the stream has ended.
    pub async fn hear(&mut self) -> bool {
        let Ok(message) = timeout(PATIENCE, self.up.message()).await else {
            panic!(
                "the agent says nothing any more; it last reported {:#?}",
                self.runs
            );
        };
        let Ok(Some(message)) = message else {
            return false;
        };
        match message.message.unwrap() {
            Up::Runs(runs) => {
                self.runs = runs_from_wire(runs, NOW).unwrap();
                self.reports += 1;
            }
            Up::Usage(usage) => self.usage = Some(usage_from_wire(usage).unwrap()),
            Up::Launchers(launchers) => self.launchers = launchers_from_wire(launchers).unwrap(),
            Up::Log(chunk) => self.chunks.push(chunk),
            Up::Signalled(answer) => self.signalled.push(answer),
            Up::Located(answer) => self.located.push(answer),
            Up::Heartbeat(heartbeat) => {
                self.heartbeats += 1;
                if self.answers {
                    // The agent may be gone by now.
                    let unix_us = self.clock_ahead.map_or(0, wall_clock);
                    let reply = Down::Heartbeat(HeartbeatReply {
                        sequence: heartbeat.sequence,
                        unix_us,
                    });
                    let _ = self
                        .down
                        .send(Ok(CoordinatorMessage {
                            message: Some(reply),
                        }))
                        .await;
                }
            }
            Up::Report(report) => {
                let report = node_report_from_wire(report).unwrap();
                self.pool_ready = report.warm_pool.map_or(0, |pool| pool.ready);
                self.findings = report.health.findings;
                self.node_reports += 1;
            }
            Up::Hello(_) => panic!("a second hello"),
        }
        true
    }

    /// Waits until `is_so` accepts the session.
    pub async fn until(&mut self, what: &str, is_so: impl Fn(&Session) -> bool) {
        let wait = async {
            while !is_so(self) {
                assert!(self.hear().await, "the session ended before {what}");
            }
        };
        if timeout(PATIENCE, wait).await.is_err() {
            panic!("not {what}; the agent last reported {:#?}", self.runs);
        }
    }

    pub async fn until_ended(&mut self) {
        timeout(PATIENCE, async { while self.hear().await {} })
            .await
            .expect("the agent ends the session");
    }

    pub fn run(&self, run: &RunId) -> Option<&RunReport> {
        self.runs.iter().find(|report| report.run == *run)
    }

    pub fn phase(&self, run: &RunId) -> Option<&RunPhase> {
        self.run(run).map(|report| &report.phase)
    }

    pub async fn until_phase(&mut self, run: &RunId, phase: RunPhase) {
        self.until(&format!("{phase:?}"), |session| {
            session.phase(run) == Some(&phase)
        })
        .await;
    }

    /// Waits for a heartbeat that was sent after this call. The agent has then handled everything
    /// said before.
    pub async fn settle(&mut self) {
        let seen = self.heartbeats;
        // One heartbeat may already be on its way. The next one has passed the supervisor after our
        // last message.
        self.until("a heartbeat", |session| session.heartbeats >= seen + 2)
            .await;
    }
}
