//! The container that workers live in, where that is not the agent's own.
//!
//! Each look asks its init process. The workers' environment is made from this container's
//! environment. The agent learns it before it clears the finding that keeps work away, so no work
//! starts without it.

use std::{collections::BTreeMap, os::unix::fs::MetadataExt, path::PathBuf};

use muster_core::health::{Reading, Subject, Value};
use muster_runner::{
    Folder,
    pod::{self, Look, Question, SOCKET},
};
use muster_runtime::chain::chain;
use tokio::sync::watch;

/// The environment that the workers' own environment starts from.
pub(crate) type BaseEnv = BTreeMap<String, String>;

/// The volume that the container shares with the agent's, and where its environment is told.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) volume: PathBuf,
    pub(super) env: watch::Sender<BaseEnv>,
}

impl Container {
    /// Whether the container is missing.
    pub(super) fn look(&self) -> Reading {
        let answer = pod::ask::<Look>(&self.volume, &Question::Look);
        let (missing, words) = match answer {
            Ok(look) => {
                let words = format!(
                    "the workers' container is up: muster-runner {}",
                    look.version
                );
                self.env.send_if_modified(|known| {
                    let changed = *known != look.env;
                    *known = look.env;
                    changed
                });
                (false, words)
            }
            Err(e) => (true, chain(&e)),
        };
        Reading {
            check: "workers-container",
            subject: Subject::Node,
            value: Value::Flag(missing),
            words,
            runs: Vec::new(),
        }
    }

    /// Differs after another container has come up, since each binds a socket of its own.
    pub(super) fn glance(&self) -> Option<String> {
        let socket = Folder::trusted(&self.volume).ok()?.about(SOCKET).ok()?;
        Some(socket.ino().to_string())
    }
}

/// The environment of this process, as far as it is UTF-8.
pub(super) fn own_environment() -> BaseEnv {
    std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect()
}
