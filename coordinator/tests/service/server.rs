//! The coordinator under test, and clients of it.

use std::{future::Future, net::SocketAddr, pin::Pin, time::Duration};

use muster_coordinator::{
    audit, kubernetes,
    serve::{Coordinator, ServeError, Settings},
    store::{Store, StoreError, redb::RedbStore},
};
use muster_core::{fleet::Policy, id::Term};
use muster_proto::v1::{
    self, agent_service_client::AgentServiceClient, event_service_client::EventServiceClient,
    job_service_client::JobServiceClient, node_service_client::NodeServiceClient,
    queue_service_client::QueueServiceClient,
};
use muster_rpc::{Channel, Clients, dial, dial::Options};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longer than any wait of a test on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Server {
    pub clients: Clients,
    pub endpoint: String,
    pub metrics: Option<SocketAddr>,
    pub shutdown: CancellationToken,
    running: JoinHandle<Result<(), ServeError>>,
    state: Option<TempDir>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(Policy::default()).await
    }

    pub(crate) async fn start_with(policy: Policy) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), policy).await
    }

    pub(crate) async fn start_in(state: TempDir, policy: Policy) -> Self {
        Self::start_beside(state, policy, None).await
    }

    /// Also says where its metrics are.
    pub(crate) async fn start_with_metrics(policy: Policy) -> (Self, SocketAddr) {
        let state = tempfile::tempdir().unwrap();
        let settings = Settings {
            metrics: Some("127.0.0.1:0".parse().unwrap()),
            ..Self::settings(&state, policy)
        };
        let path = state.path().to_owned();
        let open = move || RedbStore::open(&path).map(|store| Box::new(store) as Box<dyn Store>);
        let server = Box::pin(Self::start_on(state, settings, open)).await;
        let metrics = server.metrics.unwrap();
        (server, metrics)
    }

    /// Reads the labels of its nodes from this API server.
    pub(crate) async fn start_beside(
        state: TempDir,
        policy: Policy,
        kubernetes: Option<kubernetes::Settings>,
    ) -> Self {
        Self::start_changed(state, policy, |settings| settings.kubernetes = kubernetes).await
    }

    pub(crate) async fn start_with_trail(
        state: TempDir,
        change: impl FnOnce(&mut audit::Options),
    ) -> Self {
        let change = |settings: &mut Settings| change(&mut settings.audit);
        Self::start_changed(state, Policy::default(), change).await
    }

    async fn start_changed(
        state: TempDir,
        policy: Policy,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut settings = Self::settings(&state, policy);
        change(&mut settings);
        let path = state.path().to_owned();
        let open = move || RedbStore::open(&path).map(|store| Box::new(store) as Box<dyn Store>);
        Box::pin(Self::start_on(state, settings, open)).await
    }

    pub(crate) fn settings(state: &TempDir, policy: Policy) -> Settings {
        Settings {
            shared: None,
            leader: None,
            listen: "127.0.0.1:0".parse().unwrap(),
            metrics: None,
            accept_unknown: false,
            trust: None,
            policy,
            notify: None,
            min_term: Term(0),
            kubernetes: None,
            audit: audit::Options::of(state.path()),
            ready_file: None,
            turn_stats: None,
        }
    }

    /// A coordinator whose records are kept here.
    pub(crate) async fn start_on(
        state: TempDir,
        settings: Settings,
        open: impl FnOnce() -> Result<Box<dyn Store>, StoreError>,
    ) -> Self {
        let coordinator = Box::pin(Coordinator::start(settings, open)).await.unwrap();
        let endpoint = format!("http://{}", coordinator.address);
        let (shutdown, metrics) = (coordinator.shutdown(), coordinator.metrics);
        let running = tokio::spawn(coordinator.run());
        let clients = clients(&endpoint).await;
        Self {
            clients,
            endpoint,
            metrics,
            shutdown,
            running,
            state: Some(state),
        }
    }

    /// A coordinator that runs as a process of its own.
    pub(crate) async fn elsewhere(endpoint: &str) -> Self {
        let clients = clients(endpoint).await;
        Self {
            clients,
            endpoint: endpoint.to_owned(),
            metrics: None,
            shutdown: CancellationToken::new(),
            running: tokio::spawn(async { Ok(()) }),
            state: None,
        }
    }

    /// Ends the coordinator gracefully and returns its directory.
    pub(crate) async fn stop(mut self) -> TempDir {
        self.shutdown.cancel();
        within((&mut self.running).await_ended()).await;
        self.state.take().unwrap()
    }

    pub(crate) fn jobs(&self) -> JobServiceClient<Channel> {
        self.clients.jobs()
    }

    pub(crate) fn nodes(&self) -> NodeServiceClient<Channel> {
        self.clients.nodes()
    }

    pub(crate) fn queues(&self) -> QueueServiceClient<Channel> {
        self.clients.queues()
    }

    pub(crate) fn events(&self) -> EventServiceClient<Channel> {
        self.clients.events()
    }

    pub(crate) fn agents(&self) -> AgentServiceClient<Channel> {
        self.clients.agents()
    }

    pub(crate) async fn job(&self, name: &str) -> v1::Job {
        let request = v1::GetJobRequest {
            r#ref: Some(reference(name)),
        };
        self.jobs()
            .get(request)
            .await
            .unwrap()
            .into_inner()
            .job
            .unwrap()
    }

    /// Waits until a job's view is as wanted.
    pub(crate) async fn until_job(&self, name: &str, wanted: impl Fn(&v1::Job) -> bool) -> v1::Job {
        let request = v1::WatchJobsRequest {
            namespace: String::new(),
            name: name.into(),
        };
        let mut stream = self.jobs().watch(request).await.unwrap().into_inner();
        within(async {
            loop {
                let job = stream
                    .message()
                    .await
                    .unwrap()
                    .expect("the watch goes on")
                    .job
                    .unwrap();
                if wanted(&job) {
                    return job;
                }
            }
        })
        .await
    }

    pub(crate) async fn until_node(
        &self,
        name: &str,
        wanted: impl Fn(&v1::Node) -> bool,
    ) -> v1::Node {
        let mut stream = self
            .nodes()
            .watch(v1::WatchNodesRequest::default())
            .await
            .unwrap()
            .into_inner();
        within(async {
            loop {
                let node = stream
                    .message()
                    .await
                    .unwrap()
                    .expect("the watch goes on")
                    .node
                    .unwrap();
                if node.name == name && wanted(&node) {
                    return node;
                }
            }
        })
        .await
    }

    pub(crate) async fn submit(&self, name: &str, spec: v1::JobSpec) -> v1::Job {
        let request = v1::SubmitRequest {
            r#ref: Some(reference(name)),
            spec: Some(spec),
            ..v1::SubmitRequest::default()
        };
        self.jobs()
            .submit(request)
            .await
            .unwrap()
            .into_inner()
            .job
            .unwrap()
    }
}

async fn clients(endpoint: &str) -> Clients {
    dial(&endpoint.parse().unwrap(), Options::default())
        .await
        .unwrap()
}

trait Ended {
    async fn await_ended(self);
}

impl Ended for &mut JoinHandle<Result<(), ServeError>> {
    async fn await_ended(self) {
        self.await.unwrap().unwrap();
    }
}

/// Boxed: calls with a whole job in them are large.
pub(crate) fn within<T>(future: impl Future<Output = T>) -> Pin<Box<impl Future<Output = T>>> {
    let future = Box::pin(future);
    Box::pin(async move {
        tokio::time::timeout(PATIENCE, future)
            .await
            .expect("what the test waits for must happen")
    })
}

pub(crate) fn reference(name: &str) -> v1::JobRef {
    v1::JobRef {
        namespace: String::new(),
        name: name.into(),
    }
}

/// A job of one to `most` nodes, with a rank on each.
pub(crate) fn spec(most: i64) -> v1::JobSpec {
    v1::JobSpec {
        replicas: Some(most),
        min_replicas: Some(1),
        max_replicas: Some(most),
        args: vec!["train.py".into()],
        scale_up_cooldown: Some("0s".into()),
        stop_grace_period: Some("0s".into()),
        ..v1::JobSpec::default()
    }
}

pub(crate) fn phase(job: &v1::Job) -> v1::JobPhase {
    job.status.as_ref().unwrap().phase()
}
