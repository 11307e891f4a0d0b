//! A Kubernetes API server that is not there: so much of one as the coordinator asks for.
//!
//! It speaks plain HTTP/1.1 over real sockets, one request per connection. Every change by a test
//! is one step, so no request sees half of it. `semantics` asks a real API server the same questions.
//!
//! | file | owns |
//! |---|---|
//! | `nodes` | Node objects: pages, watches, patches |
//! | `jobs` | `MusterJob` objects: what users and the coordinator do with them; events |
//! | `access` | tokens and who may do what |
//! | `objects` | pods and config maps |
//! | `kept` | Leases, records and Secrets |
//! | `collections` | objects of other kinds |
//! | `wire` | one request and its answer; faults |

mod access;
mod collections;
mod jobs;
mod kept;
mod nodes;
mod objects;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use muster_coordinator::kubernetes::{AGAIN_AFTER, Settings, Tokens};
use muster_core::fleet::CordonMode;
use muster_operator::KEPT_MAX;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

pub(crate) use access::{AUDIENCE, Grant, Holder, Minted};
pub(crate) use wire::Fault;

pub(crate) struct Cluster {
    pub address: String,
    state: Arc<Mutex<State>>,
    /// Counts changes, so that tasks can wait for one.
    changed: watch::Sender<u64>,
    serving: JoinHandle<()>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[derive(Default)]
pub(crate) struct State {
    /// Of the last change of an object.
    version: u64,
    nodes: BTreeMap<String, Value>,
    /// What has changed: the version, the resource and the event of a watch.
    log: Vec<(u64, &'static str, Value)>,
    /// A watch from an older version is answered with 410.
    oldest: u64,
    /// True: 410 is the status of the answer. False: it is an event of the watch.
    pub gone_as_status: bool,
    /// Open watches end when this number changes.
    cuts: u64,
    /// New connections are closed at once.
    pub down: bool,
    /// By resource: how requests for it fail.
    pub faults: BTreeMap<&'static str, Fault>,
    /// `VERB` of nodes, or `VERB RESOURCE`.
    pub forbidden: BTreeSet<&'static str>,
    pub lists: u32,
    pub watches: u32,
    /// Patches of nodes that were asked for.
    pub patches: u32,
    /// Patches take place, and their answers end in the middle.
    pub cut_patches: bool,
    /// Somebody changes these objects right after the next one was read.
    pub after_get: Vec<(String, Value)>,
    /// By node: why an admission policy denies every change.
    pub denied: BTreeMap<String, String>,
    /// Changes that were denied.
    pub denials: u32,
    /// Requests for which `forbidden` names a right.
    pub refused: u32,
    /// By node: why every change fails within the server, as when a webhook is away.
    pub broken: BTreeMap<String, String>,
    /// Requests by resource, without those of nodes.
    pub asked: BTreeMap<&'static str, u32>,
    /// Requests without an answer whose client has left.
    pub abandoned: u32,
    /// A server before 1.32 says nothing of nodes in a review.
    pub no_node_claims: bool,
    /// An authenticator that knows no audiences takes every token and says none.
    pub no_audiences: bool,
    tokens: BTreeMap<String, Minted>,
    pub grants: Vec<Grant>,
    /// What was asked last about the rights of a user.
    pub decided: Value,
    /// By namespace and name.
    pub jobs: BTreeMap<(String, String), Value>,
    /// Events of objects, in the order in which they were created.
    pub events: Vec<Value>,
    /// By namespace and name.
    pub pods: BTreeMap<(String, String), Value>,
    /// Why no pod can be made.
    pub no_pods: Option<String>,
    pub config_maps: BTreeMap<(String, String), Value>,
    kept: kept::Kept,
    /// The most bytes of a kept object, if it is less than etcd's usual 1.5 MiB.
    pub object_max: Option<usize>,
    /// Bytes of the largest object that was sent to be kept.
    pub largest: usize,
    /// The `creationTimestamp` of kept objects.
    pub made_at: Option<String>,
    collections: collections::Collections,
    /// Kinds whose definitions are not there.
    pub not_installed: BTreeSet<&'static str>,
    /// The versions of Kueue's objects that are served.
    pub kueue: Vec<&'static str>,
    /// The version of PodGroups that is served of each of these groups.
    pub pod_groups: BTreeMap<&'static str, &'static str>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (state, changed) = (Arc::<Mutex<State>>::default(), watch::Sender::new(0));
        let serving = tokio::spawn({
            let (state, changed) = (state.clone(), changed.clone());
            async move {
                let mut connections = tokio::task::JoinSet::new();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    connections.spawn(wire::serve(stream, state.clone(), changed.clone()));
                }
            }
        });
        Self {
            address,
            state,
            changed,
            serving,
        }
    }

    /// Changes the state in one step.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock().unwrap());
        self.changed.send_modify(|count| *count += 1);
        changed
    }

    /// Waits until the state, with its counts of requests, is as wanted.
    pub(crate) async fn until(&self, wanted: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        crate::server::within(changed.wait_for(|_| wanted(&self.state.lock().unwrap())))
            .await
            .unwrap();
    }

    pub(crate) fn configuration(&self) -> kube::Config {
        let address = format!("http://{}", self.address);
        let mut configuration = kube::Config::new(address.parse().unwrap());
        configuration.default_namespace = "muster-system".into();
        configuration
    }

    /// A coordinator that reads the Node objects.
    pub(crate) fn nodes(&self) -> Settings {
        Settings {
            configuration: self.configuration(),
            nodes: true,
            jobs: false,
            pods: None,
            kueue: false,
            pod_groups: false,
            adopt: Vec::new(),
            kept_max: KEPT_MAX,
            cordon: CordonMode::Off,
            tokens: None,
        }
    }

    /// A coordinator that follows the MusterJob objects.
    pub(crate) fn jobs(&self) -> Settings {
        Settings {
            nodes: false,
            jobs: true,
            ..self.nodes()
        }
    }

    /// A coordinator that writes on the Node objects.
    pub(crate) fn cordons(&self, cordon: CordonMode) -> Settings {
        Settings {
            cordon,
            ..self.nodes()
        }
    }

    /// A coordinator that takes tokens for [`access::AUDIENCE`].
    pub(crate) fn tokens(&self) -> Settings {
        Self::asks(self.configuration())
    }

    pub(crate) fn asks(configuration: kube::Config) -> Settings {
        Settings {
            configuration,
            nodes: false,
            jobs: false,
            pods: None,
            kueue: false,
            pod_groups: false,
            adopt: Vec::new(),
            kept_max: KEPT_MAX,
            cordon: CordonMode::Off,
            tokens: Some(Tokens {
                audience: access::AUDIENCE.into(),
                agents: Some(access::AGENTS.parse().unwrap()),
                pods: false,
                users: false,
                again_after: AGAIN_AFTER,
            }),
        }
    }

    /// A coordinator that makes worker pods.
    pub(crate) fn pods(&self) -> Settings {
        Self::makes_pods(self.configuration())
    }

    pub(crate) fn makes_pods(configuration: kube::Config) -> Settings {
        let mut settings = Self::asks(configuration);
        (settings.jobs, settings.pods) = (true, Some(access::AGENTS.parse().unwrap()));
        settings.tokens.as_mut().unwrap().pods = true;
        settings
    }

    /// A coordinator that lets Kueue admit jobs.
    pub(crate) fn queues(&self) -> Settings {
        Settings {
            kueue: true,
            ..self.pods()
        }
    }

    /// A coordinator that takes tokens of users too.
    pub(crate) fn users(&self) -> Settings {
        let mut settings = self.tokens();
        settings.tokens.as_mut().unwrap().users = true;
        settings
    }

    /// The configuration as a user has it in a file.
    pub(crate) fn kubeconfig(&self) -> String {
        let context = json!({ "name": "c", "context": { "cluster": "c", "user": "u", "namespace": "muster-system" } });
        let cluster =
            json!({ "name": "c", "cluster": { "server": format!("http://{}", self.address) } });
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [context],
            "clusters": [cluster],
            "users": [{ "name": "u", "user": {} }],
        })
        .to_string()
    }
}
