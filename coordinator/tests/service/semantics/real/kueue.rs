//! Kueue's definitions on a real API server, and Kueue's own controller with its webhooks.
//!
//! Kueue asks for a service and makes the certificates of its webhooks itself. So the service here leads to
//! this machine, and the rest is as Kueue's manifests have it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use http::Method;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{Server, port, program};
use crate::server::within;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SYSTEM: &str = "kueue-system";
const SERVICE: &str = "kueue-webhook-service";
const SECRET: &str = "kueue-webhook-server-cert";
/// The definitions whose versions Kueue converts.
const CONVERTED: [&str; 5] = [
    "clusterqueues",
    "cohorts",
    "localqueues",
    "multikueueclusters",
    "workloads",
];

/// Kueue's controller, until it is dropped.
pub(in crate::semantics) struct Kueue {
    process: Child,
    port: u16,
    /// Of its service account, which has the rights that Kueue's manifests give it.
    token: String,
}

impl Kueue {
    pub(in crate::semantics) fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Kueue {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Server {
    /// Kueue's definitions from this folder, its component as it is shipped, and a flavor `spot`.
    pub(in crate::semantics) async fn install_kueue(&self, definitions: &Path, flavor: Value) {
        for file in ["workloads", "resourceflavors"] {
            let path = definitions.join(format!("kueue.x-k8s.io_{file}.yaml"));
            self.create(DEFINITIONS, read(&path).remove(0)).await;
        }
        self.grant("kueue").await;
        self.until_listed("/apis/kueue.x-k8s.io/v1beta2/workloads")
            .await;
        self.make_when_served("resourceflavors", "spot", flavor)
            .await;
    }

    /// An object of Kueue's without a namespace. Its kind, or Kueue's webhook, may answer a moment later.
    pub(in crate::semantics) async fn make_when_served(
        &self,
        plural: &str,
        name: &str,
        spec: Value,
    ) {
        let kind = match plural {
            "resourceflavors" => "ResourceFlavor",
            "clusterqueues" => "ClusterQueue",
            other => panic!("{other}"),
        };
        let object = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": { "name": name }, "spec": spec,
        });
        let path = format!("/apis/kueue.x-k8s.io/v1beta2/{plural}");
        within(async {
            let mut look = tokio::time::interval(Duration::from_millis(200));
            while (self
                .try_ask(Method::POST, &path, Some(object.clone()))
                .await)
                .is_err()
            {
                look.tick().await;
            }
        })
        .await;
    }

    /// All that Kueue needs, and Kueue. `None`: there is no program for it. `definitions`: the folder
    /// `config/components/crd/bases` of its source, which has its webhooks beside it.
    pub(in crate::semantics) async fn start_kueue(
        &self,
        definitions: &Path,
        further: Value,
    ) -> Option<Kueue> {
        program("kueue", "TEST_ASSET_KUEUE")?;
        let port = port();
        let namespace = json!({ "metadata": { "name": SYSTEM } });
        self.create("/api/v1/namespaces", namespace).await;
        let own = format!("/api/v1/namespaces/{SYSTEM}");
        let service = json!({
            "metadata": { "name": SERVICE },
            "spec": { "type": "ExternalName", "externalName": "localhost" },
        });
        self.create(&format!("{own}/services"), service).await;
        let secret = json!({ "metadata": { "name": SECRET } });
        self.create(&format!("{own}/secrets"), secret).await;
        for file in fs::read_dir(definitions).unwrap() {
            for mut definition in read(&file.unwrap().path()) {
                let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
                if CONVERTED.contains(&plural) {
                    let client = client("/convert", port);
                    definition["spec"]["conversion"] = json!({
                        "strategy": "Webhook",
                        "webhook": { "clientConfig": client, "conversionReviewVersions": ["v1"] },
                    });
                }
                self.create(DEFINITIONS, definition).await;
            }
        }
        for mut hooks in read(&definitions.join("../../webhook/manifests.yaml")) {
            let plural = match hooks["kind"].as_str().unwrap() {
                "MutatingWebhookConfiguration" => "mutatingwebhookconfigurations",
                _ => "validatingwebhookconfigurations",
            };
            let name = format!("kueue-{}", hooks["metadata"]["name"].as_str().unwrap());
            hooks["metadata"]["name"] = json!(name);
            let all = hooks["webhooks"].as_array_mut().unwrap();
            // Others are about kinds that are not served here, or for which Kueue is not asked.
            all.retain(|hook| {
                let rule = &hook["rules"][0];
                rule["apiGroups"][0] == "kueue.x-k8s.io" || rule["resources"][0] == "pods"
            });
            for hook in all {
                let path = hook["clientConfig"]["service"]["path"].take();
                hook["clientConfig"] = client(path.as_str().unwrap(), port);
            }
            let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
            self.create(&path, hooks).await;
        }
        self.grant("kueue").await;
        self.until_listed("/apis/kueue.x-k8s.io/v1beta2/workloads")
            .await;
        self.grant_kueue(definitions).await;
        let token = self
            .token(&format!("{SYSTEM}/kueue-controller-manager"), "", None)
            .await;
        let kueue = self.run_kueue(port, token, further);
        self.mount_certificates().await;
        Some(kueue)
    }

    /// Kueue has made a secret with its certificates, and waits until a kubelet has mounted it.
    async fn mount_certificates(&self) {
        let path = format!("/api/v1/namespaces/{SYSTEM}/secrets/{SECRET}");
        let secret = within(async {
            let mut look = tokio::time::interval(Duration::from_millis(200));
            loop {
                look.tick().await;
                let secret = self.get(&path).await;
                if secret["data"]["tls.crt"].is_string() {
                    return secret;
                }
            }
        })
        .await;
        for (file, content) in secret["data"].as_object().unwrap() {
            let content: ByteString = serde_json::from_value(content.clone()).unwrap();
            fs::write(self.certificates().join(file), content.0).unwrap();
        }
    }

    fn certificates(&self) -> PathBuf {
        self.folder.path().join("kueue-certificates")
    }

    /// Another Kueue in place of this one.
    pub(in crate::semantics) fn restart_kueue(&self, kueue: Kueue, further: Value) -> Kueue {
        let (port, token) = (kueue.port, kueue.token.clone());
        drop(kueue);
        self.run_kueue(port, token, further)
    }

    /// Kueue's account with its rights, as its manifests have them.
    async fn grant_kueue(&self, definitions: &Path) {
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let own = format!("{rbac}/namespaces/{SYSTEM}");
        for file in [
            "service_account",
            "role",
            "role_binding",
            "leader_election_role",
            "leader_election_role_binding",
            "manager_secrets_role",
            "manager_secrets_role_binding",
        ] {
            let path = definitions.join(format!("../../rbac/{file}.yaml"));
            for mut object in read(&path) {
                // What Kueue's kustomization does.
                for subject in object["subjects"].as_array_mut().into_iter().flatten() {
                    subject["namespace"] = json!(SYSTEM);
                    subject["name"] = json!("kueue-controller-manager");
                }
                if !object["metadata"]["namespace"].is_null() {
                    object["metadata"]["namespace"] = json!(SYSTEM);
                }
                for rule in object["rules"].as_array_mut().into_iter().flatten() {
                    for name in rule["resourceNames"].as_array_mut().into_iter().flatten() {
                        let text = name.as_str().unwrap();
                        if text.contains("webhook") && !text.contains('.') {
                            *name = json!(format!("kueue-{text}"));
                        }
                    }
                }
                let path = match object["kind"].as_str().unwrap() {
                    "ServiceAccount" => {
                        object["metadata"]["name"] = json!("kueue-controller-manager");
                        format!("/api/v1/namespaces/{SYSTEM}/serviceaccounts")
                    }
                    "ClusterRole" => format!("{rbac}/clusterroles"),
                    "ClusterRoleBinding" => format!("{rbac}/clusterrolebindings"),
                    "Role" => format!("{own}/roles"),
                    _ => format!("{own}/rolebindings"),
                };
                self.create(&path, object).await;
            }
        }
    }

    fn run_kueue(&self, port: u16, token: String, further: Value) -> Kueue {
        let program = program("kueue", "TEST_ASSET_KUEUE").unwrap();
        let folder = self.folder.path();
        let mut configuration = json!({
            "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "namespace": SYSTEM,
            "health": { "healthProbeBindAddress": "0" },
            "metrics": { "bindAddress": "0" },
            "webhook": { "port": port, "certDir": self.certificates() },
            "leaderElection": { "leaderElect": false },
            "internalCertManagement": { "enable": true, "webhookServiceName": SERVICE, "webhookSecretName": SECRET },
            // As strict as it can be: all pods are its own, except those of kinds that it is told of.
            "manageJobsWithoutQueueName": true,
            "integrations": { "frameworks": ["pod"], "externalFrameworks": ["MusterJob.v1alpha1.muster.dev"] },
            "featureGates": { "VisibilityOnDemand": false },
        });
        for (key, value) in further.as_object().into_iter().flatten() {
            configuration[key] = value.clone();
        }
        let file = folder.join("kueue.yaml");
        fs::write(&file, configuration.to_string()).unwrap();
        fs::create_dir_all(self.certificates()).unwrap();
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(folder.join("kueue.log"))
            .unwrap();
        let mut command = Command::new(program);
        command
            .arg(format!("--config={}", file.display()))
            .arg(format!(
                "--kubeconfig={}",
                self.kubeconfig("kueue", &token).display()
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = command.spawn().unwrap();
        Kueue {
            process,
            port,
            token,
        }
    }
}

/// The service of the webhooks, by which they are called.
fn client(path: &str, port: u16) -> Value {
    json!({ "service": { "namespace": SYSTEM, "name": SERVICE, "path": path, "port": port } })
}

fn read(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
