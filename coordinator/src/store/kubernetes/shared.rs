//! The trust folder in a Secret, so that every coordinator has the same authority, join tokens and
//! denials when it begins to decide. Commands change the folder of the pod in which they run, and wait until
//! the change is copied. The coordinator that decides looks every second, and copies what a call of its own
//! has changed before it answers that call.

use std::{path::PathBuf, time::Duration};

use kube::Config;
use muster_operator::{NoServer, Server, Unanswered};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use super::object::{packed, unpacked};
use crate::trust::{self, Contents, TrustError, Waiting};

const NAME: &str = "muster-coordinator-trust";
const KEY: &str = "trust.json.gz";

/// The mark of the coordinator that has read the Secret last.
const TAKEN_OVER: &str = "muster.dev/taken-over";

/// How often the coordinator before this one may write meanwhile.
const TAKE_OVER_TRIES: u32 = 5;

/// How often the folder is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How long a call waits for its change to be in the Secret. A holder is sure of its Lease for less.
const WAIT: Duration = Duration::from_secs(10);

/// Calls that wait for that. More wait for room.
const WAITING: usize = 64;

/// Has the folder copied now.
#[derive(Clone, Debug)]
pub(crate) struct Keeper(mpsc::Sender<oneshot::Sender<bool>>);

impl Keeper {
    /// Waits until the Secret has what the folder has now. `false`: it may not have it.
    pub(crate) async fn keep(&self) -> bool {
        let (kept, is_kept) = oneshot::channel();
        let asked = async {
            self.0.send(kept).await.ok()?;
            is_kept.await.ok()
        };
        timeout(WAIT, asked).await.ok().flatten() == Some(true)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    #[error("the Secret {NAME} cannot be {what}: {why}")]
    Unanswered { what: &'static str, why: String },
    #[error("the Secret {NAME} is not one that a coordinator has written: {0}")]
    Malformed(String),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    NoServer(#[from] NoServer),
}

#[derive(Debug)]
pub struct SharedTrust {
    server: Server,
    namespace: String,
    state_dir: PathBuf,
    /// The Secret's version and what it holds.
    known: Option<(String, Contents)>,
    asks: mpsc::Sender<oneshot::Sender<bool>>,
    asked: mpsc::Receiver<oneshot::Sender<bool>>,
}

impl SharedTrust {
    /// Copies the Secret into the state directory. Without a Secret the folder there stays as it is.
    pub async fn fetch(configuration: &Config, state_dir: PathBuf) -> Result<Self, SharedError> {
        let (asks, asked) = mpsc::channel(WAITING);
        let mut shared = Self {
            asks,
            asked,
            server: Server::of(configuration)?,
            namespace: configuration.default_namespace.clone(),
            state_dir,
            known: None,
        };
        let Some((version, contents)) = shared.take_over().await? else {
            return Ok(shared);
        };
        trust::replace(&shared.state_dir, &contents)?;
        trust::note_shared(&shared.state_dir, &contents)?;
        shared.known = Some((version, contents));
        Ok(shared)
    }

    /// Reads the Secret, and gives it another version: a write on which the coordinator before this one is
    /// still at work comes to nothing, and whoever waits for it there hears so. `None`: there is no Secret.
    async fn take_over(&self) -> Result<Option<(String, Contents)>, SharedError> {
        let mut tries = 0;
        loop {
            let mut found = match self.server.get::<Value>(&self.path()).await {
                Ok(found) => found,
                Err(why) if why.is_missing() => return Ok(None),
                Err(why) => return Err(unanswered("read", &why)),
            };
            let contents = contents(&found)?;
            // A write that changes nothing would give no new version.
            found["metadata"]["annotations"][TAKEN_OVER] = Uuid::now_v7().to_string().into();
            match self.server.replace::<Value>(&self.path(), &found).await {
                Ok(stored) => return Ok(Some((version(&stored), contents))),
                Err(why) if why.is_conflict() && tries < TAKE_OVER_TRIES => tries += 1,
                Err(why) => return Err(unanswered("written", &why)),
            }
        }
    }

    pub(crate) fn keeper(&self) -> Keeper {
        Keeper(self.asks.clone())
    }

    /// Writes the folder to the Secret if it has changed, and tells the commands that wait for that.
    pub async fn keep(&mut self) -> Result<(), SharedError> {
        let waiting = Waiting::in_folder(&self.state_dir)?;
        self.write().await?;
        Ok(waiting.tell()?)
    }

    async fn write(&mut self) -> Result<(), SharedError> {
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
                trust::note_shared(&self.state_dir, &contents)?;
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
            if let Err(why) = trust::note_shared(&self.state_dir, &contents) {
                return warn!("{why}");
            }
            self.known = Some((version(&found), contents));
        }
    }

    /// Copies each change of the folder into the Secret, until the shutdown.
    pub(crate) async fn follow(mut self, shutdown: CancellationToken) {
        let mut told = false;
        loop {
            let mut waiting = Vec::new();
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sleep(LOOK) => {}
                Some(first) = self.asked.recv() => waiting.push(first),
            }
            // One write is enough for all that have changed the folder by now.
            while let Ok(more) = self.asked.try_recv() {
                waiting.push(more);
            }
            let kept = self.keep().await;
            for one in waiting {
                // Whoever has given up needs no answer.
                let _ = one.send(kept.is_ok());
            }
            match kept {
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
