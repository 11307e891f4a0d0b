//! The record of a local cluster: `cluster.json`, and the lock of the commands that change it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use muster_rpc::peer;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::process::Identity;
use crate::fail::Failure;

const RECORD: &str = "cluster.json";
const LOCK: &str = "lock";
/// Format of the record. A record with another number was written by another version.
const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cluster {
    version: u32,
    /// Endpoint of the coordinator. Empty until it has served for the first time.
    pub(super) server: String,
    pub(super) coordinator: Option<Identity>,
    pub(super) nodes: BTreeMap<String, Node>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    pub(super) agent: Option<Identity>,
    pub(super) slots: u32,
    #[serde(default)]
    pub(super) labels: Vec<String>,
    /// The scenario that the node's simulated machine was made from, if it has one.
    #[serde(default)]
    pub(super) hardware: Option<String>,
    /// The GPUs of this machine that the node owns, in the form of the agent's --gpus.
    #[serde(default)]
    pub(super) gpus: Option<String>,
    /// How many launchers the node keeps ready for jobs to come.
    #[serde(default)]
    pub(super) warm_pool: u32,
}

impl Cluster {
    pub(super) fn new() -> Self {
        Self {
            version: VERSION,
            server: String::new(),
            coordinator: None,
            nodes: BTreeMap::new(),
        }
    }

    /// `None`: there is no cluster in this directory.
    pub(super) fn load(dir: &Path) -> Result<Option<Cluster>, Failure> {
        let path = dir.join(RECORD);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(Failure::request(format!("{}: {error}", path.display()))),
        };
        let damaged = |what: String| {
            Failure::request(format!(
                "{}: is damaged: {what}; stop its processes by hand and remove the directory",
                path.display()
            ))
        };
        let json = muster_sealed::open(&text).map_err(|broken| damaged(broken.to_string()))?;
        let cluster: Cluster =
            serde_json::from_slice(json).map_err(|error| damaged(error.to_string()))?;
        match cluster.version {
            VERSION => Ok(Some(cluster)),
            other => Err(Failure::request(format!(
                "{}: was written by another version ({other}) of muster",
                path.display()
            ))),
        }
    }

    /// The record of the cluster, or an error if there is none.
    pub(super) fn existing(dir: &Path) -> Result<Cluster, Failure> {
        Cluster::load(dir)?.ok_or_else(|| {
            Failure::request(format!(
                "no local cluster in {}; `muster local up` starts one",
                dir.display()
            ))
        })
    }

    pub(super) fn node(&self, name: &str) -> Result<&Node, Failure> {
        let known = || {
            self.nodes
                .keys()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ")
        };
        self.nodes.get(name).ok_or_else(|| {
            Failure::request(format!(
                "no node {name:?} in this cluster; there are: {}",
                known()
            ))
        })
    }

    pub(super) fn daemons(&self) -> impl Iterator<Item = &Identity> {
        self.coordinator
            .iter()
            .chain(self.nodes.values().filter_map(|node| node.agent.as_ref()))
    }

    /// Replaces the record. After a crash either the old or the new one is there.
    pub(super) fn save(&self, dir: &Path) -> Result<(), Failure> {
        let write = || -> io::Result<()> {
            let temporary = dir.join(format!("{RECORD}.tmp"));
            let mut file = File::options()
                .create(true)
                .truncate(true)
                .write(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(&muster_sealed::seal(serde_json::to_vec_pretty(self)?))?;
            file.sync_all()?;
            fs::rename(&temporary, dir.join(RECORD))
        };
        write()
            .map_err(|error| Failure::request(format!("{}: {error}", dir.join(RECORD).display())))
    }

    /// Removes only what a cluster keeps in its directory, and the directory itself only if it is
    /// empty then.
    pub(super) fn remove(dir: &Path) -> io::Result<()> {
        let gone = |result: io::Result<()>| match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        gone(fs::remove_dir_all(coordinator_dir(dir)))?;
        gone(fs::remove_dir_all(dir.join(NODES)))?;
        gone(fs::remove_file(dir.join(RECORD)))?;
        gone(fs::remove_file(dir.join(LOCK)))?;
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            other => gone(other),
        }
    }
}

const NODES: &str = "nodes";

pub(super) fn coordinator_dir(dir: &Path) -> PathBuf {
    dir.join("coordinator")
}

pub(super) fn node_dir(dir: &Path, name: &str) -> PathBuf {
    dir.join(NODES).join(name)
}

/// The lock that a command holds while it changes the cluster. Dropping it releases it.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of an existing directory. Waits until another command has released it.
    pub(super) async fn take(dir: &Path) -> Result<Lock, Failure> {
        let path = dir.join(LOCK);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path);
        let file =
            file.map_err(|error| Failure::request(format!("{}: {error}", path.display())))?;
        let until = Instant::now() + LOCK_TIMEOUT;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= until {
                return Err(Failure::request(format!(
                    "another `muster local` command is at work in {}",
                    dir.display()
                )));
            }
            sleep(LOCK_LOOK).await;
        }
        Ok(Lock { _file: file })
    }
}

/// The lock and the record of a cluster that must exist.
pub(super) async fn open(dir: &Path) -> Result<(Lock, Cluster), Failure> {
    Cluster::existing(dir)?;
    let lock = Lock::take(dir).await?;
    // The previous holder of the lock may have changed the cluster, or ended it.
    Ok((lock, Cluster::existing(dir)?))
}

/// Killing and starting take less than a second. A longer wait means that a start hangs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_LOOK: Duration = Duration::from_millis(10);

/// Makes the directory of a new cluster. Refuses a directory that somebody else uses.
pub(super) fn prepare(dir: &Path) -> Result<(), Failure> {
    let foreign = coordinator_dir(dir).exists() || dir.join(NODES).exists();
    if foreign && !dir.join(RECORD).exists() {
        // `down` removes these two, so they must be ours.
        return Err(Failure::request(format!(
            "{} holds a directory `coordinator` or `nodes` that no local cluster has made; choose another --dir",
            dir.display()
        )));
    }
    let failed = |error: io::Error| Failure::request(format!("{}: {error}", dir.display()));
    make_private(dir).map_err(failed)?;
    let owner = fs::metadata(dir).map_err(failed)?.uid();
    if owner != peer::own_user() {
        return Err(Failure::request(format!(
            "{} belongs to user {owner}; choose another --dir",
            dir.display()
        )));
    }
    Ok(())
}

/// Makes a directory, and those above it, that only its user can read, because logs and state
/// contain what jobs were given. An existing directory stays as it is.
pub(crate) fn make_private(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_read_as_written_and_damage_is_said() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Cluster::load(dir.path()).unwrap(), None);
        let mut cluster = Cluster::new();
        cluster.server = "http://127.0.0.1:1".into();
        let agent = Some(Identity {
            pid: 1,
            start_time: 2,
            boot_id: "b".into(),
        });
        cluster.nodes.insert(
            "node-1".into(),
            Node {
                agent,
                slots: 1,
                labels: vec!["a=b".into()],
                hardware: None,
                gpus: None,
                warm_pool: 1,
            },
        );
        cluster.save(dir.path()).unwrap();
        assert_eq!(Cluster::load(dir.path()).unwrap(), Some(cluster));
        let whole = fs::read(dir.path().join(RECORD)).unwrap();
        for at in 0..whole.len() {
            let flips = (0..8).map(|bit| {
                whole
                    .iter()
                    .enumerate()
                    .map(|(i, b)| b ^ u8::from(i == at) << bit)
                    .collect()
            });
            for damaged in flips.chain([whole[..at].to_vec()]) {
                fs::write(dir.path().join(RECORD), damaged).unwrap();
                let error = Cluster::load(dir.path()).unwrap_err().to_string();
                assert!(
                    error.contains("is damaged") && error.contains("stop its processes by hand"),
                    "at {at}: {error}"
                );
            }
        }
        let other = muster_sealed::seal(
            br#"{"version":9,"server":"","coordinator":null,"nodes":{}}"#.to_vec(),
        );
        fs::write(dir.path().join(RECORD), other).unwrap();
        assert!(
            Cluster::load(dir.path())
                .unwrap_err()
                .to_string()
                .contains("another version (9)")
        );
    }

    #[test]
    fn only_our_own_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("d");
        prepare(&root).unwrap();
        Cluster::new().save(&root).unwrap();
        fs::create_dir_all(node_dir(&root, "n")).unwrap();
        fs::write(root.join("mine.txt"), "x").unwrap();
        Cluster::remove(&root).unwrap();
        assert_eq!(
            fs::read_dir(&root).unwrap().count(),
            1,
            "a stranger's file stays"
        );
        fs::create_dir(root.join("nodes")).unwrap();
        assert!(
            prepare(&root)
                .unwrap_err()
                .to_string()
                .contains("choose another --dir")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn two_commands_do_not_change_a_cluster_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path()).await.unwrap();
        assert!(
            Lock::take(dir.path())
                .await
                .unwrap_err()
                .to_string()
                .contains("another `muster local` command")
        );
        drop(first);
        Lock::take(dir.path()).await.unwrap();
    }
}
