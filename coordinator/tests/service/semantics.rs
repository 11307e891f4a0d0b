//! What the coordinator relies on in an API server, asked of the one in `cluster` and of a real one,
//! by the same questions. The real one is started if KUBEBUILDER_ASSETS names a folder with
//! kube-apiserver and etcd, or TEST_ASSET_KUBE_APISERVER and TEST_ASSET_ETCD name the programs.
//! Otherwise a loud line says that it was not asked.

mod adoption;
mod cordons;
mod crowds;
mod dependents;
mod gang;
mod kueue;
mod objects;
mod queues;
mod real;

use std::time::Duration;

use http::Method;
use muster_coordinator::kubernetes::Settings;
use muster_core::fleet::CordonMode;
use muster_proto::v1;
use muster_rpc::Clients;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{
    access::Secure,
    cluster::{AUDIENCE, Cluster, Grant, Holder, Minted},
    kubectl::Kubectl,
    server::{spec, within},
    tokens::whoami,
};

/// A service account that is a user here.
const ANN: &str = "system:serviceaccount:team-a:ann";

enum World {
    Fake(Cluster),
    Real(real::Server),
}

impl World {
    fn settings(&self) -> Settings {
        let configuration = match self {
            World::Fake(cluster) => cluster.configuration(),
            World::Real(server) => server.coordinators(),
        };
        let mut settings = Cluster::asks(configuration);
        let tokens = settings.tokens.as_mut().unwrap();
        (tokens.users, tokens.again_after) = (true, Duration::ZERO);
        settings
    }

    /// A token of this account for this audience, of its pod on this node if there is one.
    async fn token(&self, account: &str, audience: &str, node: Option<&str>) -> String {
        match (self, node) {
            (World::Real(server), node) => server.token(account, audience, node).await,
            (World::Fake(cluster), node) => {
                let holder = Holder::pod(account, node.unwrap_or("no-node"));
                let mut minted = Minted::ours(holder);
                minted.audiences = vec![audience.to_owned()];
                if node.is_none() {
                    minted.holder.extra = json!({});
                }
                cluster.change(|state| state.mint(minted))
            }
        }
    }

    /// The pod that the token is of goes.
    async fn end_pod(&self, token: &str, node: &str) {
        match self {
            World::Fake(cluster) => cluster.change(|state| state.revoke(token)),
            World::Real(server) => server.delete_pod(node).await,
        }
    }

    async fn allow(
        &self,
        user: &str,
        verb: &'static str,
        resource: &'static str,
        namespace: &'static str,
    ) {
        match self {
            World::Real(server) => server.allow(user, verb, resource, namespace).await,
            World::Fake(cluster) => cluster.change(|state| {
                state.grants.push(Grant {
                    who: user.to_owned(),
                    verb,
                    resource,
                    namespace,
                });
            }),
        }
    }

    /// As the coordinator asks, by its own rights.
    async fn create(&self, path: &str, object: &Value) -> Value {
        let client = kube::Client::try_from(self.settings().configuration).unwrap();
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(object).unwrap())
            .unwrap();
        client.request(request).await.unwrap()
    }

    async fn review(&self, token: &str) -> Value {
        let question = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": { "token": token, "audiences": [AUDIENCE] },
        });
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        self.create(path, &question).await["status"].take()
    }

    /// A coordinator that follows the MusterJob objects.
    fn follows_jobs(&self) -> Settings {
        let configuration = match self {
            World::Fake(cluster) => cluster.configuration(),
            World::Real(server) => server.coordinators(),
        };
        Settings {
            pods: None,
            kueue: false,
            pod_groups: false,
            adopt: Vec::new(),
            kept_max: muster_operator::KEPT_MAX,
            configuration,
            nodes: false,
            jobs: true,
            cordon: CordonMode::Off,
            tokens: None,
        }
    }

    /// A coordinator that makes worker pods too. The DaemonSet of the agents is there then.
    async fn makes_pods(&self) -> Settings {
        let mut settings = match self {
            World::Fake(cluster) => cluster.pods(),
            World::Real(server) => {
                server.install_pods().await;
                Cluster::makes_pods(server.coordinators())
            }
        };
        settings.nodes = false;
        settings
    }

    fn kubectl(&self) -> Kubectl {
        Kubectl::new(match self {
            World::Fake(cluster) => cluster.configuration(),
            World::Real(server) => server.admins(),
        })
    }

    /// The events of one object, oldest first.
    async fn events_of(&self, namespace: &str, uid: &str) -> Vec<Value> {
        let mut events = match self {
            World::Fake(cluster) => cluster.change(|state| state.events.clone()),
            World::Real(_) => {
                let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
                let kubectl = self.kubectl();
                let list = kubectl.ask(Method::GET, &path, None).await.unwrap();
                list["items"].as_array().unwrap().clone()
            }
        };
        events.retain(|event| event["regarding"]["uid"] == uid);
        events.sort_by_key(|event| event["eventTime"].to_string());
        events
    }

    async fn config_map(&self) -> Option<Value> {
        match self {
            World::Fake(cluster) => {
                let place = ("muster-system".to_owned(), "muster-ca-bundle".to_owned());
                cluster.change(|state| state.config_maps.get(&place).cloned())
            }
            World::Real(server) => server.config_map("muster-ca-bundle").await,
        }
    }
}

#[tokio::test]
async fn the_api_server_that_is_not_there() {
    Box::pin(suite(World::Fake(Cluster::start().await))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_api_server() {
    match real::Server::start().await {
        Some(server) => {
            crate::stores::keeps_the_contract(server.coordinators()).await;
            Box::pin(suite(World::Real(server))).await;
        }
        None => eprintln!(
            "!!! no kube-apiserver (KUBEBUILDER_ASSETS, or TEST_ASSET_KUBE_APISERVER and TEST_ASSET_ETCD): what a REAL API server answers \
             is NOT SHOWN"
        ),
    }
}

async fn suite(world: World) {
    reviews(&world).await;
    let secure = Secure::start_with(|settings| settings.kubernetes = Some(world.settings())).await;
    agents(&world, &secure).await;
    Box::pin(users(&world, &secure)).await;
    let published = within(async {
        loop {
            if let Some(object) = world.config_map().await {
                return object;
            }
        }
    })
    .await;
    let authority = std::fs::read_to_string(secure.path().join("trust/authority.pem")).unwrap();
    assert_eq!(published["data"]["ca.crt"], json!(authority));
    drop(secure);
    Box::pin(cordons::suite(&world)).await;
}

/// The fields of a review that the coordinator reads.
async fn reviews(world: &World) {
    let agents = "muster-system/muster-agent";
    let good = world.token(agents, AUDIENCE, Some("n1")).await;
    let status = world.review(&good).await;
    assert_eq!(status["authenticated"], json!(true), "{status}");
    assert_eq!(status["audiences"], json!([AUDIENCE]), "{status}");
    assert!(status["error"].as_str().unwrap_or_default().is_empty());
    let user = &status["user"];
    assert_eq!(
        user["username"],
        json!("system:serviceaccount:muster-system:muster-agent")
    );
    for claim in ["pod-name", "pod-uid", "node-name", "node-uid"] {
        let values = &user["extra"][format!("authentication.kubernetes.io/{claim}")];
        assert_eq!(
            values.as_array().map(Vec::len),
            Some(1),
            "{claim}: {status}"
        );
    }
    assert_eq!(
        user["extra"]["authentication.kubernetes.io/node-name"],
        json!(["n1"])
    );
    let other = world.token(agents, "other", Some("n1")).await;
    let unbound = world.token(agents, AUDIENCE, None).await;
    for (token, what) in [(other.as_str(), "another audience"), ("a.b.c", "no token")] {
        let status = world.review(token).await;
        assert_ne!(status["authenticated"], json!(true), "{what}: {status}");
        assert!(status["error"].is_string(), "{what}: {status}");
    }
    let status = world.review(&unbound).await;
    assert_eq!(status["authenticated"], json!(true), "{status}");
    let pod = &status["user"]["extra"]["authentication.kubernetes.io/pod-name"];
    assert!(pod.is_null(), "{status}");
}

async fn who(secure: &Secure, token: &str) -> Result<String, Status> {
    whoami(&secure.with_token(token).await).await
}

async fn agents(world: &World, secure: &Secure) {
    let agents = "muster-system/muster-agent";
    let good = world.token(agents, AUDIENCE, Some("n1")).await;
    assert_eq!(who(secure, &good).await.unwrap(), "host/n1");
    let unbound = world.token(agents, AUDIENCE, None).await;
    let other = world.token(agents, "other", Some("n1")).await;
    for (token, says) in [
        (
            &unbound,
            "says nothing of authentication.kubernetes.io/pod-name",
        ),
        (&other, "the token is for other, and this coordinator"),
    ] {
        let status = who(secure, token).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        assert!(status.message().contains(says), "{status}");
    }
    // The same pod name and another account: a user, never a host.
    let stranger = world.token("team-a/ann", AUDIENCE, Some("n1")).await;
    assert_eq!(
        who(secure, &stranger).await.unwrap(),
        format!("kubernetes/{ANN}")
    );
    // The token of a pod that is gone is refused, at the latest when the API server forgets it.
    world.end_pod(&good, "n1").await;
    let status = within(async {
        loop {
            match who(secure, &good).await {
                Err(status) => return status,
                Ok(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    assert!(status.message().contains("does not accept the token"));
}

async fn users(world: &World, secure: &Secure) {
    let ann = world.token("team-a/ann", AUDIENCE, None).await;
    let ann = secure.with_token(&ann).await;
    let status = submit(&ann, "team-a").await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    world.allow(ANN, "create", "musterjobs", "team-a").await;
    world
        .allow(ANN, "get", "musterjobs/explain", "team-a")
        .await;
    within(async {
        // A no counts for some seconds, and a real server hears of its rules a moment later.
        while let Err(status) = submit(&ann, "team-a").await {
            assert_eq!(status.code(), Code::PermissionDenied, "{status}");
        }
    })
    .await;
    let status = submit(&ann, "team-b").await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    // A right to a subresource is none to the object, nor the other way round.
    let reference = || {
        Some(v1::JobRef {
            namespace: "team-a".into(),
            name: "job".into(),
        })
    };
    let explain = || v1::ExplainRequest { r#ref: reference() };
    within(async { while ann.jobs().explain(explain()).await.is_err() {} }).await;
    let get = v1::GetJobRequest { r#ref: reference() };
    let status = within(ann.jobs().get(get)).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    let logs = v1::LogsRequest {
        r#ref: reference(),
        ..v1::LogsRequest::default()
    };
    let status = within(ann.jobs().logs(logs)).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    // Objects in no namespace.
    let list = v1::ListNodesRequest::default;
    let status = within(ann.nodes().list(list())).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    world.allow(ANN, "list", "musternodes", "").await;
    within(async { while ann.nodes().list(list()).await.is_err() {} }).await;
}

async fn submit(clients: &Clients, namespace: &str) -> Result<(), Status> {
    let request = v1::SubmitRequest {
        r#ref: Some(v1::JobRef {
            namespace: namespace.into(),
            name: "job".into(),
        }),
        spec: Some(spec(1)),
        request_id: "once".into(),
        ..v1::SubmitRequest::default()
    };
    let mut jobs = clients.jobs();
    within(Box::pin(jobs.submit(request))).await.map(drop)
}
