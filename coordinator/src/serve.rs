//! The coordinator as a whole: load, serve, end.
//!
//! A graceful end has this order. First no more decisions are made, streams end with UNAVAILABLE
//! and connections close, within five seconds. Then the store is closed. The end never stops a
//! worker: workers and runners do not depend on the coordinator.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process,
    sync::Arc,
    time::Duration,
};

use muster_core::{
    fleet::{CordonMode, Policy},
    id::Term,
};
use muster_handle::handle::Handle;
use muster_rpc::{
    guests::Guests,
    http_port::HttpPortError,
    listen::{self, ListenError, Listener},
};
use muster_runtime::{
    service,
    shutdown::Signals,
    tasks::{Essential, EssentialEnded, Ordinary, Scope, Standing, Tasks},
};
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tracing::{error, info};

use crate::{
    api,
    audit::{self, Writer},
    engine::{self, StartError},
    kubernetes::{self, KubernetesError},
    metrics,
    notify::{self, Desk, Notify},
    store::{Store, StoreError, kubernetes::SharedTrust},
    trust::{Trust, TrustError},
    turn_stats::Recording,
};

/// How often to look whether an operator has changed roles, denials or the authority.
const TRUST_LOOK: Duration = Duration::from_secs(1);

/// How often to look whether the server's certificate should be renewed. It lasts for months.
const RENEW_LOOK: Duration = Duration::from_secs(60 * 60);

/// How long streams and connections may take to end. A longer time would not help, because agents
/// and clients connect again anyway.
const DRAIN: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Metrics(#[from] HttpPortError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Kubernetes(#[from] KubernetesError),
    #[error(transparent)]
    NoServer(#[from] muster_operator::NoServer),
    #[error("catch signals")]
    Signals(#[source] io::Error),
    #[error("write ready file {path}")]
    ReadyFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("open {path} for the statistics of turns")]
    TurnStats {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Ended(#[from] EssentialEnded),
    #[error("start the thread of the audit trail")]
    Audit(#[source] io::Error),
    #[error("the engine panicked")]
    EnginePanicked,
}

/// The settings of a coordinator, without its store.
#[derive(Debug)]
pub struct Settings {
    pub listen: SocketAddr,
    /// Where metrics are served, to everybody. `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Serve also callers whose user the kernel cannot tell.
    pub accept_unknown: bool,
    /// The certificate authority. `None`: serve this machine only, without TLS.
    pub trust: Option<Trust>,
    pub policy: Policy,
    pub min_term: Term,
    /// Who is told of what. `None`: nobody.
    pub notify: Option<Notify>,
    /// What is asked of a Kubernetes API server, if there is one.
    pub kubernetes: Option<kubernetes::Settings>,
    /// Where the trust folder is kept for the coordinators that stand by.
    pub shared: Option<SharedTrust>,
    /// The pod whose label leads callers here.
    pub leader: Option<kubernetes::Leader>,
    pub ready_file: Option<PathBuf>,
    /// The audit trail.
    pub audit: audit::Options,
    /// File to append the statistics of every turn to.
    pub turn_stats: Option<PathBuf>,
}

/// A coordinator that serves requests.
#[derive(Debug)]
pub struct Coordinator {
    pub address: SocketAddr,
    /// Where its metrics are.
    pub metrics: Option<SocketAddr>,
    pub handle: Handle,
    pub term: Term,
    tasks: Tasks,
    engine: std::thread::JoinHandle<Result<(), StoreError>>,
    audit: Writer,
    ready_file: Option<PathBuf>,
}

impl Coordinator {
    /// Opens the port before it touches the record, so a start that cannot serve leaves no trace.
    /// Must run in a tokio runtime.
    pub async fn start(
        settings: Settings,
        store: impl FnOnce() -> Result<Box<dyn Store>, StoreError>,
    ) -> Result<Self, ServeError> {
        let shutdown = CancellationToken::new();
        let trust = settings.trust.map(Arc::new);
        let listener = Listener::open(settings.listen, trust.is_some())?;
        let address = listener.address();
        let metrics = settings.metrics.map(metrics::open).transpose()?;
        let asked = settings.kubernetes;
        let cordon = asked.as_ref().map_or(CordonMode::Off, |asked| asked.cordon);
        let marking = asked.as_ref().filter(|_| cordon != CordonMode::Off);
        let marking = marking.map(|asked| muster_operator::Marking::of(&asked.configuration));
        let marking = marking.transpose()?;
        let is_read = |asked: &kubernetes::Settings| asked.nodes || marking.is_some();
        let nodes = asked.clone().filter(is_read);
        let nodes = nodes.map(|asked| {
            // Node objects are no namespace's, and the flag is not about them.
            muster_operator::Nodes::of(
                asked.configuration,
                asked.kept_max.max(muster_operator::KEPT_MAX),
            )
        });
        let nodes = nodes.transpose()?;
        let desk = asked.as_ref().filter(|asked| asked.kueue);
        let desk = desk.map(|_| Arc::new(muster_operator::Desk::new()));
        let pods = asked.as_ref().and_then(|asked| {
            let model = asked.pods.clone()?;
            let audience = asked.tokens.as_ref()?.audience.clone();
            let (configuration, desk) = (&asked.configuration, desk.clone());
            Some(muster_operator::Pods::of(
                configuration,
                model,
                audience,
                desk,
                asked.kept_max,
            ))
        });
        let pods = pods.transpose()?;
        let jobs = asked.as_ref().filter(|asked| asked.jobs);
        let makes_pods = pods.is_some();
        let jobs = jobs.map(|asked| {
            let (configuration, desk) = (&asked.configuration, desk.clone());
            muster_operator::Jobs::of(
                configuration,
                makes_pods,
                asked.pod_groups,
                desk,
                asked.kept_max,
            )
        });
        let jobs = jobs.transpose()?;
        let adopt = asked.as_ref().filter(|asked| !asked.adopt.is_empty());
        let adopt = adopt
            .map(|asked| {
                let kinds = asked.adopt.clone();
                muster_operator::Adopt::of(&asked.configuration, kinds, asked.kept_max)
            })
            .transpose()?;
        let reviews = asked.as_ref().map(kubernetes::Reviews::of).transpose()?;
        let reviews = reviews.flatten().map(Arc::new);
        if reviews.is_some() && trust.is_none() {
            return Err(KubernetesError::NoTls.into());
        }
        let access = asked.as_ref().map(kubernetes::Access::of).transpose()?;
        let bundle = asked.filter(|asked| asked.tokens.is_some());
        let bundle = bundle.map(|asked| muster_operator::Bundle::of(&asked.configuration));
        let bundle = bundle.transpose()?;
        let rules = settings.notify.as_ref().map(|notify| notify.rules.clone());
        let rules = rules.unwrap_or_default();
        let desk = settings.notify.map(|notify| Arc::new(Desk::new(notify)));
        let queues = settings.policy.queues.clone();
        let policy = Policy {
            reads_objects: nodes.is_some(),
            follows_jobs: jobs.is_some(),
            kubernetes_cordon: cordon,
            notify: rules,
            ..settings.policy
        };
        let store = store().map_err(StartError::Store)?;
        let engine::Started {
            handle,
            term,
            turns,
            looks,
            thread,
            ended,
        } = engine::start(store, policy, settings.min_term, shutdown.clone())?;

        let mut tasks = Tasks::new(shutdown.clone());
        tasks.spawn(Essential, "engine", async move { drop(ended.await) });
        if let Some(nodes) = nodes {
            let (handle, shutdown) = (handle.clone(), shutdown.clone());
            tasks.spawn_lasting("node objects", move || {
                nodes.clone().follow(handle.clone(), shutdown.clone())
            });
        }
        if let Some(jobs) = jobs {
            let (handle, shutdown) = (handle.clone(), shutdown.clone());
            tasks.spawn_lasting("job objects", move || {
                jobs.clone().follow(handle.clone(), shutdown.clone())
            });
        }
        if let Some(adopt) = adopt {
            let (handle, shutdown) = (handle.clone(), shutdown.clone());
            tasks.spawn_lasting("adopted objects", move || {
                adopt.clone().follow(handle.clone(), shutdown.clone())
            });
        }
        if let Some(marking) = marking {
            let (handle, shutdown) = (handle.clone(), shutdown.clone());
            tasks.spawn_lasting("node marks", move || {
                marking.clone().follow(handle.clone(), shutdown.clone())
            });
        }
        if let Some(desk) = &desk {
            for receiver in desk.receivers() {
                for of_jobs in desk.senders(receiver) {
                    let name = receiver.name.clone();
                    let sends = notify::send(desk.clone(), name, of_jobs, handle.clone());
                    let shutdown = shutdown.clone();
                    tasks.spawn(Ordinary, "notifications", async move {
                        shutdown.run_until_cancelled(sends).await;
                    });
                }
            }
        }
        let metrics = metrics.map(|port| {
            let (address, turns) = (port.address(), turns.resubscribe());
            let (handle, desk) = (handle.clone(), desk.clone());
            metrics::serve(&mut tasks, port, handle, desk, queues, term, turns);
            address
        });
        if let Some(path) = settings.turn_stats {
            let recording = Recording::open(&path, turns)
                .map_err(|source| ServeError::TurnStats { path, source })?;
            tasks.spawn(Ordinary, "turn statistics", recording.run());
        }
        let engine = handle.clone();
        let decides = move || {
            let engine = engine.clone();
            async move { engine.next_round().await }
        };
        tasks.spawn(
            Ordinary,
            "watchdog",
            service::watch(decides, shutdown.clone()),
        );
        let scope = Scope::new(shutdown.clone());
        let (trail, writer) = Writer::start(&settings.audit).map_err(ServeError::Audit)?;
        let entries = audit::Files::new(&settings.audit);
        let door = api::Door {
            trust: trust.clone(),
            reviews,
            access: access.flatten(),
            keeper: settings.shared.as_ref().map(SharedTrust::keeper),
            trail,
            desk,
        };
        let (routes, guard, health) =
            api::routes(handle.clone(), scope.clone(), door, entries, looks).await;
        let guests = Guests::default();
        let options = listen::Options {
            accept_unknown: settings.accept_unknown,
            tls: trust.as_ref().map(|trust| trust.tls().clone()),
            guests: guests.clone(),
        };
        let endpoint = match &trust {
            Some(trust) => trust.note_endpoint(address.port())?,
            None => format!("http://{address}"),
        };
        if let Some(trust) = trust {
            if let Some(bundle) = bundle {
                let trust = trust.clone();
                let publish =
                    bundle.follow(handle.lead(), move || trust.bundle(), shutdown.clone());
                tasks.spawn(Ordinary, "authorities", publish);
            }
            if let Some(pods) = pods {
                let (bundle, handle, shutdown) = (trust.clone(), handle.clone(), shutdown.clone());
                tasks.spawn_lasting("worker pods", move || {
                    let bundle = bundle.clone();
                    let bundle = move || bundle.bundle();
                    pods.clone()
                        .follow(handle.clone(), bundle, shutdown.clone())
                });
            }
            let follow = follow_trust(trust.clone(), guests, shutdown.clone());
            tasks.spawn(Ordinary, "trust", follow);
            tasks.spawn(Ordinary, "certificate", renew(trust, shutdown.clone()));
        }
        let (accepting, server) = listener.serve(options, guard, routes, {
            let shutdown = shutdown.clone();
            async move {
                shutdown.cancelled().await;
                health.set(ServingStatus::NotServing).await;
            }
        });
        tasks.spawn(Ordinary, "accept", accepting);
        if let Some(shared) = settings.shared {
            let follow = shared.follow(shutdown.clone());
            tasks.spawn(Ordinary, "shared trust", follow);
        }
        if let Some(leader) = settings.leader {
            let follow = leader.follow(shutdown.clone());
            tasks.spawn(Ordinary, "leader's label", follow);
        }
        tasks.spawn(Essential, "server", async move {
            if let Err(e) = server.await {
                error!("serve: {e}");
            }
        });
        tasks.spawn(Ordinary, "streams", async move {
            scope.shutdown().cancelled().await;
            scope.closed().await;
        });
        let coordinator = Self {
            address,
            metrics,
            handle,
            term,
            tasks,
            engine: thread,
            audit: writer,
            ready_file: settings.ready_file,
        };
        if let Some(path) = &coordinator.ready_file {
            let metrics = metrics.map_or_else(String::new, |address| {
                format!(",\"metrics\":\"http://{address}/metrics\"")
            });
            let content = format!(
                "{{\"endpoint\":\"{endpoint}\",\"pid\":{}{metrics}}}\n",
                process::id()
            );
            write_whole(path, &content).map_err(|source| ServeError::ReadyFile {
                path: path.clone(),
                source,
            })?;
        }
        info!(%address, endpoint, %term, "serving");
        service::ready();
        Ok(coordinator)
    }

    /// Cancel it to end the coordinator gracefully.
    pub fn shutdown(&self) -> CancellationToken {
        self.tasks.shutdown()
    }

    /// Also ends the coordinator at SIGTERM and SIGINT.
    pub fn obey_signals(&mut self) -> Result<(), ServeError> {
        let signals = Signals::catch().map_err(ServeError::Signals)?;
        let shutdown = self.tasks.shutdown();
        self.tasks
            .spawn(Standing, "signals", signals.obey(shutdown));
        Ok(())
    }

    /// Serves until it is told to end, or until it cannot go on.
    pub async fn run(self) -> Result<(), ServeError> {
        let ended = self.tasks.run(DRAIN).await;
        if let Some(path) = &self.ready_file {
            // Ignore an error: somebody else may have removed the file, and a file that stays only
            // names a pid that is gone.
            let _ = fs::remove_file(path);
        }
        // The engine has ended or ends now: it watches the same token, and at most one commit holds
        // it up.
        let engine = self.engine.join().map_err(|_| ServeError::EnginePanicked)?;
        self.audit.end().await;
        engine?;
        ended?;
        info!("ended");
        Ok(())
    }
}

/// Looks whether the trust folder has changed, until the shutdown, and ends the connections of those who
/// are denied. At most one look is under way, and
/// it may hang with its disk.
async fn follow_trust(trust: Arc<Trust>, guests: Guests, shutdown: CancellationToken) {
    while shutdown
        .run_until_cancelled(tokio::time::sleep(TRUST_LOOK))
        .await
        .is_some()
    {
        let looking = trust.clone();
        let looked = tokio::task::spawn_blocking(move || looking.look());
        if let Some(Err(e)) = shutdown.run_until_cancelled(looked).await {
            error!("look at the trust folder: {e}");
        }
        // Also those that have begun since the denial: nothing on them is answered but why.
        guests.end(&trust.grants().denied());
    }
}

/// Renews the server's certificate when it is due, until the shutdown.
async fn renew(trust: Arc<Trust>, shutdown: CancellationToken) {
    while shutdown
        .run_until_cancelled(tokio::time::sleep(RENEW_LOOK))
        .await
        .is_some()
    {
        if let Err(e) = trust.renew_server() {
            error!("renew the server's certificate: {e}; the old one still serves");
        }
    }
}

/// Readers see the old file or the new one, never half of one.
fn write_whole(path: &Path, content: &str) -> io::Result<()> {
    let mut name = path
        .file_name()
        .ok_or(io::ErrorKind::IsADirectory)?
        .to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    fs::write(&new, content)?;
    fs::rename(&new, path)
}
