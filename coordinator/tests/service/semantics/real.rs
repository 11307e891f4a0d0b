//! A real etcd and a real kube-apiserver, for as long as the test.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use http::{Method, Request};
use serde_json::{Value, json};

use crate::{cluster::AUDIENCE, server::within};

mod adoption;
mod kueue;
mod pods;
mod scheduler;

pub(super) use kueue::Kueue;

const AGENTS: &str = "muster-system";
/// The manifests of cordons, as they are shipped.
const COMPONENT: [&str; 2] = [
    include_str!("../../../../manifests/components/cordon/rights.yaml"),
    include_str!("../../../../manifests/components/cordon/policy.yaml"),
];
/// The user of the test itself.
const ADMIN: &str = "admin-of-the-test";

pub(super) struct Server {
    url: String,
    /// The token of the coordinator's account, which has the documented rights and no others.
    coordinator: String,
    rules: AtomicU32,
    processes: Processes,
    folder: tempfile::TempDir,
}

struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for process in self.0.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn program(name: &str, variable: &str) -> Option<PathBuf> {
    let named = env::var_os(variable).map(PathBuf::from);
    let in_folder = || Some(Path::new(&env::var_os("KUBEBUILDER_ASSETS")?).join(name));
    named.or_else(in_folder).filter(|path| path.exists())
}

fn text_of(file: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests");
    fs::read_to_string(root.join(file)).unwrap()
}

/// The objects of a file of the manifests.
fn manifest(file: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&text_of(file)).unwrap()
}

/// A port that was free a moment ago.
fn port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn configuration(url: &str, token: &str) -> kube::Config {
    let mut configuration = kube::Config::new(url.parse().unwrap());
    configuration.default_namespace = AGENTS.into();
    // It has made its certificate itself a moment ago.
    configuration.accept_invalid_certs = true;
    configuration.auth_info = serde_json::from_value(json!({ "token": token })).unwrap();
    configuration
}

impl Server {
    /// `None`: there are no programs for it.
    pub(super) async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// With these further flags of kube-apiserver.
    pub(super) async fn start_with(further: &[&str]) -> Option<Self> {
        let etcd = program("etcd", "TEST_ASSET_ETCD")?;
        let apiserver = program("kube-apiserver", "TEST_ASSET_KUBE_APISERVER")?;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let key = rcgen::KeyPair::generate().unwrap();
        fs::write(at("sa.key"), key.serialize_pem()).unwrap();
        fs::write(at("sa.pub"), key.public_key_pem()).unwrap();
        let users = format!("{ADMIN},admin,admin,system:masters\n");
        fs::write(at("users.csv"), users).unwrap();
        let run = |path: &Path, name: &str, flags: &[String]| {
            let log = fs::File::create(at(name)).unwrap();
            let mut command = Command::new(path);
            command
                .args(flags)
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            command.stderr(log).spawn().unwrap()
        };
        let (store, peers, secure) = (port(), port(), port());
        let clients = format!("http://127.0.0.1:{store}");
        let peers = format!("http://127.0.0.1:{peers}");
        let mut processes = Processes(Vec::new());
        let flags = [
            format!("--data-dir={}", at("etcd")),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
            "--unsafe-no-fsync".into(),
        ];
        processes.0.push(run(&etcd, "etcd.log", &flags));
        let mut flags = vec![
            format!("--etcd-servers={clients}"),
            format!("--secure-port={secure}"),
            "--bind-address=127.0.0.1".into(),
            format!("--cert-dir={}", at("certificates")),
            format!("--service-account-key-file={}", at("sa.pub")),
            format!("--service-account-signing-key-file={}", at("sa.key")),
            "--service-account-issuer=https://muster.test".into(),
            "--service-cluster-ip-range=10.0.0.0/24".into(),
            format!("--token-auth-file={}", at("users.csv")),
            "--authorization-mode=RBAC".into(),
            // Whether a pod may be privileged is the question of a test.
            "--allow-privileged=true".into(),
        ];
        flags.extend(further.iter().map(|flag| (*flag).to_owned()));
        processes.0.push(run(&apiserver, "apiserver.log", &flags));
        let mut server = Self {
            url: format!("https://127.0.0.1:{secure}"),
            coordinator: String::new(),
            rules: AtomicU32::new(0),
            processes,
            folder,
        };
        server.fill().await;
        Some(server)
    }

    /// What a cluster has when Muster is installed in it.
    async fn fill(&mut self) {
        within(async {
            let mut look = tokio::time::interval(Duration::from_millis(200));
            while (self
                .try_ask(Method::GET, "/api/v1/namespaces/default", None)
                .await)
                .is_err()
            {
                look.tick().await;
            }
        })
        .await;
        for namespace in [AGENTS, "team-a", "team-b"] {
            let object = json!({ "metadata": { "name": namespace } });
            self.create("/api/v1/namespaces", object).await;
        }
        for account in [
            "muster-system/muster-agent",
            "muster-system/muster-coordinator",
            "team-a/ann",
        ] {
            let (namespace, name) = account.split_once('/').unwrap();
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
            self.create(&path, json!({ "metadata": { "name": name } }))
                .await;
        }
        let node = json!({ "metadata": { "name": "n1" } });
        self.create("/api/v1/nodes", node).await;
        self.install_cordons().await;
        let subject =
            json!({ "kind": "ServiceAccount", "name": "muster-coordinator", "namespace": AGENTS });
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        // The API server makes its own ClusterRoles a moment after it answers.
        self.create(
            &format!("{rbac}/clusterrolebindings"),
            json!({
                "metadata": { "name": "muster-coordinator" },
                "subjects": [subject],
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator" },
            }),
        )
        .await;
        self.create(
            &format!("{rbac}/namespaces/{AGENTS}/roles"),
            json!({
                "metadata": { "name": "muster-coordinator" },
                "rules": [
                    { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"] },
                    { "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["muster-ca-bundle"], "verbs": ["patch"] },
                ],
            }),
        )
        .await;
        self.create(
            &format!("{rbac}/namespaces/{AGENTS}/rolebindings"),
            json!({
                "metadata": { "name": "muster-coordinator" },
                "subjects": [subject],
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "muster-coordinator" },
            }),
        )
        .await;
        self.install_jobs(&subject).await;
        let account = "muster-system/muster-coordinator";
        self.coordinator = self.token(account, "", None).await;
        // Its rules are known to the API server a moment later.
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": "a.b.c" } });
        let client = kube::Client::try_from(self.coordinators()).unwrap();
        within(async {
            let mut look = tokio::time::interval(Duration::from_millis(200));
            loop {
                let path = "/apis/authentication.k8s.io/v1/tokenreviews";
                let request = Request::post(path).header("content-type", "application/json");
                let request = request.body(serde_json::to_vec(&review).unwrap()).unwrap();
                if client.request::<Value>(request).await.is_ok() {
                    return;
                }
                look.tick().await;
            }
        })
        .await;
    }

    /// The definition of MusterJob objects, and the coordinator's rights to them, as the manifests
    /// have them.
    async fn install_jobs(&self, coordinator: &Value) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/base");
        let read = |file: &str| -> Vec<Value> {
            let text = fs::read_to_string(root.join(file)).unwrap();
            serde_saphyr::from_multiple(&text).unwrap()
        };
        for definition in read("crd.yaml") {
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            self.create(path, definition).await;
        }
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let objects = read("coordinator.yaml");
        let role = objects
            .iter()
            .find(|object| object["kind"] == "ClusterRole");
        let role = role.unwrap().clone();
        let name = role["metadata"]["name"].clone();
        self.create(&format!("{rbac}/clusterroles"), role).await;
        let binding = json!({
            "metadata": { "name": "muster-coordinator-own" },
            "subjects": [coordinator],
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        });
        self.create(&format!("{rbac}/clusterrolebindings"), binding)
            .await;
        let component = "../components/two-coordinators/rights.yaml";
        for object in read(component) {
            let kind = match object["kind"].as_str().unwrap() {
                "Role" => "roles",
                _ => "rolebindings",
            };
            let path = format!("{rbac}/namespaces/{AGENTS}/{kind}");
            self.create(&path, object).await;
        }
        // The definitions are served a moment later.
        within(async {
            let mut look = tokio::time::interval(Duration::from_millis(200));
            for objects in ["musterjobs", "musterrecords"] {
                let path = format!("/apis/muster.dev/v1alpha1/{objects}");
                while self.try_ask(Method::GET, &path, None).await.is_err() {
                    look.tick().await;
                }
            }
        })
        .await;
    }

    /// The rights of the base, and the component as it is shipped.
    async fn install_cordons(&self) {
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let subject =
            json!({ "kind": "ServiceAccount", "name": "muster-coordinator", "namespace": AGENTS });
        let name = json!({ "name": "muster-coordinator-nodes" });
        let rules = json!([{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"] }]);
        let role = json!({ "metadata": name, "rules": rules });
        self.create(&format!("{rbac}/clusterroles"), role).await;
        let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "muster-coordinator-nodes" });
        let binding = json!({ "metadata": name, "subjects": [subject], "roleRef": role });
        self.create(&format!("{rbac}/clusterrolebindings"), binding)
            .await;
        let admission = "/apis/admissionregistration.k8s.io/v1";
        for (kind, path) in [
            ("ClusterRole", format!("{rbac}/clusterroles")),
            ("ClusterRoleBinding", format!("{rbac}/clusterrolebindings")),
            (
                "ValidatingAdmissionPolicy",
                format!("{admission}/validatingadmissionpolicies"),
            ),
            (
                "ValidatingAdmissionPolicyBinding",
                format!("{admission}/validatingadmissionpolicybindings"),
            ),
        ] {
            for object in COMPONENT.iter().flat_map(|file| file.split("\n---\n")) {
                if object.contains(&format!("\nkind: {kind}\n")) {
                    let made = self.send(ADMIN, Method::POST, &path, "application/yaml", object);
                    within(made).await.unwrap_or_else(|e| panic!("{kind}: {e}"));
                }
            }
        }
    }

    /// Rights of a component, as they are shipped.
    async fn grant(&self, component: &str) {
        for object in manifest(&format!("components/{component}/rights.yaml")) {
            self.grant_one(object).await;
        }
    }

    async fn grant_one(&self, object: Value) {
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let own = format!("{rbac}/namespaces/{AGENTS}");
        let path = match object["kind"].as_str().unwrap() {
            "ClusterRole" => format!("{rbac}/clusterroles"),
            "ClusterRoleBinding" => format!("{rbac}/clusterrolebindings"),
            "Role" => format!("{own}/roles"),
            _ => format!("{own}/rolebindings"),
        };
        self.create(&path, object).await;
    }

    /// Waits until the coordinator may list these objects: its rights are known to the API server a moment
    /// later.
    async fn until_listed(&self, path: &str) {
        let client = kube::Client::try_from(self.coordinators()).unwrap();
        within(async {
            let mut look = tokio::time::interval(Duration::from_millis(200));
            loop {
                let request = Request::get(path).body(Vec::new()).unwrap();
                if client.request::<Value>(request).await.is_ok() {
                    return;
                }
                look.tick().await;
            }
        })
        .await;
    }

    /// The scheduler gives a pod this node and its kubelet runs it. Returns a token of the pod.
    pub(super) async fn run_pod(&self, namespace: &str, pod: &Value, node: &str) -> String {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        self.create(&format!("{path}/binding"), binding).await;
        let running = json!({ "status": { "phase": "Running" } });
        let status = format!("{path}/status");
        let patched = self.patch(false, &status, "merge-patch+json", &running);
        within(patched).await.unwrap();
        let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"] });
        let spec =
            json!({ "expirationSeconds": 3_600, "audiences": [AUDIENCE], "boundObjectRef": bound });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default/token");
        let made = self.create(&path, json!({ "spec": spec })).await;
        made["status"]["token"].as_str().unwrap().to_owned()
    }

    /// The containers of a pod have ended, and its kubelet lets it go.
    pub(super) async fn drop_pod(&self, namespace: &str, name: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0");
        // The API server may have let it go itself.
        drop(within(self.try_ask(Method::DELETE, &path, None)).await);
    }

    /// As the coordinator, or as the test itself, which may do everything.
    pub(super) async fn patch(
        &self,
        is_coordinator: bool,
        path: &str,
        content: &str,
        patch: &Value,
    ) -> Result<Value, kube::Error> {
        let token = match is_coordinator {
            true => self.coordinator.as_str(),
            false => ADMIN,
        };
        let content = format!("application/{content}");
        self.send(token, Method::PATCH, path, &content, &patch.to_string())
            .await
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        within(self.try_ask(Method::GET, path, None)).await.unwrap()
    }

    async fn send(
        &self,
        token: &str,
        method: Method,
        path: &str,
        content: &str,
        body: &str,
    ) -> Result<Value, kube::Error> {
        let client = kube::Client::try_from(configuration(&self.url, token)).unwrap();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content);
        let request = request.body(body.as_bytes().to_vec()).unwrap();
        client.request(request).await
    }

    pub(super) fn coordinators(&self) -> kube::Config {
        configuration(&self.url, &self.coordinator)
    }

    /// The address of the API server, and the token of a user who may do everything.
    pub(super) fn address_for_users(&self) -> (String, String) {
        (self.url.clone(), ADMIN.to_owned())
    }

    /// A user who may do everything.
    pub(super) fn admins(&self) -> kube::Config {
        configuration(&self.url, ADMIN)
    }

    async fn try_ask(
        &self,
        method: Method,
        path: &str,
        object: Option<Value>,
    ) -> Result<Value, kube::Error> {
        let client = kube::Client::try_from(configuration(&self.url, ADMIN)).unwrap();
        let body = object.map(|object| serde_json::to_vec(&object).unwrap());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json");
        let request = request.body(body.unwrap_or_default()).unwrap();
        client.request(request).await
    }

    async fn create(&self, path: &str, object: Value) -> Value {
        let created = within(self.try_ask(Method::POST, path, Some(object))).await;
        created.unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// `audience`: empty for that of the API server itself.
    pub(super) async fn token(&self, account: &str, audience: &str, node: Option<&str>) -> String {
        let (namespace, name) = account.split_once('/').unwrap();
        let mut spec = json!({ "expirationSeconds": 3_600 });
        spec["audiences"] = match audience {
            "" => json!(["https://muster.test"]),
            audience => json!([audience]),
        };
        if let Some(node) = node {
            let (pod, uid) = self.pod(namespace, name, node).await;
            spec["boundObjectRef"] =
                json!({ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid });
        }
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let made = self.create(&path, json!({ "spec": spec })).await;
        made["status"]["token"].as_str().unwrap().to_owned()
    }

    /// The pod of this account on this node, which is made if it is not there.
    async fn pod(&self, namespace: &str, account: &str, node: &str) -> (String, String) {
        let name = format!("pod-on-{node}");
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let one = format!("{path}/{name}");
        let pod = match self.try_ask(Method::GET, &one, None).await {
            Ok(pod) => pod,
            Err(_) => {
                let spec = json!({
                    "serviceAccountName": account,
                    "automountServiceAccountToken": false,
                    "nodeName": node,
                    "containers": [{ "name": "agent", "image": "none" }],
                });
                let object = json!({ "metadata": { "name": name }, "spec": spec });
                self.create(&path, object).await
            }
        };
        (name, pod["metadata"]["uid"].as_str().unwrap().to_owned())
    }

    pub(super) async fn delete_pod(&self, node: &str) {
        let path = format!("/api/v1/namespaces/{AGENTS}/pods/pod-on-{node}?gracePeriodSeconds=0");
        self.try_ask(Method::DELETE, &path, None).await.unwrap();
    }

    pub(super) async fn allow(&self, user: &str, verb: &str, resource: &str, namespace: &str) {
        let number = self.rules.fetch_add(1, Ordering::Relaxed);
        let name = format!("rule-{number}");
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let rules =
            json!([{ "apiGroups": ["muster.dev"], "resources": [resource], "verbs": [verb] }]);
        let role = json!({ "metadata": { "name": name }, "rules": rules });
        self.create(&format!("{rbac}/clusterroles"), role).await;
        let place = match namespace {
            "" => format!("{rbac}/clusterrolebindings"),
            namespace => format!("{rbac}/namespaces/{namespace}/rolebindings"),
        };
        let binding = json!({
            "metadata": { "name": name },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        });
        self.create(&place, binding).await;
    }

    pub(super) async fn config_map(&self, name: &str) -> Option<Value> {
        let path = format!("/api/v1/namespaces/{AGENTS}/configmaps/{name}");
        self.try_ask(Method::GET, &path, None).await.ok()
    }
}
