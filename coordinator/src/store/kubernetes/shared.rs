//! The trust folder in a Secret, so that every coordinator has the same authority, join tokens and
//! denials when it begins to decide. Commands change the folder of the pod in which they run. The
//! coordinator that decides copies its folder into the Secret within a second.

use std::{path::PathBuf, time::Duration};

use kube::Config;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::object::{packed, unpacked};
use crate::{
    kubernetes::{KubernetesError, Server, Unanswered},
    trust::{self, Contents, TrustError},
};

const NAME: &str = "muster-coordinator-trust";
const KEY: &str = "trust.json.gz";

/// How often the folder is looked at.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    #[error("the Secret {NAME} cannot be {what}: {why}")]
    Unanswered { what: &'static str, why: String },
    #[error("the Secret {NAME} is not one that a coordinator has written: {0}")]
    Malformed(String),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Kubernetes(#[from] KubernetesError),
}

#[derive(Debug)]
pub struct SharedTrust {
    server: Server,
    namespace: String,
    state_dir: PathBuf,
    /// The Secret's version and what it holds.
    known: Option<(String, Contents)>,
}

impl SharedTrust {
    /// Copies the Secret into the state directory. Without a Secret the folder there stays as it is.
    pub async fn fetch(configuration: &Config, state_dir: PathBuf) -> Result<Self, SharedError> {
        let mut shared = Self {
            server: Server::of(configuration)?,
            namespace: configuration.default_namespace.clone(),
            state_dir,
            known: None,
        };
        let found = match shared.server.get::<Value>(&shared.path()).await {
            Ok(found) => found,
            Err(why) if why.is_missing() => return Ok(shared),
            Err(why) => return Err(unanswered("read", &why)),
        };
        let contents = contents(&found)?;
        trust::replace(&shared.state_dir, &contents)?;
        shared.known = Some((version(&found), contents));
        Ok(shared)
    }

    /// Writes the folder to the Secret if it has changed.
    pub async fn keep(&mut self) -> Result<(), SharedError> {
        let contents = trust::contents(&self.state_dir)?;
        let before = match &self.known {
            Some((_, known)) if *known == contents => return Ok(()),
            Some((version, _)) => Some(version.clone()),
            None => None,
        };
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": NAME, "resourceVersion": before },
            "data": { KEY: packed(&contents) },
        });
        let stored: Result<Value, _> = match before {
            Some(_) => self.server.replace(&self.path(), &secret).await,
            None => self.server.create(&self.folder(), &secret).await,
        };
        match stored {
            Ok(stored) => {
                self.known = Some((version(&stored), contents));
                Ok(())
            }
            Err(why) => {
                self.look_again(&contents).await;
                Err(unanswered("written", &why))
            }
        }
    }

    /// After a write that failed, or whose answer was lost, the Secret may have another version than
    /// the known one. Without a look every later write would be refused. `ours`: what was to be
    /// written.
    async fn look_again(&mut self, ours: &Contents) {
        let Ok(found) = self.server.get::<Value>(&self.path()).await else {
            return;
        };
        let Ok(contents) = contents(&found) else {
            return;
        };
        let known = self.known.as_ref().map(|(_, known)| known);
        if is_of_this_process(&contents, ours, known) {
            self.known = Some((version(&found), contents));
        }
    }

    /// Copies each change of the folder into the Secret, until the shutdown.
    pub(crate) async fn follow(mut self, shutdown: CancellationToken) {
        let mut told = false;
        while shutdown.run_until_cancelled(sleep(LOOK)).await.is_some() {
            match self.keep().await {
                Ok(()) if told => {
                    info!("the Secret {NAME} has all changes of the trust folder again");
                    told = false;
                }
                Ok(()) => {}
                Err(why) if !told => {
                    warn!(
                        "{why}; the next coordinator would not know of the change. It is tried again every second"
                    );
                    told = true;
                }
                Err(_) => {}
            }
        }
    }

    fn folder(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets", self.namespace)
    }

    fn path(&self) -> String {
        format!("{}/{NAME}", self.folder())
    }
}

/// The copy of the trust folder in this Secret.
fn contents(secret: &Value) -> Result<Contents, SharedError> {
    let data = secret["data"][KEY].as_str().unwrap_or_default();
    unpacked(data).map_err(|e| SharedError::Malformed(e.to_string()))
}

/// Whether the Secret holds what this process wrote last, or tried to write. Anything else is from a
/// coordinator that decides by now, and is not overwritten.
fn is_of_this_process(found: &Contents, ours: &Contents, known: Option<&Contents>) -> bool {
    found == ours || Some(found) == known
}

fn unanswered(what: &'static str, why: &Unanswered) -> SharedError {
    let why = why.to_string();
    SharedError::Unanswered { what, why }
}

fn version(object: &Value) -> String {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.unwrap_or_default().to_owned()
}
