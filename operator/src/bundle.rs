//! Keeps the certificate authorities of this cluster in a ConfigMap of the coordinator's namespace,
//! for the pods of the agents to mount. They are no secret.

use std::time::Duration;

use kube::Config;
use muster_core::{
    id::JobUid,
    spec::{API_VERSION, KIND},
};
use muster_handle::lead::Lead;
use muster_runtime::backoff::{Backoff, USEFUL, entropy};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::server::{NoServer, Server, Unanswered};

/// The ConfigMap's name, and the key in it.
pub(super) const NAME: &str = "muster-ca-bundle";
const KEY: &str = "ca.crt";

/// How often to look whether the authorities have changed. Nothing is asked for that.
const LOOK: Duration = Duration::from_secs(5);
/// After this time the ConfigMap is written anyway: somebody may have changed or deleted it.
const AGAIN: Duration = Duration::from_secs(10 * 60);
/// The longest pause between two attempts. New nodes cannot come until one succeeds.
const RETRY_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Bundle {
    server: Server,
    namespace: String,
}

impl Bundle {
    /// In the namespace of the pod or of the kubeconfig.
    pub fn of(configuration: &Config) -> Result<Self, NoServer> {
        Ok(Self {
            server: Server::of(configuration)?,
            namespace: configuration.default_namespace.clone(),
        })
    }

    /// Publishes what `authorities` says, PEM, and again whenever it says something else.
    pub async fn follow(
        mut self,
        lead: Lead,
        authorities: impl Fn() -> String,
        shutdown: CancellationToken,
    ) {
        self.server = self.server.while_leading(lead);
        let work = Box::pin(self.work(authorities));
        shutdown.run_until_cancelled(work).await;
    }

    async fn work(&self, authorities: impl Fn() -> String) {
        let mut backoff = Backoff::new(RETRY_MAX, USEFUL);
        let (mut published, mut told) = (None, false);
        loop {
            let (now, begun) = (authorities(), Instant::now());
            let is_there = |(text, at): &(String, Instant)| *text == now && at.elapsed() < AGAIN;
            if published.as_ref().is_some_and(is_there) {
                sleep(LOOK).await;
                continue;
            }
            match publish(&self.server, &self.namespace, &now, &Vec::new()).await {
                Ok(()) => {
                    let is_new = published.as_ref().is_none_or(|(text, _)| *text != now);
                    if told || is_new {
                        info!("the certificate authorities are in the ConfigMap {NAME}");
                    }
                    (published, told) = (Some((now, begun)), false);
                }
                Err(why) => {
                    if !told {
                        warn!(
                            "the certificate authorities cannot be written to the ConfigMap {NAME}, so new agents do not know this \
                             coordinator: {}",
                            sentence(&why)
                        );
                    }
                    told = true;
                    sleep(backoff.after(begun.elapsed(), entropy())).await;
                }
            }
        }
    }
}

/// The MusterJob objects for which a namespace has the authorities, each by its uid and its name. When the last is
/// gone, the cluster deletes the ConfigMap.
pub(super) type Owners = Vec<(JobUid, String)>;

/// Writes the authorities to a namespace, by server-side apply, which makes or changes the object and
/// asks for no version of it.
pub(super) async fn publish(
    server: &Server,
    namespace: &str,
    authorities: &str,
    owners: &Owners,
) -> Result<(), Unanswered> {
    let owner = |(uid, name): &(JobUid, String)| json!({ "apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": uid.as_str() });
    let owners: Vec<Value> = owners.iter().map(owner).collect();
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": NAME, "ownerReferences": owners },
        "data": { KEY: authorities },
    });
    let path = format!(
        "/api/v1/namespaces/{namespace}/configmaps/{NAME}?fieldManager=muster-coordinator&force=true"
    );
    server.apply::<Value>(&path, &object).await?;
    Ok(())
}

fn sentence(why: &Unanswered) -> String {
    match why {
        Unanswered::Forbidden(_) => {
            format!(
                "{why}; its user needs the verbs create and patch on configmaps in its namespace"
            )
        }
        _ => why.to_string(),
    }
}
