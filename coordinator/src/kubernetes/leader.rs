//! The label of the pod whose coordinator decides, by which the Service finds it. All pods are ready;
//! one that stands by leads callers on to that one.

use std::{net::IpAddr, time::Duration};

use kube::Config;
use muster_operator::{Server, Unanswered};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::KubernetesError;

/// As a label, and as it stands in a query.
const LABEL: &str = "muster.dev/leader";
const LABEL_QUERY: &str = "muster.dev%2Fleader%3Dtrue";

/// How often the labels are looked at: somebody may have changed them.
const LOOK: Duration = Duration::from_secs(10);
/// After an attempt that failed: nobody finds this coordinator before.
const AGAIN: Duration = Duration::from_secs(1);
/// At the end, to take the own label away.
const END: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Leader {
    server: Server,
    namespace: String,
    pod: String,
}

#[derive(Deserialize)]
struct Pods {
    items: Vec<Pod>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Meta,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(rename = "podIP")]
    pod_ip: Option<IpAddr>,
}

#[derive(Deserialize)]
struct Meta {
    name: String,
}

impl Leader {
    pub fn of(configuration: &Config, pod: String) -> Result<Self, KubernetesError> {
        Ok(Self {
            server: Server::of(configuration)?,
            namespace: configuration.default_namespace.clone(),
            pod,
        })
    }

    /// Keeps the label where it belongs, until the shutdown.
    pub(crate) async fn follow(self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(Box::pin(self.work())).await;
        // Callers look for another one at once.
        let _ = timeout(END, Box::pin(self.label(&self.pod, None))).await;
    }

    async fn work(&self) {
        let (mut is_found, mut told) = (false, false);
        loop {
            match self.mark().await {
                Ok(()) => {
                    if !is_found || told {
                        info!(pod = self.pod, "callers are sent here");
                    }
                    (is_found, told) = (true, false);
                    sleep(LOOK).await;
                }
                Err(why) => {
                    if !told {
                        warn!(
                            "pods cannot be given the label {LABEL}, so callers may not find this coordinator: {why}"
                        );
                    }
                    told = true;
                    sleep(AGAIN).await;
                }
            }
        }
    }

    async fn labelled(&self) -> Result<Pods, Unanswered> {
        let path = format!("{}?labelSelector={LABEL_QUERY}", self.folder());
        self.server.get(&path).await
    }

    /// Where the pod is whose coordinator decides. `None`: nobody decides, or it is not known. A pod that has
    /// the label itself, from before, names no other, or two of them could send callers to and fro.
    pub(crate) async fn other_address(&self) -> Result<Option<IpAddr>, Unanswered> {
        match &self.labelled().await?.items[..] {
            [pod] if pod.metadata.name != self.pod => Ok(pod.status.pod_ip),
            _ => Ok(None),
        }
    }

    async fn mark(&self) -> Result<(), Unanswered> {
        let pods = self.labelled().await?;
        let is_ours = |pod: &Pod| pod.metadata.name == self.pod;
        for other in pods.items.iter().filter(|pod| !is_ours(pod)) {
            match self.label(&other.metadata.name, None).await {
                Err(why) if !why.is_missing() => return Err(why),
                _ => {}
            }
        }
        if !pods.items.iter().any(is_ours) {
            self.label(&self.pod, Some("true")).await?;
        }
        Ok(())
    }

    async fn label(&self, pod: &str, value: Option<&str>) -> Result<(), Unanswered> {
        let patch = json!({ "metadata": { "labels": { LABEL: value } } });
        let path = format!("{}/{pod}", self.folder());
        self.server.merge::<Value>(&path, &patch).await?;
        Ok(())
    }

    fn folder(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace)
    }
}
